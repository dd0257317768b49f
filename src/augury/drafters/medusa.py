"""Heads on the target, a small network for each place ahead: Medusa, Cai et al. 2024, arXiv:2401.10774.

All of them read what the target thought at its last token, and the token it drew there; nothing is fed back.
"""

from __future__ import annotations

from augury.drafters.ahead import Ahead
from augury.drafters.drafter import View
from augury.drafters.spine import Spine
from augury.tree import FloatArray


class Medusa(Ahead):
    """See the module's text and ``Ahead``."""

    kind = "medusa"

    def open(self, view: View) -> None:
        """Begin a request; of its prompt only the end is read, when something is guessed."""
        Spine.open(self, view)

    def ahead(self, view: View, places: int) -> FloatArray:
        """See ``Ahead``."""
        at = view.length - 2
        return self._ride(view.slot, at, view.tokens[-1:], self._features(view.slot, at, at + 1), True, places)[0]
