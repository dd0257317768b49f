"""Measures what a forward costs on this machine, and keeps the figures true while serving."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from augury.budget import Costs
from augury.models.target import Target
from augury.tree import MAX_NODES, DraftTree

_GRID = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48, MAX_NODES + 1)
_SHORT, _LONG = 64, 512
_PACE = 0.1
"""Share of a step's surprise that is laid to the machine, which is slower or faster now for steps of all sizes."""

_STEPS = 20.0
"""Served steps that a grid point is the mean of at most: so many of another kind replace it."""

_PROFILED = 2.0
"""Served steps that a profiled time counts for."""


class Meter:
    """Cost table of one target: profiled once, then moved by served steps.

    A served step tells of its own number of rows, and of the machine: where other programs run, or stop running, steps
    of all sizes change alike, those that are not served at present too. So a time is a grid point's times the pace.

    Args:
        rows: i64[k] of the grid, rising.
        ms: f64[k] of their forwards at short context.
        attend: milliseconds for each row and each thousand tokens of its context.
    """

    def __init__(self, rows: tuple[int, ...], ms: np.ndarray, attend: float) -> None:
        self._rows = np.asarray(rows, np.int64)
        self._ms = np.array(ms, np.float64)  # as measured; only the table of these points never falls
        self._steps = np.full(len(rows), _PROFILED)  # that each is the mean of
        self._attend = attend
        self._pace = 1.0
        self._rest = 0.0
        self._table()

    @staticmethod
    def of(costs: Costs) -> Meter:
        """Begin with the forwards of a table; what surrounds them is learnt from steps."""
        rows = tuple(r for r in _GRID if r < len(costs.verify))
        return Meter(rows, costs.verify[list(rows)], costs.attend)

    def _table(self) -> None:
        rising = self._pace * never_falling(self._ms, self._steps)
        table = np.interp(np.arange(self._rows[-1] + 1), self._rows, rising)
        table[0] = 0.0
        self.costs = Costs(table, self._pace * self._attend, self._rest)

    def served(self, rows: int, read: float, verify_ms: float, rest_ms: float) -> None:
        """Learn from one step: its rows, the row-tokens of context it read, its times."""
        self._rest += (min(rest_ms, 50.0) - self._rest) / _STEPS
        point = int(np.searchsorted(self._rows, rows))
        if point == len(self._rows):
            self.costs = Costs(self.costs.verify, self.costs.attend, self._rest)
            return
        # Against the points that are moved, not the table: where two rows cost less than one, a point that is judged
        # by its neighbour's time would move for ever.
        expected = self._pace * (float(np.interp(rows, self._rows, self._ms)) + self._attend * read / 1e3)
        # A step that lost the processor for a while says nothing of its rows: cap what it can teach.
        surprise = float(np.clip(verify_ms / expected - 1.0, -0.5, 0.5))
        low = point if self._rows[point] == rows else point - 1
        for at in {low, point}:
            near = 1.0 - abs(int(self._rows[at]) - rows) / max(int(self._rows[point] - self._rows[low]), 1)
            self._steps[at] = min(self._steps[at] + near, _STEPS)
            # By its own share, so that it stays above 0: a context that took less than was thought is not its doing.
            self._ms[at] *= 1.0 + near / self._steps[at] * surprise
        self._pace *= 1.0 + _PACE * surprise
        self._table()


def never_falling(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The nearest values to f64[k] ones, by weighted squares, that never fall: neighbours that do are pooled.

    More rows never cost less, so a time above that of a longer forward is noise, and so is one below that of a shorter
    one: who was measured more often decides (isotonic regression; Ayer et al. 1955).
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, count = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, heavy, many = pools.pop()
            mean = (mean * total + before * heavy) / (total + heavy)
            total, count = total + heavy, count + many
        pools.append((mean, total, count))
    return np.repeat([mean for mean, _, _ in pools], [count for _, _, count in pools])


def profile(target: Target, *, repeats: int = 2, progress: Callable[[float], None] | None = None) -> Meter:
    """Time forwards of 1 to 65 rows at short and at longer context; about a second for a small model.

    The table is the fastest of ``repeats`` runs for each number of rows: noise only ever adds.
    """
    context = min(_LONG, target.info.context // 2)
    short = min(_SHORT, context)
    slot = target.open()
    try:
        rng = np.random.default_rng(0)
        target.prefill(slot, rng.integers(0, target.info.vocab_size, short, dtype=np.int32))
        grid = [r for r in _GRID if r <= target.info.context - context]
        times = np.full(len(grid), np.inf)
        for done in range(repeats):
            for i, rows in enumerate(grid):
                times[i] = min(times[i], _time(target, slot, rows))
            if progress:
                progress((done + 1) / (repeats + 1))
        attend = 0.0
        if context > short:
            target.prefill(slot, rng.integers(0, target.info.vocab_size, context - short, dtype=np.int32))
            i = grid.index(16) if 16 in grid else len(grid) - 1
            longer = min(_time(target, slot, grid[i]) for _ in range(repeats))
            attend = max(0.0, longer - times[i]) / (grid[i] * (context - short) / 1e3)
        times = np.maximum(times - attend * np.asarray(grid) * short / 1e3, 0.5 * times)
    finally:
        target.release(slot)
    if progress:
        progress(1.0)
    return Meter(tuple(grid), times, attend)


def timed(target: Target, sizes: Sequence[int], context: int, repeats: int = 2) -> npt.NDArray[np.float64]:
    """Milliseconds of forwards of so many rows each behind ``context`` tokens, the fastest of ``repeats``."""
    slot = target.open()
    try:
        target.prefill(slot, np.random.default_rng(0).integers(0, target.info.vocab_size, context, dtype=np.int32))
        return np.array([min(_time(target, slot, rows) for _ in range(repeats)) for rows in sizes])
    finally:
        target.release(slot)


def _time(target: Target, slot: int, rows: int) -> float:
    """Milliseconds of one verify with that many rows, the second of two alike; nothing is committed.

    The first finds in the caches what a forward of another size left there, which is not how decoding runs.
    """
    tree = DraftTree.chain(np.arange(rows - 1, dtype=np.int32) % target.info.vocab_size, np.ones(rows - 1, np.float32))
    for _ in range(2):
        begin = time.perf_counter()
        target.verify([slot], [0], [tree])
    return 1e3 * (time.perf_counter() - begin)
