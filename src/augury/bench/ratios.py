"""The statistics of paired measurements: pure functions of lists of ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95
"""Level of the intervals."""


def geometric_mean(ratios: Sequence[float]) -> float:
    """The mean for ratios: of a speed-up and its inverse it is 1."""
    return math.exp(statistics.fmean(math.log(r) for r in ratios))


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    return float(statistics.median(values))


def interval(ratios: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """Percentile bootstrap of the geometric mean; the sample is drawn again with replacement 9,999 times.

    None with fewer than three ratios, which say too little, and without the package scipy.
    """
    if len(ratios) < 3:
        return None
    try:
        from scipy.stats import bootstrap  # type: ignore[import-untyped]
    except ImportError:
        return None
    import numpy as np

    logs = np.log(np.asarray(ratios, np.float64))
    found = bootstrap(
        (logs,), np.mean, confidence_level=CONFIDENCE, method="percentile", rng=np.random.default_rng(seed)
    ).confidence_interval
    return math.exp(float(found.low)), math.exp(float(found.high))
