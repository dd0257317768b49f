"""What plots of rows have in common: their frame, their names, their axis.

A plot is an ``<svg>`` element without JavaScript, fonts or links. Texts take the page's own colour; colours have one
palette for light and one for dark pages, which the reader's ``prefers-color-scheme`` chooses.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from augury.bench.page.ink import palette, text

WIDTH = 640
"""Pixels at natural size."""

LEFT, RIGHT, TOP, BOTTOM = 150, 16, 32, 48
"""Pixels around the rows: names, air, title, axis."""

ROW = 22
"""Pixels of a row, and of a line of the legend."""

LETTERS = 20
"""Letters of a name that fit beside a row; the whole name is said when it is pointed at."""

_STYLE = (
    ".rows{font:12px system-ui,sans-serif;max-width:100%;height:auto}.rows text{fill:currentColor}"
    ".rows .grid{stroke:currentColor;stroke-opacity:.18}.rows .mark{stroke:currentColor;stroke-dasharray:4 3}"
    ".rows .reach{stroke:currentColor;stroke-width:1.5;fill:none}.rows .fill{fill:currentColor}"
    ".rows .bar{fill:currentColor;fill-opacity:.75}.rows .open{fill:none;stroke:currentColor;stroke-width:1.5}"
    f"{palette('rows')}"
)


def frame(title: str, x_label: str, names: Sequence[str], inside: Sequence[str], legend: Sequence[str] = ()) -> str:
    """A plot of rows, their names at the left.

    Args:
        title: above, and what a screen reader says of it.
        x_label: below the axis, with its unit.
        names: of the rows, from above.
        inside: what is drawn.
        legend: names of the colours, if they need one.
    """
    height = bottom(len(names)) + BOTTOM + (ROW if legend else 0)
    middle = (LEFT + WIDTH - RIGHT) / 2
    said = "".join(
        f'<text x="{LEFT - 8}" y="{TOP + ROW * row + 15}" text-anchor="end">{text(_short(name))}'
        f"<title>{text(name)}</title></text>"
        for row, name in enumerate(names)
    )
    colours = "".join(
        f'<rect class="c{i} bar" x="{LEFT + 130 * i}" y="{height - 16}" width="12" height="12"/>'
        f'<text x="{LEFT + 130 * i + 18}" y="{height - 6}">{text(name)}</text>'
        for i, name in enumerate(legend)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rows" role="img" aria-label="{text(title)}" '
        f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"><style>{_STYLE}</style>'
        f'<text x="0" y="14" font-weight="600">{text(title)}</text>{said}{"".join(inside)}'
        f'<text x="{middle:.1f}" y="{bottom(len(names)) + 36}" text-anchor="middle" fill-opacity=".8">{text(x_label)}'
        f"</text>{colours}</svg>"
    )


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


def _short(name: str) -> str:
    """As much of a name as there is room for."""
    width, kept = 0, ""
    for letter in name:
        width += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if width > LETTERS:
            return kept[:-1] + "…"
        kept += letter
    return kept
