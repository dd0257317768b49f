"""What a replay found, as a table, notes and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from augury.bench.replay.recordings import Log
from augury.bench.replay.replay import Replayed, named
from augury.bench.report import commit, machine, table, versions
from augury.engine.tables import CostTable

if TYPE_CHECKING:
    from rich.table import Table

DEPTHS = 4
"""Numbers of accepted tokens whose share of the steps is shown."""

LEGEND = (
    "accepted length: tokens a step, bonus included. offered: nodes proposed; verified: of these, those checked;"
    " share: accepted / verified.",
    f"1+ to {DEPTHS}+: steps that accepted so many draft tokens or more. draft ms: of a step, timed on this machine.",
)
"""What the columns mean."""

_COLUMNS = (
    "drafters", "accepted length", "offered", "verified", "accepted", "share",
    *(f"{count}+" for count in range(1, DEPTHS + 1)), "draft ms",
)  # fmt: skip


def by_arm(title: str, found: Sequence[Replayed]) -> Table:
    """A row for each arm; a column more where costs are known."""
    columns = (*_COLUMNS, "expected speed-up") if any(one.speedup for one in found) else _COLUMNS
    return table(title, columns, [_cells(one) for one in found])


def notes(log: Log, costs: CostTable | None, found: Sequence[Replayed]) -> list[str]:
    """What a reader must know beside the table, a line each."""
    lines = [f"answers left out: {count} {why}" for why, count in log.left_out.items()]
    if costs is None:
        lines.append("without --costs every guess is verified, and no speed-up is claimed")
    else:
        told = ", ".join(f"{key} {value}" for key, value in costs.measured_on.items()) or "nothing is said of where"
        lines.append(f"forwards by the cost table ({told}); drafting as timed here ({machine()['cpu']})")
    for one in found:
        lines += [f"{named(one.drafters)}: {why} ({count} of {one.steps} steps)" for why, count in one.dropped.items()]
    return lines


def whole(
    arguments: Mapping[str, object], log: Log, costs: CostTable | None, found: Sequence[Replayed]
) -> dict[str, Any]:
    """Everything that was found, as JSON takes it."""
    return {
        "arguments": dict(arguments),
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "log": {
            "conversations": log.conversations,
            "answers": len(log.recordings),
            "tokens": sum(len(recording.answer) for recording in log.recordings),
            "left_out": dict(log.left_out),
        },
        "costs": None if costs is None else costs.document(),
        "arms": [_figures(one, costs is not None) for one in found],
    }


def _figures(one: Replayed, reckoned: bool) -> dict[str, Any]:
    return {
        "drafters": list(one.drafters),
        "answers": one.answers,
        "tokens": one.tokens,
        "steps": one.steps,
        "offered": one.offered,
        "verified": one.verified,
        "accepted": one.accepted,
        "acceptance_length": one.acceptance_length,
        "acceptance_rate": one.acceptance_rate,
        "histogram": [one.histogram[count] for count in range(max(one.histogram) + 1)],
        "draft_ms": one.draft_ms,
        "plain_ms": one.plain_ms if reckoned else None,
        "drafted_ms": one.drafted_ms if reckoned else None,
        "expected_speedup": one.speedup,
        "dropped": dict(one.dropped),
    }


def _cells(one: Replayed) -> list[str]:
    rate, speedup = one.acceptance_rate, one.speedup
    return [
        named(one.drafters), f"{one.acceptance_length:.2f}", str(one.offered), str(one.verified), str(one.accepted),
        "-" if rate is None else f"{rate:.0%}", *(f"{one.reached(count):.0%}" for count in range(1, DEPTHS + 1)),
        f"{one.draft_ms / one.steps:.2f}", *([] if speedup is None else [f"{speedup:.2f}"]),
    ]  # fmt: skip
