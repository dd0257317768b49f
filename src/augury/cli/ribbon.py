"""Shows an answer as it comes and, if asked, which drafter guessed which part of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from augury.engine.output import Detokenizer
    from augury.engine.request import Chunk

Piece = tuple[str, str | None]
"""Text, and the drafter that guessed it or None for the target's own."""

_LOOKS = ("green underline", "cyan underline2", "yellow italic underline", "magenta bold underline", "blue underline2")
_CONTROLS = {c: f"^{chr(c ^ 64)}" for c in (*range(32), 127) if c not in (9, 10, 13)} | dict.fromkeys(
    range(128, 160), "�"
)


def safe(text: str) -> str:
    """Text whose control characters cannot steer a terminal."""
    return text.translate(_CONTROLS)


class Ribbon:
    """Splits an answer into pieces by drafter. The pieces of a chunk join to exactly the chunk's text.

    A character of several tokens belongs to the drafter of the last one, the one that made it whole.
    """

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._pending: list[Piece] = []

    def pieces(self, chunk: Chunk) -> list[Piece]:
        """The pieces of the chunk's text; text that the engine still holds back waits here too."""
        source = None
        for token, source in zip(chunk.tokens, chunk.sources, strict=True):
            self._pending.append((self._detokenizer.push([token]), source))
        if chunk.finish_reason is not None:
            self._pending.append((self._detokenizer.flush(), source))
        out: list[Piece] = []
        need = len(chunk.text)
        while need and self._pending:
            text, source = self._pending.pop(0)
            out.append((text[:need], source))
            if len(text) > need:
                self._pending.insert(0, (text[need:], source))
            need -= min(need, len(text))
        return [(text, s) for s, run in groupby(out, lambda piece: piece[1]) if (text := "".join(t for t, _ in run))]


class Pen:
    """Writes an answer to a stream: plain, or with each drafter's part marked.

    On a terminal with colours each drafter has a colour *and* a kind of underline; elsewhere, and under
    ``NO_COLOR``, its parts stand in brackets with its number.
    """

    def __init__(self, out: TextIO, drafters: Sequence[str] = ()) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._number = {name: i for i, name in enumerate(drafters)}
        self._colours = self._terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        encoding = (out.encoding or "ascii").lower().replace("-", "")
        self._brackets = ("⟦", "⟧") if encoding.startswith("utf") else ("[", "]")

    def write(self, pieces: Sequence[Piece]) -> None:
        """Write and flush."""
        for text, source in pieces:
            shown = safe(text) if self._terminal else text
            self._out.write(shown if source is None else self._marked(shown, source))
        self._out.flush()

    def legend(self) -> str:
        """One line that says which mark is whose."""
        parts = [self._marked(name, name) for name in self._number]
        return "guessed by " + ", ".join(parts) + "; the rest is the target's own" if parts else "no drafter is loaded"

    def _marked(self, text: str, source: str) -> str:
        number = self._number[source]
        if not self._colours:
            left, right = self._brackets
            return f"{left}{text}{right}{number + 1}"
        from rich.style import Style

        return Style.parse(_LOOKS[number % len(_LOOKS)]).render(text)
