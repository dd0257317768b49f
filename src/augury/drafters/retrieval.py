"""What followed the present context in a corpus on disk: retrieval, as in REST (He et al. 2023, arXiv:2311.08252).

An index made by ``augury index build`` is asked where the longest ending of the text, of ``shortest`` to 16 tokens,
occurs in it. Up to ``voters`` of these places, spread over all of them, and the best of those next to them in the
order of contexts, vote on what comes next (``votes.py``), so that a branch weighs what it was counted. Voters that are
right vote on; the index is asked again when they were not all that there are, when none of the longest was right,
or when what was read behind them comes to its end.

What is in an index can be seen, in part, by who sees how many tokens every step brings (arXiv:2411.01076): an index
of texts that are secret from somebody is not for serving them.

State: the last 16 tokens and what was read behind the voters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from augury.datastore.index import DEFAULT, NOTHING, Index, locate
from augury.datastore.order import DEPTH
from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.past import DEPTH as DEEPEST
from augury.drafters.past import Match
from augury.drafters.survival import Line, Rates, Survival
from augury.drafters.votes import ESCAPE, RANKS, WEIGHT, Guess, further, grow, score, vote
from augury.errors import InputError
from augury.tree import DraftTree

MOST_VOTERS = 64
"""Each is read and counted at every node, in some microseconds."""

_FAR = 32
"""Tokens read behind each voter."""

_AGAIN = 12
"""Tokens that voters vote on before more is read, so that 20 are always known."""

_ASKED, _ON = 0, RANKS
_KINDS = (Line(1.2), Line(0.75, -0.8), Line(0.35, -1.9), Line(0.93, -0.2), Line(0.35, -1.05), Line(0.35, -1.6))
"""By rank: guesses of voters just asked for, then of voters that vote on."""


class Tokenizer(Protocol):
    """What tells tokenizers apart."""

    @property
    def hash(self) -> str:
        """Equal for tokenizers whose ids mean the same."""
        ...


@dataclass
class _Request:
    rates: Rates
    recent: list[int]  # the last tokens of the text
    length: int  # of the text
    read: list[int]  # what stands behind each place that was found, one behind the other, each closed by NOTHING
    whole: bool  # whether all places that match longest were read
    age: int  # tokens since it was read
    guesses: list[Guess]


class Retrieval(Drafter):
    """Votes of places in an index.

    Args:
        index: a name, or a path with a ``/`` in it, of an index.
        voters: places heard at most.
        shortest: tokens a place must share with the present context.
        tokenizer: the target's, which must be that of the index; None where it is known to be.

    Raises:
        InputError: no such index, one that is damaged, or one of another tokenizer; an argument out of its range.
    """

    def __init__(
        self, *, index: str = DEFAULT, voters: int = 16, shortest: int = 2, tokenizer: Tokenizer | None = None
    ) -> None:
        for name, value, most in (("voters", voters, MOST_VOTERS), ("shortest", shortest, DEPTH)):
            if not 1 <= value <= most:
                raise InputError(f"drafter retrieval: {name} is {value}; it must be from 1 to {most}")
        self._index = Index(locate(index))
        if tokenizer is not None:
            self._index.check_tokenizer(tokenizer.hash)
        self._voters, self._shortest = voters, shortest
        self._survival = Survival(_KINDS)
        self._requests: dict[int, _Request] = {}

    def open(self, view: View) -> None:
        """Look the prompt's end up."""
        rates = self._survival.open(view.temperature)
        request = _Request(rates, view.tokens[-DEPTH:].tolist(), view.length, [], True, 0, [])
        self._ask(request)
        self._requests[view.id] = request

    def propose(self, view: View, limit: int) -> DraftTree:
        """The ``limit`` likeliest nodes."""
        request = self._caught_up(view)

        def behind(guess: Guess, depth: int) -> list[Guess]:
            return _guesses(request.read, further(guess.voters), _ON)

        return grow(request.guesses, behind, request.rates, limit)

    def observe(self, view: View, seen: Observation) -> None:
        """Score what would have been guessed, and follow what came."""
        self._caught_up(view)

    def close(self, view: View) -> None:
        """Forget the request."""
        self._requests.pop(view.id, None)

    def _caught_up(self, view: View) -> _Request:
        request = self._requests[view.id]
        for token in view.tokens[request.length :].tolist():
            longest = _longest([v for g in request.guesses for v in g.voters])
            right = score(request.rates, request.guesses, token)
            request.recent = [*request.recent[1 - DEPTH :], token]
            request.length += 1
            request.age += 1
            # Then no place matches longer than one of these.
            complete = request.whole and _longest(right) == min(longest + 1, DEEPEST)
            if right and complete and request.age < _AGAIN:
                request.guesses = _guesses(request.read, right, _ON)
            else:
                self._ask(request)
        return request

    def _ask(self, request: _Request) -> None:
        found = self._index.followed(request.recent, self._voters, self._shortest, _FAR)
        request.whole, request.age = found.whole, 0
        # As in ``past.py`` a voter stands one before the token it votes for.
        read = np.full((len(found.lengths), _FAR + 1), NOTHING, np.int32)
        read[:, :-1] = found.ahead
        request.read = [NOTHING, *read.ravel().tolist()]
        voters = [Match(row * (_FAR + 1), length) for row, length in enumerate(found.lengths)]
        request.guesses = _guesses(request.read, voters, _ASKED)


def _longest(voters: Sequence[Match]) -> int:
    return max([v.length for v in voters], default=0)


def _guesses(read: Sequence[int], voters: Sequence[Match], kind: int) -> list[Guess]:
    """What voters guess, those behind whom nothing is known left out."""
    votes = [(read[v.position + 1], WEIGHT[v.length], v) for v in voters if read[v.position + 1] != NOTHING]
    return vote(votes, ESCAPE[_longest([v for _, _, v in votes])], kind) if votes else []
