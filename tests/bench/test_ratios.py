import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.bench.ratios import geometric_mean, interval, median

ratios = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=20)


@given(ratios)
def test_a_ratio_and_its_inverse_cancel(values):
    assert geometric_mean(values + [1.0 / v for v in values]) == pytest.approx(1.0)


@given(ratios)
def test_the_geometric_mean_lies_between_least_and_greatest(values):
    assert min(values) * (1 - 1e-9) <= geometric_mean(values) <= max(values) * (1 + 1e-9)


def test_known_means():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([1.0, 2.0]) == 1.5


def test_the_interval_of_a_normal_sample_is_the_textbook_one():
    # exp of 400 evenly spread normal quantiles: the mean of the logs is 0, their standard error 1/20.
    from scipy.stats import norm

    logs = norm.ppf([(i + 0.5) / 400 for i in range(400)])
    low, high = interval([math.exp(x) for x in logs])
    assert math.log(low) == pytest.approx(-1.96 / 20, abs=0.01)
    assert math.log(high) == pytest.approx(1.96 / 20, abs=0.01)


def test_the_interval_is_that_of_scipy():
    import numpy as np
    from scipy.stats import bootstrap

    sample = [0.8, 1.1, 1.7, 2.4, 0.9]
    found = bootstrap((np.log(sample),), np.mean, method="percentile", rng=np.random.default_rng(0))
    theirs = [math.exp(x) for x in (found.confidence_interval.low, found.confidence_interval.high)]
    assert interval(sample) == pytest.approx(theirs)


def test_the_interval_is_the_same_again_and_needs_three_ratios():
    assert interval([1.0, 2.0, 3.0]) == interval([1.0, 2.0, 3.0])
    assert interval([1.0, 2.0]) is None
