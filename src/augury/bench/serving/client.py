"""One streamed chat completion as a client sees it: text, portions and times."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from augury.errors import AuguryError, MissingPackage

if TYPE_CHECKING:
    import httpx2

PATIENCE_S = 300.0
"""Seconds without a byte after which a server is given up."""


@dataclass
class Heard:
    """What came back for one request.

    Attributes:
        status: of HTTP, 0 where no answer came.
        texts: of the answers, by their index.
        finish: its finish reason, or None.
        usage: of its last frame, or None.
        error: the server's error object, or None.
        terminals: how often the stream said that it had ended (``[DONE]``).
        broken: whether the connection ended before that.
        portions: (seconds since the request was sent, bytes) of everything that was received.
        first_s, last_s, wall_s: seconds until the first and the last text, and until the end.
    """

    status: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    terminals: int = 0
    broken: bool = False
    portions: list[tuple[float, int]] = field(default_factory=list)
    first_s: float | None = None
    last_s: float | None = None
    wall_s: float = 0.0

    @property
    def text(self) -> str:
        """Of all answers, one behind the other."""
        return "".join(self.texts[index] for index in sorted(self.texts))

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return int((self.usage or {}).get("completion_tokens", 0))


@asynccontextmanager
async def connected(url: str, key: str | None, connections: int) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server.

    Raises:
        MissingPackage: httpx2 is not installed.
    """
    try:
        import httpx2
    except ImportError:
        raise MissingPackage("measuring a server", "httpx2", "pip install httpx2") from None
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    limits = httpx2.Limits(max_connections=connections)
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_S, limits=limits) as client:
        yield client


def question(text: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """The body of a streamed chat completion."""
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


async def ask(client: httpx2.AsyncClient, body: Mapping[str, Any], leave_after: int | None = None) -> Heard:
    """One answer; ``leave_after`` so many portions the connection is closed."""
    import httpx2

    heard, held = Heard(), b""
    begin = time.perf_counter()
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            heard.status = response.status_code
            async for portion in response.aiter_raw():
                now = time.perf_counter() - begin
                heard.portions.append((now, len(portion)))
                if leave_after is not None and len(heard.portions) >= leave_after:
                    heard.wall_s = now
                    return heard
                held += portion
                if heard.status == 200 and body.get("stream"):
                    *whole, held = held.split(b"\n\n")
                    for event in whole:
                        _read(heard, event, now)
    except httpx2.HTTPError:
        heard.broken = True
    if heard.status and not (heard.status == 200 and body.get("stream")):
        _document(heard, held)
    heard.wall_s = time.perf_counter() - begin
    return heard


def _read(heard: Heard, event: bytes, now: float) -> None:
    for line in event.split(b"\n"):
        if not line.startswith(b"data: "):
            continue
        if line == b"data: [DONE]":
            heard.terminals += 1
            continue
        value = json.loads(line[6:])
        heard.error = value.get("error") or heard.error
        heard.usage = value.get("usage") or heard.usage
        for choice in value.get("choices") or ():
            heard.finish = choice.get("finish_reason") or heard.finish
            if said := (choice.get("delta") or {}).get("content"):
                heard.first_s = now if heard.first_s is None else heard.first_s
                heard.last_s = now
                heard.texts[choice["index"]] = heard.texts.get(choice["index"], "") + said


def _document(heard: Heard, body: bytes) -> None:
    try:
        value = json.loads(body)
    except ValueError:
        heard.broken = True
        return
    heard.error, heard.usage = value.get("error"), value.get("usage")
    for choice in value.get("choices") or ():
        heard.finish = choice.get("finish_reason")
        heard.texts[choice["index"]] = (choice.get("message") or {}).get("content") or ""


def checked(heard: Heard) -> Heard:
    """A whole answer.

    Raises:
        AuguryError: it is none.
    """
    if heard.error is not None:
        raise AuguryError(f"the server refused ({heard.status}): {heard.error.get('message')}")
    if heard.broken or heard.terminals != 1 or heard.finish is None:
        raise AuguryError("a stream ended without its end")
    return heard
