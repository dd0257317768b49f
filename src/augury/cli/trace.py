"""``augury trace``: what a trace file tells, as text, timeline, tables, or in a browser; no model is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from augury.cli.ribbon import safe
from augury.cli.terminal import check_output, named, note, show, write
from augury.errors import InputError
from augury.trace.events import Event
from augury.trace.figures import Figures, figures
from augury.trace.log import TraceFile
from augury.trace.records import Traced, requests

if TYPE_CHECKING:
    from rich.table import Table

_LISTED = 50
"""Requests that are listed; of more the last ones."""

_ANSWERS = 10
"""Answers that are shown; of more none, and one may be asked for."""


def trace(
    file: Annotated[Path, Argument(help="What --trace FILE of generate, chat, explain, bench or serve wrote.")],
    request: Annotated[int | None, Option(metavar="ID", help="Only this request.", show_default="all")] = None,
    explain: Annotated[
        bool, Option("--explain", help="Every step, as augury explain shows it.", rich_help_panel="Output")
    ] = False,
    perfetto: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write a timeline, for ui.perfetto.dev and others.", rich_help_panel="Output"),
    ] = None,
    parquet: Annotated[
        Path | None,
        Option(metavar="DIR", help="Write tables, as specspecs has them and more.", rich_help_panel="Output"),
    ] = None,
    view: Annotated[
        bool, Option("--open", help="Show it in a browser, until Ctrl-C.", rich_help_panel="Output")
    ] = False,
    browser: Annotated[
        bool, Option("--browser/--no-browser", help="Whether --open starts one.", rich_help_panel="Output")
    ] = True,
) -> None:
    """Say what happened in a trace: its requests and their figures, and what was answered where it holds text."""
    if view and request is not None:
        raise InputError(f"--open shows every request, so --request {request} has no place; leave one of them out")
    if not browser and not view:
        raise InputError("--no-browser is of --open; give both, or none of them")
    check_output("--perfetto", perfetto)
    found = TraceFile(file)
    if perfetto is not None:
        _write_timeline(found, request, perfetto)
    if parquet is not None:
        from augury.trace import tables

        for path in tables.write(parquet, found.header, _of(found, request), request):
            note(f"wrote {path}")
    if explain:
        _explain(found, request)
    if perfetto is None and parquet is None and not explain and not view:
        _summarise(found, request)
    if found.torn is not None:
        note(f"augury: {file}: {found.torn}")
    if view:
        from augury.server.viewing import open_trace

        raise typer.Exit(open_trace(file, browser))


def _of(found: TraceFile, request: int | None) -> Iterator[Event]:
    """The events of one request, or all.

    Raises:
        InputError: it is not there.
    """
    seen: set[int] = set()
    for event in found:
        seen.update([event["id"]] if "id" in event else [])
        if request is None or event.get("id") == request:
            yield event
    if request is not None and request not in seen:
        held = f"{min(seen)} to {max(seen)}" if seen else "none"
        raise InputError(f"request {request} is not in {found.path}; it holds {held}")


def _write_timeline(found: TraceFile, request: int | None, out: Path) -> None:
    from augury.trace.timeline import document

    write(out, "".join(document(found.header, _of(found, request), request)), "the timeline")
    note(f"wrote {out}; open it at ui.perfetto.dev, which shows it in your browser")


def _explain(found: TraceFile, request: int | None) -> None:
    """Every step of every request."""
    from rich.console import Console

    from augury.trace.explain import step, summary

    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    for one in _requests(found, request):
        console.print(f"request {one.id}{_named(one)}", style="bold", markup=False)
        due = 0
        for number, record in zip(one.numbers, one.record.steps, strict=True):
            if number > due:
                console.print(_missing(number - due), style="yellow")
            console.print(step(number + 1, record, one.record.drafters, one.token))
            due = number + 1
        if behind := one.known - due:
            console.print(_missing(behind), style="yellow")
        console.print()
        console.print(summary(one.record))
        console.print()


def _requests(found: TraceFile, request: int | None) -> Iterator[Traced]:
    """Requests whose names cannot steer a terminal."""
    return requests(_shown(found.header), map(_shown, _of(found, request)))


def _shown(value: Any) -> Any:
    """JSON whose texts are names of one line; a stop string is left, which is looked for in the answer."""
    if isinstance(value, str):
        return named(value)
    if isinstance(value, dict):
        return {key: inner if key == "stop" else _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list) else value


@dataclass
class _Total:
    """Of all requests of a label."""

    requests: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    ms: float = 0.0

    def add(self, one: Figures) -> None:
        """Another request."""
        self.requests += 1
        self.tokens += one.completion_tokens
        self.steps += one.steps
        self.drafted += one.drafted
        self.accepted += one.accepted
        self.ms += one.decode_ms


def _summarise(found: TraceFile, request: int | None) -> None:
    """Requests in a table, sums by label, and the answers."""
    head = _shown(found.header)
    when = datetime.fromtimestamp(head["unix"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    print(f"{head['model']}, {head['runner']}; augury {head['version']} {head['source']}, {when}")
    rows: list[tuple[str, ...]] = []
    gaps: list[str] = []
    totals: dict[str, _Total] = {}
    answers: list[tuple[Traced, str]] = []
    for one in _requests(found, request):
        of = figures(one.record)
        totals.setdefault(one.label, _Total()).add(of)
        rows.append(_row(one, of))
        if one.missing:
            gaps.append(f"request {one.id}: {_missing(one.missing)}; the figures are of the others")
        if (answer := one.answer) is not None and len(answers) <= _ANSWERS:
            answers.append((one, answer))
    show(_table(rows), markdown=False)
    lines = [_sum(label, total) for label, total in totals.items()] if len(rows) > 1 else []
    lines += gaps[-_LISTED:]
    if len(rows) > _LISTED:
        lines.insert(0, f"the last {_LISTED} of {len(rows)} requests; --request ID shows another one")
    print("\n".join(lines), end="\n" * bool(lines))
    if len(answers) > _ANSWERS:
        print("--request ID shows an answer")
        return
    for one, answer in answers:
        print(f"\nrequest {one.id}{_named(one)}\n{safe(answer)}")


def _table(rows: list[tuple[str, ...]]) -> Table:
    from rich.table import Table

    heads = ("request", "run", "prompt", "tokens", "steps", "length", "rate", "tokens/s", "saved ms", "ended")
    table = Table(box=None, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place in (1, 9) else "right")
    for row in rows[-_LISTED:]:
        table.add_row(*row)
    return table


def _row(one: Traced, of: Figures) -> tuple[str, ...]:
    from rich.markup import escape

    known = [step.saved_ms for step in one.record.steps if step.saved_ms is not None]
    ended = "not yet" if one.end is None else one.end["error"] or one.end["finish"] or "-"
    return (
        str(one.id),
        escape(_named(one).removeprefix(": ")),
        str(of.prompt_tokens) if one.begin is not None else "-",
        str(of.completion_tokens),
        str(of.steps),
        _number(of.mean_acceptance_length, ".2f"),
        _number(of.draft_acceptance_rate, ".0%"),
        _number(of.tokens_per_second, ".1f"),
        _number(sum(known) if known else None, ".1f"),
        escape(str(ended)),
    )


def _sum(label: str, total: _Total) -> str:
    parts = [f"{total.requests} requests, {total.tokens} tokens in {total.steps} steps"]
    if total.steps:
        parts.append(f"acceptance length {1.0 + total.accepted / total.steps:.2f}")
    if total.drafted:
        parts.append(f"draft acceptance rate {total.accepted / total.drafted:.0%} ({total.accepted}/{total.drafted})")
    if total.ms:
        parts.append(f"{1e3 * total.tokens / total.ms:.1f} tokens/s each")
    return f"{label or 'begun before'}: {' · '.join(parts)}"


def _named(one: Traced) -> str:
    """Label and pair, behind a colon."""
    pair = "" if one.begin is None else one.begin.get("pair", "")
    named = ", ".join(part for part in (one.label, pair) if part)
    return f": {named}" if named else ""


def _missing(steps: int) -> str:
    return f"{steps} steps are missing" if steps > 1 else "1 step is missing"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
