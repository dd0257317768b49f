"""A tree that grows from a drafting model's own laws, the likeliest leaf first.

A *leaf* is a guess that was not gone on from yet. Each forward of the drafting model reads one or several leaves and
gives the likely next tokens behind each: new leaves. Of all that were found the nodes of greatest survival are offered,
wherever they hang (EAGLE-2, Li et al. 2024, arXiv:2406.16858, section 4.2). A model that can read only one path at a
time goes on from the first guess of each place alone: that chain is its *spine*, and the runners-up are siblings. How a
place's first guess is made, and what is known of its survival:

=================  ==========================================  ==================================================
rule, temperature  guess                                       raw estimate of a hit
=================  ==========================================  ==================================================
greedy             likeliest tokens                            their probability
coupled            winners of the race under the target's own  probability of the winner, of its runners-up
                   noise (Gumbel-max coupling)
rejection, block   drawn from q, one a place                   sum of q^2: a function of the law, not of the draw
=================  ==========================================  ==================================================

A model that is the target but for noise is wrong where two tokens are nearly alike, however likely they are. The
estimate of its first guess is its share of itself and the second, of probability or in the race (``by_lead``).

The law q is the request's own pipeline on the drafting model's logits (penalties, bans, filters; not the caller's
processors), so that a drafter that is the target proposes exactly what the target would say.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from augury.budget import Costs
from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.hints import Hint
from augury.drafters.survival import Line, Rates, Survival
from augury.errors import InputError
from augury.noise import LawArray, race
from augury.tree import MAX_NODES, DraftTree, FloatArray, IntArray

RANKS = 3
GREEDY, COUPLED, DRAWN = 0, RANKS, 2 * RANKS
"""First kind of guess under each rule; within the first two a place's guesses are ranked."""

LEAST = 0.02
"""A runner-up that its own model believes less is not offered."""

_USUAL = 0.7  # of a first guess to be right, before anything is known
_FRESH = 0.1  # weight of a new observation in running means
_HICCUP = 3.0  # what is slower than so many times the mean counts as that
_DRIFT = 0.01  # in one step
_AHEAD = 4  # guesses in a row that are weighed before a chain ends


class Choice(NamedTuple):
    """One guess for a place: the token, its kind and raw estimate for ``Rates``, and its law if it was drawn."""

    token: int
    kind: int
    raw: float
    law: FloatArray | None


class Leaf(NamedTuple):
    """A node that was not gone on from: its survival, its number (-1: the root), and the tokens down to it."""

    survival: float
    node: int
    path: tuple[int, ...]


@dataclass
class _Memory:
    """What is kept of one request."""

    rates: Rates
    places: dict[tuple[int, ...], list[Choice]] = field(default_factory=dict)
    """The guesses of the last proposal by the tokens in front of them."""


@dataclass
class _Growth:
    """The tree of one request while it grows.

    Attributes:
        view: of the request.
        memory: of the request.
        limit: nodes of the tree at most.
        deepest: depth of its deepest node at most.
        leaves: likeliest first.
        read: those that the next forward reads.
        waits: the noise of this step, by depth.
    """

    view: View
    memory: _Memory
    limit: int
    deepest: int
    leaves: list[Leaf]
    read: list[Leaf] = field(default_factory=list)
    waits: dict[int, LawArray] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    survival: list[float] = field(default_factory=list)
    laws: dict[int, FloatArray] = field(default_factory=dict)

    def add(self, found: Sequence[list[Choice]], beam: int) -> None:
        """Nodes behind the leaves that were read."""
        rates = self.memory.rates
        for leaf, choices in zip(self.read, found, strict=True):
            if not choices:
                continue
            self.memory.places[leaf.path] = choices
            for rank, choice in enumerate(choices):
                survives = min(leaf.survival * rates.hit(choice.kind, choice.raw), leaf.survival)
                if (rank == 0 or beam > 1) and len(leaf.path) + 1 < self.deepest:
                    self.leaves.append(Leaf(survives, len(self.tokens), (*leaf.path, choice.token)))
                if choice.law is not None:
                    self.laws[len(self.tokens)] = choice.law
                self.tokens.append(choice.token)
                self.parents.append(leaf.node)
                self.survival.append(survives)
        self.leaves.sort(key=lambda leaf: -leaf.survival)

    def tree(self) -> DraftTree:
        """The nodes of greatest survival."""
        return DraftTree.best(self.tokens, self.parents, self.survival, [0] * len(self.tokens), self.laws, self.limit)


class Spine(Drafter):
    """See the module's text.

    Args:
        depth: of the tree at most.
        width: guesses of one place at most.
        lines: calibration of each kind of guess.
        costs: tells what the target's forwards cost, or None when that was not measured.
        beam: leaves that one forward of the drafting model reads at most; with 1 it goes on from first guesses alone.
        nodes: of the tree at most.
        ids: i32[v], the tokens that ``rows`` are over, ascending, and
        vocab_size: V, of the target, where they are not all.
    """

    by_lead = False
    """Whether a first guess is judged by how far it leads the second, see the module's text."""

    def __init__(
        self,
        depth: int,
        width: int,
        lines: Sequence[Line],
        costs: Callable[[], Costs | None] | None = None,
        beam: int = 1,
        nodes: int = MAX_NODES,
        ids: IntArray | None = None,
        vocab_size: int = 0,
    ) -> None:
        for name, value in (("depth", depth), ("width", width), ("beam", beam), ("nodes", nodes)):
            if not 1 <= value <= MAX_NODES:
                raise InputError(f"{name} is {value}; it must be 1 to {MAX_NODES}, the nodes of a tree")
        self.depth = depth
        self.width = width
        self.beam = beam
        self.nodes = nodes
        self.ids = ids
        self.vocab_size = vocab_size
        self._survival = Survival(lines)
        self._costs = costs or (lambda: None)
        self._memory: dict[int, _Memory] = {}
        self._ms: dict[tuple[int, int], float] = {}  # a request's share of an own forward, by how many requests are in
        # it, and how many leaves it read of one; 0: the root
        self._hit = _USUAL  # how often a first guess is right

    @abstractmethod
    def rows(self, view: View, paths: Sequence[Sequence[int]]) -> Sequence[FloatArray]:
        """For each path f32[v], over the target's vocabulary or its ``ids``: logits behind ``view.tokens`` and it, -inf
        where there are none. At most ``beam`` paths, none of which begins another; what is before their last tokens was
        read before.
        """

    def room(self, view: View) -> int:
        """Places that ``rows`` can be asked for at most; the default is the view's."""
        return view.room

    def open(self, view: View) -> None:
        """Begin a request."""
        self._memory[view.id] = _Memory(self._survival.open(0.0))  # what temperature does is in the kinds

    def propose(self, view: View, limit: int) -> DraftTree:
        """Go on from the likeliest leaves as long as that is worth a forward."""
        return self.propose_all([view], [limit])[0]

    def propose_all(self, views: Sequence[View], limits: Sequence[int]) -> list[DraftTree]:
        """The trees of all grow level by level; what a forward takes is shared by those who are in it."""
        growths = [self._begun(view, limit) for view, limit in zip(views, limits, strict=True)]
        begin = time.perf_counter()
        growing = growths
        while True:
            seconds = (time.perf_counter() - begin) / len(views)
            growing = [g for g in growing if self._next(g, seconds, len(growing))]
            if not growing:
                return [g.tree() for g in growths]
            clock = time.perf_counter()
            first = not growing[0].survival
            most, forwards = max(len(g.read) for g in growing), 1.0
            if len(growing) == 1:
                forwards /= self._alone(growing[0])
            else:
                found = self.rows_together([(g.view, [leaf.path for leaf in g.read]) for g in growing])
                for g, rows in zip(growing, found, strict=True):
                    g.add([self._choices(g, row, leaf.path) for row, leaf in zip(rows, g.read, strict=True)], self.beam)
            ms = 1e3 * (time.perf_counter() - clock)
            self._took(forwards * ms / len(growing), 0 if first else most, len(growing))

    def _alone(self, growth: _Growth) -> int:
        """One forward for a tree that grows alone; gives how many levels it grew."""
        paths = [leaf.path for leaf in growth.read]
        most = min(growth.deepest - len(paths[0]), growth.limit - len(growth.tokens)) - 1
        beyond = self.beyond(growth.view, paths[0], most) if len(paths) == 1 else ()
        if not beyond:
            rows = self.rows(growth.view, paths)
            growth.add([self._choices(growth, row, path) for row, path in zip(rows, paths, strict=True)], self.beam)
            return 1
        levels = 0
        for row in self.rows_along(growth.view, paths[0], beyond):
            (leaf,) = growth.read
            choices = self._choices(growth, row, leaf.path)
            growth.add([choices], self.beam)
            levels += 1
            if levels > len(beyond) or not choices:
                break
            hint = beyond[levels - 1]
            right = choices[0].token == hint.token
            self.heard(growth.view, hint, right)
            if not right or not growth.leaves:
                break
            growth.read, growth.leaves = growth.leaves[:1], growth.leaves[1:]
        return levels

    def beyond(self, view: View, path: Sequence[int], most: int) -> Sequence[Hint]:
        """At most ``most`` tokens that may come behind a path, to be read in the same forward as its end; for drafters
        with a ``beam`` of 1.
        """
        return ()

    def rows_along(self, view: View, path: Sequence[int], beyond: Sequence[Hint]) -> Sequence[FloatArray]:
        """``rows`` of a path, and of what it becomes with each of the tokens beyond, for drafters that name some."""
        raise NotImplementedError

    def heard(self, view: View, hint: Hint, right: bool) -> None:
        """Whether the drafting model said the same as a token beyond."""

    def rows_together(self, asked: Sequence[tuple[View, Sequence[Sequence[int]]]]) -> list[Sequence[FloatArray]]:
        """``rows`` of several requests at once, for drafters that can."""
        raise NotImplementedError

    def _begun(self, view: View, limit: int) -> _Growth:
        memory = self._memory[view.id]
        memory.places = {}
        limit = min(limit, self.nodes)
        deepest = min(self.depth, view.room, self.room(view))
        return _Growth(view, memory, limit, deepest, [Leaf(1.0, -1, ())] if deepest > 0 and limit > 0 else [])

    def _next(self, growth: _Growth, seconds: float, together: int) -> bool:
        """Decide which leaves the next forward reads of a tree; whether there are any."""
        leaves = growth.leaves
        if growth.survival:
            count = self._count(leaves, growth.survival, growth.limit, seconds, together) if leaves else 0
        else:
            count = 1
        growth.read, growth.leaves = leaves[:count], leaves[count:]
        return bool(growth.read)

    def _took(self, ms: float, leaves: int = 1, together: int = 1) -> None:
        """Learn what one own forward costs each of the requests ``together`` in it, that read so many leaves of one; 0:
        the root, with what came since the last step.

        A hiccup must not shut a number of leaves off for good, as what is not read is not measured: one counts little,
        and all numbers drift to what the root cost.
        """
        before = self._ms.get((together, leaves), ms)
        self._ms[together, leaves] = before + _FRESH * (min(ms, _HICCUP * before) - before)
        if not leaves:
            self._drift(self._ms[together, 0], together)

    def _drift(self, ms: float, together: int = 1) -> None:
        for key in self._ms:
            if key[0] == together:
                self._ms[key] += _DRIFT * (ms - self._ms[key])

    def _count(
        self, leaves: Sequence[Leaf], survival: Sequence[float], limit: int, seconds: float, together: int = 1
    ) -> int:
        """How many of the leaves, likeliest first, to go on from in the next forward."""
        least = sorted(survival)[-limit] if len(survival) >= limit else 0.0  # what is less would not be offered
        able = [leaf.survival for leaf in leaves[: self.beam] if leaf.survival > least]
        return self._worth(able, survival, seconds, together)

    def _worth(self, leaves: Sequence[float], survival: Sequence[float], seconds: float, together: int = 1) -> int:
        """How many leaves, by their survivals, one more forward should read, to raise the tokens per millisecond of
        this step; ``survival`` is of what was found so far, in so many seconds. Times are a request's share of what
        those ``together`` take.
        """
        costs = self._costs()
        if costs is None or not leaves:
            return len(leaves)
        gains = [*accumulate(sorted(survival, reverse=True), initial=1.0)]
        # A step that verifies so many nodes of each; tables have steps, and a row behind one is dear.
        rows = together * np.arange(1, len(gains) + max(len(leaves), _AHEAD) + 1)
        verified = (costs.step(rows, np.zeros(len(rows))) / together + 1e3 * seconds).tolist()
        best, nodes = max((gain / verified[n], n) for n, gain in enumerate(gains))
        gain, count, ms = gains[nodes], 0, self._ms.get((together, 0), 0.0)
        a_guess = self._ms.get((together, 1), ms)
        # What one guess of a chain does not pay, a step of the table or a wrong time in it, several to come may.
        chain = self.beam == 1
        ahead = [leaves[0] * self._hit**more for more in range(_AHEAD)] if chain else leaves
        for n, leaf in enumerate(ahead, 1):
            gain, ms = gain + leaf * self._hit, n * a_guess if chain else self._ms.get((together, n), ms)
            rate = gain / (verified[nodes + n] + ms)
            if rate > best:
                best, count = rate, n
        return min(count, self.beam)

    def _choices(self, growth: _Growth, logits: FloatArray, path: Sequence[int]) -> list[Choice]:
        view = growth.view
        law = view.guess(logits, path, self.ids)
        most = float(law.max())
        if most <= 0.0:
            return []
        width = self.width if view.rule != "block" else 1  # which judges one path alone
        if view.temperature == 0.0:
            likely = np.flatnonzero(law >= min(LEAST, most))
            best = likely[np.argsort(-law[likely], kind="stable")]
            second = float(law[best[1]]) if len(best) > 1 else min(LEAST, most)  # of one that is less likely, at most
            return self._ranked(GREEDY, best[:width], law, most / (most + second))
        waits = growth.waits.get(len(path))
        if waits is None:
            waits = view.noise.exponential(view.length + len(path), self.vocab_size or len(law))
            waits = growth.waits[len(path)] = waits if self.ids is None else waits[self.ids]
        if view.rule != "coupled":
            drawn = race(law.astype(np.float64), waits)
            return [Choice(self._token(drawn), DRAWN, inside(float(law @ law)), self._wide(law))]
        speed = law.astype(np.float64) / waits
        if width == 1:
            winner = int(speed.argmax())
            fastest, speed[winner] = float(speed[winner]), 0.0
            return self._ranked(COUPLED, np.array([winner]), law, fastest / (fastest + float(speed.max())))
        some = min(width, len(law))
        first = np.argpartition(-speed, some - 1)[:some]
        best = first[np.argsort(-speed[first], kind="stable")]
        lead = float(speed[best[0]] / speed[best[:2]].sum())
        return self._ranked(COUPLED, best[speed[best] > 0.0], law, lead)

    def _ranked(self, kind: int, best: npt.NDArray[np.intp], law: FloatArray, lead: float) -> list[Choice]:
        """Guesses of a place, likeliest first; ``lead`` is the share of the first of itself and the second."""
        return [
            Choice(
                self._token(at), kind + min(rank, RANKS - 1),
                inside(lead if self.by_lead and rank == 0 else law[at]), None,
            )
            for rank, at in enumerate(best.tolist())
        ]  # fmt: skip

    def _token(self, at: int) -> int:
        return at if self.ids is None else int(self.ids[at])

    def _wide(self, law: FloatArray) -> FloatArray:
        """A law f32[v] as f32[V]."""
        if self.ids is None:
            return law
        wide = np.zeros(self.vocab_size, np.float32)
        wide[self.ids] = law
        return wide

    def observe(self, view: View, seen: Observation) -> None:
        """Score the guesses of every place that came, up to the first that was not gone on from."""
        memory = self._memory[view.id]
        node, path = -1, tuple[int, ...]()
        for token in seen.emitted.tolist():
            place = memory.places.get(path)
            if place is None:
                break
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
            path = (*path, token)  # after a drawn guess that was refused nothing was gone on from
        memory.places = {}

    def close(self, view: View) -> None:
        """Forget a request."""
        self._memory.pop(view.id, None)


def inside(p: float) -> float:
    """A probability strictly between 0 and 1, as its logit must be finite."""
    return min(max(float(p), 1e-6), 1.0 - 1e-6)
