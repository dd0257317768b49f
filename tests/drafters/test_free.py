"""The drafters that copy, on texts whose right guesses are known."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay import grow, replay, view_of

from augury.drafters import free, make
from augury.drafters.drafter import Observation
from augury.drafters.past import DEPTH
from augury.drafters.votes import WORTH
from augury.tree import DraftTree, Path

FREE = [*free(), "prediction"]
"""Who needs no more than the texts of these tests; the others have files of their own."""

COPY = [name for name in FREE if name not in ("lookahead", "recycle")]
"""Who learns from the text. Those two learn from the target's rows, of which there are none here; their own tests
show the same of them on rows."""

rng = np.random.default_rng(0)
TEXT = rng.integers(0, 5000, 600).tolist()  # hardly a token occurs twice
small_texts = st.lists(st.integers(0, 3), min_size=2, max_size=80)


def opened(spec, text, prediction=None):
    drafter, view = make(spec), view_of(text, prediction)
    drafter.open(view)
    return drafter, view


def occurrences(text):
    """(position, match length) of every position before the last whose context matches, by the latest first."""
    found = []
    for position in range(len(text) - 2, -1, -1):
        length = 0
        while length < min(DEPTH, position + 1) and text[position - length] == text[-1 - length]:
            length += 1
        if length:
            found.append((position, length))
    return found


def continued(text, position, count):
    """What followed a position, going on periodically where it meets the end."""
    period = len(text) - 1 - position
    return [text[position + 1 + i % period] for i in range(count)]


# What is guessed


@given(small_texts, st.integers(1, 3), st.integers(0, 3), st.integers(1, 24))
def test_ngram_is_the_latest_of_the_longest_matches(text, shortest, more, limit):
    longest = shortest + more
    drafter, view = opened(f"ngram:min={shortest},max={longest}", text)
    tree = drafter.propose(view, limit)
    found = [(min(n, longest), p) for p, n in occurrences(text) if n >= shortest]
    if not found:
        assert len(tree) == 0
        return
    _, position = max(found)
    assert 1 <= len(tree) <= limit
    assert tree.is_chain
    assert tree.tokens.tolist() == continued(text, position, len(tree))


@given(small_texts, st.integers(1, 24), st.sampled_from([1, 2, 16]))
def test_every_path_of_the_suffix_tree_did_follow(text, limit, voters):
    drafter, view = opened(f"suffix:voters={voters}", text)
    tree = drafter.propose(view, limit)
    found = sorted(occurrences(text), key=lambda m: -m[1])[:voters]  # stable: of equal ones the latest first
    weight = {}
    for position, length in found:
        weight[text[position + 1]] = weight.get(text[position + 1], 0.0) + length**2.25
    assert bool(len(tree)) == bool(found)
    if found:
        assert weight[int(tree.tokens[0])] == pytest.approx(max(weight.values()))
    for node in range(len(tree)):
        path = tree.tokens[tree.path(node)].tolist()
        assert any(continued(text, position, len(path)) == path for position, _ in found)
    assert len({(int(p), int(t)) for p, t in zip(tree.parents, tree.tokens, strict=True)}) == len(tree)
    assert all(tree.survival >= WORTH)


@given(small_texts, small_texts, st.sampled_from([1, 2, 16]))
def test_the_longest_match_is_never_lost_as_the_text_grows(begin, more, voters):
    suffix, view = opened(f"suffix:voters={voters}", begin)
    ngram, _ = opened("ngram:max=32", begin)
    for token in more:
        grow(view, [token])
        suffix.propose(view, 1)
        ngram.observe(view, None)
        longest = max([length for _, length in occurrences(view.tokens.tolist())], default=0)
        guesses = suffix._requests[view.id].guesses
        assert max([v.length for g in guesses for v in g.voters], default=0) == longest
        assert ngram._requests[view.id].agree == longest


@given(small_texts, st.lists(st.integers(0, 3), max_size=30), st.integers(1, 24))
def test_every_path_of_a_prediction_stands_in_it(prediction, answer, limit):
    drafter, view = opened("prediction", [1], prediction)
    grow(view, answer)
    drafter.observe(view, None)
    tree = drafter.propose(view, limit)
    for node in range(len(tree)):
        path = tree.tokens[tree.path(node)].tolist()
        assert any(prediction[i : i + len(path)] == path for i in range(len(prediction)))
    if prediction[: len(answer)] == answer and len(prediction) > len(answer):
        assert len(tree) > 0
        assert prediction[len(answer)] in tree.tokens[tree.children(-1)]


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_a_copied_text_is_guessed_and_a_new_one_is_not(name):
    copied, _ = replay(make(name), TEXT, TEXT[100:300], limit=16)
    assert len(copied) < 200 / 6
    fresh, _ = replay(make(name), TEXT, rng.integers(5000, 9000, 100).tolist(), limit=16)
    assert len(fresh) == 100


@pytest.mark.parametrize("name", COPY)
@pytest.mark.parametrize("unit", [[7], [300_000], [1, 2, 3]])
def test_periodic_text_is_guessed_through_its_end(name, unit):
    emitted, _ = replay(make(name), unit * 4, unit * 80, limit=16, prediction=unit * 80)
    assert max(emitted) == 17
    assert len(emitted) < 20 * len(unit)


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_a_text_written_three_times_is_drafted_from_the_second_on(name):
    emitted, _ = replay(make(name), [1], TEXT[:200] * 3, limit=8)
    at = np.cumsum([0, *emitted[:-1]])
    drafted = [sum(n - 1 for a, n in zip(at, emitted, strict=True) if a // 200 == copy) for copy in range(3)]
    assert drafted[0] < 0.4 * 200
    assert min(drafted[1:]) > 0.8 * 200


@pytest.mark.parametrize("name", COPY)
def test_correcting_five_words_of_four_hundred_copies_the_rest(name):
    answer = list(TEXT[:400])
    for place in (37, 120, 121, 250, 333):
        answer[place] = 9000 + place
    emitted, _ = replay(make(name), TEXT[:400], answer, limit=8, prediction=TEXT[:400])
    assert len(emitted) < 0.5 * len(answer)
    assert sum(n - 1 for n in emitted) > 0.6 * len(answer)


# Predictions and edits


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
    assert len(emitted) <= len(answer) / 9 + new + 3 * len(edits) + 2


def test_a_replaced_token_costs_one_step():
    answer = edited(TEXT[:200], [(100, 1, [6001])])
    drafter, view = opened("prediction", [1], TEXT[:200])
    grow(view, answer[:101])
    drafter.observe(view, None)
    assert drafter.propose(view, 8).tokens.tolist()[:3] == TEXT[101:104]


def test_of_equal_places_the_next_one_ahead_is_meant():
    block = [1, 2, 3]
    prediction = [10, *block, 11, 12, *block, 13, 14, *block, 15]
    drafter, view = opened("prediction", [99], prediction)
    grow(view, [10, *block, 11, 77, *block])  # 12 became 77; the second block is being written
    drafter.observe(view, None)
    assert drafter.propose(view, 1).tokens.tolist() == [13]


def test_a_wrong_prediction_is_given_up_and_costs_nothing_but_guesses():
    emitted, survived = replay(make("prediction"), [1], rng.integers(5000, 9000, 120).tolist(), prediction=TEXT[:200])
    assert len(emitted) == 120
    assert sum(s for s, _ in survived[-20:]) < sum(s for s, _ in survived[:20]) / 2


def test_nothing_is_guessed_behind_the_end_of_a_prediction():
    drafter, view = opened("prediction", [1], [5, 6])
    grow(view, [5, 6])
    drafter.observe(view, None)
    assert 7 not in drafter.propose(view, 4).tokens
    grow(view, [7, 8, 9])
    drafter.observe(view, None)
    assert len(drafter.propose(view, 4)) <= 4


def test_no_prediction_no_guess():
    drafter = make("prediction")
    for nothing in (None, []):
        view = view_of([1, 2], nothing)
        drafter.open(view)
        assert len(drafter.propose(view, 8)) == 0
        drafter.observe(view, None)
        drafter.close(view)


# Survival


@pytest.mark.parametrize("name", COPY)
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
    assert abs(stated.mean() - real.mean()) < 0.08
    assert real[stated > 0.6].mean() > real[stated < 0.3].mean() + 0.1


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_a_target_that_never_repeats_itself_is_noticed(name):
    """As under a penalty on repetition: every token occurred before, and never goes on as it did."""
    left = {a: list(range(40)) for a in range(40)}  # a walk that takes no pair of tokens twice
    answer, at = [], 0
    while left[at]:
        at = left[at].pop()
        answer.append(at)
    assert len(answer) > 500
    emitted, survived = replay(make(name), [0], answer, limit=8)
    assert sum(emitted) == len(emitted), "nothing was ever right"
    stated = [s for s, _ in survived]
    assert sum(stated[-100:]) / 100 < 0.3 * sum(stated[:20]) / 20


# State


@pytest.mark.parametrize("name", COPY)
@pytest.mark.parametrize("drafted", [True, False])
def test_what_is_learnt_does_not_depend_on_what_was_verified(name, drafted):
    """Steps whose nodes came from others, or that verified nothing, teach the same."""
    drafter = make(name)
    replay(drafter, TEXT, TEXT[50:150] + TEXT[300:350], limit=8, prediction=TEXT[50:200], drafted=drafted)
    other = make(name)
    replay(other, TEXT, TEXT[50:150] + TEXT[300:350], limit=3, prediction=TEXT[50:200], drafted=not drafted)
    view = view_of([1, 2, 3, 1, 2], [1, 2])
    drafter.open(view)
    other.open(view)
    assert np.array_equal(drafter.propose(view, 8).survival, other.propose(view, 8).survival)


@pytest.mark.parametrize("name", COPY)
@given(data=st.data())
def test_growth_in_any_pieces_gives_the_same_guesses(name, data):
    text = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=60))
    prediction = data.draw(st.lists(st.integers(0, 3), max_size=30))
    cut = data.draw(st.integers(1, len(text) - 1))
    one, pieces = opened(name, text[:cut], prediction)
    other, whole = opened(name, text[:cut], prediction)
    while pieces.length < len(text):
        size = data.draw(st.integers(1, 5))
        grow(pieces, text[pieces.length : pieces.length + size])
        one.observe(pieces, None)
    grow(whole, text[cut:])
    a, b = one.propose(pieces, 12), other.propose(whole, 12)
    assert a.tokens.tolist() == b.tokens.tolist()
    assert a.parents.tolist() == b.parents.tolist()
    assert a.survival.tolist() == b.survival.tolist()


@pytest.mark.parametrize("name", FREE)
@settings(max_examples=40)
@given(text=small_texts, more=st.lists(small_texts, max_size=6), limit=st.integers(0, 40))
def test_trees_are_valid_for_every_text(name, text, more, limit):
    drafter, view = opened(name, text, text[::-1])
    for piece in more:
        tree = drafter.propose(view, limit)
        assert isinstance(tree, DraftTree)
        assert len(tree) <= limit
        grow(view, piece[:5])
        logits = np.random.default_rng(len(piece)).standard_normal((len(tree) + 1, 4)).astype(np.float32)
        path = Path((), piece[:5][-1])
        drafter.observe(view, Observation(tree, path, np.asarray(piece[:5], np.int32), logits, None))


@pytest.mark.parametrize("name", FREE)
def test_limits_and_short_prompts(name):
    for prompt in ([5], [5, 5]):
        drafter, view = opened(name, prompt, prediction=[1, 2, 3])
        assert len(drafter.propose(view, 0)) == 0
        for limit in (1, 2, 64):
            assert len(drafter.propose(view, limit)) <= limit
        drafter.close(view)


@pytest.mark.parametrize("name", FREE)
def test_nothing_is_left_of_a_request(name):
    drafter = make(name)
    for _ in range(3):
        replay(drafter, TEXT, TEXT[:50], prediction=TEXT[:40])
    assert not drafter._requests
    drafter.close(view_of([1]))  # one that was never opened


@pytest.mark.parametrize("name", COPY)
def test_a_long_request_before_does_not_change_the_acceptance_of_the_next(name):
    used, fresh = make(name), make(name)
    replay(used, TEXT, rng.integers(0, 5000, 1500).tolist(), prediction=TEXT[:100])
    second = (TEXT[:30] * 4, TEXT[:30] * 6)
    emitted, _ = replay(used, *second, prediction=TEXT[:30] * 5)
    assert emitted == replay(fresh, *second, prediction=TEXT[:30] * 5)[0]


@pytest.mark.parametrize("name", ["ngram", "suffix", "prediction"])
def test_the_twentieth_request_is_guessed_as_well_as_the_first(name):
    drafter, steps = make(name), []
    for number in range(20):
        text = np.random.default_rng(number).integers(0, 5000, 150).tolist()
        steps.append(len(replay(drafter, text, text[20:120] + text[:80], prediction=text)[0]))
    assert np.mean(steps[-3:]) <= np.mean(steps[:3]) + 2


@pytest.mark.parametrize("name", COPY)
def test_requests_side_by_side_do_not_meet(name):
    drafter = make(name)
    views = [view_of(TEXT[i : i + 200], TEXT[i : i + 50], number=i) for i in (0, 300)]
    for view in views:
        drafter.open(view)
    for step in range(20):
        for view in views:
            grow(view, [int(view.tokens[step])])
            drafter.observe(view, None)
    for view, i in zip(views, (0, 300), strict=True):
        assert set(drafter.propose(view, 8).tokens.tolist()) <= set(TEXT[i : i + 200])
    drafter.close(views[0])
    assert len(drafter.propose(views[1], 8)) > 0


# Cost


@pytest.mark.parametrize("name", COPY)
def test_cost_of_a_step_hardly_grows_with_the_context(name):
    drafter = make(name)

    def cost(length):
        tokens = rng.integers(0, 3000, length).tolist()
        view = view_of(tokens + tokens[:1000], tokens)  # room for growth that is not measured
        view._length[0] = length
        drafter.open(view)
        times = []
        for i in range(80):
            begin = time.perf_counter()
            drafter.propose(view, 8)
            view._length[0] += 1 + i % 3
            drafter.observe(view, None)
            times.append(time.perf_counter() - begin)
        drafter.close(view)
        return float(np.median(times))

    short, long = cost(1000), cost(32000)
    assert long < 5 * short  # the binary searches and small moves of a 32 times longer text, never a scan of it


@pytest.mark.parametrize("name", FREE)
def test_opening_grows_little_more_than_the_prompt(name):
    def cost(length):
        tokens = rng.integers(0, 3000, length).tolist()
        times = []
        for _ in range(3):
            drafter, view = make(name), view_of(tokens, tokens)
            begin = time.perf_counter()
            drafter.open(view)
            times.append(time.perf_counter() - begin)
        return min(times)

    assert cost(40_000) < 16 * 4 * cost(2500)


def test_suffix_that_was_not_asked_for_long_indexes_all_that_came():
    """What came meanwhile is found again, though only the last tokens were looked at one by one."""
    drafter, view = opened("suffix", [1, 2, 3])
    grow(view, [7, 8, 9, 10, 11, *range(20, 80), 7, 8, 9])
    tree = drafter.propose(view, 2)
    assert tree.tokens.tolist() == [10, 11]
