"""What a drafting model may say next, before it is asked: what followed the same few tokens earlier in the request, or
what its target usually says behind them (``phrases.py``), whichever is likelier.

A forward of one row waits for memory, and a few rows more cost it little. So the token that a drafting model goes on
from is read together with what may come behind it; where the model says the same, its next guess is there already.
What it guesses is what it would have guessed, sooner: speculation for the speculator (Spector and Re 2023,
arXiv:2308.04623).

State: the index of ``past.py`` over each request; how often hints from a request's own text are right, by how many
tokens of context agree, and how far phrases keep what they state. These rates are those of all requests; phrases
themselves are fixed, and no text of one request comes to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from augury.drafters.drafter import View
from augury.drafters.past import Past, context
from augury.drafters.phrases import LONGEST, Phrases

_USUAL = (0.0, 0.2, 0.35, 0.5, 0.65)  # of a hint to be right, by the tokens that agree, before anything is known
_FRESH = 0.05  # weight of a new observation in running means

_KEPT = (0.1, 1.2)
"""Least and greatest share of what phrases state that is believed: the surest are always read along, and learnt of."""

WORTH = 0.08
"""A hint that is less likely to be right is not given: a row more costs a twenty-fifth of a forward of one (four rows
0.38 and one 0.34 of the target's, docs/results/forward-guesses.txt), and its law is reckoned where it is right."""


class Hint(NamedTuple):
    """A token that may come; how many tokens of context in the request's own text speak for it, 0 where a phrase does;
    and the rate which that states.
    """

    token: int
    agree: int
    stated: float = 0.0


class Hints:
    """Those of one drafter.

    Args:
        phrases: of the target, if any are known.
    """

    def __init__(self, phrases: Phrases | None = None) -> None:
        self._phrases = phrases
        self._pasts: dict[int, Past] = {}
        # By whether the request is sampled:
        self._right = {False: [*_USUAL], True: [*_USUAL]}
        self._kept = {False: 1.0, True: 1.0}

    def after(self, view: View, path: Sequence[int], most: int) -> list[Hint]:
        """At most ``most`` tokens, one behind the other, that may come behind ``view.tokens`` and ``path``."""
        past = self._caught_up(view)
        recent = [*view.tokens[-LONGEST:].tolist(), *path][-LONGEST:]
        hints: list[Hint] = []
        likely = 1.0
        at = agree = 0  # the token of the own text that comes next, and how many in front of it agree
        while len(hints) < most:
            if not 0 < at < len(past):
                found = past.matches(context(recent), 1)
                at, agree = (found[0].position + 1, found[0].length) if found else (0, 0)
            own = Hint(past.tokens[at], min(agree, LONGEST)) if at else None
            hint, right = self._likelier(own, recent, view.temperature > 0.0)
            likely *= right
            if hint is None or likely < WORTH:
                break
            hints.append(hint)
            recent = [*recent, hint.token][-LONGEST:]
            at, agree = (at + 1, agree + 1) if own is not None and own.token == hint.token else (0, 0)
        return hints

    def learn(self, view: View, hint: Hint, right: bool) -> None:
        """Whether a hint was what the drafting model said in its place."""
        sampled = view.temperature > 0.0
        if hint.agree:
            rates = self._right[sampled]
            rates[hint.agree] += _FRESH * (right - rates[hint.agree])
        else:
            least, greatest = _KEPT
            kept = self._kept[sampled]
            self._kept[sampled] = min(max(kept + _FRESH * (right - kept * hint.stated), least), greatest)

    def forget(self, view: View) -> None:
        """A request ends."""
        self._pasts.pop(view.id, None)

    def _likelier(self, own: Hint | None, recent: Sequence[int], sampled: bool) -> tuple[Hint | None, float]:
        """The hint for one place, and how likely it is right: ``own``, or what usually follows."""
        right = self._right[sampled][own.agree] if own is not None else 0.0
        phrase = self._phrases.after(recent) if self._phrases is not None else None
        if phrase is not None and (stated := phrase.rate * self._kept[sampled]) > right:
            return Hint(phrase.token, 0, phrase.rate), min(stated, 1.0)
        return own, right

    def _caught_up(self, view: View) -> Past:
        past = self._pasts.get(view.id)
        if past is None:
            past = self._pasts[view.id] = Past(view.tokens)
        past.extend(view.tokens[len(past) :])
        return past
