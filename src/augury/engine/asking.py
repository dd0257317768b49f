"""Which drafters are asked in a step: those that are expected to earn the time they take.

A drafter that takes less than ``CHEAP`` of a plain step, for all requests together, is always asked. A dearer one is
asked after the cheap ones, when what steps with it brought per millisecond beats what the cheap guesses promise::

    (tokens with it + doubt) / (its own ms + ms of such a step)  >  HURDLE * tokens / ms  of the best step without it

The requests that step together all wait for whoever is asked: on both sides they count with a token and a row each.
What a drafter brings and takes are running means over the steps in which it was asked, those of the engine as long as
the request has none of its own. ``doubt`` shrinks as the request's own steps count (optimism in the face of
uncertainty; Lai and Robbins 1985), so that every request tries it some times. A drafter that was not asked for long is
asked once, so rarely that all such probes together cost at most ``PROBES`` of the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from augury.budget import HURDLE, Expected

CHEAP = 0.03
"""Share of a plain step; below, finding out whether it pays costs more than it does."""

PROBES = 0.02
"""Share of the time that may go to asking drafters that are not believed to pay."""

_FIRST = 3  # times that a drafter is asked before it is judged
_HICCUP = 3.0  # times its mean that a proposal may count at most: a head reads the prompt when it is first asked
_DOUBT = 0.6  # tokens that a drafter may bring more than it did, for all that one step tells
_NOBODY = Expected(0.0, 0.0)
ENGINE_WEIGHT, OWN_WEIGHT = 0.02, 0.1
"""Weight of a new step in the means of the engine, and of a request."""


Key = int | tuple[int, int]
"""What the means of a drafter are kept under: its place, and of several requests at once how many, by powers of two."""


def key_of(index: int, requests: int) -> Key:
    """See ``Key``."""
    return index if requests == 1 else (index, requests.bit_length())


@dataclass
class Means:
    """Running means over the steps in which one drafter was asked.

    Attributes:
        ms: of its proposals.
        tokens: emitted by the step.
        step_ms: of the step, drafting excluded.
        asked: steps behind these means.
        own: those of them in this request.
        idle: steps since it was last asked.
    """

    ms: float = 0.0
    tokens: float = 0.0
    step_ms: float = 0.0
    asked: int = 0
    own: int = 0
    idle: int = 0

    def learn(self, ms: float, tokens: float, step_ms: float, weight: float) -> None:
        """Add a step."""
        self.asked += 1
        self.own += 1
        self.idle = 0
        share = max(weight, 1.0 / self.asked)
        ms = min(ms, _HICCUP * self.ms) if self.asked > _FIRST else ms
        # A first call warms caches and pages; of the first few the fastest tells what it takes.
        self.ms = min(self.ms, ms) if 1 < self.asked <= _FIRST else self.ms + share * (ms - self.ms)
        self.tokens += share * (tokens - self.tokens)
        self.step_ms += share * (step_ms - self.step_ms)


@dataclass
class Asking:
    """What one engine, or one request of it, knows of its drafters; by their place."""

    means: dict[Key, Means] = field(default_factory=dict)

    def own(self) -> Asking:
        """For a new request: begins with what the engine knows, as if from a few steps."""
        few = round(1.0 / OWN_WEIGHT)
        return Asking({i: Means(m.ms, m.tokens, m.step_ms, min(m.asked, few)) for i, m in self.means.items()})

    def cheap(self, index: int, plain_ms: float) -> bool:
        """Whether a drafter takes no time worth a decision; not before it was asked once."""
        known = self.means.get(index)
        return known is not None and known.ms < CHEAP * plain_ms

    def pays(self, index: int, without: Expected, plain_ms: float, others: Expected = _NOBODY) -> bool:
        """Whether to ask a drafter that is not cheap.

        Args:
            index: its place.
            without: the best step without it, the others' tokens included.
            plain_ms: of a plain step of all.
            others: tokens of the requests that step with this one, and by how much they make a plain step longer.
        """
        known = self.means.setdefault(index, Means())
        if known.asked < _FIRST:
            return True
        doubt = _DOUBT / math.sqrt(1.0 + known.own)
        with_it = (known.tokens + doubt + others.tokens) / (known.ms + known.step_ms + others.ms)
        if with_it > HURDLE * without.tokens / without.ms:
            return True
        known.idle += 1
        return known.idle > math.ceil((1.0 + others.tokens) * known.ms / (PROBES * plain_ms))

    def learn(self, key: Key, ms: float, tokens: int, step_ms: float, weight: float = OWN_WEIGHT) -> None:
        """Learn from a step in which a drafter was asked."""
        self.means.setdefault(key, Means()).learn(ms, float(tokens), step_ms, weight)


class Weighed(NamedTuple):
    """A request that a drafter could be asked for together with others: what it knows, the best step without the
    drafter (the others' plain tokens included), and its own plain step alone, in milliseconds.
    """

    asking: Asking
    without: Expected
    alone_ms: float


def pay_together(key: Key, group: Sequence[Weighed], plain_ms: float, requests: int) -> bool:
    """Whether to ask a drafter for several requests at once: all of them, or none.

    Args:
        key: of its means.
        group: the requests.
        plain_ms: of a plain step of all that step together.
        requests: how many these are.
    """
    known = [one.asking.means.setdefault(key, Means()) for one in group]
    if any(k.asked < _FIRST for k in known):
        return True
    tokens = requests + sum(k.tokens + _DOUBT / math.sqrt(1.0 + k.asked) - 1.0 for k in known)
    ms = plain_ms + sum(k.ms + k.step_ms - one.alone_ms for k, one in zip(known, group, strict=True))
    without = requests + sum(one.without.tokens - requests for one in group)
    without_ms = plain_ms + sum(one.without.ms - plain_ms for one in group)
    if tokens / ms > HURDLE * without / without_ms:
        return True
    for k in known:
        k.idle += 1
    spent = sum(k.ms for k in known)
    return known[0].idle > math.ceil(requests * spent / (PROBES * plain_ms))
