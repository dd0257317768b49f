"""Places of a store vote on what comes next: what drafters that look things up outside the request have in common.

A store is asked which of its places share most of the present context, and what stands behind them. They vote
(``votes.py``). Voters that are right vote on; the store is asked again when they were not all that there are, when none
of the longest was right, or when what was read behind them comes to its end.

State: the last ``DEPTH`` tokens, and what was read behind the voters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from augury.datastore.index import NOTHING
from augury.drafters.past import DEPTH, Match
from augury.drafters.survival import Rates
from augury.drafters.votes import ESCAPE, RANKS, WEIGHT, Guess, further, grow, score, vote
from augury.tree import MAX_NODES, DraftTree, IntArray

FAR = 32
"""Tokens read behind each place."""

ASKED, ON = 0, RANKS
"""Kinds of guesses, each of ``RANKS``: of places just asked for, and of those that vote on."""

MOST_VOTERS = 64
"""Each is read and counted at every node, in some microseconds."""

_AGAIN = 12
"""Tokens that voters vote on before more is read, so that 20 are always known."""


class Tokenizer(Protocol):
    """What tells tokenizers apart."""

    @property
    def hash(self) -> str:
        """Equal for tokenizers whose ids mean the same."""
        ...


class Found(NamedTuple):
    """What a store has of a context.

    Attributes:
        lengths: tokens that each place shares with the context, the longest first.
        ahead: the ``FAR`` tokens behind each; fewer, or ``NOTHING`` and whatever, where its text ends.
        whole: whether these are all places that share the most.
    """

    lengths: Sequence[int]
    ahead: Sequence[Sequence[int]]
    whole: bool


class Reader:
    """One request's reading of a store.

    Args:
        ask: the store: given the last tokens of a text, the newest last, what it has of them.
        rates: hit probabilities by kind.
        tokens: i32[n], the text so far.
    """

    def __init__(self, ask: Callable[[Sequence[int]], Found], rates: Rates, tokens: IntArray) -> None:
        self._ask, self._rates = ask, rates
        self._recent: list[int] = tokens[-DEPTH:].tolist()
        self._length = len(tokens)
        self._guesses: list[Guess] = []
        self._look_up()

    def propose(self, limit: int, deepest: int = MAX_NODES, worth: float = 0.0, chain: bool = False) -> DraftTree:
        """The ``limit`` likeliest nodes; see ``grow``."""

        def behind(guess: Guess, depth: int) -> list[Guess]:
            return self._voted(further(guess.voters), ON)

        return grow(self._guesses, behind, self._rates, limit, deepest, worth, chain)

    def follow(self, tokens: IntArray) -> None:
        """Score what would have been guessed of a text that grew to ``tokens``, and read on behind it."""
        for token in tokens[self._length :].tolist():
            longest = _longest([v for g in self._guesses for v in g.voters])
            right = score(self._rates, self._guesses, token)
            self._recent = [*self._recent[1 - DEPTH :], token]
            self._length += 1
            self._age += 1
            # Then no place matches longer than one of these.
            complete = self._whole and _longest(right) == min(longest + 1, DEPTH)
            if right and complete and self._age < _AGAIN:
                self._guesses = self._voted(right, ON)
            else:
                self._look_up()

    def _look_up(self) -> None:
        found = self._ask(self._recent)
        self._whole, self._age = found.whole, 0
        # What stands behind each place, one behind the other; as in ``past.py`` a voter stands one before the token it
        # votes for.
        self._read = [NOTHING]
        voters = []
        for length, ahead in zip(found.lengths, found.ahead, strict=True):
            voters.append(Match(len(self._read) - 1, length))
            self._read += ahead
            self._read.append(NOTHING)
        self._guesses = self._voted(voters, ASKED)

    def _voted(self, voters: Sequence[Match], kind: int) -> list[Guess]:
        """What voters guess, those behind whom nothing is known left out."""
        read = self._read
        votes = [(read[v.position + 1], WEIGHT[v.length], v) for v in voters if read[v.position + 1] != NOTHING]
        return vote(votes, ESCAPE[_longest([v for _, _, v in votes])], kind) if votes else []


def _longest(voters: Sequence[Match]) -> int:
    return max([v.length for v in voters], default=0)
