"""The text the caller expects, followed while it is right and re-aligned when it is not.

Where the answer leaves the prediction it may have replaced something, inserted something or left something out. Each
is a *hypothesis*: a place in the prediction where the answer may go on. After a difference there are several, each
proposes a chain, and the answer's next tokens tell which was right. Places are found again by their last tokens, the
longest match first, nearest behind the place where the two parted.

State: the prediction, and for each request up to 8 hypotheses and an index of its n-grams.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.survival import Line, Rates, Survival
from augury.tree import DraftTree, IntArray

_FOLLOWED, _FOUND, _REPLACED, _INSERTED = range(4)
"""How a hypothesis came to be: it was right so far; its last tokens were found; or it is a guess at the edit."""

_KINDS = (Line(), Line(), Line(), Line())
_RAW = (0.0, 0.55, 0.3, 0.25)  # of a followed hypothesis it depends on the run
_SIZES = (4, 3, 2, 1)
_NEAR = 48
"""A single token is looked for that far ahead only: it occurs everywhere."""

_MOST = 8
_BEGIN = 3  # the first token of a prediction is as sure as one behind a run of three


@dataclass(frozen=True)
class _Hypothesis:
    place: int  # the token of the prediction that comes next
    kind: int
    run: int

    @property
    def raw(self) -> float:
        """Chance of the next token before anything was learnt."""
        return (self.run + 0.5) / (self.run + 1.0) if self.kind == _FOLLOWED else _RAW[self.kind]


@dataclass
class _Request:
    rates: Rates
    text: list[int]  # the prediction
    places: dict[tuple[int, ...], list[int]]  # n-gram -> places behind its occurrences, ascending
    tail: list[int]  # last tokens of the answer
    hypotheses: list[_Hypothesis]
    anchor: int  # the furthest place that was known to be right
    seen: int  # tokens of the view that were looked at


class Prediction(Drafter):
    """Chains of the caller's prediction; silent for a request without one."""

    def __init__(self) -> None:
        self._survival = Survival(_KINDS)
        self._requests: dict[int, _Request] = {}

    def open(self, view: View) -> None:
        """Index the prediction."""
        if view.prediction is None or not len(view.prediction):
            return
        text = view.prediction.tolist()
        self._requests[view.id] = _Request(
            rates=self._survival.open(view.temperature),
            text=text,
            places=_index(view.prediction),
            tail=[],
            hypotheses=[_Hypothesis(0, _FOLLOWED, _BEGIN)],
            anchor=0,
            seen=view.length,
        )

    def propose(self, view: View, limit: int) -> DraftTree:
        """The chain of every hypothesis, cut to ``limit`` nodes in all, the surest first."""
        request = self._caught_up(view)
        if request is None or limit < 1:
            return DraftTree.empty()
        chains = []
        for one in request.hypotheses:
            tokens = request.text[one.place : one.place + limit]
            if tokens:
                chains.append(DraftTree.chain(tokens, _survival(request.rates, one, len(tokens))))
        merged = DraftTree.merge(chains)
        if len(merged) <= limit:
            return merged
        # Survival never grows along a path and the sort is stable, so what is kept is closed under parents.
        return merged.keep(sorted(range(len(merged)), key=lambda i: (-merged.survival[i], i))[:limit])

    def observe(self, view: View, seen: Observation) -> None:
        """Follow, score and re-align the hypotheses."""
        self._caught_up(view)

    def close(self, view: View) -> None:
        """Forget the request."""
        self._requests.pop(view.id, None)

    def _caught_up(self, view: View) -> _Request | None:
        request = self._requests.get(view.id)
        if request is not None:
            for token in view.tokens[request.seen :].tolist():
                _follow(request, token)
            request.seen = view.length
        return request


def _follow(request: _Request, token: int) -> None:
    """Move every hypothesis over one token of the answer; make new ones when none was right."""
    request.tail = [*request.tail, token][-_SIZES[0] :]
    right = []
    for one in request.hypotheses:
        if one.place >= len(request.text):
            continue
        hit = request.text[one.place] == token
        request.rates.score(one.kind, one.raw, hit)
        if hit:
            right.append(_Hypothesis(one.place + 1, _FOLLOWED, one.run + 1))
    if right:
        # The nearest to the front of the list was the surest; the others stay until they are wrong.
        request.hypotheses = _distinct(right)
        request.anchor = request.hypotheses[0].place
        return
    # The answer has one token that the prediction has not at this place: what may come next?
    replaced = [one.place + 1 for one in request.hypotheses if one.kind in (_FOLLOWED, _REPLACED)]
    again = [_Hypothesis(place, _FOUND, size) for size, place in _found(request)]
    again += [_Hypothesis(place, _REPLACED, 0) for place in replaced[:1]]
    again += [_Hypothesis(request.anchor, _INSERTED, 0)]
    request.hypotheses = _distinct(again)


def _found(request: _Request) -> list[tuple[int, int]]:
    """(matched tokens, place) where the answer's last tokens occur in the prediction: the longest match only."""
    for size in _SIZES:
        if size > len(request.tail):
            continue
        places = request.places.get(tuple(request.tail[-size:]), [])
        at = bisect_left(places, request.anchor)
        ahead = places[at : at + 2]
        if size == 1:
            return [(size, place) for place in ahead if place <= request.anchor + _NEAR]
        if ahead or places:
            return [(size, place) for place in (ahead or places[-1:])]
    return []


def _index(text: IntArray) -> dict[tuple[int, ...], list[int]]:
    """Places behind every n-gram."""
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    tokens = text.tolist()
    for size in _SIZES:
        for end in range(size, len(tokens) + 1):
            places[tuple(tokens[end - size : end])].append(end)
    return dict(places)


def _distinct(hypotheses: list[_Hypothesis]) -> list[_Hypothesis]:
    """One hypothesis a place, the first of each."""
    first: dict[int, _Hypothesis] = {}
    for one in hypotheses:
        first.setdefault(one.place, one)
    return list(first.values())[:_MOST]


def _survival(rates: Rates, one: _Hypothesis, count: int) -> list[float]:
    reach = rates.hit(one.kind, one.raw)
    chain = [reach]
    for step in range(1, count):
        onward = _Hypothesis(0, _FOLLOWED, one.run + step)
        reach *= rates.hit(onward.kind, onward.raw)
        chain.append(reach)
    return chain
