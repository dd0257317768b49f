"""The playground: an answer comes, its tokens are marked, its figures are the server's own, its steps can be opened."""

from __future__ import annotations

import json
import re

import pytest

ASKED = "List the planets of the solar system, then list them again in reverse order."


def answered(page, question: str, path: str = "**/v1/chat/completions") -> list[dict]:
    """Ask, wait for the end, and give what the server sent."""
    page.fill("#prompt", question)
    with page.expect_response(path) as got:
        page.keyboard.press("Enter")
    page.locator(".turn").last.locator(".under").wait_for()
    frames = [line[6:] for line in got.value.text().split("\n") if line.startswith("data: ")]
    assert frames.pop() == "[DONE]"
    return [json.loads(frame) for frame in frames]


def steps_of(frames: list[dict]) -> list[dict]:
    return [step for frame in frames for step in frame.get("steps", [])]


def figure(page, name: str) -> str:
    return page.locator(".turn").last.locator(f"[data-figure={name}]").inner_text()


def test_an_answer_comes_token_by_token_and_its_figures_are_the_servers(server, visit):
    page = visit(server.url).page
    page.evaluate(
        """() => {
            window.seen = [];
            const look = () => {
              const count = document.querySelectorAll(".answer [role=option]").length;
              if (count && window.seen.at(-1) !== count) window.seen.push(count);
            };
            new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
        }"""
    )
    frames = answered(page, ASKED)
    steps, last = steps_of(frames), frames[-1]
    metrics, timings = last["metrics"]["speculative_decoding"], last["timings"]
    assert len(page.evaluate("window.seen")) > 3, "it came in one piece"
    assert metrics["num_accepted_draft_tokens"] > 0
    assert metrics["num_draft_tokens"] > metrics["num_accepted_draft_tokens"]

    content = "".join(choice["delta"].get("content") or "" for frame in frames for choice in frame["choices"])
    within = page.locator(".answer [role=option]:not(.beyond)")
    assert "".join(within.all_text_contents()) == content
    assert page.locator(".answer [role=option]").count() == timings["predicted_n"]
    assert page.locator(".answer .tok.d0").count() == metrics["num_accepted_draft_tokens"]
    marks = {own: sum(step["own"] == own for step in steps) for own in ("correction", "bonus")}
    assert {own: page.locator(f".answer .tok.{own}").count() for own in marks} == marks
    assert sum(marks.values()) > 0

    assert figure(page, "speed") == f"{timings['predicted_per_second']:.1f} tokens/s"
    assert figure(page, "length") == f"acceptance length {metrics['mean_acceptance_length']:.2f}"
    assert figure(page, "rate") == f"{100 * metrics['draft_acceptance_rate']:.1f} % accepted"
    saved = sum(step["saved_ms"] for step in steps)
    assert f"{abs(saved):.0f} ms against plain (estimated)" in figure(page, "saved")
    assert f"{timings['predicted_n']} tokens in {metrics['num_spec_steps']} steps" in page.inner_text(".under")

    assert page.locator(".answer .gone").count() == 0
    page.get_by_label("Show rejected guesses").check()
    assert page.locator(".answer .gone").count() > 0
    page.get_by_label("Mark tokens").uncheck()
    assert page.inner_text(".answer.plain").strip() == content.strip()


def test_a_step_is_opened_and_walked_by_keys_alone(server, visit):
    page = visit(server.url).page
    steps = steps_of(answered(page, ASKED))
    page.locator(".answer").focus()
    page.keyboard.press("End")
    last = page.locator(".answer [role=option]").last
    assert last.get_attribute("aria-selected") == "true"
    assert page.locator(".answer").get_attribute("aria-activedescendant") == last.get_attribute("id")
    for key in ("Home", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    panel = page.get_by_role("region", name="Step inspector")
    for n in range(min(6, len(steps))):
        step = steps[n]
        panel.get_by_role("heading", name=f"Step {n + 1} of {len(steps)}").wait_for()
        assert panel.locator(".node").count() == 1 + len(step["tokens"]) + (step["own"] is not None)
        assert panel.locator(".node.accepted").count() == min(len(step["path"]), len(step["emitted"]))
        assert panel.locator(".reasons li").count() == len(step["tokens"]) + (step["own"] is not None)
        whole = sum(step[f"{phase}_ms"] for phase in ("draft", "verify", "accept", "commit", "rest"))
        assert panel.get_by_text(f"{whole:.2f} ms", exact=True).count() == 1
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    assert panel.locator(".reasons .chosen").count() == 1
    assert panel.locator(".node.chosen").count() == 1
    page.keyboard.press("Escape")
    panel.wait_for(state="detached")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "listbox"


def test_settings_go_with_the_question_and_stop_stops(server, visit):
    page = visit(server.url).page
    page.get_by_label("suffix").uncheck()
    page.get_by_label("prediction").uncheck()
    page.get_by_text("decoded plainly").wait_for()
    page.get_by_label("Raw prompt").check(force=True)
    page.get_by_label("Temperature").fill("0.7")
    page.get_by_label("Tokens at most").fill("9")
    with page.expect_request("**/v1/completions") as sent:
        answered(page, "One, two, three,", "**/v1/completions")
    body = sent.value.post_data_json
    assert body["speculative"] == {"acceptance": "coupled", "trace": True, "figures": "detailed", "enabled": False}
    assert (body["temperature"], body["max_tokens"], body["prompt"]) == (0.7, 9, "One, two, three,")
    assert f"seed {body['seed']}" in page.inner_text(".under"), "a seed that was drawn is told"
    assert figure(page, "rate") == "nothing drafted"

    page.get_by_label("Tokens at most").fill("900")
    page.fill("#prompt", "Count: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16")
    page.keyboard.press("Enter")
    page.locator(".turn").last.locator("[role=option]").nth(3).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    page.get_by_role("button", name="Send").wait_for()


def test_an_error_of_the_server_is_told_in_its_words(server, visit):
    made = visit(server.url)
    made.pardoned.append("status of 400")
    page = made.page
    page.get_by_label("Tokens at most").fill("100")
    page.fill("#prompt", "word " * 3000)
    page.keyboard.press("Enter")
    told = page.get_by_role("alert").inner_text()
    assert re.search(r"\d+ tokens", told), told


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_language_and_theme_are_switched_and_remembered(server, visit, scheme):
    page = visit(server.url, color_scheme=scheme).page
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.get_by_label("Theme").select_option("light" if scheme == "dark" else "dark")
    assert page.evaluate(ground) != before
    page.get_by_label("Language").select_option("zh-CN")
    page.get_by_role("button", name="发送").wait_for()
    page.reload()
    page.get_by_role("button", name="发送").wait_for()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert page.evaluate(ground) != before
    page.get_by_label("语言").select_option("en")
    page.get_by_role("button", name="Send").wait_for()
    assert page.evaluate("document.documentElement.lang") == "en"


def test_a_browser_that_speaks_chinese_is_met_in_it(server, visit):
    page = visit(server.url, locale="zh-CN").page
    page.get_by_role("button", name="发送").wait_for()


def test_what_is_not_seen_of_a_long_answer_is_not_laid_out(server, visit):
    """Paragraphs that are out of sight cost a key press nothing; copied text is the answer's all the same."""
    page = visit(server.url).page
    page.set_viewport_size({"width": 1240, "height": 400})
    page.get_by_label("Raw prompt").check(force=True)
    page.get_by_label("Tokens at most").fill("400")
    frames = answered(page, "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n" * 2, "**/v1/completions")
    content = "".join(choice["text"] for frame in frames for choice in frame["choices"])
    assert content.count("\n") > 100
    blocks = page.locator(".answer .block")
    assert blocks.count() > 1
    copied = page.evaluate(
        "() => { const all = getSelection(); all.selectAllChildren(document.querySelector('.answer')); "
        "const text = all.toString(); all.removeAllRanges(); return text; }"
    )
    assert copied.replace("↵", "").strip() == content.strip()
    page.locator(".answer").focus()
    for key in ("Home", "End", "Home"):
        page.keyboard.press(key)
        page.wait_for_timeout(100)
        box = page.locator(".tok.active").bounding_box()
        top = page.locator(".top").bounding_box()
        composer = page.locator(".composer").bounding_box()
        assert top["y"] + top["height"] <= box["y"] <= composer["y"] - box["height"], key
    seen = "(block) => block.checkVisibility({ contentVisibilityAuto: true }) && block.firstChild.checkVisibility("
    assert blocks.last.evaluate(seen + "{ contentVisibilityAuto: true })") is False
