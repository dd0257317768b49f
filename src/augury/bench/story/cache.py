"""What becomes of the target's cache in one step, as SVG: rows before, rows of the guesses, rows that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.picture.ink import cells, short, svg, text
from augury.picture.words import word

_WIDE, _TALL, _ACROSS, _DOWN, _TOP = 78, 30, 6, 52, 52  # pixels of a row of the cache, between, above
_ROOM = 10  # letters of a word

_RULES = (
    ".cache .cell{fill:currentColor;fill-opacity:.14;stroke:currentColor;stroke-width:1.5}"
    ".cache .gone .cell{fill-opacity:0;stroke-dasharray:3 3}.cache .move{fill:none;stroke:currentColor;stroke-width:2}"
    ".cache .word{fill:var(--ink);font:11px ui-monospace,monospace}.cache .gone .word{opacity:.55}"
)


def cache(step: Mapping[str, Any]) -> str:
    """An ``<svg>`` element of a step: three lines, one below the other."""
    path = step["path"][: len(step["emitted"])]
    root, words = word(step, step["root"]), [word(step, token) for token in step["tokens"]]
    held = [("…", "quiet"), (f"row {step['position'] - 1}", "quiet")]
    verified = [
        *held,
        (root, "quiet"),
        *((w, "accepted" if i in path else "rejected gone") for i, w in enumerate(words)),
    ]
    kept = [*held, (root, "quiet"), *((words[i], "accepted") for i in path)]
    lines = [
        (f"Before: {step['position']} rows are committed", held),
        (f"Verify writes {1 + len(words)} rows: the root and every guess, in the order of the tree", verified),
        (f"Commit keeps {1 + len(path)}: the accepted path moves up, what lies behind is written over", kept),
    ]
    drawn = ['<text x="4" y="14" font-weight="600">The cache in one step</text>']
    for number, (said, row) in enumerate(lines):
        y = _TOP + number * (_TALL + _DOWN)
        # Above its line, but below the last one, which the arrows lead to.
        drawn.append(f'<text x="4" y="{y - 8 if number < len(lines) - 1 else y + _TALL + 16}">{text(said)}</text>')
        drawn += [_cell(place, y, *one) for place, one in enumerate(row)]
    low = _TOP + _TALL + _DOWN
    for place, node in enumerate(path):
        x, to = _middle(3 + node), _middle(3 + place)
        drawn.append(
            f'<path class="move accepted" d="M{x} {low + _TALL}C{x} {low + _TALL + 28} {to} {low + _TALL + 24} '
            f'{to} {low + _TALL + _DOWN}"/>'
        )
    width = 8 + len(verified) * (_WIDE + _ACROSS)
    return svg(
        "cache", "The cache in one step", width, _TOP + 3 * _TALL + 2 * _DOWN + 26, "".join(drawn), _RULES, bare=False
    )


def _middle(place: int) -> float:
    return 4 + place * (_WIDE + _ACROSS) + _WIDE / 2


def _cell(place: int, y: float, said: str, looks: str) -> str:
    shown = short(said, _ROOM)
    fits = f' textLength="{_WIDE - 8}" lengthAdjust="spacingAndGlyphs"' if cells(shown) * 6.8 > _WIDE - 8 else ""
    return (
        f'<g class="{looks}"><rect class="cell" x="{4 + place * (_WIDE + _ACROSS)}" y="{y}" width="{_WIDE}" '
        f'height="{_TALL}" rx="3"/><text class="word" x="{_middle(place)}" y="{y + 19}" text-anchor="middle" '
        f'xml:space="preserve"{fits}>{text(shown)}</text></g>'
    )
