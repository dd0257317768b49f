"""A model of a drafter's own that keeps step with requests: each has a slot, brought along by one forward a step.

What was drafted and refused is rolled back by comparing tokens, so that a follower needs no word of what was accepted.
With fewer bits what follows guesses is computed over the same cache and not kept: accepted ones are read again by the
model's own weights.
"""

from __future__ import annotations

import numpy as np

from augury.errors import DrafterError, InputError
from augury.models.slots import Slots
from augury.models.target import Target
from augury.tree import MAX_NODES, DraftTree, FloatArray, IntArray, Path, common

_NONE: IntArray = np.empty(0, np.int32)


class Follower:
    """The slots of one model by request.

    Args:
        target: the model; the follower is its only user.
        slots: requests that can be open at once.
        bits: of the weights that say what follows a guess; 16 are the model's own.

    Raises:
        InputError: the model has no such weights.
    """

    def __init__(self, target: Target, slots: int, bits: int = 16) -> None:
        known = target.info.short or (16,)
        if bits != 16 and bits not in known:
            raise InputError(
                f"bits is {bits}; a draft model under {target.info.runner} has {', '.join(map(str, known))}"
                + ("" if 4 in known else ", and under native 8 and 4 too")
            )
        self.target = target
        self._short = None if bits == 16 else target.shorten(bits, range(target.info.layers))
        self._slots = Slots(target, slots)
        self._held: dict[int, tuple[int, IntArray]] = {}  # request: slot, the tokens its cache holds

    def begin(self, request: int, tokens: IntArray, tenant: str = "") -> None:
        """Take a slot and compute what a prompt needs before its last token, which may take long. What the model
        computed for one tenant serves no other.
        """
        slot, length = self._slots.take(tokens, tenant)
        self._held[request] = slot, tokens[:length]
        if len(tokens) <= self.target.info.context:
            self._fill(request, tokens)

    def after(self, request: int, tokens: IntArray, guesses: IntArray = _NONE) -> FloatArray:
        """The row f32[V] of what follows a request's ``tokens`` and the ``guesses`` behind them, valid until the next
        call. Guesses come one more at a time, and at first none.

        Raises:
            DrafterError: the tokens do not fit into the model's context.
        """
        if len(tokens) + len(guesses) > self.target.info.context:
            raise DrafterError(f"the draft model's context of {self.target.info.context} tokens is full")
        if self._short and len(guesses):
            guessed: FloatArray = self._short(self._held[request][0], len(guesses) - 1, guesses[-1:])[0]
            return guessed
        tokens = np.concatenate([tokens, guesses])
        if request not in self._held:
            self.begin(request, tokens)
        slot, kept = self._fill(request, tokens)
        missing = tokens[kept + 1 :]
        tree = DraftTree.chain(missing, np.ones(len(missing), np.float32))
        row: FloatArray = self.target.verify([slot], [int(tokens[kept])], [tree]).logits[0][-1]
        self.target.commit([slot], [Path(tuple(range(len(missing))), 0)])
        self._held[request] = slot, tokens
        return row

    def _fill(self, request: int, tokens: IntArray) -> tuple[int, int]:
        """Forget what is not of ``tokens``, and compute all but what one forward takes: (slot, tokens it holds)."""
        slot, held = self._held[request]
        kept = min(common(held, tokens), len(tokens) - 1)  # one token at least is fed, for its row
        self.target.truncate(slot, kept)
        self._held[request] = slot, tokens[:kept]  # true even if the next call fails
        if len(tokens) - kept > MAX_NODES + 1:
            self.target.prefill(slot, tokens[kept:-1])
            kept = len(tokens) - 1
            self._held[request] = slot, tokens[:kept]
        return slot, kept

    def forget(self, request: int) -> None:
        """Give a request's slot back; the next request that begins alike finds its cache."""
        found = self._held.pop(request, None)
        if found:
            self._slots.give(*found)
