"""An answer as a ribbon: every token tinted by the drafter that guessed it, the target's own left as they are.

A drafter is a tint and a kind of underline; a thin seam stands where a step ends. A character of several tokens belongs
to the drafter of the last one, the one that made it whole, as in the terminal.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from augury.picture.ink import DRAFTERS, cells, dash, svg, text
from augury.trace.events import accepted
from augury.trace.records import spelt

_COLUMNS, _CELL, _LINE = 84, 8.6, 26  # letters of a line, pixels of a letter, of a line
_LEFT, _TOP, _LEGEND = 4, 30, 30  # pixels beside the lines, above them, of the row of the legend

RULES = (
    ".ribbon .tint{fill:currentColor;fill-opacity:.16}.ribbon .under{stroke:currentColor;stroke-width:2}"
    ".ribbon .seam{stroke:currentColor;stroke-opacity:.45}"
    ".ribbon .said{fill:var(--ink);font:14px ui-monospace,monospace}"
    "p.ribbon{white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.9}p.ribbon .piece{text-decoration:underline;"
    "text-decoration-thickness:2px;text-underline-offset:.25em;text-decoration-color:currentColor;"
    "background:color-mix(in srgb,currentColor 14%,transparent)}"
    "p.ribbon .piece b{font-weight:inherit;color:var(--ink)}"
    "p.ribbon .u0{text-decoration-style:solid}p.ribbon .u1{text-decoration-style:dashed}"
    "p.ribbon .u2{text-decoration-style:dotted}p.ribbon .u3{text-decoration-style:wavy}"
    "p.ribbon .u4{text-decoration-style:double}p.ribbon .step{border-right:1px solid var(--quiet);margin:0 1px}"
)
"""Of a ribbon's classes, beside those of ``ink``."""

UNDERLINES = 5
"""Kinds of underline that a page tells drafters apart by."""


class Piece(NamedTuple):
    """A part of an answer.

    Attributes:
        text: of it.
        source: index of the drafter that guessed it, -1 for the target's own.
        step: number of the step that emitted it, from 0.
    """

    text: str
    source: int
    step: int


def pieces(steps: Iterable[Mapping[str, Any]], tokens: int | None = None) -> Iterator[Piece]:
    """The parts of an answer.

    Args:
        steps: its events of the kind ``step``. Tokens that have no text in them are shown as their ids.
        tokens: at most so many of its tokens, rounded up to whole steps.
    """
    left = tokens
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for step in steps:
        if left is not None:
            if left <= 0:
                return
            left -= len(step["emitted"])
        texts = step.get("texts") or {}
        sources = [step["source"][node] for node in step["path"][: accepted(step)]]
        sources += [-1] * (len(step["emitted"]) - len(sources))
        run, of = "", -1
        for token, source in zip(step["emitted"], sources, strict=True):
            shown = texts.get(str(token))
            said = f"#{token} " if shown is None else decoder.decode(spelt(shown))
            if said and source != of:
                if run:
                    yield Piece(run, of, step["n"])
                run, of = "", source
            run += said
        if run:
            yield Piece(run, of, step["n"])


def html(found: Iterable[Piece], drafters: Sequence[str]) -> str:
    """A ``<p>`` of the pieces; each says its drafter and step when it is pointed at."""
    parts, before = [], -1
    for piece in found:
        if piece.step != before and before >= 0:
            parts.append('<i class="step"></i>')
        before = piece.step
        said = f"step {piece.step + 1}: {'the target' if piece.source < 0 else drafters[piece.source]}"
        if piece.source < 0:
            parts.append(f'<span title="{text(said)}">{_lines(piece.text)}</span>')
        else:
            looks = f"piece d{piece.source % DRAFTERS} u{piece.source % UNDERLINES}"
            parts.append(f'<span class="{looks}" title="{text(said)}"><b>{_lines(piece.text)}</b></span>')
    return f'<p class="picture ribbon">{"".join(parts)}</p>'


def ribbon(title: str, found: Sequence[Piece], drafters: Sequence[str], *, bare: bool = False) -> str:
    """The same as an ``<svg>`` element, its lines broken after so many letters.

    Args:
        title: above.
        found: the pieces.
        drafters: names, as the request's event ``begin`` has them.
        bare: without a style of its own.
    """
    drawn = [f'<text x="{_LEFT}" y="14" font-weight="600">{text(title)}</text>']
    row, column, before = 0, 0, -1
    for piece in found:
        if piece.step != before and before >= 0:
            drawn.append(f'<path class="seam" d="M{_LEFT + _CELL * column:.1f} {_TOP + _LINE * row + 2}v18"/>')
        before = piece.step
        for number, line in enumerate(piece.text.split("\n")):
            if number:
                row, column = row + 1, 0
            for part in _broken(line, _COLUMNS - column):
                if part is None:
                    row, column = row + 1, 0
                    continue
                wide = cells(part)
                drawn.append(_part(part, piece, drafters, _LEFT + _CELL * column, _TOP + _LINE * row, _CELL * wide))
                column += wide
    low = _TOP + _LINE * (row + 1)
    x = float(_LEFT)
    for source in sorted({piece.source for piece in found if piece.source >= 0}):
        width = _CELL * cells(drafters[source])
        drawn.append(_part(drafters[source], Piece("", source, 0), drafters, x, low + 6, width))
        x += width + 2 * _CELL
    said = "guessed it; the rest is the target's own. A seam ends a step."
    drawn.append(f'<text x="{x:.1f}" y="{low + 21}">{text(said)}</text>')
    height = low + _LEGEND + 6
    told = "".join(piece.text for piece in found)
    return svg(
        "ribbon", title, 2 * _LEFT + round(_CELL * _COLUMNS), height, "".join(drawn), RULES, bare=bare, told=told
    )


def _lines(words: str) -> str:
    """Text for HTML, with its own line ends."""
    return "\n".join(text(line) for line in words.split("\n"))


def _broken(line: str, room: int) -> Iterator[str | None]:
    """Parts of a line that fit, broken behind a space where there is one, and None where a new line begins."""
    while cells(line) > room:
        fits = 0
        while cells(line[: fits + 1]) <= room:
            fits += 1
        space = line.rfind(" ", 0, fits)
        fits = space + 1 if space >= 0 else fits if room == _COLUMNS else 0
        if fits:
            yield line[:fits]
        yield None
        line, room = line[fits:], _COLUMNS
    if line:
        yield line


def _part(words: str, piece: Piece, drafters: Sequence[str], x: float, y: float, width: float) -> str:
    """A part of a piece in its place; its letters are as wide as they are meant to be, whatever the font."""
    said = f"step {piece.step + 1}: {'the target' if piece.source < 0 else drafters[piece.source]}"
    shown = (
        f'<text class="said" x="{x:.1f}" y="{y + 15}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs" '
        f'xml:space="preserve">{text(words)}</text>'
    )
    if piece.source < 0:
        return f"<g><title>{text(said)}</title>{shown}</g>"
    return (
        f'<g class="d{piece.source % DRAFTERS}"><title>{text(said)}</title>'
        f'<rect class="tint" x="{x:.1f}" y="{y}" width="{width:.1f}" height="20"/>{shown}'
        f'<path class="under" d="M{x:.1f} {y + 20}h{width:.1f}"{dash(piece.source)}/></g>'
    )
