"""Requests, reliability and load: what was traced, by a running server and in a file, however long."""

from __future__ import annotations

import re
import time

import pytest
from paged import shown, step, written


def cells_of(row) -> list[str]:
    """What stands in a row of a table; thousands are set apart there."""
    return [cell.replace("\u202f", "") for cell in row.locator("th, td").all_inner_texts()]


def told(page, path: str):
    """What the server says at a path."""
    return page.evaluate("path => fetch(path).then((response) => response.json())", path)


def test_figures_are_those_of_the_routes(server, visit):
    page = visit(server.url).page
    page.get_by_label("Tokens at most").fill("40")
    page.fill("#prompt", "Repeat three times: the cat sat on the mat.")
    page.keyboard.press("Enter")
    page.locator(".under").wait_for()
    plain = page.locator("[data-figure=speed]").inner_text()

    page.get_by_role("link", name="Requests").click()
    row = page.locator("table.list tbody tr").first
    row.wait_for()
    newest = told(page, "/trace/requests?limit=1")["requests"][0]
    cells = cells_of(row)
    assert cells[0] == str(newest["id"])
    assert cells[3:5] == [str(newest["tokens"]), str(newest["steps"])]
    assert cells[5] == f"{newest['acceptance_length']:.2f}"
    assert cells[6] == f"{100 * newest['accepted'] / newest['drafted']:.1f} %"
    assert cells[7] == f"{newest['tokens_per_second']:.1f}" == plain.split()[0]

    row.get_by_role("link").click()
    page.get_by_role("heading", name=f"Request {newest['id']}").wait_for()
    page.locator(".steps [data-row='0'] .tok").first.wait_for()
    assert page.locator(".steps").get_attribute("aria-rowcount") == str(newest["steps"] + 1)

    page.get_by_role("link", name="Reliability").click()
    page.locator(".tiles").wait_for()
    fold = told(page, "/trace/reliability")
    assert page.inner_text("[data-figure=length]") == f"{fold['mean_acceptance_length']:.2f}"
    assert page.inner_text("[data-figure=accepted]") == f"{100 * fold['draft_acceptance_rate']:.1f} %"
    cells = cells_of(page.locator("table.list tbody tr").first)
    suffix = fold["drafters"]["suffix"]
    assert cells[:5] == ["suffix", *(str(suffix[name]) for name in ("asked", "offered", "drafted", "accepted"))]
    assert cells[5] == f"{100 * suffix['hit_rate']:.1f} %"

    page.get_by_role("link", name="Load").click()
    page.locator(".tiles").wait_for()
    totals = told(page, "/trace/load")["totals"]
    facts = page.locator(".facts").inner_text()
    assert f"tokens given\n{totals['generation_tokens']}" in facts.replace("\u202f", "")


def test_a_request_is_seen_while_it_runs(server, visit):
    page = visit(f"{server.url}#/requests").page
    page.locator("h1").wait_for()
    page.evaluate(
        """() => {
            const asked = { prompt: "Once upon a time", max_tokens: 150, ignore_eos: true, temperature: 0 };
            const headers = { "Content-Type": "application/json" };
            fetch("/v1/completions", { method: "POST", headers, body: JSON.stringify(asked) });
        }"""
    )
    running = page.locator("tbody tr", has_text="runs")
    running.wait_for()
    running.wait_for(state="detached", timeout=60_000)
    assert page.locator("tbody tr").first.locator("td").nth(2).inner_text() == "150"


def test_a_hundred_thousand_steps_stay_usable(visit, tmp_path):
    def made():
        at, position = 10.0, 2
        for n in range(100_000):
            if n % 3:
                yield step(n, at, position)
            else:
                yield step(
                    n, at, position, tokens=[1, 2], parents=[-1, 0], source=[0, 1], survival=[0.5, 0.25], p=[0.4, 0.1],
                    path=[0], next=3, own="correction", emitted=[1, 3], reason=None,
                    texts={"0": "a", "1": " b", "2": " c", "3": "\\n"},
                )  # fmt: skip
            at, position = at + 11.0, position + (1 if n % 3 else 2)

    with shown(written(tmp_path / "long.jsonl", made())) as url:
        page = visit(url).page
        began = time.monotonic()
        assert page.get_by_role("link", name="Playground").count() == 0, "a file has no model"
        page.locator("table.list a").first.click()
        page.locator(".steps [data-row='0'] .tok").first.wait_for()
        steps = page.locator(".steps")
        steps.focus()
        page.keyboard.press("End")
        page.locator("[data-row='99999'] .tok").first.wait_for()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Step 100 000 of 100 000".replace(" 000", "\u202f000")).wait_for()
        page.locator(".inspector .node").first.wait_for()
        page.keyboard.press("ArrowLeft")
        assert page.url.endswith("#/requests/1/99999")
        page.get_by_label("Go to step").fill("50002")
        page.keyboard.press("Enter")
        page.locator("[data-row='50001'].open").wait_for()
        page.get_by_role("heading", name="Step 50\u202f002 of").wait_for()
        most = 0
        for place in range(0, 3_400_000, 170_000):
            steps.evaluate("(box, place) => { box.scrollTop = place; }", place)
            most = max(most, page.evaluate("document.getElementsByTagName('*').length"))
        page.locator(".steps .tok").nth(5).wait_for()
        page.get_by_role("link", name="Reliability").click()
        page.locator(".tiles").wait_for()
        assert page.inner_text("[data-figure=steps]") == "100\u202f000"
        assert time.monotonic() - began < 30
        assert most < 3000


@pytest.mark.parametrize(
    ("rule", "temperature", "said"),
    [
        ("coupled", 0.0, ["here is “·yes”, and so is the guess: accepted", "the guess is “·no”: rejected"]),
        ("coupled", 0.8, ["own draw here is “·yes”, to which it gave p = 0.3", "to which it gave p = 0.2: rejected"]),
        ("rejection", 0.8, ["min(1, p/q) = min(1, 0.3 / 0.6) = 0.5. The coin fell 0.25: accepted",
                            "q = 1: it is kept with probability p = 0.2. The coin fell 0.75: rejected"]),
        ("rejection", 0.0, ["here is “·yes”, and so is the guess: accepted", "the guess is “·no”: rejected"]),
        ("block", 0.0, ["here is “·yes”, and so is the guess: accepted", "the guess is “·no”: rejected"]),
        ("block", 0.8, ["p = 0.3, q = 0.6; joint ratio so far min(1, ratio × p/q) = 0.5", "= 0.1"]),
    ],
)  # fmt: skip
def test_the_arithmetic_is_spelled_out(visit, tmp_path, rule, temperature, said):
    one = step(
        0, 10.0, 2, tokens=[2, 3], parents=[-1, 0], source=[1, 0], survival=[0.5, 0.25], p=[0.3, 0.2], q={"0": 0.6},
        path=[0], next=4, own="correction", emitted=[2, 4], reason=None, coins=[0.25, 0.75],
        texts={"0": "a", "2": " yes", "3": " no", "4": " but"},
    )  # fmt: skip
    path = written(tmp_path / "one.jsonl", [one], rule=rule, temperature=temperature)
    with shown(path) as url:
        page = visit(f"{url}#/requests/1/1").page
        page.locator(".reasons li").first.wait_for()
        lines = page.locator(".reasons li").all_inner_texts()
        for line, words in zip(lines, said, strict=False):
            assert words in line
        assert "“·but”" in lines[2]
        assert ("the very token" in page.inner_text(".inspector")) is (rule == "coupled" or temperature == 0)


def test_an_answer_that_ended_inside_the_path_is_told(visit, tmp_path):
    one = step(
        0, 10.0, 2, tokens=[2, 3, 4], parents=[-1, 0, -1], source=[0, 0, 0], survival=[0.5, 0.25, 0.1],
        p=[0.5, 0.2, 0.1], path=[0, 1], next=5, own=None, emitted=[2], reason=None,
    )  # fmt: skip
    with shown(written(tmp_path / "cut.jsonl", [one])) as url:
        page = visit(f"{url}#/requests/1/1").page
        page.locator(".reasons li").first.wait_for()
        titles = page.locator(".node title").all_text_contents()[1:]
        assert [title.removeprefix("suffix: ") for title in titles] == ["accepted", "cut off", "not reached"]
        assert [page.locator(f".node.{kind}").count() for kind in ("accepted", "cut-off", "not-reached")] == [1, 1, 1]


def test_second_siblings_are_judged_by_what_is_left_of_p(visit, tmp_path):
    one = step(
        0, 10.0, 2, tokens=[2, 3], parents=[-1, -1], source=[0, 0], survival=[0.5, 0.25], p=[0.5, 0.2], path=[1],
        next=4, own="bonus", emitted=[3, 4], reason=None, coins=[0.9, 0.1],
    )  # fmt: skip
    with shown(written(tmp_path / "two.jsonl", [one], rule="rejection", temperature=1.0)) as url:
        page = visit(f"{url}#/requests/1/1").page
        page.locator(".reasons li").first.wait_for()
        assert "0.2 / (1 − 0.5) = 0.4" in page.locator(".reasons li").nth(1).inner_text()


def test_a_trace_that_is_still_being_looked_at_is_asked_for_again(visit, tmp_path):
    """Of a file nothing comes live: what was not answered at first is only seen if the page asks again."""
    with shown(written(tmp_path / "one.jsonl", [step(n, 10.0 + n, 2 + n) for n in range(3)])) as url:
        made = visit(url)
        made.pardoned.append("status of 503")
        page = made.page
        behind = {"list": 2, "one": 2, "fold": 2}

        def later(name, answer):
            def handle(route):
                behind[name] -= 1
                route.continue_() if behind[name] < 0 else route.fulfill(**answer)

            return handle

        busy = {"error": {"message": "7 events are still to be looked at; ask again in a moment"}}
        page.route("**/trace/requests?*", later("list", {"json": {"requests": [], "held": 0, "behind": 7, "odd": 0}}))
        page.route("**/trace/requests/1?*", later("one", {"json": busy, "status": 503}))
        page.route("**/trace/reliability", later("fold", {"json": {"steps": 0, "behind": 7}}))
        page.goto(f"{url}#/reliability")
        page.locator(".tiles").wait_for()
        page.goto(f"{url}#/requests")
        page.locator("table.list a").first.click()
        page.get_by_role("alert").get_by_text("still to be looked at").wait_for()
        page.locator(".steps [data-row='2'] .tok").first.wait_for()
        assert page.get_by_role("alert").count() == 0
        assert max(behind.values()) < 0


def test_steps_that_come_in_several_answers_are_all_shown(visit, tmp_path):
    """An answer ends early where its steps are big."""
    with shown(written(tmp_path / "five.jsonl", [step(n, 10.0 + n, 2 + n) for n in range(5)])) as url:
        page = visit(url).page

        def shorter(route):
            path, start = re.fullmatch(r"(.*\?from=(\d+)&to=)\d+", route.request.url).groups()
            route.continue_(url=f"{path}{int(start) + 2}")

        page.route("**/trace/requests/1?*", shorter)
        page.locator("table.list a").first.click()
        for n in range(5):
            page.locator(f".steps [data-row='{n}'] .tok").first.wait_for()


PERFETTO = """<script>
addEventListener("message", ({ data }) => {
  if (data === "PING") return opener.postMessage("PONG", "*");
  document.title = `${data.perfetto.title}: ${new TextDecoder().decode(data.perfetto.buffer).slice(0, 400)}`;
});
</script>"""


def test_a_timeline_is_downloaded_and_handed_to_perfetto_on_a_press_only(server, visit):
    made = visit(f"{server.url}#/requests")
    page = made.page
    with page.expect_download() as got:
        page.get_by_role("button", name="timeline.json").click()
    assert got.value.suggested_filename == "augury-timeline.json"
    assert "traceEvents" in got.value.path().read_text()
    page.context.route(
        "https://ui.perfetto.dev/**", lambda route: route.fulfill(body=PERFETTO, content_type="text/html")
    )
    page.get_by_role("button", name="Open in Perfetto").click()
    page.get_by_text("Nothing is asked of it before you press").wait_for()
    made.check(server.url)
    made.others = ("https://ui.perfetto.dev/",)
    with page.expect_popup() as opened:
        page.get_by_role("button", name="Open ui.perfetto.dev").click()
    opened.value.wait_for_function("document.title.includes('traceEvents')")
    assert opened.value.title().startswith("augury:")
