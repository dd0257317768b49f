"""Which slot a request gets: that of the conversation it goes on with, else an empty one or the longest unused, to
which the beginning is copied that another one holds.
"""

from __future__ import annotations

from augury.errors import InputError
from augury.models.target import Target
from augury.tree import IntArray, common

WORTH_COPYING = 16
"""Tokens that another slot must hold beyond one's own before they are copied instead of computed."""


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
        self._owners: dict[int, str] = {}
        self._busy: set[int] = set()

    @property
    def count(self) -> int:
        """All slots, used or not."""
        return self._count

    @property
    def free(self) -> int:
        """Slots that a request could have now."""
        return self._count - len(self._busy)

    def idle(self, tenant: str) -> list[tuple[int, IntArray]]:
        """Slots that nobody uses and whose cache holds a tenant's text, with that."""
        return [(slot, cached) for slot, cached in self._idle.items() if self._owners.get(slot) == tenant]

    def take(self, tokens: IntArray, tenant: str) -> tuple[int, int]:
        """A slot for a request whose committed tokens will be ``tokens``: (slot, how many it already holds).

        What another tenant left is forgotten: a prompt that is answered sooner would tell what others had asked.

        Raises:
            InputError: every slot is in use; nothing has changed then.
        """
        shared = {slot: common(cached, tokens) for slot, cached in self.idle(tenant)}
        best = max(shared, key=lambda slot: shared[slot], default=-1)
        found = shared.get(best, 0)
        # It goes on with all that a slot holds, or asks the same once more, however long the answer was.
        continues = found > 0 and found in (len(tokens), len(self._idle[best]))
        slot, length = -1, 0
        try:
            if continues:
                slot, length = best, found
            elif len(self._idle) + len(self._busy) < self._count:
                slot = self._target.open()
            elif not self._idle:
                raise InputError(f"all {self._count} slots are taken; close a request first")
            else:
                slot = next((one for one in self._idle if one != best), best)
                length = found if slot == best else 0
            self._busy.add(slot)
            self._idle.pop(slot, None)
            self._owners[slot] = tenant
            self._target.truncate(slot, length)
            if slot != best and found >= WORTH_COPYING:
                self._target.copy(best, slot, found)
                length = found
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
            self._owners.pop(slot, None)
            self._target.release(slot)

    def close(self) -> None:
        """Release everything."""
        for slot in [*self._idle, *self._busy]:
            self._target.release(slot)
        self._idle.clear()
        self._owners.clear()
        self._busy.clear()
