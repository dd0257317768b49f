"""The page outlives its server: it says that it is gone, finds the next one, and gives it the key that it asks for."""

from __future__ import annotations

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
