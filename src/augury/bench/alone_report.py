"""What was measured of drafters alone, as tables, notes and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from augury.bench.alone import Tried
from augury.bench.document import Run, document
from augury.bench.reliability import DEPTHS, Depth, Reliability, reliability
from augury.bench.report import Row, summarise, table

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = (
    "drafter", "speed-up", "accepted length", "accepted", "asked", "guesses", "hits",
    *(f"S{depth}" for depth in range(1, DEPTHS + 1)), "calibration", "error", "run", "ms",
)  # fmt: skip

_REASON = 40  # columns for a name, and for why it could not be made

LEGEND = (
    "accepted: of what was verified. asked: of all steps. guesses: of the steps it was asked in. hits: of these, one of"
    " its next tokens was right.",
    f"S1 to S{DEPTHS}: survival at that depth of all it offered, stated/real. calibration: mean survival of verified"
    " nodes, stated/accepted; error: expected calibration error.",
    "run: tokens accepted when it had a guess. ms: of one proposal.",
)
"""What the columns of ``by_drafter`` mean."""


def by_drafter(title: str, tried: Sequence[Tried]) -> Table:
    """A row for each drafter: speed, acceptance, reliability; of one that could not be made, why."""
    return _narrow(table(title, _COLUMNS, [_cells(one) for one in tried]))


def by_kind(title: str, tried: Sequence[Tried]) -> Table:
    """A row for each drafter, a column for each kind and one for all: acceptance length, draft cost, speed-up."""
    summaries = {one.drafter: summarise(one.pairs) for one in tried if one.why is None}
    kinds = list(dict.fromkeys(row.kind for summary in summaries.values() for row in summary.kinds))
    columns = ("drafter", *kinds, "all")
    rows = [
        _padded(one, len(columns))
        if one.why is not None
        else [one.drafter, *map(_kind_cell, (*summaries[one.drafter].kinds, summaries[one.drafter].overall))]
        for one in tried
    ]
    return _narrow(table(title, columns, rows))


def notes(tried: Sequence[Tried]) -> list[str]:
    """What a reader must know beside the tables, a line each."""
    lines = []
    measured = [one for one in tried if one.why is None]
    summaries = [summarise(one.pairs) for one in measured]
    if measured:
        answers, wrong = sum(s.answers for s in summaries), sum(s.mismatches for s in summaries)
        lines.append(f"{answers - wrong} of {answers} pairs have the same tokens")
    for one, summary in zip(measured, summaries, strict=True):
        if summary.mismatches:
            lines.append(f"{one.drafter}: {summary.mismatches} of {summary.answers} pairs differ")
        found = reliability(one.trials)
        lines += [f"{one.drafter}: {why} ({count} of {found.steps} steps)" for why, count in found.dropped.items()]
    noise = [summary.noise for summary in summaries if summary.noise is not None]
    if noise:
        lines.append(f"plain answers to the same prompt differ by {max(noise):.1%} in time: smaller gains are noise")
    return lines


def mismatches(tried: Sequence[Tried]) -> int:
    """Pairs that should be equal and are not."""
    return sum(pair.same is False for one in tried for pair in one.pairs)


def whole(
    arguments: Mapping[str, object], target: object, temperature: float, tried: Sequence[Tried]
) -> dict[str, Any]:
    """Everything that was measured, as JSON takes it: ``document.document``, and the reliability of every drafter."""
    runs = [Run(one.drafter, temperature, one.pairs) for one in tried if one.why is None]
    return {
        **document(arguments, target, runs),
        "drafters": [
            {
                "drafter": one.drafter,
                "why": one.why,
                "reliability": None if one.why is not None else _figures(reliability(one.trials)),
            }
            for one in tried
        ],
    }


def _figures(found: Reliability) -> dict[str, Any]:
    return {**asdict(found), "asked_rate": found.asked_rate, "guess_rate": found.guess_rate}


def _cells(one: Tried) -> list[str]:
    if one.why is not None:
        return _padded(one, len(_COLUMNS))
    summary = summarise(one.pairs)
    row, found = summary.overall, reliability(one.trials)
    depths = {depth.depth: depth for depth in found.survival}
    said = found.calibration
    return [
        one.drafter, f"{row.speedup:.2f}", f"{row.acceptance_length:.2f}", _share(row.acceptance_rate),
        _share(found.asked_rate), _share(found.guess_rate), _share(found.hit_rate),
        *(_depth_cell(depths.get(depth)) for depth in range(1, DEPTHS + 1)),
        "-" if said is None else f"{said.stated:.2f}/{said.accepted:.2f}", "-" if said is None else f"{said.error:.2f}",
        _number(found.run_length), _number(found.draft_ms),
    ]  # fmt: skip


def _narrow(table: Table) -> Table:
    """The same table; a reason in its first column is cut into lines."""
    table.columns[0].max_width = _REASON
    return table


def _padded(one: Tried, columns: int) -> list[str]:
    """The row of a drafter that could not be made: the reason stands in its first cell."""
    return [f"{one.drafter}: {one.why}", *["-"] * (columns - 1)]


def _kind_cell(row: Row) -> str:
    return f"{row.acceptance_length:.2f} / {row.draft:.0%} / {row.speedup:.2f}"


def _depth_cell(depth: Depth | None) -> str:
    return "-" if depth is None else f"{depth.stated:.2f}/{depth.real:.2f}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
