"""``/trace/plots/*.svg``: pictures of the fold of a trace. Pure functions of ``Reliability.figures``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from augury.picture.bars import stacked
from augury.picture.plot import lines

Figures = Mapping[str, Any]


def calibration(figures: Figures) -> str:
    """What drafters said of their guesses, against what came of these."""
    series = {
        name: [(one["stated"], one["accepted"]) for one in of["calibration"]]
        for name, of in figures["drafters"].items()
        if of["calibration"]
    }
    ideal = {"as stated": [(0.0, 0.0), (1.0, 1.0)]}
    return lines("Survival, stated and real", "stated survival", "accepted", {**ideal, **series}, bare=True)


def runs(figures: Figures) -> str:
    """How far the guesses of each drafter came."""
    series = {
        name: [(float(run), steps / of["verified"]) for run, steps in enumerate(of["runs"])]
        for name, of in figures["drafters"].items()
        if of["verified"]
    }
    return lines("Run lengths", "accepted tokens of a step", "share of its steps", series, bare=True)


def time(figures: Figures) -> str:
    """Where the time goes."""
    shares = figures["time_shares"]
    rows = {}
    if shares:
        rows["steps"] = [shares["draft"], shares["verify"], shares["accept"] + shares["commit"], shares["rest"]]
    return stacked("Share of time", "of all steps", ("draft", "verify", "accept, commit", "rest"), rows, bare=True)


def speed(figures: Figures) -> str:
    """Tokens a second as they were, of drafted and of plain answers."""
    series: dict[str, list[tuple[float, float]]] = {}
    for span in figures["over_time"]:
        for label, rate in span["tokens_per_second"].items():
            series.setdefault(label or "begun before", []).append((1e-3 * span["at"], rate))
    return lines("Speed over time", "seconds", "tokens/s of one answer", series, bare=True)


PLOTS: Mapping[str, Callable[[Figures], str]] = MappingProxyType(
    {"calibration": calibration, "runs": runs, "time": time, "speed": speed}
)
"""By name."""
