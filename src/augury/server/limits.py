"""How much one who asks may have: requests at once, and requests a minute."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from augury.server.faults import Fault

_MINUTE = 60.0


class Limits:
    """Of each who asks. Used by the event loop alone.

    Args:
        at_once: requests that have not ended; 0 is any number.
        per_minute: requests that began in the last 60 seconds; 0 is any number.
        clock: seconds.
    """

    def __init__(self, at_once: int, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_once, self._per_minute, self._clock = at_once, per_minute, clock
        self._open: dict[str, int] = {}
        self._begun: dict[str, deque[float]] = {}

    @contextmanager
    def entered(self, who: str) -> Iterator[None]:
        """One request of somebody, from its beginning to its end.

        Raises:
            Fault: it is one too many.
        """
        self._enter(who)
        try:
            yield
        finally:
            self._leave(who)

    def _enter(self, who: str) -> None:
        count = self._open.get(who, 0)
        if self._at_once and count >= self._at_once:
            raise _limited(f"{count} of your requests run or wait, which is the limit; wait until one has ended", 1.0)
        if self._per_minute:
            now = self._clock()
            self._forget(now)
            begun = self._begun.setdefault(who, deque())
            if len(begun) >= self._per_minute:
                wait = begun[0] + _MINUTE - now
                raise _limited(f"you may ask {self._per_minute} times a minute; ask again in {math.ceil(wait)} s", wait)
            begun.append(now)
        self._open[who] = count + 1

    def _leave(self, who: str) -> None:
        self._open[who] -= 1
        if not self._open[who]:
            del self._open[who]

    def _forget(self, now: float) -> None:
        """Drop what is over a minute old, and who has nothing left."""
        for who, begun in [*self._begun.items()]:
            while begun and begun[0] <= now - _MINUTE:
                begun.popleft()
            if not begun:
                del self._begun[who]


def _limited(message: str, seconds: float) -> Fault:
    headers = {"Retry-After": str(max(math.ceil(seconds), 1))}
    return Fault(429, message, type="rate_limit_error", code="rate_limit_exceeded", headers=headers)
