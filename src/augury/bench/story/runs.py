"""The answers of the story: two prompts, each plainly and drafted, under the rules that the page explains."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import augury
from augury.drafters.drafter import Rule
from augury.engine.kept import measured_on
from augury.engine.tables import CostTable
from augury.sampling import Sampling
from augury.trace import events
from augury.trace.log import TraceWriter
from augury.trace.told import Teller

if TYPE_CHECKING:
    from augury.engine.engine import Engine

MODEL = "smollm2-135m"

COPIED = """Write every sentence of this text as a line of a list.

The library opens at nine on weekdays and at ten on Saturdays. Books may be kept for three weeks, and may be renewed \
twice if nobody else has asked for them. Whoever loses a book pays for it."""
"""A prompt whose answer repeats much of it."""

TOLD = "Tell me in three sentences why the sky is blue."
"""A prompt whose answer is the model's own."""


_GREEDY = Sampling()


@dataclass(frozen=True)
class Telling:
    """One answer of the story.

    Attributes:
        label: of the request in the trace.
        pair: of the runs of one prompt that belong together.
        prompt: of the user.
        drafters: names that are asked; none decodes plainly.
        sampling: its law.
        rule: by which guesses are accepted.
        all: verify every guess, whether it is worth its row or not.
        depth: guesses in a row at most.
        timed: whether it is told how long it took; the others are there for their verdicts.
    """

    label: str
    pair: str
    prompt: str
    drafters: tuple[str, ...]
    sampling: Sampling = _GREEDY
    rule: Rule = "coupled"
    all: bool = False
    depth: int | None = None
    timed: bool = False


_SAMPLED, _OTHER = Sampling(temperature=0.8, seed=7), Sampling(temperature=0.8, seed=2)

STORY: Sequence[Telling] = (
    Telling("plain", "copied", COPIED, (), timed=True),
    Telling("drafted", "copied", COPIED, ("suffix", "self"), timed=True),
    Telling("every guess", "copied", COPIED, ("suffix",), all=True),
    Telling("plain, sampled", "told", TOLD, (), _SAMPLED),
    Telling("coupled, sampled", "told", TOLD, ("suffix", "self"), _SAMPLED, all=True, depth=4),
    Telling("rejection, sampled", "told", TOLD, ("self",), _SAMPLED, "rejection", all=True),
    Telling("rejection, two drafters", "told", TOLD, ("suffix", "self"), _OTHER, "rejection", all=True, depth=2),
)
"""In the order of the trace."""

_DRAFTERS = "suffix,self"
_TOKENS = 64  # of an answer at most


def run(trace: Path, costs: Path) -> None:
    """Answer everything, each once before to warm up, and write the trace and what forwards cost."""
    measured = augury.load(MODEL, drafters=_DRAFTERS)
    whole = augury.load(MODEL, drafters=_DRAFTERS, measure=False)
    info = measured.target.info
    assert measured.parts.meter is not None
    CostTable(measured.parts.meter.costs, measured_on(info, None)).write(costs)
    assert measured.tokenizer is not None
    teller = Teller(time.perf_counter(), measured.tokenizer.token_bytes)
    head = events.header(
        model=info.name, runner=info.runner, drafters=_DRAFTERS.split(","), source="story", text=True, zero=teller.zero
    )
    with TraceWriter(trace, head) as file:
        for id, telling in enumerate(STORY):
            engine = whole if telling.all else measured
            for _ in _answer(engine, telling, id, teller):
                pass
            engine.close()
            for event in _answer(engine, telling, id, teller):
                file.put(event)


def _answer(engine: Engine, telling: Telling, id: int, teller: Teller) -> Iterator[events.Event]:
    """The events of one answer."""
    prompt = engine.render(telling.prompt)
    count = 0
    for chunk in engine.stream(
        prompt,
        telling.sampling,
        max_tokens=_TOKENS,
        draft=bool(telling.drafters),
        drafters=telling.drafters or None,
        acceptance=telling.rule,
        draft_tokens=telling.depth,
        explain=True,
    ):
        if chunk.step is None:
            continue
        if count == 0:
            yield teller.begin(
                id, chunk.record, prompt, label=telling.label, rule=telling.rule, sampling=telling.sampling,
                pair=telling.pair,
            )  # fmt: skip
        yield teller.step(id, count, chunk.step)
        count += 1
    yield teller.end(id, chunk.record)
