"""Several prompts at once: groups of them answered plainly and drafted in turn, on one engine in one process.

Groups are measured as prompts are in ``paired``: only the answers to one group, seconds apart, are divided by each
other, and who begins goes round. All times are milliseconds of wall time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from augury.bench.paired import WARM_UP_TOKENS, Given, Pair, Progress, Taken, promised, question
from augury.bench.prompts import Prompt
from augury.bench.ratios import geometric_mean, interval, median
from augury.engine.engine import Engine
from augury.errors import AuguryError
from augury.record import RequestRecord
from augury.sampling import Sampling
from augury.trace.figures import Figures, figures
from augury.tree import IntArray


@dataclass(frozen=True)
class Wave:
    """Requests that were answered at once.

    Attributes:
        tokens: ids of each answer.
        wall_ms: from the call of the engine to its return.
        figures: what each request's record says; times of steps that requests shared are whole in each of them.
    """

    tokens: tuple[tuple[int, ...], ...]
    wall_ms: float
    figures: tuple[Figures, ...]

    @property
    def decode_ms(self) -> float:
        """Everything but the prompts."""
        return self.wall_ms - sum(f.prefill_ms for f in self.figures)

    @property
    def count(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.tokens))


@dataclass(frozen=True)
class Together:
    """One group of prompts answered both ways.

    Attributes:
        size: requests at once.
        number: of the group among those of its size, from 0.
        round: 0, 1, ...
        prompts: ids of its prompts.
        plain: the answers without drafts.
        drafted: the answers with drafts.
        same: for each prompt whether both answers have the tokens that it got plainly and alone; None where the rule
            promises the law of the text, not the text itself.
    """

    size: int
    number: int
    round: int
    prompts: tuple[str, ...]
    plain: Wave
    drafted: Wave
    same: tuple[bool, ...] | None

    @property
    def speedup(self) -> float:
        """How many times as many tokens come in the same time, the prompts excluded."""
        return (self.plain.decode_ms / self.plain.count) / (self.drafted.decode_ms / self.drafted.count)

    @property
    def end_to_end(self) -> float:
        """The same with everything included, the prompts too."""
        return (self.plain.wall_ms / self.plain.count) / (self.drafted.wall_ms / self.drafted.count)


@dataclass(frozen=True)
class Batch:
    """The figures of one batch size.

    Attributes:
        size: requests at once.
        groups: of prompts, of that size each.
        plain: tokens per second of all requests together without drafts, the prompts excluded.
        drafted: the same with drafts.
        speedup: geometric mean over groups of the median of a group's paired ratios, the prompts excluded.
        interval: its 95 % bootstrap interval; None with fewer than three groups.
        end_to_end: the same mean with everything included.
        acceptance_length: tokens per step of a request, bonus included.
        answers: drafted answers compared with plain ones; 0 where the rule does not promise equal tokens.
        mismatches: of these, how many were not equal.
    """

    size: int
    groups: int
    plain: float
    drafted: float
    speedup: float
    interval: tuple[float, float] | None
    end_to_end: float
    acceptance_length: float
    answers: int
    mismatches: int


def groups(prompts: Sequence[Prompt], size: int) -> list[list[Prompt]]:
    """Groups of ``size`` different prompts each, of as many kinds as there are; the last is filled up from the first.

    Args:
        prompts: at least ``size``.
        size: requests at once.
    """
    kinds: defaultdict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        kinds[prompt.kind].append(prompt)
    longest = max(map(len, kinds.values()))
    mixed = [of_one[place] for place in range(longest) for of_one in kinds.values() if place < len(of_one)]
    return [[mixed[(first + i) % len(mixed)] for i in range(size)] for first in range(0, len(mixed), size)]


def run(
    engine: Engine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    size: int,
    alone: Mapping[str, tuple[int, ...]],
    *,
    max_tokens: int,
    rounds: int,
    progress: Progress | None = None,
    taken: Taken | None = None,
) -> list[Together]:
    """Measure every group ``rounds`` times.

    Args:
        engine: it must be free, and have ``size`` slots.
        prompts: at least ``size``.
        sampling: of the answers.
        size: requests at once.
        alone: what each prompt, by its id, was answered plainly and by itself.
        max_tokens: of each answer at most.
        rounds: how often all groups are answered both ways.
        progress: called for every prompt of a group when its answers are there.
        taken: called with every answer that counts.
    """
    asked = groups(prompts, size)
    ids = {prompt.id: question(engine, prompt) for prompt in prompts}
    for draft in (False, True):
        # Backwards: see ``paired.arms``.
        _wave(engine, asked[0], [ids[p.id][::-1] for p in asked[0]], sampling, WARM_UP_TOKENS, draft)
    found = []
    for turn in range(rounds):
        for number, group in enumerate(asked):
            waves: dict[bool, Wave] = {}
            for draft in (False, True) if (turn + number) % 2 == 0 else (True, False):
                waves[draft], records = _wave(engine, group, [ids[p.id] for p in group], sampling, max_tokens, draft)
                among = f"{size} at once, group {number + 1}, round {turn + 1}"
                for prompt, record in zip(group, records, strict=True) if taken else ():
                    assert taken
                    taken(Given(prompt, ids[prompt.id], None if draft else (), among, record))
                for prompt in group if progress else ():
                    assert progress
                    progress(prompt)
            plain, drafted = waves[False], waves[True]
            both = zip(group, plain.tokens, drafted.tokens, strict=True)
            same = tuple(one == alone[prompt.id] == other for prompt, one, other in both)
            found.append(
                Together(
                    size=size,
                    number=number,
                    round=turn,
                    prompts=tuple(prompt.id for prompt in group),
                    plain=plain,
                    drafted=drafted,
                    same=same if promised(engine, sampling) else None,
                )
            )
    return found


def answered_alone(pairs: Sequence[Pair]) -> dict[str, tuple[int, ...]]:
    """Tokens of each prompt's first plain answer, by the prompt's id."""
    first: dict[str, tuple[int, ...]] = {}
    for pair in pairs:
        first.setdefault(pair.prompt.id, pair.plain.tokens)
    return first


def batches(found: Sequence[Together]) -> list[Batch]:
    """The figures of each batch size, in order of appearance."""
    return [_batch([one for one in found if one.size == size]) for size in dict.fromkeys(one.size for one in found)]


def _batch(found: Sequence[Together]) -> Batch:
    compared = [same for one in found for same in one.same or ()]
    steps = [f for one in found for f in one.drafted.figures]
    speedups = _by_group(found, "speedup")
    return Batch(
        size=found[0].size,
        groups=len(speedups),
        plain=_rate([one.plain for one in found]),
        drafted=_rate([one.drafted for one in found]),
        speedup=geometric_mean(speedups),
        interval=interval(speedups),
        end_to_end=geometric_mean(_by_group(found, "end_to_end")),
        acceptance_length=1.0 + sum(f.accepted for f in steps) / sum(f.steps for f in steps),
        answers=len(compared),
        mismatches=compared.count(False),
    )


def _by_group(found: Sequence[Together], ratio: str) -> list[float]:
    """Median of each group's paired ratios."""
    by: defaultdict[int, list[float]] = defaultdict(list)
    for one in found:
        by[one.number].append(getattr(one, ratio))
    return [median(ratios) for ratios in by.values()]


def _rate(waves: Sequence[Wave]) -> float:
    """Tokens per second."""
    return 1e3 * sum(wave.count for wave in waves) / sum(wave.decode_ms for wave in waves)


def _wave(
    engine: Engine,
    group: Sequence[Prompt],
    ids: Sequence[str | IntArray],
    sampling: Sampling,
    max_tokens: int,
    draft: bool,
) -> tuple[Wave, list[RequestRecord]]:
    engine.close()  # gives slots and their caches back, so that every answer computes its whole prompt
    reads = draft and engine.reads_prediction
    begin = time.perf_counter()
    results = engine.generate_all(
        ids,
        sampling,
        max_tokens=max_tokens,
        draft=draft,
        predictions=[prompt.prediction if reads else None for prompt in group],
    )
    wall_ms = 1e3 * (time.perf_counter() - begin)
    wave = Wave(tuple(r.tokens for r in results), wall_ms, tuple(figures(r.record) for r in results))
    if all(one.cached_tokens for one in wave.figures):  # what one computes the others may copy
        raise AuguryError(f"prompt {group[0].id} was answered from a warm cache, which is no measurement")
    if wave.decode_ms <= 0.0:
        raise AuguryError(f"the phases of {len(group)} requests add up to more than their {wall_ms:.1f} ms")
    return wave, [result.record for result in results]
