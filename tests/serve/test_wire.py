"""What goes wrong on the wire: bodies, methods, connections, readers. Behind each of it the server is at rest."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import openai
import pytest
from served import serving

from augury.engine.service import Room
from augury.errors import AuguryError, TooLate
from augury.server import connecting
from augury.server.faults import Fault, fault_of
from augury.server.settings import Settings

BODIES = [
    (b"", "line 1 column 1"),
    (b"hello", "line 1 column 1"),
    (b'{"messages": [', "line 1 column 15"),
    (b"\xef\xbb\xbf{}", "byte order mark"),
    (b"\xff\xfe{\x00}\x00", "byte order mark"),
    (b'{"a": "\xff"}', "byte 7"),
    (b'{\n "temperature": NaN}', "NaN, which is not JSON, at line 2 column 17"),
    (b'{"temperature": -Infinity}', "-Infinity, which is not JSON, at line 1 column 17"),
    (b'{"temperature": 1e999}', "too large, at line 1 column 17"),
    (b'{"seed": ' + b"9" * 5000 + b"}", "too large, at line 1 column 10"),
    (b'{"a": {"b": 1}, "c": [{"b": 1, "b" : 2}]}', "the key 'b' twice in one object, at line 1 column 32"),
    (b'{"a": "\\"b\\": NaN", "a": 1}', "the key 'a' twice"),
    (b'{"a\\u0062": 1, "ab": 1}', "the key 'ab' twice in one object"),
    (b"[" * 50_000, "too deep"),
    (b'{"a":' * 50_000, "too deep"),
    (b"[]", "must be a JSON object"),
    (b'"text"', "must be a JSON object"),
    (b"{}{}", "extra data"),
]

LONG = {"max_tokens": 900, "ignore_eos": True, "stream": True}


OPENED: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _at_rest(server) -> Iterator[None]:
    """Behind every test nothing runs, nothing waits, and the server answers."""
    yield
    while OPENED:
        OPENED.pop().close()
    assert server.at_rest()
    assert server.chat({}).json["choices"][0]["message"]["content"]


def begun(server, body, read=True) -> socket.socket:
    """A connection on which a stream has begun."""
    asked = {"messages": [{"role": "user", "content": "Count to a thousand."}], **body}
    data = json.dumps(asked).encode()
    connection = server.connect()
    OPENED.append(connection)
    head = server.head("POST", "/v1/chat/completions", "Content-Type: application/json", f"Content-Length: {len(data)}")
    connection.sendall(head + data)
    if read:
        assert b"200 OK" in connection.recv(1 << 16)
    return connection


# ---- bodies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("body", "said"), BODIES)
def test_a_body_that_is_no_json_is_refused_with_its_place(server, body, said):
    answer = server.ask("POST", "/v1/chat/completions", body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_json", None)
    assert said in answer.error["message"]


def test_many_errors_are_one_line(server):
    answer = server.chat({"messages": [1] * 12_000, "stop": ["x" * 10_000] * 9})
    assert answer.status == 400
    assert len(answer.body) < 600
    assert "more)" in answer.error["message"]


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "multipart/form-data"],
)
def test_another_content_type_is_refused(server, kind):
    answer = server.ask("POST", "/v1/chat/completions", {"messages": []}, f"Content-Type: {kind}")
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


def test_a_compressed_body_is_refused(server):
    assert server.ask("POST", "/v1/completions", {"prompt": "x"}, "Content-Encoding: gzip").status == 415


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/chat/completions", 405, "POST"), ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("OPTIONS", "/v1/models", 405, "GET, HEAD"),
        ("POST", "/health", 405, "GET, HEAD"), ("GET", "/", 404, None), ("POST", "/v1/embeddings", 404, None),
        ("GET", "/v1/models/", 404, None), ("GET", "/docs", 404, None), ("GET", "/v1/../etc/passwd", 404, None),
    ],
)  # fmt: skip
def test_routes_and_methods(server, method, path, status, allow):
    answer = server.ask(method, path, b"{}" if method == "POST" else None)
    assert (answer.status, answer.headers.get("allow")) == (status, allow)
    assert answer.error["type"] == "invalid_request_error"
    assert "access-control-allow-origin" not in answer.headers


def test_lengths_that_contradict_each_other_are_refused(server):
    body = b"5\r\n{}   \r\n0\r\n\r\n"
    lengths = (f"Content-Length: {len(body)}", "Transfer-Encoding: chunked", "Content-Type: application/json")
    with server.connect() as connection:
        connection.sendall(server.head("POST", "/v1/completions", *lengths) + body + server.head("GET", "/version"))
        answered = b""
        while part := connection.recv(1 << 16):
            answered += part
    assert answered.startswith(b"HTTP/1.1 400")
    assert answered.count(b"HTTP/1.1 ") == 1  # what was smuggled behind is not answered


def test_requests_in_a_pipeline_are_answered_in_order(server):
    with server.connect() as connection:
        connection.sendall(server.head("GET", "/version") + server.head("GET", "/v1/models", "Connection: close"))
        answered = b""
        while part := connection.recv(1 << 16):
            answered += part
    first, second = answered.index(b'"version"'), answered.index(b'"object":"list"')
    assert first < second


def test_a_refusal_with_a_whole_body_keeps_the_connection(server):
    data = b'{"messages": []}'
    head = server.head("POST", "/v1/chat/completions", "Content-Type: application/json", f"Content-Length: {len(data)}")
    with server.connect() as connection:
        for _ in range(2):
            connection.sendall(head + data)
            answered = b""
            while not answered.endswith(b"}}"):
                answered += connection.recv(1 << 16)
            assert answered.startswith(b"HTTP/1.1 400")


# ---- size and speed of a body ------------------------------------------------------------------------------


def chunked(parts) -> bytes:
    return b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts)


KEY = ("Authorization: Bearer key-one", "Content-Type: application/json")


def test_a_body_above_the_cap_is_refused_before_it_is_sent(secured):
    with secured.connect() as connection:
        connection.sendall(secured.head("POST", "/v1/completions", *KEY, "Content-Length: 99999999"))
        answered = b""
        while part := connection.recv(1 << 16):
            answered += part
    assert answered.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in answered


def test_a_client_that_writes_before_it_reads_still_gets_the_answer(secured):
    answer = secured.ask("POST", "/v1/completions", b"x" * 2_000_000, *KEY)
    assert (answer.status, answer.error["code"], answer.headers["connection"]) == (413, "request_too_large", "close")


def test_a_body_without_a_length_is_counted_as_it_comes(secured):
    with secured.connect() as connection:
        connection.sendall(secured.head("POST", "/v1/completions", *KEY, "Transfer-Encoding: chunked"))
        answered = b""
        connection.settimeout(5)
        try:
            for _ in range(200):
                connection.sendall(chunked([b"x" * 1000]))
        except OSError:
            pass  # it has hung up
        try:
            while part := connection.recv(1 << 16):
                answered += part
        except ConnectionError:
            pass
    assert answered.startswith(b"HTTP/1.1 413")


def test_a_body_that_drips_is_given_up(secured):
    begin = time.monotonic()
    with secured.connect() as connection:
        connection.sendall(secured.head("POST", "/v1/completions", *KEY, "Content-Length: 1000"))
        connection.settimeout(0.1)
        answered = b""
        while not answered and time.monotonic() - begin < 5:
            connection.sendall(b" ")
            try:
                answered = connection.recv(1 << 16)
            except TimeoutError:
                continue
        connection.settimeout(5)
        while part := connection.recv(1 << 16):  # head and body may come apart
            answered += part
    assert answered.startswith(b"HTTP/1.1 408")
    assert b"timeout_error" in answered


def test_a_client_that_goes_in_the_middle_of_its_body_is_no_error(server):
    with server.connect() as connection:
        connection.sendall(
            server.head("POST", "/v1/completions", "Content-Type: application/json", "Content-Length: 99")
        )
        connection.sendall(b'{"prompt"')


# ---- clients who go ----------------------------------------------------------------------------------------


def test_a_client_that_goes_in_mid_stream_frees_its_slot_at_the_next_step(server):
    connection = begun(server, LONG)
    assert server.service.running == 1
    connection.close()
    assert server.at_rest(3.0)


def test_a_client_that_waits_for_a_whole_answer_and_goes(server):
    connection = begun(server, {**LONG, "stream": False}, read=False)
    while not server.service.running:
        time.sleep(0.01)
    connection.close()
    assert server.at_rest(3.0)


def test_a_client_that_goes_while_it_waits_leaves_the_others_alone(server):
    running = [begun(server, {**LONG, "max_tokens": 32, "temperature": 0}) for _ in range(4)]
    waiting = begun(server, LONG, read=False)
    while not server.service.waiting:
        time.sleep(0.01)
    waiting.close()
    while server.service.waiting:
        time.sleep(0.01)
    ends = []
    for connection in running:
        data = b""
        while b"[DONE]" not in data:
            data += connection.recv(1 << 16)
        connection.close()
        ends.append(data.count(b'"content":"'))
    assert len(set(ends)) <= 2  # what the first read took is not counted
    assert min(ends) > 4


def test_openais_client_may_close_a_stream(server, client):
    asked = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 900}
    with client.chat.completions.create(**asked, stream=True) as stream:
        next(iter(stream))
    assert server.at_rest(3.0)


# ---- readers who are slow, answers that wait ----------------------------------------------------------------


def test_a_reader_that_takes_nothing_is_given_up(server, monkeypatch):
    monkeypatch.setattr(connecting, "CONNECTION_SECONDS", 0.3)
    filler = {"logprobs": True, "top_logprobs": 20, "stream_options": {"include_usage": True}}
    with serving(server.service, Settings(), send_buffer=4096) as impatient:
        connection = socket.socket()
        OPENED.append(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", impatient.port))
        data = json.dumps({"messages": [{"role": "user", "content": "Count."}], **LONG, **filler}).encode()
        kind = ("Content-Type: application/json", f"Content-Length: {len(data)}")
        connection.sendall(impatient.head("POST", "/v1/chat/completions", *kind) + data)
        while not server.service.running:
            time.sleep(0.01)
        begin = server.service._running[0]
        assert server.at_rest(30.0)
        assert begin.ending.finish == "cancelled"
        assert impatient.connections == 0  # though nobody closed the other end, and nobody read what was sent
        connection.close()


def test_comments_keep_a_silent_stream_alive(secured, server):
    running = [begun(server, LONG) for _ in range(4)]
    connection = secured.connect()
    data = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 4}).encode()
    connection.sendall(secured.head("POST", "/v1/chat/completions", *KEY, f"Content-Length: {len(data)}") + data)
    came = b""
    while came.count(b": keep-alive\n\n") < 3:
        came += connection.recv(1 << 16)
    for one in running:
        one.close()
    while b"[DONE]" not in came:
        came += connection.recv(1 << 16)
    connection.close()
    head = came.partition(b"\r\n\r\n")[0].lower()
    assert b"content-type: text/event-stream; charset=utf-8" in head
    assert b"cache-control: no-cache" in head
    assert b"x-accel-buffering: no" in head


# ---- queue and time ----------------------------------------------------------------------------------------


def test_a_full_queue_refuses_before_anything_is_read(server, monkeypatch):
    monkeypatch.setattr(server.service, "room", Room(requests=0))
    running = [begun(server, LONG) for _ in range(4)]
    answer = server.ask("POST", "/v1/chat/completions", b"not even json")
    assert (answer.status, answer.error["code"], answer.error["type"]) == (503, "server_overloaded", "overloaded_error")
    assert int(answer.headers["retry-after"]) >= 1
    for one in running:
        one.close()


def test_answers_of_one_request_are_taken_together_or_not_at_all(server, monkeypatch):
    monkeypatch.setattr(server.service, "room", Room(requests=2))
    running = [begun(server, LONG) for _ in range(3)]
    answer = server.chat({"n": 6})  # as many as there is room for, when nobody else is here
    assert (answer.status, answer.error["code"]) == (503, "server_overloaded")
    assert (server.service.running, server.service.waiting) == (3, 0)
    for one in running:
        one.close()


def test_an_answer_that_comes_too_late_is_told_by_its_status_or_in_its_stream(server):
    with serving(server.service, replace(server.settings, request_seconds=0.5)) as hasty:
        answer = hasty.chat({**LONG, "stream": False})
        assert (answer.status, answer.error["type"]) == (504, "timeout_error")
        *_, error, done = hasty.chat(LONG).events
        assert (error["error"]["type"], done) == ("timeout_error", "[DONE]")
        with hasty.client() as client:
            asked = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Count."}]}
            stream = client.chat.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
            with pytest.raises(openai.APIError, match="time was over"):
                list(stream)
        response = hasty.ask("POST", "/v1/responses", {"input": "Count.", "stream": True, "ignore_eos": True})
        kinds = [event["type"] for event in response.events[:-1]]
        assert kinds[-2:] == ["error", "response.failed"]


def test_an_answer_that_waits_too_long_is_told_so(server):
    running = [begun(server, LONG) for _ in range(4)]
    with serving(server.service, replace(server.settings, request_seconds=0.3, keep_alive_seconds=0)) as hasty:
        for wish in ({}, {"stream": True}):
            answer = hasty.chat(wish)
            assert (answer.status, answer.error["type"]) == (504, "timeout_error")
            assert "waited" in answer.error["message"]
    assert len(running) == server.service.running == 4


def test_of_a_burst_some_are_refused_and_the_others_answered(server, monkeypatch):
    monkeypatch.setattr(server.service, "room", Room(requests=3))
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda i: server.chat({"max_tokens": 8, "stream": i % 2 == 0}), range(40)))
    assert {answer.status for answer in answers} == {200, 503}
    texts = {a.json["choices"][0]["message"]["content"] for a in answers[1::2] if a.status == 200}
    assert len(texts) <= 1
    assert all(int(a.headers["retry-after"]) >= 1 for a in answers if a.status == 503)


# ---- what errors tell --------------------------------------------------------------------------------------


def test_an_error_of_our_own_tells_nothing_and_is_not_asked_again(server, monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("secret at /home/me/model.bin 0x7fdeadbeef")

    monkeypatch.setattr(server.engine, "request", broken)
    answer = server.chat({})
    assert (answer.status, answer.headers["x-should-retry"], answer.error["type"]) == (500, "false", "server_error")
    assert b"secret" not in answer.body
    assert "secret" in caplog.text
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (TooLate("x"), 504, "timeout_error"),
        (AuguryError("in /home/me/a/b.bin at 0xdeadbeef12"), 500, "server_error"),
        (ValueError("/etc/passwd"), 500, "server_error"),
    ],
)
def test_errors_and_their_status(error, status, kind):
    fault = fault_of(error)
    assert (fault.status, fault.type) == (status, kind)
    assert "/home" not in fault.message
    assert "0x" not in fault.message
    assert "passwd" not in fault.message


def test_a_message_is_short_and_one_line():
    assert len(Fault(400, "word\n" * 1000).message) == 400
    assert "\n" not in Fault(400, "a\nb").message
