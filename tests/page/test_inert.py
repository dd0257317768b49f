"""Nothing that a prompt, a model or a trace says is ever run or shown as anything but text."""

from __future__ import annotations

from paged import shown, step, written

HOSTILE = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'><b>bold</b>"


def unharmed(page) -> None:
    page.wait_for_timeout(200)
    assert page.evaluate("window.hit") is None
    assert page.locator("#page img, #page script, #page b, #page iframe").count() == 0


def test_a_prompt(server, visit):
    page = visit(server.url).page
    page.get_by_label("System prompt").fill(HOSTILE)
    page.get_by_label("Tokens at most").fill("12")
    page.fill("#prompt", HOSTILE)
    page.keyboard.press("Enter")
    page.locator(".under").wait_for()
    assert page.inner_text(".question").endswith(HOSTILE)
    unharmed(page)


def test_an_answer(server, visit):
    """The model goes on with what it was shown six times."""
    page = visit(server.url).page
    line = "<img src=x onerror='window.hit = 1'><script>window.hit = 1</script>\n"
    page.get_by_label("Raw prompt").check(force=True)
    page.get_by_label("Tokens at most").fill("60")
    page.get_by_label("Show rejected guesses").check()
    page.fill("#prompt", line * 6)
    page.keyboard.press("Enter")
    page.locator(".under").wait_for()
    assert "<img src=x onerror=" in page.locator(".answer").inner_text().replace("↵", "")
    page.locator(".answer [role=option]").first.click()
    page.locator(".inspector .node").first.wait_for()
    unharmed(page)
    page.keyboard.press("Escape")
    page.get_by_label("Mark tokens").uncheck()
    unharmed(page)


def test_a_trace_file(visit, tmp_path):
    one = step(
        0, 10.0, 2, tokens=[2, 3], parents=[-1, -1], source=[0, 0], survival=[0.5, 0.25], p=[0.5, 0.2], path=[1],
        next=4, own="bonus", emitted=[3, 4], reason=HOSTILE, texts=dict.fromkeys("01234", HOSTILE),
        proposals=[{"drafter": HOSTILE, "nodes": 2, "ms": 1.0, "fault": HOSTILE, "unasked": None}],
    )  # fmt: skip
    names = dict.fromkeys(("label", "prompt", "model"), HOSTILE)
    with shown(written(tmp_path / "bad.jsonl", [one], drafters=[HOSTILE], rule=HOSTILE, **names)) as url:
        page = visit(url).page
        page.locator("table.list a").first.click()
        page.locator(".steps .tok").first.click()
        page.locator(".inspector .node").first.wait_for()
        assert HOSTILE in page.locator(".reasons").inner_text()
        unharmed(page)
        page.get_by_role("link", name="Reliability").click()
        page.locator(".tiles").wait_for()
        unharmed(page)


def test_the_browser_itself_refuses_markup_as_text(server, visit):
    made = visit(server.url)
    made.pardoned.append("TrustedHTML")
    refused = made.page.evaluate(
        """() => { try { document.createElement("p").innerHTML = "<b>x</b>"; } catch (error) { return error.name; } }"""
    )
    assert refused == "TypeError"
