"""Siblings share what their parent has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.engine.trust import Trust, exclusive
from augury.tree import DraftTree


def test_who_says_something_else_than_the_surest_has_the_rest():
    assert exclusive([0.9, 0.5], [-1, -1]) == pytest.approx([0.9, 0.1])
    assert exclusive([0.5, 0.9], [-1, -1]) == pytest.approx([0.1, 0.9])
    assert exclusive([0.3, 0.4, 0.2], [-1, -1, -1]) == pytest.approx([0.3, 0.4, 0.2])


def test_what_follows_loses_with_its_parent_and_none_is_surer_than_it():
    # 0 and its child 1 of one drafter, 2 and its child 3 of another.
    assert exclusive([0.8, 0.6, 0.5, 0.5], [-1, 0, -1, 2]) == pytest.approx([0.8, 0.6, 0.2, 0.2])
    assert exclusive([0.4, 0.7, 0.6], [-1, 0, 0]) == pytest.approx([0.4, 0.4, 0.0])


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(-1, 30)), max_size=30))
def test_it_lowers_only_and_keeps_every_bound(nodes):
    parents = [min(parent, i - 1) for i, (_, parent) in enumerate(nodes)]
    stated = [survival for survival, _ in nodes]
    found = exclusive(stated, parents)
    assert all(0.0 <= s <= before for s, before in zip(found, stated, strict=True))
    for place in [-1, *range(len(nodes))]:
        children = sum(s for s, parent in zip(found, parents, strict=True) if parent == place)
        assert children <= (1.0 if place < 0 else found[place]) + 1e-9


def test_trees_of_one_drafter_are_left_as_they_are_stated():
    alone = DraftTree.of([1, 2], [-1, -1], [0.9, 0.8])
    other = DraftTree(alone.tokens, alone.parents, alone.survival, np.array([0, 1], np.uint8))
    trust = Trust()
    trust.powers.update({0: 1.0, 1: 1.0})
    assert trust.temper(alone).survival.tolist() == pytest.approx([0.9, 0.8])
    assert trust.temper(other).survival.tolist() == pytest.approx([0.9, 0.1])
