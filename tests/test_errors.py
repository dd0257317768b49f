"""Messages are one line, and say what may be said of any value."""

from __future__ import annotations

import time

import numpy as np
import pytest

from augury.errors import UnknownName, first_line, shown


class Rude:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        ("a  b\n", r"'a  b\n'"),
        ("\ud800", r"'\ud800'"),
        pytest.param(10**5000, "a int that cannot be shown", id="digits"),
        (Rude(), "a Rude that cannot be shown"),
        (np.zeros((2, 2)), "array([[0., 0.], [0., 0.]])"),
        ("x" * 100, "'" + "x" * 56 + "..."),
    ],
)
def test_a_value_is_shown_short_and_in_one_line(value, text):
    assert shown(value) == text


def test_of_what_a_library_says_the_first_line_is_told():
    assert first_line(ValueError("\n one \ntwo")) == "one"
    assert first_line(KeyError()) == "KeyError"
    assert len(first_line(ValueError("x" * 1000))) == 300


def test_an_error_that_cannot_say_what_was_wrong_is_told_by_its_name():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert first_line(Mute()) == "Mute"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ngran", "unknown drafter 'ngran'; did you mean 'ngram'? Valid: ngram, suffix"),
        ("--help", "unknown drafter '--help'. Valid: ngram, suffix"),
    ],
)
def test_an_unknown_name_is_told_from_the_valid_ones(name, said):
    assert str(UnknownName("drafter", name, ["suffix", "ngram"])) == said


@pytest.mark.parametrize(
    "value", [[1] * 3_000_000, {"a": ["b" * 9] * 1_000_000}, "c" * 90_000_000, [[[0] * 1000] * 1000] * 9]
)
def test_of_a_long_value_only_the_beginning_is_written_out(value):
    begin = time.perf_counter()
    assert len(shown(value)) == 60
    assert shown(value).endswith("...")
    assert time.perf_counter() - begin < 0.05
