"""How much sooner, from how often guesses are right and what forwards cost: pure functions.

A step that guesses a chain of K tokens for each of b requests and verifies it takes ``draft(b, K) + verify(b (K + 1))``
and emits E(K) tokens of each request; plain decoding takes ``verify(b)`` for one. The gain is therefore::

    E(K) verify(b) / (draft(b, K) + verify(b (K + 1)))

With the same chance a for every guess, E(K) = (1 - a^(K+1)) / (1 - a) (Leviathan et al. 2023, arXiv:2211.17192, eq. 1);
in general E(K) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_K, with a_i the chance of the guess at depth i when all before it
were right (Chen et al. 2023, arXiv:2302.01318, sum the same chain).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

Verify = Callable[[int, int], float]
"""(rows, batch) -> milliseconds of a forward of the target of so many rows in all, for so many requests."""


@dataclass(frozen=True)
class Guesser:
    """A drafter, as far as its gain goes.

    Attributes:
        name: for the reader.
        acceptance: chances that a guess is right when all before it were, by depth from 1; the last one goes on.
        draft: (batch, length) -> milliseconds of guessing a chain of that length for each request.
    """

    name: str
    acceptance: tuple[float, ...]
    draft: Callable[[int, int], float]


@dataclass(frozen=True)
class Outlook:
    """What is to be expected of one batch size.

    Attributes:
        batch: requests that decode together.
        plain_ms: of a step without drafts.
        curves: for each drafter the gain by length; entry 0 is plain decoding, 1.
        best: the drafter of the greatest gain, or None where plain decoding is best.
        length: its best length; 0 for plain decoding.
    """

    batch: int
    plain_ms: float
    curves: Mapping[str, tuple[float, ...]]
    best: Guesser | None
    length: int

    @property
    def gain(self) -> float:
        """Tokens per second, in those of plain decoding; never below 1."""
        return 1.0 if self.best is None else self.curves[self.best.name][self.length]

    @property
    def tokens(self) -> float:
        """Emitted by a step for each request."""
        return 1.0 if self.best is None else expected_tokens(self.best.acceptance, self.length)

    @property
    def plain_rate(self) -> float:
        """Tokens per second of all requests, without drafts."""
        return 1e3 * self.batch / self.plain_ms

    @property
    def rate(self) -> float:
        """Tokens per second of all requests, with the best drafts."""
        return self.gain * self.plain_rate


def expected_tokens(acceptance: Sequence[float], length: int) -> float:
    """Tokens that a step emits in the mean, from a chain of so many guesses: E(K) of the module's text."""
    total = survival = 1.0
    for depth in range(length):
        survival *= acceptance[min(depth, len(acceptance) - 1)]
        total += survival
    return total


def gain(verify: Verify, guesser: Guesser, batch: int, length: int) -> float:
    """Tokens per second, in those of plain decoding."""
    if length == 0:
        return 1.0
    step = guesser.draft(batch, length) + verify(batch * (length + 1), batch)
    return expected_tokens(guesser.acceptance, length) * verify(batch, batch) / step


def best_length(curve: Sequence[float]) -> int:
    """The length of the greatest gain over all lengths, the shortest of equals: costs may be staircases."""
    return max(range(len(curve)), key=lambda length: curve[length])


def outlook(verify: Verify, guessers: Sequence[Guesser], batch: int, longest: int) -> Outlook:
    """The gain of each drafter, at each length up to ``longest``, and which is best."""
    curves = {one.name: tuple(gain(verify, one, batch, k) for k in range(longest + 1)) for one in guessers}
    first = max(guessers, key=lambda one: max(curves[one.name]))
    length = best_length(curves[first.name])
    return Outlook(batch, verify(batch, batch), curves, first if length else None, length)


# ---- against a measurement ----------------------------------------------------------------------------------------


def constant_acceptance(tokens: float, length: float) -> float:
    """The chance a of every guess with which chains of ``length`` guesses, which may be a mean, emit so many tokens.

    E(K) with a real K is (1 - a^(K+1)) / (1 - a). It rises with a from 1 to K + 1; beyond these a is 0 or 1.
    """
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        expected = (1.0 - middle ** (length + 1)) / (1.0 - middle)
        low, high = (middle, high) if expected < tokens else (low, middle)
    return high


@dataclass(frozen=True)
class Steps:
    """The steps of one prompt's answer, in the mean.

    Attributes:
        tokens: emitted by a step.
        drafted: share of the steps in which anything was guessed.
        length: guesses verified by each of these.
    """

    tokens: float
    drafted: float
    length: float


def predicted(
    verify: Verify, guesser: Guesser, answers: Sequence[Steps], plain_rest: float = 0.0, rest: float = 0.0
) -> float:
    """The gain of one request at a time: the geometric mean over answers, which is the mean that a benchmark takes.

    A step of a length between two whole ones takes the time between theirs.

    Args:
        verify: the target's forwards.
        guesser: the drafter.
        answers: at least one.
        plain_rest: milliseconds of a plain step that are neither forward nor guess.
        rest: the same of a drafted step.
    """

    def step(guesses: int) -> float:
        return (guesser.draft(1, guesses) if guesses else 0.0) + verify(guesses + 1, 1)

    def ms(one: Steps) -> float:
        below = math.floor(one.length)
        guessing = step(below) + (one.length - below) * (step(below + 1) - step(below))
        return rest + one.drafted * guessing + (1.0 - one.drafted) * step(0)

    plain = verify(1, 1) + plain_rest
    return math.exp(fmean(math.log(one.tokens * plain / ms(one)) for one in answers))
