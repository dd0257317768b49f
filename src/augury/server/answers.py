"""The answers to one request as they come from the engine's thread, and how a route writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from augury.engine.request import Chunk, TokenLogprob
from augury.engine.service import Ending, Service
from augury.errors import Stopping
from augury.record import FinishReason
from augury.server.asking import Asked
from augury.server.faults import Fault

Made = TypeVar("Made")


class Answer:
    """All answers to one HTTP request, as they come. Used by one event loop.

    Args:
        service: that answers.
        asked: what.
        seconds: after which it is given up.

    Raises:
        Unavailable: the service does not take it.
        InputError: it never will.
    """

    def __init__(self, service: Service, asked: Asked, seconds: float | None) -> None:
        self._service, self._loop = service, asyncio.get_running_loop()
        self._came: asyncio.Queue[tuple[int, Chunk | Ending]] = asyncio.Queue()
        self._open = set(range(len(asked.requests)))
        self._records = [request.record for request in asked.requests]
        all_of_it = [(request, partial(self._deliver, index)) for index, request in enumerate(asked.requests)]
        self._tickets = service.submit_all(all_of_it, priority=asked.priority, seconds=seconds)

    def _deliver(self, index: int, item: Chunk | Ending) -> None:
        self._loop.call_soon_threadsafe(self._came.put_nowait, (index, item))

    @property
    def done(self) -> bool:
        """Whether all have ended."""
        return not self._open

    def cancel(self) -> None:
        """Nobody reads any more. Does nothing to what has ended."""
        for ticket in self._tickets:
            self._service.cancel(ticket)

    async def next(self, seconds: float | None = None) -> tuple[int, Chunk] | None:
        """What comes next, of which answer; the last piece of each has a finish reason. None where nothing comes in
        so many seconds.

        Raises:
            AuguryError: one failed; the others were cancelled.
        """
        with anyio.move_on_after(seconds):
            while True:
                if (piece := self._piece(*await self._came.get())) is not None:
                    return piece
        return None

    def ready(self) -> tuple[int, Chunk] | None:
        """The next piece, if it has come already; see ``next``."""
        while not self._came.empty() and self._open:
            if (piece := self._piece(*self._came.get_nowait())) is not None:
                return piece
        return None

    def _piece(self, index: int, item: Chunk | Ending) -> tuple[int, Chunk] | None:
        if index not in self._open:
            return None
        if isinstance(item, Ending):
            if item.error is not None or item.finish not in ("stop", "length"):
                self.cancel()
                raise item.error or Stopping("the answer was cancelled before it was whole; ask again")
            item = Chunk("", (), (), (), item.finish, None, self._records[index])
        if item.finish_reason is not None:
            self._open.discard(index)
        return index, item

    async def pieces(self) -> AsyncIterator[tuple[int, Chunk]]:
        """All that comes."""
        while not self.done:
            piece = await self.next()
            assert piece is not None
            yield piece


@dataclass(frozen=True)
class Whole:
    """One answer that has ended."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishReason
    stop: str | int | None


async def collected(answer: Answer, count: int) -> list[Whole]:
    """All answers, when they have ended."""
    chunks: list[list[Chunk]] = [[] for _ in range(count)]
    async for index, chunk in answer.pieces():
        chunks[index].append(chunk)
    return [whole(own) for own in chunks]


def whole(chunks: Sequence[Chunk]) -> Whole:
    """The answer of its pieces."""
    finish = chunks[-1].finish_reason
    assert finish is not None
    return Whole(
        "".join(chunk.text for chunk in chunks),
        tuple(token for chunk in chunks for token in chunk.tokens),
        tuple(entry for chunk in chunks for entry in chunk.logprobs),
        finish,
        chunks[-1].record.stop,
    )


class Form(Protocol):
    """How a route writes its answers."""

    asked: Asked

    def whole(self, answers: Sequence[Whole]) -> dict[str, Any]:
        """The body of an answer in one piece."""
        ...

    def begin(self) -> list[bytes]:
        """The first frames of a stream."""
        ...

    def piece(self, index: int, chunk: Chunk) -> list[bytes]:
        """Frames of what came."""
        ...

    def end(self) -> list[bytes]:
        """The last frames of a stream whose answers have ended."""
        ...

    def failed(self, fault: Fault) -> list[bytes]:
        """The last frames of one that broke."""
        ...


async def while_connected(receive: Receive, work: Callable[[], Awaitable[Made]]) -> Made:
    """Do something for a client as long as it is there.

    Raises:
        ClientDisconnect: it went before.
        Exception: what the work raised.
    """
    results: list[Made] = []
    errors: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def listen() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(listen)
        try:
            results.append(await work())
        except Exception as error:
            errors.append(error)
        group.cancel_scope.cancel()
    if errors:
        raise errors[0]
    if not results:
        raise ClientDisconnect
    return results[0]
