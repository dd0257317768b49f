"""How far a drafter is to be relied on: what it offered, judged by the text that came.

Under the coupled rule the answer does not depend on what was drafted. So a guess was right when the answer says the
same, whether the budget let it be verified or not, and a drafter is judged by all it offered. Calibration alone is
taken over the verified nodes: these are the ones whose stated survival was acted upon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from augury.record import RequestRecord, StepRecord
from augury.tree import DraftTree

DEPTHS = 4
"""Depths whose survival is shown."""

BINS = 10
"""Classes of stated survival, of equal width (Guo et al. 2017, arXiv:1706.04599, section 2)."""


@dataclass(frozen=True)
class Trial:
    """One answer of an engine that has one drafter.

    Attributes:
        record: what happened.
        offers: what the drafter offered, with survival as it stated it, by the position of the root.
    """

    record: RequestRecord
    offers: Mapping[int, DraftTree]


@dataclass(frozen=True)
class Depth:
    """Guesses of one depth.

    Attributes:
        depth: 1 for what follows the root.
        steps: steps with a guess whose text was so long.
        stated: mean over these of the survival that all guesses of this depth together were stated to have; 0 where
            there was none. Above 1 the drafter contradicts itself: only one of them can be right.
        real: share of these in which one of the guesses was right, and all before it.
    """

    depth: int
    steps: int
    stated: float
    real: float


@dataclass(frozen=True)
class Bin:
    """Verified nodes of about the same stated survival: their number, its mean, and the share that was accepted."""

    nodes: int
    stated: float
    accepted: float


@dataclass(frozen=True)
class Calibration:
    """Stated survival against acceptance, over verified nodes.

    Attributes:
        nodes: how many.
        stated: mean of their survival as the drafter stated it.
        accepted: share that was accepted.
        error: expected calibration error: mean over nodes of the distance between the two in the node's bin.
        bins: those that are not empty, by rising survival.
    """

    nodes: int
    stated: float
    accepted: float
    error: float
    bins: Sequence[Bin]


@dataclass(frozen=True)
class Reliability:
    """What one drafter did in some answers.

    Attributes:
        steps: of all answers.
        asked: steps in which it was asked.
        guessed: steps in which it had a guess.
        hit_rate: share of these in which one of its guesses for the next token was right; None without any.
        survival: of depths 1 to ``DEPTHS``; those that no text reached are left out.
        calibration: None when nothing of it was verified.
        run_length: accepted tokens of a step in which it had a guess, in the mean; None without any.
        draft_ms: milliseconds of one proposal, in the mean; None when it was never asked.
        dropped: why it had no part in steps: reason -> steps.
    """

    steps: int
    asked: int
    guessed: int
    hit_rate: float | None
    survival: Sequence[Depth]
    calibration: Calibration | None
    run_length: float | None
    draft_ms: float | None
    dropped: Mapping[str, int]

    @property
    def asked_rate(self) -> float | None:
        """Share of the steps in which it was asked."""
        return self.asked / self.steps if self.steps else None

    @property
    def guess_rate(self) -> float | None:
        """Share of the steps in which it was asked, in which it had a guess."""
        return self.guessed / self.asked if self.asked else None


def reliability(trials: Sequence[Trial]) -> Reliability:
    """The figures of one drafter over its answers."""
    steps = [step for trial in trials for step in trial.record.steps]
    asked = [p for step in steps for p in step.proposals if p.ms > 0.0]
    guesses = [guess for trial in trials for guess in _guesses(trial)]
    depths = [_depth(depth, guesses) for depth in range(1, DEPTHS + 1)]
    judged = [node for guess in guesses for node in _judged(guess)]
    return Reliability(
        steps=len(steps),
        asked=len(asked),
        guessed=len(guesses),
        hit_rate=_mean([guess.right_at(1) for guess in guesses]),
        survival=[depth for depth in depths if depth is not None],
        calibration=calibration([stated for stated, _ in judged], [accepted for _, accepted in judged]),
        run_length=_mean([guess.step.accepted for guess in guesses]),
        draft_ms=_mean([p.ms for p in asked]),
        dropped=dict(Counter(p.fault for step in steps for p in step.proposals if p.fault is not None)),
    )


def calibration(stated: Sequence[float], accepted: Sequence[bool]) -> Calibration | None:
    """Compare the stated survival of nodes with what became of them; None without nodes."""
    if not stated:
        return None
    said, came = np.asarray(stated, np.float64), np.asarray(accepted, np.float64)
    place = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    bins = [
        Bin(int(own.sum()), float(said[own].mean()), float(came[own].mean()))
        for own in (place == b for b in range(BINS))
        if own.any()
    ]
    error = sum(b.nodes * abs(b.stated - b.accepted) for b in bins) / len(said)
    return Calibration(len(said), float(said.mean()), float(came.mean()), error, bins)


@dataclass(frozen=True)
class _Guess:
    """What the drafter offered in a step, and the text behind that step's root."""

    step: StepRecord
    tree: DraftTree
    coming: Sequence[int]

    def right_at(self, depth: int) -> bool:
        """Whether some node of a depth, and all before it, are what the text says."""
        level = [-1]
        for token in self.coming[:depth]:
            level = [i for above in level for i in self.tree.children(above) if self.tree.tokens[i] == token]
        return bool(level)

    def stated_at(self, depth: int) -> float:
        """Survival of all nodes of a depth together."""
        return float(self.tree.survival[self.tree.depths == depth].sum())


def _guesses(trial: Trial) -> list[_Guess]:
    """Of the steps in which the drafter had a guess that kept its contract."""
    text = [token for step in trial.record.steps for token in step.emitted]
    found, done = [], 0
    for step in trial.record.steps:
        if any(p.nodes for p in step.proposals):
            found.append(_Guess(step, trial.offers[step.position], text[done:]))
        done += len(step.emitted)
    return found


def _depth(depth: int, guesses: Sequence[_Guess]) -> Depth | None:
    reached = [guess for guess in guesses if len(guess.coming) >= depth]
    if not reached:
        return None
    stated = [guess.stated_at(depth) for guess in reached]
    real = [guess.right_at(depth) for guess in reached]
    return Depth(depth, len(reached), float(np.mean(stated)), float(np.mean(real)))


def _judged(guess: _Guess) -> list[tuple[float, bool]]:
    """(Stated survival, whether it was accepted) of the verified nodes."""
    places: dict[int, int] = {-1: -1}
    known: dict[tuple[int, int], int] = {}
    for i, key in enumerate(zip(guess.tree.parents.tolist(), guess.tree.tokens.tolist(), strict=True)):
        known.setdefault(key, i)
    verified, judged = guess.step.tree, []
    for i, (parent, token) in enumerate(zip(verified.parents.tolist(), verified.tokens.tolist(), strict=True)):
        places[i] = known[places[parent], token]
        judged.append((float(guess.tree.survival[places[i]]), i in guess.step.path.nodes))
    return judged


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
