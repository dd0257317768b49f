"""Contrast, names and roles by axe; a phone's width; the files themselves."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import augury.server

PAGE = Path(augury.server.__file__).parent / "page"
BIGGEST = 200_000
"""Bytes of all the page's own files and its library: it loads at once, also over a slow line."""


def looked_at(page) -> None:
    """What axe finds wrong, on the page as it stands."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found] == []


@pytest.mark.parametrize(("scheme", "locale"), [("light", "en-GB"), ("dark", "zh-CN")])
def test_every_view_passes_axe(server, visit, scheme, locale):
    page = visit(server.url, color_scheme=scheme, locale=locale, reduced_motion="reduce").page
    looked_at(page)
    page.locator("input[name=tokens]").fill("40")
    page.fill("#prompt", "Repeat three times: the cat sat on the mat.")
    page.keyboard.press("Enter")
    page.locator(".under").wait_for()
    page.locator(".check input").last.check()
    page.locator(".bar input[type=checkbox]").last.check()
    looked_at(page)
    page.locator(".answer [role=option]").nth(2).click()
    page.locator(".inspector .node").first.wait_for()
    looked_at(page)
    page.goto(f"{server.url}#/race")
    page.fill("#race-prompt", "Say hello.")
    page.keyboard.press("Enter")
    page.locator(".result").wait_for()
    looked_at(page)
    for view, there in (("requests", "tbody tr"), ("reliability", ".chart"), ("load", ".chart")):
        page.goto(f"{server.url}#/{view}")
        page.locator(there).first.wait_for()
        looked_at(page)
    page.goto(f"{server.url}#/requests")
    page.locator("table.list a").first.click()
    page.locator(".steps [data-row='0']").click()
    page.locator(".inspector .node").first.wait_for()
    looked_at(page)


def test_a_phone_sees_all_of_it(server, visit):
    page = visit(server.url, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True).page
    for view in ("playground", "race", "requests", "reliability", "load"):
        page.goto(f"{server.url}#/{view}")
        page.locator("h1").first.wait_for(state="attached")
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
    page.goto(server.url)
    page.get_by_text("Settings").click()
    page.get_by_label("Tokens at most").fill("10")
    page.fill("#prompt", "Say hello.")
    page.get_by_role("button", name="Send").click()
    page.locator(".under").wait_for()
    box = page.locator(".answer [role=option]").first.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.get_by_role("button", name="Next step").tap()
    page.get_by_role("heading", name="Step 2 of").wait_for()
    page.get_by_role("button", name="Close").tap()
    assert page.locator(".inspector").count() == 0


def test_both_languages_say_everything(server, visit):
    words = visit(server.url).page.evaluate("import('/page/words.js').then(({ WORDS }) => WORDS)")
    english, chinese = words["en"], words["zh-CN"]
    assert list(english) == list(chinese)
    held = re.compile(r"\{\w+\}")
    assert {k for k in english if sorted(held.findall(english[k])) != sorted(held.findall(chinese[k]))} == set()
    source = "".join(path.read_text() for path in PAGE.glob("*.js"))
    assert set(re.findall(r'\bt\("([^"$]+)"', source)) <= set(english)


def test_the_files_hold_nothing_that_a_strict_policy_forbids():
    unsafe = re.compile(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|srcdoc")
    scripts = {path.name: path.read_text() for path in PAGE.glob("*.js")}
    for name, text in scripts.items():
        assert not unsafe.search(text), name
        assert set(re.findall(r"https?://[^\s\"'`/]+", text)) <= {"https://ui.perfetto.dev", "http://www.w3.org"}, name
    assert "style=" not in (PAGE / "index.html").read_text()
    assert not re.search(r"<script(?![^>]* src=)", (PAGE / "index.html").read_text())
    assert not re.search(r"@import|url\(", (PAGE / "page.css").read_text())
    assert sum(path.stat().st_size for path in PAGE.rglob("*") if path.suffix in (".js", ".css", ".html")) < BIGGEST


def test_the_library_is_the_one_that_is_named():
    told = (PAGE / "vendor" / "README.md").read_text()
    for path in (PAGE / "vendor").glob("*.js"):
        assert f"`{path.name}`" in told
        assert hashlib.sha256(path.read_bytes()).hexdigest() in told
    assert {path.name for path in (PAGE / "vendor").glob("LICENSE.*")} == {"LICENSE.htm", "LICENSE.preact"}
