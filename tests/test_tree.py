"""The draft tree's invariants, for any tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.tree import MAX_NODES, DraftTree

V = 4


@st.composite
def trees(draw, size=12, source=None, laws=True):
    n = draw(st.integers(0, size))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    tokens = [draw(st.integers(0, V - 1)) for _ in range(n)]
    survival: list[float] = []
    for parent in parents:
        survival.append((survival[parent] if parent >= 0 else 1.0) * draw(st.floats(0, 1, width=16)))
    sampled = {i: np.full(V, 1 / V, np.float32) for i in range(n) if laws and draw(st.booleans())}
    return DraftTree.of(tokens, parents, survival, draw(st.integers(0, 3)) if source is None else source, sampled)


def words(tree, node):
    return tuple(int(tree.tokens[i]) for i in tree.path(node))


@given(trees())
def test_views_of_the_shape_agree(tree):
    mask, depths = tree.ancestors(), tree.depths
    for node in range(len(tree)):
        path = tree.path(node)
        assert path[-1] == node
        assert len(path) == depths[node]
        assert [int(tree.parents[i]) for i in path] == [-1, *path[:-1]]
        assert np.flatnonzero(mask[node + 1]).tolist() == [0] + [i + 1 for i in path]
        assert node in tree.children(int(tree.parents[node]))
    assert mask[0].tolist() == [True] + [False] * len(tree)
    assert sorted(c for n in range(-1, len(tree)) for c in tree.children(n)) == list(range(len(tree)))
    assert tree.is_chain == all(len(tree.children(n)) <= 1 for n in range(-1, len(tree)))


@given(trees(), st.data())
def test_keep_gives_the_subtree(tree, data):
    chosen = data.draw(st.sets(st.integers(0, max(len(tree) - 1, 0)), max_size=len(tree)))
    closed = sorted({i for c in chosen for i in tree.path(c)})
    kept = tree.keep(closed)
    assert [words(kept, i) for i in range(len(kept))] == [words(tree, i) for i in closed]
    assert kept.survival.tolist() == tree.survival[closed].tolist()
    assert kept.source.tolist() == tree.source[closed].tolist()
    assert {i: id(law) for i, law in kept.laws.items()} == {
        closed.index(i): id(law) for i, law in tree.laws.items() if i in closed
    }
    for node in closed:
        if tree.children(node) and len(closed) < len(tree):
            open_ = [i for i in closed if i != node]
            if any(int(tree.parents[i]) == node for i in open_):
                with pytest.raises(ValueError, match="needed as a parent"):
                    tree.keep(open_)


@settings(max_examples=200)
@given(st.lists(trees(laws=False), max_size=4))
def test_merge_of_deterministic_trees_is_the_union_of_their_paths(some):
    merged = DraftTree.merge(some)
    union = {words(t, i) for t in some for i in range(len(t))}
    paths = [words(merged, i) for i in range(len(merged))]
    assert set(paths) == union
    if len([t for t in some if len(t)]) < 2:
        return  # nothing to join: the tree is given back as it is, twins included
    assert len(paths) == len(union), "each path once"
    for i, path in enumerate(paths):
        offers = [float(t.survival[j]) for t in some for j in range(len(t)) if words(t, j) == path]
        assert float(merged.survival[i]) <= max(offers) + 1e-6
        if len(path) == 1:
            assert float(merged.survival[i]) == pytest.approx(max(offers))


@settings(max_examples=200)
@given(st.lists(trees(), min_size=2, max_size=4))
def test_merge_keeps_every_sampled_node_with_its_law_and_order(some):
    merged = DraftTree.merge(some)
    sampled = [(words(t, i), id(t.laws[i])) for t in some for i in range(len(t)) if i in t.laws]
    assert sorted(sampled) == sorted((words(merged, i), id(law)) for i, law in merged.laws.items())
    for tree in some:
        laws = {id(law): i for i, law in merged.laws.items()}
        for node in range(-1, len(tree)):
            own = [laws[id(tree.laws[c])] for c in tree.children(node) if c in tree.laws]
            assert own == sorted(own), "siblings keep the order in which they were drawn"
            assert len({int(merged.parents[i]) for i in own}) <= 1, "and their parent"


@settings(max_examples=60, deadline=None)
@given(st.lists(trees(60, laws=False), min_size=2, max_size=3))
def test_merge_stays_within_the_width_and_takes_the_best(some):
    merged = DraftTree.merge(some)
    assert len(merged) <= MAX_NODES
    if all(len(t) for t in some):
        assert len(merged) == min(MAX_NODES, len({words(t, i) for t in some for i in range(len(t))}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parents": [-1, 1]}, "node 1 has parent 1"),
        ({"parents": [0, 0]}, "node 0 has parent 0"),
        ({"parents": [-1, -2]}, "node 1 has parent -2"),
        ({"survival": [0.5, 0.6]}, "node 1 has survival"),
        ({"survival": [1.1, 0.5]}, "node 0 has survival"),
        ({"survival": [float("nan"), 0.0]}, "node 0 has survival"),
        ({"tokens": [1, -1]}, "negative token id -1"),
        ({"tokens": [1]}, "one entry for each node|reshape"),
        ({"laws": {2: np.ones(V, np.float32)}}, "not in the tree"),
    ],
)
def test_what_is_no_tree_is_refused(change, message):
    good = {"tokens": [1, 2], "parents": [-1, 0], "survival": [0.5, 0.5]}
    DraftTree.of(**good)
    with pytest.raises(ValueError, match=message):
        DraftTree.of(**(good | change))


def test_a_tree_of_one_too_many_is_refused():
    DraftTree.chain([0] * MAX_NODES, [0.5] * MAX_NODES)
    with pytest.raises(ValueError, match="at most 64 nodes, this one has 65"):
        DraftTree.chain([0] * 65, [0.5] * 65)


def test_empty_tree_is_a_chain_of_nothing():
    empty = DraftTree.empty()
    assert (len(empty), empty.is_chain, empty.path(-1), empty.children(-1)) == (0, True, [], [])
    assert empty.ancestors().tolist() == [[True]]
    assert DraftTree.merge([empty, empty]) is empty
    assert empty.keep([]) is empty
