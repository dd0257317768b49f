"""Lookahead: the trajectory, the pool, what rows teach which, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay import view_of
from rows import Chain, miss, show

from augury.drafters import make
from augury.drafters.lookahead import NGRAM, POOL, Pool
from augury.errors import InputError
from augury.tree import DraftTree, Path

rng = np.random.default_rng(0)


def opened(spec, text, number=1):
    drafter, view = make(spec), view_of(text, number=number)
    drafter.open(view)
    return drafter, view


def trajectory(drafter, view):
    return [trail[-1] for trail in drafter._requests[view.id].trails]


def paths(tree):
    return [tree.tokens[tree.path(node)].tolist() for node in range(len(tree))]


# The trajectory


def test_it_begins_with_tokens_of_the_text_and_is_offered():
    drafter, view = opened("lookahead:window=4", [11, 12, 13])
    guesses = trajectory(drafter, view)
    assert len(guesses) == 4
    assert set(guesses) <= {11, 12, 13}
    tree = drafter.propose(view, 8)
    assert paths(tree)[-1] == guesses
    assert all(tree.survival > 0)


def test_rows_of_refused_guesses_make_the_next_trajectory():
    drafter, view = opened("lookahead:window=3", [1, 2])
    first = trajectory(drafter, view)
    rows = {0: {60: 5.0}, 1: {61: 5.0}, 2: {62: 5.0}, 3: {63: 5.0}}
    miss(drafter, view, first, [-1, 0, 1], rows, next_token=60)
    assert trajectory(drafter, view) == [61, 62, 63]
    assert drafter._requests[view.id].fresh == 3


def test_own_guesses_are_found_among_those_of_others():
    drafter, view = opened("lookahead:window=2", [1, 2])
    one, two = trajectory(drafter, view)
    rows = {0: {60: 5.0}, 1: {70: 5.0}, 2: {61: 5.0}, 3: {71: 5.0}, 4: {62: 5.0}}
    # Rows 1 and 3 are another drafter's, which guessed 90 and behind it the same as this one.
    miss(drafter, view, [90, one, two, two], [-1, -1, 0, 1], rows, next_token=60)
    assert trajectory(drafter, view) == [61, 62]


def test_guesses_that_got_no_row_move_on_as_they_are():
    drafter, view = opened("lookahead:window=3", [1, 2])
    first = trajectory(drafter, view)
    miss(drafter, view, first, [-1, 0, 1], {0: {60: 5.0}, 1: {61: 5.0}, 2: {62: 5.0}, 3: {63: 5.0}}, next_token=60)
    miss(drafter, view, [], [], {0: {64: 5.0}}, next_token=64)
    assert trajectory(drafter, view)[:2] == [62, 63]
    assert drafter._requests[view.id].fresh == 0


def test_right_guesses_leave_the_trajectory():
    drafter, view = opened("lookahead:window=3", [1, 2])
    tokens = trajectory(drafter, view)
    logits = np.full((4, 100), -20.0, np.float32)
    for row, token in enumerate([*tokens, 63]):
        logits[row, token] = 5.0
    show(drafter, view, DraftTree.chain(tokens, [0.5] * 3), Path((0, 1), tokens[2]), logits)
    assert trajectory(drafter, view)[0] == 63


def test_jacobi_converges_where_places_do_not_depend_on_each_other():
    """A target that looks at positions only is guessed in two steps, whatever the first guesses were."""
    drafter, view = opened("lookahead:window=6", [1, 2, 3])
    emitted = []
    for _ in range(2):
        tree = drafter.propose(view, 64)
        depths = [0, *tree.depths.tolist()]
        logits = np.full((len(tree) + 1, 200), -20.0, np.float32)
        for row, depth in enumerate(depths):
            logits[row, 20 + view.length + depth] = 5.0
        nodes, node = [], -1
        while True:
            right = [i for i in tree.children(node) if tree.tokens[i] == logits[node + 1].argmax()]
            if not right:
                break
            nodes.append(node := right[0])
        show(drafter, view, tree, Path(tuple(nodes), int(logits[node + 1].argmax())), logits)
        emitted.append(len(nodes) + 1)
    assert emitted[:2] == [1, 7]


# The pool


def test_the_pool_holds_what_the_trajectory_ran_through():
    drafter, view = opened("lookahead:window=3", [1, 2])
    first = trajectory(drafter, view)
    miss(drafter, view, first, [-1, 0, 1], {0: {60: 5.0}, 1: {61: 5.0}, 2: {62: 5.0}, 3: {63: 5.0}}, next_token=60)
    rows = {0: {70: 5.0}, 1: {71: 5.0}, 2: {72: 5.0}, 3: {73: 5.0}}
    miss(drafter, view, [61, 62, 63], [-1, 0, 1], rows, next_token=70)
    rows = {0: {80: 5.0}, 1: {81: 5.0}, 2: {82: 5.0}, 3: {83: 5.0}}
    miss(drafter, view, [71, 72, 73], [-1, 0, 1], rows, next_token=62)
    # 72 came behind 62, and a step later 82 behind 72: none of these was ever in the text before.
    assert [72, 82] in paths(drafter.propose(view, 16))


def test_rows_of_others_guesses_fill_the_pool_too():
    drafter, view = opened("lookahead:window=1", [1, 2])
    miss(drafter, view, [90, 91], [-1, 0], {0: {60: 5.0}, 1: {92: 5.0}, 2: {93: 5.0}}, next_token=60)
    for token, follower in ((90, 92), (91, 93)):
        miss(drafter, view, [], [], {0: {token: 5.0}}, next_token=token)
        assert [follower] in paths(drafter.propose(view, 8))


def test_ngrams_that_begin_with_the_root_are_offered_the_latest_first():
    pool = Pool()
    pool.add([5, 1, 2, 3])
    pool.add([5, 1, 4])
    pool.add([5, 9])
    pool.add([6, 7])
    guesses = pool.guesses(pool.begin(5), 0)
    assert [g.token for g in guesses] == [1, 9] or [g.token for g in guesses] == [9, 1]
    assert {g.token: len(g.voters) for g in guesses} == {1: 2, 9: 1}
    pool.add([5, 1, 2, 3])
    assert len(pool) == 4, "what came again is there once"
    assert pool.begin(5)[0].position == 0, "and is the latest"


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=2, max_size=NGRAM), max_size=60))
def test_every_guess_of_the_pool_was_added(ngrams):
    pool = Pool()
    for ngram in ngrams:
        pool.add(ngram)
    for token in range(7):
        for guess in pool.guesses(pool.begin(token), 0):
            assert any(n[:2] == [token, guess.token] for n in ngrams)
    if ngrams:
        assert ngrams[-1][1] in [g.token for g in pool.guesses(pool.begin(ngrams[-1][0]), 0)]


def test_memory_is_bounded():
    pool = Pool()
    for i in range(3 * POOL):
        pool.add([i, i + 1, i + 2])
    assert len(pool) == POOL
    assert pool.begin(0) == []
    assert pool.begin(3 * POOL - 1)
    for i in range(100):
        pool.add([7, i])
    assert len(pool.begin(7)) < 20
    assert len(pool) <= POOL


def test_requests_do_not_meet():
    drafter = make("lookahead")
    views = [view_of([1, 2], number=n) for n in (1, 2, 3)]
    for view in views[:2]:
        drafter.open(view)
    first = trajectory(drafter, views[0])
    miss(drafter, views[0], first[:1], [-1], {0: {60: 5.0}, 1: {61: 5.0}}, next_token=first[0])
    assert 61 in drafter.propose(views[0], 16).tokens
    drafter.close(views[0])
    drafter.open(views[2])
    for view in views[1:]:
        assert set(drafter.propose(view, 16).tokens.tolist()) <= {1, 2}
        drafter.close(view)
    assert not drafter._requests
    drafter.close(view_of([1]))  # one that was never opened


# Guesses and survival


def test_what_the_target_repeats_is_accepted():
    law = Chain(lambda t: ((t + 1) % 20,), 20)
    drafter, view = opened("lookahead", [0])
    kept = [len(law.step(drafter, view, drafter.propose(view, 8)).nodes) for _ in range(40)]
    assert np.mean(kept[-20:]) > 5


def test_stated_survival_is_what_comes():
    dice = np.random.default_rng(1)
    law = Chain(lambda t: ((3 * t + 1) % 40, (7 * t) % 40, (t + 11) % 40), 40)
    drafter, view = opened("lookahead", [0])
    survived = []
    for _ in range(400):
        tree = drafter.propose(view, 8)
        path = law.step(drafter, view, tree, dice)
        survived += [(float(s), i in path.nodes) for i, s in enumerate(tree.survival)]
    stated, real = np.array(survived[len(survived) // 4 :]).T
    assert abs(stated.mean() - real.mean()) < 0.06
    assert real[stated > 0.4].mean() > real[stated < 0.1].mean() + 0.2


@pytest.mark.parametrize("limit", [0, 1, 2, 64])
def test_limits_and_short_prompts(limit):
    drafter, view = opened("lookahead:window=64", [5])
    law = Chain(lambda t: ((t + 1) % 10,), 10)
    for _ in range(8):
        tree = drafter.propose(view, limit)
        assert len(tree) <= limit
        places = {(int(p), int(t)) for p, t in zip(tree.parents, tree.tokens, strict=True)}
        assert len(places) == len(tree), "no guess twice in one place"
        law.step(drafter, view, tree)


@pytest.mark.parametrize("window", [0, 65])
def test_a_window_that_cannot_be(window):
    with pytest.raises(InputError, match=f"window is {window}"):
        make(f"lookahead:window={window}")


# Cost


def test_cost_of_a_step_does_not_grow_with_the_context():
    def cost(length):
        drafter, view = opened("lookahead", rng.integers(0, 3000, length).tolist())
        return Chain(lambda t: ((t + 1) % 3000,), 3000).cost(drafter, view)

    assert cost(32_000) < 3 * cost(1000)
