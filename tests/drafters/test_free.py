"""The drafters that copy, on texts whose right guesses are known."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay import grow, replay, view_of

from augury.drafters import DRAFTERS, make, split
from augury.errors import InputError, UnknownName
from augury.tree import DraftTree

rng = np.random.default_rng(0)
TEXT = rng.integers(0, 5000, 600).tolist()  # hardly a token occurs twice


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_a_copied_text_is_guessed_and_a_new_one_is_not(name):
    copied, _ = replay(make(name), TEXT, TEXT[100:300], limit=16)
    assert len(copied) < 200 / 6
    fresh, _ = replay(make(name), TEXT, rng.integers(5000, 9000, 100).tolist(), limit=16)
    assert len(fresh) == 100


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("token", [7, 300_000])
def test_periodic_text_is_guessed_through_its_end(name, token):
    emitted, _ = replay(make(name), [token] * 4, [token] * 200, limit=16, prediction=[token] * 200)
    assert max(emitted) == 17
    assert len(emitted) < 40


@pytest.mark.parametrize("name", DRAFTERS)
def test_limits_and_short_prompts(name):
    drafter = make(name)
    view = view_of([5], prediction=[1, 2, 3])
    drafter.open(view)
    assert len(drafter.propose(view, 0)) == 0
    for limit in (1, 2, 64):
        assert len(drafter.propose(view, limit)) <= limit
    drafter.close(view)


@pytest.mark.parametrize("name", DRAFTERS)
def test_nothing_is_left_of_a_request(name):
    drafter = make(name)
    for _ in range(3):
        replay(drafter, TEXT, TEXT[:50], prediction=TEXT[:40])
    assert not drafter._requests


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_long_request_before_does_not_change_the_guesses_of_the_next(name):
    used, fresh = make(name), make(name)
    replay(used, TEXT, rng.integers(0, 5000, 150).tolist(), prediction=TEXT[:100])
    view, other = view_of([1, 2, 3, 1, 2], [3, 4, 5]), view_of([1, 2, 3, 1, 2], [3, 4, 5])
    used.open(view)
    fresh.open(other)
    assert used.propose(view, 16).tokens.tolist()[:3] == fresh.propose(other, 16).tokens.tolist()[:3]


@pytest.mark.parametrize("name", DRAFTERS)
@given(data=st.data())
def test_growth_in_any_pieces_gives_the_same_guesses(name, data):
    text = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=60))
    prediction = data.draw(st.lists(st.integers(0, 3), max_size=30))
    cut = data.draw(st.integers(1, len(text) - 1))
    pieces = view_of(text[:cut], prediction)
    one = make(name)
    one.open(pieces)
    for token in text[cut:]:
        grow(pieces, [token])
        one.observe(pieces, None)
    whole = view_of(text[:cut], prediction)
    other = make(name)
    other.open(whole)
    grow(whole, text[cut:])
    a, b = one.propose(pieces, 12), other.propose(whole, 12)
    assert a.tokens.tolist() == b.tokens.tolist()
    assert a.parents.tolist() == b.parents.tolist()
    assert np.allclose(a.survival, b.survival)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=80), st.integers(1, 3), st.integers(1, 20))
def test_prompt_lookup_equals_brute_force(text, longest, limit):
    drafter = make(f"ngram:max={longest}")
    view = view_of(text)
    drafter.open(view)
    tokens = drafter.propose(view, limit).tokens.tolist()
    if not tokens:
        assert text[-1] not in text[:-1]
        return
    # What is proposed did follow an earlier occurrence of the last token, periodically continued.
    sources = [i for i in range(len(text) - 1) if text[i] == text[-1]]
    continued = text + tokens
    assert any(continued[i + 1 : i + 1 + limit] == tokens for i in sources)


def edited(text, edits):
    text = list(text)
    for place, gone, new in sorted(edits, reverse=True):
        text[place : place + gone] = new
    return text


@pytest.mark.parametrize(
    "edits",
    [
        [(50, 1, [6001]), (120, 1, [6002]), (200, 1, [6003])],  # replaced
        [(50, 0, [6001]), (120, 0, [6002, 6003])],  # inserted
        [(50, 1, []), (120, 20, [])],  # left out
        [(30, 3, [6001] * 5), (90, 10, [6002]), (91, 0, [6003]), (150, 0, list(range(7000, 7030)))],
    ],
)
def test_prediction_is_found_again_after_edits(edits):
    answer = edited(TEXT[:300], edits)
    emitted, _ = replay(make("prediction"), [1], answer, limit=8, prediction=TEXT[:300])
    new = sum(len(n) for _, _, n in edits)
    # Every token that is not in the prediction costs a step, and finding the place again costs few more.
    assert len(emitted) <= len(answer) / 9 + new + 4 * len(edits) + 3


def test_a_wrong_prediction_is_given_up_and_costs_nothing_but_guesses():
    emitted, survived = replay(make("prediction"), [1], rng.integers(5000, 9000, 120).tolist(), prediction=TEXT[:200])
    assert len(emitted) == 120
    assert sum(s for s, _ in survived[-20:]) < sum(s for s, _ in survived[:20]) / 2


def test_no_prediction_no_guess():
    drafter = make("prediction")
    for nothing in (None, []):
        view = view_of([1, 2], nothing)
        drafter.open(view)
        assert len(drafter.propose(view, 8)) == 0
        drafter.observe(view, None)
        drafter.close(view)


@pytest.mark.parametrize("name", DRAFTERS)
def test_stated_survival_is_about_what_comes(name):
    """In the mean it is what came, and what was called sure came oftener. Copies end at random, so nothing is sure."""
    dice = np.random.default_rng(5)
    answer = []
    for _ in range(80):
        start = int(dice.integers(0, 500))
        answer += TEXT[start : start + int(dice.integers(3, 30))]
        answer += dice.integers(0, 5000, int(dice.integers(1, 6))).tolist()
    _, survived = replay(make(name), TEXT, answer, limit=8, prediction=answer[: len(answer) // 2])
    stated, real = np.array(survived).T
    assert abs(stated.mean() - real.mean()) < 0.12
    assert real[stated > 0.6].mean() > real[stated < 0.3].mean() + 0.1


@pytest.mark.parametrize("name", DRAFTERS)
def test_cost_of_a_proposal_does_not_grow_with_the_context(name):
    drafter = make(name)

    def cost(length):
        tokens = rng.integers(0, 3000, length).tolist()
        view = view_of(tokens, tokens[:500])
        drafter.open(view)
        times = []
        for i in range(60):
            begin = time.perf_counter()
            drafter.propose(view, 8)
            grow(view, [tokens[i * 7]])
            drafter.observe(view, None)
            times.append(time.perf_counter() - begin)
        drafter.close(view)
        return float(np.median(times))

    short, long = cost(1000), cost(32000)
    assert long < 8 * short  # the binary searches and small moves of a 32 times longer text, never a scan of it


def test_options_and_names():
    assert split("ngram:min=2,max=4,suffix") == ["ngram:min=2,max=4", "suffix"]
    with pytest.raises(UnknownName, match="did you mean 'suffix'"):
        make("sufix")
    with pytest.raises(UnknownName, match="max"):
        make("ngram:maxx=3")
    with pytest.raises(InputError, match="whole number"):
        make("ngram:max=many")
    with pytest.raises(InputError, match="below min"):
        make("ngram:min=5")
    with pytest.raises(InputError, match="not a Drafter"):
        make("augury.tree:DraftTree")
    assert isinstance(make("augury.drafters.ngram:Ngram:max=2").propose, object)


def test_trees_are_valid_for_every_text():
    for name in DRAFTERS:
        view = view_of(rng.integers(0, 4, 300).tolist(), rng.integers(0, 4, 50).tolist())
        drafter = make(name)
        drafter.open(view)
        for _ in range(50):
            tree = drafter.propose(view, 24)
            assert isinstance(tree, DraftTree)
            grow(view, rng.integers(0, 4, int(rng.integers(1, 6))).tolist())
            drafter.observe(view, None)
