"""What followed the present context in a corpus on disk: retrieval, as in REST (He et al. 2023, arXiv:2311.08252).

An index made by ``augury index build`` is asked where the longest ending of the text, of ``shortest`` to 16 tokens,
occurs in it. Up to ``voters`` of these places, spread over all of them, and the best of those next to them in the
order of contexts, vote on what comes next (``passages.py``), so that a branch weighs what it was counted.

What is in an index can be seen, in part, by who sees how many tokens every step brings (arXiv:2411.01076): an index
of texts that are secret from somebody is not for serving them.

An index that another process changes is used as it is from the next request on (``datastore/live.py``); a request keeps
the state it began with, and with the last such request what was removed is gone from memory.

State: what ``passages.py`` keeps of a request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from augury.datastore.index import DEFAULT, Index, locate
from augury.datastore.live import Live
from augury.datastore.order import DEPTH
from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.passages import FAR, MOST_VOTERS, Found, Reader, Tokenizer
from augury.drafters.survival import Line, Survival
from augury.errors import InputError
from augury.tree import DraftTree

_KINDS = (Line(1.2), Line(0.75, -0.8), Line(0.35, -1.9), Line(0.93, -0.2), Line(0.35, -1.05), Line(0.35, -1.6))
"""By rank: guesses of voters just asked for, then of voters that vote on."""

_LOG = logging.getLogger(__name__)


class Retrieval(Drafter):
    """Votes of places in an index.

    Args:
        index: a name, or a path with a ``/`` in it, of an index.
        voters: places heard at most.
        shortest: tokens a place must share with the present context.
        follow: whether an index that another process changes is looked at again; else its first state is kept.
        tokenizer: the target's, which must be that of the index; None where it is known to be.

    Raises:
        InputError: no such index, one that is damaged, or one of another tokenizer; an argument out of its range.
    """

    def __init__(
        self,
        *,
        index: str = DEFAULT,
        voters: int = 16,
        shortest: int = 2,
        follow: bool = True,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        for name, value, most in (("voters", voters, MOST_VOTERS), ("shortest", shortest, DEPTH)):
            if not 1 <= value <= most:
                raise InputError(f"drafter retrieval: {name} is {value}; it must be from 1 to {most}")
        self._place = locate(index)
        self._live = Live(self._place, tokenizer.hash if tokenizer else None, self._note)
        self._kept = None if follow else self._live.now()
        self._voters, self._shortest = voters, shortest
        self._survival = Survival(_KINDS)
        self._requests: dict[int, Reader] = {}

    def open(self, view: View) -> None:
        """Look the prompt's end up."""
        ask = partial(self._found, self._live.now() if self._kept is None else self._kept)
        self._requests[view.id] = Reader(ask, self._survival.open(view.temperature), view.tokens)

    def propose(self, view: View, limit: int) -> DraftTree:
        """The ``limit`` likeliest nodes."""
        reader = self._requests[view.id]
        reader.follow(view.tokens)
        return reader.propose(limit, view.room, view.floor, view.chain)

    def observe(self, view: View, seen: Observation) -> None:
        """Score what would have been guessed, and follow what came."""
        self._requests[view.id].follow(view.tokens)

    def close(self, view: View) -> None:
        """Forget the request."""
        self._requests.pop(view.id, None)

    def _found(self, index: Index, recent: Sequence[int]) -> Found:
        found = index.followed(recent, self._voters, self._shortest, FAR)
        return Found(found.lengths, found.ahead.tolist(), found.whole)

    def _note(self, text: str) -> None:
        _LOG.warning("augury: retrieval %s: %s", self._place, text)
