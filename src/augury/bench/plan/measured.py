"""Costs measured on a loaded target in place of a roofline, and what a benchmark found, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np

from augury.api import AUTO
from augury.bench.document import measured, read
from augury.bench.paired import Pair, question
from augury.bench.plan.drafts import Draft
from augury.bench.plan.gain import Steps, Verify
from augury.bench.prompts import own, select
from augury.drafters import make, split
from augury.engine.costs import Meter, timed
from augury.engine.engine import Engine
from augury.errors import ContextTooLong, InputError

if TYPE_CHECKING:
    from augury.budget import Costs

REPEATS = 6
"""Forwards of each size that a plan times: the fastest counts, and beside other programs it takes some to be fast."""

_TRIES = 15  # forwards of a draft model that are timed: the least of them counts, as in a profile
_TOKENS = 64  # of each answer for which guesses are timed; a quarter as many plain ones, in turn


def verify_ms(costs: Costs, context: int) -> Verify:
    """The table of a profile as a function of rows, at one context."""

    def verify(rows: int, _batch: int) -> float:
        return float(costs.step(np.array([rows]), np.array([float(rows * context)]))[0])

    return verify


def draft_ms(
    draft: Draft, engine: Engine, context: int, costs: Costs, threads: int | None = None
) -> Callable[[int, int], float]:
    """(batch, length) -> milliseconds of its guesses. Drafters here guess for one request after the other.

    Args:
        draft: ``self``, a model whose files are here, or ``copy``.
        engine: free.
        context: tokens that each request holds.
        costs: of the target's forwards.
        threads: that a draft model runs with, as the target's in use.

    Raises:
        InputError: it is known by its size only, or the target or its model cannot be had in these bits.
    """
    if draft.kind == "copy":
        return lambda _batch, _length: draft.ms
    one = (
        verify_ms(costs, context)(1, 1) * _self_share(draft, engine, costs)
        if draft.kind == "self"
        else _model_ms(draft, context, threads)
    )
    return lambda batch, length: batch * length * one


def check(draft: Draft) -> None:
    """Refuse what cannot be measured, before anything is loaded."""
    if draft.parameters is not None:
        raise InputError(
            f"--measure times what is here, and --draft {draft.name} is known by its size only; "
            "name self:int4, a model that is here, or copy, or leave --measure out"
        )
    if draft.kind == "model" and draft.precision is not None:
        raise InputError(f"--measure times a draft model as it is loaded, in bf16; name it as {draft.model}")


def _self_share(draft: Draft, engine: Engine, costs: Costs) -> float:
    """What a guess of the target in fewer bits takes, in forwards of one row: as the drafter makes it, the choice of
    its token included, as deep as costs allow, and several of one forward where what followed the same words before
    says the same. How often it does is a matter of the text, so our own prompts are answered, and plain forwards are
    timed in turn, as the machine's speed drifts.
    """
    target, ratios = engine.target, []
    bits = {"int4": 4, "int8": 8}.get(draft.precision or "", 0)
    if bits not in target.info.short:
        known = ", ".join(f"self:int{b}" for b in target.info.short if b < 16) or "none"
        raise InputError(f"--draft {draft.name}: {target.info.runner} has no such weights; it has {known}")
    meter = Meter.of(costs)
    drafter = make(
        f"self:int{bits}", target=target, tokenizer=engine.tokenizer, vocab_size=target.info.vocab_size, slots=1,
        costs=lambda: meter.costs,
    )  # fmt: skip
    engine.close()  # its slots are wanted
    with Engine(
        target, [("self", drafter)], tokenizer=engine.tokenizer, template=engine.template, eos_ids=engine.eos_ids,
        meter=meter,
    ) as asked:  # fmt: skip
        for prompt in select(own(), (), 1):
            try:
                drafted = asked.generate(question(asked, prompt), max_tokens=_TOKENS).record
            except ContextTooLong:
                continue
            plain = asked.generate(question(asked, prompt), max_tokens=_TOKENS // 4, draft=False).record
            if drafted.drafted:
                guess_ms = sum(step.draft_ms for step in drafted.steps) / drafted.drafted
                ratios.append(guess_ms / median(step.verify_ms for step in plain.steps))
    if not ratios:
        raise InputError(f"--draft {draft.name} is timed on our own prompts, and {target.info.name} holds none of them")
    return fmean(ratios)


def _model_ms(draft: Draft, context: int, threads: int | None) -> float:
    """A forward of one row of a draft model."""
    from augury.models.load import load_target

    loaded = load_target(draft.model, max_num_seqs=1, threads=threads)
    return float(timed(loaded.target, [1], min(context, loaded.target.info.context - 1), _TRIES)[0])


@dataclass(frozen=True)
class Seen:
    """What ``augury bench --json`` found in one run.

    Attributes:
        model: the target's name.
        drafters: of the run.
        tokens: emitted by a step, bonus included.
        length: guesses verified by a step, in the mean.
        context: tokens a request holds, in the mean.
        gain: the measured speed-up, the prompt excluded.
        answers: the steps of each prompt's drafted answers.
        plain_rest: milliseconds of a plain step that are not its forward.
        rest: milliseconds of a drafted step that are neither forward nor guess.
    """

    model: str
    drafters: str
    tokens: float
    length: float
    context: int
    gain: float
    answers: tuple[Steps, ...]
    plain_rest: float
    rest: float


def read_seen(path: Path) -> Seen:
    """Read a result of ``augury bench --json`` with one run.

    Raises:
        InputError: it is not such a file, has several runs or drafters, or nothing was drafted.
    """
    found = read(path)
    runs = measured(found)
    if len(runs) != 1:
        raise InputError(
            f"--bench {path} has {len(runs)} runs; measure one drafter at one temperature: "
            "augury bench --drafters NAME --json FILE"
        )
    (run,) = runs
    if run.drafters == AUTO or len(split(run.drafters)) > 1:
        raise InputError(
            f"--bench {path} is of several drafters, {run.drafters}, and a cost is reckoned of one; measure one: "
            "augury bench --drafters NAME --json FILE"
        )
    plain, figures = [pair.plain.figures for pair in run.pairs], [pair.drafted.figures for pair in run.pairs]
    steps, drafted = sum(f.steps for f in figures), sum(f.drafted for f in figures)
    if not drafted:
        raise InputError(f"--bench {path}: nothing was drafted there, so there is nothing to compare with")
    return Seen(
        model=str(found["target"]["name"]),
        drafters=run.drafters,
        tokens=run.summary.overall.acceptance_length,
        length=drafted / steps,
        context=round(fmean(f.prompt_tokens + f.completion_tokens / 2 for f in figures)),
        gain=run.summary.overall.speedup,
        answers=tuple(_steps(run.pairs, prompt) for prompt in dict.fromkeys(pair.prompt.id for pair in run.pairs)),
        plain_rest=sum(f.draft_ms + f.rest_ms for f in plain) / sum(f.steps for f in plain),
        rest=sum(f.rest_ms for f in figures) / steps,
    )


def _steps(pairs: Sequence[Pair], prompt: str) -> Steps:
    """Of all drafted answers to one prompt."""
    figures = [pair.drafted.figures for pair in pairs if pair.prompt.id == prompt]
    steps = sum(f.steps for f in figures)
    guessing = steps - sum(sum(f.undrafted.values()) for f in figures)
    return Steps(
        tokens=sum(f.completion_tokens for f in figures) / steps,
        drafted=guessing / steps,
        length=sum(f.drafted for f in figures) / guessing if guessing else 0.0,
    )
