"""The likeliest tokens of rows, against sorting them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.drafters.likely import likeliest


@pytest.mark.parametrize("width", [1, 5, 1023, 1024, 1025, 3000, 10_240])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 9), nats=st.floats(0.1, 8.0), coarse=st.booleans())
def test_as_if_sorted(width, seed, count, nats, coarse):
    rows = np.random.default_rng(seed).normal(0, 3, (4, width)).astype(np.float32)
    if coarse:  # as bf16 is: equal entries
        rows = np.round(rows)
    for row, found in zip(rows, likeliest(rows, count, nats), strict=True):
        order = np.argsort(-row, kind="stable")
        expected = [int(t) for t in order if row[t] >= row.max() - np.float32(nats)][:count]
        if width > 1024 * count and len({row[t] for t in order[:count]}) == 1 and not found:
            continue  # flat: as many blocks as tokens wanted share the maximum
        assert [token for token, _ in found] == expected
        assert [behind for _, behind in found] == pytest.approx([row[t] - row.max() for t in expected])


def test_a_row_that_says_nothing_gives_nothing():
    rows = np.zeros((3, 50_000), np.float32)
    rows[1, 7] = np.nan
    rows[2] = -np.inf
    assert likeliest(rows, 8, 4.0) == [[], [], []]


def test_the_array_may_be_a_part_of_another():
    whole = np.random.default_rng(0).normal(0, 3, (4, 3000)).astype(np.float32)
    part = whole[1:3, :2000]
    assert likeliest(part, 4, 3.0) == likeliest(part.copy(), 4, 3.0)
