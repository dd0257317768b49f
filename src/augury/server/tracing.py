"""What a running server keeps of its steps: every event in a ring, for the page and whoever may read ``/trace``.

The tap stands in the engine's thread and does there what cannot wait: it makes an event of a record and puts its line
into the ring. All else (files, folds, readers, however slow) goes by the ring's numbers in threads of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from augury.engine.engine import Engine
from augury.engine.request import Chunk, Request
from augury.engine.service import Ending, Service, Ticket
from augury.errors import AuguryError
from augury.record import StepRecord
from augury.trace import events, told
from augury.trace.events import Event
from augury.trace.log import TraceWriter
from augury.trace.ring import Part, Ring

WINDOW_S = 5.0
"""Seconds whose steps are the speed of a moment."""

LOAD_S = 0.25
"""Seconds between two events of the load at least."""

_WRITTEN = 500  # events that are written in a row
_MOST_RECENT = 1 << 14
"""Steps of the window that are kept."""

_LOG = logging.getLogger("augury.server")


class Teller:
    """Makes events of requests, all on one clock.

    Args:
        engine: that answers.
        source: who traces, as in ``serve``.
        name: of the model; the target's own where nothing is said.
    """

    def __init__(self, engine: Engine, source: str = "serve", name: str = "") -> None:
        zero, tokenizer, info = time.perf_counter(), engine.tokenizer, engine.target.info
        self._tellers = told.Teller(zero), told.Teller(zero, None if tokenizer is None else tokenizer.token_bytes)
        self._header = events.header(
            model=name or info.name,
            runner=info.runner,
            drafters=[drafter for drafter, _ in engine.parts.drafters],
            source=source,
            text=False,
            zero=zero,
        )

    def header(self, text: bool) -> Event:
        """The first line of a trace, with or without text."""
        return {**self._header, "text": text}

    @property
    def now(self) -> float:
        """Milliseconds on the clock of all events."""
        return self._tellers[False].now

    def begin(self, request: Request, text: bool) -> Event:
        """See ``told.Teller``; with text the prompt is in it."""
        sampling = request.sampler.sampling
        if sampling.seed is None and sampling.temperature:
            sampling = replace(sampling, seed=request.accept_noise.seed)
        label = "drafted" if request.switches.drafters else "plain"
        return self._tellers[text].begin(
            request.number, request.record, request.prompt, label=label, rule=request.rule, sampling=sampling
        )

    def step(self, request: Request, number: int, step: StepRecord, text: bool) -> Event:
        """See ``told.Teller``."""
        return self._tellers[text].step(request.number, number, step)

    def end(self, request: Request, text: bool, error: Exception | None = None) -> Event:
        """See ``told.Teller``."""
        included = request.output.stops.include
        return self._tellers[text].end(request.number, request.record, error, included=included)


class Tap:
    """Watches a service, and puts what happens into a ring. It is told in the engine's thread; the rest is safe in any.

    Args:
        teller: makes the events.
        ring: where they go.
        text: whether prompts, and what tokens spell, are in them.
        unwritten: told how many events are missing because they cannot be made.
    """

    def __init__(
        self, teller: Teller, ring: Ring, text: bool = False, unwritten: Callable[[int], None] = lambda _: None
    ) -> None:
        self.teller, self._ring, self._text, self._unwritten = teller, ring, text, unwritten
        self._told: dict[int, int] = {}  # requests that have begun: their steps so far
        self._warned = False
        self.recent = Recent()

    # ---- of the engine's thread -------------------------------------------------------------------------

    def refused(self, reason: str) -> None:
        """See ``Watch``."""

    def brought(self, ticket: Ticket, chunk: Chunk, ms: float) -> None:
        """See ``Watch``."""
        if chunk.step is None:
            return
        request = ticket.request
        number = self._told.get(request.number, 0)
        self._told[request.number] = number + 1
        self.recent.add(chunk.step)
        if not number:
            self._put(self.teller.begin, request, self._text)
        self._put(self.teller.step, request, number, chunk.step, self._text)

    def left(self, ticket: Ticket) -> None:
        """See ``Watch``."""
        request, ending = ticket.request, ticket.ending
        if self._told.pop(request.number, None) is None:
            self._put(self.teller.begin, request, self._text)
        self._put(self._end, request, ending)

    def _end(self, request: Request, ending: Ending | None) -> Event:
        end = self.teller.end(request, self._text, None if ending is None else ending.error)
        # Who leaves the engine too late is cancelled there, and has failed here.
        return end if ending is None else {**end, "finish": ending.finish}

    def _put(self, make: Callable[..., Event], *of: Any) -> None:
        """Put an event; one that cannot be made is missing, and counted."""
        try:
            self._ring.put(make(*of))
        except Exception as error:
            self._unwritten(1)
            if not self._warned:
                self._warned = True
                _LOG.warning("an event cannot be made and is missing in the trace: %s", type(error).__name__)

    # ---- for readers ------------------------------------------------------------------------------------

    @property
    def header(self) -> Event:
        """See ``Store``."""
        return self.teller.header(self._text)

    @property
    def first(self) -> int:
        """See ``Store``."""
        return self._ring.first

    @property
    def last(self) -> int:
        """See ``Store``."""
        return self._ring.last

    @property
    def grows(self) -> bool:
        """See ``Store``."""
        return True

    def since(self, after: int, limit: int) -> Part:
        """See ``Store``."""
        return self._ring.since(after, limit)

    def load(self, service: Service) -> None:
        """Put an event of the load."""
        self._ring.put(events.load(self.teller.now, service.running, service.waiting, service.cache_usage))


class Recorder:
    """Follows a tap in a thread of its own: tells it the load, and writes what it has into a file.

    A file that cannot be written costs one warning and the rest of itself; answers go on.

    Args:
        tap: that is followed.
        service: that it watches.
        path: of the file, if one is written.
        room: bytes of it.
        unwritten: told how many events are missing in it.
    """

    def __init__(
        self,
        tap: Tap,
        service: Service,
        path: Path | None = None,
        room: int | None = None,
        unwritten: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._tap, self._service, self._unwritten = tap, service, unwritten
        self._file: TraceWriter | None = None
        self._wanted, self._written = path is not None, 0
        self._warned = False
        self._busy: tuple[float, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="augury trace", daemon=True)
        if path is not None:
            try:
                self._file = TraceWriter(path, tap.header, room)
            except AuguryError as error:
                self._give_up(str(error))
        self._thread.start()

    def close(self) -> None:
        """Write what there is, and end. Does nothing the second time."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _follow(self) -> None:
        while not self._stop.wait(LOAD_S):
            self._tell()
            self._write()
        self._write()
        if self._file is not None:
            self._file.close()

    def _tell(self) -> None:
        """Tell the load where something runs, or has changed."""
        busy = (self._service.running, self._service.waiting, self._service.cache_usage)
        if busy[0] or busy != self._busy:
            self._busy = busy
            self._tap.load(self._service)

    def _write(self) -> None:
        while self._wanted:
            part = self._tap.since(self._written, _WRITTEN)
            self._written = part.next
            missing = part.lost
            for line in part.lines:
                missing += not self._add(line)
            if missing:
                self._unwritten(missing)
                self._warn("the trace file is full, or too slow: some of what happens is not in it")
            if not part.lines:
                return

    def _add(self, line: bytes) -> bool:
        """Write one line; tells whether it is in the file."""
        if self._file is None:
            return False
        try:
            return self._file.add(line)
        except AuguryError as error:
            self._give_up(str(error))
            return False

    def _give_up(self, why: str) -> None:
        self._warn(f"{why}; answers go on without it")
        self._file = None

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning(message)


class Recent:
    """The steps of the last seconds. One thread adds, any reads."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, StepRecord]] = deque(maxlen=_MOST_RECENT)

    def add(self, step: StepRecord) -> None:
        """A step has ended."""
        now = time.monotonic()
        self._steps.append((now, step))
        while self._steps and self._steps[0][0] < now - WINDOW_S:
            self._steps.popleft()

    def figures(self) -> dict[str, Any]:
        """What they brought."""
        now = time.monotonic()
        steps = [step for at, step in [*self._steps] if at >= now - WINDOW_S]
        accepted, drafted = sum(s.accepted for s in steps), sum(s.drafted for s in steps)
        tokens = sum(len(s.emitted) for s in steps)
        forwards = sum(1.0 / s.requests for s in steps)
        return {
            "window_s": WINDOW_S,
            "steps": len(steps),
            "tokens": tokens,
            "tokens_per_second": tokens / WINDOW_S,
            "drafted": drafted,
            "accepted": accepted,
            "acceptance_length": 1.0 + accepted / len(steps) if steps else None,
            "draft_acceptance_rate": accepted / drafted if drafted else None,
            "rows": sum(s.rows / s.requests for s in steps) / forwards if steps else None,
            "undrafted": dict(Counter(s.reason for s in steps if s.reason is not None)),
        }
