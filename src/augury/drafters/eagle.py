"""A head on the target: one trained layer that goes on from the target's own hidden states.

EAGLE-3, Li et al. 2025, arXiv:2503.01840. What three layers of the target thought of the text so far is fused into a
feature; with the next token's embedding it makes the feature one place further, from which the likely tokens are read.
Behind the root the head goes on from features of its own. It keeps keys and values of its one layer for each of the
target's slots, and the hidden states it reads lie in the target's cache, so a conversation that goes on in a slot is
not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from augury.budget import Costs
from augury.drafters.drafter import View
from augury.drafters.spine import RANKS, Spine
from augury.drafters.survival import Line
from augury.errors import InputError
from augury.models.heads import read_head
from augury.models.slots import common
from augury.models.target import Target
from augury.tree import FloatArray, IntArray

SHIPPED = Path(__file__).parent.parent / "heads"
"""Heads that come with the package, in directories named as their targets."""

LINES = (*[Line()] * RANKS, *[Line(0.5, 0.0)] * RANKS, Line(0.5, 0.0))
"""Kinds of ``spine``: greedy, coupled, drawn."""

_ROWS = 256  # of one forward when a prompt is read


class Eagle(Spine):
    """See the module's text.

    Args:
        head: a directory that ``augury train eagle`` or ``speculators`` wrote; empty: the one shipped for the target.
        depth: see ``Spine``.
        width: see ``Spine``.
        target: on which the head rides.
        costs: see ``Spine``.

    Raises:
        InputError: no head is shipped for the target, or nothing can ride on it.
        ModelError: the head is damaged, or was trained for another target.
    """

    def __init__(
        self,
        head: str = "",
        depth: int = 6,
        width: int = 3,
        *,
        target: Target,
        costs: Callable[[], Costs | None] | None = None,
    ) -> None:
        super().__init__(depth, width, LINES, costs)
        found = read_head(Path(head) if head else shipped(target.info.name))
        self._ride = target.attach(found)
        self._features = target.tap(found.config.taps)
        self._ids = found.draft_ids
        self._vocab = target.info.vocab_size
        self._held: dict[int, IntArray] = {}  # slot: tokens of which the head has all rows but one
        self._left: list[FloatArray] = []  # features by place of the path that is followed

    def open(self, view: View) -> None:
        """Begin a request, and read its prompt but for the last row, which proposing computes anyway."""
        super().open(view)
        if view.length > 2:
            self._read(view, view.length - 2, logits=False)

    def room(self, view: View) -> int:
        """None behind a single token: the target has no hidden states in front of it."""
        return view.room if view.length > 1 else 0

    def row(self, view: View, path: Sequence[int]) -> FloatArray:
        """Logits of the head; of tokens that it cannot guess -inf."""
        if path:
            place = view.length - 2 + len(path)
            given = self._left[len(path) - 1]
            logits, left = self._ride(view.slot, place, np.array(path[-1:], np.int32), given, False, True)
        else:
            logits, left = self._read(view, view.length - 1, logits=True)
        self._left[len(path) :] = [left[-1:].copy()]
        wide = np.full(self._vocab, -np.inf, np.float32)
        wide[self._ids] = logits[-1]
        return wide

    def _read(self, view: View, end: int, logits: bool) -> tuple[FloatArray, FloatArray]:
        """Rows 0..end-1 of the text, those that are missing; row t is hidden state t with token t + 1."""
        tokens, held = view.tokens, self._held.pop(view.slot, view.tokens[:0])
        begin = min(max(common(held, tokens) - 1, 0), end - 1)
        for at in range(begin, end, _ROWS):
            stop = min(at + _ROWS, end)
            given = self._features(view.slot, at, stop)
            found = self._ride(view.slot, at, tokens[at + 1 : stop + 1], given, True, logits and stop == end)
        self._held[view.slot] = tokens[: end + 1].copy()
        return found


def shipped(target: str) -> Path:
    """Where the head that comes with the package lies."""
    directory = SHIPPED / target
    if not directory.is_dir():
        raise InputError(
            f"drafter eagle: no head is shipped for {target}; train one (augury train eagle {target} --out DIRECTORY) "
            "and give it as eagle:DIRECTORY"
        )
    return directory
