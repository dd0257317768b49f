"""The budget: which nodes are worth verifying. A pure choice from stated survival and measured cost.

A step that verifies the node set N over all its requests emits in expectation one token per request plus the
survival of every node, and takes the time of one forward over all rows plus what surrounds it. The choice is

    argmax over N of  (requests + sum of survival over N) / (spent on guesses + verify(rows) + rest)

Survival never grows along a path, so the best N of any size are the nodes of greatest survival, and these
are closed under parents: one sort gives every candidate. Costs are staircases, so the maximum is taken over all sizes,
never at the first descent. The empty set is one of the candidates, and any other must beat it by ``HURDLE``: plain
decoding is a choice, not a mode.

A tree with *drawn* nodes is kept whole. Whether a drawn token is judged may depend on its law and on what stands before
it, not on the token: dropping a token for what it is, or for what follows it, would change the output's law. Such
drafters stop by themselves where going on is not worth it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from augury.tree import MAX_NODES, DraftTree

HURDLE = 1.04
"""Expected gain over plain decoding below which nothing is drafted: survival and costs are estimates, and picking the
greatest of many estimates picks their errors too."""


@dataclass(frozen=True)
class Costs:
    """Measured time of a forward.

    Attributes:
        verify: f64[R], entry r is the milliseconds of a forward over r rows at short context; entry 0 is 0;
            never falling. Beyond the table the last slope goes on.
        attend: milliseconds for each row and each thousand tokens of its context, on top.
        rest: milliseconds of a step outside forward and drafting.
    """

    verify: npt.NDArray[np.float64]
    attend: float
    rest: float

    def step(self, rows: npt.NDArray[np.int64], read: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Milliseconds of steps with i64[k] rows that read f64[k] row-tokens of context in all."""
        last = len(self.verify) - 1
        slope = self.verify[last] - self.verify[last - 1]
        base = self.verify[np.minimum(rows, last)] + slope * np.maximum(rows - last, 0)
        return np.asarray(base + self.attend * read / 1e3 + self.rest, np.float64)

    def useful_nodes(self, context: int) -> int:
        """How many nodes drafters may propose: with as many certain ones a step is nearly as good as it can be.

        The last tenth of the rate is left alone: certainty is rare, and each proposed node costs drafting time.
        """
        rows = np.arange(1, MAX_NODES + 2)
        rate = rows / self.step(rows, rows.astype(np.float64) * context)
        return int(np.argmax(rate >= 0.9 * rate.max()))


class Expected(NamedTuple):
    """Tokens of a step, or a share of it, and its milliseconds."""

    tokens: float
    ms: float


def promise(tree: DraftTree, costs: Costs, context: int, others: int = 0) -> Expected:
    """The best step that one request's tree allows.

    ``others`` are requests that step with it: a row and a token each, as if nothing were drafted for them.
    """
    sizes = np.array([len(tree)]) if tree.laws else np.arange(len(tree) + 1)  # a drawn tree is kept whole
    survives = np.concatenate([[0.0], np.cumsum(-np.sort(-tree.survival), dtype=np.float64)])
    gain, rows = 1.0 + others + survives[sizes], 1 + others + sizes
    ms = costs.step(rows, rows.astype(np.float64) * context)
    best = int(np.argmax(gain / ms))
    return Expected(float(gain[best]), float(ms[best]))


def choose(
    trees: Sequence[DraftTree], costs: Costs | None, contexts: Sequence[int], spent: float = 0.0
) -> list[DraftTree]:
    """Keep in each request's tree the nodes worth verifying.

    Args:
        trees: one for each request of the step.
        costs: measured times, or None to keep every node.
        contexts: committed tokens of each request.
        spent: milliseconds that the guesses took; the more, the less a further row adds to them.
    """
    fixed = [t for t in trees if t.laws]
    places = [(i, node) for i, t in enumerate(trees) if not t.laws for node in range(len(t))]
    if costs is None or not places:
        return list(trees)
    # Of some ten nodes, as most steps have, lists are sooner sorted and summed up than arrays.
    survival = [s for t in trees if not t.laws for s in t.survival.tolist()]
    # Stable: a parent stays before its children on ties.
    order = sorted(range(len(places)), key=survival.__getitem__, reverse=True)
    surely = len(trees) + sum(float(t.survival.sum()) for t in fixed)
    gain = [surely + s for s in accumulate([survival[k] for k in order], initial=0.0)]
    whole = sum(contexts) + sum(c * len(t) for c, t in zip(contexts, trees, strict=True) if t.laws)
    read = [*accumulate([contexts[places[k][0]] for k in order], initial=whole)]
    rows = len(trees) + sum(map(len, fixed)) + np.arange(len(read))
    rate = np.array(gain) / (costs.step(rows, np.array(read, np.float64)) + spent)
    count = int(rate.argmax())
    if rate[count] < HURDLE * rate[0]:
        count = 0
    kept = [list[int]() for _ in trees]
    for k in order[:count]:
        owner, node = places[k]
        kept[owner].append(node)
    return [tree if tree.laws else tree.keep(nodes) for tree, nodes in zip(trees, kept, strict=True)]


def best_chain(tree: DraftTree) -> DraftTree:
    """The path of greatest summed survival, for targets and rules that take chains only.

    Where nodes were drawn it is the path of first children: survival further down depends on what was drawn.
    """
    if len(tree) < 2 or tree.is_chain:
        return tree
    if tree.laws:
        path: list[int] = []
        while children := tree.children(path[-1] if path else -1):
            path.append(children[0])
        return tree.keep(path)
    total: list[float] = []
    for survival, parent in zip(tree.survival.tolist(), tree.parents.tolist(), strict=True):
        total.append(survival + (total[parent] if parent >= 0 else 0.0))
    return tree.keep(tree.path(max(range(len(total)), key=total.__getitem__)))


def shallow(tree: DraftTree, depth: int) -> DraftTree:
    """The nodes down to ``depth``: what could still be emitted before a limit."""
    if len(tree) <= depth:
        return tree
    depths = tree.depths
    if int(depths.max()) <= depth:
        return tree
    return tree.keep(np.flatnonzero(depths <= depth).tolist())
