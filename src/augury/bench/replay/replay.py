"""Recorded answers, once more: what drafters would have brought, and with a cost table how much sooner.

The engine's own loop runs over a target that says again what was recorded (``recorded.py``): drafters propose, the
budget chooses, guesses are accepted where the recorded text agrees, and drafters learn from it. Drafting is timed, as
it really happens; the times of forwards are those of the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from augury.bench.replay.recorded import Fixed, Recorded
from augury.bench.replay.recordings import Log, Recording
from augury.budget import Costs
from augury.drafters import DRAFTERS, free, make, unreplayable
from augury.engine.engine import Engine, Options
from augury.errors import InputError
from augury.record import RequestRecord, StepRecord
from augury.sampling import Sampling
from augury.tree import MAX_NODES

if TYPE_CHECKING:
    from augury.models.tokenizer import Tokenizer

Arm = tuple[str, ...]
"""Specs of drafters that guess together."""

Taken = Callable[[Arm, Recording, RequestRecord], None]
"""Called after every answer of every arm."""


@dataclass
class Replayed:
    """What drafters brought in the answers so far; times in milliseconds.

    Attributes:
        drafters: who guessed together.
        answers: replayed.
        tokens: of these.
        steps: it took to emit them.
        offered: nodes that drafters proposed.
        verified: of these, as many as the budget chose.
        accepted: of these, as many as the text agreed with.
        histogram: index j: steps that accepted exactly j draft tokens.
        draft_ms: of proposing, choosing and observing, as measured here.
        plain_ms: of the same tokens without drafts, by the table; 0 without one.
        drafted_ms: of the steps with their drafts: forwards by the table, and ``draft_ms``; 0 without one.
        dropped: why a drafter had no part in a step although asked: reason -> steps.
    """

    drafters: Arm
    answers: int = 0
    tokens: int = 0
    steps: int = 0
    offered: int = 0
    verified: int = 0
    accepted: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    draft_ms: float = 0.0
    plain_ms: float = 0.0
    drafted_ms: float = 0.0
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def acceptance_length(self) -> float:
        """1 + accepted / steps."""
        return 1.0 + self.accepted / self.steps

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / verified; None when nothing was verified."""
        return self.accepted / self.verified if self.verified else None

    @property
    def speedup(self) -> float | None:
        """How many times sooner the tokens are expected, the prompt excluded; None without a table."""
        return self.plain_ms / self.drafted_ms if self.drafted_ms else None

    def reached(self, accepted: int) -> float:
        """Share of the steps that accepted so many draft tokens or more."""
        return sum(steps for count, steps in self.histogram.items() if count >= accepted) / self.steps

    def add(self, record: RequestRecord, costs: Costs | None) -> None:
        """Count one answer."""
        self.answers += 1
        for step in record.steps:
            self.tokens += len(step.emitted)
            self.steps += 1
            self.offered += sum(proposal.nodes for proposal in step.proposals)
            self.verified += step.drafted
            self.accepted += step.accepted
            self.histogram[step.accepted] += 1
            # The rest of a step is what drafters and trust learn from it: here as in use.
            draft_ms = step.draft_ms + step.rest_ms
            self.draft_ms += draft_ms
            if costs is not None:
                plain_ms, drafted_ms = _reckoned(step, costs)
                self.plain_ms += plain_ms
                self.drafted_ms += drafted_ms + draft_ms
            self.dropped.update(f"{p.drafter}: {p.fault}" for p in step.proposals if p.fault is not None)


def _reckoned(step: StepRecord, costs: Costs) -> tuple[float, float]:
    """Milliseconds of plain steps for what a step emitted, and of its own forward with all around it but drafting."""
    places = step.position + np.arange(len(step.emitted), dtype=np.float64)
    plain = costs.step(np.ones(len(places), np.int64), places)
    rows = np.array([step.rows])
    return float(plain.sum()), float(costs.step(rows, rows * float(step.position))[0])


def check(specs: Sequence[str]) -> None:
    """Refuse drafters that a recorded text cannot stand in for the target of; makes none.

    Raises:
        InputError: says why, and which can be replayed.
    """
    for spec in specs:
        if why := unreplayable(spec):
            can = ", ".join(name for name in DRAFTERS if unreplayable(name) is None)
            raise InputError(f"drafter {spec} cannot be replayed: {why}; those that can: {can}")
        name, _, options = spec.partition(":")
        first = options.partition(",")[0]
        if name == "memory" and ((first and "=" not in first) or "path=" in options.replace(" ", "")):
            raise InputError(f"{spec} would keep the log's answers; write memory: it learns from the log as it goes")


def ready() -> list[str]:
    """Names of the drafters that need nothing, not even the target."""
    return [name for name in free() if unreplayable(name) is None]


def arms(specs: Sequence[str]) -> list[Arm]:
    """Each alone, then all together."""
    return [*((spec,) for spec in specs), *([tuple(specs)] if len(specs) > 1 else [])]


def replay(
    log: Log,
    against: Sequence[Arm],
    costs: Costs | None = None,
    *,
    temperature: float = 0.0,
    tokenizer: Tokenizer | None = None,
    eos_ids: Sequence[int] = (),
    progress: Callable[[str], None] | None = None,
    taken: Taken | None = None,
) -> Iterator[list[Replayed]]:
    """Replay every answer with each arm; gives after every answer what there is, in the order of the arms.

    Each arm has drafters of its own, which live as long as the log: those that remember learn from earlier answers of
    the same user.

    Args:
        log: at least one answer.
        against: who guesses.
        costs: of the target's forwards; None verifies every guess.
        temperature: that the answers were drawn at; drafters reckon with it.
        tokenizer: of the target, for drafters that need it.
        eos_ids: that end answers.
        progress: called before every answer of an arm, with its name.
        taken: called after it.

    Raises:
        InputError: a drafter cannot be made.
    """
    found = [Replayed(arm) for arm in against]
    sampling = Sampling(temperature=temperature, seed=0)
    with ExitStack() as opened:
        runs = []
        for arm in against:
            target = Recorded(log.vocab_size)
            drafters = [
                (spec, make(spec, tokenizer=tokenizer, vocab_size=log.vocab_size, slots=1, costs=lambda: costs))
                for spec in arm
            ]
            engine = Engine(target, drafters, eos_ids=eos_ids, meter=None if costs is None else Fixed(costs))
            runs.append((target, opened.enter_context(engine)))
        for recording in log.recordings:
            for one, (target, engine) in zip(found, runs, strict=True):
                if progress:
                    progress(named(one.drafters))
                record = _again(target, engine, recording, sampling)
                one.add(record, costs)
                if taken:
                    taken(one.drafters, recording, record)
            yield found


def named(arm: Arm) -> str:
    """An arm as tables show it."""
    return " + ".join(arm)


def _again(target: Recorded, engine: Engine, recording: Recording, sampling: Sampling) -> RequestRecord:
    """The record of one answer, said once more."""
    target.text = np.concatenate([recording.prompt, recording.answer])
    # An answer that ended by itself did not know where: drafters had room behind its end.
    room = len(recording.answer) + (MAX_NODES if recording.ended else 0)
    options = Options(max_tokens=room, ignore_eos=not recording.ended, cache_salt=recording.user)
    if engine.reads_prediction:
        options["prediction"] = recording.prediction
    result = engine.generate(recording.prompt, sampling, **options)
    assert result.tokens == tuple(recording.answer.tolist())
    return result.record
