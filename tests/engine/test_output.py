"""Stops cut exactly: faults seen in the field, each by name."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.engine.output import Output, Stops
from augury.errors import InputError

END = 0


class Letters:
    """A detokenizer whose token ids are code points; 0 is the end token."""

    def push(self, ids):
        return "".join(chr(i) for i in ids if i != END)

    def flush(self):
        return ""


def run(text, size, **stops):
    """Push a text in steps of ``size`` tokens; gives the finished output and what was shown."""
    out = Output(Stops(**({"max_tokens": 1000} | stops)), Letters())
    shown, ids = "", []
    tokens = [ord(c) if c != "\0" else END for c in text]
    for i in range(0, len(tokens), size):
        if out.finish:
            break
        part = tokens[i : i + size]
        taken = out.push(part)
        ids += part[:taken]
        shown += out.take()
    return out, shown, ids


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("at", range(8))
def test_end_token_at_every_place_of_an_accepted_path_ends_the_answer(size, at):
    text = "abcdefgh"[:at] + "\0" + "xyz"
    out, shown, ids = run(text, size, token_ids=frozenset([END]))
    assert (out.finish, out.stop, shown) == ("stop", END, "abcdefgh"[:at])
    assert ids == [ord(c) for c in "abcdefgh"[:at]] + [END]
    assert out.count == at + 1


@pytest.mark.parametrize("size", [1, 3, 32])
@pytest.mark.parametrize("before", [0, 1, 15, 27])
def test_stop_string_anywhere_in_a_long_path_is_found(size, before):
    text = "-" * before + "STOP" + "behind"
    out, shown, ids = run(text, size, strings=("STOP",))
    assert (out.finish, out.stop, shown, out.text) == ("stop", "STOP", "-" * before, "-" * before)
    assert len(ids) == before + 4, "ids end at the token that completed the stop"
    out, shown, _ = run(text, size, strings=("STOP",), include=True)
    assert shown == "-" * before + "STOP"


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("stops", list(itertools.permutations(["a", "is", ","])))
def test_earliest_stop_in_the_text_wins_whatever_the_order(size, stops):
    out, shown, _ = run("There is, a way", size, strings=stops)
    assert (out.stop, shown) == ("is", "There ")


class Pieces:
    """A detokenizer whose tokens are pieces of several characters."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def push(self, ids):
        return "".join(self.pieces[i] for i in ids)

    def flush(self):
        return ""


@pytest.mark.parametrize("stops", list(itertools.permutations(["a", "is", ","])))
@pytest.mark.parametrize("pieces", [("There", " is, a", " way"), ("There i", "s, a way"), ("There is, a way",)])
def test_of_stops_inside_one_token_the_earliest_wins_whatever_the_order(stops, pieces):
    out = Output(Stops(max_tokens=9, strings=stops), Pieces(*pieces))
    taken = out.push(range(len(pieces)))
    assert (out.stop, out.text, out.take()) == ("is", "There ", "There ")
    assert (out.count, "".join(pieces[:taken]).startswith("There is")) == (taken, True)


@pytest.mark.parametrize("limit", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("size", [1, 5])
def test_max_tokens_is_exact(limit, size):
    out, shown, ids = run("abcdefgh", size, max_tokens=limit)
    assert (out.finish, shown, len(ids), out.count) == ("length", "abcdefgh"[:limit], limit, limit)


def test_stop_and_limit_in_the_same_path_stop_wins_within_the_limit():
    out, _, _ = run("abX", 3, max_tokens=3, strings=("X",))
    assert out.finish == "stop"
    out, shown, _ = run("abX", 3, max_tokens=2, strings=("X",))
    assert (out.finish, shown) == ("length", "ab")


def test_min_tokens_keeps_stops_asleep():
    out, shown, _ = run("aXbXc", 5, strings=("X",), min_tokens=2)
    assert (out.stop, shown) == ("X", "aXb")


def test_text_that_min_tokens_protected_does_not_end_the_answer_later():
    """A long stop string makes the search reach back; a short one that lies wholly in what it reaches is no hit."""
    stops = Stops(max_tokens=9, strings=("\n", "abcdefghijklmnop"), min_tokens=3)
    out = Output(stops, Pieces("A\n", "B", "C", "D", "E\n"))
    assert out.push([0, 1, 2, 3]) == 4
    assert (out.finish, out.text) == (None, "A\nBCD")
    assert out.push([4]) == 1
    assert (out.stop, out.text) == ("\n", "A\nBCDE")


def test_a_stop_string_that_begins_in_protected_text_and_ends_behind_it_is_found():
    out = Output(Stops(max_tokens=9, strings=("BC", "xyzxyzxyz"), min_tokens=2), Pieces("A", "B", "C"))
    out.push([0, 1, 2])
    assert (out.stop, out.text) == ("BC", "A")


@given(st.text("abX", max_size=30), st.integers(1, 7), st.lists(st.text("abX", min_size=1, max_size=3), max_size=3))
def test_streaming_equals_the_whole_and_plain_equals_drafted(text, size, stops):
    out, shown, ids = run(text, size, strings=tuple(stops))
    plain, plain_shown, plain_ids = run(text, 1, strings=tuple(stops))
    if out.finish is None:  # the answer goes on: what is held back may only be the beginning of a stop
        held = out.text[len(shown) :]
        assert not held or any(s.startswith(held) for s in stops)
    else:
        assert shown == out.text
    assert (out.text, out.finish, out.stop, ids) == (plain.text, plain.finish, plain.stop, plain_ids)
    assert shown == plain_shown
    if out.finish is None:
        assert not any(s in text for s in stops)


@pytest.mark.parametrize(
    ("stops", "words"),
    [
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": 1, "strings": ("",)}, "stop string ''"),
        ({"max_tokens": 1, "strings": ("x",) * 17}, "17 stop strings"),
        ({"max_tokens": 1, "min_tokens": 2}, "min_tokens is 2"),
        ({"max_tokens": 1, "strings": ("x" * 1025,)}, "1025 characters"),
    ],
)
def test_bad_stops_are_refused_in_one_line(stops, words):
    with pytest.raises(InputError, match=words):
        Stops(**stops)
