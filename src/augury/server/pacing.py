"""In what portions a stream is sent, and when: what somebody on the way sees of it, who cannot read it.

How many tokens a step brought shows in the size of what is sent, and when guesses were right in its pauses; both tell
one text from another (2411.01076). So there are three modes:

- ``fast``: what a step brought, when it brought it.
- ``smooth``: all that has come, every ``TICK`` seconds: steps run into each other.
- ``private``: ``PORTION`` bytes every ``TICK`` seconds from the first moment to the last, filled up with comments, and
  so many of them that their number tells little: 32, 128, 512, ... The text comes with the delay of a tick, the end of
  the stream when its time has come. An answer in one piece waits for such a time and is filled up as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace

import anyio

from augury.engine.request import Chunk
from augury.server.answers import Answer, Form
from augury.server.faults import Fault
from augury.server.reading import aside
from augury.server.settings import Settings, StreamMode

TICK = 0.1
"""Seconds between two portions."""

PORTION = 2048
"""Bytes of one portion of a private stream: some ten frames."""

FEWEST, RUNG = 32, 4
"""Portions of the shortest private stream, and how many times more the next ones have."""

SMALLEST = 4096
"""Bytes of the smallest private answer in one piece; the next are ``RUNG`` times as large."""

COMMENT = b": keep-alive\n\n"
_LINE = 1000


class Frames:
    """The frames of one stream.

    Args:
        form: how they are written.
        interval: tokens of a frame at least, but for the last one of an answer.
        fault_of: what an error is to the client.
    """

    def __init__(self, form: Form, interval: int, fault_of: Callable[[Exception], Fault]) -> None:
        self._form, self._interval, self._fault_of = form, interval, fault_of
        self._held: dict[int, Chunk] = {}

    def begin(self) -> list[bytes]:
        """The first ones."""
        return self._form.begin()

    def piece(self, index: int, chunk: Chunk) -> list[bytes]:
        """Of what came, once there is enough of it."""
        chunk = joined(self._held.pop(index, None), chunk)
        if chunk.finish_reason is None and len(chunk.tokens) < self._interval:
            self._held[index] = chunk
            return []
        return self._form.piece(index, chunk)

    def end(self) -> list[bytes]:
        """The last ones of answers that have ended."""
        return self._form.end()

    def failed(self, error: Exception) -> list[bytes]:
        """The last ones of a stream that broke: what there was not enough of, and the error."""
        held, self._held = self._held, {}
        found = [frame for index, chunk in held.items() for frame in self._form.piece(index, chunk)]
        return found + self._form.failed(self._fault_of(error))


def joined(before: Chunk | None, chunk: Chunk) -> Chunk:
    """Two pieces of an answer as one."""
    if before is None:
        return chunk
    return replace(
        chunk,
        text=before.text + chunk.text,
        tokens=before.tokens + chunk.tokens,
        sources=before.sources + chunk.sources,
        logprobs=before.logprobs + chunk.logprobs,
    )


async def fast(answer: Answer, frames: Frames, settings: Settings) -> AsyncGenerator[bytes, None]:
    """Portions as they come. What fails before the first one is raised; later it is the last portion."""
    pause = settings.keep_alive_seconds or None
    piece = await answer.next(pause)
    found, sent = frames.begin(), time.monotonic()
    try:
        while True:
            while piece is not None:
                found += frames.piece(*piece)
                piece = answer.ready()
            if not found and pause and time.monotonic() - sent >= pause:
                found.append(COMMENT)
            if found:
                portion, found = b"".join(found), []
                yield portion
                sent = time.monotonic()
            if answer.done:
                break
            piece = await answer.next(pause)
        last = await aside(frames.end)
    except Exception as error:  # what came before it is sent before it
        last = [*found, *frames.failed(error)]
    yield b"".join(last)


async def smooth(answer: Answer, frames: Frames, settings: Settings) -> AsyncGenerator[bytes, None]:
    """One portion a tick of all that has come, and none where nothing has; see ``fast``."""
    piece = await answer.next(settings.keep_alive_seconds or None)
    found, sent, clock = frames.begin(), time.monotonic(), _Clock()
    try:
        while True:
            for index, chunk in _together(piece, answer):
                found += frames.piece(index, chunk)
            if not found and settings.keep_alive_seconds and time.monotonic() - sent >= settings.keep_alive_seconds:
                found.append(COMMENT)
            if found:
                portion, found = b"".join(found), []
                yield portion
                sent = time.monotonic()
            if answer.done:
                break
            await clock.tick()
            piece = answer.ready()
        last = await aside(frames.end)
    except Exception as error:
        last = [*found, *frames.failed(error)]
    yield b"".join(last)


async def private(answer: Answer, frames: Frames, settings: Settings) -> AsyncGenerator[bytes, None]:
    """Portions of one size at one pace, as many as ``rung`` says."""
    clock, sent = _Clock(), 0
    waiting = bytearray(b"".join(frames.begin()))
    while True:
        try:
            for index, chunk in _together(answer.ready(), answer):
                waiting += b"".join(frames.piece(index, chunk))
            last = await aside(frames.end) if answer.done else None
        except Exception as error:
            last = frames.failed(error)
        if last is not None:
            break
        portion, waiting = bytes(waiting[:PORTION]), waiting[PORTION:]
        yield portion + padding(PORTION - len(portion))
        sent += 1
        await clock.tick()
    waiting += b"".join(last[:-1])
    size = PORTION * (rung(sent + -(-(len(waiting) + len(last[-1])) // PORTION)) - sent)
    whole = bytes(waiting) + padding(size - len(waiting) - len(last[-1])) + last[-1]
    for at in range(0, size, PORTION):
        yield whole[at : at + PORTION]
        if at + PORTION < size:
            await clock.tick()


MODES: dict[StreamMode, Callable[[Answer, Frames, Settings], AsyncGenerator[bytes, None]]] = {
    "fast": fast,
    "smooth": smooth,
    "private": private,
}


def rung(count: int, fewest: int = FEWEST) -> int:
    """The number of portions that a stream of so many is filled up to."""
    most = fewest
    while most < count:
        most *= RUNG
    return most


def padding(size: int) -> bytes:
    """So many bytes that no reader of events sees: comments, or an empty line."""
    if size < 2:
        return b"\n" * size
    short = size % _LINE
    lines = [_LINE] * (size // _LINE)
    if short == 1:  # no comment has one byte
        lines[-1] += 1
    elif short:
        lines.append(short)
    return b"".join(b":" + b" " * (line - 2) + b"\n" for line in lines)


async def veiled(body: bytes, began: float) -> bytes:
    """An answer in one piece: filled up with spaces, which end JSON as well as nothing, and when its time has come.

    Args:
        body: of the answer.
        began: when the request came, in seconds of ``time.monotonic``.
    """
    portions = rung(math.ceil((time.monotonic() - began) / TICK))
    await anyio.sleep(began + portions * TICK - time.monotonic())
    return body + b" " * (rung(len(body), SMALLEST) - len(body))


def _together(piece: tuple[int, Chunk] | None, answer: Answer) -> Iterator[tuple[int, Chunk]]:
    """All that has come, a piece for each answer; what failed behind it is raised behind it."""
    came: dict[int, Chunk] = {}
    error: Exception | None = None
    try:
        while piece is not None:
            index, chunk = piece
            came[index] = joined(came.get(index), chunk)
            piece = answer.ready()
    except Exception as raised:
        error = raised
    yield from came.items()
    if error is not None:
        raise error


class _Clock:
    """Ticks at one pace whatever is done between them; one that is missed comes at once."""

    def __init__(self) -> None:
        self._next = time.monotonic()

    async def tick(self) -> None:
        self._next = max(self._next + TICK, time.monotonic() - TICK)
        await anyio.sleep(max(0.0, self._next - time.monotonic()))
