"""One answer as a page: who guessed which part of it, every step's tree with its arithmetic, and where the time went.

The page stands alone. Long answers are cut: see ``DRAWN`` and ``RIBBON``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from augury.picture import look, ribbon
from augury.picture.bars import stacked
from augury.picture.ink import DRAFTERS
from augury.picture.sums import sums
from augury.picture.timeline import Run, timeline
from augury.picture.tree import tree
from augury.picture.words import heading, milliseconds
from augury.record import RequestRecord
from augury.trace.events import Event
from augury.trace.figures import Figures, figures

DRAWN = 3_000_000
"""Letters that the steps of a page may take, trees and arithmetic; those behind are left out, and the page says so."""

RIBBON = 4096
"""Tokens of the ribbon at most."""

_PROMPT = 4000  # letters of a prompt
_TIMELINE = 96  # tokens of the timeline
_OPEN = 3  # steps that are open when the page is

_LEGEND = (
    ("S", "Survival: how likely the drafters thought it that the guess is kept, with all before it."),
    ("p", "The target's own probability of the guess, given its path, under the sampling that was asked for."),
    ("q", "The drafter's probability of it, where it was drawn; a guess without q was not drawn but looked up."),
    ("accepted", "It is what the target says there (or, under a ratio rule, its chance fell so): kept."),
    ("rejected", "It is not; what hangs on it is lost with it."),
    ("not reached", "Nobody asked: something before it fell, or a sibling was kept."),
    ("cut off", "It would have been kept, but the answer had ended before it."),
    ("correction, bonus token", "The target's own token behind the path: after a miss, after a full hit."),
)


@dataclass(frozen=True)
class _Step:
    """A step of the page: its heading, what it emits, its picture and its sentences."""

    heading: str
    emits: str
    ms: str
    tree: str
    sums: Sequence[str]
    open: bool


def page(header: Event, begin: Event, steps: Sequence[Event], record: RequestRecord) -> str:
    """The page of an answer.

    Args:
        header: of its trace.
        begin: its event of that kind.
        steps: its events of that kind, in order.
        record: of the same request.
    """
    drafters, f = begin["drafters"], figures(record)
    pieces = list(ribbon.pieces(steps, RIBBON))
    shown = _shown(steps, begin, pieces)
    prompt = begin.get("prompt_text")
    emitted = sum(len(step["emitted"]) for step in steps)
    return look.page(
        files("augury.picture").joinpath("answer.html").read_text("utf-8"),
        model=header["model"],
        headline=_headline(f, record),
        facts=_facts(header, begin, f),
        prompt=None if prompt is None else str(prompt)[:_PROMPT],
        prompt_more=0 if prompt is None else max(len(prompt) - _PROMPT, 0),
        ribbon=ribbon.html(pieces, drafters),
        ribbon_more=max(emitted - RIBBON, 0),
        names=[(name, f"d{i % DRAFTERS} u{i % ribbon.UNDERLINES}") for i, name in enumerate(drafters)],
        plots=_plots(steps, f),
        drafters=_drafters(f),
        undrafted=[(why, str(count)) for why, count in f.undrafted.items()],
        steps=shown,
        left_out=len(steps) - len(shown),
        legend=_LEGEND,
    )


def _shown(steps: Sequence[Event], begin: Event, pieces: Sequence[ribbon.Piece]) -> list[_Step]:
    """The first steps, as many as there is room for."""
    emits: dict[int, str] = {}
    for piece in pieces:
        emits[piece.step] = emits.get(piece.step, "") + piece.text
    shown: list[_Step] = []
    room = DRAWN
    for place, step in enumerate(steps):
        one = _step(step, begin, emits.get(step["n"], ""), place < _OPEN)
        room -= _size(one)
        if room < 0:
            break
        shown.append(one)
    return shown


def _size(step: _Step) -> int:
    return len(step.tree) + sum(map(len, step.sums)) + len(step.emits) + len(step.heading)


def _step(step: Event, begin: Event, emits: str, is_open: bool) -> _Step:
    drawn = tree(step, begin["drafters"], bare=True)
    return _Step(heading(step), emits, f"{milliseconds(step):.1f} ms", drawn, sums(step, begin), is_open)


def _headline(f: Figures, record: RequestRecord) -> list[tuple[str, str, str]]:
    """(what, figure, what else is to be known of it)."""
    told = [("tokens", str(f.completion_tokens), f"in {f.steps} steps")]
    if f.tokens_per_second is not None:
        told.append(("tokens a second", f"{f.tokens_per_second:.1f}", "the prompt excluded"))
    if f.mean_acceptance_length is not None:
        told.append(("acceptance length", f"{f.mean_acceptance_length:.2f}", "tokens a step"))
    if f.draft_acceptance_rate is not None:
        told.append(("guesses accepted", f"{f.draft_acceptance_rate:.0%}", f"{f.accepted} of {f.drafted}"))
    saved = [step.saved_ms for step in record.steps if step.saved_ms is not None]
    if saved and f.drafted:
        ms = sum(saved)
        told.append(("saved" if ms >= 0.0 else "lost", f"{abs(ms):.0f} ms", "against plain steps, by the cost tables"))
    return told


def _facts(header: Event, begin: Event, f: Figures) -> list[tuple[str, str]]:
    sampling: Mapping[str, Any] = begin["sampling"]
    return [
        ("target", f"{header['model']}, {header['runner']}"),
        ("drafters", ", ".join(begin["drafters"]) or "none"),
        ("rule", begin["rule"]),
        ("sampling", ", ".join(f"{name} {_short(value)}" for name, value in sampling.items())),
        ("prompt", f"{f.prompt_tokens} tokens, {f.cached_tokens} of them cached, in {f.prefill_ms:.1f} ms"),
        ("ended", f.finish_reason or "not yet"),
        ("augury", header["version"]),
    ]


def _short(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plots(steps: Sequence[Event], f: Figures) -> list[str]:
    if not steps:
        return []
    phases = ("draft", "verify", "accept and commit", "rest")
    spent = [
        f.draft_ms,
        f.verify_ms,
        sum(step["accept_ms"] + step["commit_ms"] for step in steps),
        sum(step["rest_ms"] for step in steps),
    ]
    whole = sum(spent) or 1.0
    return [
        timeline(f"The first {_TIMELINE} tokens", [Run("steps", steps)], tokens=_TIMELINE, bare=True),
        stacked("Where the time went", "of all steps", phases, {"steps": [ms / whole for ms in spent]}, bare=True),
    ]


def _drafters(f: Figures) -> look.Grid:
    heads = ("drafter", "proposed", "verified", "accepted", "rate", "ms", "faults")
    rows = [
        (d.name, str(d.proposed), str(d.drafted), str(d.accepted),
         f"{d.accepted / d.drafted:.0%}" if d.drafted else "-", f"{d.ms:.1f}", str(d.faults))
        for d in f.drafters
    ]  # fmt: skip
    return look.Grid(heads, rows)
