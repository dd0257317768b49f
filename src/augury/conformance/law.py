"""The law of an answer: what it must be, what a decoder's really is, and how far apart two may be by chance.

The truth is computed by enumeration, token by token, with a fresh ``Sampler`` that has committed every token before:
no draft, no path, no cache. A decoder's law is either exact (``engine_law``: the engine itself, run through every
branch of its chance) or counted (``empirical``: the engine itself, seed after seed).
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import augury.engine.engine as engine_module
from augury.conformance.exact import Chances, ExactNoise, NotEnumerable, outcomes
from augury.conformance.toys import ToyTarget
from augury.engine.engine import Engine
from augury.noise import LawArray, Noise
from augury.sampling import Sampler, Sampling

Answer = tuple[int, ...]
Joint = Mapping[Answer, float]


def plain_law(
    target: ToyTarget, prompt: Sequence[int], sampling: Sampling, eos_ids: Sequence[int], answer: Sequence[int]
) -> LawArray:
    """The law f64[V] of the token behind ``answer``, as plain decoding has it."""
    ends = {*eos_ids, *sampling.stop_token_ids}
    sampler = Sampler(sampling, target.info.vocab_size, tuple(ends), np.asarray(prompt, np.int32), Noise(0, 0))
    tokens = list(prompt)
    for token in answer:
        sampler.law(target.row(tokens), ())  # processors with state must see every row
        sampler.advance([token])
        tokens.append(token)
    return sampler.law(target.row(tokens), ())


def true_law(
    target: ToyTarget, prompt: Sequence[int], sampling: Sampling, length: int, eos_ids: Sequence[int] = ()
) -> Joint:
    """The joint law of answers of at most ``length`` tokens, each ended by an end token or by its length."""
    ends = {*eos_ids, *sampling.stop_token_ids}
    joint: dict[Answer, float] = {}

    def extend(answer: Answer, probability: float) -> None:
        if len(answer) == length or (answer and answer[-1] in ends and len(answer) > sampling.min_tokens):
            joint[answer] = probability
            return
        law = plain_law(target, prompt, sampling, eos_ids, answer)
        for token in np.flatnonzero(law).tolist():
            extend((*answer, token), probability * float(law[token]))

    extend((), 1.0)
    return joint


def engine_law(
    make_engine: Callable[[], Engine],
    prompt: Sequence[int],
    sampling: Sampling,
    length: int,
    prediction: Sequence[int] | None = None,
    limit: int = 20_000,
) -> Joint:
    """The exact law of an engine's answers under a ratio rule.

    Args:
        make_engine: builds the engine; called for every branch, so that drafters start alike.
        prompt: i32[m].
        sampling: temperature above 0.
        length: ``max_tokens``.
        prediction: see ``Engine.generate``.
        limit: branches after which the attempt is given up.

    Raises:
        NotEnumerable: there are more branches than ``limit``, or a drafter uses its noise for more than ``race``.
    """

    def run(chances: Chances) -> Answer:
        # Time decides who is asked and what comes too late, and a busy machine is no branch of chance.
        noise = swapped(engine_module, "Noise", lambda seed, stream: ExactNoise(chances))
        ticks = itertools.count()
        with noise, swapped(time, "perf_counter", lambda: 1e-6 * next(ticks)), make_engine() as engine:
            result = engine.generate(prompt, sampling, max_tokens=length, prediction=prediction)
        faults = [p.fault for step in result.record.steps for p in step.proposals if p.fault]
        if faults:
            raise NotEnumerable(f"a proposal was dropped: {faults[0]}")
        return result.tokens

    return outcomes(run, limit)


@contextmanager
def swapped(module: object, name: str, value: object) -> Iterator[None]:
    """Another value for a module's attribute, for a while."""
    saved = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, saved)


def empirical(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, length: int, samples: int, ahead: int = 4
) -> Joint:
    """The counted law of the first ``length`` tokens of an engine's answers, end tokens as any other.

    Args:
        engine: the engine.
        prompt: i32[m].
        sampling: temperature above 0; seeds 0 to ``samples`` - 1 are taken in turn.
        length: tokens counted.
        samples: answers.
        ahead: tokens that an answer might have had behind these, so that drafts look further than they must:
            noise that was used on tokens which were not kept shows when the next step meets it again.
    """
    counts: Counter[Answer] = Counter()
    for seed in range(samples):
        tokens: list[int] = []
        seeded = replace(sampling, seed=seed)
        hint = prompt if engine.reads_prediction else None
        chunks = engine.stream(prompt, seeded, max_tokens=length + ahead, ignore_eos=True, prediction=hint)
        while len(tokens) < length:
            tokens += next(chunks).tokens
        chunks.close()
        counts[tuple(tokens[:length])] += 1
    return {answer: n / samples for answer, n in counts.items()}


def distance(one: Joint, other: Joint) -> float:
    """Total variation: half the summed absolute difference, 0 to 1."""
    return 0.5 * sum(abs(one.get(a, 0.0) - other.get(a, 0.0)) for a in {*one, *other})


def bound(law: Joint, samples: int, risk: float = 1e-4) -> float:
    """Distance between a law and its count over independent samples that is exceeded with probability < ``risk``.

    The mean distance is at most half the sum of sqrt(p (1 - p) / samples) over outcomes, since each count's mean
    absolute error is at most its standard deviation. One sample moves the distance by at most 1 / samples, so
    (McDiarmid 1989) it exceeds its mean by sqrt(ln(1 / risk) / (2 samples)) with probability < risk.
    """
    mean = 0.5 * sum(math.sqrt(p * (1.0 - p) / samples) for p in law.values())
    return mean + math.sqrt(math.log(1.0 / risk) / (2.0 * samples))
