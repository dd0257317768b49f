"""Asks the drafters. One that raises, stalls or returns nonsense costs its own step, and after three faults in a
request it is left out for the rest of that request; the others, and the answer, never notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from augury.accept import RULES
from augury.budget import best_chain, shallow
from augury.drafters.drafter import Drafter, Observation, View
from augury.engine.request import Request
from augury.errors import DrafterError
from augury.models.target import TargetInfo
from augury.record import Proposal
from augury.tree import DraftTree

STALL_MS = 1000.0
"""A proposal that takes longer is a fault."""

MAX_FAULTS = 3
"""Faults in one request after which a drafter is left out for the rest of it."""

Named = Sequence[tuple[str, Drafter]]


def begin(drafters: Named, request: Request) -> None:
    """Show a new request to every drafter; one that cannot begin is left out of it."""
    _each(drafters, request, lambda d, view: d.open(view), final=True)


def observe(drafters: Named, request: Request, seen: Observation) -> None:
    """Show what a step brought."""
    _each(drafters, request, lambda d, view: d.observe(view, seen), final=False)


def end(drafters: Named, request: Request) -> None:
    """Let every drafter forget a request, the left-out ones too."""
    for index, (_, drafter) in enumerate(drafters):
        try:
            drafter.close(request.views[index])
        except Exception as error:
            _fault(request, index, error, final=False)


def propose(drafters: Named, request: Request, info: TargetInfo, limit: int) -> tuple[DraftTree, tuple[Proposal, ...]]:
    """Every drafter's guess, checked, merged, and cut where nothing more could be emitted."""
    # The step emits one token more than it accepts, and the root itself takes one place of the context.
    depth = min(request.output.room, info.context - request.length) - 1
    if not request.switches.draft or depth < 1:
        return DraftTree.empty(), ()
    chains = not (RULES[request.rule].trees and info.trees)
    trees, proposals = [], []
    for index, (name, drafter) in enumerate(drafters):
        if index in request.benched:
            continue
        clock = time.perf_counter()
        fault = None
        tree = DraftTree.empty()
        try:
            tree = _checked(drafter.propose(request.views[index], limit), limit, info.vocab_size)
        except Exception as error:
            fault = _fault(request, index, error, final=False)
        ms = 1e3 * (time.perf_counter() - clock)
        if ms > STALL_MS and fault is None:
            late = DrafterError(f"took {ms:.0f} ms, the limit is {STALL_MS:.0f}")
            fault, tree = _fault(request, index, late, final=False), DraftTree.empty()
        proposals.append(Proposal(name, len(tree), ms, fault))
        if len(tree):
            tree = best_chain(tree) if chains else tree
            source = np.full(len(tree), index, np.uint8)
            trees.append(DraftTree(tree.tokens, tree.parents, tree.survival, source, tree.laws))
    merged = DraftTree.merge(trees)
    return shallow(best_chain(merged) if chains else merged, depth), tuple(proposals)


def _each(drafters: Named, request: Request, call: Callable[[Drafter, View], None], final: bool) -> None:
    if not request.switches.draft:
        return
    for index, (_, drafter) in enumerate(drafters):
        if index not in request.benched:
            try:
                call(drafter, request.views[index])
            except Exception as error:
                _fault(request, index, error, final)


def _checked(tree: object, limit: int, vocab_size: int) -> DraftTree:
    """A proposal that keeps the contract, or an error that says how it does not."""
    if not isinstance(tree, DraftTree):
        raise DrafterError(f"proposed a {type(tree).__name__}, not a DraftTree")
    if len(tree) > limit:
        raise DrafterError(f"proposed {len(tree)} nodes, the limit is {limit}")
    if len(tree) and int(tree.tokens.max()) >= vocab_size:
        raise DrafterError(f"proposed token {int(tree.tokens.max())}, the vocabulary ends at {vocab_size - 1}")
    for node, law in tree.laws.items():
        if law.shape != (vocab_size,) or not law[tree.tokens[node]] > 0.0:
            raise DrafterError(f"node {node} declares a law that could not have drawn its token")
        if not (law.min() >= 0.0 and abs(float(law.sum()) - 1.0) < 1e-3):
            raise DrafterError(f"node {node} declares a law that is none: it sums to {float(law.sum()):.4g}")
    return tree


def _fault(request: Request, index: int, error: Exception, final: bool) -> str:
    """Note a fault; a final one, or the third, leaves the drafter out of the request."""
    text = str(error) if isinstance(error, DrafterError) else f"{type(error).__name__}: {error}"
    request.faults[index] = request.faults.get(index, 0) + 1
    if final or request.faults[index] >= MAX_FAULTS:
        request.benched[index] = text
    return text
