"""Tokens of a prediction that appeared, by another way of counting; figures that agree with each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augury.server.usage import in_common

TOKENS = st.lists(st.integers(0, 4), max_size=24)


def table(a, b):
    """Length of the longest common subsequence, the usual way."""
    row = [0] * (len(b) + 1)
    for x in a:
        before, row = row, [0]
        for j, y in enumerate(b, 1):
            row.append(before[j - 1] + 1 if x == y else max(before[j], row[j - 1]))
    return row[-1]


@given(TOKENS, TOKENS)
def test_in_common_is_the_longest_common_subsequence(expected, answer):
    assert in_common(expected, np.asarray(answer, np.int32)) == table(expected, answer)


def test_long_ones_are_counted_in_a_moment():
    many = np.arange(8192, dtype=np.int32) % 1000
    assert in_common(many.tolist(), many) == 8192
