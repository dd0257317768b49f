"""Stated survival is believed as far as it proved true."""

from __future__ import annotations

import numpy as np
import pytest

from augury.engine.trust import Trust
from augury.tree import DraftTree, Path


@pytest.mark.parametrize("power", [0.9, 1.0, 1.6])
def test_power_is_learnt(power):
    dice = np.random.default_rng(0)
    trust = Trust()
    for _ in range(1500):
        stated = np.float32(dice.uniform(0.05, 0.95))
        tree = trust.temper(DraftTree.chain([1], [stated]))
        trust.learn(tree, tree, Path((0,) if dice.random() < stated**power else (), 2))
    assert abs(trust.powers[0] - power) < 0.2


def test_certain_and_impossible_nodes_do_not_break_it():
    trust = Trust()
    tree = trust.temper(DraftTree.chain([1, 2], [1.0, 0.0]))
    for _ in range(50):
        trust.learn(tree, tree, Path((), 3))
        trust.learn(tree, tree, Path((0, 1), 3))
    assert 0.5 < trust.powers[0] < 3
    assert trust.temper(DraftTree.empty()) is DraftTree.empty()


def two(stated: float, other: float) -> DraftTree:
    """A child of the second drafter below a node of the first."""
    return DraftTree(
        np.array([1, 2], np.int32), np.array([-1, 0], np.int32), np.array([stated, other], np.float32),
        np.array([0, 1], np.uint8),
    )  # fmt: skip


def test_a_drafter_that_is_always_wrong_is_soon_not_believed_and_the_other_is():
    trust = Trust()
    for _ in range(20):
        tree = trust.temper(two(0.9, 0.9))
        trust.learn(tree, tree, Path((0,), 3))
    believed = trust.temper(two(0.9, 0.9)).survival
    assert believed[0] > 0.85
    assert believed[1] < 0.5


def test_a_child_is_never_believed_more_than_its_parent():
    trust = Trust()
    trust.powers[0] = 9.0
    assert trust.temper(two(0.8, 0.8)).survival.tolist() == pytest.approx([0.8**9] * 2)


def test_what_must_be_stated_is_what_is_then_believed():
    trust = Trust()
    trust.powers |= {0: 0.5, 1: 0.8}
    assert trust.stated(0.25, {0}) == pytest.approx(0.0625)
    assert trust.temper(DraftTree.chain([1], [trust.stated(0.25, {0})])).survival[0] == pytest.approx(0.25)
    assert trust.stated(0.25, {0, 1}) == pytest.approx(0.0625)  # the one who is believed most decides
    trust.powers[2] = 20.0  # is still to offer what it would at the start, or it would never be tried again
    assert trust.stated(0.25, {2}) == Trust().stated(0.25, {3})
    assert trust.stated(0.0, {0}) == 0.0


def test_a_request_learns_with_the_engine_and_of_private_drafters_alone():
    trust = Trust()
    own = trust.own()
    for _ in range(20):
        tree = own.temper(two(0.9, 0.9))
        trust.learn(tree, tree, Path((0, 1), 3), own, frozenset({1}))
    assert own.powers[0] < 1.1
    assert own.powers[1] < 1.1
    assert trust.powers[0] < 1.1
    assert trust.powers[1] == Trust().powers[1]


def test_what_is_not_verified_is_tried_again_in_time():
    trust = Trust()
    trust.powers[0] = 30.0
    offered = trust.temper(DraftTree.chain([1], [0.9]))
    for _ in range(2000):
        trust.learn(offered, DraftTree.empty(), Path((), 3))
    assert trust.powers[0] < 2.0
