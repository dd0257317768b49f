"""The meter: what it has learnt from served steps, and that it can learn something else later."""

from __future__ import annotations

import numpy as np
import pytest

from augury.engine.costs import Meter


def test_a_point_cheaper_than_the_one_before_it_does_not_wind_up():
    """Two rows cost less than one on some machines; the table never falls, but its points stay where they were seen."""
    meter = Meter((1, 2, 8), np.array([12.0, 10.0, 20.0]), 0.0)
    for _ in range(2000):
        meter.served(2, 0.0, 10.0, 1.0)
    assert meter.costs.verify[:3].tolist() == [0.0, 12.0, 12.0]
    for _ in range(100):
        meter.served(2, 0.0, 30.0, 1.0)
    assert meter.costs.verify[2] == pytest.approx(30.0, rel=0.05)


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_served_steps_replace_the_profile(rows):
    meter = Meter((1, 2, 8), np.array([10.0, 10.5, 14.0]), 2.0)
    for _ in range(300):
        meter.served(rows, 500.0, 25.0, 1.0)
    cost = meter.costs.step(np.asarray([rows]), np.asarray([500.0]))[0] - meter.costs.rest
    assert cost == pytest.approx(25.0, rel=0.02)


def test_steps_wider_than_the_table_teach_only_the_rest():
    meter = Meter((1, 2), np.array([10.0, 11.0]), 0.0)
    before = meter.costs.verify.copy()
    meter.served(9, 0.0, 500.0, 20.0)
    assert meter.costs.verify.tolist() == before.tolist()
    assert meter.costs.rest > 0.0
