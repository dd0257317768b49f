"""``augury bench``: how much sooner, by kind of text, and whether anything else changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from augury.cli.flags import Guessing, Loading
from augury.cli.terminal import DIFFERS, answering, note, show
from augury.errors import InputError

if TYPE_CHECKING:
    from augury.bench.paired import Pair
    from augury.bench.prompts import Prompt
    from augury.bench.report import Summary
    from augury.engine.engine import Engine
    from augury.models.target import TargetInfo
    from augury.sampling import Sampling


def bench(
    loading: Loading,
    guessing: Guessing,
    each: Annotated[
        bool,
        Option(
            "--each",
            help="Every drafter that needs no more than the target, alone, then all together.",
            rich_help_panel="Drafting",
        ),
    ] = False,
    file: Annotated[
        Path | None,
        Option(help="Prompts: JSONL (prompt, or turns as in Spec-Bench), or a line each.", rich_help_panel="Prompts"),
    ] = None,
    kinds: Annotated[str, Option(help="Comma list of kinds.", show_default="all", rich_help_panel="Prompts")] = "",
    limit: Annotated[
        int | None, Option(help="Prompts of each kind.", min=1, show_default="all", rich_help_panel="Prompts")
    ] = None,
    max_tokens: Annotated[int, Option(help="Tokens of each answer at most.", min=1)] = 128,
    temperature: Annotated[list[float], Option(help="0 is greedy; repeatable.")] = [0.0],  # noqa: B006
    seed: Annotated[int, Option(help="Of the sampled answers.")] = 0,
    rounds: Annotated[int, Option(help="How often each prompt is answered both ways.", min=1)] = 2,
    markdown: Annotated[bool, Option("--markdown", help="Tables as Markdown.", rich_help_panel="Output")] = False,
    json_out: Annotated[
        Path | None, Option("--json", help="Write everything measured to a file.", rich_help_panel="Output")
    ] = None,
) -> None:
    """Answer prompts plainly and drafted in turn, and compare time and tokens.

    Exit code 0: all answers are equal where equality is promised. 1: some are not.
    """
    _check(guessing, each, json_out)
    from augury.bench import report
    from augury.bench.prompts import own, read, select
    from augury.sampling import Sampling

    samplings = [Sampling(temperature=t, seed=seed) for t in dict.fromkeys(temperature)]
    prompts = select(own() if file is None else read(file), _names(kinds), limit)
    runs: list[_Run] = []
    target = loading.engine("none", guessing.acceptance, measure=False).target.info if each else None
    for number, drafters in enumerate(_sets(guessing, target)):
        engine = loading.engine(drafters, guessing.acceptance)
        if number == 0:
            note(f"{len(prompts)} prompts on {engine.target.info.name}, {engine.target.info.runner}")
        runs += [_measure(engine, drafters, prompts, s, max_tokens, rounds, markdown) for s in samplings]
    if len(runs) > 1:
        show(report.by_run([(run.drafters, run.temperature, run.summary) for run in runs]), markdown)
    if json_out is not None:
        arguments = {
            **asdict(loading), **asdict(guessing), "each": each, "file": file and str(file), "kinds": kinds,
            "limit": limit, "max_tokens": max_tokens, "temperature": temperature, "seed": seed, "rounds": rounds,
        }  # fmt: skip
        measured = [(run.drafters, run.temperature, run.pairs) for run in runs]
        json_out.write_text(json.dumps(report.document(arguments, engine.target.info, measured), indent=1), "utf-8")
    if any(run.summary.mismatches for run in runs):
        raise typer.Exit(DIFFERS)


def _check(guessing: Guessing, each: bool, json_out: Path | None) -> None:
    """Refuse what contradicts itself, before anything is loaded."""
    if each and guessing.drafters != Guessing().drafters:
        raise InputError(f"--each takes every drafter, so --drafters {guessing.drafters} has no place; leave one out")
    if guessing.drafters == "none":
        raise InputError("without a drafter there is nothing to compare; name some with --drafters")
    if json_out is not None and not json_out.parent.is_dir():
        raise InputError(f"--json {json_out}: there is no directory {json_out.parent}")


def _sets(guessing: Guessing, target: TargetInfo | None) -> list[str]:
    """The drafters of each run; with a target every one alone that needs no more than that, and all together."""
    from augury.drafters import brought, free

    if target is None:
        return [guessing.drafters]
    # Prediction needs no more than a prompt that has one.
    alone = [*free(), "prediction", *brought(target)]
    return [*alone, ",".join(alone)]


@dataclass(frozen=True)
class _Run:
    """What was measured of some drafters at one temperature."""

    drafters: str
    temperature: float
    pairs: list[Pair]
    summary: Summary


def _measure(
    engine: Engine,
    drafters: str,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    max_tokens: int,
    rounds: int,
    markdown: bool,
) -> _Run:
    """Answer all prompts both ways, and print what came of it."""
    from augury.bench import paired, report

    with answering(drafters, len(prompts) * rounds * 2) as told:
        pairs = paired.run(engine, prompts, sampling, max_tokens=max_tokens, rounds=rounds, progress=told)
    summary = report.summarise(pairs)
    show(report.by_kind(f"{drafters}, temperature {sampling.temperature:g}", summary), markdown)
    print("\n".join(report.notes(summary)), flush=True)
    return _Run(drafters, sampling.temperature, pairs, summary)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
