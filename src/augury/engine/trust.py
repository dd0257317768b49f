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
from collections import defaultdict
from collections.abc import Iterable, Sequence

from augury.tree import DraftTree, Path

_START, _LOWEST, _HIGHEST = 1.2, 0.8, 40.0
_PRIOR = 8.0  # curvature at the start: some twenty even chances weigh as much
_FADE = 0.995  # of the curvature, each step: what was learnt a thousand steps ago is forgotten
_LEAST, _MOST = 1e-4, 1.0 - 1e-3  # probabilities that are reckoned with
_DRIFT = 0.002  # back to the start, each step without a verified node


class Trust:
    """How far the drafters of one engine are believed, or of one request of it.

    Attributes:
        powers: by a drafter's place.
    """

    def __init__(self) -> None:
        self.powers: defaultdict[int, float] = defaultdict(lambda: _START)
        self._curvatures: defaultdict[int, float] = defaultdict(lambda: _PRIOR)

    def own(self) -> Trust:
        """For a new request: begins with these powers, which weigh no more than at the start."""
        trust = Trust()
        trust.powers.update(self.powers)
        return trust

    def temper(self, tree: DraftTree) -> DraftTree:
        """The tree with survival as it is to be believed."""
        if not len(tree):
            return tree
        sources = tree.source.tolist()
        powers = self.powers
        survival = [said ** powers[source] for said, source in zip(tree.survival.tolist(), sources, strict=True)]
        if min(sources) != max(sources):
            survival = exclusive(survival, tree.parents.tolist())
        return tree.with_survival(survival)

    def stated(self, believed: float, sources: Iterable[int]) -> float:
        """The least survival that one of these drafters must state for so much to be believed.

        Who is believed less than at the start is asked no more than one at the start: a drafter that may offer nothing
        would never be tried again.
        """
        return float(believed ** (1.0 / min([_START, *(self.powers[source] for source in sources)])))

    def learn(
        self,
        offered: DraftTree,
        tree: DraftTree,
        path: Path,
        own: Trust | None = None,
        private: frozenset[int] = frozenset(),
    ) -> None:
        """Learn from what was verified of a tempered tree.

        Args:
            offered: what ``temper`` gave.
            tree: what of it was verified.
            path: the accepted nodes of ``tree``.
            own: the request's, if that is who tempered it: it learns too.
            private: drafters of which only the request's learns.
        """
        verified: dict[int, list[tuple[float, bool]]] = {source: [] for source in offered.source.tolist()}
        for i, (source, survival) in enumerate(zip(tree.source.tolist(), tree.survival.tolist(), strict=True)):
            verified[source].append((_between(survival), i in path.nodes))
        for source, nodes in verified.items():
            used = (own or self).powers[source]
            if source not in private:
                self._move(source, nodes, used)
            if own is not None:
                own._move(source, nodes, used)

    def _move(self, source: int, nodes: Sequence[tuple[float, bool]], used: float) -> None:
        """Learn of one drafter from its verified nodes: survival, tempered with a power, and whether it came true."""
        power = self.powers[source]
        if not nodes:
            self.powers[source] = power + _DRIFT * (_START - power)
            return
        slope, curvature, share = 0.0, _FADE * self._curvatures[source], power / used
        for survival, right in nodes:
            p = _between(survival**share)
            log = math.log(p)
            slope += log * (right - p) / (1.0 - p)
            curvature += log * log * p / (1.0 - p)
        self._curvatures[source] = curvature
        change = math.exp(min(max(slope / curvature, -1.0), 1.0))
        self.powers[source] = min(max(power * change, _LOWEST), _HIGHEST)


def exclusive(survival: Sequence[float], parents: Sequence[int]) -> list[float]:
    """Survivals of one tree from those that several drafters state, each as if it were alone.

    One token comes in a place, so siblings are together no likelier than their parent: where the surest of them takes
    most of it, who says something else can have the rest. Nor is a child likelier than a parent of another drafter.
    """
    found = [*survival]
    for i, parent in enumerate(parents):
        if parent >= 0:
            found[i] = min(found[i], found[parent])
    left = [0.0] * len(found) + [1.0]  # for the children of each; the last, which -1 is the place of, for the root's
    for i in sorted(range(len(found)), key=lambda i: (-found[i], i)):  # so parents come before their children
        found[i] = left[i] = min(found[i], max(left[parents[i]], 0.0))
        left[parents[i]] -= found[i]
    return found


def _between(p: float) -> float:
    """A probability that neither it nor its opposite is none."""
    return _LEAST if p < _LEAST else p if p < _MOST else _MOST
