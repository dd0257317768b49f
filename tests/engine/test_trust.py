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
        trust.learn(tree, Path((0,) if dice.random() < stated**power else (), 2))
    assert abs(trust.power - power) < 0.2


def test_certain_and_impossible_nodes_do_not_break_it():
    trust = Trust()
    tree = trust.temper(DraftTree.chain([1, 2], [1.0, 0.0]))
    for _ in range(50):
        trust.learn(tree, Path((), 3))
        trust.learn(tree, Path((0, 1), 3))
    assert 0.5 < trust.power < 3
    assert trust.temper(DraftTree.empty()) is DraftTree.empty()
