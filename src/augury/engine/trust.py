"""How far each drafter's stated survival is to be believed, learnt from the nodes that were verified.

Drafters calibrate themselves on all text. The budget then picks the nodes that look best, and what looks best among
many estimates is on average overestimated (the winner's curse; Smith and Winkler 2006); and a drafter of the user's own
may be calibrated badly or not at all. So the engine raises the survival that a drafter states to a power g of its own,
learnt where it matters: on the nodes that were picked. With S stated and y = 1 for an accepted node, each step moves
log g by one damped Newton step on the log-likelihood of y under S^g. The order of one drafter's nodes never changes.

A text may copy itself more or less than others do: each request begins with the engine's powers and goes on by itself.

A drafter that is believed too little to be verified could never prove itself again: while none of its nodes is picked,
its power drifts back to the start.
"""

from __future__ import annotations

import math

import numpy as np

from augury.tree import DraftTree, Path

_START, LOWEST, _HIGHEST = 1.2, 0.8, 40.0
_PRIOR = 8.0  # curvature at the start: some twenty even chances weigh as much
_FADE = 0.995  # of the curvature, each step: what was learnt a thousand steps ago is forgotten
_DRIFT = 0.002  # back to the start, each step without a verified node


class Trust:
    """The powers of the drafters of one engine, or in one request of it; f64[256] by their place."""

    def __init__(self) -> None:
        self.powers = np.full(256, _START)
        self._curvatures = np.full(256, _PRIOR)

    def own(self) -> Trust:
        """For a new request: begins with these powers, which weigh no more than at the start."""
        trust = Trust()
        trust.powers = self.powers.copy()
        return trust

    def temper(self, tree: DraftTree) -> DraftTree:
        """The tree with survival as it is to be believed."""
        if not len(tree):
            return tree
        sources = tree.source.tolist()
        powers = {source: float(self.powers[source]) for source in {*sources}}
        survival = [said ** powers[source] for said, source in zip(tree.survival.tolist(), sources, strict=True)]
        if len(powers) > 1:  # a child of another drafter may be believed more than its parent
            for i, parent in enumerate(tree.parents.tolist()):
                if parent >= 0:
                    survival[i] = min(survival[i], survival[parent])
        return tree.with_survival(survival)

    def learn(
        self,
        offered: DraftTree,
        tree: DraftTree,
        path: Path,
        tempered: Trust | None = None,
        private: frozenset[int] = frozenset(),
    ) -> None:
        """Learn from what was verified of a tempered tree.

        Args:
            offered: what ``temper`` gave.
            tree: what of it was verified.
            path: the accepted nodes of ``tree``.
            tempered: who tempered it, if another.
            private: drafters of which nothing is learnt.
        """
        accepted, sources, tempered_survival = {*path.nodes}, tree.source.tolist(), tree.survival.tolist()
        for source in sorted({*offered.source.tolist()} - private):
            power, used = float(self.powers[source]), float((tempered or self).powers[source])
            if source not in sources:
                self.powers[source] += _DRIFT * (_START - power)
                continue
            slope, curvature = 0.0, _FADE * float(self._curvatures[source])
            for i, survival in enumerate(tempered_survival):
                if sources[i] == source:
                    p = _between(_between(survival) ** (power / used))
                    log = math.log(p)
                    slope += log * ((i in accepted) - p) / (1.0 - p)
                    curvature += log * log * p / (1.0 - p)
            self._curvatures[source] = curvature
            change = math.exp(min(max(slope / curvature, -1.0), 1.0))
            self.powers[source] = min(max(power * change, LOWEST), _HIGHEST)


def _between(p: float) -> float:
    """A probability that neither it nor its opposite is none."""
    return min(max(p, 1e-4), 1.0 - 1e-3)
