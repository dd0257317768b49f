"""Chance that can be repeated: every number has a name, and is a function of it.

A draw from a law is a race: token i waits an exponential time and runs at the speed of its weight, and the first to
arrive is drawn. Who shares the waits shares the draws, as far as the weights agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

LawArray = npt.NDArray[np.float64]
"""f64[V]: a law over token ids, or weights that a law is proportional to."""

_TINY = 1e-300  # a waiting time of zero would make 0 / 0 of a banned token
_MASK = (1 << 64) - 1

_KEPT = 24
"""Arrays that are kept: soon after a guess the target's own token of its place is drawn with the same noise, and making
it takes half of a draw."""


class Stream(IntEnum):
    """Independent sources of noise in one request."""

    TARGET = 0
    """Draws of the target's tokens under the coupled rule."""
    DRAFT = 1
    """Draws of sampling drafters under the ratio rules."""
    ACCEPT = 2
    """Verdicts and corrections of the ratio rules."""


@dataclass(frozen=True)
class Noise:
    """Keyed, counter-based noise (Philox, Salmon et al. 2011): a value depends on its name, not on the order of calls.

    Attributes:
        seed: of the request, any 64-bit integer.
        stream: a ``Stream``.
        salt: separates uses of one stream that must be independent of each other, 0 to 2**56 - 1.
    """

    seed: int
    stream: int
    salt: int = 0

    def exponential(self, position: int, n: int) -> LawArray:
        """f64[n] of independent standard exponentials for the token at an absolute position, all above 0. Read-only.

        Entry i belongs to token id i; a smaller n gives the beginning of the same array.
        """
        return _exponential(self, position, n)

    def uniform(self, position: int, index: int) -> float:
        """A number in (0, 1) named by position and index; independent of ``exponential``."""
        return (float(self._at(position, 1, index).integers(1 << 52)) + 0.5) * 2.0**-52

    def salted(self, salt: int) -> Noise:
        """The same stream, independent of this one."""
        return Noise(self.seed, self.stream, salt)

    def _at(self, position: int, kind: int, index: int) -> np.random.Generator:
        key = np.array([self.seed & _MASK, self.stream + (self.salt << 8)], np.uint64)
        counter = np.array([0, kind, index, position], np.uint64)  # the first word counts the blocks of one array
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


@lru_cache(maxsize=_KEPT)
def _exponential(noise: Noise, position: int, n: int) -> LawArray:
    draws = noise._at(position, 0, 0).standard_exponential(n)
    np.maximum(draws, _TINY, out=draws)
    draws.flags.writeable = False
    return draws


def race(weights: LawArray, waits: LawArray) -> int:
    """Draw from a law: the index of greatest weight / wait. Weights f64[V] need not sum to 1; waits f64[V].

    With standard exponential waits index i wins with probability weights[i] / sum: the Gumbel-max draw, as the
    argmax of log weight - log wait, without its logarithms.
    """
    return int(np.argmax(weights / waits))
