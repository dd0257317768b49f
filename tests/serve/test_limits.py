"""How much one who asks may have."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack

import pytest
from served import serving

from augury.engine.service import Room
from augury.server.faults import Fault
from augury.server.limits import Limits
from augury.server.metrics import Metrics
from augury.server.settings import Settings


def test_so_many_at_once_of_each():
    refusals = []
    limits = Limits(2, 0, refusals.append)
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
    assert refusals == ["limit"]


def test_so_many_a_minute_of_each():
    now = [0.0]
    limits = Limits(0, 3, lambda _: None, clock=lambda: now[0])

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
    assert len(limits._order) == 1


def test_every_answer_of_a_request_counts():
    now = [0.0]
    limits = Limits(3, 4, lambda _: None, clock=lambda: now[0])
    with limits.entered("a") as count_more:
        count_more(1)
        count_more(0)
        with pytest.raises(Fault, match="2 of your answers run or wait, and 3 may"), limits.entered("a") as more:
            more(1)
        assert limits._open == {"a": 2}
    assert limits._open == {}
    now[0] = 30.0
    with pytest.raises(Fault, match="4 answers a minute") as caught, limits.entered("a") as more:
        more(1)
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "30")


@pytest.mark.parametrize(("at_once", "per_minute"), [(3, 0), (0, 3), (3, 3)])
def test_what_no_limit_will_ever_allow_is_not_asked_again(at_once, per_minute):
    limits = Limits(at_once, per_minute, lambda _: None)
    with pytest.raises(Fault, match="4 answers are asked for, and you may have 3") as caught, limits.entered("a") as m:
        m(3)
    assert (caught.value.status, caught.value.param) == (400, "n")
    assert limits._open == {}


def test_a_request_costs_the_same_however_many_have_asked():
    now, looks = [0.0], []

    class Watched(dict):
        def items(self):
            looks.append(len(self))
            return super().items()

        __iter__ = keys = values = None

    limits = Limits(0, 2, lambda _: None, clock=lambda: now[0])
    limits._begun = Watched()
    for i in range(300):
        now[0] = 0.1 * i
        with limits.entered(f"10.0.{i // 100}.{i % 100}"):
            pass
    assert looks == []
    assert len(limits._begun) == 300
    now[0] = 85.05
    with limits.entered("again"):
        pass
    assert len(limits._begun) == len(limits._order) == 50


def test_over_http_every_choice_counts_and_a_429_is_in_the_metrics(service):
    metrics = Metrics("m")
    with serving(service, Settings(requests_at_once=2), metrics) as server:
        assert server.chat({"n": 2, "temperature": 1}).status == 200
        answer = server.chat({"n": 3})
        assert (answer.status, answer.error["param"]) == (400, "n")
        prompts = server.ask("POST", "/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 1})
        assert prompts.status == 400
        with server.connect() as one:
            data = b'{"messages": [{"role": "user", "content": "Hi"}], "stream": true, "max_tokens": 900, '
            data += b'"ignore_eos": true}'
            kind = ("Content-Type: application/json", f"Content-Length: {len(data)}")
            one.sendall(server.head("POST", "/v1/chat/completions", *kind) + data)
            assert b"200 OK" in one.recv(1 << 16)
            assert server.chat({"n": 2}).status == 429
        assert server.at_rest()
        said = server.ask("GET", "/metrics").body.decode()
        assert 'augury:admission_rejections_total{model_name="m",reason="limit"} 1.0' in said


def test_over_http_more_choices_than_will_ever_fit_are_a_400(service, monkeypatch):
    monkeypatch.setattr(service, "room", Room(requests=3, tokens=100))
    with serving(service, Settings()) as server:
        answer = server.chat({"n": 8})
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "n", "invalid_value")
        assert "4 run, and 3 with 100 tokens may wait" in answer.error["message"]
        answer = server.chat({"n": 7, "messages": [{"role": "user", "content": "one two " * 40}]})
        assert (answer.status, answer.error["param"]) == (400, "n")
        assert server.chat({"n": 5}).status == 200


def test_priority_is_the_operators_to_allow(service):
    with serving(service, Settings()) as server:
        for wish in (-2147483647, 5):
            answer = server.chat({"priority": wish})
            assert (answer.status, answer.error["code"], answer.error["param"]) == (
                400, "unsupported_parameter", "priority",
            )  # fmt: skip
            assert "--allow-priority" in answer.error["message"]
        assert server.chat({"priority": 0}).status == 200
    with serving(service, Settings(allow_priority=True)) as server:
        assert server.chat({"priority": -5}).status == 200


def test_all_bodies_together_are_bounded(service):
    metrics = Metrics("m")
    with serving(service, Settings(max_body=40_000, max_bodies=50_000), metrics) as server:
        kind = ("Content-Type: application/json", "Content-Length: 40000")
        with server.connect() as slow:
            slow.sendall(server.head("POST", "/v1/chat/completions", *kind) + b" " * 39_000)
            big = {"messages": [{"role": "user", "content": "x" * 20_000}]}
            end = time.monotonic() + 5
            while (answer := server.chat(big)).status != 503:
                assert time.monotonic() < end
            assert (answer.error["type"], answer.error["code"]) == ("overloaded_error", "server_overloaded")
            assert answer.headers["retry-after"] == "1"
            assert server.chat({}).status == 200  # a small one fits beside it
        end = time.monotonic() + 5
        while server.chat(big).status == 503:
            assert time.monotonic() < end
        said = server.ask("GET", "/metrics").body.decode()
        assert re.search(r'augury:admission_rejections_total\{model_name="m",reason="bodies"\} [1-9]', said)


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
