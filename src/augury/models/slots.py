"""Which slot a request gets: the one whose cache already begins like the prompt, else the longest unused."""

from __future__ import annotations

from augury.errors import InputError
from augury.models.target import Target
from augury.tree import IntArray, common


class Slots:
    """The target's slots, each with the tokens its cache holds while no request uses it.

    Raises:
        InputError: ``count`` is no number of slots that the target can open.
    """

    def __init__(self, target: Target, count: int) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise InputError(f"slots is {count!r}; it must be a whole number, 1 or more")
        opened: list[int] = []
        try:
            while len(opened) < count:
                opened.append(target.open())
        except InputError as error:
            raise InputError(f"slots is {count}, and the target can open {len(opened)} now: {error}") from None
        finally:
            for slot in opened:
                target.release(slot)
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
        shared = {slot: common(cached, tokens) for slot, cached in self._idle.items()}
        best = max(shared, key=lambda slot: shared[slot], default=-1)
        fresh = len(self._idle) + len(self._busy) < self._count
        # Conversations that only share their system prompt keep their slots while there are unused ones. A prompt that
        # is asked again finds its own, however long the answer was.
        found = shared.get(best, 0)
        slot = -1
        try:
            if found > 0 and (not fresh or found == len(tokens) or 2 * found >= len(self._idle[best])):
                slot, length = best, found
            elif fresh:
                slot, length = self._target.open(), 0
            else:
                slot, length = next(iter(self._idle)), 0
            self._busy.add(slot)
            self._idle.pop(slot, None)
            self._target.truncate(slot, length)
        except BaseException:  # Ctrl-C may come between any two of these lines
            if slot >= 0:
                self._busy.add(slot)
                self.drop(slot)
            raise
        return slot, length

    def give(self, slot: int, tokens: IntArray) -> None:
        """Take a slot back; ``tokens`` begin with what its cache holds and may be longer. May be done twice."""
        self._idle[slot] = tokens[: self._target.length(slot)].copy()
        self._busy -= {slot}  # no call, which Ctrl-C could cut off from what its caller does next

    def drop(self, slot: int) -> None:
        """Take a slot back whose cache cannot be trusted. Does nothing the second time."""
        if slot in self._busy:
            self._idle.pop(slot, None)
            self._busy -= {slot}
            self._target.release(slot)

    def close(self) -> None:
        """Release everything."""
        for slot in [*self._idle, *self._busy]:
            self._target.release(slot)
        self._idle.clear()
        self._busy.clear()
