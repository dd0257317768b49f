"""From pairs to figures, from figures to tables, and on what machine they were measured."""

from __future__ import annotations

import platform
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import augury
from augury.bench.paired import Answer, Pair
from augury.bench.ratios import SLOWER, geometric_mean, interval, median
from augury.models.machine import processor, usable_cores

if TYPE_CHECKING:
    from rich.table import Table

    from augury.bench.together import Batch

UNTIMED = 0.05
"""Share of wall time that records may leave unaccounted for before the report says so."""

_PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "gguf")


@dataclass(frozen=True)
class Row:
    """The figures of one kind of prompt, or of all.

    Attributes:
        kind: which.
        prompts: how many.
        plain: tokens per second without drafts, the prompt excluded.
        drafted: the same with drafts.
        speedup: geometric mean over prompts of the median of a prompt's paired ratios, the prompt excluded.
        interval: its 95 % bootstrap interval; None with fewer than three prompts.
        worst: id of the prompt of least speed-up.
        worst_speedup: that speed-up.
        slower: share of prompts whose speed-up is below 0.95.
        end_to_end: the speed-up with everything included.
        acceptance_length: tokens per step, bonus included.
        acceptance_rate: accepted / drafted, bonus excluded; None when nothing was drafted.
        draft, verify, rest: shares of the drafted steps' time; they add up to 1.
        accepted: tokens accepted by drafter.
    """

    kind: str
    prompts: int
    plain: float
    drafted: float
    speedup: float
    interval: tuple[float, float] | None
    worst: str
    worst_speedup: float
    slower: float
    end_to_end: float
    acceptance_length: float
    acceptance_rate: float | None
    draft: float
    verify: float
    rest: float
    accepted: Mapping[str, int]


@dataclass(frozen=True)
class Summary:
    """What a paired run found.

    Attributes:
        kinds: a row for each kind, in order of appearance.
        overall: the row of all prompts.
        worst: the kind of least speed-up.
        answers: drafted answers compared with plain ones; 0 where the rule does not promise equal tokens.
        mismatches: of these, how many were not equal.
        untimed: share of the wall time of all answers that no record accounts for.
        noise: median over prompts of how much longer a token of the slowest plain answer took than one of the
            fastest, the two being the same work; None with one round.
    """

    kinds: Sequence[Row]
    overall: Row
    worst: str
    answers: int
    mismatches: int
    untimed: float
    noise: float | None


def summarise(pairs: Sequence[Pair]) -> Summary:
    """Fold the pairs of one run, of which there is at least one."""
    kinds = [_row(kind, [p for p in pairs if p.prompt.kind == kind]) for kind in _unique(p.prompt.kind for p in pairs)]
    answers = [a for p in pairs for a in (p.plain, p.drafted)]
    compared = [p.same for p in pairs if p.same is not None]
    return Summary(
        kinds=kinds,
        overall=_row("all", pairs),
        worst=min(kinds, key=lambda row: row.speedup).kind,
        answers=len(compared),
        mismatches=compared.count(False),
        untimed=sum(a.untimed_ms for a in answers) / sum(a.wall_ms for a in answers),
        noise=_noise(pairs),
    )


def by_prompt(pairs: Sequence[Pair], ratio: str = "speedup") -> dict[str, float]:
    """Median of a prompt's paired ratios (``speedup`` or ``end_to_end``), by the prompt's id."""
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        ratios[pair.prompt.id].append(float(getattr(pair, ratio)))
    return {prompt: median(found) for prompt, found in ratios.items()}


def _row(kind: str, pairs: Sequence[Pair]) -> Row:
    plain, drafted = [p.plain for p in pairs], [p.drafted for p in pairs]
    steps = [a.figures for a in drafted]
    decode = sum(f.decode_ms for f in steps)
    verified, accepted = sum(f.drafted for f in steps), sum(f.accepted for f in steps)
    names = _unique(d.name for f in steps for d in f.drafters)
    speedups = by_prompt(pairs)
    worst = min(speedups, key=lambda prompt: speedups[prompt])
    return Row(
        kind=kind,
        prompts=len(speedups),
        plain=_rate(plain),
        drafted=_rate(drafted),
        speedup=geometric_mean(list(speedups.values())),
        interval=interval(list(speedups.values())),
        worst=worst,
        worst_speedup=speedups[worst],
        slower=sum(ratio < SLOWER for ratio in speedups.values()) / len(speedups),
        end_to_end=geometric_mean(list(by_prompt(pairs, "end_to_end").values())),
        acceptance_length=1.0 + accepted / sum(f.steps for f in steps),
        acceptance_rate=accepted / verified if verified else None,
        draft=sum(f.draft_ms for f in steps) / decode,
        verify=sum(f.verify_ms for f in steps) / decode,
        rest=sum(f.rest_ms for f in steps) / decode,
        accepted={n: sum(d.accepted for f in steps for d in f.drafters if d.name == n) for n in names},
    )


def _noise(pairs: Sequence[Pair]) -> float | None:
    """See ``Summary.noise``."""
    times = [[p.plain.token_ms for p in pairs if p.prompt.id == one] for one in _unique(p.prompt.id for p in pairs)]
    return median([max(ms) / min(ms) for ms in times]) - 1.0 if any(len(ms) > 1 for ms in times) else None


def _rate(answers: Sequence[Answer]) -> float:
    """Tokens per second."""
    return 1e3 * sum(len(a.tokens) for a in answers) / sum(a.figures.decode_ms for a in answers)


def _unique(values: Any) -> list[str]:
    return list(dict.fromkeys(values))


# ---- tables ---------------------------------------------------------------------------------------------


def by_kind(title: str, summary: Summary) -> Table:
    """A table with a row for each kind."""
    speed = ("kind", "plain tok/s", "drafted tok/s", "speed-up", "95 %", f"below {SLOWER:g}", "with prompt")
    guesses = ("accepted length", "accepted", "draft", "verify", "rest", "accepted by")
    rows = [_kind_cells(row) for row in (*summary.kinds, summary.overall)]
    return table(title, (*speed, *guesses), rows, last_is_sum=True)


def by_batch(title: str, batches: Sequence[Batch]) -> Table:
    """A table with a row for each batch size."""
    columns = ("batch", "groups", "plain tok/s", "drafted tok/s", "speed-up", "95 %", "with prompt", "accepted length")
    return table(title, (*columns, "same tokens"), [_batch_cells(batch) for batch in batches])


def by_run(runs: Sequence[tuple[str, float, Summary]]) -> Table:
    """A table with a row for each (drafters, temperature, summary)."""
    law = ("drafters", "temperature", "speed-up", "95 %", "worst kind")
    return table("", (*law, "accepted length", "accepted", "same tokens"), [_run_cells(*run) for run in runs])


def cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return [str(c.header) for c in table.columns], [list(row) for row in zip(*columns, strict=True)]


def markdown(table: Table) -> str:
    """The same table as Markdown."""
    heads, rows = cells(table)
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def notes(summary: Summary) -> list[str]:
    """What a reader must know beside the table, a line each."""
    total = summary.overall
    lines = [
        f"worst kind: {summary.worst}",
        f"worst prompt: {total.worst} at {total.worst_speedup:.2f}; below {SLOWER:g} are {total.slower:.0%} of prompts",
    ]
    if total.interval is not None:
        lines.append(f"speed-up {total.speedup:.2f}, 95 % between {' and '.join(f'{x:.2f}' for x in total.interval)}")
    if summary.answers:
        lines.append(f"{summary.answers - summary.mismatches} of {summary.answers} pairs have the same tokens")
    else:
        lines.append("tokens are not compared: this rule keeps the law of the text, not the text")
    return [*lines, *caveats(summary)]


def caveats(summary: Summary) -> list[str]:
    """How far the clock is to be trusted, a line each."""
    lines = []
    if summary.noise is not None:
        lines.append(f"plain answers to the same prompt differ by {summary.noise:.1%} in time: smaller gains are noise")
    lines.append(f"phases add up to {1.0 - summary.untimed:.2%} of the wall time")
    if summary.untimed > UNTIMED:
        lines.append(f"more than {UNTIMED:.0%} of the wall time is unaccounted for: do not trust these phases")
    return lines


def _kind_cells(row: Row) -> list[str]:
    rate = "-" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}"
    by = ", ".join(f"{name} {count}" for name, count in row.accepted.items() if count) or "-"
    return [
        row.kind, f"{row.plain:.1f}", f"{row.drafted:.1f}", f"{row.speedup:.2f}", _between(row.interval),
        f"{row.slower:.0%}", f"{row.end_to_end:.2f}", f"{row.acceptance_length:.2f}", rate,
        f"{row.draft:.1%}", f"{row.verify:.1%}", f"{row.rest:.1%}", by,
    ]  # fmt: skip


def _run_cells(drafters: str, temperature: float, summary: Summary) -> list[str]:
    total = summary.overall
    rate = "-" if total.acceptance_rate is None else f"{total.acceptance_rate:.0%}"
    worst = next(row for row in summary.kinds if row.kind == summary.worst)
    return [
        drafters, f"{temperature:g}", f"{total.speedup:.2f}", _between(total.interval),
        f"{worst.kind} {worst.speedup:.2f}", f"{total.acceptance_length:.2f}", rate, _same(summary),
    ]  # fmt: skip


def _batch_cells(batch: Batch) -> list[str]:
    return [
        str(batch.size), str(batch.groups), f"{batch.plain:.1f}", f"{batch.drafted:.1f}", f"{batch.speedup:.2f}",
        _between(batch.interval), f"{batch.end_to_end:.2f}", f"{batch.acceptance_length:.2f}", _same(batch),
    ]  # fmt: skip


def _between(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"


def _same(found: Summary | Batch) -> str:
    return f"{found.answers - found.mismatches}/{found.answers}" if found.answers else "not promised"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, last_is_sum: bool = False) -> Table:
    """A table: first column left, figures right; the last row may be set apart as the sum."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    for index, row in enumerate(rows):
        if last_is_sum and index == len(rows) - 1:
            table.add_section()
        table.add_row(*(Text(cell) for cell in row))  # which a user's file may name: no markup
    return table


# ---- machine ------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """The processor and how many of its cores this process may use."""
    return {"cpu": processor().name, "cores": usable_cores(), "system": platform.platform(terse=True)}


def versions() -> dict[str, str]:
    """Augury's, Python's, and of the packages that matter here, those that are installed."""
    found = {"augury": augury.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit this package is run from, ``+`` behind it when files differ; None outside a repository."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "--", str(here.parent)) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(directory), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
