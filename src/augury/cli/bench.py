"""``augury bench``: how much sooner, by kind of text and by requests at once, and whether anything else changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from augury.cli.flags import Guessing, Loading
from augury.cli.terminal import DIFFERS, answering, check_output, note, show
from augury.cli.tracing import Trace, Tracing
from augury.errors import InputError, first_line

if TYPE_CHECKING:
    from augury.bench.document import Run
    from augury.bench.paired import Given, Taken
    from augury.bench.prompts import Prompt
    from augury.engine.engine import Engine
    from augury.models.target import TargetInfo
    from augury.sampling import Sampling

_NO_MEMORY = re.compile("out of memory|allocate memory")
"""What torch says when there is none."""

_OF_KEPT = ("--from", "--html", "--markdown")
"""Flags that a kept measurement takes."""


def bench(
    context: typer.Context,
    loading: Loading,
    guessing: Guessing,
    tracing: Tracing,
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
    kinds: Annotated[
        str,
        Option(
            help="Comma list of kinds; adversarial is measured only where it is named.",
            show_default="all others",
            rich_help_panel="Prompts",
        ),
    ] = "",
    limit: Annotated[
        int | None, Option(help="Prompts of each kind.", min=1, show_default="all", rich_help_panel="Prompts")
    ] = None,
    max_tokens: Annotated[int, Option(help="Tokens of each answer at most.", min=1)] = 128,
    temperature: Annotated[list[float], Option(help="0 is greedy; repeatable.")] = [0.0],  # noqa: B006
    seed: Annotated[int, Option(help="Of the sampled answers.")] = 0,
    rounds: Annotated[int, Option(help="How often each prompt is answered both ways.", min=1)] = 2,
    batch: Annotated[str, Option(metavar="N,N", help="Requests at once, as in 1,2,4,8; 1 always comes first.")] = "1",
    markdown: Annotated[bool, Option("--markdown", help="Tables as Markdown.", rich_help_panel="Output")] = False,
    json_out: Annotated[
        Path | None, Option("--json", help="Write everything measured to a file.", rich_help_panel="Output")
    ] = None,
    html: Annotated[
        Path | None, Option("--html", help="Write a report of one page to a file.", rich_help_panel="Output")
    ] = None,
    kept: Annotated[
        Path | None,
        Option("--from", help="Measure nothing: show what --json wrote to a file.", rich_help_panel="Output"),
    ] = None,
) -> None:
    """Answer prompts plainly and drafted in turn, and compare time and tokens.

    Exit code 0: all answers are equal where equality is promised. 1: some are not.
    """
    for flag, path in (("--json", json_out), ("--html", html)):
        check_output(flag, path)
    if kept is not None:
        _show_kept(context, kept, html, markdown)
        return
    sizes = _sizes(batch)
    _check(guessing, each)
    tracing.check()
    from augury.bench.adversarial import chosen
    from augury.bench.document import document
    from augury.bench.prompts import read, select
    from augury.sampling import Sampling

    samplings = [Sampling(temperature=t, seed=seed) for t in dict.fromkeys(temperature)]
    prompts = chosen(_names(kinds), limit) if file is None else select(read(file), _names(kinds), limit)
    if sizes[-1] > len(prompts):
        raise InputError(f"--batch {sizes[-1]} needs as many prompts, and there are {len(prompts)}; give more prompts")
    runs: list[Run] = []
    arguments = {
        **asdict(loading), **asdict(guessing), "each": each, "file": file and str(file), "kinds": kinds, "limit": limit,
        "max_tokens": max_tokens, "temperature": temperature, "seed": seed, "rounds": rounds, "batch": batch,
    }  # fmt: skip
    target = loading.engine("none", guessing.acceptance, measure=False).target.info if each else None
    with ExitStack() as opened:
        trace: Trace | None = None
        for number, drafters in enumerate(_sets(guessing, target)):
            with _memory(sizes[-1]):
                engine = loading.engine(drafters, guessing.acceptance, requests=sizes[-1])
                if number == 0:
                    note(f"{len(prompts)} prompts on {engine.target.info.name}, {engine.target.info.runner}")
                trace = trace or opened.enter_context(tracing.opened(engine, "bench"))
                for sampling in samplings:
                    taken = _taken(trace, engine, drafters, sampling)
                    runs.append(_measure(engine, drafters, prompts, sampling, sizes, max_tokens, rounds, taken))
                    # Whatever becomes of the runs to come, what was measured is kept.
                    _keep(document(arguments, engine.target.info, runs), json_out, html)
                    _show_run(runs[-1], markdown)
    _show_all(runs, markdown)
    _end(runs)


def _keep(found: Mapping[str, Any], json_out: Path | None, html: Path | None) -> None:
    """Write what was measured so far."""
    if json_out is None and html is None:
        return
    text = json.dumps(found, indent=1)
    if json_out is not None:
        json_out.write_text(text, "utf-8")
    if html is not None:
        _write_page(json.loads(text), html)


def _check(guessing: Guessing, each: bool) -> None:
    """Refuse what contradicts itself, before anything is loaded."""
    if each and guessing.drafters != Guessing().drafters:
        raise InputError(f"--each takes every drafter, so --drafters {guessing.drafters} has no place; leave one out")
    if guessing.drafters == "none":
        raise InputError("without a drafter there is nothing to compare; name some with --drafters")


def _sizes(text: str) -> list[int]:
    """Requests at once, from 1 up."""
    try:
        sizes = {int(size) for size in text.split(",")}
    except ValueError:
        sizes = {0}
    if min(sizes) < 1:
        raise InputError(f"--batch {text!r} is not a comma list of whole numbers, 1 or more, as in 1,2,4,8")
    return sorted({1, *sizes})


@contextmanager
def _memory(requests: int) -> Iterator[None]:
    """Say what to do where memory ends."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's own kinds of the first are of the second
        if requests == 1 or not (isinstance(error, MemoryError) or _NO_MEMORY.search(str(error))):
            raise
        raise InputError(
            f"--batch {requests} needs more memory than there is ({first_line(error)}); "
            "ask for fewer requests, or give a smaller --max-model-len"
        ) from None


def _sets(guessing: Guessing, target: TargetInfo | None) -> list[str]:
    """The drafters of each run; with a target every one alone that needs no more than that, and all together."""
    from augury.drafters import brought, free

    if target is None:
        return [guessing.drafters]
    # Prediction needs no more than a prompt that has one.
    alone = [*free(), "prediction", *brought(target)]
    return [*alone, ",".join(alone)]


def _measure(
    engine: Engine,
    drafters: str,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    sizes: Sequence[int],
    max_tokens: int,
    rounds: int,
    taken: Taken,
) -> Run:
    """Answer all prompts both ways, one at a time and then several at once."""
    from augury.bench import paired, together
    from augury.bench.document import Run

    answers = sum(size * len(together.groups(prompts, size)) for size in sizes) * rounds * 2
    with answering(drafters, answers) as told:
        pairs = paired.run(engine, prompts, sampling, max_tokens=max_tokens, rounds=rounds, progress=told, taken=taken)
        alone = together.answered_alone(pairs)
        several = [
            one
            for size in sizes[1:]
            for one in together.run(
                engine, prompts, sampling, size, alone, max_tokens=max_tokens, rounds=rounds, progress=told, taken=taken
            )
        ]
    return Run(drafters, sampling.temperature, pairs, several)


def _taken(trace: Trace, engine: Engine, drafters: str, sampling: Sampling) -> Taken:
    """Writes every answer to the trace, when its time is measured."""
    run = f"{drafters}, temperature {sampling.temperature:g}"

    def taken(given: Given) -> None:
        label = "plain" if given.arm == () else "drafted"
        trace.add(given.record, engine, given.ids, sampling, label, f"{given.prompt.id}, {given.among}, {run}")

    return taken


def _show_kept(context: typer.Context, kept: Path, html: Path | None, markdown: bool) -> None:
    """Tables and page of a measurement that was kept."""
    sources = ((p.opts[0], context.get_parameter_source(p.name)) for p in context.command.params if p.name)
    given = [flag for flag, source in sources if source is not None and source.name != "DEFAULT"]
    if wrong := [flag for flag in given if flag not in _OF_KEPT]:
        raise InputError(f"--from {kept} shows what was measured, so {wrong[0]} has no place; leave one of them out")
    from augury.bench.document import measured, read

    found = read(kept)
    runs = measured(found)
    for run in runs:
        _show_run(run, markdown)
    _show_all(runs, markdown)
    if html is not None:
        _write_page(found, html)
    _end(runs)


def _write_page(document: dict[str, Any], html: Path) -> None:
    """Write the report."""
    from augury.bench.page.page import page

    html.write_text(page(document), "utf-8")


def _show_run(run: Run, markdown: bool) -> None:
    """Print what came of a run."""
    from augury.bench import report

    show(report.by_kind(f"{run.drafters}, temperature {run.temperature:g}", run.summary), markdown)
    print("\n".join(report.notes(run.summary)), flush=True)
    if run.batches:
        show(report.by_batch("requests at once", run.batches), markdown)


def _show_all(runs: Sequence[Run], markdown: bool) -> None:
    """Print what came of all runs, if there are several."""
    from augury.bench import report

    if len(runs) > 1:
        show(report.by_run([(run.drafters, run.temperature, run.summary) for run in runs]), markdown)


def _end(runs: Sequence[Run]) -> None:
    """Say by the exit code whether some answer is not the plain one."""
    if any(run.mismatches for run in runs):
        raise typer.Exit(DIFFERS)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
