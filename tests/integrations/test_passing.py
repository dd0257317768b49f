"""What a client gets of answers whose replicas end, without any replica."""

from __future__ import annotations

import asyncio
import json

import pytest

from augury.integrations.ray_serve.answering import Passing, Spoilt, broken

STREAM, JSON = b"text/event-stream; charset=utf-8", b"application/json"


def start(kind: bytes, status: int = 200):
    headers = [(b"content-type", kind), (b"x-request-id", b"of the replica")]
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data: bytes, more: bool = True):
    return {"type": "http.response.body", "body": data, "more_body": more}


def run(*messages, responses: bool = False, fails: bool = False):
    """The passing, and all that was sent."""
    sent = []

    async def send(message):
        sent.append(message)

    async def all_of_it():
        passing = Passing(send, responses)
        for replica, message in messages:
            await passing.take(message, replica)
        return passing, fails and await passing.fail(broken())

    passing, failed = asyncio.run(all_of_it())
    return passing, sent, failed


def test_nothing_leaves_before_a_part_of_the_body_is_there():
    passing, sent, _ = run(("a", start(JSON)))
    assert (sent, passing.started, passing.said) == ([], False, False)
    passing, sent, _ = run(("a", start(JSON)), ("b", start(JSON)), ("b", body(b"{}", more=False)))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["headers"] == [(b"content-type", JSON), (b"augury-replica", b"b")]
    assert passing.ended


def test_behind_comments_another_replica_goes_on():
    passing, sent, _ = run(
        ("a", start(STREAM)), ("a", body(b": keep-alive\n\n")), ("b", start(STREAM)), ("b", body(b"data: 1\n\n"))
    )
    assert [message.get("body") for message in sent] == [None, b": keep-alive\n\n", b"data: 1\n\n"]
    assert passing.said


@pytest.mark.parametrize("other", [start(JSON), start(STREAM, 503), start(JSON, 400)])
def test_what_does_not_continue_is_refused(other):
    with pytest.raises(Spoilt):
        run(("a", start(STREAM)), ("a", body(b": keep-alive\n\n")), ("b", other))


def test_a_replica_that_is_busy_is_told_from_one_that_refuses():
    passing, _, _ = run()
    assert passing.busy(start(JSON, 503))
    assert not passing.busy(start(JSON, 400))
    assert not passing.busy(body(b""))
    passing, _, _ = run(("a", start(STREAM)), ("a", body(b": keep-alive\n\n")))
    assert not passing.busy(start(JSON, 503))


def test_a_stream_that_broke_ends_with_our_error():
    _, sent, failed = run(("a", start(STREAM)), ("a", body(b'data: {"a": 1}\n\n')), fails=True)
    assert failed
    event, done, _ = sent[-1]["body"].split(b"\n\n")
    assert json.loads(event[6:])["error"]["code"] == "replica_ended"
    assert (done, sent[-1]["more_body"]) == (b"data: [DONE]", False)


def test_one_that_broke_inside_a_frame_ends_the_frame_first():
    _, sent, _ = run(("a", start(STREAM)), ("a", body(b'data: {"a')), fails=True)
    assert sent[-1]["body"].startswith(b'\n\ndata: {"error"')


def test_events_of_responses_have_names_and_numbers():
    events = b'event: one\ndata: {"text": "\\nevent: "}\n\nevent: two\ndata: {}\n\n'
    _, sent, _ = run(("a", start(STREAM)), ("a", body(events)), responses=True, fails=True)
    name, data = sent[-1]["body"].split(b"\n\n")[0].split(b"\n")
    assert (name, json.loads(data[6:])["sequence_number"]) == (b"event: error", 2)


def test_an_answer_in_one_piece_cannot_be_ended_with_an_event():
    assert not run(("a", start(JSON)), fails=True)[2]


def test_a_stream_of_which_the_client_has_nothing_is_refused_as_any_answer():
    """Its head was held back when the replica ended, and no other one began."""
    passing, sent, failed = run(("a", start(STREAM)), fails=True)
    assert (failed, sent, passing.ended) == (False, [], False)
