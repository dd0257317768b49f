"""How much one who asks may have, and how much of the server's memory all bodies together."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from augury.server.faults import Fault, refused

_MINUTE = 60.0

Refused = Callable[[str], None]
"""Told why something was refused; see ``Watch.refused``."""


class Limits:
    """Of each who asks. Every answer counts, and a request asks for at least one. Used by the event loop alone.

    Args:
        at_once: answers that have not ended; 0 is any number.
        per_minute: answers that were asked for in the last 60 seconds; 0 is any number.
        told: of what is refused, with ``limit``.
        clock: seconds.
    """

    def __init__(
        self, at_once: int, per_minute: int, told: Refused, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once, self._per_minute, self._told, self._clock = at_once, per_minute, told, clock
        self._open: dict[str, int] = {}
        self._begun: dict[str, deque[float]] = {}
        self._order: deque[tuple[float, str]] = deque()  # all of ``_begun``, the oldest first

    @contextmanager
    def entered(self, who: str) -> Iterator[Callable[[int], None]]:
        """One request of somebody, from its beginning to its end. What is given counts further answers of it.

        Raises:
            Fault: it is one too many.
        """
        count = 0

        def enter(more: int) -> None:
            nonlocal count
            self._check(who, more, count + more)
            self._begin(who, more)
            count += more

        enter(1)
        try:
            yield enter
        finally:
            self._leave(who, count)

    def _check(self, who: str, more: int, whole: int) -> None:
        for most, of in ((self._at_once, "at once"), (self._per_minute, "a minute")):
            if most and whole > most:
                raise refused("n", f"{whole} answers are asked for, and you may have {most} {of}; ask for fewer")
        count = self._open.get(who, 0)
        if self._at_once and count + more > self._at_once:
            others = count + more - whole
            said = f"{others} of your answers run or wait, and {self._at_once} may; wait until one has ended"
            raise self._limited(said, 1.0)
        if self._per_minute:
            now = self._clock()
            self._forget(now)
            begun = self._begun.get(who, ())
            if (over := len(begun) + more - self._per_minute) > 0:
                wait = begun[over - 1] + _MINUTE - now
                said = f"you may ask for {self._per_minute} answers a minute; ask again in {math.ceil(wait)} s"
                raise self._limited(said, wait)

    def _begin(self, who: str, more: int) -> None:
        self._open[who] = self._open.get(who, 0) + more
        if self._per_minute and more:
            now = self._clock()
            self._begun.setdefault(who, deque()).extend([now] * more)
            self._order.extend([(now, who)] * more)

    def _leave(self, who: str, count: int) -> None:
        self._open[who] -= count
        if not self._open[who]:
            del self._open[who]

    def _forget(self, now: float) -> None:
        """Drop what is over a minute old, each once, and who has nothing left."""
        while self._order and self._order[0][0] <= now - _MINUTE:
            _, who = self._order.popleft()
            self._begun[who].popleft()
            if not self._begun[who]:
                del self._begun[who]

    def _limited(self, message: str, seconds: float) -> Fault:
        self._told("limit")
        headers = {"Retry-After": str(max(math.ceil(seconds), 1))}
        return Fault(429, message, type="rate_limit_error", code="rate_limit_exceeded", headers=headers)


class Bodies:
    """Bytes of bodies that have come and whose requests have not ended. Used by the event loop alone.

    Args:
        most: of them.
        told: of what is refused, with ``bodies``.
    """

    def __init__(self, most: int, told: Refused) -> None:
        self._most, self._told = most, told
        self._held = 0

    def take(self, size: int) -> None:
        """Hold so many more.

        Raises:
            Fault: there is no room for them now.
        """
        if self._held + size > self._most:
            self._told("bodies")
            raise Fault(
                503,
                "the requests that are open fill the memory for bodies; ask again in a moment",
                type="overloaded_error",
                code="server_overloaded",
                headers={"Retry-After": "1"},
            )
        self._held += size

    def give(self, size: int) -> None:
        """Hold so many fewer."""
        self._held -= size
