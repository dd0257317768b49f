"""The target's own guesses for tokens not yet reached: Jacobi and lookahead decoding.

Jacobi decoding (Santilli et al. 2023, arXiv:2305.10427) guesses the next tokens all at once, verifies them, and takes
the target's likeliest token behind each guess as the next guess for the place behind it: the *trajectory*, here
``window`` tokens long. Lookahead decoding (Fu et al. 2024, arXiv:2402.02057) keeps the n-grams that the trajectory runs
through, token by token from one step to the next, in a pool, and guesses those that begin with the root. Pooled as well
are a token and the likeliest behind it from every row that was not the trajectory's.

The trajectory is the paper's parallel branch: it is hardly ever right (5 to 8 guesses of a hundred), but its rows are
what fills the pool. Here no row is forced: the budget verifies a guess whose stated survival is worth a row, which the
trajectory's is only where rows are nearly free (a GPU, a large target, a flat verify curve). Elsewhere the pool lives
on the rows of other drafters' guesses. Of the papers' several windows of past trajectories one is kept, as the trail
of at most ``NGRAM`` tokens that led to each guess.

State of a request: the trajectory and at most ``POOL`` n-grams.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.past import Match
from augury.drafters.survival import Line, Rates, Survival
from augury.drafters.votes import RANKS, WORTH, Guess, grow, score, vote
from augury.errors import InputError
from augury.tree import DraftTree

NGRAM = 5
"""Tokens of an n-gram at most."""

POOL = 2048
"""N-grams of a request at most, 20 bytes each and as much again for the index; the oldest go first."""

_ALIKE = 8  # n-grams of one first token that are kept
_NOTHING = -1
_ESCAPE = 0.5

_ASKED, _ON, _FRESH, _OLD = 0, RANKS, 2 * RANKS, 2 * RANKS + 1
_KINDS = (
    Line(0.7, -1.1), Line(0.7, -0.75), Line(0.6, -0.9), Line(0.65, -0.75), Line(0.8, -0.5), Line(0.9, -0.3),
    Line(1.0, -2.8), Line(1.0, -2.6),
)  # fmt: skip
"""N-grams by rank at their first guess, then behind it; a trajectory's guess just made by the target, and an older."""

_RAW = 0.5  # a trajectory knows no odds


class Pool:
    """N-grams by their first token, the latest first."""

    def __init__(self) -> None:
        self._tokens = array("i", [_NOTHING] * (NGRAM * POOL))
        self._places: dict[int, list[int]] = {}
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    def add(self, ngram: Sequence[int]) -> None:
        """Keep an n-gram of 2 to ``NGRAM`` tokens, or remember that it came again."""
        wanted = array("i", [*ngram, *[_NOTHING] * (NGRAM - len(ngram))])
        alike = self._places.get(ngram[0], [])
        for place in alike:
            if self._tokens[place : place + NGRAM] == wanted:
                alike.remove(place)
                alike.insert(0, place)
                return
        place, self._next = self._next, (self._next + NGRAM) % len(self._tokens)
        self._drop(place)
        if len(alike) == _ALIKE:
            self._drop(alike[-1])
        self._tokens[place : place + NGRAM] = wanted
        self._places.setdefault(ngram[0], []).insert(0, place)

    def begin(self, token: int) -> list[Match]:
        """Voters on what follows a token."""
        return [Match(place, 1) for place in self._places.get(token, ())]

    def guesses(self, voters: Sequence[Match], kind: int) -> list[Guess]:
        """What voters guess; a later n-gram weighs more."""
        votes: list[tuple[int, float, Match]] = []
        for voter in voters:
            token = self._tokens[voter.position + 1] if voter.length < NGRAM else _NOTHING
            if token != _NOTHING:
                votes.append((token, 1.0 / (1 + len(votes)), voter))
        return vote(votes, _ESCAPE, kind) if votes else []

    def _drop(self, place: int) -> None:
        first = self._tokens[place]
        if first == _NOTHING:
            return
        self._tokens[place] = _NOTHING
        self._places[first].remove(place)
        if not self._places[first]:
            del self._places[first]


@dataclass
class _Request:
    rates: Rates
    pool: Pool = field(default_factory=Pool)
    trails: list[list[int]] = field(default_factory=list)  # each guess of the trajectory behind what it came from
    fresh: int = 0  # how many of them the last step made


class Lookahead(Drafter):
    """Guesses that the target itself made ahead of its text.

    Args:
        window: tokens of the trajectory.

    Raises:
        InputError: window is not in 1..64.
    """

    needs_rows = True

    def __init__(self, *, window: int = 6) -> None:
        if not 1 <= window <= 64:
            raise InputError(f"drafter lookahead: window is {window}; it must be from 1 to 64")
        self._window = window
        self._survival = Survival(_KINDS)
        self._requests: dict[int, _Request] = {}

    def open(self, view: View) -> None:
        """Begin with an empty pool and a trajectory of the prompt's own tokens."""
        request = _Request(self._survival.open(view.temperature))
        self._lengthen(view, request)
        self._requests[view.id] = request

    def propose(self, view: View, limit: int) -> DraftTree:
        """N-grams that begin with the root, n-grams that begin where these end, and the trajectory."""
        request = self._requests[view.id]
        ngrams = grow(_asked(request.pool, int(view.tokens[-1])), _behind(request.pool), request.rates, limit)
        reached = 1.0
        survival: list[float] = []
        for place in range(min(limit, len(request.trails))):
            reached *= request.rates.hit(_FRESH if place < request.fresh else _OLD, _RAW)
            # Offered to its end, however unlikely: where all that is offered gets a row, this is the parallel branch.
            survival.append(max(reached, min(WORTH, survival[-1] if survival else 1.0)))
        ahead = [trail[-1] for trail in request.trails[: len(survival)]]
        tree = DraftTree.merge([ngrams, DraftTree.chain(ahead, survival)])
        best = np.argsort(-tree.survival, kind="stable")[:limit]
        return tree.keep(best.tolist())

    def observe(self, view: View, seen: Observation) -> None:
        """Score what would have been guessed, make the next trajectory, and pool what it ran through."""
        request = self._requests[view.id]
        emitted = seen.emitted.tolist()
        root = view.length - len(emitted) - 1
        self._score(request, int(view.tokens[root]), emitted)
        likely = np.argmax(seen.logits, axis=1).tolist()
        own = _walk(seen.tree, [trail[-1] for trail in request.trails])
        for node, token in enumerate(seen.tree.tokens.tolist()):
            if node not in own:
                request.pool.add([token, likely[node + 1]])
        before = [view.tokens[max(root + 2 - NGRAM, 0) : root + 1].tolist(), *request.trails[: len(own)]]
        made = [[*trail[1 - NGRAM :], likely[node + 1]] for trail, node in zip(before, [-1, *own], strict=True)]
        for trail in made:
            for start in range(len(trail) - 1):
                request.pool.add(trail[start:])
        request.trails = [*made, *request.trails[len(made) :]][len(emitted) :][: self._window]
        request.fresh = max(len(made) - len(emitted), 0)
        self._lengthen(view, request)

    def close(self, view: View) -> None:
        """Forget the request."""
        self._requests.pop(view.id, None)

    def _lengthen(self, view: View, request: _Request) -> None:
        """Fill the trajectory up: with what the pool knows, else with a token of the text, as the paper does."""
        trails, text = request.trails, view.tokens
        while len(trails) < self._window:
            before = trails[-1][-1] if trails else int(text[-1])
            guesses = _asked(request.pool, before)
            place = (2654435761 * (len(text) + len(trails))) % len(text)
            trails.append([guesses[0].token if guesses else int(text[place])])

    def _score(self, request: _Request, before: int, emitted: Sequence[int]) -> None:
        """Learn from the tokens that came where the pool, and the trajectory as long as it was right, had a guess."""
        guesses = _asked(request.pool, before)
        on = True
        for place, token in enumerate(emitted):
            right = score(request.rates, guesses, token)
            guesses = request.pool.guesses(right, _ON) or _asked(request.pool, token)
            if on and place < len(request.trails):
                on = request.trails[place][-1] == token
                request.rates.score(_FRESH if place < request.fresh else _OLD, _RAW, on)


def _walk(tree: DraftTree, tokens: Sequence[int]) -> list[int]:
    """Nodes of the path from the root that spells ``tokens``, as far as there is one."""
    nodes: list[int] = []
    for token in tokens:
        above = nodes[-1] if nodes else -1
        node = next((i for i in tree.children(above) if tree.tokens[i] == token), None)
        if node is None:
            break
        nodes.append(node)
    return nodes


def _asked(pool: Pool, token: int) -> list[Guess]:
    return pool.guesses(pool.begin(token), _ASKED)


def _behind(pool: Pool) -> Callable[[Guess, int], Sequence[Guess]]:
    def behind(guess: Guess, depth: int) -> list[Guess]:
        on = [Match(v.position + 1, v.length + 1) for v in guess.voters]
        return pool.guesses(on, _ON) or _asked(pool, guess.token)

    return behind
