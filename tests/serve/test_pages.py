"""The page as it is sent: what it may load, what is kept, and what cannot be had by any spelling."""

from __future__ import annotations

import re

import pytest
from served import NAME, serving

from augury.server.pages import FIRST, HEADERS, INK, TYPES, parts
from augury.server.settings import Settings

PARTS = parts()
POLICY = {
    "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "img-src": "'self' data:",
    "connect-src": "'self'", "font-src": "'self'", "base-uri": "'none'", "form-action": "'none'",
    "frame-ancestors": "'none'", "require-trusted-types-for": "'script'",
}  # fmt: skip


def test_the_page_is_there_with_its_headers(traced):
    answer = traced.ask("GET", "/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.body == PARTS[FIRST].body
    rules = (rule.partition(" ") for rule in answer.headers["content-security-policy"].split("; "))
    assert {name: value for name, _, value in rules} == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_every_part_is_sent_as_what_it_is(traced):
    kinds = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
    for name, part in PARTS.items():
        answer = traced.ask("GET", f"/page/{name}")
        assert (answer.status, answer.body) == (200, part.body), name
        assert answer.headers["content-type"] == kinds.get(name.rpartition(".")[2], part.type)
        assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def test_what_the_page_names_is_among_its_parts():
    html = PARTS[FIRST].body.decode()
    named = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert named
    assert all(name.startswith("/page/") and name.removeprefix("/page/") in PARTS for name in named)
    assert "<style" not in html
    assert not re.search(r"<script(?![^>]*\bsrc=)", html)
    assert not re.search(r"\son\w+=|\sstyle=", html)
    for name, part in PARTS.items():
        if name.endswith(".js"):
            imported = re.findall(r'^(?:import|export)\b[^;]*?from "(\.[^"]*)"', part.body.decode(), re.MULTILINE)
            folder = name.rpartition("/")[0]
            for one in imported:
                assert f"{folder}/{one[2:]}".lstrip("/") in PARTS, f"{name} imports {one}"


def test_it_is_asked_for_again_and_not_sent_again(traced):
    tag = traced.ask("GET", "/page/" + INK).headers["etag"]
    for field in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = traced.ask("GET", "/page/" + INK, None, f"If-None-Match: {field}")
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)
    assert traced.ask("GET", "/page/" + INK, None, 'If-None-Match: "other"').status == 200
    assert traced.ask("GET", "/").headers["cache-control"] == "no-cache"
    assert len({part.tag for part in PARTS.values()}) == len({part.body for part in PARTS.values()})


def test_its_head_is_that_of_the_whole(traced):
    for path in ("/", "/page/" + INK):
        head, whole = traced.ask("HEAD", path), traced.ask("GET", path)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.body))
        assert head.headers["etag"] == whole.headers["etag"]
    assert traced.ask("HEAD", "/page/none.js").status == 404
    assert traced.ask("POST", "/", b"{}").headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/%2e%2e%2fapp.py", "/page//etc/passwd",
        "/page/vendor/../../app.py", "/page/..\\app.py", "/page/%5c..%5capp.py", "/page/index.html%00.js", "/page/",
        "/page", "/page/vendor", "/page/vendor/", "/page/INDEX.HTML", "/page/./index.html", "/page/index.html/",
        "//page/index.html", "/page/%252e%252e/app.py", "/..", "/page/__init__.py", "/page/C:/windows/win.ini",
    ],
)  # fmt: skip
def test_nothing_else_can_be_had(traced, path):
    answer = traced.ask("GET", path)
    assert answer.status == 404
    assert answer.error["code"] == "not_found"


def test_it_needs_no_key_and_what_it_asks_for_does(watched):
    with serving(watched.service, Settings(names=(NAME,), api_keys=("key",), page=True), tap=watched.tap) as server:
        assert server.ask("GET", "/").status == 200
        assert server.ask("GET", "/page/" + INK).status == 200
        for path in ("/v1/models", "/trace/header", "/page", "/pages/x", "/metrics"):
            assert server.ask("GET", path).status == 401


def test_a_host_that_is_not_ours_gets_none_of_it(watched):
    with serving(watched.service, Settings(names=(NAME,), hosts=("127.0.0.1",), page=True)) as server:
        assert server.ask("GET", "/", None, "Host: evil.example").status == 400
        assert server.ask("GET", "/page/" + INK, None, "Host: evil.example").status == 400


def test_where_it_is_switched_off_there_is_none(watched):
    with serving(watched.service, Settings(names=(NAME,), api_keys=("key",))) as server:
        for path in ("/", "/page/" + INK):
            assert server.ask("GET", path).status == 401
            assert server.ask("GET", path, None, "X-Api-Key: key").status == 404


def test_only_what_a_browser_is_shown_is_a_part():
    assert {f".{name.rpartition('.')[2]}" for name in PARTS} == {*TYPES}
    assert b"--ground" in PARTS[INK].body
    assert sum(len(part.body) for part in PARTS.values()) < 2 << 20
