"""The likeliest tokens of every row of logits, without sorting one.

A row has 49 to 262 thousand entries and only a handful matter. One pass takes the maximum of every block; the ``count``
largest entries stand in the ``count`` blocks of the largest maxima, and none is below the least of these maxima, so
hardly anything else is looked at again.
"""

from __future__ import annotations

import numpy as np

from augury.tree import FloatArray

_BLOCK = 1024


def likeliest(logits: FloatArray, count: int, nats: float) -> list[list[tuple[int, float]]]:
    """Tokens of each row that fall at most ``nats`` behind its likeliest, at most ``count`` of them.

    Args:
        logits: f32[R, V].
        count: tokens of a row at most.
        nats: distance in logits.

    Returns:
        For each row (token, logit minus the row's greatest), likeliest first, the smaller id first on ties. Nothing
        for a row without a finite maximum, nor where ``count`` blocks share it: such a law is flat.
    """
    rows, width = logits.shape
    maxima = np.maximum.reduceat(logits, np.arange(0, width, _BLOCK), axis=1)
    top = maxima.max(axis=1)
    bar = top - np.float32(nats)
    if count < maxima.shape[1]:
        bar = np.maximum(bar, np.partition(maxima, -count, axis=1)[:, -count])
    telling = np.isfinite(top) & (bar < top)
    tops, bars = top.tolist(), bar.tolist()
    found: list[list[tuple[float, int]]] = [[] for _ in range(rows)]
    for row, block in np.argwhere((maxima >= bar[:, None]) & telling[:, None]).tolist():
        begin = _BLOCK * block
        entries = logits[row, begin : begin + _BLOCK]
        places = np.flatnonzero(entries >= bars[row]).tolist()
        found[row] += [(tops[row] - float(entries[place]), begin + place) for place in places]
    return [[(token, -behind) for behind, token in sorted(one)[:count]] for one in found]
