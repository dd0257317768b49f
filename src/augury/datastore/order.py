"""What is sorted: the positions of a text by what precedes them.

A text is stored as *values*: token id + 1, and ``END`` behind every document and ``DEPTH`` times before the first.
The *context* of a position is its own value and those before it, read backwards, ``DEPTH`` at most and nothing beyond
the beginning of its document. In the order of contexts those that share most tokens with a given context lie next to
it, as in a suffix array of the reversed text; cut at ``DEPTH`` tokens, it can be sorted, merged and searched by keys
of fixed size. A position is in the order if something follows it in its document.

``END`` is no token, so no context matches beyond the beginning of a document.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from augury.tree import IntArray

DEPTH = 16
"""Tokens of context that are told apart."""

END = 0

Values = npt.NDArray[np.unsignedinteger[Any]]  # u16 or u32, as the vocabulary needs
Positions = npt.NDArray[np.uint32]
ValueType = np.dtype[np.unsignedinteger[Any]]
Keys = npt.NDArray[np.bytes_]


def value_type(vocab_size: int) -> ValueType:
    """The narrower type that holds every id + 1."""
    return np.dtype(np.uint16 if vocab_size <= np.iinfo(np.uint16).max else np.uint32)


def as_values(ids: IntArray, kind: ValueType) -> Values:
    """Token ids as they are stored."""
    found: Values = (ids.astype(np.int64) + 1).astype(kind)
    return found


def keys(values: Values, positions: Positions) -> Keys:
    """S[DEPTH * itemsize][m]: contexts as big-endian bytes, whose order is that of the contexts."""
    table = np.empty((len(positions), DEPTH), values.dtype.newbyteorder(">"))
    places = positions.astype(np.int64)
    within = np.ones(len(positions), values.dtype)
    for depth in range(DEPTH):
        column = values[places] * within
        table[:, depth] = column
        within = (column != END).astype(values.dtype)
        places -= 1
    return table.view(f"S{DEPTH * values.dtype.itemsize}").ravel()


def key(context: Values, fill: int) -> Keys:
    """S[DEPTH * itemsize][1]: the least (``fill`` 0) or greatest (255) key that begins with a context, newest first."""
    size = DEPTH * context.dtype.itemsize
    begin = context.astype(context.dtype.newbyteorder(">")).tobytes()
    return np.array([begin + bytes([fill]) * (size - len(begin))], f"S{size}")


def order(values: Values) -> Positions:
    """Positions of a text in the order of their contexts.

    By doubling (Manber and Myers 1993): the rank of a context of 2k tokens is that of its newer half and, among
    equals, that of its older half, which is the rank of the position k before.
    """
    places = np.arange(len(values))
    within = places - np.maximum.accumulate(np.where(values == END, places, 0))  # values since the last END
    ranks, bits, told = values.astype(np.uint64), 8 * values.dtype.itemsize, 1
    while told < DEPTH:
        if bits > 32:
            ranks, bits = _dense(ranks), 32
        older = np.zeros_like(ranks)
        older[told:] = ranks[:-told]
        older[within <= told] = END
        ranks = ranks << np.uint64(bits) | older
        bits, told = 2 * bits, 2 * told
    positions = np.flatnonzero((values[:-1] != END) & (values[1:] != END)).astype(np.uint32)
    return positions[np.argsort(ranks[positions])]


def _dense(ranks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The same order in the smallest numbers, the least of all being 0."""
    order = np.argsort(ranks)
    ordered = ranks[order]
    found = np.empty_like(ranks)
    found[order] = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])]).astype(np.uint64)
    return found
