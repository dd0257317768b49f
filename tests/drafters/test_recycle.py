"""Token recycling: what is learnt from which row, how much is kept, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest
from replay import view_of
from rows import Chain, miss, show

from augury.drafters import make
from augury.drafters.recycle import ENTRIES, WIDTH, Table
from augury.drafters.votes import WORTH
from augury.tree import DraftTree, Path

rng = np.random.default_rng(0)


def opened(spec, text, number=1):
    drafter, view = make(spec), view_of(text, number=number)
    drafter.open(view)
    return drafter, view


def following(tree, node=-1):
    return tree.tokens[tree.children(node)].tolist()


# What is learnt


def test_nothing_is_guessed_before_a_row_was_seen():
    drafter, view = opened("recycle", [1, 2, 3])
    assert len(drafter.propose(view, 8)) == 0


def test_a_refused_node_teaches_what_follows_its_token():
    drafter, view = opened("recycle", [1, 2])
    miss(drafter, view, [7, 8], [-1, -1], {0: {9: 5.0}, 1: {30: 5.0, 31: 4.0}, 2: {40: 5.0}}, next_token=9)
    assert len(drafter.propose(view, 8)) == 0, "nothing is known of 9"
    miss(drafter, view, [], [], {0: {7: 5.0}}, next_token=7)
    assert following(drafter.propose(view, 8)) == [30, 31]
    miss(drafter, view, [], [], {0: {8: 5.0}}, next_token=8)
    assert following(drafter.propose(view, 8)) == [40]


def test_the_latest_row_counts_and_of_one_step_that_on_the_path():
    drafter, view = opened("recycle", [1, 2])
    tree = DraftTree.of([5, 5], [-1, 0], [0.5, 0.4])  # the first is accepted, the second refused
    logits = np.full((3, 100), -20.0, np.float32)
    logits[0, 5], logits[1, 6], logits[2, 8] = 5.0, 5.0, 5.0
    show(drafter, view, tree, Path((0,), 6), logits)
    miss(drafter, view, [], [], {0: {5: 5.0}}, next_token=5)
    assert following(drafter.propose(view, 8)) == [6]
    miss(drafter, view, [], [], {0: {12: 5.0}}, next_token=5)
    assert following(drafter.propose(view, 8)) == [12]


def test_the_tree_is_what_the_rows_say_deeper_too():
    law = Chain(lambda t: ((3 * t + 1) % 50, (t + 7) % 50, (5 * t + 2) % 50), 50)
    drafter, view = opened("recycle", [3])
    for _ in range(60):
        law.step(drafter, view, drafter.propose(view, 8))
    tree = drafter.propose(view, 24)
    assert len(tree) == 24
    assert int(tree.depths.max()) > 2
    for node in range(-1, len(tree)):
        token = int(tree.tokens[node]) if node >= 0 else int(view.tokens[-1])
        believed = law.row(token).argsort()[::-1][:3].tolist()
        assert following(tree, node) == believed[: len(tree.children(node))]
    assert all(tree.survival >= WORTH)


def test_what_the_target_repeats_is_accepted():
    law = Chain(lambda t: ((t + 1) % 20, (t + 5) % 20), 20)
    drafter, view = opened("recycle", [0])
    paths = [law.step(drafter, view, drafter.propose(view, 8)) for _ in range(60)]
    assert max(len(p.nodes) for p in paths[:18]) <= 1, "a path that was never gone is not known"
    assert np.mean([len(p.nodes) for p in paths[-20:]]) > 5


# Survival


def test_stated_survival_is_what_comes():
    dice = np.random.default_rng(1)
    law = Chain(lambda t: ((3 * t + 1) % 40, (7 * t) % 40, (t + 11) % 40), 40)
    drafter, view = opened("recycle", [0])
    survived = []
    for _ in range(300):
        tree = drafter.propose(view, 8)
        path = law.step(drafter, view, tree, dice)
        survived += [(float(s), i in path.nodes) for i, s in enumerate(tree.survival)]
    stated, real = np.array(survived[len(survived) // 4 :]).T
    assert abs(stated.mean() - real.mean()) < 0.06
    assert real[stated > 0.5].mean() > real[stated < 0.2].mean() + 0.2


def test_a_target_that_never_does_what_it_did_is_noticed():
    drafter, view = opened("recycle", [0])
    stated = []
    for i in range(200):
        tree = drafter.propose(view, 8)
        stated.append(float(tree.survival.sum()))
        # The law behind every token is sure of one that never comes.
        miss(drafter, view, [], [], {0: {50 + i % 3: 5.0}}, next_token=int(rng.integers(0, 10)))
    assert np.mean(stated[-50:]) < 0.5 * np.mean(stated[10:40])


# State


def test_memory_is_bounded_and_the_oldest_goes_first():
    table = Table()
    for token in range(ENTRIES + 1):
        table.refresh(token, [(1, 0.0)])
    assert len(table) == ENTRIES
    assert table.guesses(0) == []
    table.refresh(1, [(2, 0.0)])
    table.refresh(ENTRIES + 1, [(1, 0.0)])
    assert [g.token for g in table.guesses(1)] == [2], "what was refreshed is young again"
    assert table.guesses(2) == []


def test_no_more_than_the_likeliest_are_kept():
    drafter, view = opened("recycle", [1])
    miss(drafter, view, [], [], {0: {t: 5.0 - t / 100 for t in range(1, 40)}}, next_token=1)
    assert sorted(following(drafter.propose(view, 64))) == list(range(1, WIDTH + 1))


@pytest.mark.parametrize("shared", [False, True])
def test_requests_share_only_what_they_are_told_to(shared):
    drafter = make(f"recycle:shared={shared}")
    views = [view_of([1, 2], number=n) for n in (1, 2, 3)]
    for view in views[:2]:
        drafter.open(view)
    miss(drafter, views[0], [], [], {0: {3: 5.0}}, next_token=2)
    drafter.close(views[0])
    drafter.open(views[2])
    for view in views[1:]:
        assert following(drafter.propose(view, 8)) == ([3] if shared else [])
        drafter.close(view)
    assert not drafter._requests
    drafter.close(view_of([1]))  # one that was never opened


def test_limits_and_short_prompts():
    drafter, view = opened("recycle", [5])
    law = Chain(lambda t: (5, 6), 10)
    for limit in (0, 1, 2, 64):
        tree = drafter.propose(view, limit)
        assert len(tree) <= limit
        law.step(drafter, view, tree)


def test_a_row_without_a_law_is_passed_over():
    drafter, view = opened("recycle", [1, 2])
    show(drafter, view, DraftTree.empty(), Path((), 2), np.full((1, 100), np.nan, np.float32))
    assert len(drafter.propose(view, 8)) == 0


# Cost


def test_cost_of_a_step_does_not_grow_with_the_context():
    def cost(length):
        drafter, view = opened("recycle", rng.integers(0, 3000, length).tolist())
        return Chain(lambda t: ((t + 1) % 3000, (3 * t) % 3000), 3000).cost(drafter, view)

    assert cost(32_000) < 3 * cost(1000)
