"""Asks the drafters. One that raises, stalls or returns nonsense costs its own step, and after three faults in a
request it is left out for the rest of that request; the others, and the answer, never notice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from augury.accept import RULES
from augury.budget import Costs, Expected, best_chain, promise, shallow
from augury.drafters.drafter import Drafter, Observation
from augury.engine.asking import ENGINE_WEIGHT, Asking, Key, Weighed, key_of, pay_together
from augury.engine.request import Request
from augury.engine.trust import Trust
from augury.errors import DrafterError, first_line
from augury.models.target import TargetInfo
from augury.record import Proposal
from augury.tree import MAX_NODES, DraftTree, FloatArray, Path

STALL_MS = 1000.0
STALL_STEPS = 20.0
"""A proposal that takes longer than both this time and so many plain steps is a fault."""

MAX_FAULTS = 3
"""Faults in one request after which a drafter is left out for the rest of it."""

Named = Sequence[tuple[str, Drafter]]


class Offer(NamedTuple):
    """What all drafters together propose for one request.

    Attributes:
        tree: the merged guesses.
        proposals: what each drafter did.
        reason: why the tree is empty, or None.
        asked: of every drafter that was asked what its means are kept under, and milliseconds.
    """

    tree: DraftTree
    proposals: tuple[Proposal, ...] = ()
    reason: str | None = None
    asked: tuple[tuple[Key, float], ...] = ()


def begin(drafters: Named, request: Request, asking: Asking, trust: Trust) -> None:
    """Show a new request to the drafters it wants; one that cannot begin is left out of it."""
    if not request.switches.drafters:
        return
    request.asking, request.trust = asking.own(), trust.own()
    request.show(request.output.room - 1)
    for index in sorted(request.switches.drafters):
        request.opened.add(index)  # before the call: one that fails half-way is closed too
        try:
            drafters[index][1].open(request.views[index])
        except Exception as error:
            _fault(request, index, error, final=True)


def observe(drafters: Named, request: Request, seen: Observation) -> None:
    """Show what a step brought to the drafters that are not left out."""
    for index in sorted(request.opened - request.benched.keys()):
        try:
            drafters[index][1].observe(request.views[index], seen)
        except Exception as error:
            _fault(request, index, error, final=False)


def learn(
    request: Request,
    offer: Offer,
    tree: DraftTree,
    path: Path,
    tokens: int,
    costs: Costs | None,
    trust: Trust,
    asking: Asking,
    private: frozenset[int],
) -> None:
    """What a step tells of the drafters that had part in it: how far they are to be believed, and whether they pay.

    What memories brought stays in the request.

    Args:
        request: with the step's tokens behind it.
        offer: of the step.
        tree: what of it was verified.
        path: what of that was accepted.
        tokens: that came.
        costs: what forwards cost, or None where nothing is learnt of who pays.
        trust: of the engine, ``asking`` too.
        asking: see there.
        private: places of the drafters that remember what users were told.
    """
    if len(offer.tree):
        trust.learn(offer.tree, tree, path, request.trust, private)
    if not costs or not offer.asked:
        return
    told = private.isdisjoint(tree.source[list(path.nodes)].tolist())
    rows = len(tree) + 1  # its time as if the request were alone
    ms = float(costs.step(np.array([rows]), np.array([float(rows * request.length)]))[0])
    for key, own_ms in offer.asked:
        request.asking.learn(key, own_ms, tokens, ms)
        if told and (key if isinstance(key, int) else key[0]) not in private:
            asking.learn(key, own_ms, tokens, ms, ENGINE_WEIGHT)


def end(drafters: Named, request: Request) -> None:
    """Let every drafter that was shown a request forget it, the left-out ones too."""
    while request.opened:
        index = request.opened.pop()
        try:
            drafters[index][1].close(request.views[index])
        except Exception as error:
            _fault(request, index, error, final=False)


def propose(
    drafters: Named,
    batch: Sequence[Request],
    info: TargetInfo,
    limits: Sequence[int],
    costs: Costs | None,
    deepest: int = MAX_NODES,
    stalls: bool = True,
    floor: float = 0.0,
) -> list[Offer]:
    """The guesses of the wanted drafters that are worth asking: checked, cut where none could be emitted, merged.

    Args:
        drafters: all of them, by name.
        batch: the requests that step together.
        info: of the target.
        limits: for each request the nodes that one drafter may propose.
        costs: what the target's forwards cost; None asks all drafters.
        deepest: tokens in a row that are drafted at most.
        stalls: whether a proposal that takes too long is a fault; False where nothing may depend on the clock.
        floor: survival below which no node is worth its row in this step.
    """
    others = len(batch) - 1
    seats = [
        _Seat(drafters, r, info, limit, costs, others, deepest, floor) for r, limit in zip(batch, limits, strict=True)
    ]
    able = [seat for seat in seats if seat.why is None]
    for index in range(len(drafters)):
        for seat in able:
            if index in seat.wanted and index not in seat.dear:
                _ask(drafters, index, [seat], info, stalls)
    for index, (_, drafter) in enumerate(drafters):
        asking = [seat for seat in able if index in seat.dear]
        together = drafter.together and len(asking) > 1
        for group in [asking] if together else [[seat] for seat in asking]:
            if together:
                weighed = [seat.weighed() for seat in group]
                pays = pay_together(key_of(index, len(group)), weighed, group[0].plain, len(batch))
            else:
                pays = group[0].pays(index)
            if pays:
                _ask(drafters, index, group, info, stalls)
            else:
                for seat in group:
                    seat.leave(index)
    return [seat.offer() for seat in seats]


class _Seat:
    """What one request of a step was offered so far."""

    def __init__(
        self,
        drafters: Named,
        request: Request,
        info: TargetInfo,
        limit: int,
        costs: Costs | None,
        others: int,
        deepest: int,
        floor: float,
    ) -> None:
        self._drafters, self.request, self._costs, self._others = drafters, request, costs, others
        # The step emits one token more than it accepts, and the root itself takes one place of the context.
        most = min(deepest, request.switches.deepest)
        self._depth = min(request.output.room - 1, info.context - request.length - 1, most)
        rule = RULES[request.rule]
        self._limit, self._ratio, self._chains = limit, rule.laws, not (rule.trees and info.trees)
        self.why = _unasked(drafters, request, self._depth, limit)
        self.wanted = set(request.switches.drafters)
        self.plain = self._alone = 0.0
        self.dear: set[int] = set()
        self._trees: dict[int, DraftTree] = {}
        self._proposals: dict[int, Proposal] = {}
        self._paid: list[tuple[Key, float]] = []
        if self.why is not None:
            return
        request.show(self._depth, request.trust.stated(floor, self.wanted), self._chains)
        if costs:
            rows = np.array([1 + others, 1])
            self.plain, self._alone = costs.step(rows, rows * float(request.length)).tolist()
            share = self.plain / (1 + others)
            self.dear = {index for index in self.wanted if not request.asking.cheap(index, share)}
        for index, why in request.benched.items():
            if index in self.wanted:
                self._proposals[index] = Proposal(drafters[index][0], 0, 0.0, f"left out: {why}")
                self.wanted.discard(index)
                self.dear.discard(index)

    @property
    def limit(self) -> int:
        """Nodes that the next drafter may propose."""
        # A merge of too many nodes would drop the least likely, which drawn nodes must not be dropped for.
        return min(self._limit, MAX_NODES - sum(map(len, self._trees.values()))) if self._ratio else self._limit

    def merged(self) -> DraftTree:
        """What was offered, as it is to be believed."""
        # In the order of asking: what was drawn earlier may decide who is asked later, so it must be judged earlier.
        trees = list(self._trees.values())
        whole = trees[0] if len(trees) == 1 else DraftTree.merge(trees)
        if self._chains and len(trees) > 1:
            whole = best_chain(whole)
        return self.request.trust.temper(shallow(whole, self._depth))

    def _without(self) -> Expected:
        """The best step with what was offered, the others' plain tokens and the time of the guesses included."""
        assert self._costs
        best = promise(self.merged(), self._costs, self.request.length, self._others)
        return Expected(best.tokens, best.ms + self._spent)

    @property
    def _spent(self) -> float:
        return sum(proposal.ms for proposal in self._proposals.values())

    def pays(self, index: int) -> bool:
        """Whether to ask a drafter that is not cheap."""
        others = Expected(self._others, self.plain - self._alone + self._spent)
        return self.request.asking.pays(index, self._without(), self.plain, others)

    def weighed(self) -> Weighed:
        """What ``pay_together`` judges."""
        return Weighed(self.request.asking, self._without(), self._alone)

    def take(self, index: int, tree: DraftTree, proposal: Proposal, key: Key) -> None:
        """What a drafter proposed, whose means are kept under ``key``."""
        tree = legal(self.request, tree)
        self._proposals[index] = proposal
        if proposal.ms > 0.0:
            self._paid.append((key, proposal.ms))
        if len(tree):
            self._trees[index] = best_chain(tree) if self._chains else tree

    def leave(self, index: int) -> None:
        """A drafter is not asked."""
        self._proposals[index] = Proposal(
            self._drafters[index][0], 0, 0.0, unasked="it is not expected to earn its time"
        )

    def offer(self) -> Offer:
        """All of it."""
        if self.why is not None:
            return Offer(DraftTree.empty(), (), self.why)
        tree = self.merged() if self._trees else DraftTree.empty()
        done = tuple([self._proposals[index] for index in sorted(self._proposals)])
        return Offer(tree, done, None if len(tree) else _guessless(done), tuple(self._paid))


def legal(request: Request, tree: DraftTree) -> DraftTree:
    """A drafter's tree without what the request's grammar bans: it would be verified in vain.

    A tree with drawn nodes is left whole under the ratio rules, see ``budget``: there a banned token has p = 0.
    """
    if not len(tree) or not request.sampler.guided or (tree.laws and RULES[request.rule].laws):
        return tree
    parents = tree.parents.tolist()
    allowed: set[int] = set()
    for leaf in sorted({*range(len(tree))} - {*parents}):
        nodes = tree.path(leaf)
        allowed |= {*nodes[: request.sampler.legal(tree.tokens[nodes].tolist())]}
    return tree.keep(allowed)


def _ask(drafters: Named, index: int, seats: Sequence[_Seat], info: TargetInfo, stalls: bool) -> None:
    """Let one drafter guess for some requests, in vain where it breaks its contract. The time is shared out."""
    name, drafter = drafters[index]
    given: Sequence[object] = []
    failure: Exception | None = None
    limits = [seat.limit for seat in seats]
    views = [seat.request.views[index] for seat in seats]
    clock = time.perf_counter()
    try:
        given = [drafter.propose(views[0], limits[0])] if len(seats) == 1 else drafter.propose_all(views, limits)
        if len(given) != len(seats):
            raise DrafterError(f"proposed {len(given)} trees for {len(seats)} requests")
    except Exception as error:
        failure = error
    ms = 1e3 * (time.perf_counter() - clock)
    if stalls and failure is None and ms > (most := max(STALL_MS, STALL_STEPS * seats[0].plain)):
        failure = DrafterError(f"took {ms:.0f} ms, the limit is {most:.0f}")
    for place, seat in enumerate(seats):
        tree, fault = DraftTree.empty(), failure
        if fault is None:
            try:
                tree = _checked(given[place], index, limits[place], info.vocab_size)
            except Exception as error:
                fault = error
        said = None if fault is None else _fault(seat.request, index, fault, final=False)
        seat.take(index, tree, Proposal(name, len(tree), ms / len(seats), said), key_of(index, len(seats)))


def _unasked(drafters: Named, request: Request, depth: int, limit: int) -> str | None:
    """Why no drafter need be asked, or None."""
    if not drafters:
        return "no drafter is loaded"
    if not request.switches.drafters:
        return "drafting is off for this request"
    if not request.switches.deepest:
        return "the request allows no draft tokens"
    if depth < 1:
        return "there is room for one more token only"
    if limit < 1:
        return "not even a sure guess would be worth its row"
    return None


def _guessless(proposals: Sequence[Proposal]) -> str:
    """Why drafters that were asked brought nothing."""
    if all(p.fault or p.unasked for p in proposals):
        return "; ".join(f"{p.drafter}: {p.fault or p.unasked}" for p in proposals)
    return "no drafter had a guess"


def _checked(tree: object, index: int, limit: int, vocab_size: int) -> DraftTree:
    """A proposal that keeps the contract, in arrays of its own, or an error that says how it does not."""
    if not isinstance(tree, DraftTree):
        raise DrafterError(f"proposed a {type(tree).__name__}, not a DraftTree")
    if len(tree) > limit:
        raise DrafterError(f"proposed {len(tree)} nodes, the limit is {limit}")
    if not len(tree):
        return DraftTree.empty()
    tokens = _numbers("tokens", tree.tokens, "iu")
    parents = _numbers("parents", tree.parents, "iu")
    survival = _numbers("survival", tree.survival, "f")
    if (last := max(tokens)) >= vocab_size:
        raise DrafterError(f"proposed token {last}, the vocabulary ends at {vocab_size - 1}")
    laws: dict[int, FloatArray] = {}
    for node, given in tree.laws.items():
        if not isinstance(given, np.ndarray) or given.dtype.kind != "f":
            raise DrafterError(f"node {node} declares a law that is no array of real numbers")
        law = laws[int(node)] = np.array(given, np.float32, subok=False)
        if law.shape != (vocab_size,) or not law[tokens[node]] > 0.0:
            raise DrafterError(f"node {node} declares a law that could not have drawn its token")
        if not (law.min() >= 0.0 and abs(float(law.sum()) - 1.0) < 1e-3):
            raise DrafterError(f"node {node} declares a law that is none: it sums to {float(law.sum()):.4g}")
    # A tree's own check forgives rounding. Here, where survival comes in, it is made never to grow along a path: the
    # budget takes the surest nodes, and no node may be surer than its parent.
    for i, parent in enumerate(parents):
        most = survival[parent] if parent >= 0 else 1.0
        if survival[i] > most:
            survival[i] = most
    return DraftTree.of(tokens, parents, survival, index, laws)


def _numbers(what: str, array: object, kinds: str) -> list[Any]:
    """The numbers of a flat array of some kinds, and of nothing else: a drafter may keep and change its own."""
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in kinds:
        raise DrafterError(f"proposed {what} that are no flat array of {'whole' if kinds == 'iu' else 'real'} numbers")
    numbers: list[Any] = np.ndarray.tolist(array)  # whatever a subclass does
    return numbers


def _fault(request: Request, index: int, error: Exception, final: bool) -> str:
    """Note a fault; a final one, or the third, leaves the drafter out of the request."""
    said = first_line(error)
    text = said if isinstance(error, DrafterError) else f"{type(error).__name__}: {said}"
    request.faults[index] = request.faults.get(index, 0) + 1
    if final or request.faults[index] >= MAX_FAULTS:
        request.benched[index] = text
    return text
