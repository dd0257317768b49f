"""Positions of a known text vote on what comes next, and a tree grows of what is likeliest to survive.

A *voter* is a position whose context matches the present one; its vote is the token behind it. With w the weights of
the voters and an escape weight for "nothing seen follows" (prediction by partial matching, Cleary and
Witten 1984)::

    raw P(x) = sum of w over voters for x / (sum of w + escape)

Behind a guess the voters that agreed with it vote on, each one position further and its match one token longer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from augury.drafters.past import DEPTH, Match
from augury.drafters.survival import Rates
from augury.tree import MAX_NODES, DraftTree

_SHARED = [min(m, DEPTH) for m in range(DEPTH + MAX_NODES + 1)]  # more are not told apart

WEIGHT = tuple(math.pow(m, 2.25) for m in _SHARED)
"""Weight of a voter by the tokens it shares."""

ESCAPE = tuple(2.1 * math.pow(m, 0.85) for m in _SHARED)
"""Escape weight by the longest match. The constants of both were fitted to hits of the likeliest guess over answers of
a small chat model; free weights for every length did no better on answers held out."""

RANKS = 3
"""The likeliest guess of a place, the next, and all others are kinds of their own."""

WORTH = 0.01
"""A node of less survival is not offered: no machine verifies a row for a hundredth of a token."""

_SCORED = 4  # guesses of one place that are scored: others are too unlikely to teach anything


class Guess(NamedTuple):
    """A token that may come next, the kind and raw estimate for ``Rates``, and who voted for it."""

    token: int
    kind: int
    raw: float
    voters: list[Match]


def vote(votes: Sequence[tuple[int, float, Match]], escape: float, kind: int) -> list[Guess]:
    """Guesses, likeliest first.

    Args:
        votes: (token, weight, voter).
        escape: weight of nobody being right, above 0.
        kind: of the likeliest guess; the further ranks have the kinds behind it.
    """
    if len(votes) == 1:  # as behind most guesses
        token, weight, voter = votes[0]
        return [Guess(token, kind, weight / (weight + escape), [voter])]
    weights: dict[int, float] = {}
    voters: dict[int, list[Match]] = {}
    for token, weight, voter in votes:
        if token in weights:
            weights[token] += weight
            voters[token].append(voter)
        else:
            weights[token] = weight
            voters[token] = [voter]
    total = sum(weights.values()) + escape
    ranked = sorted(weights, key=weights.__getitem__, reverse=True)
    return [
        Guess(token, kind + (rank if rank < RANKS else RANKS - 1), weights[token] / total, voters[token])
        for rank, token in enumerate(ranked)
    ]


def further(voters: Sequence[Match]) -> list[Match]:
    """Voters behind a token that all of them voted for."""
    return [Match(position + 1, length + 1 if length < DEPTH else DEPTH) for position, length in voters]


def score(rates: Rates, guesses: Sequence[Guess], token: int) -> list[Match]:
    """Learn from the token that came, and give the voters that are right so far."""
    right: list[Match] = []
    for place, (guessed, kind, raw, voters) in enumerate(guesses):
        if place < _SCORED:
            rates.score(kind, raw, guessed == token)
        if guessed == token:
            right = further(voters)
    return right


def grow(
    guesses: Sequence[Guess],
    behind: Callable[[Guess, int], Sequence[Guess]],
    rates: Rates,
    limit: int,
    deepest: int = MAX_NODES,
    worth: float = WORTH,
    chain: bool = False,
) -> DraftTree:
    """The tree of the ``limit`` nodes of greatest survival.

    Args:
        guesses: for the root.
        behind: guesses for what follows a guess, whose depth is given (1 for the root's children).
        rates: hit probabilities.
        limit: nodes at most.
        deepest: tokens of a path at most.
        worth: survival below which a node is not offered; ``WORTH`` at least.
        chain: whether only the likeliest guess of each place is to be offered.
    """
    worth = max(worth, WORTH)
    tokens: list[int] = []
    parents: list[int] = []
    survival: list[float] = []
    queue: list[tuple[float, int, int, int, Guess]] = []
    hit, pushed = rates.hit, 0
    offered, node, depth, above = guesses, -1, 0, 1.0
    while True:
        for guess in offered[:1] if chain else offered:
            reached = above * hit(guess.kind, guess.raw)
            if reached >= worth:
                heapq.heappush(queue, (-reached, pushed, node, depth + 1, guess))
                pushed += 1
        if not queue or len(tokens) >= limit:
            break
        reached, _, parent, depth, guess = heapq.heappop(queue)
        above, node = -reached, len(tokens)
        tokens.append(guess.token)
        parents.append(parent)
        survival.append(above)
        offered = behind(guess, depth) if len(tokens) < limit and depth < deepest else ()
    return DraftTree.sure(tokens, parents, survival) if tokens else DraftTree.empty()
