"""Paired runs: each prompt plainly and drafted, in turn, on one engine in one process.

A machine's speed drifts by more than what is to be measured, so only the answers to one prompt, seconds apart, are
divided by each other. Who begins goes round from prompt to prompt. All times are milliseconds of wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from augury.bench.prompts import Prompt
from augury.engine.engine import Engine
from augury.errors import AuguryError
from augury.record import RequestRecord
from augury.sampling import Sampling
from augury.trace.figures import Figures, figures
from augury.tree import IntArray

WARM_UP_TOKENS = 16

Progress = Callable[[Prompt], None]
"""Called after every answer."""

Arm = tuple[str, ...] | None
"""Names of the drafters that are asked; None asks all."""

_PLAIN: Arm = ()


@dataclass(frozen=True)
class Given:
    """An answer that counts, with all that is known of it.

    Attributes:
        prompt: the prompt.
        ids: what the engine was asked.
        arm: who drafted.
        among: which answer of the prompt it was, in words, whoever drafted.
        record: what happened.
    """

    prompt: Prompt
    ids: str | IntArray
    arm: Arm
    among: str
    record: RequestRecord


Taken = Callable[[Given], None]
"""Called when an answer is there and its time is measured."""


@dataclass(frozen=True)
class Answer:
    """One answer and what it took.

    Attributes:
        tokens: its ids.
        wall_ms: from the call of the engine to its return.
        figures: what its record says.
    """

    tokens: tuple[int, ...]
    wall_ms: float
    figures: Figures

    @property
    def token_ms(self) -> float:
        """Time of a token, the prompt excluded."""
        return self.figures.decode_ms / len(self.tokens)

    @property
    def untimed_ms(self) -> float:
        """What the record does not account for: admission, drafters' beginnings and ends, the call itself."""
        return self.wall_ms - self.figures.prefill_ms - self.figures.decode_ms


@dataclass(frozen=True)
class Pair:
    """One prompt answered both ways.

    Attributes:
        prompt: the prompt.
        round: 0, 1, ...
        plain: the answer without drafts.
        drafted: the answer with drafts.
        same: whether both have the tokens of this prompt's first plain answer; None where the rule promises
            the law of the text, not the text itself.
    """

    prompt: Prompt
    round: int
    plain: Answer
    drafted: Answer
    same: bool | None

    @property
    def speedup(self) -> float:
        """How many times sooner a token comes, the prompt excluded."""
        return self.plain.token_ms / self.drafted.token_ms

    @property
    def end_to_end(self) -> float:
        """The same with everything included, the prompt too."""
        return (self.plain.wall_ms / len(self.plain.tokens)) / (self.drafted.wall_ms / len(self.drafted.tokens))


def run(
    engine: Engine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    max_tokens: int = 128,
    rounds: int = 2,
    progress: Progress | None = None,
    taken: Taken | None = None,
) -> list[Pair]:
    """Measure every prompt ``rounds`` times with all drafters together; rounds of one prompt are far apart in time.

    The engine must be free. A drafter that remembers earlier requests would find each answer in its memory from
    the second round on; measure it with one round.
    """
    found = arms(
        engine, prompts, sampling, [None], max_tokens=max_tokens, rounds=rounds, progress=progress, taken=taken
    )
    return [pair for (pair,) in found]


def arms(
    engine: Engine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    against: Sequence[Arm],
    *,
    max_tokens: int,
    rounds: int,
    warm: bool = False,
    progress: Progress | None = None,
    taken: Taken | None = None,
) -> Iterator[list[Pair]]:
    """For each prompt of each round a pair for each arm; all pairs of a prompt have the same plain answer.

    Args:
        engine: it must be free.
        prompts: at least one.
        sampling: of the answers.
        against: who drafts.
        max_tokens: of each answer at most.
        rounds: how often all prompts are answered.
        warm: compute each prompt once, before its answers; then ``end_to_end`` is without the prompt.
        progress: called after every answer.
        taken: called with every answer that counts.
    """
    ids = [question(engine, prompt) for prompt in prompts]
    compared = promised(engine, sampling)
    ways = [_PLAIN, *against]
    for way in ways:
        # Backwards: a drafter that remembers is not to know how the first answer begins.
        _answer(engine, prompts[0], ids[0][::-1], sampling, WARM_UP_TOKENS, way)
    first: dict[str, tuple[int, ...]] = {}
    for turn in range(rounds):
        for number, prompt in enumerate(prompts):
            begin = (turn + number) % len(ways)
            answers: dict[int, Answer] = {}
            if warm:
                engine.close()
                engine.generate(ids[number], sampling, max_tokens=1, draft=False)
            for place in [*range(begin, len(ways)), *range(begin)]:
                answers[place], record = _answer(engine, prompt, ids[number], sampling, max_tokens, ways[place], warm)
                if taken:
                    taken(Given(prompt, ids[number], ways[place], f"round {turn + 1}", record))
                if progress:
                    progress(prompt)
            plain = answers.pop(0)
            reference = first.setdefault(prompt.id, plain.tokens)
            yield [
                Pair(prompt, turn, plain, drafted, plain.tokens == reference == drafted.tokens if compared else None)
                for _, drafted in sorted(answers.items())
            ]


def question(engine: Engine, prompt: Prompt) -> str | IntArray:
    """What the engine is asked: the chat template's text where the model has one."""
    return engine.render(prompt.text) if engine.template is not None else prompt.text


def promised(engine: Engine, sampling: Sampling) -> bool:
    """Whether drafted answers have the tokens of plain ones; else they have the law of the text alone."""
    return engine.acceptance == "coupled" or sampling.temperature == 0.0


def _answer(
    engine: Engine,
    prompt: Prompt,
    ids: str | IntArray,
    sampling: Sampling,
    max_tokens: int,
    way: Arm,
    warm: bool = False,
) -> tuple[Answer, RequestRecord]:
    if not warm:
        engine.close()  # gives slots and their caches back, so that the answer computes its whole prompt
    reads = any(one.reads_prediction for name, one in engine.parts.drafters if way is None or name in way)
    begin = time.perf_counter()
    result = engine.generate(
        ids,
        sampling,
        max_tokens=max_tokens,
        drafters=way,
        prediction=prompt.prediction if reads else None,
    )
    answer = Answer(result.tokens, 1e3 * (time.perf_counter() - begin), figures(result.record))
    if answer.figures.cached_tokens and not warm:
        raise AuguryError(f"prompt {prompt.id} was answered from a warm cache, which is no measurement")
    if answer.untimed_ms < 0.0:
        raise AuguryError(f"the phases of prompt {prompt.id} add up to more than its {answer.wall_ms:.1f} ms")
    return answer, result.record
