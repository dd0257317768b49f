"""Where did the present ending of a text occur before? The index of every drafter that copies.

Positions are kept in the order of what precedes them, read backwards from the position itself (its *context*),
so those whose contexts share most tokens with a given one lie next to it: a suffix array of the reversed text, cut
at ``DEPTH`` tokens, that grows. Appending a token costs one binary search and one memmove of 4 bytes a token;
nothing is scanned again.

State: 12 to 20 bytes a token.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from augury.tree import IntArray

DEPTH = 32
"""Tokens of context that are told apart: a longer match is not a surer one."""

_WORD = 4
_SPAN = DEPTH * _WORD


class Match(NamedTuple):
    """A position whose context ends in the same ``length`` tokens as the one asked for."""

    position: int
    length: int


def context(tokens: Sequence[int]) -> bytes:
    """What ``Past.matches`` asks for: the last tokens of some text, in its order."""
    return b"".join([token.to_bytes(_WORD, "big") for token in reversed(tokens)])


class Past:
    """A growing text, searchable by context.

    Args:
        tokens: i32[n], the text so far; ids are not negative.

    Attributes:
        tokens: the text, to be read only.
    """

    def __init__(self, tokens: IntArray) -> None:
        # Tokens lie backwards and big-endian at the end of a buffer with room in front, so that a context is one
        # slice of it and the order of contexts is the order of bytes.
        text = np.ascontiguousarray(tokens[::-1], dtype=">i4").tobytes()
        self._text = bytearray(256 * _WORD) + text
        self.tokens = array("i", np.ascontiguousarray(tokens, np.int32).tobytes())
        contexts = [text[i : i + _SPAN] for i in range(len(text) - _WORD, 0, -_WORD)]
        # The last position is left out until something follows it.
        self._order = array("i", sorted(range(len(contexts)), key=contexts.__getitem__))

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Add one token to the end."""
        last = len(self.tokens) - 1
        if last >= 0:
            self._order.insert(bisect_right(self._order, self._context(last), key=self._context), last)
        self.tokens.append(token)
        start = len(self._text) - len(self.tokens) * _WORD
        if start < 0:
            start += len(self._text)
            self._text = bytearray(len(self._text)) + self._text
        self._text[start : start + _WORD] = token.to_bytes(_WORD, "big")

    def ending(self, longest: int = DEPTH) -> bytes:
        """Context of the last token, ``longest`` tokens of it."""
        start = len(self._text) - len(self.tokens) * _WORD
        return bytes(self._text[start : start + longest * _WORD])

    def matches(self, context: bytes, count: int, shortest: int = 1, start: int | None = None) -> list[Match]:
        """The positions that share most of a context, longest match first; each is followed by a token.

        Args:
            context: as from ``ending`` or ``context``.
            count: matches to give at most.
            shortest: tokens a match must share, at least 1.
            start: of equally long matches the first at or behind it come first, then those from the text's
                beginning on; without it the latest come first.
        """
        order, key = self._order, self._context
        found: list[Match] = []
        right = bisect_left(order, context, key=key)
        left = right - 1
        while len(found) < count:
            length = max(self._near(context, left), self._near(context, right))
            if length < shortest:
                break
            head = context[: length * _WORD]
            low = bisect_left(order, head, 0, left + 1, key=key)
            # No id has its highest bit set, so this is past every context that begins with head.
            high = bisect_left(order, head + b"\xff", right, key=key)
            alike = self._first(order[low : left + 1] + order[right:high], count - len(found), start)
            found += [Match(position, length) for position in alike]
            left, right = low - 1, high
        return found

    def agree(self, position: int) -> int:
        """Tokens, at most ``DEPTH``, that the contexts of a position and of the last one share."""
        return _shared(self.ending(), self._context(position))

    def _context(self, position: int) -> bytes:
        start = len(self._text) - (position + 1) * _WORD
        return bytes(self._text[start : start + _SPAN])

    def _near(self, context: bytes, place: int) -> int:
        """Tokens a context shares with the one at a place of the order; 0 outside of it."""
        return _shared(context, self._context(self._order[place])) if 0 <= place < len(self._order) else 0

    def _first(self, positions: array[int], count: int, start: int | None) -> list[int]:
        """``count`` of the positions in the order that ``start`` says."""
        places = np.frombuffer(positions, np.int32)
        ranks = -places if start is None else (places - start) % len(self.tokens)
        if len(ranks) > count:
            nearest = np.argpartition(ranks, count)[:count]
            places, ranks = places[nearest], ranks[nearest]
        chosen: list[int] = places[np.argsort(ranks)].tolist()
        return chosen


def _shared(one: bytes, other: bytes) -> int:
    """Tokens that two contexts share."""
    size = min(len(one), len(other))
    different = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    return (8 * size - different.bit_length()) // (8 * _WORD)
