"""The draft tree: what is guessed in one step, and nothing else.

A tree of ``n`` draft tokens hangs on the *root*, the last committed token, which is not a node. Node ``i``
has a parent ``parents[i] < i``, or ``-1`` for the root, so the arrays are in topological order. A chain is a
tree with one branch; the empty tree is plain decoding.

The target scores a tree in ``n + 1`` *rows*: row 0 is the root, row ``i + 1`` is node ``i``. Row ``r`` holds
the law of the token that follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]

MAX_NODES = 64
"""Nodes one tree may have; the width that every target verifies in one forward."""

_NO_LAWS: Mapping[int, FloatArray] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Draft tokens of one request in one step.

    Attributes:
        tokens: i32[n], the guessed token of each node.
        parents: i32[n], the parent's index, -1 for the root; always smaller than the node's own.
        survival: f32[n] in [0, 1], expected probability that the node is accepted *together with all its
            ancestors*; never above its parent's.
        source: u8[n], index of the drafter that proposed the node, in the engine's list.
        laws: for nodes that were *sampled*: node -> f32[V], the law q the token was drawn from, given its
            path and its earlier siblings. A node without an entry is deterministic (q is a point mass).

    Raises:
        ValueError: the arrays are not a tree (lengths, order, bounds, survival).
    """

    tokens: IntArray
    parents: IntArray
    survival: FloatArray
    source: ByteArray
    laws: Mapping[int, FloatArray] = field(default_factory=lambda: _NO_LAWS)

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if not (len(self.parents) == len(self.survival) == len(self.source) == n):
            raise ValueError("tokens, parents, survival and source must have one entry for each node")
        if n > MAX_NODES:
            raise ValueError(f"a tree has at most {MAX_NODES} nodes, this one has {n}")
        # Of a flat array numbers are taken out at once; what is of another kind is refused where it comes from.
        survival = self.survival.tolist() if getattr(self.survival, "ndim", 0) == 1 else self.survival
        for i, parent in enumerate(self.parents.tolist()):
            if not -1 <= parent < i:
                raise ValueError(f"node {i} has parent {parent}; a parent is -1 or an earlier node")
            above = survival[parent] if parent >= 0 else 1.0
            if not 0.0 <= survival[i] <= above + 1e-6:
                raise ValueError(f"node {i} has survival {survival[i]:.7g}, its parent {above:.7g}")
        if n and (least := min(self.tokens.ravel().tolist())) < 0:
            raise ValueError(f"negative token id {least}")
        if self.laws and any(not 0 <= i < n for i in self.laws):
            raise ValueError("laws name a node that is not in the tree")

    @staticmethod
    def empty() -> DraftTree:
        """The tree without nodes: plain decoding."""
        return _EMPTY

    @staticmethod
    def of(
        tokens: Sequence[int] | IntArray,
        parents: Sequence[int] | IntArray,
        survival: Sequence[float] | FloatArray,
        source: int = 0,
        laws: Mapping[int, FloatArray] = _NO_LAWS,
    ) -> DraftTree:
        """Build from plain sequences, all nodes from one drafter."""
        n = len(tokens)
        sources = np.empty(n, np.uint8)  # np.full takes five times as long for so few
        sources.fill(source)
        return DraftTree(
            np.asarray(tokens, np.int32).reshape(n),
            np.asarray(parents, np.int32).reshape(n),
            np.asarray(survival, np.float32).reshape(n),
            sources,
            laws,
        )

    @staticmethod
    def sure(tokens: Sequence[int], parents: Sequence[int], survival: Sequence[float]) -> DraftTree:
        """The same of lists that are a tree by the way they were made: nothing is checked, which is half the time."""
        numbers = np.array(tokens, np.int32), np.array(parents, np.int32), np.array(survival, np.float32)
        return _sure(*numbers, np.zeros(len(tokens), np.uint8), _NO_LAWS)

    @staticmethod
    def chain(
        tokens: Sequence[int] | IntArray,
        survival: Sequence[float] | FloatArray,
        source: int = 0,
        laws: Mapping[int, FloatArray] = _NO_LAWS,
    ) -> DraftTree:
        """Build a tree with one branch."""
        return DraftTree.of(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32), survival, source, laws)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """True when no node has a sibling; the empty tree is a chain."""
        return bool(self.parents.tolist() == [*range(-1, len(self) - 1)])

    @property
    def depths(self) -> IntArray:
        """i32[n]: 1 for the root's children, and so on; node ``i`` stands at root position + ``depths[i]``."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return np.array(depths, np.int32)

    def children(self, node: int) -> list[int]:
        """Children of a node (-1: of the root) in proposal order."""
        return np.flatnonzero(self.parents == node).tolist()

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to ``node``; empty for -1."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def ancestors(self) -> BoolArray:
        """bool[n+1, n+1] over rows: ``[r, s]`` is true when row ``s`` is ``r`` itself, its ancestor or the root."""
        rows = len(self) + 1
        mask = np.zeros((rows, rows), np.bool_)
        mask[0, 0] = True
        for i, parent in enumerate(self.parents.tolist()):
            mask[i + 1] = mask[parent + 1]
            mask[i + 1, i + 1] = True
        return mask

    def keep(self, nodes: Iterable[int]) -> DraftTree:
        """The subtree of ``nodes``, which must be closed under parents; order is preserved."""
        kept = sorted(set(nodes))
        if len(kept) == len(self.tokens):
            return self
        if not kept:
            return _EMPTY
        if kept[0] == 0 and kept[-1] == len(kept) - 1:  # the first ones, which are closed under parents
            first = slice(len(kept))
            laws = {i: law for i, law in self.laws.items() if i < len(kept)}
            return _sure(self.tokens[first], self.parents[first], self.survival[first], self.source[first], laws)
        new = {old: i for i, old in enumerate(kept)}
        new[-1] = -1
        old, at = self.parents.tolist(), np.array(kept)
        try:
            parents = [new[old[i]] for i in kept]
        except KeyError as missing:
            raise ValueError(f"node {missing.args[0]} is needed as a parent but not kept") from None
        laws = {new[i]: law for i, law in self.laws.items() if i in new}
        return _sure(self.tokens[at], np.array(parents, np.int32), self.survival[at], self.source[at], laws)

    def with_survival(self, survival: Sequence[float]) -> DraftTree:
        """The same nodes, expected otherwise; f[n] in [0, 1], no node above its parent."""
        return _sure(self.tokens, self.parents, np.array(survival, np.float32), self.source, self.laws)

    @staticmethod
    def merge(trees: Sequence[DraftTree]) -> DraftTree:
        """Trie union: deterministic nodes with the same path become one, with the larger survival and its source.

        Sampled nodes are never joined with others: each keeps its own law, and the recursive rule judges
        them in order. At most ``MAX_NODES`` nodes stay, those of greatest survival.
        """
        some = [t for t in trees if len(t)]
        if not some:
            return _EMPTY
        if len(some) == 1:
            return some[0]
        tokens: list[int] = []
        parents: list[int] = []
        survival: list[float] = []
        source: list[int] = []
        laws: dict[int, FloatArray] = {}
        known: dict[tuple[int, int], int] = {}
        for tree in some:
            place: dict[int, int] = {-1: -1}
            for i in range(len(tree)):
                parent = place[int(tree.parents[i])]
                key = (parent, int(tree.tokens[i]))
                at = known.get(key)
                if i in tree.laws or at is None:
                    at = len(tokens)
                    tokens.append(key[1])
                    parents.append(parent)
                    survival.append(float(tree.survival[i]))
                    source.append(int(tree.source[i]))
                    if i in tree.laws:
                        laws[at] = tree.laws[i]
                    else:
                        known[key] = at
                elif tree.survival[i] > survival[at]:
                    survival[at] = float(tree.survival[i])
                    source[at] = int(tree.source[i])
                place[i] = at
        for i, parent in enumerate(parents):  # a child from a surer drafter lifts nobody above its parent
            if parent >= 0:
                survival[i] = min(survival[i], survival[parent])
        return DraftTree.best(tokens, parents, survival, source, laws)

    @staticmethod
    def best(
        tokens: Sequence[int],
        parents: Sequence[int],
        survival: Sequence[float],
        source: Sequence[int],
        laws: Mapping[int, FloatArray] = _NO_LAWS,
        nodes: int = MAX_NODES,
    ) -> DraftTree:
        """The ``nodes`` nodes of greatest survival of however many, in order; survival is never above a parent's."""
        order: Sequence[int] = range(len(tokens))
        if len(tokens) > nodes:
            order = sorted(sorted(order, key=lambda i: (-survival[i], i))[:nodes])
        new = {old: i for i, old in enumerate(order)}
        new[-1] = -1
        return DraftTree(
            np.asarray([tokens[i] for i in order], np.int32),
            np.asarray([new[parents[i]] for i in order], np.int32),
            np.asarray([survival[i] for i in order], np.float32),
            np.asarray([source[i] for i in order], np.uint8),
            {new[i]: law for i, law in laws.items() if i in new},
        )


def _sure(
    tokens: IntArray, parents: IntArray, survival: FloatArray, source: ByteArray, laws: Mapping[int, FloatArray]
) -> DraftTree:
    """A tree of arrays that are known to be one, such as a part of a tree: checking takes longer than all else."""
    tree = object.__new__(DraftTree)
    vars(tree).update(tokens=tokens, parents=parents, survival=survival, source=source, laws=laws)
    return tree


_EMPTY = DraftTree.of([], [], [])
for _array in (_EMPTY.tokens, _EMPTY.parents, _EMPTY.survival, _EMPTY.source):
    _array.flags.writeable = False  # one object for all


@dataclass(frozen=True)
class Path:
    """What the accept rule decided: the accepted nodes, root's child first, and the target's own next token.

    ``next_token`` is the correction after a miss and the bonus token after a full hit. A step emits
    ``tree.tokens[nodes]`` followed by ``next_token``.
    """

    nodes: tuple[int, ...]
    next_token: int


def common(a: IntArray, b: IntArray) -> int:
    """Length of the common beginning of two i32[n] texts."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
