"""What plots of rows have in common: their frame, their names, their axis.

A plot is an ``<svg>`` element without JavaScript, fonts or links; see ``ink`` for its colours.
"""

from __future__ import annotations

from collections.abc import Sequence

from augury.picture.ink import LETTER, cells, short, svg, text

WIDTH = 640
"""Pixels at natural size."""

LEFT, RIGHT, TOP, BOTTOM = 150, 16, 32, 48
"""Pixels around the rows: names, air, title, axis."""

ROW = 22
"""Pixels of a row, and of a line of the legend."""

LETTERS = 20
"""Letters of a name that fit beside a row; the whole name is said when it is pointed at."""

RULES = (
    ".rows .mark{stroke:currentColor;stroke-dasharray:4 3}.rows .fill,.rows .bar{fill:currentColor}"
    ".rows .reach{stroke:currentColor;stroke-width:1.5;fill:none}.rows .bar{fill-opacity:.75}"
    ".rows .open{fill:none;stroke:currentColor;stroke-width:1.5}"
)
"""Of the classes of rows, beside those of ``ink``."""


def frame(
    title: str, x_label: str, names: Sequence[str], inside: Sequence[str], legend: Sequence[str] = (), *, bare: bool
) -> str:
    """A plot of rows, their names at the left.

    Args:
        title: above, and what a screen reader says of it.
        x_label: below the axis, with its unit.
        names: of the rows, from above.
        inside: what is drawn.
        legend: names of the colours, if they need one.
        bare: without a style of its own.
    """
    height = bottom(len(names)) + BOTTOM + (ROW if legend else 0)
    middle = (LEFT + WIDTH - RIGHT) / 2
    said = "".join(
        f'<text x="{LEFT - 8}" y="{TOP + ROW * row + 15}" text-anchor="end">{text(short(name, LETTERS))}'
        f"<title>{text(name)}</title></text>"
        for row, name in enumerate(names)
    )
    colours, x = "", float(LEFT)
    for i, name in enumerate(legend):
        colours += (
            f'<rect class="c{i} bar" x="{x:g}" y="{height - 16}" width="12" height="12"/>'
            f'<text x="{x + 18:g}" y="{height - 6}">{text(name)}</text>'
        )
        x += 42 + LETTER * cells(name)
    drawn = (
        f'<text x="4" y="14" font-weight="600">{text(title)}</text>{said}{"".join(inside)}'
        f'<text x="{middle:.1f}" y="{bottom(len(names)) + 36}" text-anchor="middle" fill-opacity=".8">{text(x_label)}'
        f"</text>{colours}"
    )
    return svg("rows", title, WIDTH, height, drawn, RULES, bare=bare)


def bottom(rows: int) -> int:
    """Pixels from the top to the axis below so many rows."""
    return TOP + ROW * rows + 4


def axis(rows: int, ticks: Sequence[float], form: str = ".6g") -> str:
    """Vertical lines at the ticks, with their values."""
    low = bottom(rows)
    return "".join(
        f'<path class="grid" d="M{along(x, ticks):.1f} {TOP}V{low}"/>'
        f'<text x="{along(x, ticks):.1f}" y="{low + 16}" text-anchor="middle">{x:{form}}</text>'
        for x in ticks
    )


def mark(rows: int, x: float, ticks: Sequence[float]) -> str:
    """A dashed vertical line through all rows."""
    return f'<path class="mark" d="M{along(x, ticks):.1f} {TOP}V{bottom(rows)}"/>'


def along(x: float, ticks: Sequence[float]) -> float:
    """Pixels from the left of a value on an axis that begins and ends with its ticks."""
    return LEFT + (x - ticks[0]) / (ticks[-1] - ticks[0]) * (WIDTH - LEFT - RIGHT)
