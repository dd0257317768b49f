"""What the heads that guess all places in one forward have in common.

What such a head says of a place does not depend on what was guessed before it, so a tree is made of the likeliest
combinations: of all trees of so many nodes the one of which most is accepted, as far as the head's own probabilities,
corrected by what was measured, can tell (the sparse tree of Medusa, Cai et al. 2024, arXiv:2401.10774, section 2.3.3,
anew in every step).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from augury.budget import Costs
from augury.drafters.drafter import View
from augury.drafters.riding import Riding
from augury.models.target import Target
from augury.tree import MAX_NODES, FloatArray


class Ahead(Riding):
    """See the module's text, and ``Riding`` for what is given and raised; ``depth`` 0 is all places of the head."""

    def __init__(
        self,
        head: str = "",
        depth: int = 0,
        width: int = 6,
        nodes: int = 23,
        *,
        target: Target,
        costs: Callable[[], Costs | None] | None = None,
    ) -> None:
        super().__init__(head, depth or MAX_NODES, width, MAX_NODES, nodes, target=target, costs=costs)
        self.depth = min(self.depth, self.head.config.guesses)
        self._ahead = np.empty((0, 0), np.float32)

    @abstractmethod
    def ahead(self, view: View, places: int) -> FloatArray:
        """f32[places, v], logits of the next so many tokens."""

    def rows(self, view: View, paths: Sequence[Sequence[int]]) -> Sequence[FloatArray]:
        """Logits of a place, the same behind every path."""
        if not paths[0]:
            self._ahead = self.ahead(view, min(self.depth, view.room)).copy()
        return [self._ahead[len(path)] for path in paths]

    def _took(self, ms: float, leaves: int = 1, together: int = 1) -> None:
        """What the root takes says nothing of its leaves: they are read off what it found."""
        if leaves:
            super()._took(ms, leaves, together)
        else:
            self._drift(0.0, together)
