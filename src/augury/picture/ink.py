"""What all pictures are drawn with: one palette, round ticks, text that XML can hold, and the ``<svg>`` around them.

A picture takes its colours from classes, never from a ``style`` attribute, which a strict content policy forbids. Alone
it carries its rules with it; ``bare`` it does not, and the page around it has ``look.stylesheet``.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from html import escape
from types import MappingProxyType

# After Okabe and Ito, who chose colours that all kinds of colour vision tell apart; darker and lighter for contrast.
_SERIES = (
    ("#0067a5", "#56b4e9"), ("#b85000", "#f0a04b"), ("#00785a", "#2cc79a"),
    ("#a8397f", "#e38fc0"), ("#7a6a00", "#e6d84a"), ("#444444", "#c0c0c0"),
)  # fmt: skip

# No blue, no green and no red: those are the target's own token, and the verdicts.
_DRAFTERS = (
    ("#b04a00", "#f0a04b"), ("#a8397f", "#e38fc0"), ("#6a6000", "#e6d84a"),
    ("#6747c7", "#b7a4f5"), ("#00727f", "#4fd0dd"), ("#555555", "#c0c0c0"),
)  # fmt: skip

SERIES, DRAFTERS = len(_SERIES), len(_DRAFTERS)
"""How many colours there are for lines and bars, and for drafters; beyond, they come again with other dashes."""

COLOURS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ground": ("#ffffff", "#15181c"),
        "ink": ("#1d2126", "#e6e8ea"),
        "quiet": ("#5a626b", "#a2abb5"),
        "faint": ("#d5d9de", "#3a4048"),
        "own": ("#0067a5", "#56b4e9"),
        "accepted": ("#00702f", "#4cc771"),
        "rejected": ("#b3001b", "#ff8a80"),
        **{f"c{i}": pair for i, pair in enumerate(_SERIES)},
        **{f"d{i}": pair for i, pair in enumerate(_DRAFTERS)},
    }
)
"""Every colour by name: on light and on dark ground."""

LETTER = 7.2
"""Pixels that a letter takes at most, in the mean of a text."""

DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4")
"""Patterns of lines and outlines, for eyes that tell no colours apart; one less than colours, so that no two of thirty
drafters or lines are alike."""

RULES = (
    "".join(f".picture .{name}{{color:var(--{name})}}" for name in COLOURS if name not in ("ground", "ink", "faint"))
    + "svg.picture{font:12px system-ui,sans-serif;max-width:100%;height:auto}svg.picture text{fill:currentColor}"
    ".picture .grid{stroke:currentColor;stroke-opacity:.18;fill:none}"
)
"""What the rules of every picture begin with."""

_SVG_ALONE = "svg.picture:root{background:var(--ground);color:var(--ink)}"
"""An SVG that is a file of its own has no page to take its ground from."""

_VARIABLE = re.compile(r"var\(--([a-z0-9]+)\)")


def svg(
    kind: str, title: str, width: float, height: float, inside: str, rules: str, *, bare: bool, told: str = ""
) -> str:
    """An ``<svg>`` element.

    Args:
        kind: its class, which its rules begin with.
        title: what a screen reader says of it.
        width: pixels at natural size.
        height: likewise.
        inside: what is drawn.
        rules: of its classes, with colours as ``var(--name)``.
        bare: without rules, for a page that has them.
        told: the picture in words.
    """
    style = "" if bare else f"<style>{_written_out(RULES + rules + _SVG_ALONE)}</style>"
    words = f"<desc>{text(told)}</desc>" if told else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture {kind}" role="img" aria-label="{text(title)}" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">{words}{style}{inside}</svg>'
    )


def _written_out(rules: str) -> str:
    """Rules with their colours in figures, for light pages and for dark: not all that draws SVG knows variables."""
    coloured = "".join(rule + "}" for rule in rules.split("}") if "var(" in rule)
    light = _VARIABLE.sub(lambda found: COLOURS[found[1]][0], rules)
    dark = _VARIABLE.sub(lambda found: COLOURS[found[1]][1], coloured)
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"


def dash(number: int) -> str:
    """The attribute that gives a line the pattern of a number, with a space before it; nothing for a whole line."""
    pattern = DASHES[number % len(DASHES)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def ticks(low: float, high: float) -> list[float]:
    """Round values from at or below ``low`` to at or above ``high``: steps of 1, 2 or 5 times a power of ten.

    Raises:
        ValueError: one is not finite.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("every value of a plot must be finite")
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(m * power for m in (1, 2, 5, 10) if span / (m * power) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def text(words: str) -> str:
    """Text as XML can hold it: control characters are no part of it, in no spelling."""
    return escape(
        "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs") or c in "\ufffe\uffff" else c for c in words)
    )


def cells(words: str) -> int:
    """Columns that a text takes where letters have one width."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in words)


def short(words: str, room: int) -> str:
    """As much of a text as fits into so many columns."""
    if cells(words) <= room:
        return words
    width, kept = 0, ""
    for letter in words:
        width += cells(letter)
        if width > room - 1:
            break
        kept += letter
    return f"{kept}…"
