"""The comparison must find every kind of difference, and call a near tie only what is one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from augury.conformance.identity import (
    KEPT,
    NEAR,
    NEAR_HALF,
    Row,
    Run,
    Watched,
    check_rule,
    compare,
    examine,
    nearness,
    watched,
)  # fmt: skip
from augury.conformance.toys import ToyTarget, oracle
from augury.engine.engine import Engine
from augury.errors import InputError
from augury.models.target import Target, TargetInfo
from augury.noise import Noise, Stream
from augury.sampling import Sampling
from augury.tree import DraftTree, Path

V = 8
RNG = np.random.default_rng(0)


def greedy_run(rows, begin=3):
    """A run whose tokens are the largest logits of its rows."""
    rows = [np.asarray(r, np.float32) for r in rows]
    return Run(tuple(int(np.argmax(r)) for r in rows), begin, {begin - 1 + j: Row.of(r) for j, r in enumerate(rows)})


@pytest.fixture
def rows():
    return [r.astype(np.float32) for r in np.random.default_rng(1).normal(size=(5, V))]


def changed(rows, at, token, by):
    new = [r.copy() for r in rows]
    new[at][token] += np.float32(by)
    return new


def test_equal_runs_are_identical(rows):
    verdict = compare(greedy_run(rows), greedy_run(rows), exact=True)
    assert (verdict.kind, verdict.positions, verdict.moved, verdict.first) == ("identical bits", 5, 0.0, None)


def test_one_bit_is_a_bug_on_an_exact_target(rows):
    other = [r.copy() for r in rows]
    other[2].view(np.uint32)[1] ^= 1
    verdict = compare(greedy_run(rows), greedy_run(other), exact=True)
    assert verdict.kind == "BUG"
    assert verdict.first is not None
    assert verdict.first.position == 3 + 2
    # Elsewhere it is reported, and that it happened is not hidden.
    verdict = compare(greedy_run(rows), greedy_run(other), exact=False)
    assert verdict.kind == "same tokens"
    assert verdict.moved > 0
    assert verdict.first is not None


def test_minus_zero_is_not_zero_and_nan_is_itself(rows):
    rows[1][0], rows[3][0] = 0.0, np.nan
    run = greedy_run(rows)
    assert compare(run, run, exact=True).kind == "identical bits"
    other = [r.copy() for r in rows]
    other[1][0] = -0.0
    assert compare(run, replace(greedy_run(other), tokens=run.tokens), exact=True).kind == "BUG"


def tie(rows, gap):
    """Rows whose third has two largest logits, ``gap`` apart, and the same rows with the order turned."""
    a, b = [r.copy() for r in rows], [r.copy() for r in rows]
    a[2][:2] = 5.0 + gap, 5.0
    b[2][:2] = 5.0, 5.0 + gap
    return greedy_run(a), greedy_run(b)


def test_a_near_tie_is_told_with_all_its_figures(rows):
    verdict = compare(*tie(rows, 0.5 * NEAR), exact=False)
    assert (verdict.kind, verdict.positions) == ("near tie", 3)
    first = verdict.first
    assert first is not None
    assert (first.position, first.tokens) == (5, (0, 1))
    assert first.plain == pytest.approx((5.0 + 0.5 * NEAR, 5.0))
    assert first.drafted == pytest.approx((5.0, 5.0 + 0.5 * NEAR))
    assert first.gap == pytest.approx(0.5 * NEAR, rel=1e-3)


def test_two_tokens_far_apart_are_a_bug(rows):
    assert compare(*tie(rows, 1.5 * NEAR), exact=False).kind == "BUG"
    assert compare(*tie(rows, 1.5 * NEAR), exact=False, near=2 * NEAR).kind == "near tie"
    assert compare(*tie(rows, 0.5 * NEAR), exact=True).kind == "BUG"


def test_a_tie_must_be_near_in_both_runs(rows):
    a, _ = tie(rows, 0.5 * NEAR)
    far = [a.rows[2 + j].logits.copy() for j in range(5)]
    far[2][1] += 1.9 * NEAR  # the drafted run is sure of another token
    verdict = compare(a, greedy_run(far), exact=False)
    assert verdict.kind == "BUG"
    assert "further apart" in verdict.why


def test_logits_that_rounding_does_not_move_so_far_are_a_bug(rows):
    worst = int(np.argmin(rows[1]))
    for by, kind in ((1.9 * NEAR, "same tokens"), (2.1 * NEAR, "BUG")):
        assert compare(greedy_run(rows), greedy_run(changed(rows, 1, worst, -by)), exact=False).kind == kind


def test_what_is_near_depends_on_the_width_of_the_arithmetic_alone():
    # Of an untied embedding one row is read: half of these weights in float32 are fewer bytes than all in bfloat16.
    info = TargetInfo(
        "t", "llama", "r", "float32", 8, 8, 8, 1, parameters=100, weight_bytes=200, trees=True, exact=False
    )
    assert nearness(info) == NEAR
    for half in ("bfloat16", "float16"):
        assert nearness(replace(info, dtype=half)) == NEAR_HALF > NEAR


def test_what_is_kept_of_an_answer_does_not_grow_with_the_vocabulary():
    """8 GB would be kept of 4,096 rows of 262,144 logits; what is kept of a row must do for the verdict."""
    vocab = 1 << 18
    logits = np.random.default_rng(3).normal(size=vocab).astype(np.float32)
    row, drawn = Row.of(logits), Row.of(logits, 5, lambda r, position: r / 2.0)
    for one in (row, drawn):
        assert sum(part.nbytes for part in (one.ids, one.logits, one.scores)) + len(one.digest) < 20_000
        assert len(one.ids) == KEPT
        assert set(np.argsort(-logits)[:KEPT]) == set(one.ids.tolist())
    lowest = int(np.argmin(logits))
    assert np.isnan(row.logit(lowest))
    assert row.gap(int(np.argmax(logits)), lowest) == np.inf
    changed = logits.copy()
    changed[lowest] -= 1.0
    assert Row.of(changed).digest != row.digest  # its bits count all the same
    assert Row.of(logits + np.float32(2.0)).moved(row) == pytest.approx(2.0, rel=1e-6)
    assert Row.of(-logits).moved(row) == np.inf


def test_a_watched_target_keeps_no_whole_rows():
    toy = ToyTarget(1 << 16, context=64)
    engine = watched(Engine(toy, [("half", oracle(Engine(toy).generate([1, 2], max_tokens=6).tokens, 2, 1 << 16))]))
    verdict, plain, drafted = examine(engine, [1, 2], Sampling(temperature=0.7, seed=1), max_tokens=6)
    assert verdict.kind == "identical bits"
    for run in (plain, drafted):
        assert len(run.rows) >= 6
        assert all(len(row.logits) == KEPT for row in run.rows.values())


def test_another_token_from_the_same_bits_is_a_bug(rows):
    run = greedy_run(rows)
    other = replace(run, tokens=(*run.tokens[:4], (run.tokens[4] + 1) % V))
    for exact in (True, False):
        verdict = compare(run, other, exact=exact)
        assert verdict.kind == "BUG"
        assert "same bits" in verdict.why


def test_an_answer_that_ends_earlier_is_a_bug(rows):
    run = greedy_run(rows)
    for a, b in ((run, replace(run, tokens=run.tokens[:3])), (replace(run, tokens=run.tokens[:3]), run)):
        verdict = compare(a, b, exact=False)
        assert verdict.kind == "BUG"
        assert verdict.first is not None
        assert None in verdict.first.tokens


def test_a_drawn_tie_is_judged_by_what_was_drawn(rows):
    noise = Noise(7, Stream.TARGET)

    def scores(row, position):
        return row / 2.0 - np.log(noise.exponential(position, len(row)))

    def run(rows, law=scores):
        chosen = tuple(int(np.argmax(scores(r, 3 + j))) for j, r in enumerate(rows))
        return Run(chosen, 3, {2 + j: Row.of(r, 3 + j, law) for j, r in enumerate(rows)})

    order = np.argsort(scores(rows[2], 5))
    winner, second = int(order[-1]), int(order[-2])
    gap = float(scores(rows[2], 5)[winner] - scores(rows[2], 5)[second])
    assert gap > 10 * NEAR
    close = changed(rows, 2, second, 2.0 * (gap - 0.25 * NEAR))
    flipped = changed(rows, 2, second, 2.0 * (gap + 0.25 * NEAR))
    verdict = compare(run(close), run(flipped), exact=False)
    assert verdict.kind == "near tie"
    assert verdict.first is not None
    assert verdict.first.tokens == (winner, second)
    assert verdict.first.gap == pytest.approx(0.25 * NEAR, rel=1e-2)
    # The logits themselves say nothing of how near the draw was.
    assert compare(run(close, None), run(flipped, None), exact=False).kind == "BUG"


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_rules_that_keep_only_the_law_are_refused(rule):
    with pytest.raises(InputError, match="keeps the law"):
        check_rule(rule, Sampling(temperature=1.0, seed=1))
    check_rule(rule, Sampling())


def test_what_cannot_be_repeated_or_scored_is_refused():
    with pytest.raises(InputError, match="seed"):
        check_rule("coupled", Sampling(temperature=1.0))
    with pytest.raises(InputError, match="only temperature and seed"):
        check_rule("coupled", Sampling(temperature=1.0, seed=1, top_k=5))


class Forwarding(Target):
    """Hands everything on to another target; faults are written on top of it."""

    def __init__(self, inner):
        self.inner, self.info = inner, inner.info

    def open(self):
        return self.inner.open()

    def release(self, slot):
        self.inner.release(slot)

    def length(self, slot):
        return self.inner.length(slot)

    def prefill(self, slot, tokens):
        self.inner.prefill(slot, tokens)

    def verify(self, slots, roots, trees):
        self.roots, self.trees = roots, trees
        return self.inner.verify(slots, roots, trees)

    def commit(self, slots, paths):
        self.inner.commit(slots, paths)

    def truncate(self, slot, length):
        self.inner.truncate(slot, length)

    def copy(self, source, slot, length):
        self.inner.copy(source, slot, length)


class KeepsTheRejected(Forwarding):
    """After a partial hit the cache row of the last kept token is that of a token that was rejected."""

    faults = 0

    def commit(self, slots, paths):
        (slot,), (path,), (tree,) = slots, paths, self.trees
        self.inner.commit(slots, paths)
        rejected = [i for i in range(len(tree)) if i not in path.nodes]
        if path.nodes and rejected:
            self.faults += 1
            length = self.inner.length(slot)
            self.inner.truncate(slot, length - 1)
            self.inner.prefill(slot, tree.tokens[rejected[:1]])


class ForgetsOne(Forwarding):
    """After a hit of two or more the first accepted token is missing from the cache, the later ones moved up."""

    faults = 0

    def commit(self, slots, paths):
        (slot,), (path,), (tree,) = slots, paths, self.trees
        self.inner.commit(slots, paths)
        if len(path.nodes) > 1:
            self.faults += 1
            tail = tree.tokens[list(path.nodes)]
            self.inner.truncate(slot, self.inner.length(slot) - len(tail))
            self.inner.prefill(slot, np.append(tail[1:], tail[-1]))


COPY = "今天天气很好，我想去公园散步玩耍。请把这句话重复三遍。"


def examined(engine, target, sampling, max_tokens=48, drafters=None):
    faulty = Engine(
        target, drafters or engine.parts.drafters, acceptance=engine.acceptance, tokenizer=engine.tokenizer,
        template=engine.template, eos_ids=engine.eos_ids,
    )  # fmt: skip
    fresh = watched(faulty)
    try:
        return examine(fresh, engine.render(COPY), sampling, max_tokens=max_tokens)
    finally:
        fresh.close()


@pytest.mark.real
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, seed=3)], ids=["greedy", "drawn"])
def test_the_embedded_model_gives_identical_bits(engine, sampling):
    assert engine.target.info.exact
    verdict, plain, drafted = examined(engine, engine.target, sampling)
    assert verdict.kind == "identical bits"
    assert verdict.positions == len(plain.tokens) == len(drafted.tokens)
    assert plain.drafted == 0
    assert drafted.accepted > 0


@pytest.mark.real
@pytest.mark.parametrize("fault", [KeepsTheRejected, ForgetsOne])
@pytest.mark.parametrize("exact", [True, False])
def test_a_cache_fault_is_a_bug(engine, fault, exact):
    target = fault(engine.target)
    target.info = replace(engine.target.info, exact=exact)
    verdict, _, drafted = examined(engine, target, Sampling())
    assert target.faults > 0
    assert drafted.accepted > 0
    assert verdict.kind == "BUG"


@pytest.mark.real
def test_a_watched_target_keeps_the_rows_of_the_kept_path(engine):
    target = Watched(engine.target)
    slot = target.open()
    try:
        tokens = np.asarray(engine.render(COPY)[:9], np.int32)
        target.prefill(slot, tokens[:4])
        tree = DraftTree.of([int(tokens[5]), 7, int(tokens[6]), 8], [-1, -1, 0, 0], [0.9, 0.5, 0.5, 0.5])
        rows = target.verify([slot], [int(tokens[4])], [tree])
        expected = [rows.logits[0][r].copy() for r in (0, 1, 3)]
        target.commit([slot], [Path((0, 2), 1)])
        target.verify([slot], [1], [DraftTree.empty()])  # rows of a verify die with the next
        assert sorted(target.rows) == [4, 5, 6]
        for position, row in zip((4, 5, 6), expected, strict=True):
            assert target.rows[position].digest == Row.of(row).digest
        with pytest.raises(InputError, match="one at a time"):
            target.verify([slot, slot], [1, 1], [tree, tree])
    finally:
        target.release(slot)
