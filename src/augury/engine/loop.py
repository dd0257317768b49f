"""The one loop: propose, choose, verify, accept, commit, observe, emit.

Plain decoding is this with empty trees, a chain is a tree without branches, one request is a batch of one.
Nothing else calls ``Target.verify`` to generate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from augury.accept import RULES, walk
from augury.budget import choose
from augury.drafters.drafter import Observation
from augury.engine.asking import Asking
from augury.engine.costs import Meter
from augury.engine.drafting import Named, Offer, learn, observe, propose
from augury.engine.gate import PAUSED, Gates
from augury.engine.request import Chunk, Request, TokenLogprob, frozen
from augury.engine.trust import Trust
from augury.models.target import Target
from augury.record import StepRecord
from augury.sampling import logprobs
from augury.tree import MAX_NODES, DraftTree, FloatArray, Path


@dataclass
class Parts:
    """What a step works with; ``deepest``: draft tokens in a row that are verified at most."""

    target: Target
    drafters: Named
    meter: Meter | None
    trust: Trust = field(default_factory=Trust)
    asking: Asking = field(default_factory=Asking)
    gates: Gates = field(default_factory=Gates)
    deepest: int = MAX_NODES

    @property
    def private(self) -> frozenset[int]:
        """Places of the drafters that remember what users were told: how often they are right is theirs to know."""
        return frozenset(i for i, (_, drafter) in enumerate(self.drafters) if drafter.remembers)


def step(parts: Parts, batch: Sequence[Request]) -> list[StepRecord]:
    """Advance every request of the batch by at least one token; gives one record each."""
    clock = _Clock()
    committed = [r.length - 1 for r in batch]
    costs = parts.meter.costs if parts.meter else None
    gate = parts.gates.of(len(batch)) if costs and len(batch) > 1 and any(r.switches.drafters for r in batch) else None
    drafting = gate is None or gate.open()
    limits = [costs.useful_nodes(n) if costs else MAX_NODES for n in committed]
    if drafting:
        offers = propose(parts.drafters, batch, parts.target.info, limits, costs, parts.deepest)
    else:
        offers = [Offer(DraftTree.empty(), (), PAUSED)] * len(batch)
    drafting_ms = clock.total()
    trees = choose([offer.tree for offer in offers], costs, committed, drafting_ms)
    draft_ms = clock.lap()

    slots = [r.slot for r in batch]
    rows = parts.target.verify(slots, [r.root for r in batch], trees)
    verify_ms = clock.lap()

    paths = [_accept(r, tree, logits) for r, tree, logits in zip(batch, trees, rows.logits, strict=True)]
    chances = [_chances(r, tree, logits) for r, tree, logits in zip(batch, trees, rows.logits, strict=True)]
    coins = [_coins(r, tree, path) for r, tree, path in zip(batch, trees, paths, strict=True)]
    accept_ms = clock.lap()

    emitted = [_emit(r, tree, path) for r, tree, path in zip(batch, trees, paths, strict=True)]
    kept = [Path(p.nodes[: len(e)], p.next_token) for p, e in zip(paths, emitted, strict=True)]
    parts.target.commit(slots, kept)
    commit_ms = clock.lap()

    count, private = sum(len(t) + 1 for t in trees), parts.private
    read = sum((len(t) + 1) * n for t, n in zip(trees, committed, strict=True))
    expected = None  # what the tables say of this step: without its drafts, and with them
    if costs:
        expected = costs.step(np.array([len(batch), count]), np.array([float(sum(committed)), float(read)]))
    records = []
    for j, request in enumerate(batch):
        logits, tree = rows.logits[j], trees[j]
        hidden = rows.hidden[j] if rows.hidden is not None else None
        wanted = _logprobs(request, tree, paths[j], emitted[j], logits)
        if request.error is None:
            learn(request, offers[j], tree, paths[j], len(emitted[j]), costs, parts.trust, parts.asking, private)
            if request.opened:
                observe(parts.drafters, request, _seen(tree, paths[j], emitted[j], logits, hidden))
        record = StepRecord(
            position=committed[j],
            root=int(request.tokens[committed[j]]),
            tree=tree if not tree.laws else DraftTree(tree.tokens, tree.parents, tree.survival, tree.source),
            path=paths[j],
            emitted=emitted[j],
            proposals=offers[j].proposals,
            reason=None if len(tree) else offers[j].reason or "the guesses were not worth their rows",
            rows=count,
            draft_ms=draft_ms,
            verify_ms=verify_ms,
            accept_ms=accept_ms,
            commit_ms=commit_ms,
            rest_ms=clock.lap(),
            probabilities=chances[j],
            # A law is as wide as the vocabulary, and records are kept for the whole answer.
            sampled={node: float(law[tree.tokens[node]]) for node, law in tree.laws.items()},
            began=clock.begin,
            plain_ms=None if expected is None else float(expected[0]),
            requests=len(batch),
            coins=coins[j],
        )
        records.append(record)
        _deliver(request, record, wanted)
    if parts.meter and costs and expected is not None:
        if gate and drafting:
            plain_ms, whole_ms = (expected - costs.rest).tolist()
            gate.learn(sum(map(len, emitted)), len(batch), clock.total(), costs.rest + plain_ms * verify_ms / whole_ms)
        parts.meter.served(count, float(read), verify_ms, clock.total() - verify_ms - drafting_ms)
    return records


class _Clock:
    """Wall time in laps, so that the phases of a step add up to the step."""

    def __init__(self) -> None:
        self.begin = self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        ms, self._last = 1e3 * (now - self._last), now
        return ms

    def total(self) -> float:
        return 1e3 * (time.perf_counter() - self.begin)


def _accept(request: Request, tree: DraftTree, logits: FloatArray) -> Path:
    """Apply the request's rule; a law that cannot be computed ends the request, not the batch."""
    sampler, rule = request.sampler, RULES[request.rule]
    try:
        if sampler.temperature == 0.0 or not rule.laws:
            return walk(tree, _Drawn(lambda row: sampler.draw(logits[row], _along(tree, row))))
        return rule.apply(
            tree, lambda row: sampler.law(logits[row], _along(tree, row)), request.accept_noise, request.length
        )
    except Exception as error:
        request.error = error
        return Path((), 0)


def _along(tree: DraftTree, row: int) -> list[int]:
    """Draft tokens between the root and the token that row ``row`` is the law of."""
    return [int(tree.tokens[i]) for i in tree.path(row - 1)]


class _Drawn:
    """The target's own tokens by row, drawn when the walk asks: only rows of the accepted path are drawn."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw

    def __getitem__(self, row: int) -> int:
        return self._draw(row)


def _emit(request: Request, tree: DraftTree, path: Path) -> tuple[int, ...]:
    """Cut the path where the answer ends and add it to the request."""
    if request.error is not None:
        return ()
    tokens = [int(tree.tokens[i]) for i in path.nodes] + [path.next_token]
    tokens = tokens[: request.output.push(tokens)]
    request.sampler.advance(tokens)
    request.append(np.asarray(tokens, np.int32))
    return tuple(tokens)


def _seen(
    tree: DraftTree, path: Path, emitted: tuple[int, ...], logits: FloatArray, hidden: FloatArray | None
) -> Observation:
    """What a step brought, in arrays that drafters cannot write to."""
    if len(tree):
        for array in (tree.tokens, tree.parents, tree.survival, tree.source):
            array.flags.writeable = False
    tokens = frozen(np.asarray(emitted, np.int32))
    return Observation(tree, path, tokens, frozen(logits), None if hidden is None else frozen(hidden))


def _logprobs(
    request: Request, tree: DraftTree, path: Path, emitted: tuple[int, ...], logits: FloatArray
) -> tuple[TokenLogprob, ...]:
    """The target's log-probabilities of the emitted tokens; a row that has none ends the request, not the batch."""
    if request.switches.logprobs is None:
        return ()
    rows = [0] + [i + 1 for i in path.nodes]
    found = []
    try:
        for token, row in zip(emitted, rows, strict=False):
            value, top = logprobs(logits[row], token, request.switches.logprobs)
            found.append(TokenLogprob(token, value, tuple(top)))
    except Exception as error:
        request.error = error
    return tuple(found)


def _chances(request: Request, tree: DraftTree, logits: FloatArray) -> tuple[float, ...] | None:
    """The target's probability of each node's token given its path, under the request's sampling law."""
    if not request.switches.explain or request.error is not None:
        return None
    sampler, chances = request.sampler, []
    for i, parent in enumerate(tree.parents.tolist()):
        try:
            chances.append(float(sampler.law(logits[parent + 1], _along(tree, parent + 1))[tree.tokens[i]]))
        except Exception:  # a row off the path may have no law; the path's own rows were judged before
            chances.append(float("nan"))
    return tuple(chances)


def _coins(request: Request, tree: DraftTree, path: Path) -> tuple[float | None, ...] | None:
    """The chance that decided on each node, thrown once more: noise is named, so it falls as it fell."""
    told = RULES[request.rule].coins
    if not request.switches.explain or told is None or request.sampler.temperature == 0.0 or request.error is not None:
        return None
    return told(tree, path, request.accept_noise, request.length)


def _deliver(request: Request, record: StepRecord, wanted: tuple[TokenLogprob, ...]) -> None:
    """Put the step's text and tokens where the caller takes them."""
    request.record.steps.append(record)
    request.record.finish = "error" if request.error is not None else request.output.finish
    request.record.stop = request.output.stop
    names = request.record.drafters
    request.chunks.append(
        Chunk(
            text=request.output.take(),
            tokens=record.emitted,
            sources=tuple(names[s] if s >= 0 else None for s in record.sources),
            logprobs=wanted,
            finish_reason=request.record.finish,
            step=record,
            record=request.record,
        )
    )
