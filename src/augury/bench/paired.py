"""Paired runs: each prompt plainly and drafted, in turn, on one engine in one process.

A machine's speed drifts by more than what is to be measured, so only the two answers of a pair, seconds
apart, are divided by each other. Every other pair begins with the drafted answer. All times are milliseconds
of wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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

Taken = Callable[[Prompt, RequestRecord], None]
"""Called with the record of every drafted answer that counts."""


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
    """Measure every prompt ``rounds`` times; rounds of one prompt are far apart in time.

    The engine must be free. A drafter that remembers earlier requests would find each answer in its memory from
    the second round on; measure it with one round.
    """
    ids = [_ids(engine, prompt) for prompt in prompts]
    promised = engine.acceptance == "coupled" or sampling.temperature == 0.0
    for draft in (False, True):
        # Backwards: a drafter that remembers is not to know how the first answer begins.
        _answer(engine, prompts[0], ids[0][::-1], sampling, WARM_UP_TOKENS, draft)
    first: dict[str, tuple[int, ...]] = {}
    pairs = []
    for turn in range(rounds):
        for number, prompt in enumerate(prompts):
            both: dict[bool, Answer] = {}
            drafted_first = (turn + number) % 2 == 1
            for draft in (drafted_first, not drafted_first):
                both[draft] = _answer(engine, prompt, ids[number], sampling, max_tokens, draft, taken)
                if progress:
                    progress(prompt)
            reference = first.setdefault(prompt.id, both[False].tokens)
            same = both[False].tokens == reference == both[True].tokens if promised else None
            pairs.append(Pair(prompt, turn, both[False], both[True], same))
    return pairs


def _ids(engine: Engine, prompt: Prompt) -> str | IntArray:
    """What the engine is asked: the chat template's text where the model has one."""
    return engine.render(prompt.text) if engine.template is not None else prompt.text


def _answer(
    engine: Engine,
    prompt: Prompt,
    ids: str | IntArray,
    sampling: Sampling,
    max_tokens: int,
    draft: bool,
    taken: Taken | None = None,
) -> Answer:
    engine.close()  # gives slots and their caches back, so that every answer computes its whole prompt
    begin = time.perf_counter()
    result = engine.generate(
        ids,
        sampling,
        max_tokens=max_tokens,
        draft=draft,
        prediction=prompt.prediction if draft and engine.reads_prediction else None,
    )
    answer = Answer(result.tokens, 1e3 * (time.perf_counter() - begin), figures(result.record))
    if answer.figures.cached_tokens:
        raise AuguryError(f"prompt {prompt.id} was answered from a warm cache, which is no measurement")
    if answer.untimed_ms < 0.0:
        raise AuguryError(f"the phases of prompt {prompt.id} add up to more than its {answer.wall_ms:.1f} ms")
    if draft and taken:
        taken(prompt, result.record)
    return answer
