"""From pairs to figures, and from figures to tables and JSON."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import augury
from augury.bench.paired import Answer, Pair
from augury.bench.ratios import geometric_mean, interval, median

if TYPE_CHECKING:
    from rich.table import Table

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
        end_to_end: the same with everything included.
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
        interval: 95 % bootstrap interval of the overall speed-up; None with too few prompts or without scipy.
        answers: drafted answers compared with plain ones; 0 where the rule does not promise equal tokens.
        mismatches: of these, how many were not equal.
        untimed: share of the wall time of all answers that no record accounts for.
        noise: median over prompts of how much longer a token of the slowest plain answer took than one of the
            fastest, the two being the same work; None with one round.
    """

    kinds: Sequence[Row]
    overall: Row
    worst: str
    interval: tuple[float, float] | None
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
        interval=interval(list(_by_prompt(pairs, "speedup").values())),
        answers=len(compared),
        mismatches=compared.count(False),
        untimed=sum(a.untimed_ms for a in answers) / sum(a.wall_ms for a in answers),
        noise=_noise(pairs),
    )


def _row(kind: str, pairs: Sequence[Pair]) -> Row:
    plain, drafted = [p.plain for p in pairs], [p.drafted for p in pairs]
    steps = [a.figures for a in drafted]
    decode = sum(f.decode_ms for f in steps)
    verified, accepted = sum(f.drafted for f in steps), sum(f.accepted for f in steps)
    names = _unique(d.name for f in steps for d in f.drafters)
    speedups = _by_prompt(pairs, "speedup")
    return Row(
        kind=kind,
        prompts=len(speedups),
        plain=_rate(plain),
        drafted=_rate(drafted),
        speedup=geometric_mean(list(speedups.values())),
        end_to_end=geometric_mean(list(_by_prompt(pairs, "end_to_end").values())),
        acceptance_length=1.0 + accepted / sum(f.steps for f in steps),
        acceptance_rate=accepted / verified if verified else None,
        draft=sum(f.draft_ms for f in steps) / decode,
        verify=sum(f.verify_ms for f in steps) / decode,
        rest=sum(f.rest_ms for f in steps) / decode,
        accepted={n: sum(d.accepted for f in steps for d in f.drafters if d.name == n) for n in names},
    )


def _by_prompt(pairs: Sequence[Pair], ratio: str) -> dict[str, float]:
    """Median of a prompt's paired ratios, by prompt."""
    ids = _unique(p.prompt.id for p in pairs)
    return {one: median([float(getattr(p, ratio)) for p in pairs if p.prompt.id == one]) for one in ids}


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
    columns = ("kind", "plain tok/s", "drafted tok/s", "speed-up", "with prompt", "accepted length", "accepted")
    rows = [_kind_cells(row) for row in (*summary.kinds, summary.overall)]
    return table(title, (*columns, "draft", "verify", "rest", "accepted by"), rows, last_is_sum=True)


def by_run(runs: Sequence[tuple[str, float, Summary]]) -> Table:
    """A table with a row for each (drafters, temperature, summary)."""
    law = ("drafters", "temperature", "speed-up", "95 %", "worst kind")
    return table("", (*law, "accepted length", "accepted", "same tokens"), [_run_cells(*run) for run in runs])


def markdown(table: Table) -> str:
    """The same table as Markdown."""
    heads = [str(c.header) for c in table.columns]
    cells = [list(c.cells) for c in table.columns]
    rows = [[str(c[i]) for c in cells] for i in range(table.row_count)]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def notes(summary: Summary) -> list[str]:
    """What a reader must know beside the table, a line each."""
    lines = [f"worst kind: {summary.worst}"]
    if summary.interval is not None:
        low, high = summary.interval
        lines.append(f"speed-up {summary.overall.speedup:.2f}, 95 % between {low:.2f} and {high:.2f}")
    if summary.answers:
        lines.append(f"{summary.answers - summary.mismatches} of {summary.answers} pairs have the same tokens")
    else:
        lines.append("tokens are not compared: this rule keeps the law of the text, not the text")
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
        row.kind, f"{row.plain:.1f}", f"{row.drafted:.1f}", f"{row.speedup:.2f}", f"{row.end_to_end:.2f}",
        f"{row.acceptance_length:.2f}", rate, f"{row.draft:.1%}", f"{row.verify:.1%}", f"{row.rest:.1%}", by,
    ]  # fmt: skip


def _run_cells(drafters: str, temperature: float, summary: Summary) -> list[str]:
    total = summary.overall
    rate = "-" if total.acceptance_rate is None else f"{total.acceptance_rate:.0%}"
    between = "-" if summary.interval is None else f"{summary.interval[0]:.2f} to {summary.interval[1]:.2f}"
    worst = next(row for row in summary.kinds if row.kind == summary.worst)
    same = f"{summary.answers - summary.mismatches}/{summary.answers}" if summary.answers else "not promised"
    return [
        drafters, f"{temperature:g}", f"{total.speedup:.2f}", between, f"{worst.kind} {worst.speedup:.2f}",
        f"{total.acceptance_length:.2f}", rate, same,
    ]  # fmt: skip


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, last_is_sum: bool = False) -> Table:
    """A table: first column left, figures right; the last row may be set apart as the sum."""
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    for index, row in enumerate(rows):
        if last_is_sum and index == len(rows) - 1:
            table.add_section()
        table.add_row(*row)
    return table


# ---- JSON -----------------------------------------------------------------------------------------------


def document(
    arguments: Mapping[str, object], target: object, runs: Sequence[tuple[str, float, Sequence[Pair]]]
) -> dict[str, Any]:
    """Everything that was measured, as JSON takes it: arguments, machine, versions, summaries, every answer.

    Args:
        arguments: what was asked for.
        target: the target's ``TargetInfo``.
        runs: (drafters, temperature, pairs).
    """
    return {
        "arguments": dict(arguments),
        "target": asdict(target),  # type: ignore[call-overload]
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "runs": [
            {
                "drafters": drafters,
                "temperature": temperature,
                "summary": asdict(summarise(pairs)),
                "pairs": [_pair(pair) for pair in pairs],
            }
            for drafters, temperature, pairs in runs
        ],
    }


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


def machine() -> dict[str, Any]:
    """The processor and how many of its cores this process may use."""
    return {"cpu": processor().name, "cores": usable_cores(), "system": platform.platform(terse=True)}


def usable_cores() -> int | None:
    """Cores this process may use, where the system says so, else all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@dataclass(frozen=True)
class Processor:
    """A processor as the system describes it.

    Attributes:
        name: of the model.
        flags: what it can, in the words of Linux; empty elsewhere.
    """

    name: str
    flags: frozenset[str] = frozenset()


def processor() -> Processor:
    """The first processor of this machine."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        first = ""
    said = {key.strip(): value.strip() for key, _, value in (row.partition(":") for row in first.splitlines())}
    name = said.get("model name") or platform.processor() or platform.machine()
    return Processor(name, frozenset(said.get("flags", "").split()))


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
