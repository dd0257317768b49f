"""``augury drafters``: what can guess for a target, and how far each is to be relied on, on prompts of the user's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from augury.cli.flags import Loading, Only
from augury.cli.terminal import DIFFERS, REFUSED, answering, check_output, note, progress, show
from augury.drafters import DRAFTERS, brought, check, free, split
from augury.errors import InputError, UnknownName

if TYPE_CHECKING:
    from augury.bench.alone import Tried
    from augury.bench.prompts import Prompt
    from augury.models.target import TargetInfo

BY = ("kind", "category")
"""What prompts can be grouped by: two words for one field."""


@dataclass(frozen=True)
class Trying:
    """Who is measured, on which prompts, and how; without prompts none of it has a meaning."""

    drafters: Annotated[
        str,
        Option(
            metavar="LIST",
            help="Comma list of more: model:MODEL, retrieval:INDEX, module:Class, a name with options.",
            rich_help_panel="Drafting",
        ),
    ] = ""
    only: Only = False
    by: Annotated[
        str | None,
        Option(
            metavar="KIND|CATEGORY",
            help="A column for each kind of prompt: acceptance length, draft cost, net speed-up.",
            rich_help_panel="Output",
        ),
    ] = None
    kinds: Annotated[str, Option(help="Comma list of kinds.", show_default="all", rich_help_panel="Prompts")] = ""
    limit: Annotated[
        int | None, Option(help="Prompts of each kind.", min=1, show_default="all", rich_help_panel="Prompts")
    ] = None
    max_tokens: Annotated[int, Option(help="Tokens of each answer at most.", min=1)] = 128
    temperature: Annotated[float, Option(help="0 is greedy.")] = 0.0
    seed: Annotated[int, Option(help="Of the sampled answers.")] = 0
    rounds: Annotated[
        int, Option(help="How often each prompt is answered both ways; reliability is that of the first.", min=1)
    ] = 1

    def given(self) -> list[str]:
        """Flags that say something else than the default."""
        return [_flag(f.name) for f in fields(self) if getattr(self, f.name) != f.default]

    def specs(self, target: TargetInfo | None = None) -> list[str]:
        """The drafters to measure; those that a target brings along are known when it is loaded."""
        named = [spec for spec in split(self.drafters) if spec]
        return list(dict.fromkeys(named if self.only else [*free(), *(brought(target) if target else []), *named]))


def drafters(
    loading: Loading,
    trying: Trying,
    measure: Annotated[
        bool, Option("--measure", help="Measure on the project's own prompts.", rich_help_panel="Prompts")
    ] = False,
    file: Annotated[
        Path | None,
        Option(
            help="Measure on prompts: JSONL (prompt, or turns as in Spec-Bench), or a line each.",
            rich_help_panel="Prompts",
        ),
    ] = None,
    markdown: Annotated[bool, Option("--markdown", help="The table as Markdown.", rich_help_panel="Output")] = False,
    json_out: Annotated[
        Path | None, Option("--json", help="Write everything to a file.", rich_help_panel="Output")
    ] = None,
) -> None:
    """List the drafters and what each needs; with prompts, measure how far each is to be relied on.

    Exit code 0: all answers are equal. 1: some are not. 2: no drafter could be made.
    """
    check_output("--json", json_out)
    if measure or file is not None:
        _check(trying, measure, file)
        _measured(loading, trying, file, markdown, json_out)
        return
    running = [_flag(f.name) for f in fields(loading) if f.name != "model" and getattr(loading, f.name) != f.default]
    if given := [*trying.given(), *running]:
        raise InputError(f"{given[0]} needs prompts: give --file, or --measure for the project's own")
    _listed(loading.model, markdown, json_out)


def _listed(model: str, markdown: bool, json_out: Path | None) -> None:
    """What there is; loads nothing."""
    from augury.bench.report import table

    rows = [
        {"name": name, "guesses_from": spec.doc, "needs": spec.needs, "available": _available(name, model)}
        for name, spec in DRAFTERS.items()
    ]
    columns = ("drafter", "guesses from", "needs", f"for {model}")
    shown = table("", columns, [[*row.values()] for row in rows])
    for column in shown.columns:
        column.justify = "left"
    show(shown, markdown)
    if json_out is not None:
        json_out.write_text(json.dumps({"model": model, "drafters": rows}, indent=1), "utf-8")


def _available(name: str, model: str) -> str:
    """What of a drafter's needs is at hand for a target."""
    if name != "retrieval":
        return "when given" if DRAFTERS[name].needs else "yes"
    from augury.datastore.index import Manifest, locate, names

    found = []
    for index in names():
        try:
            if Manifest.read(locate(index)).model == model:
                found.append(f"retrieval:{index}")
        except InputError:  # `augury index list` says what is wrong with it
            continue
    return ", ".join(found) or "no index yet"


def _check(trying: Trying, measure: bool, file: Path | None) -> None:
    """Refuse what contradicts itself, and names that are none, before anything is loaded."""
    if measure and file is not None:
        raise InputError(f"--measure takes the project's own prompts, --file {file} others; leave one out")
    if trying.by is not None and trying.by.lower() not in BY:
        raise UnknownName("grouping of --by", trying.by, BY)
    if trying.only and not trying.drafters:
        raise InputError("--only measures those of --drafters, and there are none; name some")
    specs = trying.specs()
    for before, spec in zip(["", *specs], specs, strict=False):
        if spec == "none":
            raise InputError("the drafter none guesses nothing: every drafter is compared with plain decoding anyway")
        check(spec, before)


def _measured(loading: Loading, trying: Trying, file: Path | None, markdown: bool, json_out: Path | None) -> None:
    """Load the target once, measure all drafters, and show what came of it."""
    from augury.bench import alone_report
    from augury.bench.prompts import own, read, select

    named = [kind.strip() for kind in trying.kinds.split(",") if kind.strip()]
    prompts = select(own() if file is None else read(file), named, trying.limit)
    tried, target = _tried(loading, trying, prompts)
    count = len({pair.prompt.id for one in tried for pair in one.pairs})
    title = f"{count} prompts on {target.name}, {target.runner}, temperature {trying.temperature:g}"
    if trying.by is None:
        show(alone_report.by_drafter(title, tried), markdown)
        print("\n".join(alone_report.LEGEND))
    else:
        show(
            alone_report.by_kind(
                f"{title}: acceptance length / share of the time spent on drafting / net speed-up", tried
            ),
            markdown,
        )
    print("\n".join(alone_report.notes(tried)), flush=True)
    if json_out is not None:
        arguments = {**asdict(loading), **asdict(trying), "file": file and str(file)}
        found = alone_report.whole(arguments, target, trying.temperature, tried)
        json_out.write_text(json.dumps(found, indent=1), "utf-8")
    if alone_report.mismatches(tried):
        raise typer.Exit(DIFFERS)
    if all(one.why is not None for one in tried):
        raise typer.Exit(REFUSED)


def _tried(loading: Loading, trying: Trying, prompts: list[Prompt]) -> tuple[list[Tried], Any]:
    """Every drafter's measurement, and what the target is."""
    from augury.bench.alone import alone
    from augury.engine.costs import profile
    from augury.sampling import Sampling

    sampling = Sampling(temperature=trying.temperature, seed=trying.seed)
    engine = loading.engine("none", "coupled", measure=False)
    with progress() as told:
        meter = profile(engine.target, progress=(lambda share: told("measuring costs", share)) if told else None)
    tried: list[Tried] = []
    specs = trying.specs(engine.target.info)
    with answering("drafters", len(prompts) * trying.rounds * (len(specs) + 1)) as each:
        try:
            for found in alone(
                engine, meter, specs, prompts, sampling,
                max_tokens=trying.max_tokens, rounds=trying.rounds, threads=loading.threads, progress=each,
            ):  # fmt: skip
                tried = found
        except KeyboardInterrupt:
            if not tried:
                raise
            count = max(len(one.pairs) for one in tried)
            note(f"augury: stopped after {count} of {len(prompts) * trying.rounds} prompts; this is what they show")
    for one in tried:
        if one.why is not None:
            note(f"augury: {one.drafter} is left out: {one.why}")
    return tried, engine.target.info


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"
