"""Everything a benchmark measured as one JSON document, written and read back: the only way results are kept.

Summaries stand in it for readers; whoever reads it here gets the answers, and computes the summaries again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from augury.bench.paired import Answer, Pair
from augury.bench.prompts import Prompt
from augury.bench.report import Summary, commit, machine, summarise, versions
from augury.bench.together import Batch, Together, Wave, batches
from augury.errors import InputError
from augury.texts import utf8
from augury.trace.figures import DrafterFigures, Figures

_NEEDED = frozenset({"arguments", "target", "machine", "versions", "commit"})
_OF_TARGET = frozenset({"name", "family", "parameters", "runner", "context"})


@dataclass(frozen=True)
class Run:
    """What was measured of some drafters at one temperature.

    Attributes:
        drafters: as they were named.
        temperature: 0 is greedy.
        pairs: prompts answered one at a time, at least one.
        together: the same prompts answered several at once, if they were.
    """

    drafters: str
    temperature: float
    pairs: Sequence[Pair]
    together: Sequence[Together] = ()

    @cached_property
    def summary(self) -> Summary:
        """The figures of the pairs."""
        return summarise(self.pairs)

    @cached_property
    def batches(self) -> list[Batch]:
        """A row for each batch size; the first is that of the pairs. Empty when nothing was answered together."""
        if not self.together:
            return []
        one, total = self.summary, self.summary.overall
        alone = Batch(
            size=1,
            groups=total.prompts,
            plain=total.plain,
            drafted=total.drafted,
            speedup=total.speedup,
            interval=total.interval,
            end_to_end=total.end_to_end,
            acceptance_length=total.acceptance_length,
            answers=one.answers,
            mismatches=one.mismatches,
        )
        return [alone, *batches(self.together)]

    @property
    def mismatches(self) -> int:
        """Answers, one at a time or together, that should be the plain ones and are not."""
        return self.summary.mismatches + sum(batch.mismatches for batch in self.batches[1:])


def document(arguments: Mapping[str, object], target: object, runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that was measured, as JSON takes it: arguments, machine, versions, summaries, every answer.

    Args:
        arguments: what was asked for.
        target: the target's ``TargetInfo``.
        runs: what was measured.
    """
    return {
        "arguments": dict(arguments),
        "target": asdict(target),  # type: ignore[call-overload]
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "runs": [
            {
                "drafters": run.drafters,
                "temperature": run.temperature,
                "summary": asdict(run.summary),
                "pairs": [_pair(pair) for pair in run.pairs],
                "batches": [asdict(batch) for batch in run.batches],
                "together": [_together(one) for one in run.together],
            }
            for run in runs
        ],
    }


def measured(document: Mapping[str, Any]) -> list[Run]:
    """The runs of a document; what was not kept, the prompts' texts, is empty.

    Raises:
        KeyError, TypeError: it is no such document.
    """
    return [
        Run(
            drafters=str(run["drafters"]),
            temperature=float(run["temperature"]),
            pairs=[_read_pair(pair) for pair in run["pairs"]],
            together=[_read_together(one) for one in run.get("together", ())],
        )
        for run in document["runs"]
    ]


def read(path: Path) -> dict[str, Any]:
    """A document that was kept in a file.

    Raises:
        InputError: the file cannot be read, or is none that ``augury bench --json`` wrote.
    """
    text = utf8(path)
    try:
        found = json.loads(text)
        # ``augury drafters --json`` keeps runs too, with other arguments, and what each drafter is to be relied on.
        whole = (
            isinstance(found, dict)
            and "drafters" not in found
            and all((run.summary, run.batches) for run in measured(found))
        )
        kept = whole and found["runs"] and found.keys() >= _NEEDED and found["target"].keys() >= _OF_TARGET
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, ArithmeticError):
        kept = False
    if not kept:
        raise InputError(f"{path} is not a file that `augury bench --json` of this version wrote")
    return dict(found)


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "prompt": pair.prompt.id,
        "kind": pair.prompt.kind,
        "round": pair.round,
        "same": pair.same,
        "speedup": pair.speedup,
        "end_to_end": pair.end_to_end,
        "plain": asdict(pair.plain),
        "drafted": asdict(pair.drafted),
    }


def _together(one: Together) -> dict[str, Any]:
    return {**asdict(one), "speedup": one.speedup, "end_to_end": one.end_to_end}


def _read_pair(kept: Mapping[str, Any]) -> Pair:
    prompt = Prompt(str(kept["prompt"]), str(kept["kind"]), "")
    return Pair(prompt, kept["round"], _read_answer(kept["plain"]), _read_answer(kept["drafted"]), kept["same"])


def _read_answer(kept: Mapping[str, Any]) -> Answer:
    return Answer(tuple(kept["tokens"]), kept["wall_ms"], _read_figures(kept["figures"]))


def _read_together(kept: Mapping[str, Any]) -> Together:
    return Together(
        size=kept["size"],
        number=kept["number"],
        round=kept["round"],
        prompts=tuple(kept["prompts"]),
        plain=_read_wave(kept["plain"]),
        drafted=_read_wave(kept["drafted"]),
        same=None if kept["same"] is None else tuple(kept["same"]),
    )


def _read_wave(kept: Mapping[str, Any]) -> Wave:
    return Wave(tuple(map(tuple, kept["tokens"])), kept["wall_ms"], tuple(map(_read_figures, kept["figures"])))


def _read_figures(kept: Mapping[str, Any]) -> Figures:
    return Figures(**{**kept, "drafters": [DrafterFigures(**one) for one in kept["drafters"]]})
