"""A chain of a model's own guesses, the *spine*, with the runners-up of each place as siblings.

Each place of the spine costs one forward of the drafting model; its siblings come with the same row. How the first
guess of a place is made, and what is known of its survival:

=================  ==========================================  ==================================================
rule, temperature  guess                                       raw estimate of a hit
=================  ==========================================  ==================================================
greedy             likeliest tokens                            their probability
coupled            winners of the race under the target's own  probability of the winner, of its runners-up
                   noise (Gumbel-max coupling)
rejection, block   drawn from q, one a place                   sum of q^2: a function of the law, not of the draw
=================  ==========================================  ==================================================

The law q is the request's own pipeline on the drafting model's logits (penalties, bans, filters; not the caller's
processors), so that a drafter that is the target proposes exactly what the target would say.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from augury.budget import Costs
from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.survival import Line, Rates, Survival
from augury.errors import InputError
from augury.noise import race
from augury.tree import MAX_NODES, DraftTree, FloatArray

RANKS = 3
GREEDY, COUPLED, DRAWN = 0, RANKS, 2 * RANKS
"""First kind of guess under each rule; within the first two a place's guesses are ranked."""

LEAST = 0.02
"""A runner-up that its own model believes less is not offered."""

_USUAL = 0.7  # of a first guess to be right, before anything is known
_FRESH = 0.1  # weight of a new observation in running means


class Choice(NamedTuple):
    """One guess for a place: the token, its kind and raw estimate for ``Rates``, and its law if it was drawn."""

    token: int
    kind: int
    raw: float
    law: FloatArray | None


@dataclass
class _Memory:
    """What is kept of one request."""

    rates: Rates
    places: list[list[Choice]] = field(default_factory=list)
    """The guesses of the last proposal, place by place."""


class Spine(Drafter):
    """See the module's text.

    Args:
        depth: places of the spine at most.
        width: guesses of one place at most.
        lines: calibration of each kind of guess.
        costs: tells what the target's forwards cost, or None when that was not measured.
    """

    def __init__(
        self,
        depth: int,
        width: int,
        lines: Sequence[Line],
        costs: Callable[[], Costs | None] | None = None,
    ) -> None:
        for name, value in (("depth", depth), ("width", width)):
            if not 1 <= value <= MAX_NODES:
                raise InputError(f"{name} is {value}; it must be 1 to {MAX_NODES}, the nodes of a tree")
        self.depth = depth
        self.width = width
        self._survival = Survival(lines)
        self._costs = costs or (lambda: None)
        self._memory: dict[int, _Memory] = {}
        self._ms = 0.0  # of one own forward
        self._hit = _USUAL  # how often a first guess is right

    @abstractmethod
    def row(self, view: View, path: Sequence[int]) -> FloatArray:
        """F32[V] over the target's vocabulary: logits behind ``view.tokens`` and ``path``; -inf where it has none."""

    def room(self, view: View) -> int:
        """Places that ``row`` can be asked for at most; the default is the view's."""
        return view.room

    def open(self, view: View) -> None:
        """Begin a request."""
        self._memory[view.id] = _Memory(self._survival.open(0.0))  # what temperature does is in the kinds

    def propose(self, view: View, limit: int) -> DraftTree:
        """Go down the spine as long as the next place is worth its forward."""
        memory = self._memory[view.id]
        memory.places = []
        tokens: list[int] = []
        parents: list[int] = []
        survival: list[float] = []
        laws: dict[int, FloatArray] = {}
        path: list[int] = []
        node, reached, begin = -1, 1.0, time.perf_counter()
        deepest = min(self.depth, view.room, self.room(view))
        while len(path) < deepest and len(tokens) < limit:
            if path and not self._worth(reached, 1.0 + sum(survival), len(tokens), time.perf_counter() - begin):
                break
            clock = time.perf_counter()
            choices = self._choices(view, self.row(view, path), path)
            if not choices:
                break
            self._took(1e3 * (time.perf_counter() - clock))
            memory.places.append(choices)
            above, parent = reached, node
            for rank, choice in enumerate(choices[: limit - len(tokens)]):
                survives = above * memory.rates.hit(choice.kind, choice.raw)
                if rank == 0:
                    node, reached = len(tokens), survives
                if choice.law is not None:
                    laws[len(tokens)] = choice.law
                tokens.append(choice.token)
                parents.append(parent)
                survival.append(min(survives, above))
            path.append(choices[0].token)
        return DraftTree.of(tokens, parents, survival, laws=laws)

    def _took(self, ms: float) -> None:
        """Learn what one own forward costs."""
        self._ms += (_FRESH if self._ms else 1.0) * (ms - self._ms)

    def _worth(self, reached: float, gain: float, nodes: int, seconds: float) -> bool:
        """Whether one more place raises the expected tokens per millisecond of this step."""
        costs = self._costs()
        if costs is None:
            return True
        row = (costs.verify[min(8, len(costs.verify) - 1)] - costs.verify[1]) / 7.0
        spent = float(costs.verify[1]) + costs.rest + 1e3 * seconds + nodes * row
        return bool(reached * self._hit / (self._ms + row) > gain / spent)

    def _choices(self, view: View, logits: FloatArray, path: Sequence[int]) -> list[Choice]:
        law = view.guess(logits, path)
        if not law.any():
            return []
        if view.temperature == 0.0:
            likely = np.flatnonzero(law >= min(LEAST, float(law.max())))
            best = likely[np.argsort(-law[likely], kind="stable")][: self.width].tolist()
            return [Choice(t, GREEDY + min(i, RANKS - 1), inside(law[t]), None) for i, t in enumerate(best)]
        waits = view.noise.exponential(view.length + len(path), len(law))
        if view.rule != "coupled":
            return [Choice(race(law.astype(np.float64), waits), DRAWN, inside(float(law @ law)), law)]
        speed = law.astype(np.float64) / waits
        some = min(self.width, len(law))
        first = np.argpartition(-speed, some - 1)[:some]
        best = [t for t in first[np.argsort(-speed[first], kind="stable")].tolist() if speed[t] > 0.0]
        return [Choice(t, COUPLED + min(i, RANKS - 1), inside(law[t]), None) for i, t in enumerate(best)]

    def observe(self, view: View, seen: Observation) -> None:
        """Score the guesses of the spine's places up to the first that was wrong."""
        memory = self._memory[view.id]
        node = -1
        for place, token in zip(memory.places, seen.emitted.tolist(), strict=False):
            first = place[0]
            if first.law is not None:  # a drawn guess is judged, not compared: only what was verified tells
                drawn = [c for c in seen.tree.children(node) if c in seen.tree.laws]
                node = next((c for c in drawn if seen.tree.tokens[c] == first.token), -1)
                if node < 0:
                    break
                right = node in seen.path.nodes
                memory.rates.score(first.kind, first.raw, right)
            else:
                right = first.token == token
                for choice in place:
                    memory.rates.score(choice.kind, choice.raw, choice.token == token)
            self._hit += _FRESH * (right - self._hit)
            if not right:
                break
        memory.places = []

    def close(self, view: View) -> None:
        """Forget a request."""
        self._memory.pop(view.id, None)


def inside(p: float) -> float:
    """A probability strictly between 0 and 1, as its logit must be finite."""
    return min(max(float(p), 1e-6), 1.0 - 1e-6)
