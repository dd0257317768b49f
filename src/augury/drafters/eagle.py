"""A head on the target: one trained layer that goes on from the target's own hidden states.

EAGLE-3, Li et al. 2025, arXiv:2503.01840. What three layers of the target thought of the text so far is fused into a
feature; with the next token's embedding it makes the feature one place further, from which the likely tokens are read.
Behind the root the head goes on from features of its own, each level of its tree in one forward.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augury.drafters.drafter import View
from augury.drafters.riding import Riding
from augury.tree import FloatArray


class Eagle(Riding):
    """See the module's text; for what is given and raised, ``Riding``."""

    kind = "eagle"
    _left: dict[tuple[int, ...], FloatArray]
    """Features by path, in this step."""
    _lying: tuple[int, ...]
    """The path whose rows lie behind the text in the head's cache."""

    def rows(self, view: View, paths: Sequence[Sequence[int]]) -> Sequence[FloatArray]:
        """Logits of the head."""
        if paths[0]:
            return list(self._guesses(view, [tuple(path) for path in paths]))
        logits, left = self._read(view, view.length - 1, 1)
        self._left, self._lying = {(): left[-1].copy()}, ()
        return list(logits)

    def _guesses(self, view: View, paths: Sequence[tuple[int, ...]]) -> FloatArray:
        """Logits f32[n, v] of a row for each path, behind those of its prefixes, which are computed anew."""
        # A path that only lengthens the last one finds its rows where they were.
        lies = len(self._lying) if len(paths) == 1 and paths[0][:-1] == self._lying else 0
        inner = {path[:n]: None for path in paths for n in range(lies + 1, len(path))}
        rows = [*sorted(inner, key=len), *paths]
        place = {path: i for i, path in enumerate(rows)}
        logits, left = self._ride(
            view.slot,
            view.length - 1 + lies,
            np.array([path[-1] for path in rows], np.int32),
            np.stack([self._left[path[:-1]] for path in rows]),
            False,
            len(paths),
            np.array([place.get(path[:-1], -1) for path in rows], np.int32),
        )
        self._lying = paths[0] if len(paths) == 1 else ()
        self._left.update(zip(paths, left[len(inner) :].copy(), strict=True))
        return logits
