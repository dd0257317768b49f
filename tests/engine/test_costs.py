"""The meter: what it has learnt from served steps, and that it can learn something else later."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from augury.engine.costs import Meter, never_falling


def test_a_point_cheaper_than_the_one_before_it_does_not_wind_up():
    """Two rows cost less than one on some machines; the table never falls, but its points stay where they were seen."""
    meter = Meter((1, 2, 8), np.array([12.0, 10.0, 20.0]), 0.0)
    for _ in range(2000):
        meter.served(2, 0.0, 10.0, 1.0)
    assert meter.costs.verify[1] == meter.costs.verify[2] == pytest.approx(10.0, rel=0.03)
    for _ in range(100):
        meter.served(2, 0.0, 30.0, 1.0)
    assert meter.costs.verify[2] == pytest.approx(30.0, rel=0.05)


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_served_steps_replace_the_profile(rows):
    meter = Meter((1, 2, 8), np.array([10.0, 10.5, 14.0]), 2.0)
    for _ in range(300):
        meter.served(rows, 500.0, 25.0, 1.0)
    cost = meter.costs.step(np.asarray([rows]), np.asarray([500.0]))[0] - meter.costs.rest
    assert cost == pytest.approx(25.0, rel=0.05)


def test_a_profile_that_was_disturbed_at_few_rows_does_not_lift_what_is_served():
    """Four rows were timed while another program ran. Steps of eight rows show what they cost, and bound the four."""
    meter = Meter((1, 2, 4, 8, 16), np.array([10.0, 10.0, 25.0, 14.0, 24.0]), 0.0)
    for _ in range(50):
        meter.served(8, 0.0, 14.0, 1.0)
    assert meter.costs.verify[8] == pytest.approx(14.0, rel=0.1)
    assert meter.costs.verify[4] == meter.costs.verify[8]


@pytest.mark.parametrize("times", [0.6, 1.5, 2.5])
def test_a_machine_that_became_slower_or_faster_is_so_for_steps_that_are_not_served(times):
    """Only plain steps are served; what drafted ones would cost now is their old price at the new pace."""
    ms = np.array([10.0, 10.5, 14.0, 24.0])
    meter = Meter((1, 2, 8, 16), ms, 2.0)
    for _ in range(100):
        meter.served(2, 0.0, 10.5, 1.0)
    for _ in range(60):
        meter.served(2, 0.0, times * 10.5, 1.0)
    found = meter.costs.verify[[2, 8, 16]] / (times * ms[1:])
    assert found[0] == pytest.approx(1.0, rel=0.05)
    assert np.all(abs(found[1:] - 1.0) < 0.75 * abs(1.0 / times - 1.0))  # much nearer than the old prices are


def test_one_mistaken_size_is_laid_to_that_size():
    """A profile that is wrong about two rows only is mended there, and the other sizes keep nearly what they have."""
    ms = np.array([10.0, 10.0, 20.0, 30.0])
    meter = Meter((1, 2, 8, 16), ms, 0.0)
    for _ in range(40):
        meter.served(2, 0.0, 15.0, 1.0)
        meter.served(8, 0.0, 20.0, 1.0)
    assert meter.costs.verify[[2, 8]] == pytest.approx([15.0, 20.0], rel=0.05)


@given(st.lists(st.tuples(st.floats(0.1, 100.0), st.floats(0.1, 20.0)), min_size=1, max_size=14))
def test_pooled_values_never_fall_and_are_the_nearest_that_do_not(points):
    values, weights = np.array(points).T
    found = never_falling(values, weights)
    assert np.all(np.diff(found) >= 0.0)
    known = isotonic_regression(values, weights=weights).x
    assert found == pytest.approx(known)


@pytest.mark.parametrize("attend", [0.0, 0.05, 0.2, 1.5])
def test_contexts_that_cost_other_than_profiled_leave_every_time_above_nothing(attend):
    """Half a millisecond was profiled for a row and a thousand tokens; only steps behind long contexts are served."""
    meter = Meter((1, 2, 8, 16), np.array([10.0, 10.0, 13.0, 24.0]), 0.5)
    for _ in range(300):
        meter.served(8, 64_000.0, 13.0 + 64.0 * attend, 1.0)
    assert np.all(meter.costs.verify[1:] > 1.0)
    cost = meter.costs.step(np.asarray([8]), np.asarray([64_000.0]))[0] - meter.costs.rest
    assert cost == pytest.approx(13.0 + 64.0 * attend, rel=0.2)


def test_steps_wider_than_the_table_teach_only_the_rest():
    meter = Meter((1, 2), np.array([10.0, 11.0]), 0.0)
    before = meter.costs.verify.copy()
    meter.served(9, 0.0, 500.0, 20.0)
    assert meter.costs.verify.tolist() == before.tolist()
    assert meter.costs.rest > 0.0
