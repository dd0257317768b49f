"""What followed similar contexts earlier in the request, weighed together and proposed as a tree.

The earlier positions whose context shares most tokens with the present one vote for what followed them: a position
that shares m tokens has weight m^2.25. With M the longest match, and W(x) the weight of the voters for token x::

    raw P(x) = W(x) / (sum of W + 2.1 M^0.85)

The last term is the escape: that nothing seen follows, as in prediction by partial matching (Cleary and
Witten 1984). The three constants were fitted by log-likelihood of hits; against free weights for every length they
lose nothing. The tree takes, one at a time, the node of greatest survival. Behind a node the voters that agreed with
it vote on, each one token longer; where their longest match is short the text is asked again, as others know more.

State: the index of ``past.py``, and for each request the voters of its last position.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.past import DEPTH, Match, Past
from augury.drafters.survival import Line, Rates, Survival
from augury.errors import InputError
from augury.tree import DraftTree

_WEIGHT = tuple(m**2.25 for m in range(DEPTH + 1))
_ESCAPE = tuple(2.1 * m**0.85 for m in range(DEPTH + 1))
_KINDS = (Line(1.05, 0.0), Line(0.73, -0.8), Line(0.57, -1.4), Line(0.9, 0.0), Line(0.7, -0.9), Line(0.57, -1.4))
"""First, second and further guesses of one place, by voters that were asked there; then by voters that voted on."""

_LEAST = 0.02
"""A node less likely than this is not worth the time of proposing it."""

_SCORED = 4
"""Guesses of a place that are scored; further ones are too rare to teach anything."""


class _Guess(NamedTuple):
    token: int
    kind: int
    raw: float
    voters: list[Match]


@dataclass
class _Request:
    past: Past
    rates: Rates
    voters: list[Match]
    guesses: list[_Guess]


class Suffix(Drafter):
    """Votes of similar contexts, as a tree.

    Args:
        voters: earlier positions that are heard at most.
        shortest: tokens that a voter's context must share.

    Raises:
        InputError: an argument below 1.
    """

    def __init__(self, voters: int = 48, shortest: int = 1, requery: int = 4) -> None:
        for name, value in (("voters", voters), ("shortest", shortest)):
            if value < 1:
                raise InputError(f"drafter suffix: {name} is {value}; it must be 1 or more")
        self.voters, self.shortest, self.requery = voters, shortest, requery
        self._survival = Survival(_KINDS)
        self._requests: dict[int, _Request] = {}

    def open(self, view: View) -> None:
        """Index the prompt."""
        past = Past(view.tokens)
        voters = past.matches(past.ending(), self.voters, self.shortest)
        rates = self._survival.open(view.temperature)
        self._requests[view.id] = _Request(past, rates, voters, _guesses(past, voters, (), True))

    def propose(self, view: View, limit: int) -> DraftTree:
        """The ``limit`` likeliest nodes."""
        request = self._caught_up(view)
        past, rates = request.past, request.rates
        tokens: list[int] = []
        parents: list[int] = []
        survival: list[float] = []
        paths: list[tuple[int, ...]] = []
        queue: list[tuple[float, int, int, _Guess]] = []

        def offer(node: int, guesses: Sequence[_Guess]) -> None:
            above = survival[node] if node >= 0 else 1.0
            for guess in guesses:
                heapq.heappush(queue, (-above * rates.hit(guess.kind, guess.raw), len(queue), node, guess))

        offer(-1, request.guesses)
        while queue and len(tokens) < limit:
            reach, _, parent, guess = heapq.heappop(queue)
            if -reach < _LEAST:
                break
            tokens.append(guess.token)
            parents.append(parent)
            survival.append(-reach)
            paths.append((*(paths[parent] if parent >= 0 else ()), guess.token))
            if len(tokens) < limit:
                voters, asked = self._heard(past, guess.voters, paths[-1])
                offer(len(tokens) - 1, _guesses(past, voters, paths[-1], asked))
        return DraftTree.of(tokens, parents, survival)

    def observe(self, view: View, seen: Observation) -> None:
        """Score what would have been guessed, and index what came."""
        self._caught_up(view)

    def close(self, view: View) -> None:
        """Forget the request."""
        self._requests.pop(view.id, None)

    def _caught_up(self, view: View) -> _Request:
        request = self._requests[view.id]
        past = request.past
        for token in view.tokens[len(past) :].tolist():
            agreed: list[Match] = []
            for guess in request.guesses[:_SCORED]:
                request.rates.score(guess.kind, guess.raw, guess.token == token)
            for guess in request.guesses:
                if guess.token == token:
                    agreed = guess.voters
            past.append(token)
            request.voters, asked = self._heard(past, agreed, ())
            request.guesses = _guesses(past, request.voters, (), asked)
        return request

    def _heard(self, past: Past, agreed: list[Match], path: Sequence[int]) -> tuple[list[Match], bool]:
        """Voters behind a token that ``agreed`` guessed."""
        on = [Match(position + 1, min(length + 1, DEPTH)) for position, length in agreed]
        if on and on[0].length >= self.requery:
            return on, False
        return past.matches(past.ending(path), self.voters, self.shortest), True


def _guesses(past: Past, voters: list[Match], path: Sequence[int], asked: bool) -> list[_Guess]:
    """What voters guess, likeliest first; ``path`` is what follows the text."""
    if not voters:
        return []
    text = past.tokens
    end = len(text)
    groups: dict[int, list[Match]] = {}
    for voter in voters:
        after = voter.position + 1
        # A voter that has run into the present goes on with what is guessed for it: the text repeats.
        groups.setdefault(text[after] if after < end else path[after - end], []).append(voter)
    weights = {token: sum([_WEIGHT[v.length] for v in group]) for token, group in groups.items()}
    total = sum(weights.values()) + _ESCAPE[voters[0].length]
    ranked = sorted(groups, key=weights.__getitem__, reverse=True)
    return [
        _Guess(token, min(rank, 2) + 3 * (not asked), weights[token] / total, groups[token])
        for rank, token in enumerate(ranked)
    ]
