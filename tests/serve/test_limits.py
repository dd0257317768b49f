"""How much one who asks may have."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from served import serving

from augury.server.faults import Fault
from augury.server.limits import Limits
from augury.server.settings import Settings


def test_so_many_at_once_of_each():
    limits = Limits(2, 0)
    with ExitStack() as stack:
        for who in ("a", "a", "b"):
            stack.enter_context(limits.entered(who))
        with pytest.raises(Fault) as caught, limits.entered("a"):
            pass
        assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "1")
        with limits.entered("b"):
            pass
    with limits.entered("a"):
        pass
    assert limits._open == {}


def test_so_many_a_minute_of_each():
    now = [0.0]
    limits = Limits(0, 3, clock=lambda: now[0])

    def ask(who, at):
        now[0] = at
        with limits.entered(who):
            pass

    for at in (0.0, 1.0, 2.0):
        ask("a", at)
    with pytest.raises(Fault) as caught:
        ask("a", 3.5)
    assert caught.value.headers["Retry-After"] == "57"
    ask("b", 4.0)
    ask("a", 60.5)
    with pytest.raises(Fault):
        ask("a", 60.9)
    ask("c", 200.0)
    assert set(limits._begun) == {"c"}


def test_over_http_too_much_is_a_429_of_one_key_only(service):
    settings = Settings(api_keys=("one", "two"), requests_per_minute=2)
    with serving(service, settings) as server:
        statuses = [server.chat({}, "X-Api-Key: one").status for _ in range(3)]
        assert statuses == [200, 200, 429]
        answer = server.chat({}, "X-Api-Key: one")
        assert (answer.error["type"], answer.error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert server.chat({}, "X-Api-Key: two").status == 200
        assert server.ask("GET", "/v1/models", None, "X-Api-Key: one").status == 200


def test_a_place_is_given_back_however_a_request_ends(secured):
    key = "X-Api-Key: key-one"
    for body in ({"max_tokens": 0}, {"stream": True}, {}, {"model": "x"}) * 2:
        assert secured.chat(body, key).status in (200, 400, 404)
    assert secured.chat({}, key).status == 200


def test_every_answer_may_carry_figures(secured):
    key = "X-Api-Key: key-one"
    assert secured.chat({}, key).json["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    *_, last, _ = secured.chat({"stream": True, "stream_options": {"include_usage": True}}, key).events
    assert "metrics" in last
    assert not any("metrics" in e for e in secured.chat({"stream": True}, key).events[:-1])


def test_the_operator_may_switch_figures_off(service):
    with serving(service, Settings(figures_on_request=False, force_usage=True, stream_interval=3)) as server:
        answer = server.chat({"speculative": {"figures": True}})
        assert (answer.error["code"], answer.error["param"]) == ("unsupported_parameter", "speculative.figures")
        *texts, _, usage, _ = server.chat({"stream": True, "max_tokens": 8, "ignore_eos": True}).events
        assert usage["usage"]["completion_tokens"] == 8
        assert len(texts) <= 1 + 3
