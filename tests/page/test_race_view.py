"""The race: one prompt plainly and drafted, replayed side by side."""

from __future__ import annotations

import json


def test_both_run_and_the_text_is_the_same(server, visit):
    page = visit(f"{server.url}#/race").page
    ended = []
    page.on("requestfinished", lambda request: ended.append(request) if "/v1/" in request.url else None)
    page.get_by_label("System prompt").fill("Answer briefly.")
    page.fill("#race-prompt", "Repeat three times: the cat sat on the mat.")
    page.get_by_label("Tokens at most").fill("60")
    page.get_by_role("button", name="Race", exact=True).click()
    page.locator(".result").wait_for()
    runs = [request for request in ended if request.url.endswith("/chat/completions")]
    assert [run.post_data_json["speculative"].get("enabled", True) for run in runs] == [False, True]
    assert all(run.post_data_json["messages"][0]["content"] == "Answer briefly." for run in runs)
    speeds = []
    for run in runs:
        lines = [line[6:] for line in run.response().text().split("\n") if line.startswith("data: ")]
        speeds.append(json.loads(lines[-2])["timings"]["predicted_per_second"])
    assert page.inner_text("[data-figure=ratio]") == f"{speeds[1] / speeds[0]:.2f} ×"
    assert page.inner_text("[data-figure=same]") == "yes"

    page.get_by_text("Both are over").wait_for(state="attached")
    texts = [page.locator(f".lane.{lane} .answer").inner_text() for lane in ("plain", "drafted")]
    assert texts[0] == texts[1] != ""
    assert page.locator(".lane.plain .tok.d0").count() == 0 < page.locator(".lane.drafted .tok.d0").count()

    page.get_by_role("button", name="Replay").click()
    clock = page.locator(".lane.plain [data-figure=clock]")
    page.get_by_text("Replay, in real time").wait_for(state="attached")
    page.locator(".lane.plain [role=option]").nth(2).wait_for()
    early = page.locator(".lane.plain [role=option]").count()
    page.get_by_text("Both are over").wait_for(state="attached")
    assert page.locator(".lane.plain [role=option]").count() > early
    assert float(clock.inner_text().removesuffix(" s")) > 0
    page.locator(".lane.drafted [data-n='1'] [role=option]").first.click()
    page.get_by_role("heading", name="Step 2 of").wait_for()


def test_less_motion_means_no_replay_unasked(server, visit):
    page = visit(f"{server.url}#/race", reduced_motion="reduce").page
    page.get_by_label("Tokens at most").fill("8")
    page.fill("#race-prompt", "Say hello.")
    page.keyboard.press("Enter")
    page.locator(".result, [role=alert]").wait_for()
    page.get_by_text("Both are over").wait_for(state="attached", timeout=500)


def test_two_quick_presses_are_one_race(server, visit):
    page = visit(f"{server.url}#/race").page
    asked = []
    page.on("request", lambda request: asked.append(request) if "/v1/chat" in request.url else None)
    page.get_by_label("Tokens at most").fill("12")
    page.fill("#race-prompt", "Say hello.")
    page.evaluate(  # the look at the load takes its time
        "() => { const own = fetch; window.fetch = async (path, rest) => "
        "{ if (path === '/trace/load') await new Promise((done) => setTimeout(done, 300)); return own(path, rest); }; }"
    )
    page.get_by_role("button", name="Race", exact=True).dblclick()
    page.focus("#race-prompt")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.locator(".result").wait_for()
    assert len(asked) == 2


def test_the_second_click_of_a_double_click_does_not_stop_what_the_first_began(server, visit):
    page = visit(f"{server.url}#/race").page
    page.get_by_label("Tokens at most").fill("60")
    page.fill("#race-prompt", "Count: 1 2 3 4 5 6 7 8 9 10 11 12 13")
    page.get_by_role("button", name="Race", exact=True).dblclick(delay=80)
    page.locator(".result").wait_for()
    page.get_by_role("link", name="Playground").click()
    page.fill("#prompt", "Count: 1 2 3 4 5 6 7 8 9 10 11 12 13")
    page.get_by_role("button", name="Send").dblclick(delay=80)
    page.locator(".under").wait_for()
    assert page.get_by_text("Stopped.").count() == 0
