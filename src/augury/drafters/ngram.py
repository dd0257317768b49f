"""What followed the last tokens when they last occurred in the request: prompt lookup (Saxena 2023).

The longest ending of the text, of ``min`` to ``max`` tokens, that occurred before, where it occurred last; what
followed there is proposed as a chain, and followed as long as it is right. How sure it is depends on how far the two
contexts agree, beyond ``max`` too.

State: the index of ``past.py`` over the request, and one position.
"""

from __future__ import annotations

from dataclasses import dataclass

from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.past import DEPTH, Past
from augury.drafters.survival import Line, Rates, Survival
from augury.drafters.votes import ESCAPE, WEIGHT, WORTH
from augury.errors import InputError
from augury.tree import DraftTree

_RAW = tuple(w / (w + e) if w else 0.0 for w, e in zip(WEIGHT, ESCAPE, strict=True))
"""A single voter's estimate by the tokens that agree."""

_FOUND, _ON = 0, 1
_KINDS = (Line(0.95, -0.4), Line(0.9, -0.25))
"""The token behind what was looked up, and what follows as long as it is right."""


@dataclass
class _Request:
    past: Past
    rates: Rates
    source: int  # position of what is guessed next, or -1
    agree: int  # tokens before it and before the end that agree
    kind: int


class Ngram(Drafter):
    """Prompt lookup.

    Args:
        min: tokens that must have occurred before.
        max: tokens that are looked for; of longer matches the latest is taken.

    Raises:
        InputError: not 1 <= min <= max <= 32.
    """

    def __init__(self, *, min: int = 1, max: int = 4) -> None:
        if not 1 <= min <= max <= DEPTH:
            raise InputError(f"drafter ngram: min is {min} and max {max}; they must be 1 <= min <= max <= {DEPTH}")
        self._shortest, self._longest = min, max
        self._survival = Survival(_KINDS)
        self._requests: dict[int, _Request] = {}

    def open(self, view: View) -> None:
        """Index the prompt."""
        request = _Request(Past(view.tokens), self._survival.open(view.temperature), -1, 0, _FOUND)
        self._look_up(request)
        self._requests[view.id] = request

    def propose(self, view: View, limit: int) -> DraftTree:
        """A chain of at most ``limit`` tokens."""
        request = self._caught_up(view)
        if request.source < 0:
            return DraftTree.empty()
        tokens: list[int] = []
        survival: list[float] = []
        text, period, reached = request.past.tokens, len(request.past) - request.source, 1.0
        for depth in range(limit):
            kind = _ON if depth else request.kind
            reached *= request.rates.hit(kind, _RAW[min(request.agree + depth, DEPTH)])
            if reached < WORTH:
                break
            # A chain that runs into the present goes on with itself: the text repeats.
            tokens.append(text[request.source + depth % period])
            survival.append(reached)
        return DraftTree.chain(tokens, survival)

    def observe(self, view: View, seen: Observation) -> None:
        """Score what would have been guessed, and index what came."""
        self._caught_up(view)

    def close(self, view: View) -> None:
        """Forget the request."""
        self._requests.pop(view.id, None)

    def _caught_up(self, view: View) -> _Request:
        request = self._requests[view.id]
        for token in view.tokens[len(request.past) :].tolist():
            right = request.source >= 0 and request.past.tokens[request.source] == token
            if request.source >= 0:
                request.rates.score(request.kind, _RAW[request.agree], right)
            request.past.append(token)
            if right:
                request.source, request.agree, request.kind = request.source + 1, min(request.agree + 1, DEPTH), _ON
            else:
                self._look_up(request)
        return request

    def _look_up(self, request: _Request) -> None:
        past = request.past
        found = past.matches(past.ending(self._longest), 1, self._shortest)
        request.source = found[0].position + 1 if found else -1
        request.agree = past.agree(found[0].position) if found else 0
        request.kind = _FOUND
