"""Bars as SVG: one for each name, or one for each name in parts. Pure functions of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from augury.picture.ink import text, ticks
from augury.picture.rows import LEFT, ROW, TOP, along, axis, frame, mark


class Bar(NamedTuple):
    """A bar.

    Attributes:
        name: beside it.
        value: its length, 0 or more.
        interval: from where to where the value may be, or None.
    """

    name: str
    value: float
    interval: tuple[float, float] | None = None


def bars(
    title: str,
    x_label: str,
    rows: Sequence[Bar],
    *,
    line: float | None = None,
    form: str = ".2f",
    bare: bool = False,
) -> str:
    """Horizontal bars from 0, with their intervals as whiskers.

    Args:
        title: above.
        x_label: below the axis, with its unit.
        rows: from above.
        line: where a vertical line is drawn, if at all.
        form: of the values.
        bare: without a style of its own.
    """
    ends = [end for bar in rows for end in (bar.value, *(bar.interval or ()))]
    at = ticks(0.0, max([*ends, line or 0.0]) or 1.0)
    drawn = [axis(len(rows), at)]
    for row, bar in enumerate(rows):
        y, x = TOP + ROW * row, along(bar.value, at)
        said = f"{bar.name}: {bar.value:{form}}"
        if bar.interval is not None:
            said += f", 95 % between {bar.interval[0]:{form}} and {bar.interval[1]:{form}}"
        drawn.append(
            f'<g class="c0"><title>{text(said)}</title>'
            f'<rect class="bar" x="{LEFT}" y="{y + 3}" width="{x - LEFT:.1f}" height="{ROW - 6}"/></g>'
        )
        if bar.interval is not None:
            low, high = (along(end, at) for end in bar.interval)
            drawn.append(f'<path class="reach" d="M{low:.1f} {y + 7}v8m0 -4H{high:.1f}m0 -4v8"/>')
    if line is not None:
        drawn.append(mark(len(rows), line, at))
    return frame(title, x_label, [f"{bar.name}" for bar in rows], drawn, bare=bare)


def stacked(
    title: str, x_label: str, parts: Sequence[str], rows: Mapping[str, Sequence[float]], *, bare: bool = False
) -> str:
    """Horizontal bars of parts, one behind the other, as shares of 1.

    Args:
        title: above.
        x_label: below the axis.
        parts: names of the parts, four at most, for the legend.
        rows: name to the parts' shares.
        bare: without a style of its own.
    """
    at = [0.0, 0.25, 0.5, 0.75, 1.0]
    drawn = [axis(len(rows), at, ".0%")]
    for row, (name, shares) in enumerate(rows.items()):
        begin = 0.0
        for part, share in enumerate(shares):
            left, right = along(begin, at), along(begin + share, at)
            drawn.append(
                f'<g class="c{part}"><title>{text(name)}: {text(parts[part])} {share:.1%}</title><rect class="bar" '
                f'x="{left:.1f}" y="{TOP + ROW * row + 3}" width="{right - left:.1f}" height="{ROW - 6}"/></g>'
            )
            begin += share
    return frame(title, x_label, list(rows), drawn, parts, bare=bare)
