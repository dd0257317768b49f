"""An engine on a thread of its own, for many callers who wait elsewhere: a bounded queue, deadlines, a way to stop.

The thread turns the loop as long as there is work. Between two turns requests join (the most urgent first, then the
oldest), and those that were cancelled or came too late leave. Every request that was taken ends in exactly one
``Ending``, whatever happens; what comes before it are its chunks, in order.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Protocol

from augury.engine.engine import Engine
from augury.engine.request import Chunk, Request
from augury.errors import AuguryError, InputError, Overloaded, Stopping, TooLate
from augury.record import FinishReason

_IDLE_S = 0.5
"""Seconds between two looks at the deadlines of a queue that cannot move."""


HOPELESS = 8
"""Turns in a row that fail before the thread gives up: a device that is lost answers nobody, and a supervisor that sees
the fault can start anew."""


@dataclass(frozen=True)
class Room:
    """What may wait.

    Attributes:
        requests: that wait beside those that run.
        tokens: of the prompts of all who wait. A request that waits alone may have a longer one.
    """

    requests: int = 64
    tokens: int = 131_072


@dataclass(frozen=True)
class Ending:
    """How a request ended.

    Attributes:
        finish: ``stop`` or ``length`` of a whole answer, ``cancelled``, or ``error``.
        error: what happened where it is ``error``.
    """

    finish: FinishReason
    error: Exception | None = None


Deliver = Callable[[Chunk | Ending], None]
"""Called in the engine's thread with each chunk and at last with the ending; must not wait, and its errors are lost."""


@dataclass
class Ticket:
    """A request that was taken.

    Attributes:
        request: what runs.
        deliver: where its chunks and its ending go.
        priority: lower ones run earlier.
        deadline: when it is given up, in seconds of ``time.monotonic``, or None.
        arrived, admitted, first, last, ended: when it was taken, got its slot, brought its first and its latest token,
            and ended; in seconds of ``time.monotonic``. None where that has not been yet, or never was.
        ending: how it ended, or None.
        cancelled: whether nobody waits for it any more.
        context: variables of who submitted it, for who follows a request from thread to thread.
    """

    request: Request
    deliver: Deliver
    priority: int
    deadline: float | None
    arrived: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    ending: Ending | None = None
    cancelled: bool = False
    context: Context = field(default_factory=copy_context, repr=False)


class Watch(Protocol):
    """Who is told what happens, in the thread where it does; must not wait. Its errors are lost."""

    def refused(self, reason: str) -> None:
        """A request was not taken: ``queue`` is full, or it is ``stopping``."""
        ...

    def brought(self, ticket: Ticket, chunk: Chunk, ms: float) -> None:
        """A step brought a request something; ``ms`` after its last chunk, or after it was admitted."""
        ...

    def left(self, ticket: Ticket) -> None:
        """A request has ended."""
        ...


class _Nobody:
    def refused(self, reason: str) -> None: ...
    def brought(self, ticket: Ticket, chunk: Chunk, ms: float) -> None: ...
    def left(self, ticket: Ticket) -> None: ...


class Service:
    """Runs requests of many callers on one engine. All methods may be called from any thread.

    Args:
        engine: is used by nobody else from now on, and closed with the service.
        room: of the queue.
        watch: is told what happens.
    """

    def __init__(self, engine: Engine, room: Room | None = None, watch: Watch | None = None) -> None:
        self.engine = engine
        self.room = room or Room()
        self._watch: Watch = watch or _Nobody()
        self._changed = threading.Condition()
        self._queue: list[tuple[int, int, Ticket]] = []  # a heap; who was cancelled stays in it until its turn
        self._queued_tokens = 0
        self._taken = 0
        self._running: list[Ticket] = []
        self._stopping = False
        self._abort = False
        self._failed: BaseException | None = None
        self._failures = 0  # turns in a row
        self._began: float | None = None
        self._thread = threading.Thread(target=self._work, name="augury engine", daemon=True)
        self._thread.start()

    # ---- what callers use -------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse early what ``submit`` would refuse whatever was asked.

        Raises:
            Overloaded: the queue is full.
            Stopping: nothing is taken any more.
        """
        with self._changed:
            self._check([0])

    def submit(self, request: Request, deliver: Deliver, *, priority: int = 0, seconds: float | None = None) -> Ticket:
        """Take a request.

        Args:
            request: made by ``engine.request``.
            deliver: gets its chunks, and its ending; see ``Deliver``.
            priority: lower ones run earlier.
            seconds: after which it ends in ``TooLate``, waiting or running; None is never.

        Raises:
            Overloaded: the queue is full.
            Stopping: nothing is taken any more.
        """
        return self.submit_all([(request, deliver)], priority=priority, seconds=seconds)[0]

    def submit_all(
        self, asked: Sequence[tuple[Request, Deliver]], *, priority: int = 0, seconds: float | None = None
    ) -> list[Ticket]:
        """Take several requests, or none of them; see ``submit``.

        Raises:
            InputError: there will never be room for so many at once.
            Overloaded: there is not now.
            Stopping: nothing is taken any more.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        tickets = [Ticket(request, deliver, priority, deadline) for request, deliver in asked]
        sizes = [len(request.prompt) for request, _ in asked]
        with self._changed:
            self._check(sizes)
            for ticket, size in zip(tickets, sizes, strict=True):
                self._taken += 1
                heapq.heappush(self._queue, (priority, self._taken, ticket))
                self._queued_tokens += size
            self._changed.notify()
        return tickets

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for a request any more: it ends before the next step. Does nothing when it has ended."""
        with self._changed:
            ticket.cancelled = True
            self._changed.notify()

    @property
    def running(self) -> int:
        """Requests that have a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that have none yet."""
        return len(self._queue)

    @property
    def cache_usage(self) -> float:
        """Share of all slots' places that is taken by those who run, 0 to 1."""
        held = sum(t.request.length for t in [*self._running])
        return held / (self.engine.slots * self.engine.target.info.context)

    @property
    def stopping(self) -> bool:
        """Whether nothing is taken any more."""
        return self._stopping

    @property
    def fault(self) -> str | None:
        """Why nothing will ever be answered any more, or None."""
        return None if self._failed is None else f"the engine's thread ended: {type(self._failed).__name__}"

    @property
    def stalled(self) -> float:
        """Seconds since the turn began that is going on, 0 between turns."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def stop(self, seconds: float = 0.0) -> bool:
        """Take nothing more, give who is here so long to end, then end them with ``Stopping``; then close the engine.

        Returns:
            Whether the thread has ended, which it does after the turn that goes on.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(max(seconds, 0.0))
        with self._changed:
            self._abort = True
            self._changed.notify()
        self._thread.join(30.0)
        return not self._thread.is_alive()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # ---- the thread -------------------------------------------------------------------------------------

    def _check(self, sizes: Sequence[int]) -> None:
        """Whether there is room for requests with so many tokens each in their prompts."""
        if self._stopping or self._failed is not None:
            self._told(lambda: self._watch.refused("stopping"))
            raise Stopping("the server is stopping and takes no requests; ask another one, or again later")
        slots, room = self.engine.slots, self.room
        if self._lack(sizes, slots):
            raise InputError(
                f"{len(sizes)} answers to prompts of {sum(sizes)} tokens are asked for at once; {slots} run, and "
                f"{room.requests} with {room.tokens} tokens may wait, so there will never be room; ask for fewer"
            )
        waiting = len(self._queue)
        if lack := self._lack(sizes, max(self.engine.free - waiting, 0), waiting, self._queued_tokens):
            self._told(lambda: self._watch.refused("queue"))
            raise Overloaded(f"{lack}; ask again later")

    def _lack(self, sizes: Sequence[int], free: int, waiting: int = 0, tokens: int = 0) -> str | None:
        """What there is no room for beside so many who wait, with so many tokens, where so many find a slot."""
        wait = sizes[free:]
        tokens += sum(wait)
        if wait and waiting + len(wait) > self.room.requests:
            more = f", and {len(wait)} more would" if len(wait) > 1 else ""
            limit = "the limit" if waiting >= self.room.requests else f"below the limit of {self.room.requests}"
            return f"{waiting} requests wait, which is {limit}{more}"
        if wait and waiting + len(wait) > 1 and tokens > self.room.tokens:
            return f"{self.room.tokens} tokens of prompts may wait, and {tokens} would"
        return None

    def _work(self) -> None:
        try:
            while self._wait():
                self._sweep()
                self._admit()
                if self._running:
                    self._began = time.monotonic()
                    try:
                        self.engine.turn()
                        self._failures = 0
                    except Exception:  # who took part has ended with the error, and gets it below
                        self._failures += 1
                        if self._failures == HOPELESS:
                            raise
                    finally:
                        self._began = None
                    self._deliver()
        except BaseException as error:
            with self._changed:
                self._failed = error
            failure: Exception = AuguryError(f"the engine's thread ended: {type(error).__name__}")
            self._end_all(failure)
            raise
        self._end_all(Stopping("the server has stopped before the answer was whole; ask again"))
        self.engine.close()

    def _wait(self) -> bool:
        """Wait for work; False when there is none to come."""
        with self._changed:
            while not self._abort and not self._running:
                if self._queue and (self.engine.free > 0 or any(t.cancelled for _, _, t in self._queue)):
                    break
                if self._stopping and not self._queue:
                    return False
                self._changed.wait(_IDLE_S if self._queue else None)
                if self._queue:
                    break
            return not self._abort

    def _sweep(self) -> None:
        """End those that were cancelled or are too late."""
        now = time.monotonic()
        for ticket in [*self._running]:
            if (why := _over(ticket, now)) and ticket.request.output.finish is None:
                self._running.remove(ticket)
                self.engine.leave([ticket.request])
                self._end(ticket, why)
        with self._changed:
            over = [(entry, why) for entry in self._queue if (why := _over(entry[2], now))]
            for entry, _ in over:
                self._queue.remove(entry)
                self._queued_tokens -= len(entry[2].request.prompt)
            if over:
                heapq.heapify(self._queue)
        for (_, _, ticket), why in over:
            self._end(ticket, why)

    def _admit(self) -> None:
        """Let the most urgent in while there are slots."""
        while True:
            with self._changed:
                if not self._queue or self.engine.free <= 0:
                    return
                ticket = heapq.heappop(self._queue)[2]
                self._queued_tokens -= len(ticket.request.prompt)
                self._running.append(ticket)
            ticket.admitted = time.monotonic()
            self.engine.enter(ticket.request)

    def _deliver(self) -> None:
        """Hand out what the last turn brought."""
        now = time.monotonic()
        for ticket in [*self._running]:
            request = ticket.request
            while request.chunks and request.error is None:
                chunk = request.chunks.popleft()
                before, ticket.last = ticket.last or ticket.admitted or ticket.arrived, now
                ticket.first = ticket.first or now
                ms = 1e3 * (now - before)
                self._told(lambda t=ticket, c=chunk, ms=ms: self._watch.brought(t, c, ms))  # type: ignore[misc]
                self._told(lambda t=ticket, c=chunk: t.deliver(c))  # type: ignore[misc]
            if request.error is not None:
                self._running.remove(ticket)
                self._end(ticket, Ending("error", request.error))
            elif request.output.finish is not None:
                self._running.remove(ticket)
                self._end(ticket, Ending(request.output.finish))

    def _end(self, ticket: Ticket, ending: Ending) -> None:
        """The one place where a request ends."""
        if ticket.ending is not None:
            return
        ticket.ending, ticket.ended = ending, time.monotonic()
        record = ticket.request.record
        record.finish = record.finish or ending.finish
        self._told(lambda: self._watch.left(ticket))
        self._told(lambda: ticket.deliver(ending))

    def _end_all(self, error: Exception) -> None:
        with self._changed:
            self._stopping = True
            left = [*self._running, *(entry[2] for entry in self._queue)]
            self._running, self._queue, self._queued_tokens = [], [], 0
        for ticket in left:
            self._end(ticket, Ending("error", error))

    @staticmethod
    def _told(call: Callable[[], None]) -> None:
        """Somebody else's code, which must not end the thread: who waits for the others would wait for ever."""
        try:
            call()
        except Exception:
            return


def _over(ticket: Ticket, now: float) -> Ending | None:
    """Why a request must leave, or None."""
    if ticket.cancelled:
        return Ending("cancelled")
    if ticket.deadline is not None and now > ticket.deadline:
        where = "waited for a slot" if ticket.admitted is None else "ran"
        spent = now - ticket.arrived
        return Ending("error", TooLate(f"the request {where} when its time was over, after {spent:.1f} s; ask again"))
    return None
