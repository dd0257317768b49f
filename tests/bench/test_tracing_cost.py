"""The tool that times tracing: its steps are steps, and its table is whole."""

from __future__ import annotations

import pytest

from augury.bench.tracing import SIZES, made, main, microseconds
from augury.trace.explain import fates


@pytest.mark.parametrize("nodes", SIZES)
def test_made_steps_are_possible(nodes):
    step = made(nodes, True)
    assert len(step.tree) == nodes == len(step.probabilities)
    assert step.accepted == min(3, nodes // 2)
    assert fates(step).count("accepted") == step.accepted


def test_a_larger_tree_takes_longer():
    assert microseconds(64, False, False, 3, 50) > microseconds(0, False, False, 3, 50) > 0.0


def test_the_table_has_a_row_for_every_size(capsys):
    assert main([]) == 0
    assert [int(row.split()[0]) for row in capsys.readouterr().out.splitlines()[2:]] == [*SIZES]
