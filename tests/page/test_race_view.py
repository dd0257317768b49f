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
