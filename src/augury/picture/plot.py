"""Line plots as SVG: a pure function of points, without JavaScript, fonts or links, to be put into any HTML page.

Texts take the page's own colour (``currentColor``); see ``ink`` for the others. Lines differ in dashes and markers too,
not in colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from augury.picture.ink import LETTER, SERIES, cells, dash, svg, text, ticks

_WIDTH, _HEIGHT = 640, 360  # pixels at natural size, the legend's rows on top of the height
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 40, 52
_ROW = 20  # pixels of a row of the legend

RULES = ".plot .line{fill:none;stroke:currentColor;stroke-width:2}"
"""Of a plot's classes, beside those of ``ink``."""


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    log_x: bool = False,
    bare: bool = False,
) -> str:
    """An ``<svg>`` element with one line for each series, axes with ticks, and a legend.

    The y axis begins at 0 unless a value is below it; the x axis goes from the least x to the greatest. Every
    point says its series and values when pointed at.

    Args:
        title: above the plot, and what a screen reader says of it.
        x_label: below the x axis, with its unit.
        y_label: above the y axis, with its unit.
        series: name, as the legend shows it, to (x, y) points in the order they are joined. All values are finite. A
            series may be empty, and there may be none.
        log_x: a logarithmic x axis; every x must then be above 0.
        bare: without a style of its own.

    Raises:
        ValueError: a value is not finite, or not above 0 on a logarithmic axis.
    """
    points = [point for of_one in series.values() for point in of_one]
    if not all(math.isfinite(v) for point in points for v in point):
        raise ValueError("every value of a plot must be finite")
    if log_x and any(x <= 0.0 for x, _ in points):
        raise ValueError("every x of a plot with a logarithmic axis must be above 0")
    xs, ys = [x for x, _ in points] or [1.0], [0.0, *(y for _, y in points)]
    y_ticks = ticks(min(ys), max(ys))
    low_x, high_x = min(xs), max(xs)
    x_ticks = _log_ticks(low_x, high_x) if log_x else ticks(low_x, high_x)
    if low_x == high_x:  # a single x has no width of its own
        low_x, high_x = x_ticks[0], x_ticks[-1]

    def along(x: float) -> float:
        scale = math.log if log_x else float
        share = (scale(x) - scale(low_x)) / (scale(high_x) - scale(low_x))
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def up(y: float) -> float:
        share = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    legend, rows = _legend(list(series))
    height = _HEIGHT + rows * _ROW
    parts = [
        f'<text x="{_LEFT}" y="14" font-weight="600">{text(title)}</text>',
        f'<text x="{_LEFT - 8}" y="{_TOP - 10}" fill-opacity=".8">{text(y_label)}</text>',
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.1f}" y="{_HEIGHT - 10}" text-anchor="middle" fill-opacity=".8">'
        f"{text(x_label)}</text>",
    ]
    for y in y_ticks:
        parts.append(
            f'<path class="grid" d="M{_LEFT} {up(y):.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text x="{_LEFT - 8}" y="{up(y) + 4:.1f}" text-anchor="end">{y:.6g}</text>'
        )
    for x in (tick for tick in x_ticks if low_x <= tick <= high_x):
        parts.append(
            f'<path class="grid" d="M{along(x):.1f} {_HEIGHT - _BOTTOM}v5"/>'
            f'<text x="{along(x):.1f}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle">{x:.6g}</text>'
        )
    for number, (name, of_one) in enumerate(series.items()):
        placed = [(along(x), up(y)) for x, y in of_one]
        drawn = _line(number, placed) if placed else ""
        marks = "".join(
            f"<g><title>{text(name)}: {x:.6g}, {y:.6g}</title>{_marker(number, *at)}</g>"
            for (x, y), at in zip(of_one, placed, strict=True)
        )
        parts.append(f'<g class="c{number % SERIES}">{drawn}{marks}</g>')
    return svg("plot", title, _WIDTH, height, "".join([*parts, *legend]), RULES, bare=bare)


def _line(number: int, placed: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="line"{dash(number)} points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in placed)}"/>'


def _marker(number: int, x: float, y: float) -> str:
    """A filled sign around a point: a disc, a square, or a triangle."""
    shape = number % 3
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="currentColor"/>'
    if shape == 1:
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="currentColor"/>'
    return f'<path d="M{x:.1f} {y - 4:.1f}l4 7h-8z" fill="currentColor"/>'


def _legend(names: Sequence[str]) -> tuple[list[str], int]:
    """The legend's entries from left to right as far as they fit, and how many rows they take."""
    parts, x, row = [], float(_LEFT), 0
    for number, name in enumerate(names):
        width = 48 + LETTER * cells(name)
        if x > _LEFT and x + width > _WIDTH - _RIGHT:
            x, row = float(_LEFT), row + 1
        y = _HEIGHT + row * _ROW + 4
        parts.append(
            f'<g class="c{number % SERIES}">{_line(number, [(x, y), (x + 28, y)])}{_marker(number, x + 14, y)}</g>'
            f'<text x="{x + 34:.1f}" y="{y + 4}">{text(name)}</text>'
        )
        x += width
    return parts, row + 1 if names else 0


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of two while there are few, else of ten, from at or below ``low`` to at or above ``high``."""
    base = 2.0 if high / low <= 2**12 else 10.0
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    return [base**i for i in range(first, max(last, first + 1) + 1)]
