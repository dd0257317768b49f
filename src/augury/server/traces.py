"""``/trace/*``: what was traced, page by page, live, folded and drawn; of a running server or of a file alike.

Every answer is bounded, and a reader takes what he asks for himself: one who is slow holds nobody, and is told how much
he has missed.
"""

from __future__ import annotations

import json
import threading
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar

import anyio
import anyio.to_thread
from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from augury.record import PHASES
from augury.server.answers import while_connected
from augury.server.faults import Fault, dumped
from augury.server.guard import HEAD
from augury.server.pages import HEADERS
from augury.trace.events import Event, accepted
from augury.trace.log import MAX_ID
from augury.trace.reliability import Reliability
from augury.trace.ring import Part
from augury.trace.timeline import document

MOST_EVENTS = 1000
"""Events, or steps of a request, of one answer."""

MOST_REQUESTS = 500
"""Requests of one listing."""

MOST_DRAWN = 20_000
"""Events of one timeline."""

MOST_DRAWN_BYTES = 32 << 20
"""Of these events."""

MOST_BYTES = 4 << 20
"""Of the events of one answer; the first one is in it whatever its size."""

MOST_READERS = 16
"""That follow live at a time."""

_LIVE_EVENTS = 200  # of one portion of a live stream
_POLL_S = 0.1
_FOLDED, _PAUSE_S, _PATIENCE_S = 25, 0.001, 2.0  # events looked at in a row, the pause behind them, and for how long
_UNCACHED = {**HEADERS, "Cache-Control": "no-store"}

After = Annotated[int, Query(ge=0, le=MAX_ID, description="The number of the last event that is known.")]
Limit = Annotated[int, Query(ge=1, le=MOST_EVENTS)]


Made = TypeVar("Made")


class Store(Protocol):
    """Events with running numbers, the first is 1; of a ring the oldest are gone. Safe in any thread."""

    @property
    def header(self) -> Event:
        """The trace's first line."""
        ...

    @property
    def first(self) -> int:
        """The number of the oldest event that is held; one above ``last`` when none is."""
        ...

    @property
    def last(self) -> int:
        """The number of the newest one; 0 without any."""
        ...

    @property
    def grows(self) -> bool:
        """Whether more may come."""
        ...

    def since(self, after: int, limit: int) -> Part:
        """See ``Ring.since``."""
        ...


@dataclass
class Summary:
    """A request as a list shows it.

    Attributes:
        begin, end: the numbers of these events, 0 where one is lost or has not been.
        last: that of its newest event.
        told: its figures so far; ``steps`` counts all, ``lost`` those of them that are in no other figure.
        numbers: of the events of the steps that are known.
        steps: the numbers of these in the request.
    """

    begin: int = 0
    end: int = 0
    last: int = 0
    told: dict[str, Any] = field(default_factory=dict)
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    steps: array[int] = field(default_factory=lambda: array("Q"))

    def __post_init__(self) -> None:
        self.last = self.last or self.begin

    def step(self, number: int, event: Event) -> None:
        """Add a step, one behind those that are known."""
        told, ms = self.told, sum(event[f"{phase}_ms"] for phase in PHASES)
        if event["n"] < told["steps"]:
            raise ValueError("a step comes again")
        told["tokens"] += len(event["emitted"])
        told["accepted"] += accepted(event)
        told["drafted"] += len(event["tokens"])
        told["ms"] += ms
        told["until"] = event["at"] + ms
        if event["saved_ms"] is not None:
            told["saved_ms"] = (told["saved_ms"] or 0.0) + event["saved_ms"]
        self.last = number
        self.numbers.append(number)
        self.steps.append(event["n"])
        self.count(event["n"] + 1)

    def count(self, steps: int) -> None:
        """There are so many steps, or more."""
        self.told["steps"] = max(self.told["steps"], steps)
        self.told["lost"] = self.told["steps"] - len(self.steps)


def _begun(event: Event) -> dict[str, Any]:
    """Figures of a request of which nothing else is known than its beginning, or that there is a step of it."""
    known = {key: event.get(key) for key in ("label", "rule", "prompt_tokens", "cached_tokens", "prefill_ms")}
    ended = {"until": event["at"], "finish": None, "error": None}
    counted = {"tokens": 0, "steps": 0, "lost": 0, "accepted": 0, "drafted": 0, "ms": 0.0, "saved_ms": None}
    return {"id": event["id"], "at": event["at"], **known, **ended, **counted}


class Reading:
    """What is known of a store when each of its events was looked at once: its requests, and its fold.

    Args:
        store: of events.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._seen = 0
        self._requests: dict[int, Summary] = {}
        self._reliability = Reliability(store.header.get("drafters", ()))
        self._missed = 0
        self._odd = 0

    def catch_up(self) -> int:
        """Look at what has come since the last time, for some seconds at most; gives how many events are left."""
        with self._lock:
            end = time.monotonic() + _PATIENCE_S
            while time.monotonic() < end:
                part = self.store.since(self._seen, _FOLDED)
                if part.next == self._seen:
                    break
                self._missed += part.lost
                number = part.next - len(part.lines)
                for line in part.lines:
                    number += 1
                    try:
                        self._take(number, json.loads(line))
                    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
                        self._odd += 1
                self._seen = part.next
                if len(part.lines) == _FOLDED:
                    time.sleep(_PAUSE_S)  # while lines are looked at, the engine's thread waits
            self._forget()
            return self.store.last - self._seen

    def take(self, number: int, event: Event) -> None:
        """Look at the next event, where somebody has read it already."""
        with self._lock:
            self._take(number, event)
            self._seen = number

    def _take(self, number: int, event: Event) -> None:
        self._reliability.add(event)
        kind = event["kind"]
        if kind == "begin":
            self._requests[event["id"]] = Summary(number, told=_begun(event))
        elif kind == "step":
            found = self._requests.get(event["id"])
            if found is None:  # its beginning is lost
                found = self._requests[event["id"]] = Summary(told=_begun(event))
            found.step(number, event)
        elif kind == "end" and (found := self._requests.get(event["id"])) is not None:
            found.end = found.last = number
            found.told |= {"finish": event["finish"], "error": event["error"], "until": event["at"]}
            found.count(event["steps"])

    def _forget(self) -> None:
        """Drop requests of which nothing is held any more."""
        first = self.store.first
        for gone in [id for id, one in self._requests.items() if one.last < first]:
            del self._requests[gone]

    def requests(self, limit: int) -> dict[str, Any]:
        """The latest requests, newest first."""
        behind = self.catch_up()
        with self._lock:
            latest = [_shown(one.told) for one in [*self._requests.values()][: -limit - 1 : -1]]
            return {"requests": latest, "held": len(self._requests), "behind": behind, "odd": self._odd}

    def _found(self, id: int) -> Summary:
        """A request.

        Raises:
            Fault: it is not held, or not seen yet.
        """
        behind = self.catch_up()
        found = self._requests.get(id)
        if found is not None:
            return found
        if behind:
            message = f"{behind} events are still to be looked at; ask again in a moment"
            raise Fault(503, message, type="overloaded_error", code="server_overloaded", headers={"Retry-After": "1"})
        raise Fault(404, f"the trace holds no request {id}; /trace/requests lists those it holds", code="not_found")

    def request(self, id: int, start: int, end: int | None) -> bytes:
        """One of them: its beginning, its steps from one number to another, and its end.

        Raises:
            Fault: it is not held, or not seen yet.
        """
        found = self._found(id)
        with self._lock:
            count = found.told["steps"]
            start = min(start, count)
            end = max(count if end is None else min(end, count), start)
            first, behind = bisect_left(found.steps, start), bisect_left(found.steps, end)
            if behind - first > MOST_EVENTS:
                behind = first + MOST_EVENTS
                end = found.steps[behind]
            wanted = [*zip(found.steps[first:behind], found.numbers[first:behind], strict=True)]
            places = (found.begin, found.end)
        begin, last = (self._line(number) for number in places)
        steps: list[bytes] = []
        size = 0
        for n, number in wanted:
            line = self._line(number)
            size += len(line or b"")
            if steps and size > MOST_BYTES:
                end = n
                break
            steps += () if line is None else (line,)
        lost = end - start - len(steps)
        head = f'"from":{start},"to":{end},"of":{count},"lost":{lost}'.encode()
        parts = (begin or b"null", b",".join(steps), last or b"null", head)
        return b'{"begin":%b,"steps":[%b],"end":%b,%b}' % parts

    def _line(self, number: int) -> bytes | None:
        """One event; None where it is gone."""
        part = self.store.since(number - 1, 1) if number else Part((), 0, 0)
        return part.lines[0] if part.lines and not part.lost else None

    def timeline(self, id: int | None, limit: int) -> bytes:
        """A request, or the newest events, as a Chrome trace.

        Raises:
            Fault: the request is not held, or not seen yet.
        """
        if id is None:
            numbers: Sequence[int] = range(max(self.store.last - limit, 0) + 1, self.store.last + 1)
        else:
            found = self._found(id)
            with self._lock:
                numbers = [found.begin, *found.numbers[-limit:], found.end]
        lines: deque[bytes] = deque()
        size = 0
        for number in reversed(numbers):
            line = self._line(number)
            size += len(line or b"")
            if size > MOST_DRAWN_BYTES:
                break
            if line is not None:
                lines.appendleft(line)
        return "".join(document(self.store.header, map(json.loads, lines), id)).encode()

    def figures(self) -> dict[str, Any]:
        """The fold of all that was seen."""
        behind = self.catch_up()
        told = {"events": self._seen, "behind": behind, "lost": self._missed, "odd": self._odd}
        with self._lock:
            return {**self._reliability.figures(), **told}


def _shown(told: dict[str, Any]) -> dict[str, Any]:
    """A summary with the figures that follow from it."""
    tokens, steps, ms = told["tokens"], told["steps"] - told["lost"], told["ms"]
    return {
        **told,
        "tokens_per_second": 1e3 * tokens / ms if ms else None,
        "acceptance_length": 1.0 + told["accepted"] / steps if steps else None,
    }


class Apart:
    """Does what takes its time in a worker's thread, one at a time: the others are for those who ask for answers."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(1)

    async def __call__(self, work: Callable[[], Made]) -> Made:
        """Do it."""
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


def portion(store: Store, after: int, limit: int) -> Part:
    """Events behind a number, within the bytes of one answer."""
    part = store.since(after, limit)
    size = 0
    for count, line in enumerate(part.lines):
        size += len(line)
        if count and size > MOST_BYTES:
            return Part(part.lines[:count], part.next - len(part.lines) + count, part.lost)
    return part


def held(store: Store) -> Iterator[bytes]:
    """All lines of a trace that are held now, the header first, some at a time."""
    yield dumped(store.header) + b"\n"
    after, last = store.first - 1, store.last
    while after < last:
        part = portion(store, after, min(MOST_EVENTS, last - after))
        if not part.lines:
            return
        after = part.next
        yield b"\n".join(part.lines) + b"\n"


class Live(Response):
    """Events as they come, until the reader goes or the server stops.

    Args:
        store: of events.
        after: the number of the last one that the reader knows.
        seconds: between two comments where nothing comes; 0 sends none.
        stopping: whether to end.
        left: called when it has ended.
    """

    media_type = "text/event-stream"

    def __init__(
        self, store: Store, after: int, seconds: float, stopping: Callable[[], bool], left: Callable[[], None]
    ) -> None:
        super().__init__(headers={**_UNCACHED, "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._store, self._after, self._seconds = store, after, seconds
        self._stopping, self._left = stopping, left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await while_connected(receive, lambda: self._send(send))
        finally:
            self._left()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._frames()) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        """The header, then portions. Numbers of a server before this one begin anew."""
        after = self._after if self._after <= self._store.last else 0
        yield b"event: header\ndata: " + dumped(self._store.header) + b"\n\n"
        sent = time.monotonic()
        while True:
            stopping, last = self._stopping(), self._store.last  # what was put before the stop is sent behind it
            part = portion(self._store, after, _LIVE_EVENTS)
            found = [b'event: lost\ndata: {"lost":%d}\n\n' % part.lost] if part.lost else []
            first = part.next - len(part.lines) + 1
            found += [b"id: %d\ndata: %b\n\n" % (first + i, line) for i, line in enumerate(part.lines)]
            after = part.next
            if not found and self._seconds and time.monotonic() - sent >= self._seconds:
                found.append(b": keep-alive\n\n")
            if found:
                yield b"".join(found)
                sent = time.monotonic()
            if stopping and after >= last:
                return
            if not stopping and len(part.lines) < _LIVE_EVENTS:
                await anyio.sleep(_POLL_S)


class Lines(Response):
    """A body that is read some at a time in a worker's thread.

    Args:
        portions: of it.
        type: its media type.
        name: under which a browser keeps it.
        apart: reads.
    """

    def __init__(self, portions: Iterator[bytes], type: str, name: str, apart: Apart) -> None:
        disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
        super().__init__(headers={**_UNCACHED, **disposition, "Content-Type": type})
        del self.headers["content-length"]
        self._portions, self._apart = portions, apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await while_connected(receive, lambda: self._send(send, bool(scope.get(HEAD))))

    async def _send(self, send: Send, bare: bool) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while not bare and (body := await self._apart(lambda: next(self._portions, None))) is not None:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _json(body: bytes) -> Response:
    return Response(body, headers=_UNCACHED, media_type="application/json")


def router(
    reading: Reading,
    *,
    load: Callable[[], dict[str, Any]] | None = None,
    stopping: Callable[[], bool] = lambda: False,
    keep_alive_seconds: float = 15.0,
) -> APIRouter:
    """The routes.

    Args:
        reading: of the store that is shown.
        load: what ``/trace/load`` shows; without, there is no such route.
        stopping: whether live streams are to end.
        keep_alive_seconds: between two comments of a live stream that brings nothing; 0 sends none.
    """
    routes, store = APIRouter(prefix="/trace"), reading.store
    apart, readers, drawing = Apart(), 0, threading.Lock()

    @routes.get("/header")
    async def header() -> Response:
        """What is traced, and the numbers of the events that are held."""
        return _json(dumped({**store.header, "first": store.first, "last": store.last, "live": store.grows}))

    @routes.get("/events")
    async def events(after: After = 0, limit: Limit = 500) -> Response:
        """Events behind a number."""
        part = await apart(lambda: portion(store, after, limit))
        more = b'],"next":%d,"lost":%d}' % (part.next, part.lost)
        return _json(b'{"events":[' + b",".join(part.lines) + more)

    @routes.get("/live", response_class=Response)
    async def live(request: Request, after: After = 0) -> Response:
        """Events as they come; ``Last-Event-ID`` counts before ``after``."""
        nonlocal readers
        if not store.grows:
            return Response(status_code=204)  # which tells a browser not to come again
        if readers >= MOST_READERS:
            message = f"{readers} readers follow the trace, which is the limit; ask /trace/events, or again later"
            raise Fault(503, message, type="overloaded_error", code="server_overloaded", headers={"Retry-After": "5"})
        known = request.headers.get("last-event-id", "")
        if known.isascii() and known.isdigit() and len(known) < 16:
            after = int(known)
        if request.scope.get(HEAD):
            return Response(headers=_UNCACHED, media_type="text/event-stream")

        def left() -> None:
            nonlocal readers
            readers -= 1

        readers += 1
        return Live(store, after, keep_alive_seconds, stopping, left)

    @routes.get("/requests")
    async def requests(limit: Annotated[int, Query(ge=1, le=MOST_REQUESTS)] = 50) -> Response:
        """The latest requests, newest first."""
        return _json(await apart(lambda: dumped(reading.requests(limit))))

    @routes.get("/requests/{id}")
    async def one(
        id: Annotated[int, Path(ge=0, le=MAX_ID)],
        start: Annotated[int, Query(alias="from", ge=0, le=MAX_ID)] = 0,
        end: Annotated[int | None, Query(alias="to", ge=0, le=MAX_ID)] = None,
    ) -> Response:
        """One request, its steps from a number up to, and without, another; at most 1000, ``to`` says how far."""
        return _json(await apart(lambda: reading.request(id, start, end)))

    @routes.get("/trace.jsonl", response_class=Response)
    async def whole() -> Response:
        """All that is held, as a trace file."""
        return Lines(held(store), "application/x-ndjson", "trace.jsonl", apart)

    @routes.get("/reliability")
    async def reliability() -> Response:
        """How far drafters are to be relied on."""
        return _json(await apart(lambda: dumped(reading.figures())))

    @routes.get("/timeline.json", response_class=Response)
    async def drawn_out(
        id: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_DRAWN)] = 10_000,
    ) -> Response:
        """The newest events, or one request, as a Chrome trace, which ui.perfetto.dev opens."""
        if not drawing.acquire(blocking=False):
            message = "another timeline is being made; ask again in a moment"
            raise Fault(503, message, type="overloaded_error", code="server_overloaded", headers={"Retry-After": "2"})
        try:
            body = await apart(lambda: reading.timeline(id, limit))
        finally:
            drawing.release()
        disposition = {"Content-Disposition": 'attachment; filename="timeline.json"'}
        return Response(body, headers={**_UNCACHED, **disposition, "Content-Type": "application/json"})

    if load is not None:

        @routes.get("/load")
        async def loaded() -> Response:
            """How busy the server is."""
            return _json(dumped(load()))

    return routes


def nowhere(why: str) -> APIRouter:
    """The routes where nothing is traced, or nobody may see it: they say why."""
    routes = APIRouter(include_in_schema=False)

    async def off() -> Response:
        raise Fault(404, f"this server shows no trace: {why}", code="trace_off")

    routes.add_api_route("/trace", off)
    routes.add_api_route("/trace/{rest:path}", off)
    return routes
