"""A plan as tables, as notes, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from augury.bench.plan.drafts import Draft
from augury.bench.plan.gain import Guesser, Outlook, best_length, predicted
from augury.bench.plan.measured import Seen
from augury.bench.plan.roofline import PRECISIONS, Hardware, Shape, forward, free_rows, held
from augury.bench.report import cells, table
from augury.errors import InputError
from augury.picture import look
from augury.picture.plot import lines

if TYPE_CHECKING:
    from rich.table import Table

    from augury.bench.plan.gain import Verify

_LINES = 5  # batch sizes of a plot by length at most


@dataclass(frozen=True)
class Paper:
    """What a roofline was reckoned from.

    Attributes:
        hardware: on which.
        target: of which shape.
        drafts: the drafters.
        context: tokens each request holds.
    """

    hardware: Hardware
    target: Shape
    drafts: Sequence[Draft]
    context: int

    def bound(self, rows: int, batch: int) -> str:
        """What a forward of the target waits for most."""
        return forward(self.hardware, self.target, rows, batch, self.context).bound

    def taken(self, precision: str) -> Callable[[int], float]:
        """GB by batch size, of weights and caches, with the target in a precision and the largest drafter.

        Raises:
            InputError: a drafter is no cheaper than the target in that precision.
        """
        target = replace(self.target, precision=precision)
        shapes = [(draft, shape) for draft in self.drafts if (shape := draft.shape(target)) is not None]

        def take(batch: int) -> float:
            # What guesses over the target's own cache keeps none of its own.
            extra = [held(shape, 0 if draft.kind == "self" else batch, self.context) for draft, shape in shapes]
            return held(target, batch, self.context) + max(extra, default=0.0)

        return take


def title(paper: Paper) -> str:
    """What was reckoned, in one line."""
    hardware, target = paper.hardware, paper.target
    overhead = f", {hardware.overhead:g} ms a forward on top" if hardware.overhead else ""
    return (
        f"{target.name} in {target.precision} on {hardware.name}: {hardware.bandwidth:.4g} GB/s, "
        f"{hardware.rate(target.precision):.4g} TFLOP/s{overhead}, context {paper.context}"
    )


def by_batch(heading: str, outlooks: Sequence[Outlook], paper: Paper | None) -> Table:
    """The best choice for each batch size; with a roofline also what forwards wait for."""
    columns = ["batch", "best drafter", "length", "speed-up", "tokens a step", "plain tok/s", "drafted tok/s"]
    rows = [_cells(one, paper) for one in outlooks]
    return table(heading, columns + (["plain waits for", "verify waits for"] if paper else []), rows)


def _cells(one: Outlook, paper: Paper | None) -> list[str]:
    name = "none" if one.best is None else one.best.name
    cells = [str(one.batch), name, str(one.length), f"{one.gain:.2f}", f"{one.tokens:.2f}"]
    cells += [f"{one.plain_rate:.1f}", f"{one.rate:.1f}"]
    if paper is not None:
        plain = paper.bound(one.batch, one.batch)
        cells += [plain, paper.bound(one.batch * (one.length + 1), one.batch) if one.length else "-"]
    return cells


def by_drafter(outlooks: Sequence[Outlook]) -> Table:
    """The speed-up of each drafter at its best length, for each batch size."""
    names = list(outlooks[0].curves)
    rows = [[str(one.batch), *(_peak(one.curves[name]) for name in names)] for one in outlooks]
    return table("speed-up of each drafter (length)", ["batch", *names], rows)


def _peak(curve: Sequence[float]) -> str:
    length = best_length(curve)
    return f"{curve[length]:.2f} ({length})"


def notes(outlooks: Sequence[Outlook], paper: Paper | None, shared: bool) -> list[str]:
    """What a reader must know beside the tables, a line each.

    Args:
        outlooks: by batch size.
        paper: of a roofline; None when the costs were measured.
        shared: whether several drafters were given one acceptance.
    """
    said = []
    plain = [one.batch for one in outlooks if one.best is None]
    if plain:
        where = "every batch size" if len(plain) == len(outlooks) else f"batch {', '.join(map(str, plain))}"
        said.append(f"plain decoding is best at {where}")
    if paper is not None:
        rows = free_rows(paper.hardware, paper.target)
        said.append(
            f"reading {1e-9 * paper.target.weight_bytes:.3g} GB of weights takes as long as multiplying {rows} rows: "
            "up to there a verified row costs only its attention"
        )
        said += _memory(paper, [one.batch for one in outlooks])
        said.append("a roofline: the least such hardware can take, so rates are upper bounds; ratios are truer")
    if shared:
        said.append("one acceptance was given for all drafters; give each its own behind an @, as in copy@0.5")
    return said


def _memory(paper: Paper, batches: Sequence[int]) -> list[str]:
    """Whether weights and caches fit; nothing when the memory is not known."""
    limit, target = paper.hardware.memory, paper.target
    if limit is None:
        return []
    take = paper.taken(target.precision)
    first = next((batch for batch in sorted(batches) if take(batch) > limit), None)
    if first is None:
        return []
    said = (
        f"from batch {first} on it does not fit: {target.name} in {target.precision}, the largest drafter and the "
        f"cache of {first} x {paper.context} tokens take {take(first):.0f} GB, and {paper.hardware.name} holds "
        f"{limit:.0f}; the figures are as if it did"
    )
    for name in (n for n, size in PRECISIONS.items() if size < PRECISIONS[target.precision]):
        try:
            smaller = paper.taken(name)(first)
        except InputError:  # a drafter that is the target in fewer bits, which are these
            continue
        if smaller <= limit:
            return [f"{said}. With --bits {name} it takes {smaller:.0f} GB"]
    return [said]


def against(seen: Seen, verify: Verify, guesser: Guesser, same_machine: bool) -> list[str]:
    """What a benchmark measured, beside what these costs predict for steps of the same length.

    Args:
        seen: the benchmark.
        verify: the target's forwards.
        guesser: the drafter.
        same_machine: whether costs are of this machine; those of another are not compared.
    """
    found = f"{seen.tokens:.2f} tokens a step from {seen.length:.2f} guesses of {seen.drafters}"
    if not same_machine:
        expected = predicted(verify, guesser, seen.answers)
        return [f"bench found {found}; with these steps this hardware would gain {expected:.2f}"]
    expected = predicted(verify, guesser, seen.answers, seen.plain_rest, seen.rest)
    off = expected / seen.gain - 1.0
    return [
        f"bench found {found}: measured speed-up {seen.gain:.2f}, predicted {expected:.2f}, "
        f"{abs(off):.0%} {'above' if off >= 0.0 else 'below'}"
    ]


# ---- JSON -----------------------------------------------------------------------------------------------


def document(
    arguments: Mapping[str, object], outlooks: Sequence[Outlook], paper: Paper | None, said: Sequence[str]
) -> dict[str, Any]:
    """Everything that was reckoned, as JSON takes it.

    Args:
        arguments: what was asked for.
        outlooks: by batch size.
        paper: of a roofline; None when the costs were measured.
        said: the notes.
    """
    return {
        "arguments": dict(arguments),
        "hardware": paper and asdict(paper.hardware),
        "target": paper and {**asdict(paper.target), "weight_bytes": paper.target.weight_bytes},
        "batches": [
            {
                "batch": one.batch,
                "best": one.best and one.best.name,
                "length": one.length,
                "speedup": one.gain,
                "tokens_per_step": one.tokens,
                "plain_ms": one.plain_ms,
                "plain_tokens_per_second": one.plain_rate,
                "drafted_tokens_per_second": one.rate,
                "plain_waits_for": paper and paper.bound(one.batch, one.batch),
                "verify_waits_for": paper and paper.bound(one.batch * (one.length + 1), one.batch),
                "speedup_by_length": {name: list(curve) for name, curve in one.curves.items()},
            }
            for one in outlooks
        ],
        "notes": list(said),
    }


# ---- page -----------------------------------------------------------------------------------------------


def page(heading: str, tables: Sequence[Table], outlooks: Sequence[Outlook], said: Sequence[str]) -> str:
    """One HTML page: tables, notes, the speed-up by batch size and by length."""
    names = list(outlooks[0].curves)
    by_size = {name: [(float(one.batch), max(one.curves[name])) for one in outlooks] for name in names}
    above = "Speed-up by batch size, each at its best length"
    plots = [lines(above, "batch", "speed-up", by_size, log_x=True, bare=True)]
    stride = -(-len(outlooks) // _LINES)
    for name in names:
        curves = {f"batch {one.batch}": list(_points(one.curves[name])) for one in outlooks[::stride]}
        plots.append(lines(f"{name}: speed-up by draft length", "guesses in a chain", "speed-up", curves, bare=True))
    return look.page(
        files("augury.bench.plan").joinpath("page.html").read_text("utf-8"),
        heading=heading,
        tables=[look.Grid(*cells(one), str(one.title or "")) for one in tables],
        notes=said,
        drawn=plots,
    )


def _points(curve: Sequence[float]) -> list[tuple[float, float]]:
    return [(float(length), value) for length, value in enumerate(curve)]
