"""What the request's grammar forces: the rest of a key or of a choice as soon as no other is left, and the end.

A token that is the only one allowed is certain. Elsewhere the text is forced and its spelling is not: tokens are
guessed as the tokenizer spells the text, as far as that does not depend on what follows it, and how often the target
spells it so is learnt. Without a grammar it has no guess.

State: what was guessed last, in each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.survival import Line, Rates, Survival
from augury.tree import DraftTree

_KINDS = (Line(),)
_RAW = 0.9
"""How often a target spells forced text as its tokenizer does, before anything was seen."""


@dataclass
class _Request:
    rates: Rates
    guess: Sequence[tuple[int, bool]] = field(default=())
    length: int = 0  # of the text in front of the guess


class Grammar(Drafter):
    """Proposes a chain of forced tokens."""

    reads_grammar = True

    def __init__(self) -> None:
        self._survival = Survival(_KINDS)
        self._requests: dict[int, _Request] = {}

    def open(self, view: View) -> None:
        """Begin with what is usual."""
        self._requests[view.id] = _Request(self._survival.open(view.temperature))

    def propose(self, view: View, limit: int) -> DraftTree:
        """The forced tokens, at most ``limit`` and as many as could be emitted."""
        request = self._requests[view.id]
        request.guess, request.length = view.forced(min(limit, view.room)), view.length
        survival, reached = [], 1.0
        for _, alone in request.guess:
            reached *= 1.0 if alone else request.rates.hit(0, _RAW)
            survival.append(reached)
        return DraftTree.chain([token for token, _ in request.guess], survival)

    def observe(self, view: View, seen: Observation) -> None:
        """Score the spellings against what came."""
        request = self._requests[view.id]
        for (token, alone), came in zip(request.guess, view.tokens[request.length :].tolist(), strict=False):
            if not alone:
                request.rates.score(0, _RAW, token == came)
            if token != came:
                break
        request.guess = ()

    def close(self, view: View) -> None:
        """Forget the request."""
        self._requests.pop(view.id, None)
