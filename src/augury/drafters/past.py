"""Where did the present ending of a text occur before? The index of every drafter that copies.

Positions are kept in the order of what precedes them, read backwards from the position itself (its *context*),
so those whose contexts share most tokens with a given one lie next to it: a suffix array of the reversed text, cut
at ``DEPTH`` tokens, that grows. Appending a token costs one binary search and one memmove of 4 bytes a token,
appending many the searches and one memmove for all of them; nothing is scanned again.

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
_NEARBY = 8
_FEW = 128  # positions that are sooner sorted as a list


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
        self._text = bytearray(256 * _WORD) + _backwards(tokens)
        self.tokens = array("i", np.ascontiguousarray(tokens, np.int32).tobytes())
        self._order = array("i", _ordered(tokens).tobytes())
        # The context that was looked for last, and its place: an ending that was is put there with the next token.
        self._sought: tuple[bytearray, int] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Add one token to the end."""
        last = len(self.tokens) - 1
        if last >= 0:
            self._order.insert(self._place(self._context(last)), last)
            self._sought = None
        self.tokens.append(token)
        start = self._room()
        self._text[start : start + _WORD] = token.to_bytes(_WORD, "big")

    def extend(self, tokens: IntArray) -> None:
        """Add tokens i32[m] to the end; the same as to append each, and cheaper from a few on."""
        if not len(tokens):
            return
        before = len(self.tokens)
        self.tokens.frombytes(np.ascontiguousarray(tokens, np.int32).tobytes())
        start = self._room()
        self._text[start : start + len(tokens) * _WORD] = _backwards(tokens)
        key = self._context
        followed = sorted(range(max(before - 1, 0), len(self.tokens) - 1), key=key)
        places = [bisect_right(self._order, key(position), key=key) for position in followed]
        self._order = array("i", np.insert(np.frombuffer(self._order, np.int32), places, followed).tobytes())
        self._sought = None

    def _room(self) -> int:
        """Make room for the text in its buffer; gives where it begins there."""
        while (start := len(self._text) - len(self.tokens) * _WORD) < 0:
            self._text = bytearray(len(self._text)) + self._text
        return start

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
        order, key, wanted = self._order, self._context, bytearray(context)
        found: list[Match] = []
        right = self._place(wanted)
        left = right - 1
        below, above = self._near(wanted, left), self._near(wanted, right)
        while len(found) < count and (length := max(below, above)) >= shortest:
            head, low, high = wanted[: length * _WORD], left + 1, right
            # Few contexts are alike as a rule, so both ends are looked for nearby first.
            step = _NEARBY
            if below == length:
                while step <= left and key(order[left - step]) >= head:
                    step *= _NEARBY
                low = bisect_left(order, head, max(left - step, 0), left + 1, key=key)
            step = _NEARBY
            if above == length:
                beyond = head + b"\xff"  # no id has its highest bit set: it is past every context that begins with head
                while right + step < len(order) and key(order[right + step]) < beyond:
                    step *= _NEARBY
                high = bisect_left(order, beyond, right, min(right + step, len(order)), key=key)
            alike = self._first(order[low : left + 1] + order[right:high], count - len(found), start)
            found += [Match(position, length) for position in alike]
            if below == length:
                left, below = low - 1, self._near(wanted, low - 1)
            if above == length:
                right, above = high, self._near(wanted, high)
        return found

    def agree(self, position: int) -> int:
        """Tokens, at most ``DEPTH``, that the contexts of a position and of the last one share."""
        return _shared(self.ending(), self._context(position))

    def _place(self, context: bytearray) -> int:
        """Where a context stands in the order, behind those that are equal."""
        sought = self._sought
        if sought is None or sought[0] != context:
            self._sought = sought = context, bisect_right(self._order, context, key=self._context)
        return sought[1]

    def _context(self, position: int) -> bytearray:
        start = len(self._text) - (position + 1) * _WORD
        return self._text[start : start + _SPAN]

    def _near(self, context: bytearray, place: int) -> int:
        """Tokens a context shares with the one at a place of the order; 0 outside of it."""
        return _shared(context, self._context(self._order[place])) if 0 <= place < len(self._order) else 0

    def _first(self, positions: array[int], count: int, start: int | None) -> list[int]:
        """``count`` of the positions in the order that ``start`` says."""
        if start is None and len(positions) <= _FEW:
            return sorted(positions, reverse=True)[:count]
        places = np.frombuffer(positions, np.int32)
        ranks = -places if start is None else (places - start) % len(self.tokens)
        if len(ranks) > count:
            nearest = np.argpartition(ranks, count)[:count]
            places, ranks = places[nearest], ranks[nearest]
        chosen: list[int] = places[np.argsort(ranks)].tolist()
        return chosen


def _backwards(tokens: IntArray) -> bytes:
    """Tokens as the buffer holds them."""
    return np.ascontiguousarray(tokens[::-1], dtype=">i4").tobytes()


def _ordered(tokens: IntArray) -> IntArray:
    """i32[n-1]: all positions but the last, which nothing follows, by context; of equal ones the first comes first.

    Contexts are ranked by one token, then by two, four ... (Manber and Myers 1990): the rank of the newer half of a
    context and that of the older half make the rank of the whole.
    """
    ranks = np.unique(tokens, return_inverse=True)[1].astype(np.int64) + 1
    length = 1
    while length < DEPTH and len(tokens) and ranks.max() < len(tokens):
        older = np.zeros_like(ranks)  # 0 is where the text has not begun
        older[length:] = ranks[:-length]
        ranks = np.unique(ranks * (len(tokens) + 1) + older, return_inverse=True)[1] + 1
        length *= 2
    return np.argsort(ranks[:-1], kind="stable").astype(np.int32)


def _shared(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """Tokens that two contexts share."""
    if one[:_WORD] != other[:_WORD]:
        return 0
    size = min(len(one), len(other))
    different = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    return (8 * size - different.bit_length()) // (8 * _WORD)
