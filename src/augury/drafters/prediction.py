"""The text the caller expects as the answer, re-aligned wherever the answer differs from it.

At the start the prediction's first token is expected. As long as the answer follows, so does the guess. After a
difference positions of the prediction vote (``votes.py``): those whose context matches the end of the answer, the
more so the closer they lie behind the place reached; and two that need no match, for when the answer wrote one token
for another (go on behind it) or put something in (go on where it was).

State: the index of ``past.py`` over the prediction, the last tokens of the answer, one place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.past import DEPTH, Match, Past, context
from augury.drafters.survival import Line, Rates, Survival
from augury.drafters.votes import ESCAPE, RANKS, WEIGHT, Guess, further, grow, score, vote
from augury.tree import DraftTree

_FOUND, _ON = 0, RANKS
_KINDS = (Line(1.1, -0.3), Line(0.9, -0.8), Line(0.6, -1.5), Line(0.5, 0.4), Line(1.0, -0.5), Line(0.6, -1.0))
"""By rank: guesses while the answer is being found in the prediction, then while it follows it."""

_TRUST = 8
"""The caller's word that the answer begins like the prediction is worth a match of so many tokens."""

_FOLLOWS = 3
"""Tokens in a row with which the answer is taken to follow the prediction again."""

_VOTERS = 8
_NEAR = 20.0  # so much more a match right at the place reached weighs than one far off
_REACH = 4.0  # tokens ahead at which that has halved
_REPLACED = 2.0  # weight of going on behind a token that the answer wrote differently
_INSERTED = 0.3  # weight of going on where the answer left


@dataclass
class _Request:
    past: Past
    rates: Rates
    guesses: list[Guess]
    seen: int
    place: int = 0  # of the prediction, that the answer has surely reached
    missed: int = 0  # tokens of the answer since
    ending: deque[int] = field(default_factory=lambda: deque(maxlen=DEPTH))


class Prediction(Drafter):
    """Follows ``view.prediction``; without one it has no guess."""

    reads_prediction = True

    def __init__(self) -> None:
        self._survival = Survival(_KINDS)
        self._requests: dict[int, _Request] = {}

    def open(self, view: View) -> None:
        """Index the prediction."""
        if view.prediction is None or not len(view.prediction):
            return
        past = Past(view.prediction)
        first = Guess(past.tokens[0], _ON, _raw(_TRUST), [Match(-1, _TRUST)])
        self._requests[view.id] = _Request(past, self._survival.open(view.temperature), [first], view.length)

    def propose(self, view: View, limit: int) -> DraftTree:
        """The ``limit`` likeliest nodes: a chain while the answer follows, else a few."""
        if view.id not in self._requests:
            return DraftTree.empty()
        request = self._caught_up(view)

        def behind(guess: Guess, depth: int) -> list[Guess]:
            return _guesses(request, further(guess.voters), _ON, depth)

        return grow(request.guesses, behind, request.rates, limit, view.room, view.floor, view.chain)

    def observe(self, view: View, seen: Observation) -> None:
        """Score what would have been guessed, and find the place again."""
        if view.id in self._requests:
            self._caught_up(view)

    def close(self, view: View) -> None:
        """Forget the request."""
        self._requests.pop(view.id, None)

    def _caught_up(self, view: View) -> _Request:
        request = self._requests[view.id]
        for token in view.tokens[request.seen :].tolist():
            right = score(request.rates, request.guesses, token)
            request.ending.append(token)
            if right and right[0].length >= _FOLLOWS:
                request.place, request.missed = right[0].position + 1, 0
                request.guesses = _guesses(request, right, _ON)
            else:
                request.missed += 1
                request.guesses = _guesses(request, _asked(request), _FOUND)
        request.seen = view.length
        return request


def _asked(request: _Request) -> list[Match]:
    """Positions that may be where the answer is."""
    found = request.past.matches(context(list(request.ending)), _VOTERS, start=request.place - 1)
    known = {match.position for match in found}
    supposed = [request.place - 1]
    if request.missed == 1:
        supposed.append(request.place)
    return found + [Match(position, 0) for position in supposed if position not in known]


def _guesses(request: _Request, voters: Sequence[Match], kind: int, depth: int = 0) -> list[Guess]:
    """What the voters guess ``depth`` tokens on; those at the prediction's end have no vote."""
    text, place = request.past.tokens, request.place + depth
    votes = [(text[v.position + 1], _weight(v, place), v) for v in voters if v.position + 1 < len(text)]
    return vote(votes, ESCAPE[max(voters[0].length, 1)], kind) if votes else []


def _weight(voter: Match, place: int) -> float:
    ahead = voter.position + 1 - place
    if voter.length == 0:
        return _REPLACED if ahead else _INSERTED
    return WEIGHT[voter.length] * (1.0 + _NEAR / (1.0 + ahead / _REACH) if ahead >= 0 else 1.0)


def _raw(length: int) -> float:
    return WEIGHT[length] / (WEIGHT[length] + ESCAPE[length])
