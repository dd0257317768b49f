"""What followed the last tokens when they last occurred in the request: prompt lookup (Saxena 2023).

The last ``max`` tokens are looked up, then fewer, down to ``min``; what followed their latest earlier occurrence
is proposed as a chain. While it keeps being right the same source is followed, so that a guess is as sure as the run of
tokens that matched so far, its *run*, and the chance of a hit is learnt by the length of that run.

State: one table entry for each token and each size from ``min`` to ``max``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.survival import Line, Rates, Survival
from augury.errors import InputError
from augury.tree import DraftTree

_RUNS = (1, 2, 3, 5, 9)
"""Shortest run of each kind of guess."""

_KINDS = tuple(Line(1.0, offset) for offset in (-0.8, -0.5, -0.2, 0.0, 0.2))

_LONGEST = 64
"""A longer run is not a surer one."""


@dataclass
class _Request:
    rates: Rates
    text: list[int] = field(default_factory=list)
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> where its latest occurrence ended
    cursor: int = -1  # place of the token that is guessed next, or -1
    run: int = 0


class Ngram(Drafter):
    """A chain copied from the latest occurrence of the last tokens.

    Args:
        min: tokens that must match at least.
        max: tokens that are looked up at most.

    Raises:
        InputError: ``min`` is below 1 or above ``max``.
    """

    def __init__(self, min: int = 1, max: int = 3) -> None:
        if min < 1:
            raise InputError(f"drafter ngram: min is {min}; it must be 1 or more")
        if max < min:
            raise InputError(f"drafter ngram: max is {max}, below min {min}; it must be {min} or more")
        self._sizes = range(max, min - 1, -1)
        self._survival = Survival(_KINDS)
        self._requests: dict[int, _Request] = {}

    def open(self, view: View) -> None:
        """Index the prompt."""
        request = self._requests[view.id] = _Request(self._survival.open(view.temperature))
        for token in view.tokens.tolist():
            self._append(request, token, score=False)

    def propose(self, view: View, limit: int) -> DraftTree:
        """A chain of at most ``limit`` tokens; a source that runs into the present goes on periodically."""
        request = self._caught_up(view)
        text, cursor = request.text, request.cursor
        if cursor < 0 or limit < 1:
            return DraftTree.empty()
        end = len(text)
        tokens: list[int] = []
        survival: list[float] = []
        reach = 1.0
        for i in range(limit):
            at = cursor + i
            tokens.append(text[at] if at < end else tokens[at - end])
            run = request.run + i
            reach *= request.rates.hit(_kind(run), _raw(run))
            survival.append(reach)
        return DraftTree.chain(tokens, survival)

    def observe(self, view: View, seen: Observation) -> None:
        """Score what would have been guessed, and index what came."""
        self._caught_up(view)

    def close(self, view: View) -> None:
        """Forget the request."""
        self._requests.pop(view.id, None)

    def _caught_up(self, view: View) -> _Request:
        request = self._requests[view.id]
        for token in view.tokens[len(request.text) :].tolist():
            self._append(request, token, score=True)
        return request

    def _append(self, request: _Request, token: int, score: bool) -> None:
        text = request.text
        followed = request.cursor >= 0 and text[request.cursor] == token
        if score and request.cursor >= 0:
            request.rates.score(_kind(request.run), _raw(request.run), followed)
        text.append(token)
        if followed:
            request.cursor += 1
            request.run += 1
        else:
            request.cursor, request.run = -1, 0
        for size in self._sizes:
            if size > len(text):
                continue
            key = tuple(text[-size:])
            if request.cursor < 0 and key in request.ends:
                request.cursor, request.run = request.ends[key] + 1, size
            request.ends[key] = len(text) - 1


def _kind(run: int) -> int:
    """Index in ``_RUNS`` of the kind that a run belongs to."""
    return sum(run >= least for least in _RUNS[1:])


def _raw(run: int) -> float:
    """Chance of a hit behind a run before anything was learnt: Laplace's rule of succession with a sceptic's start."""
    run = min(run, _LONGEST)
    return (run + 0.5) / (run + 1.5)
