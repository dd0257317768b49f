"""What the drafters with a trained head on the target have in common: the head, and the text it has read.

The hidden states that a head reads lie in the target's cache, and what it keeps of them in a cache of its own with the
same slots, so a conversation that goes on in a slot is not read again. A prompt is read when the head is first asked:
where others share the steps it may never be.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from augury.budget import Costs
from augury.drafters.drafter import View
from augury.drafters.shipped import shipped
from augury.drafters.spine import RANKS, Spine
from augury.drafters.survival import Line
from augury.errors import ModelError
from augury.models.heads import read_head
from augury.models.kinds import Kind
from augury.models.target import Target
from augury.tree import FloatArray, IntArray, common

LINES = (*[Line()] * RANKS, *[Line(0.5, 0.0)] * RANKS, Line(0.5, 0.0))
"""Kinds of ``spine``: greedy, coupled, drawn."""

_ROWS = 256  # of one forward when a prompt is read


class Riding(Spine):
    """See the module's text.

    Args:
        head: a directory that ``augury train`` wrote, or ``speculators`` for an EAGLE head; empty: the one shipped for
            the target.
        depth: see ``Spine``.
        width: see ``Spine``.
        beam: see ``Spine``.
        nodes: see ``Spine``.
        target: on which the head rides.
        costs: see ``Spine``.

    Raises:
        InputError: no head is shipped for the target, the head is of another kind, or nothing can ride on the target.
        ModelError: the head is damaged, or was trained for another target.
    """

    kind: ClassVar[Kind]
    """Of the head."""

    def __init__(
        self,
        head: str = "",
        depth: int = 6,
        width: int = 6,
        beam: int = 8,
        nodes: int = 23,
        *,
        target: Target,
        costs: Callable[[], Costs | None] | None = None,
    ) -> None:
        kind = self.kind
        directory = Path(head) if head else shipped(kind, target.info)
        self.head = read_head(directory)
        super().__init__(depth, width, LINES, costs, beam, nodes, self.head.draft_ids, target.info.vocab_size)
        found = self.head.config.kind
        if found != kind:
            raise ModelError(f"drafter {kind}: the head in {directory} is of kind {found}; use {found}:{directory}")
        self._ride = target.attach(self.head)
        self._features = target.tap(self.head.config.taps)
        self._held: dict[int, tuple[str, IntArray]] = {}  # slot: whose text, and that of which it has all rows but one

    def room(self, view: View) -> int:
        """None behind a single token: the target has no hidden states in front of it."""
        return view.room if view.length > 1 else 0

    def _read(self, view: View, end: int, logits: int) -> tuple[FloatArray, FloatArray]:
        """Rows 0..end-1 of the text, those that are missing; row t is hidden state t with token t + 1."""
        tokens, (tenant, held) = view.tokens, self._held.pop(view.slot, ("", view.tokens[:0]))
        # What another tenant's text left is not used: a prompt that is read sooner would tell what others had asked.
        begin = min(max(common(held, tokens) - 1, 0), end - 1) if tenant == view.tenant else 0
        for at in range(begin, end, _ROWS):
            stop = min(at + _ROWS, end)
            given = self._features(view.slot, at, stop)
            found = self._ride(view.slot, at, tokens[at + 1 : stop + 1], given, True, logits if stop == end else 0)
        self._held[view.slot] = view.tenant, tokens[: end + 1].copy()
        return found
