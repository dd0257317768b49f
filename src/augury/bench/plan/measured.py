"""Costs measured on a loaded target in place of a roofline, and what a benchmark found, to compare with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from augury.api import AUTO
from augury.bench.document import measured, read
from augury.bench.plan.drafts import Draft
from augury.bench.plan.gain import Verify
from augury.drafters import split
from augury.errors import InputError

if TYPE_CHECKING:
    from augury.budget import Costs
    from augury.models.target import Target

_TRIES = 15  # forwards in fewer bits that are timed: the least of them counts, as in a profile


def verify_ms(costs: Costs, context: int) -> Verify:
    """The table of a profile as a function of rows, at one context."""

    def verify(rows: int, _batch: int) -> float:
        return float(costs.step(np.array([rows]), np.array([float(rows * context)]))[0])

    return verify


def draft_ms(draft: Draft, target: Target, context: int, threads: int | None = None) -> Callable[[int, int], float]:
    """(batch, length) -> milliseconds of its guesses. Drafters here guess for one request after the other.

    Args:
        draft: ``self``, a model whose files are here, or ``copy``.
        target: loaded; has a free slot.
        context: tokens that each request holds.
        threads: that a draft model runs with, as the target's in use.

    Raises:
        InputError: it is known by its size only, or the target or its model cannot be had in these bits.
    """
    if draft.kind == "copy":
        return lambda _batch, _length: draft.ms
    one = _self_ms(draft, target, context) if draft.kind == "self" else _model_ms(draft, context, threads)
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


def _self_ms(draft: Draft, target: Target, context: int) -> float:
    """A guess of the target in fewer bits, the choice of its token included."""
    bits = {"int4": 4, "int8": 8}.get(draft.precision or "", 0)
    if bits not in target.info.short:
        known = ", ".join(f"self:int{b}" for b in target.info.short if b < 16) or "none"
        raise InputError(f"--draft {draft.name}: {target.info.runner} has no such weights; it has {known}")
    guess = target.shorten(bits, range(target.info.layers))
    slot, times = target.open(), []
    try:
        target.prefill(slot, np.arange(context, dtype=np.int32) % target.info.vocab_size)
        for _ in range(_TRIES):
            begin = time.perf_counter()
            guess(slot, 0, np.zeros(1, np.int32)).argmax()
            times.append(time.perf_counter() - begin)
    finally:
        target.release(slot)
    return 1e3 * min(times)


def _model_ms(draft: Draft, context: int, threads: int | None) -> float:
    """A forward of one row of a draft model."""
    from augury.engine.costs import timed
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
    """

    model: str
    drafters: str
    tokens: float
    length: float
    context: int
    gain: float


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
    figures = [pair.drafted.figures for pair in run.pairs]
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
    )
