"""Decoders that are wrong on purpose, each in a way that was met in the field. A kit that lets one pass is worthless.

Each entry of ``WRONG`` puts one fault into the running engine, a target or a drafter, and says which of the kit's
checks must notice. What a method does wrong is said by its class.
"""

# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

import augury.engine.drafting as drafting_module
import augury.engine.engine as engine_module
import augury.engine.loop as loop_module
from augury.accept import RULES, Drawn, Law, block, walk
from augury.accept import Noise as Chance
from augury.conformance.kit import check_drafter, check_target
from augury.conformance.law import swapped
from augury.conformance.report import Report
from augury.conformance.toys import Sampled, TopK, ToyTarget, noisy
from augury.drafters.drafter import Drafter, Rule, View
from augury.engine.request import Request
from augury.models.target import Rows
from augury.noise import LawArray, Noise, Stream
from augury.sampling import Sampler
from augury.tree import DraftTree, FloatArray, Path

# ---- rules ----------------------------------------------------------------------------------------------------------


def unverified_first(tree: DraftTree, drawn: Drawn) -> Path:
    """The first draft token is taken as it stands; only those behind it are compared."""
    if not len(tree):
        return walk(tree, drawn)
    drawn[0]  # drawn, and not looked at
    node, nodes = 0, [0]
    while True:
        token = drawn[node + 1]
        children = [c for c in tree.children(node) if tree.tokens[c] == token]
        if not children:
            return Path(tuple(nodes), token)
        node = children[0]
        nodes.append(node)


def best_of_independent(tree: DraftTree, law: Law, noise: Chance, position: int) -> Path:
    """Every candidate is compared with a draw of its own, and the first that matches is kept."""
    p = law(0)
    for index, child in enumerate(tree.children(-1)):
        x = int(tree.tokens[child])
        if noise.uniform(position, index) < float(p[x]):
            return Path((child,), _draw(law(child + 1), noise, position + 1))
    return Path((), _draw(p, noise, position))


def _rejection_with(
    accept: Callable[[LawArray, LawArray, int], float],
    rest: Callable[[LawArray, LawArray, LawArray, int], LawArray],
    bonus: Callable[[LawArray, LawArray | None], LawArray] = lambda p, q: p,
) -> Callable[[DraftTree, Law, Chance, int], Path]:
    """Recursive rejection with another threshold, another residual or another bonus."""

    def rule(tree: DraftTree, law: Law, noise: Chance, position: int) -> Path:
        node, depth, last = -1, 0, None
        while True:
            p = residual = law(node + 1)
            children = tree.children(node)
            for index, child in enumerate(children):
                x = int(tree.tokens[child])
                q = np.eye(len(p))[x] if child not in tree.laws else tree.laws[child].astype(np.float64)
                if noise.uniform(position + depth, index) < accept(residual, q, x):
                    node, depth, last = child, depth + 1, q
                    break
                residual = rest(p, residual, q, x)
            else:
                ends = residual if children else bonus(p, last)
                return Path(tuple(tree.path(node)), _draw(ends, noise, position + depth))

    return rule


def _ratio(r: LawArray, q: LawArray, x: int) -> float:
    return float(r[x] / q[x])


def _to_best(r: LawArray, q: LawArray, x: int) -> float:
    return float(r[x] / r.max())


def _true_rest(p: LawArray, r: LawArray, q: LawArray, x: int) -> LawArray:
    rest = np.maximum(r - q, 0.0)
    return rest / rest.sum() if rest.any() else r


def _all_of_p(p: LawArray, r: LawArray, q: LawArray, x: int) -> LawArray:
    return p


def _p_without_x(p: LawArray, r: LawArray, q: LawArray, x: int) -> LawArray:
    rest = r.copy()
    rest[x] = 0.0
    return rest / rest.sum() if rest.any() else r


def _draft_again(p: LawArray, q: LawArray | None) -> LawArray:
    return p if q is None else q


def _draw(law: LawArray, noise: Chance, position: int) -> int:
    return int(np.argmax(law / noise.exponential(position, len(law))))


class _ByPosition:
    """Noise whose verdicts are named by the token's position, so that a later step of ``block`` meets them again."""

    def __init__(self, noise: Chance) -> None:
        self.exponential = noise.exponential
        self._noise = noise

    def uniform(self, position: int, index: int) -> float:
        return self._noise.uniform(position + index, 0)


def block_verdicts_again(tree: DraftTree, law: Law, noise: Chance, position: int) -> Path:
    """Block verification whose verdicts on tokens that were not kept are met again by the next step."""
    return block(tree, law, _ByPosition(noise), position)


def block_as_product(tree: DraftTree, law: Law, noise: Chance, position: int) -> Path:
    """Accepts i tokens with their joint ratio, as if that were the chance of the whole block."""
    kept, accepted, residual = 1.0, 0, law(0)
    for i in range(len(tree)):
        p, x = law(i), int(tree.tokens[i])
        q = np.eye(len(p))[x] if i not in tree.laws else tree.laws[i].astype(np.float64)
        if i == accepted:
            residual = _true_rest(p, p, q, x)
        kept = min(1.0, kept * float(p[x] / q[x]))
        if noise.uniform(position, i) < kept:
            accepted, residual = i + 1, law(i + 1)
    return Path(tuple(range(accepted)), _draw(residual, noise, position + accepted))


# ---- samplers and noise ---------------------------------------------------------------------------------------------


class ForgetsDraft(Sampler):
    """Penalties and bans look at committed tokens only."""

    def law(self, logits: FloatArray, path: Sequence[int]) -> LawArray:
        return super().law(logits, ())

    def draw(self, logits: FloatArray, path: Sequence[int]) -> int:
        saved, self._length = self._length, self._length + len(path)  # the right noise, the wrong history
        try:
            return super().draw(logits, ())
        finally:
            self._length = saved


class CountsTwice(Sampler):
    """The last token is counted in the answer and once more in the draft."""

    def _edit(self, logits: FloatArray, path: Sequence[int]) -> FloatArray:
        return super()._edit(logits, [*path, path[-1]] if len(path) else path)


class RawBonus(Sampler):
    """The row behind two draft tokens, the last of the drafts here, skips the pipeline."""

    def _scores(self, logits: FloatArray, path: Sequence[int]) -> FloatArray:
        scores = super()._scores(logits, path)
        return logits if len(path) == 2 else scores


class ForgetsProcessors(Sampler):
    """Processors with state are advanced by whatever was verified, refused or not."""

    def _process(self, logits: FloatArray, path: tuple[int, ...]) -> FloatArray:
        scores = self._edit(logits, path)
        for processor in self._sampling.processors:
            scores = processor(self._put(path), scores)
        self._tried[path] = self._states, scores
        return scores


class ForgetsGrammar(Sampler):
    """The grammar looks at committed tokens only."""

    def _scores(self, logits: FloatArray, path: Sequence[int]) -> FloatArray:
        following, self._following = self._following, None
        try:
            scores = super()._scores(logits, path)
        finally:
            self._following = following
        return scores if following is None else np.where(following.allowed(()), scores, np.float32(-np.inf))


class NoiseByStep(Sampler):
    """Noise of the step's first position serves all its rows."""

    def draw(self, logits: FloatArray, path: Sequence[int]) -> int:
        weights = self._weights(self._scores(logits, path))
        return _draw(weights, self._noise, self._length)


class Unsalted(Noise):
    """Proposals that must be independent, of later steps or other drafters, are made with the same noise."""

    def salted(self, salt: int) -> Noise:
        return self


def one_stream(seed: int, stream: int) -> Noise:
    """Drafts and verdicts are made with the same noise."""
    return Unsalted(seed, Stream.ACCEPT)


def cuts_drawn(request: Request, tree: DraftTree) -> DraftTree:
    """Under a ratio rule a drawn token that the grammar bans is cut off instead of judged."""
    return tree.keep(range(request.sampler.legal(tree.tokens.tolist())))


# ---- drafters -------------------------------------------------------------------------------------------------------


class GreedyAsSampled(Sampled):
    """Proposes the likeliest token and declares the law as if it had been drawn."""

    def propose(self, view: View, limit: int) -> DraftTree:
        law = self._law(view, []).astype(np.float32)
        return DraftTree.chain([int(np.argmax(law))], [0.5], laws={0: law})


class TrimsByToken(Sampled):
    """Drops a drawn token that it thinks unlikely."""

    def propose(self, view: View, limit: int) -> DraftTree:
        tree = super().propose(view, limit)
        for i in range(len(tree)):
            if tree.laws[i][tree.tokens[i]] < 0.4:
                return tree.keep(range(i))
        return tree


class SharperThanSaid(Sampled):
    """Draws from a sharper law than the one it declares."""

    def propose(self, view: View, limit: int) -> DraftTree:
        law = self._law(view, [])
        sharp = law**2
        token = int(np.argmax(sharp / view.noise.exponential(view.length, len(law))))
        return DraftTree.chain([token], [0.5], laws={0: law.astype(np.float32)})


class SiblingsAsIndependent(Sampled):
    """Draws siblings without replacement and declares for each the law of the first."""

    def propose(self, view: View, limit: int) -> DraftTree:
        tree = super().propose(view, limit)
        first = {i: tree.laws[tree.children(int(tree.parents[i]))[0]] for i in range(len(tree))}
        return DraftTree(tree.tokens, tree.parents, tree.survival, tree.source, first)


# ---- targets --------------------------------------------------------------------------------------------------------


class KeepsFirstRows(ToyTarget):
    """Commit keeps as many rows as were accepted, but the first ones."""

    def commit(self, slots: Sequence[int], paths: Sequence[Path]) -> None:
        super().commit(slots, [Path(tuple(range(len(path.nodes))), path.next_token) for path in paths])


class KeepsRefused(ToyTarget):
    """Commit keeps one row more than was accepted, and says it did not."""

    def commit(self, slots: Sequence[int], paths: Sequence[Path]) -> None:
        refused = {slot: self._cells[slot][-1] for slot in slots}
        super().commit(slots, paths)
        for slot in slots:
            self._cells[slot][-1] = refused[slot]


class DoesNotRollBack(ToyTarget):
    """Truncate does nothing."""

    def truncate(self, slot: int, length: int) -> None:
        return None


class AllNodesInARow(ToyTarget):
    """Every node attends to all rows before it, ancestors or not."""

    def verify(self, slots: Sequence[int], roots: Sequence[int], trees: Sequence[DraftTree]) -> Rows:
        rows = super().verify(slots, roots, trees)
        logits = []
        for slot, tree in zip(slots, trees, strict=True):
            cells = self._cells[slot]
            end = len(cells) - len(tree)
            logits.append(np.stack([self._logits(cells[: end + i]) for i in range(len(tree) + 1)]))
        return Rows(logits, rows.hidden)


class MixesRequests(ToyTarget):
    """Rows of one request move when another is in the forward."""

    def verify(self, slots: Sequence[int], roots: Sequence[int], trees: Sequence[DraftTree]) -> Rows:
        rows = super().verify(slots, roots, trees)
        return Rows([np.asarray(one + np.float32(1e-3 * (len(slots) - 1))) for one in rows.logits], rows.hidden)


# ---- the list -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """A fault, how to put it in, and who must notice.

    Attributes:
        what: the fault in one line.
        check: the kit's report with the fault in place.
        right: the same report without it.
        noticed: part of the name of a check that must fail.
    """

    what: str
    check: Callable[[], Report]
    right: Callable[[], Report]
    noticed: str


def _engine(what: str, module: object, name: str, value: object, make: str, rule: Rule, noticed: str) -> Wrong:
    """A fault in the engine."""

    def check() -> Report:
        with swapped(module, name, value):
            return check_drafter(_DRAFTERS[make], name=what, rules=(rule,), samples=samples)

    samples = 10_000 if noticed == "counted" else 1_000  # what is seen exactly need not be counted as well
    return Wrong(what, check, lambda: _right(make, rule, samples), noticed)


def _rule(what: str, apply: Callable[..., Path], make: str, rule: Rule, noticed: str) -> Wrong:
    """A fault in a ratio rule."""
    rules = {**RULES, rule: replace(RULES[rule], apply=apply)}
    return _engine(what, loop_module, "RULES", rules, make, rule, noticed)


@lru_cache
def _right(make: str, rule: Rule, samples: int) -> Report:
    """The report without a fault."""
    return check_drafter(_DRAFTERS[make], name=make, rules=(rule,), samples=samples)


def _drafter(make: Callable[[ToyTarget], Drafter], right: str) -> Wrong:
    """A fault in a drafter."""
    what = _what(make(ToyTarget(3)))
    return Wrong(
        what,
        lambda: check_drafter(make, name=what, rules=("rejection",), samples=1_000),
        lambda: _right(right, "rejection", 1_000),
        "law under rejection",
    )


def _target(kind: type[ToyTarget], noticed: str) -> Wrong:
    """A fault in a target."""
    what = (kind.__doc__ or "").strip()
    return Wrong(what, lambda: check_target(kind, name=what), lambda: check_target(ToyTarget), noticed)


def _what(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def _model(target: ToyTarget) -> ToyTarget:
    return ToyTarget(target.info.vocab_size, seed=2)


def _q(target: ToyTarget) -> Callable[[View, list[int]], LawArray]:
    """Law of another model."""
    model = _model(target)

    def law(view: View, path: list[int]) -> LawArray:
        weights = np.exp(model.row([*view.tokens.tolist(), *path]).astype(np.float64))
        return np.asarray(weights / weights.sum())

    return law


def _one_sided(target: ToyTarget) -> Callable[[View, list[int]], LawArray]:
    """A law far from ``kit.SLANTED``, the same everywhere."""
    law = np.zeros(target.info.vocab_size)
    law[:3] = 0.8, 0.19, 0.01
    return lambda view, path: law


_DRAFTERS: Mapping[str, Callable[[ToyTarget], Drafter]] = MappingProxyType(
    {
        "top tokens": lambda target: TopK(_model(target), 2, 2),
        "own top tokens": lambda target: TopK(target, 2, 2),
        "sampled chain": lambda target: noisy(_model(target), depth=2),
        "sampled siblings": lambda target: noisy(_model(target), 2, 1),
        "same law": lambda target: Sampled(_one_sided(target), depth=2),
    }
)

WRONG: Mapping[str, Wrong] = MappingProxyType(
    {
        "unverified_first": _engine(
            _what(unverified_first), loop_module, "walk", unverified_first, "top tokens", "coupled", "same tokens"
        ),
        "best_of_independent": _rule(
            _what(best_of_independent), best_of_independent,
            "top tokens", "rejection", "exact",
        ),
        "correction_is_p": _rule(
            "The correction is drawn from p, and may repeat the refused token.",
            _rejection_with(_ratio, _all_of_p), "top tokens", "rejection", "exact",
        ),
        "residual_without_q": _rule(
            "The residual is p without the refused token instead of max(0, p - q).",
            _rejection_with(_ratio, _p_without_x), "sampled chain", "rejection", "exact",
        ),
        "ratio_to_best": _rule(
            "The ratio is p(x) to the best p instead of q(x).",
            _rejection_with(_to_best, _true_rest), "sampled chain", "rejection", "exact",
        ),
        "bonus_from_q": _rule(
            "The bonus token is drawn from the drafter's law.",
            _rejection_with(_ratio, _true_rest, _draft_again), "sampled chain", "rejection", "exact",
        ),
        "block_as_product": _rule(
            _what(block_as_product), block_as_product, "sampled chain", "block", "exact",
        ),
        "block_verdicts_again": _rule(
            _what(block_verdicts_again), block_verdicts_again,
            "same law", "block", "counted",
        ),
        "forgets_draft": _engine(
            _what(ForgetsDraft), engine_module, "Sampler", ForgetsDraft, "own top tokens", "coupled", "same tokens"
        ),
        "counts_twice": _engine(
            _what(CountsTwice), engine_module, "Sampler", CountsTwice, "own top tokens", "coupled", "same tokens"
        ),
        "raw_bonus": _engine(
            _what(RawBonus), engine_module, "Sampler", RawBonus, "own top tokens", "rejection", "processed"
        ),
        "forgets_processors": _engine(
            _what(ForgetsProcessors), engine_module, "Sampler", ForgetsProcessors,
            "top tokens", "coupled", "same tokens",
        ),
        "forgets_grammar": _engine(
            _what(ForgetsGrammar), engine_module, "Sampler", ForgetsGrammar, "own top tokens", "coupled", "same tokens"
        ),
        "cuts_drawn": _engine(
            _what(cuts_drawn), drafting_module, "legal", cuts_drawn, "sampled chain", "rejection", "grammar"
        ),
        "noise_by_step": _engine(
            _what(NoiseByStep), engine_module, "Sampler", NoiseByStep, "own top tokens", "coupled", "same tokens"
        ),
        "unsalted": _engine(
            _what(Unsalted), engine_module, "Noise", Unsalted, "same law", "block", "counted"
        ),
        "one_stream": _engine(
            _what(one_stream), engine_module, "Noise", one_stream,
            "same law", "rejection", "counted",
        ),
        "greedy_as_sampled": _drafter(lambda target: GreedyAsSampled(_q(target)), "sampled chain"),
        "trims_by_token": _drafter(lambda target: TrimsByToken(_q(target), depth=2), "sampled chain"),
        "sharper_than_said": _drafter(lambda target: SharperThanSaid(_q(target)), "sampled chain"),
        "siblings_as_independent": _drafter(
            lambda target: SiblingsAsIndependent(_q(target), 2, 1), "sampled siblings"
        ),
        "keeps_first_rows": _target(KeepsFirstRows, "commit keeps a path of a tree"),
        "keeps_refused": _target(KeepsRefused, "commit keeps the path"),
        "does_not_roll_back": _target(DoesNotRollBack, "truncate"),
        "all_nodes_in_a_row": _target(AllNodesInARow, "rows of a tree"),
        "mixes_requests": _target(MixesRequests, "requests together"),
    }
)  # fmt: skip
"""Every fault by name."""
