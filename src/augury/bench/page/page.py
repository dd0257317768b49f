"""A benchmark as one HTML page, from the JSON document that is kept of it; see ``augury.picture.look``."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from augury.bench.document import Run, measured
from augury.bench.ratios import SLOWER
from augury.bench.report import by_batch, by_kind, by_prompt, by_run, caveats, cells
from augury.bench.together import Batch
from augury.picture import look
from augury.picture.bars import Bar, bars, stacked
from augury.picture.plot import lines
from augury.picture.strip import strip

if TYPE_CHECKING:
    from rich.table import Table

_LEGEND = (
    ("speed-up", "Geometric mean over prompts of the median of a prompt's paired ratios, the prompt excluded."),
    ("95 %", "Percentile bootstrap over prompts; of fewer than three prompts there is none."),
    ("with prompt", "The same ratio with everything included: the prompt, drafters' beginnings and ends."),
    (f"below {SLOWER:g}", "Share of prompts that were slower by more than a twentieth."),
    ("accepted length", "Tokens of a step, the target's own included. Plain decoding has 1."),
    ("accepted", "Of the draft tokens that were verified, how many were right."),
    ("draft, verify, rest", "Shares of the drafted steps' time."),
    ("identical", "Answers whose every token is that of the plain answer, of those where the rule promises it."),
)


def page(document: Mapping[str, Any]) -> str:
    """The page of a document, see ``document.read``."""
    runs = measured(document)
    laws: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.temperature > 0.0):
        laws["Sampled" if run.temperature > 0.0 else "Greedy"].append(_run(run))
    overview = by_run([(run.drafters, run.temperature, run.summary) for run in runs])
    return look.page(
        files("augury.bench.page").joinpath("page.html").read_text("utf-8"),
        target=document["target"],
        command=command(document["arguments"]),
        facts=_facts(document, runs),
        overview=_grid(overview) if len(runs) > 1 else None,
        laws=list(laws.items()),
        legend=_LEGEND,
    )


def command(arguments: Mapping[str, Any]) -> str:
    """The command that measures the same again: every option that has a value, defaults too."""
    words = ["augury", "bench"]
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                words.append(flag)
            elif one is not None and one is not False and one != "":
                words += [flag, f"{one:g}" if isinstance(one, float) else str(one)]
    return shlex.join(words)


def _facts(document: Mapping[str, Any], runs: Sequence[Run]) -> list[tuple[str, str]]:
    target, machine = document["target"], document["machine"]
    total, kinds = runs[0].summary.overall, len(runs[0].summary.kinds)
    facts = [
        ("target", f"{target['name']}: {target['family']}, {target['parameters'] / 1e6:.0f} M weights"),
        ("runner", f"{target['runner']}, context of {target['context']} tokens"),
        ("drafters", "; ".join(dict.fromkeys(run.drafters for run in runs))),
        ("prompts", f"{total.prompts}, kinds: {kinds}, rounds: {1 + max(pair.round for pair in runs[0].pairs)}"),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"),
        ("versions", ", ".join(f"{name} {number}" for name, number in document["versions"].items())),
    ]
    return [*facts, ("commit", document["commit"])] if document["commit"] else facts


def _run(run: Run) -> dict[str, Any]:
    summary, total = run.summary, run.summary.overall
    law = f"temperature {run.temperature:g}" if run.temperature else "greedy"
    plots = [
        bars(
            "Speed-up by kind", "times plain decoding; whiskers: 95 %",
            [Bar(row.kind, row.speedup, row.interval) for row in (*summary.kinds, total)], line=1.0, bare=True,
        ),
        strip("Speed-up of every prompt", "times plain decoding; rings are slower", _dots(run), line=1.0, bare=True),
        stacked(
            "Where the time of drafted steps goes", "share of the steps' time", ("draft", "verify", "rest"),
            {row.kind: (row.draft, row.verify, row.rest) for row in (*summary.kinds, total)}, bare=True,
        ),
        bars("Tokens of the drafted answers by who gave them", "tokens", _givers(run), form=".0f", bare=True),
    ]  # fmt: skip
    return {
        "title": f"{run.drafters}, {law}",
        "headline": _headline(run),
        "notes": caveats(summary),
        "plots": plots,
        "kinds": _grid(by_kind("", summary)),
        "batches": _grid(by_batch("", run.batches)) if run.batches else None,
        "batch_plots": _sweep(run.batches) if run.batches else [],
    }


def _headline(run: Run) -> list[tuple[str, str, str, str]]:
    """(what, figure, what else is to be known of it, how it looks)."""
    summary, total = run.summary, run.summary.overall
    between = total.interval and f"95 % between {total.interval[0]:.2f} and {total.interval[1]:.2f}"
    kind = next(row for row in summary.kinds if row.kind == summary.worst)
    answers = summary.answers + sum(batch.answers for batch in run.batches[1:])
    same = (f"{answers - run.mismatches} of {answers}", "answers identical", "bad" if run.mismatches else "good")
    unpromised = ("not promised", "the rule keeps the law of the text, not the text", "")
    return [
        ("speed-up", f"{total.speedup:.2f}", between or "too few prompts for an interval", ""),
        ("worst kind", f"{kind.speedup:.2f}", kind.kind, _looks(kind.speedup)),
        ("worst prompt", f"{total.worst_speedup:.2f}", total.worst, _looks(total.worst_speedup)),
        (f"prompts below {SLOWER:g}", f"{total.slower:.0%}", f"of {total.prompts}", ""),
        ("identity", *(same if answers else unpromised)),
    ]


def _looks(speedup: float) -> str:
    return "bad" if speedup < SLOWER else ""


def _dots(run: Run) -> dict[str, list[tuple[str, float]]]:
    """Every prompt's ratio, by kind."""
    ratios, dots = by_prompt(run.pairs), defaultdict(list)
    for prompt, kind in {pair.prompt.id: pair.prompt.kind for pair in run.pairs}.items():
        dots[kind].append((prompt, ratios[prompt]))
    return dots


def _givers(run: Run) -> list[Bar]:
    """Tokens accepted by drafter, and the target's own."""
    accepted = run.summary.overall.accepted
    own = sum(len(pair.drafted.tokens) for pair in run.pairs) - sum(accepted.values())
    return [*(Bar(name, count) for name, count in accepted.items()), Bar("the target itself", own)]


def _sweep(batches: Sequence[Batch]) -> list[str]:
    speeds = {
        "drafted": [(float(batch.size), batch.drafted) for batch in batches],
        "plain": [(float(batch.size), batch.plain) for batch in batches],
    }
    known = [(float(batch.size), batch.interval) for batch in batches if batch.interval]
    ratios = {
        "speed-up": [(float(batch.size), batch.speedup) for batch in batches],
        "95 % from": [(size, low) for size, (low, _) in known],
        "95 % to": [(size, high) for size, (_, high) in known],
    }
    return [
        lines("Speed by batch size", "requests at once", "tokens per second of all", speeds, log_x=True, bare=True),
        lines("Speed-up by batch size", "requests at once", "times plain decoding", ratios, log_x=True, bare=True),
    ]


def _grid(table: Table) -> look.Grid:
    return look.Grid(*cells(table))
