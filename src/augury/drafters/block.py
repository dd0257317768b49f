"""A head on the target that guesses all its places in one forward: behind the text it reads so many masks.

The layer is that of ``eagle``, but nothing is fed back: the rows ahead hold one learnt feature and the mask token
(masked tokens as in Monea et al. 2023, PaSS, arXiv:2311.13581).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from augury.budget import Costs
from augury.drafters.ahead import Ahead
from augury.drafters.drafter import View
from augury.models.target import Target
from augury.tree import FloatArray


class Block(Ahead):
    """See the module's text and ``Ahead``."""

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
        super().__init__("block", head, depth, width, nodes, target, costs)
        config = self.head.config
        self._masks = np.full(config.guesses - 1, config.mask_token, np.int32)
        self._given = np.tile(self.head.weights["mask.weight"].float().numpy(), (config.guesses - 1, 1))

    def ahead(self, view: View, places: int) -> FloatArray:
        """See ``Ahead``: the first place is guessed by the text's last row, the others by the masks."""
        first, _ = self._read(view, view.length - 1, 1)
        if places == 1:
            return first
        first, masks = first.copy(), places - 1
        rest, _ = self._ride(view.slot, view.length - 1, self._masks[:masks], self._given[:masks], False, masks)
        return np.concatenate([first, rest])
