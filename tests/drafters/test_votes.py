"""Votes and the tree that grows of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.budget import best_chain
from augury.drafters.past import DEPTH, Match
from augury.drafters.survival import Line, Survival
from augury.drafters.votes import RANKS, WEIGHT, WORTH, Guess, further, grow, score, vote


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, DEPTH)), min_size=1, max_size=20), st.floats(0.1, 50))
def test_shares_of_the_votes(cast, escape):
    votes = [(token, WEIGHT[length], Match(i, length)) for i, (token, length) in enumerate(cast)]
    guesses = vote(votes, escape, 2)
    total = escape + sum(WEIGHT[length] for _, length in cast)
    for rank, guess in enumerate(guesses):
        mine = [v for v in votes if v[0] == guess.token]
        assert guess.voters == [v[2] for v in mine]
        assert guess.raw == pytest.approx(sum(v[1] for v in mine) / total)
        assert guess.kind == 2 + min(rank, RANKS - 1)
    assert [g.raw for g in guesses] == sorted((g.raw for g in guesses), reverse=True)
    assert Counter(g.token for g in guesses) == Counter({token: 1 for token, _ in cast})
    assert sum(g.raw for g in guesses) < 1.0


def test_voters_go_on_one_position_and_one_token_of_match():
    assert further([Match(4, 2), Match(9, DEPTH)]) == [Match(5, 3), Match(10, DEPTH)]


def test_scores_teach_and_tell_who_was_right():
    rates = Survival([Line()] * RANKS).open(0.0)
    guesses = vote([(7, 3.0, Match(1, 2)), (8, 1.0, Match(5, 1))], 1.0, 0)
    before = rates.hit(0, 0.6), rates.hit(1, 0.2)
    assert score(rates, guesses, 8) == [Match(6, 2)]
    assert rates.hit(0, 0.6) < before[0]
    assert rates.hit(1, 0.2) > before[1]
    assert score(rates, guesses, 99) == []


def law(token):
    """Guesses behind a token: three, of which the first is surer behind an even one."""
    first = 0.6 if token % 2 == 0 else 0.4
    return [Guess((3 * token + i) % 11, 0, p, []) for i, p in enumerate((first, 0.3, 0.01))]


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 24, 64])
def test_the_tree_holds_the_nodes_of_greatest_survival(limit):
    rates = Survival([Line()]).open(0.0)
    tree = grow(law(0), lambda guess, depth: law(guess.token), rates, limit)
    reach = {}
    level = {(): 1.0}
    while level := {
        (*path, g.token): above * rates.hit(0, g.raw)
        for path, above in level.items()
        for g in law(path[-1] if path else 0)
        if above * rates.hit(0, g.raw) >= WORTH
    }:
        reach.update(level)
    best = sorted(reach.values(), reverse=True)
    assert 24 < len(best) < 64
    assert np.allclose(sorted(tree.survival.tolist(), reverse=True), best[:limit])
    paths = [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]
    assert [reach[path] for path in paths] == pytest.approx(tree.survival.tolist())
    assert len(set(paths)) == len(tree)


def test_depths_are_told():
    seen = []

    def behind(guess, depth):
        seen.append((guess.token, depth))
        return [Guess(guess.token + 1, 0, 0.9, [])]

    grow([Guess(1, 0, 0.9, [])], behind, Survival([Line()]).open(0.0), 5)
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("limit", [0, 1, 3, 24])
def test_a_chain_goes_on_from_the_likeliest_guess_of_each_place(limit):
    rates = Survival([Line()]).open(0.0)
    chain = grow(law(0), lambda guess, depth: law(guess.token), rates, limit, chain=True)
    assert chain.is_chain
    tokens, above = [0], 1.0
    while (reached := above * rates.hit(0, law(tokens[-1])[0].raw)) >= WORTH and len(tokens) <= limit:
        tokens.append(law(tokens[-1])[0].token)
        above = reached
    assert chain.tokens.tolist() == tokens[1:]
    tree = grow(law(0), lambda guess, depth: law(guess.token), rates, limit)
    assert limit < 3 or len(best_chain(tree)) < len(chain)  # siblings take room that a chain has for what follows
