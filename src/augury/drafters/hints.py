"""What a drafting model may say next, before it is asked: what followed the same few tokens earlier in the request.

A forward of one row waits for memory, and a few rows more cost it little. So the token that a drafting model goes on
from is read together with what may come behind it; where the model says the same, its next guess is there already.
What it guesses is what it would have guessed, sooner: speculation for the speculator (Spector and Re 2023,
arXiv:2308.04623).

State: the index of ``past.py`` over each request, and how often hints are right, by how many tokens of context agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from augury.drafters.drafter import View
from augury.drafters.past import Past, context

_LONGEST = 4
"""Tokens of context that are told apart."""

_USUAL = (0.0, 0.2, 0.35, 0.5, 0.65)  # of a hint to be right, by the tokens that agree, before anything is known
_FRESH = 0.05  # weight of a new observation in running means

_WORTH = 0.08
"""A hint that is less likely to be right is not given: a row more costs a twenty-fifth of a forward of one (four rows
0.38 and one 0.34 of the target's, docs/results/forward-guesses.txt), and its law is reckoned where it is right."""


class Hint(NamedTuple):
    """A token that may come, and how many tokens of context speak for it."""

    token: int
    agree: int


class Hints:
    """Those of one drafter."""

    def __init__(self) -> None:
        self._pasts: dict[int, Past] = {}
        self._right = {False: [*_USUAL], True: [*_USUAL]}  # by whether the request is sampled

    def after(self, view: View, path: Sequence[int], most: int) -> list[Hint]:
        """At most ``most`` tokens, one behind the other, that may come behind ``view.tokens`` and ``path``."""
        past = self._caught_up(view)
        recent = [*view.tokens[-_LONGEST:].tolist(), *path][-_LONGEST:]
        matches = past.matches(context(recent), 1) if most > 0 else []
        if not matches:
            return []
        position, agree = matches[0]
        right = self._right[view.temperature > 0.0]
        hints: list[Hint] = []
        likely = 1.0
        for token in past.tokens[position + 1 : position + 1 + most]:
            hint = Hint(token, min(agree + len(hints), _LONGEST))
            likely *= right[hint.agree]
            if likely < _WORTH:
                break
            hints.append(hint)
        return hints

    def learn(self, view: View, hint: Hint, right: bool) -> None:
        """Whether a hint was what the drafting model said in its place."""
        rates = self._right[view.temperature > 0.0]
        rates[hint.agree] += _FRESH * (right - rates[hint.agree])

    def forget(self, view: View) -> None:
        """A request ends."""
        self._pasts.pop(view.id, None)

    def _caught_up(self, view: View) -> Past:
        past = self._pasts.get(view.id)
        if past is None:
            past = self._pasts[view.id] = Past(view.tokens)
        past.extend(view.tokens[len(past) :])
        return past
