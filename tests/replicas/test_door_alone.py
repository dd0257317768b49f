"""The door before replicas that are played: what a client gets when they end, or are not there, at a bad moment."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray.exceptions import RayError

from augury.integrations.ray_serve.door import Door
from augury.integrations.ray_serve.wire import taken
from augury.server.settings import Settings

NOT_THERE = TimeoutError()
"""What the handle says when no replica took a request in time."""


def start(kind: bytes = b"text/event-stream", status: int = 200):
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]}


def body(data: bytes, more: bool = True):
    return {"type": "http.response.body", "body": data, "more_body": more}


class Played:
    """Handle of replicas of which each call gets what is said next: messages, and at last an error or the end."""

    def __init__(self, *calls):
        self._calls = list(calls)
        self.answer = SimpleNamespace(remote=self._remote)
        self.asked = []

    def options(self, stream):
        return self

    def _remote(self, wanted, scope, body):
        self.asked.append(wanted)
        return _Said(self._calls.pop(0))


class _Said:
    def __init__(self, messages):
        self._messages = list(messages)

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._messages:
            raise StopAsyncIteration
        if isinstance(message := self._messages.pop(0), Exception):
            raise message
        return message

    def cancel(self):
        pass


def enter(played: Played, path: str = "/v1/chat/completions", method: str = "POST"):
    """Messages that the client gets."""
    sent = []

    async def send(message):
        sent.append(message)

    async def ask():
        coming = [{"type": "http.request", "body": b'{"stream": true}' * (method == "POST"), "more_body": False}]

        async def receive():
            if coming:
                return coming.pop()
            await asyncio.sleep(60)
            return {"type": "http.disconnect"}

        scope = {
            "type": "http", "method": method, "path": path, "root_path": "", "scheme": "http", "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")], "client": ("127.0.0.1", 1),
        }  # fmt: skip
        await asyncio.wait_for(Door(played, Settings(local=False), ()).enter(scope, receive, send), 20)

    asyncio.run(ask())
    return sent


def test_a_stream_goes_through():
    sent = enter(Played([taken("a"), start(), body(b"data: 1\n\n"), body(b"data: [DONE]\n\n", more=False)]))
    assert [message.get("body") for message in sent] == [None, b"data: 1\n\n", b"data: [DONE]\n\n"]
    assert (b"augury-replica", b"a") in sent[0]["headers"]


@pytest.mark.parametrize("others", [[[NOT_THERE]], [[taken("b"), start(), RayError()], [NOT_THERE]]])
def test_a_stream_that_nobody_goes_on_with_ends_with_an_error(others):
    """The client has its head and comments, so a status cannot be sent any more."""
    sent = enter(Played([taken("a"), start(), body(b": keep-alive\n\n"), RayError()], *others))
    assert [message["type"] for message in sent].count("http.response.start") == 1
    event, done, _ = sent[-1]["body"].split(b"\n\n")
    assert json.loads(event[6:])["error"]["code"]
    assert (done, sent[-1]["more_body"]) == (b"data: [DONE]", False)


@pytest.mark.parametrize("last", [[[taken("c"), start(), RayError()]], [[taken("c"), RayError()]], [[NOT_THERE]]])
def test_where_all_end_before_they_said_anything_the_status_says_so(last):
    played = Played([taken("a"), start(), RayError()], [taken("b"), start(), RayError()], *last)
    head, whole = enter(played)
    assert (head["type"], head["status"]) == ("http.response.start", 503)
    assert json.loads(whole["body"])["error"]["type"] == "overloaded_error"
    assert [wanted.avoid for wanted in played.asked] == [(), ("a",), ("a", "b")]


def test_a_replica_that_refuses_to_tell_its_metrics_is_missing():
    told = [start(b"text/plain"), body(b"# TYPE x gauge\nx 1.0\n", more=False)]
    refused = [start(b"application/json", 503), body(b'{"error": {"message": "too many"}}', more=False)]
    played = Played([taken("a"), *told], [taken("b"), *refused], [taken("c"), *told], [taken("a"), *told])
    sent = enter(played, "/metrics", "GET")
    assert sent[0]["status"] == 200
    families = text_string_to_metric_families(sent[1]["body"].decode())
    assert [sample.labels["replica"] for family in families for sample in family.samples] == ["a", "c"]
    none = enter(Played(*[[taken(name), *refused] for name in "abc"]), "/metrics", "GET")
    assert none[0]["status"] == 503
