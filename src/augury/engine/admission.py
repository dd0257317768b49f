"""Which slot a request gets: the one whose cache already begins like the prompt, else the longest unused."""

from __future__ import annotations

import numpy as np

from augury.models.target import Target
from augury.tree import IntArray


class Slots:
    """The target's slots, each with the tokens its cache holds while no request uses it."""

    def __init__(self, target: Target, count: int) -> None:
        self._target = target
        self._count = count
        self._idle: dict[int, IntArray] = {}  # in order of last use
        self._busy: set[int] = set()

    @property
    def free(self) -> int:
        """Slots that a request could have now."""
        return self._count - len(self._busy)

    def take(self, tokens: IntArray) -> tuple[int, int]:
        """A slot for a request whose committed tokens will be ``tokens``: (slot, how many it already holds)."""
        shared = {slot: _common(cached, tokens) for slot, cached in self._idle.items()}
        best = max(shared, key=lambda slot: shared[slot], default=-1)
        fresh = len(self._idle) + len(self._busy) < self._count
        # Conversations that only share their system prompt keep their slots while there are unused ones.
        if best >= 0 and shared[best] > 0 and (not fresh or 2 * shared[best] >= len(self._idle[best])):
            slot, length = best, shared[best]
        elif fresh:
            slot, length = self._target.open(), 0
        else:
            slot, length = next(iter(self._idle)), 0
        self._idle.pop(slot, None)
        self._busy.add(slot)
        self._target.truncate(slot, length)
        return slot, length

    def give(self, slot: int, tokens: IntArray) -> None:
        """Take a slot back; ``tokens`` begin with what its cache holds and may be longer."""
        self._busy.discard(slot)
        self._idle[slot] = tokens[: self._target.length(slot)].copy()

    def drop(self, slot: int) -> None:
        """Take a slot back whose cache cannot be trusted."""
        self._busy.discard(slot)
        self._target.release(slot)

    def close(self) -> None:
        """Release everything."""
        for slot in [*self._idle, *self._busy]:
            self._target.release(slot)
        self._idle.clear()
        self._busy.clear()


def _common(a: IntArray, b: IntArray) -> int:
    """Length of the common beginning."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
