"""How far a drafting model goes on, by what its own forwards and the target's cost."""

from __future__ import annotations

import numpy as np
import pytest

from augury.budget import Costs
from augury.drafters.spine import Spine
from augury.drafters.survival import Line


class Sure(Spine):
    """Says nothing: only its decision is asked."""

    def rows(self, view, paths):
        raise NotImplementedError


def spine(verify, ms, rest=0.0):
    """One whose forwards take so long, before a target with these verify times by rows."""
    costs = Costs(np.array(verify, np.float64), 0.0, rest)
    made = Sure(16, 1, [Line(1.0, 0.0)] * 7, lambda: costs)
    made._ms, made._hit = {(1, 0): ms, (1, 1): ms, (2, 1): ms}, 1.0
    return made


FLAT = [0.0, *[10.0] * 40]
STEP = [0.0, *[10.0] * 12, *[20.0] * 28]


@pytest.mark.parametrize(("verify", "nodes", "more"), [(FLAT, 11, 1), (STEP, 10, 1), (STEP, 11, 0), (STEP, 12, 0)])
def test_it_stops_before_a_step_of_the_table(verify, nodes, more):
    survival = [0.97**k for k in range(1, nodes + 1)]
    assert spine(verify, 1.0)._worth([survival[-1]], survival, nodes * 1e-3) == more


def test_a_guess_that_takes_longer_than_it_brings_is_not_made():
    assert spine(FLAT, 1.0)._worth([0.5], [], 0.0) == 1
    assert spine(FLAT, 6.0)._worth([0.5], [], 0.0) == 0


def test_rows_of_all_who_share_the_step_count():
    survival = [0.97**k for k in range(1, 6)]  # six rows of each of two: the next would be row 13 and 14
    assert spine(STEP, 1.0)._worth([survival[-1]], survival, 5e-3, 1) == 1
    assert spine(STEP, 1.0)._worth([survival[-1]], survival, 5e-3, 2) == 0


def test_rows_beyond_the_table_cost_what_its_last_ones_do():
    slope = [0.0, *[9.0 + rows for rows in range(1, 66)]]
    survival = [0.9**k for k in range(1, 9)]  # of each of sixteen: the table's end is long passed
    dear = spine(slope, 0.1)
    dear._ms[16, 1] = 0.1
    assert dear._worth([0.3], survival, 8e-4, 16) == 0


def test_without_a_table_all_is_gone_on_from():
    made = spine(FLAT, 1.0)
    made._costs = lambda: None
    assert made._worth([0.1, 0.01], [0.5], 1.0) == 2
