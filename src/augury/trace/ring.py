"""The latest events of a running engine, in a fixed number of bytes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from augury.errors import InputError
from augury.trace.events import encode

LEAST = 1 << 16
"""Bytes of the smallest ring."""

_OVERHEAD = 64
"""Bytes that a line takes beside its own: of the object that holds it and of its place in the list."""


@dataclass(frozen=True)
class Part:
    """Lines that follow each other.

    Attributes:
        lines: events as JSON, without line ends.
        next: the number of the last of them; what to ask for lines behind.
        lost: how many there were before them that were asked for and are gone.
    """

    lines: tuple[bytes, ...]
    next: int
    lost: int


class Ring:
    """Events as lines with running numbers, the first is 1; the oldest go when the bytes are full. Thread-safe.

    Args:
        room: bytes that the lines take at most, ``LEAST`` or more.
    """

    def __init__(self, room: int) -> None:
        if room < LEAST:
            raise InputError(f"a trace of {room} bytes holds too little; give {LEAST} or more")
        self._room = room
        self._taken = 0
        self._lines: list[bytes] = []
        self._gone = 0  # places at the front of the list whose line is dropped
        self._last = 0
        self._lock = threading.Lock()

    @property
    def last(self) -> int:
        """The number of the newest event, 0 without any."""
        return self._last

    @property
    def first(self) -> int:
        """The number of the oldest one that is held; one above ``last`` when none is."""
        with self._lock:
            return self._last - (len(self._lines) - self._gone) + 1

    @property
    def taken(self) -> int:
        """Bytes that are taken."""
        return self._taken

    def put(self, event: Mapping[str, Any]) -> int:
        """Add an event; gives its number."""
        line = encode(event)
        with self._lock:
            self._lines.append(line)
            self._last += 1
            self._taken += len(line) + _OVERHEAD
            while self._taken > self._room:
                self._taken -= len(self._lines[self._gone]) + _OVERHEAD
                self._lines[self._gone] = b""
                self._gone += 1
            if 2 * self._gone > len(self._lines):
                del self._lines[: self._gone]
                self._gone = 0
            return self._last

    def since(self, after: int, limit: int) -> Part:
        """At most ``limit`` lines behind number ``after``; 0 asks for all that are held.

        Who asks for lines behind one that has not been yet (of a ring before this one, then) gets none, and a ``next``
        that is lower than ``after``.
        """
        with self._lock:
            behind = self._last - (len(self._lines) - self._gone)  # the number of the last one that is gone
            start = min(max(after, behind, 0), self._last)
            at = self._gone + start - behind
            lines = tuple(self._lines[at : at + max(limit, 0)])
        return Part(lines, start + len(lines), max(start - max(after, 0), 0))
