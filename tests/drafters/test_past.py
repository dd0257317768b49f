"""The index against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.drafters.past import DEPTH, Past, context

tokens = st.integers(0, 3) | st.sampled_from([255, 256, 70_000, 2**31 - 1])
texts = st.lists(tokens, max_size=90)


def shared(one, other):
    """Tokens that two endings share, counted one by one."""
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b or count == DEPTH:
            break
        count += 1
    return count


def brute(text, ending, count, shortest, start):
    """Every position that something follows, by match length, then by place."""
    found = [(p, shared(text[: p + 1], ending)) for p in range(len(text) - 1)]
    found = [(p, n) for p, n in found if n >= shortest]
    return sorted(found, key=lambda m: (-m[1], -m[0] if start is None else (m[0] - start) % len(text)))[:count]


@given(texts, texts, st.integers(1, 20), st.integers(1, 4), st.none() | st.integers(-1, 95))
def test_matches_are_those_of_a_full_scan(text, ending, count, shortest, start):
    past = Past(np.array(text, np.int32))
    found = past.matches(context(ending[-DEPTH:]), count, shortest, start)
    assert [tuple(m) for m in found] == brute(text, ending, count, shortest, start)


@given(texts, texts, st.integers(1, 20))
def test_a_grown_index_is_the_index_of_the_whole(begin, more, count):
    grown, whole = Past(np.array(begin, np.int32)), Past(np.array(begin + more, np.int32))
    for token in more:
        grown.append(token)
    assert len(grown) == len(whole)
    assert grown.tokens == whole.tokens
    assert grown.ending() == whole.ending() == context((begin + more)[-DEPTH:])
    assert grown.matches(grown.ending(), count) == whole.matches(whole.ending(), count)


def test_growth_beyond_the_room_in_front():
    text = (np.arange(3000) % 7).astype(np.int32)
    past = Past(text[:3])
    for token in text[3:].tolist():
        past.append(token)
    assert past.tokens.tolist() == text.tolist()
    assert [m.position for m in past.matches(past.ending(), 2)] == [len(text) - 8, len(text) - 15]


@pytest.mark.parametrize("longest", [1, 3, DEPTH])
def test_a_shorter_ending_asks_for_shorter_matches(longest):
    text = [1, 2, 3, 4, 9, 2, 3, 4, 8, 3, 4]
    past = Past(np.array(text, np.int32))
    found = past.matches(past.ending(longest), 1)[0]
    # Of matches that are equally long as far as one looks the latest is taken: that behind the 9.
    assert tuple(found) == (7, min(longest, 2))
    assert past.agree(3) == 2


def test_nothing_is_found_in_nothing():
    for text in ([], [5]):
        past = Past(np.array(text, np.int32))
        assert past.matches(past.ending(), 4) == []
    past.append(5)
    assert [tuple(m) for m in past.matches(past.ending(), 4)] == [(0, 1)]


def test_state_is_20_bytes_a_token_at_most():
    for begin, more, at_once in ((20_000, 0, 1), (100, 20_000, 1), (100, 20_000, 250)):
        past = Past(np.arange(begin, dtype=np.int32))
        for token in range(0, more, at_once):
            if at_once == 1:
                past.append(token)
            else:
                past.extend(np.arange(token, token + at_once, dtype=np.int32))
        size = len(past._text) + sum(a.buffer_info()[1] * a.itemsize for a in (past._order, past.tokens))
        assert size <= 20 * (begin + more) + 1024


@given(texts, st.lists(texts, max_size=4), st.integers(1, 20))
def test_many_tokens_at_once_are_as_one_after_another(begin, pieces, count):
    one, many = Past(np.array(begin, np.int32)), Past(np.array(begin, np.int32))
    for piece in pieces:
        many.extend(np.array(piece, np.int32))
        for token in piece:
            one.append(token)
        assert many.tokens == one.tokens
        assert many._order == one._order
        assert many.ending() == one.ending()
    assert many.matches(many.ending(), count) == one.matches(one.ending(), count)
