"""The draft tree of a step as SVG: who guessed what, how sure, what the target thought of it, and what was kept.

A guess is a box: its drafter is the colour and the pattern of the outline, the verdict a mark in the corner, the weight
of the outline and, for a rejected word, a line through it. The accepted path is drawn bold and ends at the target's own
token. It reads from left to right, as the text does; siblings stand below each other in the order they are tried in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from augury.picture.ink import DRAFTERS, LETTER, cells, dash, short, svg, text
from augury.picture.words import OWN, guesses, heading, word

_LETTER, _SMALL = 7.4, 6.2  # pixels of a letter of a word, of a letter of a figure
_TALL, _LINE = 58, 14  # pixels of a box, of a line of its figures
_ACROSS, _DOWN = 26, 10  # pixels between boxes
_LEFT, _TOP, _ROW = 8, 34, 20  # pixels beside the root, above all boxes, of a row of the legend
_LEAST = 300  # pixels of a picture, so that its heading has room
_ROOM = 18  # letters of a word that a box shows; the whole of it is said when it is pointed at

RULES = (
    ".tree .box{fill:currentColor;fill-opacity:.1;stroke:currentColor;stroke-width:1.25}"
    ".tree .kept .box{stroke-width:3;fill-opacity:.2}.tree .far{opacity:.7}"
    ".tree .edge{fill:none;stroke:currentColor;stroke-width:1.25;stroke-opacity:.6}"
    ".tree .bold{stroke-width:4;stroke-opacity:1}.tree .word{fill:var(--ink);font:12px ui-monospace,monospace}"
    ".tree .small{fill:var(--ink);font-size:10px}.tree .through{stroke:currentColor;stroke-width:1.5}"
    ".tree .disc{fill:currentColor}.tree .sign{fill:none;stroke:var(--ground);stroke-width:1.8}"
)
"""Of a tree's classes, beside those of ``ink``."""

_SIGNS = {
    "accepted": ("accepted", "M-3.5 .3l2.4 2.6 4.4-5.4"),
    "rejected": ("rejected", "M-2.6-2.6l5.2 5.2m0-5.2l-5.2 5.2"),
    "cut off": ("quiet", "M-2.6 3l5.2-6"),
    "not reached": ("quiet", "M-3 0h6"),
}
"""What stands in the corner of a box: the class of its colour, and its strokes around the middle of a disc."""


class _Box(NamedTuple):
    """A box before it has a place: its classes and outline, its word, the figures below, its sign, and what it says."""

    looks: str
    outline: str
    word: str
    lines: tuple[str, ...]
    fate: str
    said: str


def tree(step: Mapping[str, Any], drafters: Sequence[str], *, bare: bool = False) -> str:
    """An ``<svg>`` element.

    Args:
        step: an event of the kind ``step``.
        drafters: names, as the request's event ``begin`` has them.
        bare: without a style of its own.
    """
    found = guesses(step, drafters)
    parents: Sequence[int] = step["parents"]
    boxes = [_guess(one, step) for one in found]
    last = step["path"][-1] if step["path"] else -1
    below: dict[int, list[int]] = {node: [] for node in range(-1, len(boxes) + 1)}
    for node, parent in enumerate(parents):
        below[parent].append(node)
    if step["own"] is not None:  # the target's own token hangs on the last kept node, like one more of its children
        said = f"{OWN[step['own']]} {word(step, step['next'])}, the target's own"
        boxes.append(_Box("kept own", "", word(step, step["next"]), (OWN[step["own"]],), "", said))
        below[last].append(len(boxes) - 1)
    place = ("root", f"at {step['position']}")
    root = _Box("quiet", "", word(step, step["root"]), place, "", "the last committed token")
    columns, rows = _placed(below)
    wide = _widths({-1: root, **dict(enumerate(boxes))}, columns)
    lefts = [_LEFT + sum(wide[:column]) + _ACROSS * column for column in range(len(wide))]
    kept = {*step["path"], *([len(boxes) - 1] if step["own"] is not None else [])}

    def at(node: int) -> tuple[float, float, float]:
        """A box's left, top and width."""
        return lefts[columns[node]], _TOP + rows[node] * (_TALL + _DOWN), wide[columns[node]]

    drawn = [f'<text x="{_LEFT}" y="14" font-weight="600">{text(heading(step))}</text>']
    for node in range(len(boxes)):
        parent = parents[node] if node < len(parents) else last
        drawn.append(_edge(at(parent), at(node), "bold" if node in kept else "", "own" if node >= len(parents) else ""))
    drawn += [_drawn(box, *at(node)) for node, box in ((-1, root), *enumerate(boxes))]
    width = max(lefts[-1] + wide[-1] + _LEFT, _LEAST)
    low = _TOP + (max(rows.values()) + 1) * (_TALL + _DOWN)
    legend, height = _legend(step, drafters, {one.fate for one in found}, width, low)
    told = f"Root {word(step, step['root'])} at position {step['position']}. " + " ".join(f"{b.said}." for b in boxes)
    return svg("tree", heading(step), round(width), height, "".join([*drawn, *legend]), RULES, bare=bare, told=told)


def _guess(one: Any, step: Mapping[str, Any]) -> _Box:
    """The box of a draft token."""
    lines = [f"S {one.survival:.2f}"]
    ratio = "" if one.p is None else f"p {one.p:.3f}"
    lines.append(ratio + (f"  q {one.q:.3f}" if one.q is not None else ""))
    looks = f"d{one.source % DRAFTERS}" + {"accepted": " kept", "not reached": " far"}.get(one.fate, "")
    said = f"{one.fate}: {one.word} by {one.drafter}, survival {one.survival:.2f}"
    said += "" if one.p is None else f", p {one.p:.3f}"
    said += "" if one.q is None else f", q {one.q:.3f}"
    return _Box(looks, dash(one.source), one.word, tuple(line for line in lines if line), one.fate, said)


def _placed(below: Mapping[int, Sequence[int]]) -> tuple[dict[int, int], dict[int, int]]:
    """Column and row of every node: a first child stands beside its parent, the others below all that hangs on it."""
    columns, rows, free = {-1: 0}, {-1: 0}, 0
    waiting = [-1]
    while waiting:
        node = waiting.pop()
        if node >= 0 and rows[node] < 0:
            free += 1
            rows[node] = free
        children = below[node]
        for place, child in enumerate(children):
            columns[child] = columns[node] + 1
            rows[child] = rows[node] if place == 0 else -1  # not known before what is above it has its rows
        waiting += reversed(children)
    return columns, rows


def _widths(boxes: Mapping[int, _Box], columns: Mapping[int, int]) -> list[float]:
    """Pixels of every column: as much as its widest box needs."""
    wide = [0.0] * (max(columns.values()) + 1)
    for node, box in boxes.items():
        need = max([_LETTER * cells(short(box.word, _ROOM)), *(_SMALL * cells(line) for line in box.lines)]) + 22
        wide[columns[node]] = max(wide[columns[node]], need)
    return wide


def _edge(parent: tuple[float, float, float], child: tuple[float, float, float], bold: str, own: str) -> str:
    """The line from a box to one that hangs on it."""
    x, y = parent[0] + parent[2], parent[1] + _TALL / 2
    to_x, to_y = child[0], child[1] + _TALL / 2
    bend = x + _ACROSS / 2
    looks = f"edge {bold} {own or ('accepted' if bold else 'quiet')}".replace("  ", " ")
    curve = f"M{x:.1f} {y:.1f}C{bend:.1f} {y:.1f} {bend:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
    return f'<path class="{looks}" d="{curve}"/>'


def _drawn(box: _Box, x: float, y: float, width: float) -> str:
    """A box in its place."""
    shown = short(box.word, _ROOM)
    middle = x + width / 2
    lines = "".join(
        f'<text class="small" x="{middle:.1f}" y="{y + 32 + _LINE * row:.1f}" text-anchor="middle">{text(line)}</text>'
        for row, line in enumerate(box.lines)
    )
    through = ""
    if box.fate == "rejected":
        reach = _LETTER * cells(shown) / 2 + 3
        through = f'<path class="through rejected" d="M{middle - reach:.1f} {y + 13:.1f}h{2 * reach:.1f}"/>'
    sign = _sign(box.fate, x + width - 3, y + 3) if box.fate else ""
    return (
        f'<g class="{box.looks}"><title>{text(box.said)}</title>'
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_TALL}" rx="6"{box.outline}/>'
        f'<text class="word" x="{middle:.1f}" y="{y + 17:.1f}" text-anchor="middle" xml:space="preserve">{text(shown)}'
        f"</text>{lines}{through}{sign}</g>"
    )


def _sign(fate: str, x: float, y: float) -> str:
    """The mark of a verdict."""
    looks, strokes = _SIGNS[fate]
    return (
        f'<g class="{looks}" transform="translate({x:.1f} {y:.1f})"><circle class="disc" r="7"/>'
        f'<path class="sign" d="{strokes}"/></g>'
    )


def _legend(
    step: Mapping[str, Any], drafters: Sequence[str], fates: set[str], width: float, low: float
) -> tuple[list[str], int]:
    """What colours and marks mean, in as many rows as it takes; and where it ends."""
    box = '<rect class="box" x="0" y="-10" width="18" height="12" rx="3"'
    entries = [
        (drafters[source], f'<g class="d{source % DRAFTERS}">{box}{dash(source)}/></g>')
        for source in sorted({*step["source"]})
    ]
    entries += [(fate, _sign(fate, 9, -4)) for fate in _SIGNS if fate in fates]
    drawn, x, row = [], float(_LEFT), 0
    for name, swatch in entries:
        need = 40 + LETTER * cells(name)
        if x > _LEFT and x + need > width:
            x, row = float(_LEFT), row + 1
        y = low + 14 + row * _ROW
        drawn.append(f'<g transform="translate({x:.1f} {y})">{swatch}<text x="24" y="0">{text(name)}</text></g>')
        x += need
    return drawn, round(low + (row + 1) * _ROW + 4 if entries else low)
