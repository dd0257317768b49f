"""The page outlives its server: it says that it is gone, finds the next one, and gives it the key that it asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

GONE = r"ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET"


def test_it_reconnects_without_a_reload_and_asks_for_a_key(server, visit):
    try:
        made = visit(server.url)
        made.pardoned += [GONE, "status of 40[134]", "status of 503"]
        page = made.page
        page.evaluate("window.same = true")
        server.stop()
        page.locator(".top .lost").wait_for()
        assert "not reached" in page.inner_text(".top")
        assert page.get_by_role("button", name="Send").is_disabled()

        server.start()
        page.locator(".top .here").wait_for()
        page.get_by_label("Tokens at most").fill("6")
        page.fill("#prompt", "Say hello.")
        page.keyboard.press("Enter")
        page.locator(".under").wait_for()

        server.stop()
        page.locator(".top .lost").wait_for()
        server.start(api_keys=("open sesame",), trace_keys=("and the trace",))
        page.get_by_label("API key").fill("wrong")
        page.get_by_role("button", name="Use it").click()
        page.get_by_text("is not one of this server").wait_for()
        page.get_by_label("API key").fill("open sesame")
        page.get_by_role("button", name="Use it").click()
        page.locator(".top .here").wait_for()
        page.fill("#prompt", "Say hello again.")
        page.keyboard.press("Enter")
        page.locator(".turn").nth(1).locator(".under").wait_for()
        assert page.evaluate("sessionStorage.getItem('augury.key')") == "open sesame"
        assert page.evaluate("Object.values(localStorage).join()").find("sesame") < 0

        page.get_by_role("link", name="Requests").click()
        page.get_by_label("Trace key").fill("and the trace")
        page.get_by_role("button", name="Use it").click()
        page.locator("table.list tbody tr").first.wait_for()
        assert page.evaluate("window.same") is True
    finally:  # it is the server of the tests behind this one, too
        server.stop()
        server.start()


def test_a_server_that_shows_no_trace_says_so(server, visit):
    server.stop()
    server.start(stream_mode="private")
    try:
        made = visit(server.url)
        made.pardoned.append("status of 404")
        page = made.page
        page.get_by_text("does not tell the steps").wait_for()
        page.get_by_label("Tokens at most").fill("6")
        page.fill("#prompt", "Say hello.")
        page.keyboard.press("Enter")
        page.locator(".answer.plain").get_by_text("ello").wait_for()
        page.get_by_role("link", name="Load").click()
        page.get_by_text("its streams are private").wait_for()
    finally:  # it is the server of the tests behind this one, too
        server.stop()
        server.start()


HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
WATCH = """() => {
  window.phases = [];
  const lamp = document.querySelector(".top .link");
  new MutationObserver(() => window.phases.push(lamp.className)).observe(lamp, { attributes: true });
}"""


@pytest.mark.parametrize("mode", ["live", "private"])
@pytest.mark.parametrize("hidden", [True, False], ids=["hidden", "between"])
def test_another_server_in_its_place_is_noticed_though_none_was_missed(engine, server, visit, hidden, mode):
    """While the page is hidden, or between two looks; with a trace and without one."""
    parts = engine.parts
    server.stop()
    server.start(stream_mode=mode)
    try:
        made = visit(server.url)
        made.pardoned += [GONE, "status of 404", "status of 503"]
        page = made.page
        page.get_by_label("prediction").wait_for()
        page.evaluate(WATCH)
        if hidden:
            page.evaluate(HIDE, True)
        else:
            page.wait_for_event("response", lambda response: response.url.endswith("/health"))
            page.wait_for_timeout(200)
        server.stop()
        engine.parts = replace(parts, drafters=parts.drafters[:1])
        if mode == "private":
            page.wait_for_timeout(1000)  # a model's age is told in whole seconds
        server.start(stream_mode=mode, names=("another",))
        if hidden:
            page.evaluate(HIDE, False)
        page.locator(".top .model", has_text="another").wait_for()
        assert page.get_by_label("prediction").count() == 0
        assert page.evaluate("window.phases") == []
    finally:  # it is the server of the tests behind this one, too
        engine.parts = parts
        server.stop()
        server.start()


def test_steps_of_a_server_before_this_one_are_not_shown_as_its_own(server, visit):
    made = visit(server.url)
    made.pardoned += [GONE, "status of 404", "status of 503"]
    page = made.page
    page.get_by_label("Tokens at most").fill("6")
    page.fill("#prompt", "Say hello.")
    page.keyboard.press("Enter")
    page.locator(".under").wait_for()
    page.get_by_role("link", name="Requests").click()
    page.locator("table.list a").first.click()
    page.locator(".steps [data-row='0'] .tok").first.wait_for()
    server.stop()
    server.start()
    page.get_by_text("the trace holds no request").wait_for()
    assert page.locator(".steps").count() == 0
    page.get_by_role("link", name="← Requests").click()
    page.get_by_text("No request was traced yet").wait_for()


def test_looks_do_not_double_when_the_page_is_seen_again_and_again(server, visit):
    page = visit(f"{server.url}#/load").page
    page.locator(".tiles").wait_for()
    page.evaluate(
        """() => {
          window.most = {}; window.asked = {};
          const [own, running] = [fetch, {}];
          window.fetch = async (path, rest) => {
            running[path] = (running[path] ?? 0) + 1;
            asked[path] = (asked[path] ?? 0) + 1;
            most[path] = Math.max(most[path] ?? 0, running[path]);
            await new Promise((done) => setTimeout(done, 300));
            try { return await own(path, rest); } finally { running[path] -= 1; }
          };
        }"""
    )
    for _ in range(6):
        page.evaluate(HIDE, False)
        page.wait_for_timeout(50)
    page.wait_for_timeout(3500)
    most, asked = page.evaluate("[window.most, window.asked]")
    assert set(most.values()) == {1}, most
    assert asked["/trace/load"] <= 6
