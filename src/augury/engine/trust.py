"""How far stated survival is to be believed, learnt from the nodes that were verified.

Drafters calibrate themselves on all text. The budget then picks the nodes that look best, and what looks best among
many estimates is on average overestimated (the winner's curse; Smith and Winkler 2006). So the engine raises survival
to a power g, learnt where it matters: on the nodes that were picked. With S stated and y = 1 for an accepted node, each
step moves g by one damped Newton step on the log-likelihood of y under S^g. The order of nodes never changes.
"""

from __future__ import annotations

import numpy as np

from augury.tree import DraftTree, Path

_START, _LOWEST, _HIGHEST = 1.2, 0.8, 2.5
_PRIOR = 30.0  # curvature at the start: some fifty nodes weigh as much
_FADE = 0.995  # of the curvature, each step: what was learnt a thousand steps ago is forgotten


class Trust:
    """The power g of one engine."""

    def __init__(self) -> None:
        self.power = _START
        self._curvature = _PRIOR

    def temper(self, tree: DraftTree) -> DraftTree:
        """The tree with survival as it is to be believed."""
        if not len(tree):
            return tree
        survival = (tree.survival.astype(np.float64) ** self.power).astype(np.float32)
        return DraftTree(tree.tokens, tree.parents, survival, tree.source, tree.laws)

    def learn(self, tree: DraftTree, path: Path) -> None:
        """Learn from a verified tree whose survival came from ``temper``."""
        if not len(tree):
            return
        p = np.clip(tree.survival.astype(np.float64), 1e-4, 1.0 - 1e-3)
        stated = np.log(p) / self.power
        accepted = np.zeros(len(tree))
        accepted[list(path.nodes)] = 1.0
        slope = float(np.sum(stated * (accepted - p) / (1.0 - p)))
        self._curvature = _FADE * self._curvature + float(np.sum(stated**2 * p / (1.0 - p)))
        self.power = float(np.clip(self.power + slope / self._curvature, _LOWEST, _HIGHEST))
