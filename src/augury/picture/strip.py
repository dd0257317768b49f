"""Every single value as SVG: a row of dots for each name. A pure function of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from augury.picture.ink import text, ticks
from augury.picture.rows import ROW, TOP, along, axis, frame, mark


def strip(
    title: str,
    x_label: str,
    rows: Mapping[str, Sequence[tuple[str, float]]],
    *,
    line: float,
    bare: bool = False,
) -> str:
    """Dots along an axis; those below the line are rings of another colour.

    Args:
        title: above.
        x_label: below the axis, with its unit.
        rows: name to (what the dot is, value of 0 or more).
        line: where the vertical line is.
        bare: without a style of its own.
    """
    at = ticks(0.0, max([line, *(value for dots in rows.values() for _, value in dots)]) or 1.0)
    drawn = [axis(len(rows), at), mark(len(rows), line, at)]
    for row, dots in enumerate(rows.values()):
        for name, value in dots:
            looks = ("c1", "open") if value < line else ("c0", "fill")
            drawn.append(
                f'<g class="{looks[0]}"><title>{text(name)}: {value:.3f}</title><circle class="{looks[1]}" '
                f'cx="{along(value, at):.1f}" cy="{TOP + ROW * row + 11}" r="4"/></g>'
            )
    return frame(title, x_label, list(rows), drawn, bare=bare)
