"""What one request may cost: bodies made to be dear are refused soon, and the others go on in the meantime."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from served import NAME, serving

from augury.server import asking
from augury.server.faults import LONGEST_PARAM, Fault
from augury.server.reading import DEEPEST, MOST_BRACKETS, parsed, shaped
from augury.server.schema import ChatBody
from augury.server.settings import Settings

HELLO = [{"role": "user", "content": "Hi"}]


@contextmanager
def others_go_on(seconds: float) -> Iterator[None]:
    """Inside no thread waits longer for its turn."""
    worst, over = 0.0, threading.Event()

    def look():
        nonlocal worst
        while not over.is_set():
            begin = time.perf_counter()
            time.sleep(0.001)
            worst = max(worst, time.perf_counter() - begin)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert worst < seconds


def refused(work) -> Fault:
    with pytest.raises(Fault) as caught:
        work()
    assert caught.value.status == 400
    return caught.value


# ---- bodies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail", [b'\\"', b'"', b'"a', b"[", b"{", b"-", b"1", b'"a" ', b"-Infinit", b" ", b"\\", b'"\\\n']
)
def test_what_stands_behind_an_oddity_costs_nothing(tail):
    body = b'{"x": {"ab": 1, "a\\u0062": 1}, ' + tail * 100_000
    begin = time.perf_counter()
    assert "the key 'ab' twice in one object" in refused(lambda: parsed(body)).message
    assert time.perf_counter() - begin < 2


def test_the_place_of_an_oddity_is_looked_for_near_the_beginning_only():
    body = b'{"x": [' + b"1," * 200_000 + b'1], "y": NaN}'
    assert refused(lambda: parsed(body)).message == "the body holds NaN, which is not JSON"


def nested(depth: int) -> dict:
    """An object with so many lists and objects in each other, itself included."""
    schema: dict = {}
    for _ in range(depth - 1):
        schema = {"properties": schema}
    return schema


@pytest.mark.parametrize("field", ["guided_json", "made_up"])
def test_depth_is_bounded_everywhere(field):
    fits = {"messages": HELLO, field: nested(DEEPEST - 1)}
    assert parsed(json.dumps(fits).encode()) == fits
    body = json.dumps({**fits, field: [nested(DEEPEST - 1)]}).encode()
    assert f"more than {DEEPEST} lists and objects" in refused(lambda: parsed(body)).message


@pytest.mark.parametrize("depth", [70, 400, 900])
def test_deep_tools_are_refused(server, depth):
    tool = {"type": "function", "function": {"name": "f", "parameters": nested(depth)}}
    for choice in ("auto", "required"):
        answer = server.chat({"tools": [tool], "tool_choice": choice})
        assert (answer.status, answer.error["code"]) == (400, "invalid_json")
    call = {"type": "function", "function": {"name": "f", "arguments": json.dumps(nested(depth))}}
    answer = server.chat({"messages": [*HELLO, {"role": "assistant", "tool_calls": [call]}]})
    assert (answer.status, answer.error["param"]) == (400, "messages[1].tool_calls[0]")


def test_a_million_lists_are_not_read():
    with others_go_on(0.5):
        message = refused(lambda: parsed(b'{"x": [' + b"[]," * 2_000_000 + b"[]]}")).message
    assert f"more than {MOST_BRACKETS} opening brackets" in message


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"messages": [1] * 1_000_000}, "messages[0]"),
        ({"messages": HELLO, "tools": [1] * 1_000_000}, "tools[0]"),
        ({"messages": HELLO, "bad_words": [1] * 1000}, "bad_words[0]"),
        ({"messages": HELLO, "stop_token_ids": ["x"] * 1_000_000}, "stop_token_ids[0]"),
        ({"messages": HELLO, "guided_choice": [1] * 1_000_000}, "guided_choice[0]"),
        ({"messages": HELLO, "logit_bias": {str(i): "x" for i in range(200_000)}}, "logit_bias"),
        ({"messages": HELLO, "stop": [["x"] * 1000] * 1000}, "stop[0]"),
    ],
)
def test_errors_are_told_up_to_the_first(given, param):
    begin = time.perf_counter()
    assert refused(lambda: shaped(given, ChatBody)).param == param
    assert time.perf_counter() - begin < 1


def test_the_name_of_a_place_is_short(server):
    long = {"k" * 200_000: {"l" * 200_000: ["\ud800"]}}
    answer = server.chat({"made_up": long})
    assert answer.status == 400
    assert len(answer.error["param"]) == LONGEST_PARAM
    assert len(answer.body) < 1000
    assert len(Fault(400, "x", param="a\n" * 500).param) == LONGEST_PARAM


def test_many_texts_in_deep_places_are_read_soon():
    begin = time.perf_counter()
    parsed(json.dumps({"k" * 1_000_000: ["\u00e9"] * 200_000}).encode())
    assert time.perf_counter() - begin < 2


# ---- texts -------------------------------------------------------------------------------------------------


def test_others_go_on_while_a_long_text_is_cut(server):
    text = "A few words of no meaning, 12 or so. " * 12_000
    with others_go_on(0.2):
        server.engine.tokenizer.encode(text)


@pytest.mark.parametrize("text", ["1" * 300_000, "word " * 60_000])
def test_a_prompt_that_cannot_fit_is_not_read_to_its_end(server, monkeypatch, text):
    read = []
    backend = server.engine.tokenizer._backend

    class Counting:
        def encode_batch_fast(self, texts, **options):
            read.append(sum(map(len, texts)))
            return backend.encode_batch_fast(texts, **options)

    asking.longest(server.engine)
    monkeypatch.setattr(server.engine.tokenizer, "_backend", Counting())
    for path, body, param in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("/v1/completions", {"prompt": text}, "prompt"),
        ("/v1/responses", {"input": text}, "input"),
    ):
        read.clear()
        answer = server.ask("POST", path, body)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert answer.error["param"] == param
        assert sum(read) < len(text) / 2


@pytest.mark.parametrize(("n", "count"), [(129, 1), (2, 65), (1, 129), (1 << 40, 3)])
def test_answers_are_counted_before_anything_is_cut(server, monkeypatch, n, count):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(server.engine.tokenizer, "encode", never)
    monkeypatch.setattr(server.engine.tokenizer, "encode_guarded", never)
    for path, body in (("completions", {"prompt": ["a"] * count}), ("chat/completions", {"messages": HELLO})):
        if path == "completions" or n > 128:
            answer = server.ask("POST", f"/v1/{path}", {**body, "n": n})
            assert (answer.status, answer.error["param"]) == (400, "n")


def test_parts_and_values_of_messages_are_bounded(server):
    empty = {"type": "text", "text": ""}
    parts = [{"type": "text", "text": "Say hi"}, *[empty] * 80_000]
    assert server.chat({"messages": [{"role": "user", "content": parts}]}).status == 200
    many = [{"role": "user", "content": ""}] * 20_000
    for messages in (many, [{**HELLO[0], "made_up": [1] * 40_000}]):
        answer = server.chat({"messages": messages})
        assert (answer.status, answer.error["param"]) == (400, "messages")
        assert "32768" in answer.error["message"]


def test_the_text_of_tools_counts_too(server, monkeypatch):
    monkeypatch.setattr(server.engine.template, "reads", lambda _: True)
    tool = {"type": "function", "function": {"name": "f", "description": "<" * 6_000_000}}
    with others_go_on(0.5):
        answer = server.chat({"tools": [tool]})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


def test_tokens_are_limited_as_answers_are(service):
    with serving(service, Settings(names=(NAME,), requests_per_minute=2)) as limited:
        asked = (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]}), ("/tokenize", {"prompt": "x"}))
        assert [limited.ask("POST", path, body).status for path, body in asked] == [200, 200, 429]


def test_a_long_text_is_counted(server):
    told = server.ask("POST", "/tokenize", {"content": "hello " * 20_000, "with_pieces": True})
    assert len(told.json["tokens"]) == 20_001


@pytest.fixture(scope="module")
def short(service):
    """A server with bounds of its own for answers."""
    settings = Settings(names=(NAME,), default_max_tokens=5, max_tokens_limit=7)
    with serving(service, settings) as made:
        yield made


ROUTES = (
    ("/v1/chat/completions", {"messages": HELLO}, "max_tokens"),
    ("/v1/chat/completions", {"messages": HELLO}, "max_completion_tokens"),
    ("/v1/completions", {"prompt": "one two three"}, "max_tokens"),
    ("/v1/responses", {"input": "Hi"}, "max_output_tokens"),
)


@pytest.mark.parametrize(("path", "body", "field"), ROUTES)
def test_the_operator_bounds_answers(short, path, body, field):
    body = {**body, "temperature": 0, "ignore_eos": True}
    refused = short.ask("POST", path, {**body, field: 8})
    assert (refused.status, refused.error["param"]) == (400, field)
    assert refused.error["message"] == f"{field} is 8; an answer of this server has at most 7 tokens"

    def length(**more):
        usage = short.ask("POST", path, {**body, **more}).json["usage"]
        return usage.get("completion_tokens", usage.get("output_tokens"))

    assert length(**{field: 7}) == 7
    assert length() == 5


def test_a_limit_alone_is_the_default_too(service):
    with serving(service, Settings(names=(NAME,), max_tokens_limit=3)) as server:
        for path, body, _ in ROUTES:
            usage = server.ask("POST", path, {**body, "temperature": 0, "ignore_eos": True}).json["usage"]
            assert usage.get("completion_tokens", usage.get("output_tokens")) == 3


def test_who_asks_is_not_told_how_to_load(server):
    answer = server.ask("POST", "/v1/completions", {"prompt": [1] * 1024})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert answer.error["message"].endswith("shorten the prompt by 1 tokens")


def test_what_first_requests_would_wait_for_is_made_at_the_start(service, monkeypatch):
    tokenizer = service.engine.tokenizer
    for name in ("_plain", "_renamed"):
        tokenizer.__dict__.pop(name, None)
    asking.prepare(service.engine)
    assert {"_plain", "_renamed"} <= {*tokenizer.__dict__}
    assert asking._LONGEST[service.engine] > 1
