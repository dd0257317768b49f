"""From a drafter's raw estimate of a hit to a calibrated one, learnt from every token that comes.

A *hit* is that the guess is the next token, given that all before it were hits; survival is the product of hit
probabilities along a path. A drafter that knows no noise can tell at every position what it would have guessed
there, so it is scored against all text that comes, verified or not: nothing is censored and nothing explored.

The model is logistic (Platt 1999). For a guess of kind k in request r at temperature T::

    logit P(hit) = slope_k logit(raw) + offset_k - 0.7 T^2 + shared_k + own_kr

Slope and offset are the drafter's. The temperature term is what a copied guess was seen to lose when the target
draws from a flatter law (T up to 1). The two shifts start at 0 and follow by one Newton step a score,
``shift += (hit - P) / v`` (for ``shared_k`` P is that without ``own_kr``), where v adds up the curvatures P (1 - P) to
a cap, beyond which old scores fade:
``shared_k`` over all requests that sample alike, ``own_kr`` within the request, which is how a penalty on
repetition, or a text that never repeats, is noticed. Shifts are all that outlives a request: no token, no text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

SURE = 0.999
"""No hit is believed more than this, and none less than 1 - SURE."""

_FLATTER = 0.7
_WARMEST = 1.5  # beyond it the square says too much
_SHARED = (30.0, 1000.0)
_OWN = (6.0, 20.0)


@dataclass(frozen=True)
class Line:
    """Slope and offset of one kind of guess."""

    slope: float = 1.0
    offset: float = 0.0


@dataclass
class _Shift:
    """A learnt offset, the curvature behind it, and the most of it that counts."""

    weight: float
    cap: float
    value: float = 0.0

    def learn(self, hit: bool, stated: float) -> None:
        weight = self.weight + stated * (1.0 - stated)
        self.weight = weight = weight if weight < self.cap else self.cap
        self.value += (hit - stated) / weight


@dataclass
class Survival:
    """The calibration of one drafter: its kinds of guesses, and what was learnt of each by sampling class."""

    kinds: Sequence[Line]
    _shared: dict[int, list[_Shift]] = field(default_factory=dict)

    def open(self, temperature: float) -> Rates:
        """The calibration as one request sees it."""
        warmth = min(temperature, _WARMEST)
        shared = self._shared.setdefault(math.ceil(2.0 * warmth), [_Shift(*_SHARED) for _ in self.kinds])
        offsets = [kind.offset - _FLATTER * warmth**2 for kind in self.kinds]
        return Rates([kind.slope for kind in self.kinds], offsets, shared)


class Rates:
    """Hit probabilities in one request."""

    def __init__(self, slopes: list[float], offsets: list[float], shared: list[_Shift]) -> None:
        self._slopes, self._offsets, self._shared = slopes, offsets, shared
        self._own = [_Shift(*_OWN) for _ in slopes]

    def hit(self, kind: int, raw: float) -> float:
        """Calibrated probability that a guess of a kind, with a raw estimate in (0, 1), is the next token."""
        p = _logistic(self._usual(kind, raw) + self._own[kind].value)
        return SURE if p > SURE else 1.0 - SURE if p < 1.0 - SURE else p

    def score(self, kind: int, raw: float, hit: bool) -> None:
        """Learn from the token that came where such a guess was, or would have been, made."""
        usual = self._usual(kind, raw)
        self._own[kind].learn(hit, _logistic(usual + self._own[kind].value))
        self._shared[kind].learn(hit, _logistic(usual))

    def _usual(self, kind: int, raw: float) -> float:
        """Logit for a request of which nothing is known."""
        return self._slopes[kind] * math.log(raw / (1.0 - raw)) + self._offsets[kind] + self._shared[kind].value


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))
