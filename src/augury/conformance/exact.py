"""Exact laws of programs that use chance: every outcome, with its probability, by running all branches.

The rules of ``accept.py`` meet chance in two forms only: ``race(weights, waits)`` and a uniform number compared with
a threshold. ``Chances`` hands out stand-ins for both that branch: a race takes each index in turn, with its share
of the weights; a comparison takes both answers. So the shipped code itself is measured, not a model of it, and a
law is known to rounding instead of to sampling error.

Every array and number handed out counts as independent of all others. Noise that is *wrongly* used twice is
therefore not seen here; ``law.empirical`` sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from augury.errors import AuguryError
from augury.noise import LawArray, Noise

Outcome = TypeVar("Outcome", bound=Hashable)


class NotEnumerable(AuguryError):
    """A program has too many branches, or uses chance in a way that is not understood here."""


class Chances:
    """One branch of a program: follows a script of choices, then takes first choices, and notes all shares."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.taken: list[tuple[int, LawArray]] = []
        self.probability = 1.0

    def choose(self, weights: LawArray) -> int:
        """An index of positive weight."""
        shares = weights / weights.sum()
        at = len(self.taken)
        choice = self._script[at] if at < len(self._script) else int(np.flatnonzero(shares)[0])
        self.taken.append((choice, shares))
        self.probability *= float(shares[choice])
        return choice

    def next_script(self) -> list[int] | None:
        """The script of the next branch in order, or None behind the last."""
        for at in range(len(self.taken) - 1, -1, -1):
            choice, shares = self.taken[at]
            later = np.flatnonzero(shares[choice + 1 :])
            if len(later):
                return [c for c, _ in self.taken[:at]] + [choice + 1 + int(later[0])]
        return None


def outcomes(program: Callable[[Chances], Outcome], limit: int = 1_000_000) -> dict[Outcome, float]:
    """The law of what a program gives.

    Args:
        program: must meet chance only through what it is handed.
        limit: branches after which the attempt is given up.

    Raises:
        NotEnumerable: there are more branches than ``limit``.
    """
    law: dict[Outcome, float] = {}
    script: list[int] | None = []
    for _ in range(limit):
        chances = Chances(script or ())
        outcome = program(chances)
        law[outcome] = law.get(outcome, 0.0) + chances.probability
        script = chances.next_script()
        if script is None:
            return law
    raise NotEnumerable(f"more than {limit} branches; use fewer tokens, shallower drafts or a smaller vocabulary")


class ExactNoise(Noise):
    """Noise whose values branch."""

    def __init__(self, chances: Chances) -> None:
        super().__init__(seed=0, stream=0)
        object.__setattr__(self, "_chances", chances)

    def exponential(self, position: int, n: int) -> LawArray:
        """Waits for a race."""
        return _Waits(self._chances)  # type: ignore[attr-defined, return-value]

    def uniform(self, position: int, index: int) -> float:
        """A number to compare once."""
        return _Uniform(self._chances)  # type: ignore[attr-defined, return-value]

    def salted(self, salt: int) -> Noise:
        """The same: all that is handed out is independent already."""
        return self


class _Waits:
    """Stands for f64[n] of waits; ``weights / waits`` and its argmax are understood, nothing else."""

    __array_ufunc__ = None  # so that an array on the left leaves the division to this class

    def __init__(self, chances: Chances) -> None:
        self._chances = chances
        self._last: LawArray | None = None
        self._won = -1

    def __rtruediv__(self, weights: LawArray) -> _Race:
        return _Race(self, weights)

    def run(self, weights: LawArray) -> int:
        if self._last is not None:
            # A second race on the same waits is a fresh choice only when the winner left and nothing else changed.
            left = self._last.copy()
            left[self._won] = 0.0
            if not np.allclose(left / left.sum(), weights / weights.sum(), atol=1e-6):
                raise NotEnumerable("waits were raced twice by different laws: the draws are not independent")
        self._last = np.asarray(weights, np.float64)
        self._won = self._chances.choose(self._last)
        return self._won


class _Race:
    def __init__(self, waits: _Waits, weights: LawArray) -> None:
        self._waits = waits
        self._weights = weights

    def argmax(self, axis: None = None, out: None = None) -> int:
        return self._waits.run(self._weights)


class _Uniform:
    """Stands for ``scale * u``; may be compared once."""

    def __init__(self, chances: Chances, scale: float = 1.0) -> None:
        self._chances: Chances | None = chances
        self._scale = scale

    def __mul__(self, scale: float) -> _Uniform:
        chances, self._chances = self._chances, None
        if chances is None:
            raise NotEnumerable("a uniform number was used twice")
        return _Uniform(chances, self._scale * float(scale))

    __rmul__ = __mul__

    def __lt__(self, threshold: float) -> bool:
        chances, self._chances = self._chances, None
        if chances is None:
            raise NotEnumerable("a uniform number was used twice")
        if self._scale <= 0.0:
            return threshold > 0.0
        yes = min(max(float(threshold) / self._scale, 0.0), 1.0)
        return chances.choose(np.array([yes, 1.0 - yes])) == 0

    def __le__(self, threshold: float) -> bool:
        if self._scale <= 0.0:
            return threshold >= 0.0
        return self < threshold
