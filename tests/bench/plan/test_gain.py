"""Tokens of a step, gain and best length: by hand, at the limits, and as functions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.bench.plan.drafts import acceptances, draft_ms, read_draft
from augury.bench.plan.gain import (
    Guesser,
    Steps,
    best_length,
    constant_acceptance,
    expected_tokens,
    gain,
    outlook,
    predicted,
)
from augury.bench.plan.hardware import preset
from augury.bench.plan.roofline import Hardware, Shape, forward
from augury.bench.plan.sizes import of_size
from augury.errors import InputError, UnknownName

chances = st.floats(0.0, 1.0)
lengths = st.integers(0, 32)


def flat(rows, batch):
    """A target whose rows are free."""
    return 10.0


def linear(rows, batch):
    """A target whose every row costs the same."""
    return float(rows)


def guesser(*acceptance, ms=1.0):
    return Guesser("d", acceptance, lambda batch, length: ms * length)


# ---- tokens of a step ---------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(0.0, 0.999), lengths)
def test_a_constant_chance_gives_the_closed_form(chance, length):
    """Leviathan et al. 2023, equation 1."""
    assert expected_tokens([chance], length) == pytest.approx((1 - chance ** (length + 1)) / (1 - chance))


def test_the_limits_of_the_chance():
    assert expected_tokens([1.0], 7) == 8.0
    assert expected_tokens([0.0], 7) == 1.0
    assert expected_tokens([0.8], 0) == 1.0


def test_chances_by_depth_and_the_last_goes_on():
    assert expected_tokens([0.7, 0.6, 0.5], 3) == pytest.approx(1 + 0.7 + 0.42 + 0.21)
    assert expected_tokens([0.7, 0.5], 3) == pytest.approx(1 + 0.7 + 0.35 + 0.175)
    assert expected_tokens([0.7, 0.6, 0.5], 1) == pytest.approx(1.7)


@settings(deadline=None)
@given(st.lists(chances, min_size=1, max_size=5), lengths)
def test_more_guesses_emit_no_fewer_tokens(acceptance, length):
    now, more = expected_tokens(acceptance, length), expected_tokens(acceptance, length + 1)
    assert now <= more <= now + 1.0


# ---- gain ---------------------------------------------------------------------------------------------------------


def test_a_gain_by_hand():
    # 1 + 0.8 + 0.64 tokens for 2 x 1 ms of drafting and 10 ms of verifying, where plain decoding has 1 for 10 ms.
    assert gain(flat, guesser(0.8), 1, 2) == pytest.approx(2.44 * 10 / 12)
    assert gain(linear, guesser(0.8, ms=0.0), 4, 1) == pytest.approx(1.8 / 2)
    assert gain(flat, guesser(0.8), 1, 0) == 1.0


def test_rows_that_cost_as_much_as_tokens_never_pay():
    found = outlook(linear, [guesser(0.99, ms=0.01)], 1, 16)
    assert (found.best, found.length, found.gain, found.tokens) == (None, 0, 1.0, 1.0)
    assert found.rate == found.plain_rate == 1000.0


def test_free_rows_and_free_guesses_are_worth_every_length():
    found = outlook(flat, [guesser(0.9, ms=0.0)], 2, 16)
    assert found.length == 16
    assert found.gain == pytest.approx(found.tokens)
    assert found.plain_rate == 200.0
    assert found.rate == pytest.approx(200.0 * found.gain)


def test_guesses_that_are_never_right_are_not_made():
    assert outlook(flat, [guesser(0.0, ms=0.0)], 1, 8).length == 0  # equal gain: the shortest


def test_the_better_drafter_is_named():
    good, poor = guesser(0.9), Guesser("poor", (0.5,), lambda batch, length: 0.1 * length)
    assert outlook(flat, [poor, good], 1, 8).best is good
    dear = Guesser("dear", (0.95,), lambda batch, length: 50.0)
    assert outlook(flat, [dear, poor], 1, 8).best is poor


def test_the_best_length_is_the_best_of_all_not_the_first_peak():
    assert best_length([1.0, 1.2, 1.1, 1.3, 1.3]) == 3


@settings(deadline=None)
@given(
    st.lists(chances, min_size=1, max_size=4),
    st.floats(0.0, 5.0),
    st.integers(1, 64),
    st.floats(0.0, 2.0),
)
def test_plain_decoding_is_never_beaten_by_the_choice(acceptance, draft, batch, row):
    def verify(rows, _):
        return 5.0 + row * rows

    found = outlook(verify, [guesser(*acceptance, ms=draft)], batch, 12)
    assert found.gain >= 1.0
    assert found.gain == max(found.curves["d"])
    assert (found.length == 0) == (found.best is None)


@settings(deadline=None)
@given(st.floats(0.05, 0.95), st.floats(0.0, 0.05), st.floats(0.0, 4.0))
def test_right_more_often_gains_no_less(chance, more, ms):
    def best(a):
        return outlook(lambda rows, _: 10.0 + 0.2 * rows, [guesser(a, ms=ms)], 1, 12).gain

    assert best(chance + more) >= best(chance) * (1 - 1e-12)


# ---- on a roofline ------------------------------------------------------------------------------------------------


def on_paper(text, hardware, target, batch, context=1024):
    draft = read_draft(text)
    made = Guesser(draft.name, draft.acceptance, draft_ms(draft, draft.shape(target), hardware, context))
    return outlook(lambda rows, batch: forward(hardware, target, rows, batch, context).ms, [made], batch, 16)


def test_the_example_by_hand():
    """8B drafts for 70B on an H100, one request: 140 GB and 16 GB at 3350 GB/s, their caches of 1024 tokens on top."""
    target = of_size("70B", 70e9, "bf16")
    found = on_paper("8B@0.8", preset("H100"), target, 1)
    big = (140e9 + 1024 * target.kv_bytes) / 3350e6
    small = (16e9 + 1024 * of_size("8B", 8e9, "bf16").kv_bytes) / 3350e6
    assert found.plain_ms == pytest.approx(big)
    by_hand = [(1 - 0.8 ** (k + 1)) / 0.2 * big / (k * small + big) for k in range(17)]
    assert found.curves["8B"] == pytest.approx(by_hand)
    assert found.length == by_hand.index(max(by_hand)) == 5
    assert found.gain == pytest.approx(2.34, abs=0.01)


@pytest.mark.parametrize("draft", ["8B@0.8", "self:int4@0.95", "head:1B@0.7", "block:1B@0.7", "copy@0.6"])
@pytest.mark.parametrize("hardware", ["H100", "L4", "M3-Max", "desktop-DDR5"])
def test_gain_and_length_fall_as_requests_fill_the_arithmetic(draft, hardware):
    target = of_size("70B", 70e9, "bf16")
    found = [on_paper(draft, preset(hardware), target, batch, 0) for batch in (1, 4, 16, 64, 256, 1024)]
    gains, lengths = [one.gain for one in found], [one.length for one in found]
    assert gains == sorted(gains, reverse=True)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 0
    assert lengths[-1] == 0


def test_what_drafters_cost():
    hardware, target = Hardware("round", 1000.0, 1e6), Shape("t", 10e9, "bf16", 10, 0.0, 0.0)

    def ms(text, batch, length):
        draft = read_draft(text)
        return draft_ms(draft, draft.shape(target), hardware, 0)(batch, length)

    assert ms("1B", 1, 3) == pytest.approx(6.0)
    assert ms("1B:int4", 1, 3) == pytest.approx(3 * 0.5625)
    assert ms("self:int8", 1, 2) == pytest.approx(2 * 10.625)
    assert ms("head:1B", 1, 3) == pytest.approx(6.0)
    assert ms("block:1B", 1, 3) == pytest.approx(2.0)
    assert ms("copy", 8, 3) == 0.1
    assert ms("copy:2.5", 8, 3) == 2.5


def test_all_places_in_one_forward_are_so_many_rows():
    slow, target = Hardware("slow", 1e9, 1.0), Shape("t", 10e9, "bf16", 10, 0.0, 0.0)
    draft = read_draft("block:1B")
    assert draft_ms(draft, draft.shape(target), slow, 0)(2, 3) == pytest.approx(2 * 1e9 * 6 / 1e9)


# ---- descriptions -------------------------------------------------------------------------------------------------


def test_descriptions():
    assert read_draft("8B:int4@0.8,0.7").acceptance == (0.8, 0.7)
    assert read_draft("8B:4").precision == "int4"
    assert read_draft("self").precision == "int4"
    assert read_draft("self").acceptance is None
    assert read_draft("smollm2-135m").model == "smollm2-135m"


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("heads:1B", UnknownName, "unknown draft 'heads:1B'; did you mean 'head:0.3B'"),
        ("", UnknownName, "unknown draft ''"),
        ("8", InputError, "'8' is not a number of parameters"),
        ("8B:int5", UnknownName, "precision of --draft 8B:int5"),
        ("8B:", UnknownName, "precision of --draft 8B:"),
        ("head", InputError, "has no size; give its parameters, as in head:0.3B"),
        ("head:big", InputError, "'big' is not a number of parameters"),
        ("copy:x", InputError, "'x' is not the milliseconds of a step"),
        ("copy:-1", InputError, "milliseconds"),
        ("copy:nan", InputError, "milliseconds"),
        ("self:int5", UnknownName, "precision of --draft self:int5"),
        ("8B@", InputError, "'' is no acceptance"),
        ("8B@0.8,x", InputError, "'x' is no acceptance"),
    ],
)
def test_descriptions_that_say_nothing_possible(text, error, said):
    with pytest.raises(error, match=said):
        read_draft(text)


@pytest.mark.parametrize(
    ("text", "near"), [("1.2", "1"), ("-0.1", "0"), ("80", "0.8"), ("nan", "1"), ("inf", "1"), ("0.5,200", "1")]
)
def test_an_acceptance_outside_0_to_1_says_the_nearest(text, near):
    with pytest.raises(InputError, match=f"outside 0 to 1; the nearest choice is {near}$"):
        acceptances(text, "--acceptance")


@pytest.mark.parametrize(("bits", "near"), [("int8", "the nearest is self:int4"), ("int4", "there are none fewer")])
def test_the_target_in_no_fewer_bits_is_no_drafter(bits, near):
    with pytest.raises(InputError, match=near):
        read_draft(f"self:{bits}").shape(of_size("8B", 8e9, bits))


# ---- against a measurement ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(0.01, 0.99), st.integers(1, 16))
def test_the_constant_chance_is_found_again(chance, length):
    found = constant_acceptance(expected_tokens([chance], length), length)
    assert expected_tokens([found], length) == pytest.approx(expected_tokens([chance], length), rel=1e-6)


def test_more_tokens_than_guesses_allow_are_a_chance_of_one():
    assert constant_acceptance(9.0, 4.0) == pytest.approx(1.0)
    assert constant_acceptance(1.0, 4.0) == pytest.approx(0.0, abs=1e-9)
    assert constant_acceptance(1.0, 0.5) == pytest.approx(0.0, abs=1e-9)


def test_a_prediction_is_the_gain_where_lengths_are_whole_and_lies_between_where_not():
    one = guesser(0.8)
    tokens = expected_tokens([0.8], 3)
    assert predicted(linear, one, [Steps(tokens, 1.0, 3.0)]) == pytest.approx(gain(linear, one, 1, 3))
    # 3.5 guesses: 3.5 ms of drafting and 4.5 rows.
    assert predicted(linear, one, [Steps(3.0, 1.0, 3.5)]) == pytest.approx(3.0 / 8.0)


def test_a_prediction_counts_steps_without_guesses_and_what_surrounds_forwards():
    one = guesser(0.8)
    # A quarter of the steps guesses four tokens, 4 ms and 5 rows; three quarters are one row.
    assert predicted(linear, one, [Steps(1.5, 0.25, 4.0)]) == pytest.approx(1.5 / (0.25 * 9.0 + 0.75))
    assert predicted(linear, one, [Steps(1.5, 0.25, 4.0)], 0.5, 2.0) == pytest.approx(1.5 * 1.5 / (3.0 + 2.0))
    assert predicted(linear, one, [Steps(1.0, 0.0, 0.0)]) == 1.0


def test_a_prediction_is_a_geometric_mean_over_answers():
    copies, does_not = Steps(4.0, 1.0, 3.0), Steps(1.0, 0.0, 0.0)
    both = predicted(flat, guesser(0.8, ms=0.0), [copies, does_not])
    assert both == pytest.approx((4.0 * 1.0) ** 0.5)
