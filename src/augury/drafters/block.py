"""A head on the target that guesses all its places in one forward: behind the text it reads so many masks.

The layer is that of ``eagle``, but nothing is fed back: the rows ahead hold one learnt feature and the mask token
(masked tokens as in Monea et al. 2023, PaSS, arXiv:2311.13581).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from augury.drafters.ahead import Ahead
from augury.drafters.drafter import View
from augury.tree import FloatArray, IntArray


class Block(Ahead):
    """See the module's text and ``Ahead``."""

    kind = "block"

    @cached_property
    def _masks(self) -> tuple[IntArray, FloatArray]:
        """Tokens and features of the rows ahead."""
        config, masks = self.head.config, self.head.config.guesses - 1
        given = np.tile(self.head.weights["mask.weight"].float().numpy(), (masks, 1))
        return np.full(masks, config.mask_token, np.int32), given

    def ahead(self, view: View, places: int) -> FloatArray:
        """See ``Ahead``: the first place is guessed by the text's last row, the others by the masks."""
        first, _ = self._read(view, view.length - 1, 1)
        if places == 1:
            return first
        first, masks = first.copy(), places - 1
        tokens, given = self._masks
        rest, _ = self._ride(view.slot, view.length - 1, tokens[:masks], given[:masks], False, masks)
        return np.concatenate([first, rest])
