"""A server that runs, and how tests ask it, byte by byte or with OpenAI's own client."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import openai

from augury.engine.engine import Engine
from augury.engine.service import Service
from augury.server.app import create_app
from augury.server.running import Front, listen
from augury.server.settings import Settings

NAME = "smollm2-135m"


@dataclass
class Answered:
    """What came over a socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object, which has its four fields and no others."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert set(self.json) == {"error"}
        assert "\n" not in error["message"]
        assert len(error["message"]) <= 400
        return error

    @property
    def events(self):
        """The data of the frames of a stream."""
        frames = [part for part in self.body.decode().split("\n\n") if part and not part.startswith(":")]
        data = [line[6:] for part in frames for line in part.split("\n") if line.startswith("data: ")]
        return [one if one == "[DONE]" else json.loads(one) for one in data]


def unchunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + rest[:length], rest[length + 2 :]
        if not length:
            break
    return body


def received(connection: socket.socket) -> Answered:
    """One answer, until the other side closes."""
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = unchunked(body) if headers.get("transfer-encoding") == "chunked" else body
    return Answered(int(first.split(" ")[1]), headers, body)


@dataclass
class Served:
    """A server that runs."""

    service: Service
    settings: Settings
    front: Front

    @property
    def port(self) -> int:
        return self.front.port

    @property
    def connections(self) -> int:
        """That are open."""
        return len(self.front._server.server_state.connections)

    @property
    def engine(self) -> Engine:
        return self.service.engine

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str = "none", **options) -> openai.OpenAI:
        """OpenAI's own client; to be used in a with block."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.settimeout(30)
        return connection

    def head(self, method: str, path: str, *headers: str) -> bytes:
        host = [] if any(h.lower().startswith("host:") for h in headers) else [f"Host: 127.0.0.1:{self.port}"]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *host, *headers, "", ""]).encode()

    def ask(self, method: str, path: str, body: object = None, *headers: str) -> Answered:
        """One request over a socket of its own, as it is spelt here."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        if body is not None:
            headers = (*headers, f"Content-Length: {len(data)}")
            if not any(h.lower().startswith("content-type:") for h in headers):
                headers = (*headers, "Content-Type: application/json")
        with self.connect() as connection:
            connection.sendall(self.head(method, path, "Connection: close", *headers) + data)
            return received(connection)

    def chat(self, body: dict, *headers: str) -> Answered:
        """One chat request, of little where nothing else is said."""
        full = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4, "temperature": 0, **body}
        return self.ask("POST", "/v1/chat/completions", full, *headers)

    def at_rest(self, seconds: float = 10.0) -> bool:
        """Whether nothing runs or waits, soon."""
        end = time.monotonic() + seconds
        while self.service.running or self.service.waiting:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True


@contextmanager
def serving(service: Service, settings: Settings, metrics=None, send_buffer: int = 0, tap=None) -> Iterator[Served]:
    """A server before a service, with these settings."""
    listening = listen("127.0.0.1", 0)
    if send_buffer:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    front = Front(listening)
    front.open(create_app(service, settings, metrics, tap))
    try:
        yield Served(service, settings, front)
    finally:
        front.close()
