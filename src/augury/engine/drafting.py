"""Asks the drafters. One that raises, stalls or returns nonsense costs its own step, and after three faults in a
request it is left out for the rest of that request; the others, and the answer, never notice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from augury.accept import RULES
from augury.budget import Costs, Expected, best_chain, promise, shallow
from augury.drafters.drafter import Drafter, Observation
from augury.engine.asking import Asking
from augury.engine.request import Request
from augury.engine.trust import Trust
from augury.errors import DrafterError, first_line
from augury.models.target import TargetInfo
from augury.record import Proposal
from augury.tree import MAX_NODES, DraftTree, FloatArray

STALL_MS = 1000.0
STALL_STEPS = 20.0
"""A proposal that takes longer than both this time and so many plain steps is a fault."""

MAX_FAULTS = 3
"""Faults in one request after which a drafter is left out for the rest of it."""

Named = Sequence[tuple[str, Drafter]]


@dataclass(frozen=True)
class Offer:
    """What all drafters together propose for one request.

    Attributes:
        tree: the merged guesses.
        proposals: what each drafter did.
        reason: why the tree is empty, or None.
        asked: place and milliseconds of every drafter that was asked.
    """

    tree: DraftTree
    proposals: tuple[Proposal, ...] = ()
    reason: str | None = None
    asked: tuple[tuple[int, float], ...] = ()


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
    request: Request,
    info: TargetInfo,
    limit: int,
    costs: Costs | None,
    others: int = 0,
    deepest: int = MAX_NODES,
) -> Offer:
    """The guesses of the wanted drafters that are worth asking: checked, cut where none could be emitted, merged.

    Args:
        drafters: all of them, by name.
        request: for which.
        info: of the target.
        limit: nodes one drafter may propose.
        costs: what the target's forwards cost; None asks all drafters.
        others: requests that step with this one.
        deepest: tokens in a row that are drafted at most.
    """
    # The step emits one token more than it accepts, and the root itself takes one place of the context.
    depth = min(request.output.room - 1, info.context - request.length - 1, deepest, request.switches.deepest)
    if why := _unasked(drafters, request, depth, limit):
        return Offer(DraftTree.empty(), (), why)
    request.show(depth)
    chains = not (RULES[request.rule].trees and info.trees)
    ratio = RULES[request.rule].laws
    plain = alone = 0.0
    if costs:
        rows = np.array([1 + others, 1])
        plain, alone = costs.step(rows, rows * float(request.length)).tolist()
    trees: dict[int, DraftTree] = {}
    proposals: dict[int, Proposal] = {}

    def merged() -> DraftTree:
        # In the order of asking: what was drawn earlier may decide who is asked later, so it must be judged earlier.
        whole = DraftTree.merge(list(trees.values()))
        return request.trust.temper(shallow(best_chain(whole) if chains else whole, depth))

    def pays(index: int) -> bool:
        if costs is None:
            return True
        spent = sum(p.ms for p in proposals.values())
        without = promise(merged(), costs, request.length, others)
        without = Expected(without.tokens, without.ms + spent)
        return request.asking.pays(index, without, plain, Expected(others, plain - alone + spent))

    share = plain / (1 + others)
    wanted = sorted(request.switches.drafters)
    dear = {i for i in wanted if costs and not request.asking.cheap(i, share)}
    for index in sorted(wanted, key=dear.__contains__):
        name = drafters[index][0]
        if index in request.benched:
            proposals[index] = Proposal(name, 0, 0.0, f"left out: {request.benched[index]}")
        elif index in dear and not pays(index):
            proposals[index] = Proposal(name, 0, 0.0, unasked="it is not expected to earn its time")
        else:
            # A merge of too many nodes would drop the least likely, which drawn nodes must not be dropped for.
            left = min(limit, MAX_NODES - sum(map(len, trees.values()))) if ratio else limit
            tree, proposals[index] = _asked(drafters[index], index, request, info, left, plain)
            tree = legal(request, tree)
            if len(tree):
                trees[index] = best_chain(tree) if chains else tree
    tree = merged()
    done = tuple(proposals[index] for index in wanted)
    asked = tuple((i, p.ms) for i, p in zip(wanted, done, strict=True) if p.ms > 0.0)
    return Offer(tree, done, None if len(tree) else _guessless(done), asked)


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


def _asked(
    named: tuple[str, Drafter], index: int, request: Request, info: TargetInfo, limit: int, plain_ms: float
) -> tuple[DraftTree, Proposal]:
    """One drafter's guess, empty when it broke its contract."""
    name, drafter = named
    clock = time.perf_counter()
    tree, fault = DraftTree.empty(), None
    try:
        tree = _checked(drafter.propose(request.views[index], limit), index, limit, info.vocab_size)
    except Exception as error:
        fault = _fault(request, index, error, final=False)
    ms = 1e3 * (time.perf_counter() - clock)
    most = max(STALL_MS, STALL_STEPS * plain_ms)
    if ms > most and fault is None:
        late = DrafterError(f"took {ms:.0f} ms, the limit is {most:.0f}")
        fault, tree = _fault(request, index, late, final=False), DraftTree.empty()
    return tree, Proposal(name, len(tree), ms, fault)


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
    tokens = _flat("tokens", tree.tokens, "iu")
    parents = _flat("parents", tree.parents, "iu").tolist()
    survival = _flat("survival", tree.survival, "f").tolist()
    if int(tokens.max()) >= vocab_size:
        raise DrafterError(f"proposed token {int(tokens.max())}, the vocabulary ends at {vocab_size - 1}")
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
        survival[i] = min(survival[i], survival[parent] if parent >= 0 else 1.0)
    return DraftTree.of(tokens.tolist(), parents, survival, index, laws)


def _flat(what: str, array: object, kinds: str) -> npt.NDArray[Any]:
    """A copy of a flat array of numbers of some kinds, and nothing else: a drafter may keep and change its own."""
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in kinds:
        raise DrafterError(f"proposed {what} that are no flat array of {'whole' if kinds == 'iu' else 'real'} numbers")
    return np.array(array, subok=False)


def _fault(request: Request, index: int, error: Exception, final: bool) -> str:
    """Note a fault; a final one, or the third, leaves the drafter out of the request."""
    said = first_line(error)
    text = said if isinstance(error, DrafterError) else f"{type(error).__name__}: {said}"
    request.faults[index] = request.faults.get(index, 0) + 1
    if final or request.faults[index] >= MAX_FAULTS:
        request.benched[index] = text
    return text
