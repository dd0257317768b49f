"""Runs of one prompt one above the other, on one axis of time: every forward as it was, and the tokens it brought.

A block is a step, as wide as it took. Its hatched beginning is the drafting, the rest the target's forward and what
surrounds it; the figure on it is the number of tokens that it emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from augury.picture.ink import short, svg, text, ticks
from augury.picture.words import milliseconds
from augury.trace.events import accepted

_WIDTH, _LEFT, _RIGHT = 760, 96, 20  # pixels at natural size, of names, of air
_TOP, _ROW, _GAP, _FOOT = 34, 34, 34, 66  # pixels above, of a row, of the words below it, of the axis and the legend
_NAME = 13  # letters of a name
_FIGURE = 13  # pixels that the figure of a block needs

RULES = (
    ".timeline .step{fill:currentColor;fill-opacity:.22;stroke:currentColor;stroke-width:1}"
    ".timeline .draft{fill:currentColor;fill-opacity:.75}.timeline .end{stroke:currentColor;stroke-width:2}"
    ".timeline .count{fill:var(--ink);font-size:11px}"
)
"""Of a timeline's classes, beside those of ``ink``."""


class Run(NamedTuple):
    """An answer's name, and its events of the kind ``step`` in their order."""

    name: str
    steps: Sequence[Mapping[str, Any]]


def timeline(title: str, runs: Sequence[Run], *, tokens: int = 32, bare: bool = False) -> str:
    """An ``<svg>`` element.

    Args:
        title: above.
        runs: from above; each has a step.
        tokens: how far runs are shown: up to the step that emits this token.
        bare: without a style of its own.
    """
    shown = [Run(run.name, _begun(run.steps, tokens)) for run in runs]
    zeros = [float(run.steps[0]["at"]) for run in shown]
    ends = [_end(run.steps) - zero for run, zero in zip(shown, zeros, strict=True)]
    last = max(ends)
    at = [tick for tick in ticks(0.0, last) if tick <= last]

    def along(ms: float) -> float:
        return _LEFT + ms / last * (_WIDTH - _LEFT - _RIGHT)

    low = _TOP + len(shown) * (_ROW + _GAP)
    drawn = [f'<text x="4" y="14" font-weight="600">{text(title)}</text>']
    drawn += [
        f'<path class="grid" d="M{along(x):.1f} {_TOP - 6}V{low}"/>'
        f'<text x="{along(x):.1f}" y="{low + 16}" text-anchor="middle">{x:g}</text>'
        for x in at
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    drawn.append(f'<text x="{middle:.1f}" y="{low + 34}" text-anchor="middle" fill-opacity=".8">milliseconds</text>')
    told = []
    for row, (run, zero, end) in enumerate(zip(shown, zeros, ends, strict=True)):
        y = _TOP + row * (_ROW + _GAP)
        emitted = sum(len(step["emitted"]) for step in run.steps)
        words = f"{emitted} tokens in {len(run.steps)} forwards, {end:.0f} ms"
        told.append(f"{run.name}: {words}.")
        drawn.append(
            f'<g class="c{row}"><text class="count" x="{_LEFT - 8}" y="{y + 22}" text-anchor="end">'
            f"{text(short(run.name, _NAME))}<title>{text(run.name)}</title></text>"
            f"{''.join(_block(step, along(step['at'] - zero), along, y) for step in run.steps)}"
            f'<path class="end" d="M{along(end):.1f} {y - 4}v{_ROW + 8}"/>'
            f'<text class="count" x="{along(end):.1f}" y="{y + _ROW + 18}" text-anchor="end">{text(words)}</text></g>'
        )
    legend = (
        f'<g transform="translate({_LEFT} {low + 44})"><rect class="draft" width="12" height="12"/>'
        '<text x="18" y="10">drafting</text><rect class="step" x="90" width="12" height="12"/>'
        '<text x="108" y="10">one forward of the target, and the tokens it brought</text></g>'
    )
    height = low + _FOOT
    return svg("timeline", title, _WIDTH, height, "".join([*drawn, legend]), RULES, bare=bare, told=" ".join(told))


def _begun(steps: Sequence[Mapping[str, Any]], tokens: int) -> list[Mapping[str, Any]]:
    """The first steps, until so many tokens are emitted."""
    found: list[Mapping[str, Any]] = []
    left = tokens
    for step in steps:
        if left <= 0:
            break
        found.append(step)
        left -= len(step["emitted"])
    return found


def _end(steps: Sequence[Mapping[str, Any]]) -> float:
    """When the last of some steps had ended."""
    return float(steps[-1]["at"]) + milliseconds(steps[-1])


def _block(step: Mapping[str, Any], left: float, along: Callable[[float], float], y: float) -> str:
    """A step in its place."""
    took, drafting = milliseconds(step), float(step["draft_ms"])
    width, drafted = along(took) - along(0.0), along(drafting) - along(0.0)
    emitted = len(step["emitted"])
    said = (
        f"step {step['n'] + 1}: {accepted(step)} of {len(step['tokens'])} guesses accepted, {emitted} tokens; "
        f"drafting {drafting:.2f} ms of {took:.2f}, {step['rows']} rows"
    )
    figure = ""
    if width - drafted >= _FIGURE:
        x = left + drafted + (width - drafted) / 2
        figure = f'<text class="count" x="{x:.1f}" y="{y + 21}" text-anchor="middle">{emitted}</text>'
    return (
        f'<g><title>{text(said)}</title><rect class="step" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_ROW}"/>'
        f'<rect class="draft" x="{left:.1f}" y="{y}" width="{drafted:.1f}" height="{_ROW}"/>{figure}</g>'
    )
