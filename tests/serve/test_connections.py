"""Connections that bring nothing, half a head, or do not read: each is cut in time, and they keep nobody out."""

from __future__ import annotations

import json
import socket
import time

import pytest
from served import NAME, Served, received, serving

from augury.server import connecting, running
from augury.server.settings import Settings


@pytest.fixture
def hasty(service, monkeypatch):
    monkeypatch.setattr(connecting, "CONNECTION_SECONDS", 0.4)
    with serving(service, Settings(names=(NAME,)), send_buffer=4096) as made:
        yield made


def soon(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def cut(connection, seconds=3.0):
    """Whether the other side ends it by then."""
    connection.settimeout(seconds)
    try:
        return connection.recv(4096) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def question(server: Served, **body):
    data = json.dumps({"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True, **body}).encode()
    kind = ("Content-Type: application/json", f"Content-Length: {len(data)}")
    return server.head("POST", "/v1/chat/completions", *kind) + data


def test_a_connection_that_brings_nothing_is_cut(hasty):
    with hasty.connect() as silent:
        soon(lambda: hasty.connections == 1)
        assert cut(silent)
        assert hasty.connections == 0


def test_half_a_head_that_drips_is_cut(hasty):
    with hasty.connect() as half:
        half.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        begin, ended = time.monotonic(), False
        while not ended:
            assert time.monotonic() - begin < 3.0
            half.settimeout(0.05)
            try:
                half.sendall(b"a")
                ended = half.recv(16) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
        assert time.monotonic() - begin > 0.3


def test_half_a_head_behind_an_answer_is_cut(hasty):
    with hasty.connect() as half:
        half.sendall(hasty.head("GET", "/health"))
        assert half.recv(4096).startswith(b"HTTP/1.1 200")
        half.sendall(b"GET /hea")
        assert cut(half)


def test_who_is_answered_is_not_cut_however_long_it_takes(hasty):
    with hasty.connect() as reader:
        begin = time.monotonic()
        reader.sendall(question(hasty, stream=True, max_tokens=100))
        said = b""
        while not said.endswith(b"\r\n0\r\n\r\n"):
            part = reader.recv(1 << 16)
            assert part
            said += part
        assert time.monotonic() - begin > 0.4
        reader.sendall(hasty.head("GET", "/health"))
        assert b"HTTP/1.1 200" in reader.recv(4096)


def test_who_pipelines_and_reads_nothing_is_cut(hasty):
    """What waits for the reader is in no stream: the send of a whole answer, and the first of a stream, wait too."""
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect(("127.0.0.1", hasty.port))
        deaf.sendall(hasty.head("GET", "/openapi.json") * 20 + question(hasty, stream=True, max_tokens=4))
        soon(lambda: hasty.connections == 1)
        soon(lambda: hasty.connections == 0)
    assert hasty.at_rest()


def test_a_large_answer_may_be_read_slowly(hasty, monkeypatch):
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", hasty.port))
        slow.sendall(hasty.head("GET", "/openapi.json"))
        begin, said, size = time.monotonic(), b"", 1 << 30
        while len(said) < size:
            part = slow.recv(2048)
            assert part
            said += part
            if b"\r\n\r\n" in said:
                head, _, _ = said.partition(b"\r\n\r\n")
                size = len(head) + 4 + int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            time.sleep(0.06)
        assert time.monotonic() - begin > 2 * connecting.CONNECTION_SECONDS


def test_of_too_many_connections_the_oldest_without_a_request_is_cut(service, monkeypatch):
    monkeypatch.setattr(connecting, "MOST_CONNECTIONS", 3)
    with serving(service, Settings(names=(NAME,))) as server:
        silent = []
        for count in range(3):
            silent.append(server.connect())
            soon(lambda count=count: server.connections == count + 1)
        assert server.ask("GET", "/health").status == 200
        assert cut(silent[0])
        assert not cut(silent[1], 0.2)
        assert server.chat({}).status == 200
        for one in silent:
            one.close()


def test_where_all_connections_have_requests_the_next_is_cut(service, monkeypatch):
    monkeypatch.setattr(connecting, "MOST_CONNECTIONS", 2)
    with serving(service, Settings(names=(NAME,))) as server:
        busy = [server.connect() for _ in range(2)]
        for one in busy:
            one.sendall(question(server, stream=True, max_tokens=900))
            assert b"200 OK" in one.recv(1 << 16)
        with server.connect() as third:
            assert cut(third)
        for one in busy:
            one.close()
        assert server.at_rest()


@pytest.mark.parametrize(("files", "most"), [(4096, 2048), (2000, 1360), (1024, 512), (1 << 20, 2048), (-1, 2048)])
def test_connections_leave_files_for_others(files, most, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, -1))
    assert connecting.most_connections() == most


def test_a_body_that_did_not_come_when_the_server_closes_gets_the_error_object(service, monkeypatch, caplog):
    monkeypatch.setattr(running, "FLUSH_SECONDS", 1)
    with serving(service, Settings(names=(NAME,))) as server, server.connect() as half:
        half.sendall(question(server)[:-5])
        soon(lambda: server.front._open == 1)
        server.front.close()
        answer = received(half)
    assert (answer.status, answer.error["code"]) == (503, "server_overloaded")
    assert "Traceback" not in caplog.text
