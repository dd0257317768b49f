"""The choice of nodes is the best of all sizes, not the first descent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.budget import HURDLE, Costs, best_chain, choose, shallow
from augury.tree import MAX_NODES, DraftTree


def costs(*verify, attend=0.0, rest=0.0):
    return Costs(np.array([0.0, *verify]), attend, rest)


@st.composite
def trees(draw, most=6):
    n = draw(st.integers(0, most))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    survival = []
    for parent in parents:
        survival.append(draw(st.floats(0, 1)) * (survival[parent] if parent >= 0 else 1.0))
    return DraftTree.of(list(range(n)), parents, survival)


def test_nothing_is_verified_when_nothing_pays():
    steep = costs(*(10.0 * r for r in range(1, 66)))
    tree = DraftTree.chain([1, 2, 3], [0.9, 0.8, 0.7])
    assert len(choose([tree], steep, [100])[0]) == 0


def test_a_shelf_behind_a_step_is_found():
    # Two rows cost as much as eight: first descent would stop at one, the best is the shelf's right edge.
    stair = costs(10.0, *([17.0] * 7), *([90.0] * 57))
    tree = DraftTree.chain(list(range(10)), [0.6**i for i in range(1, 11)])
    assert len(choose([tree], stair, [0])[0]) == 7


def test_without_costs_every_node_is_verified():
    tree = DraftTree.chain([1, 2], [0.1, 0.0])
    assert choose([tree], None, [5])[0] is tree


@given(st.lists(trees(), min_size=1, max_size=3), st.lists(st.floats(0.1, 3), min_size=19, max_size=19))
def test_choice_equals_the_best_of_all_closed_sets(batch, increments):
    table = costs(*np.cumsum(increments), rest=0.5)
    chosen = choose(batch, table, [0] * len(batch))

    def rate(kept):
        rows = np.array([len(batch) + sum(len(t) for t in kept)])
        return (len(batch) + sum(float(t.survival.sum()) for t in kept)) / float(table.step(rows, np.zeros(1))[0])

    def closed(tree):
        for bits in itertools.product([0, 1], repeat=len(tree)):
            nodes = [i for i, b in enumerate(bits) if b]
            if all(tree.parents[i] < 0 or tree.parents[i] in nodes for i in nodes):
                yield tree.keep(nodes)

    plain = rate([DraftTree.empty()] * len(batch))
    if len(batch) == 1:
        best = max(rate([t]) for t in closed(batch[0]))
        assert rate(chosen) == pytest.approx(best if best >= HURDLE * plain else plain, rel=1e-5)
    for tree, kept in zip(batch, chosen, strict=True):
        assert len(kept) <= len(tree)
    assert rate(chosen) >= plain - 1e-9


def test_context_makes_rows_dearer():
    table = costs(*(5.0 + 0.1 * r for r in range(1, 66)), attend=1.0)
    tree = DraftTree.chain(list(range(12)), [0.8**i for i in range(1, 13)])
    assert len(choose([tree], table, [10_000])[0]) < len(choose([tree], table, [10])[0])
    assert 0 <= table.useful_nodes(10_000) <= table.useful_nodes(10) <= MAX_NODES


def test_best_chain_and_shallow():
    tree = DraftTree.of([1, 2, 3, 4], [-1, 0, -1, 2], [0.5, 0.1, 0.4, 0.39])
    assert best_chain(tree).tokens.tolist() == [3, 4]
    assert shallow(tree, 1).tokens.tolist() == [1, 3]
    assert len(shallow(tree, 0)) == 0
