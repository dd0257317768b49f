"""The statistics of paired measurements: pure functions of lists of ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
"""Level of the intervals."""

RESAMPLES = 9_999
"""Samples drawn for an interval."""

SLOWER = 0.95
"""A ratio below it is slower by more than noise: shares of such prompts are shown."""


def geometric_mean(ratios: Sequence[float]) -> float:
    """The mean for ratios: of a speed-up and its inverse it is 1."""
    return math.exp(statistics.fmean(math.log(r) for r in ratios))


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    return float(statistics.median(values))


def interval(ratios: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """Percentile bootstrap of the geometric mean; the sample is drawn again with replacement 9,999 times.

    None with fewer than three ratios, which say too little.
    """
    if len(ratios) < 3:
        return None
    logs = np.log(np.asarray(ratios, np.float64))
    drawn = np.random.default_rng(seed).integers(0, len(logs), (RESAMPLES, len(logs)))
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(logs[drawn].mean(axis=1), [tail, 100.0 - tail])
    return math.exp(low), math.exp(high)
