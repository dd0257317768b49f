"""What followed similar contexts earlier in the request, weighed together and proposed as a tree.

The earlier positions whose contexts share most tokens with the present one vote (``votes.py``). As long as some of
them are right they vote on; when all were wrong, the text is asked again for who matches now.

State: the index of ``past.py`` over the request, and the voters of its end, both as of the last proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from augury.drafters.drafter import Drafter, View
from augury.drafters.past import Match, Past
from augury.drafters.survival import Line, Rates, Survival
from augury.drafters.votes import ESCAPE, RANKS, WEIGHT, Guess, grow, score, vote
from augury.errors import InputError
from augury.tree import DraftTree

_ASKED, _ON = 0, RANKS
_KINDS = (Line(1.2), Line(0.75, -0.8), Line(0.35, -1.9), Line(0.93, -0.2), Line(0.35, -1.05), Line(0.35, -1.6))
"""By rank: guesses of voters just asked for, then of voters that vote on; those no longer hear who disagrees."""

_RECENT = 16
"""Tokens that are looked at one by one when more have come: what is further back is only indexed."""


@dataclass
class _Request:
    past: Past
    rates: Rates
    guesses: list[Guess]


class Suffix(Drafter):
    """Votes of similar contexts, as a tree.

    Args:
        voters: earlier positions heard at most.
        shortest: tokens a voter's context must share with the present one.

    Raises:
        InputError: an argument below 1.
    """

    def __init__(self, *, voters: int = 8, shortest: int = 1) -> None:
        for name, value in (("voters", voters), ("shortest", shortest)):
            if value < 1:
                raise InputError(f"drafter suffix: {name} is {value}; it must be 1 or more")
        self._voters, self._shortest = voters, shortest
        self._survival = Survival(_KINDS)
        self._requests: dict[int, _Request] = {}

    def open(self, view: View) -> None:
        """Index the prompt."""
        past = Past(view.tokens)
        self._requests[view.id] = _Request(past, self._survival.open(view.temperature), self._asked(past))

    def propose(self, view: View, limit: int) -> DraftTree:
        """The ``limit`` likeliest nodes."""
        request = self._caught_up(view)

        def behind(guess: Guess, depth: int) -> list[Guess]:
            return _guesses(request.past, guess.voters, _ON, depth)

        return grow(request.guesses, behind, request.rates, limit, view.room, view.floor, view.chain)

    def close(self, view: View) -> None:
        """Forget the request, but for how its last guesses did."""
        if view.id in self._requests:
            self._caught_up(view)
            del self._requests[view.id]

    def _caught_up(self, view: View) -> _Request:
        """Score what would have been guessed since the last call, and index what came.

        Not in ``observe``: while nobody is asked to draft, nothing need be kept up.
        """
        request = self._requests[view.id]
        past = request.past
        if len(came := view.tokens[len(past) :]) > _RECENT:
            past.extend(came[:-_RECENT])
            request.guesses = self._asked(past)
        for token in came[-_RECENT:].tolist():
            right = score(request.rates, request.guesses, token)
            past.append(token)
            request.guesses = _guesses(past, right, _ON) if right else self._asked(past)
        return request

    def _asked(self, past: Past) -> list[Guess]:
        return _guesses(past, past.matches(past.ending(), self._voters, self._shortest), _ASKED)


def _guesses(past: Past, voters: Sequence[Match], kind: int, depth: int = 0) -> list[Guess]:
    """What voters of the text's end guess ``depth`` tokens behind it."""
    if not voters:
        return []
    text, last = past.tokens, len(past) - 1
    # A voter that runs into the present goes on with what it guessed itself: the text repeats.
    votes = [
        (text[voter.position + 1 + depth % (last - voter.position)], WEIGHT[voter.length + depth], voter)
        for voter in voters
    ]
    return vote(votes, ESCAPE[voters[0].length + depth], kind)
