"""Two replicas behind one door: who answers what, and what it shows of both."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import ExitStack

import httpx
import openai
import pytest
from replicated import NAME, Streamed, held, narrow, question, said

from augury.server.settings import Settings

pytestmark = pytest.mark.slow

SALTS = [f"tenant {number}" for number in range(6)]
NEVER = "a-word-that-no-log-has"
LONG = {"temperature": 2.0, "ignore_eos": True}
"""Of an answer that nobody guesses, so that it takes as many steps as it has tokens."""


def test_both_answer_what_the_model_says_alone(two, alone):
    with two.client() as client:
        came = {salt: two.chat(client, question(1), 12, cache_salt=salt) for salt in SALTS}
    wanted = said(alone, question(1), 12)
    assert {answer.choices[0].message.content for answer, _ in came.values()} == {wanted}
    assert {replica for _, replica in came.values()} == set(two.replicas())


def test_the_turns_of_a_conversation_meet_its_cache(two):
    with two.client() as client:
        for number in range(2):
            messages, seen = question(number), []
            for turn in range(3):
                answer, replica = two.chat(client, messages, tokens=6, cache_salt=f"turns {number}")
                seen.append(replica)
                cached = answer.usage.prompt_tokens_details.cached_tokens
                assert (cached > 0) == (turn > 0), (turn, cached)
                messages = [*messages, {"role": "assistant", "content": answer.choices[0].message.content}]
                messages.append({"role": "user", "content": "Go on."})
            assert len(set(seen)) == 1


def test_a_full_replica_is_passed_over(two):
    """Two run at once; four of one conversation would wait if they all went to its own replica."""
    with two.streaming(question(1), 200, cache_salt="full") as (first, first_lines):
        next(first_lines)
        with two.streaming(question(1), 200, cache_salt="full") as (second, second_lines):
            next(second_lines)
            with two.streaming(question(1), 8, cache_salt="full") as (third, third_lines):
                next(third_lines)
                assert first.replica == second.replica != third.replica
    assert two.at_rest()
    with two.streaming(question(1), 8, cache_salt="full") as (fourth, _):
        assert fourth.replica == first.replica


def test_metrics_are_those_of_each(two):
    assert two.at_rest()
    before = two.metrics()["augury:request_success_total"]
    assert set(before) == set(two.replicas())
    with two.client() as client:
        came = [two.chat(client, question(n), 4, cache_salt=salt)[1] for n, salt in enumerate(SALTS)]
    after = two.metrics()["augury:request_success_total"]
    assert {name: after[name] - before[name] for name in after} == {name: came.count(name) for name in after}


def test_metrics_come_while_all_are_busy(two):
    with ExitStack() as stack:
        streams = [stack.enter_context(two.streaming(question(number), 900, **LONG)) for number in range(4)]
        for came, lines in streams:
            while not came.text:
                next(lines)
        assert [*two.metrics()["augury:num_requests_running"].values()] == [2, 2]
    assert two.at_rest()


def test_who_goes_away_frees_the_place(two):
    assert two.at_rest()
    before, tokens = two.metrics(), 900
    body = json.dumps({"messages": question(3), "max_tokens": tokens, "stream": True, **LONG}).encode()
    with socket.create_connection(("127.0.0.1", two.port), timeout=30) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        came = b""
        while b"data: " not in came:
            came += connection.recv(4096)
        assert sum(two.metrics()["augury:num_requests_running"].values()) == 1
    assert two.at_rest(120)
    after = two.metrics()

    def more(name: str) -> float:
        return sum(after[name].values()) - sum(before[name].values())

    assert more("augury:request_success_total") == 1  # as one that was given up
    assert 0 < more("augury:generation_tokens_total") < tokens


def test_a_reader_that_does_not_read_holds_up_nobody(two, alone):
    """The answer is several times as long as what connection and proxy hold, so who waited for it would still run."""
    tokens, proxy_holds = 150, 64 << 10
    body = {"model": NAME, "messages": question(3), "temperature": 0, "max_tokens": tokens, "stream": True,
            "ignore_eos": True, "logprobs": True, "top_logprobs": 20}  # fmt: skip
    with narrow(("127.0.0.1", two.port)) as connection:
        asking = http.client.HTTPConnection("127.0.0.1", two.port)
        asking.sock = connection
        asking.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        with two.client() as client:
            assert two.chat(client, question(4), 4)[0].usage.completion_tokens == 4
        assert two.at_rest(120)
        answer = asking.getresponse()
        raw = answer.read()
    assert len(raw) > 2 * (held() + proxy_holds)
    came = Streamed(answer.status, answer.headers["augury-replica"], raw.decode().splitlines())
    assert came.whole
    assert came.text == said(alone, question(3), tokens, ignore_eos=True)


def test_health_readiness_and_models(two):
    with httpx.Client(base_url=two.url) as client:
        assert client.get("/health").status_code == client.head("/health").status_code == 200
        assert client.get("/ready").json() == {"status": "ready", "model": NAME}
        assert client.get("/v1/models").json()["data"][0]["id"] == NAME
        answer = client.get("/version", headers={"x-request-id": "mine"})
        assert answer.headers.get_list("x-request-id") == ["mine"]


def test_there_is_no_trace_and_no_page(two):
    for path in ("/trace", "/trace/events"):
        answer = httpx.get(two.url + path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "trace_off")
    assert httpx.get(two.url).status_code == 404


def test_a_stranger_to_the_host_is_refused(two):
    answer = httpx.get(f"{two.url}/v1/models", headers={"Host": "elsewhere.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_host")


@pytest.fixture
def secured(cluster):
    """Replicas with keys and a small body."""
    cluster.run(Settings(names=(NAME,), api_keys=("key-one", "key-two"), max_body=4096, body_seconds=1.0, local=False))
    return cluster


def error(answer: httpx.Response) -> tuple[int, str | None]:
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    return answer.status_code, answer.json()["error"]["code"]


def test_errors_have_our_form(secured):
    def ask(key: str = "key-one", path: str = "/v1/chat/completions", **more):
        return httpx.post(secured.url + path, headers={"Authorization": f"Bearer {key}"}, timeout=60, **more)

    assert error(ask("wrong", json={"messages": question(1)})) == (401, "invalid_api_key")
    assert error(httpx.get(f"{secured.url}/metrics")) == (401, "invalid_api_key")
    assert error(httpx.get(f"{secured.url}/ready")) == (401, "invalid_api_key")
    assert httpx.get(f"{secured.url}/health").status_code == 200
    assert error(ask(content=b" " * 5000)) == (413, "request_too_large")
    assert error(ask(content=iter([b" " * 3000, b" " * 3000]))) == (413, "request_too_large")
    assert error(ask(path="/v1/nothing", json={})) == (404, "not_found")
    assert error(ask(content=b"{")) == (415, "unsupported_media_type")
    assert error(ask(data={"a": "form"})) == (415, "unsupported_media_type")
    assert error(ask(json={"messages": []}))[0] == 400
    assert error(ask(json={"messages": question(1), "model": "other"})) == (404, "model_not_found")
    with secured.client(key="wrong") as client, pytest.raises(openai.AuthenticationError):
        secured.chat(client, question(1))
    with secured.client(key="key-two") as client:
        assert secured.chat(client, question(1))[0].usage.completion_tokens


def test_a_body_that_does_not_come_is_not_waited_for(secured):
    with socket.create_connection(("127.0.0.1", secured.port), timeout=30) as connection:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-one\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in connection.recv(4096)


def test_keys_and_what_is_asked_are_in_no_log(secured):
    with secured.client(key="key-two") as client:
        secured.chat(client, question(1, NEVER))
        with pytest.raises(openai.BadRequestError):
            secured.chat(client, [{"role": NEVER, "content": NEVER}])
    with secured.client(key=NEVER) as client, pytest.raises(openai.AuthenticationError):
        secured.chat(client, question(1, NEVER))
    time.sleep(1)
    logs = [path for path in secured.logs.rglob("*") if path.is_file()]
    assert any(b"ongoing" in path.read_bytes() or b"CALL" in path.read_bytes() for path in logs)
    for word in (NEVER.encode(), b"key-one", b"key-two"):
        assert not [path.name for path in logs if word in path.read_bytes()]
