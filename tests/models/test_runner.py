"""The runner: its cache after any history is that of a fresh prompt, and a broken contract is refused."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiny import random_block

from augury.errors import InputError
from augury.models.block import TorchForward
from augury.models.forward import Forward
from augury.models.native import NativeForward, native_available
from augury.models.runner import PREFILL_ROWS, Runner, capacity
from augury.models.target import TargetInfo
from augury.tree import MAX_NODES, DraftTree, Path

CONTEXT, SLOTS, VOCAB = 150, 3, 97


def make_forward(context: int = CONTEXT, **changes: Any) -> TorchForward:
    config, weights = random_block(num_hidden_layers=2, **changes)
    return TorchForward(config, weights, SLOTS, capacity(context))


def make_runner(forward: Forward, context: int = CONTEXT) -> Runner:
    return Runner(forward, TargetInfo("tiny", "llama", "", "float32", VOCAB, context, 48, 2, 0, 0, True, False), SLOTS)


@pytest.fixture(scope="module")
def forward() -> TorchForward:
    return make_forward()


@pytest.fixture
def runner(forward: TorchForward) -> Runner:
    return make_runner(forward)


def tokens(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, VOCAB, n).astype(np.int32)


# ---- any history ---------------------------------------------------------------------------------------------

FORWARDS = {
    "full": functools.cache(make_forward),
    "windowed": functools.cache(functools.partial(make_forward, model_type="mistral", sliding_window=30)),
}
if native_available() is None:
    FORWARDS["native"] = functools.cache(
        lambda: NativeForward(*random_block(num_hidden_layers=2), SLOTS, capacity(CONTEXT), threads=1)
    )


class CacheMachine(RuleBasedStateMachine):
    """Opens, fills, verifies, commits, rolls back and releases at random; a plain list of tokens is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[int, list[int]] = {}
        self.pending: dict[int, tuple[int, DraftTree]] = {}

    @initialize(which=st.sampled_from(sorted(FORWARDS)))
    def start(self, which: str) -> None:
        self.runner = make_runner(FORWARDS[which]())

    def some(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.texts)))

    def is_fresh(self, slot: int) -> None:
        """The slot's cache is bit for bit that of a fresh prompt of the same tokens."""
        fresh = self.runner.open()
        self.runner.prefill(fresh, np.asarray(self.texts[slot], np.int32))
        for kept, new in zip(self.runner.snapshot(slot), self.runner.snapshot(fresh), strict=True):
            np.testing.assert_array_equal(kept, new)
        self.runner.release(fresh)

    @precondition(lambda self: len(self.texts) < SLOTS - 1)  # one is left for is_fresh
    @rule()
    def open(self) -> None:
        slot = self.runner.open()
        assert slot not in self.texts
        self.texts[slot] = []

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = self.some(data)
        self.runner.release(slot)
        del self.texts[slot]
        self.pending.pop(slot, None)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), n=st.integers(0, 80), seed=st.integers(0, 99))
    def prefill(self, data: st.DataObject, n: int, seed: int) -> None:
        slot = self.some(data)
        text = tokens(n, seed)[: CONTEXT - len(self.texts[slot])]
        self.runner.prefill(slot, text)
        self.texts[slot] += text.tolist()
        self.pending.pop(slot, None)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def verify(self, data: st.DataObject) -> None:
        slots = data.draw(st.lists(st.sampled_from(sorted(self.texts)), unique=True, min_size=1))
        slots = [s for s in slots if len(self.texts[s]) < CONTEXT]  # a full one can verify nothing
        trees = []
        for _ in slots:
            n = data.draw(st.integers(0, 12))
            parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
            trees.append(DraftTree.of(tokens(n, n), parents, [0.5] * n))
        roots = [data.draw(st.integers(0, VOCAB - 1)) for _ in slots]
        rows = self.runner.verify(slots, roots, trees)
        assert [len(r) for r in rows.logits] == [len(t) + 1 for t in trees]
        self.pending |= dict(zip(slots, zip(roots, trees, strict=True), strict=True))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        slots = data.draw(st.lists(st.sampled_from(sorted(self.pending)), unique=True, min_size=1))
        paths = []
        for slot in slots:
            root, tree = self.pending.pop(slot)
            nodes = tree.path(data.draw(st.integers(-1, len(tree) - 1)))
            nodes = nodes[: CONTEXT - len(self.texts[slot]) - 1]
            paths.append(Path(tuple(nodes), 0))
            self.texts[slot] += [root, *tree.tokens[nodes].tolist()]
        self.runner.commit(slots, paths)
        for slot in slots:
            self.is_fresh(slot)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        slot = self.some(data)
        keep = data.draw(st.integers(0, len(self.texts[slot])))
        self.runner.truncate(slot, keep)
        del self.texts[slot][keep:]
        self.pending.pop(slot, None)
        self.is_fresh(slot)

    @precondition(lambda self: len(self.texts) > 1)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        source, slot = data.draw(st.permutations(sorted(self.texts)))[:2]
        keep = data.draw(st.integers(0, len(self.texts[source])))
        self.runner.copy(source, slot, keep)
        self.texts[slot] = self.texts[source][:keep]
        self.pending.pop(slot, None)
        self.is_fresh(slot)

    @invariant()
    def lengths(self) -> None:
        for slot, text in self.texts.items():
            assert self.runner.length(slot) == len(text)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_commit_moves_rows(runner: Runner) -> None:
    """The machine above rests on commits that must move rows; here is one that does for certain."""
    slot, other = runner.open(), runner.open()
    runner.prefill(slot, tokens(9))
    tree = DraftTree.of([1, 2, 3, 4, 5], [-1, -1, 1, 1, 3], [0.5] * 5)
    runner.verify([slot], [6], [tree])
    runner.commit([slot], [Path((1, 3, 4), 0)])
    runner.prefill(other, np.asarray([*tokens(9), 6, 2, 4, 5], np.int32))
    assert runner.length(slot) == runner.length(other) == 13
    for kept, new in zip(runner.snapshot(slot), runner.snapshot(other), strict=True):
        assert kept.shape == (13, 2, 16)
        np.testing.assert_array_equal(kept, new)


def test_logits_do_not_depend_on_how_a_text_was_written() -> None:
    runner = make_runner(make_forward(context=320), context=320)
    text = tokens(PREFILL_ROWS + 20)
    whole, parts = runner.open(), runner.open()
    runner.prefill(whole, text)
    for part in np.split(text, [1, 2, 70, 200]):
        runner.prefill(parts, part)
    tree = DraftTree.of([1, 2], [-1, -1], [0.5] * 2)
    one = runner.verify([whole], [3], [tree]).logits[0].copy()
    both = runner.verify([parts, whole], [3, 3], [tree, DraftTree.empty()])
    np.testing.assert_array_equal(one, both.logits[0])
    np.testing.assert_array_equal(one[:1], both.logits[1])
    assert both.hidden is not None
    assert [h.shape for h in both.hidden] == [(3, 48), (1, 48)]


def test_more_rows_than_one_forward_takes(monkeypatch: pytest.MonkeyPatch, forward: TorchForward) -> None:
    runner = make_runner(forward)
    slots = [runner.open() for _ in range(SLOTS)]
    for slot in slots:
        runner.prefill(slot, tokens(20, slot))
    trees = [DraftTree.of(tokens(n), [-1] * n, [0.5] * n) for n in (30, 25, 40)]
    wanted = runner.verify(slots, [1, 2, 3], trees)
    sizes = []
    run = forward.run

    def counted(segments: Any, logits: bool) -> Any:
        sizes.append(sum(len(s.tokens) for s in segments))
        return run(segments, logits)

    monkeypatch.setattr(forward, "run", counted)
    monkeypatch.setattr(forward, "max_rows", 65)
    got = runner.verify(slots, [1, 2, 3], trees)
    assert sizes == [57, 41]
    for a, b in zip(wanted.logits, got.logits, strict=True):
        np.testing.assert_array_equal(a, b)
    runner.prefill(slots[0], tokens(100))
    assert sizes[2:] == [65, 35]


def test_a_full_tree_at_the_last_position(runner: Runner) -> None:
    slot = runner.open()
    runner.prefill(slot, tokens(CONTEXT - 1))
    chain = DraftTree.chain(tokens(MAX_NODES), [0.5] * MAX_NODES)
    assert len(runner.verify([slot], [1], [chain]).logits[0]) == MAX_NODES + 1
    with pytest.raises(InputError, match="cut the path to 0 nodes"):
        runner.commit([slot], [Path((0,), 1)])
    runner.commit([slot], [Path((), 1)])
    assert runner.length(slot) == CONTEXT
    with pytest.raises(InputError, match=f"holds {CONTEXT} tokens"):
        runner.verify([slot], [1], [DraftTree.empty()])


# ---- broken contracts ----------------------------------------------------------------------------------------


def test_slots_run_out(runner: Runner) -> None:
    for _ in range(SLOTS):
        runner.open()
    with pytest.raises(InputError, match="max_num_seqs=4"):
        runner.open()
    runner.release(1)
    assert runner.open() == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda r: r.length(7),
        lambda r: r.release(7),
        lambda r: r.prefill(7, tokens(1)),
        lambda r: r.verify([7], [0], [DraftTree.empty()]),
        lambda r: r.commit([7], [Path((), 0)]),
        lambda r: r.truncate(7, 0),
        lambda r: r.snapshot(7),
    ],
)
def test_a_slot_that_is_not_open(runner: Runner, use: Any) -> None:
    runner.open()
    with pytest.raises(InputError, match="slot 7 is not open; open slots: 0"):
        use(runner)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ([1, VOCAB], f"token id {VOCAB} is outside the vocabulary of {VOCAB}"),
        ([-1, 3], "token id -1"),
        ([1.5], "integer ids, got float64"),
        ([[1]], r"shape \(1, 1\)"),
        ([2**40], "token id 1099511627776"),
        ([0] * (CONTEXT + 1), f"prefill at most {CONTEXT}"),
    ],
)
def test_wrong_prompts(runner: Runner, wrong: Any, named: str) -> None:
    slot = runner.open()
    with pytest.raises(InputError, match=named):
        runner.prefill(slot, np.asarray(wrong))
    assert runner.length(slot) == 0
    runner.prefill(slot, np.asarray([]))
    assert runner.length(slot) == 0


def test_wrong_verifies(runner: Runner) -> None:
    slot = runner.open()
    empty = DraftTree.empty()
    assert runner.verify([], [], []).logits == []
    for slots, roots, trees, named in [
        ([slot], [1, 2], [empty], "1 slots, 2 roots and 1 trees"),
        ([slot, slot], [1, 2], [empty, empty], "twice"),
        ([slot], [VOCAB], [empty], "token id 97"),
        ([slot], [1], [DraftTree.chain([VOCAB + 3], [0.5])], "token id 100"),
    ]:
        with pytest.raises(InputError, match=named):
            runner.verify(slots, roots, trees)


def test_wrong_commits(runner: Runner) -> None:
    slot = runner.open()
    with pytest.raises(InputError, match="nothing to commit; call verify first"):
        runner.commit([slot], [Path((), 0)])
    tree = DraftTree.of([1, 2, 3], [-1, -1, 0], [0.5] * 3)
    runner.verify([slot], [5], [tree])
    for nodes, named in [((2,), "node 2 does not follow node -1"), ((0, 1), "node 1"), ((0, 3), "node 3"), ((-1,), "")]:
        with pytest.raises(InputError, match=f"not a path of the verified tree of 3 nodes: {named}"):
            runner.commit([slot], [Path(nodes, 0)])
    with pytest.raises(InputError, match="2 slots and 1 paths"):
        runner.commit([slot, 1], [Path((), 0)])
    with pytest.raises(InputError, match="twice"):
        runner.commit([slot, slot], [Path((), 0), Path((), 0)])
    assert runner.length(slot) == 0
    runner.commit([slot], [Path((0, 2), 0)])
    assert runner.length(slot) == 3
    with pytest.raises(InputError, match="nothing to commit"):
        runner.commit([slot], [Path((), 0)])


@pytest.mark.parametrize("between", ["prefill", "truncate"])
def test_a_verify_is_forgotten_when_the_cache_changes(runner: Runner, between: str) -> None:
    slot = runner.open()
    runner.prefill(slot, tokens(4))
    runner.verify([slot], [5], [DraftTree.empty()])
    runner.prefill(slot, tokens(2)) if between == "prefill" else runner.truncate(slot, 4)
    with pytest.raises(InputError, match="nothing to commit"):
        runner.commit([slot], [Path((), 0)])


def test_wrong_truncations(runner: Runner) -> None:
    slot = runner.open()
    runner.prefill(slot, tokens(4))
    for wrong in (-1, 5):
        with pytest.raises(InputError, match=f"holds 4 tokens, it cannot be rolled back to {wrong}"):
            runner.truncate(slot, wrong)
