"""``augury bench``: how much sooner, by kind of text, and whether anything else changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from augury.cli.flags import Guessing, Loading
from augury.cli.terminal import note
from augury.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from augury.bench.paired import Pair, Progress
    from augury.bench.report import Summary

DIFFERS = 1
"""Exit code when an answer that should be the plain one is not."""

WIDTH = 150
"""Columns of a table that is not printed to a terminal."""


def bench(
    loading: Loading,
    guessing: Guessing,
    each: Annotated[
        bool,
        Option("--each", help="Every drafter of `augury info` alone, then all together.", rich_help_panel="Drafting"),
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
    if each and guessing.drafters != Guessing().drafters:
        raise InputError(f"--each takes every drafter, so --drafters {guessing.drafters} has no place; leave one out")
    if guessing.drafters == "none":
        raise InputError("without a drafter there is nothing to compare; name some with --drafters")
    if json_out is not None and not json_out.parent.is_dir():
        raise InputError(f"--json {json_out}: there is no directory {json_out.parent}")
    from augury.bench import paired, report
    from augury.bench.prompts import own, read, select
    from augury.drafters import DRAFTERS
    from augury.sampling import Sampling

    samplings = [Sampling(temperature=t, seed=seed) for t in dict.fromkeys(temperature)]
    prompts = select(own() if file is None else read(file), _names(kinds), limit)
    sets = [*DRAFTERS, ",".join(DRAFTERS)] if each else [guessing.drafters]
    runs: list[tuple[str, float, list[Pair]]] = []
    summaries: list[tuple[str, float, Summary]] = []
    for number, drafters in enumerate(sets, 1):
        engine = loading.engine(drafters, guessing.acceptance)
        if number == 1:
            note(f"{len(prompts)} prompts on {engine.target.info.name}, {engine.target.info.runner}")
        for sampling in samplings:
            with _progress(drafters, len(prompts) * rounds * 2) as told:
                pairs = paired.run(engine, prompts, sampling, max_tokens=max_tokens, rounds=rounds, progress=told)
            summary = report.summarise(pairs)
            runs.append((drafters, sampling.temperature, pairs))
            summaries.append((drafters, sampling.temperature, summary))
            _print(report.by_kind(f"{drafters}, temperature {sampling.temperature:g}", summary), markdown)
            print("\n".join(report.notes(summary)), flush=True)
    if len(summaries) > 1:
        _print(report.by_run(summaries), markdown)
    if json_out is not None:
        arguments = {
            **asdict(loading), **asdict(guessing), "each": each, "file": file and str(file), "kinds": kinds,
            "limit": limit, "max_tokens": max_tokens, "temperature": temperature, "seed": seed, "rounds": rounds,
        }  # fmt: skip
        json_out.write_text(json.dumps(report.document(arguments, engine.target.info, runs), indent=1), "utf-8")
    if any(summary.mismatches for _, _, summary in summaries):
        raise typer.Exit(DIFFERS)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _print(table: Table, markdown: bool) -> None:
    from rich.console import Console

    from augury.bench import report

    print(flush=True)
    if markdown:
        print(report.markdown(table), end="\n\n", flush=True)
    else:
        Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False).print(table)


@contextmanager
def _progress(what: str, answers: int) -> Iterator[Progress | None]:
    """A bar with the time left, on stderr; nothing when that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=answers)
        yield lambda prompt: bar.update(task, advance=1, description=f"{what}: {prompt.kind}")
