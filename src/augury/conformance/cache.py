"""Is a target fit for drafted decoding? Every row and every committed entry against a fresh prefill."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from augury.conformance.report import Check, Report
from augury.errors import InputError
from augury.models.target import Target
from augury.tree import MAX_NODES, DraftTree, FloatArray, IntArray, Path

CONTEXTS = (0, 1, 9, 40)
"""Tokens in the cache before the root; beginnings of one text."""


def check_target(make: Callable[[], Target], *, name: str = "target", tolerance: float | None = None) -> Report:
    """Try a target's forward and cache: every row and every committed entry against a fresh prefill.

    Args:
        make: builds or gives the target; three slots at least, a context of 128 tokens or more.
        name: for the report.
        tolerance: greatest difference of logits and of cache entries that counts as equal; None asks for equal bits
            of a target that promises them, and for 0.05 of others.
    """
    target = make()
    if tolerance is None:
        tolerance = 0.0 if target.info.exact else 0.05
    bench = _Bench(target, tolerance)
    tries = {
        "prompt in pieces": bench.pieces,
        "rows of a chain": lambda: bench.rows(_chain(bench.text)),
        "verify commits nothing": bench.nothing,
        "commit keeps the path": lambda: bench.commits(_chain(bench.text)),
        "truncate": bench.truncates,
        "requests together": bench.together,
        "slots": bench.slots,
    }
    if target.info.trees:
        tries |= {
            "rows of a tree": lambda: bench.rows(_bush(bench.text)),
            "rows of a tree of full width": lambda: bench.rows(_comb(bench.text)),
            "commit keeps a path of a tree": lambda: bench.commits(_bush(bench.text)),
        }
    return Report(name, tuple(bench.tried(what, call) for what, call in tries.items()))


class _Unequal(Exception):
    """A comparison that must hold does not."""


def _chain(text: IntArray) -> DraftTree:
    return DraftTree.chain(text[60:65], np.full(5, 0.5))


def _bush(text: IntArray) -> DraftTree:
    """Branches out of order, twins, an early leaf: paths whose rows lie apart."""
    t = text[60:70].tolist()
    tokens = [t[0], t[1], t[2], t[2], t[3], t[4], t[4], t[5]]
    return DraftTree.of(tokens, [-1, -1, 1, 0, 2, 3, 3, 4], np.full(8, 0.5))


def _comb(text: IntArray) -> DraftTree:
    """As many nodes as a tree may have, every second one a leaf."""
    parents = [i - 1 - i % 2 if i > 1 else -1 for i in range(MAX_NODES)]
    return DraftTree.of(np.resize(text, MAX_NODES), parents, np.full(MAX_NODES, 0.5))


class _Bench:
    """A target and what is asked of it. ``text`` is i32[80], random; a request's committed tokens begin it."""

    def __init__(self, target: Target, tolerance: float) -> None:
        self._target = target
        self._tolerance = tolerance
        self._held: set[int] = set()
        self.text = np.random.default_rng(0).integers(0, target.info.vocab_size, 80, dtype=np.int32)

    def tried(self, name: str, call: Callable[[], str]) -> Check:
        """Run one check; whatever it raises is its failure, and its slots are given back."""
        try:
            return Check(name, True, call())
        except _Unequal as error:
            return Check(name, False, str(error))
        except Exception as error:
            return Check(name, False, f"{type(error).__name__}: {error}")
        finally:
            for slot in [*self._held]:
                self._drop(slot)

    def pieces(self) -> str:
        """A prompt may be split at will."""
        whole = self._fresh(self.text[:41])
        for cuts in ([1], [7, 8], [39], [13, 26]):
            slot = self._take()
            for piece in np.split(self.text[:40], cuts):
                self._target.prefill(slot, piece)
            self._equal(self._row(slot, self.text[40]), whole, f"prompt cut at {cuts}")
            self._drop(slot)
        return "four ways to cut 40 tokens"

    def rows(self, tree: DraftTree) -> str:
        """Every row is the row of its own path alone."""
        for context in CONTEXTS:
            slot = self._filled(context)
            found = self._verify([slot], [context], [tree])[0]
            self._drop(slot)
            if found.shape != (len(tree) + 1, self._target.info.vocab_size):
                raise _Unequal(f"logits have shape {found.shape} for {len(tree)} nodes")
            for row in range(len(tree) + 1):
                tokens = [*self.text[: context + 1].tolist(), *_words(tree, row - 1)]
                self._equal(found[row], self._fresh(tokens), f"row {row} behind {context} tokens")
        return f"{len(tree) + 1} rows behind each of {len(CONTEXTS)} contexts"

    def nothing(self) -> str:
        """Verify changes neither length nor what comes next."""
        slot = self._filled(9)
        before = self._row(slot, self.text[9])
        self._verify([slot], [20], [_chain(self.text)])
        if self._target.length(slot) != 9:
            raise _Unequal(f"9 tokens were committed, after verify there are {self._target.length(slot)}")
        self._equal(self._row(slot, self.text[9]), before, "the same row after another verify")
        self._drop(slot)
        return "the same row before and after"

    def commits(self, tree: DraftTree) -> str:
        """After a commit of any path the cache is that of the text, and goes on as the text does."""
        entries = 0
        for context in CONTEXTS:
            for node in range(-1, len(tree)):
                slot = self._filled(context)
                self._verify([slot], [context], [tree])
                self._target.commit([slot], [Path(tuple(tree.path(node)), 0)])
                tokens = [*self.text[: context + 1].tolist(), *_words(tree, node)]
                where = f"path to node {node} behind {context} tokens"
                if self._target.length(slot) != len(tokens):
                    raise _Unequal(f"{where}: length is {self._target.length(slot)}, not {len(tokens)}")
                entries += self._same_cache(slot, tokens, where)
                # Once more, on top of what was committed: what a commit leaves behind must not be met again.
                found = self._verify([slot], [50], [tree])[0]
                self._equal(found[-1], self._fresh([*tokens, int(self.text[50]), *_words(tree, len(tree) - 1)]), where)
                self._drop(slot)
        kind = f"{entries} cache arrays" if entries else "no snapshot to compare"
        return f"{len(tree) + 1} paths behind each of {len(CONTEXTS)} contexts, {kind}"

    def truncates(self) -> str:
        """A shorter prefix goes on as if nothing had followed it."""
        for length in (0, 1, 17, 40):
            slot = self._filled(40)
            self._target.truncate(slot, length)
            if self._target.length(slot) != length:
                raise _Unequal(f"truncated to {length}, length is {self._target.length(slot)}")
            self._target.prefill(slot, self.text[50:53])
            tokens = [*self.text[:length].tolist(), *self.text[50:53].tolist()]
            self._same_cache(slot, tokens, f"truncated to {length}")
            self._equal(
                self._row(slot, self.text[53]), self._fresh([*tokens, int(self.text[53])]), f"truncated to {length}"
            )
            self._drop(slot)
        return "to 0, 1, 17 and 40 of 40 tokens"

    def together(self) -> str:
        """Requests in one forward do not see each other."""
        trees = [_bush(self.text) if self._target.info.trees else _chain(self.text), DraftTree.empty()]
        for order in ((0, 1), (1, 0)):
            slots = [self._filled(n) for n in (40, 9)]
            ordered = [slots[i] for i in order]
            found = self._verify(ordered, [(40, 9)[i] for i in order], [trees[i] for i in order])
            self._target.commit(ordered, [Path(tuple(trees[i].path(len(trees[i]) - 1)), 0) for i in order])
            for place, i in enumerate(order):
                tokens = [*self.text[: (41, 10)[i]].tolist(), *_words(trees[i], len(trees[i]) - 1)]
                self._equal(found[place][-1], self._fresh(tokens), f"request {i} of two")
                self._same_cache(slots[i], tokens, f"request {i} of two")
            for slot in slots:
                self._drop(slot)
        return "two requests of 40 and 9 tokens, in both orders"

    def slots(self) -> str:
        """A slot that was given back is empty when it is reserved again; too many are refused."""
        slot = self._filled(9)
        self._drop(slot)
        try:
            while len(self._held) < 1000:
                if self._target.length(self._take()):
                    raise _Unequal("a fresh slot is not empty")
        except InputError:
            return f"{len(self._held)} slots"
        raise _Unequal("1000 slots could be opened; the limit must be an InputError")

    def _take(self) -> int:
        slot = self._target.open()
        self._held.add(slot)
        return slot

    def _drop(self, slot: int) -> None:
        self._held.discard(slot)
        self._target.release(slot)

    def _filled(self, context: int) -> int:
        slot = self._take()
        self._target.prefill(slot, self.text[:context])
        return slot

    def _verify(self, slots: Sequence[int], roots: Sequence[int], trees: Sequence[DraftTree]) -> list[FloatArray]:
        """Logits, copied; roots are places in the text."""
        rows = self._target.verify(slots, [int(self.text[r]) for r in roots], trees)
        return [np.array(logits, np.float32) for logits in rows.logits]

    def _row(self, slot: int, root: int) -> FloatArray:
        """Logits behind one more token."""
        return np.array(self._target.verify([slot], [int(root)], [DraftTree.empty()]).logits[0][0], np.float32)

    def _fresh(self, tokens: Sequence[int] | IntArray) -> FloatArray:
        """Logits behind tokens, the last of them as root, in a slot of their own."""
        held = np.asarray(tokens, np.int32)
        slot = self._take()
        self._target.prefill(slot, held[:-1])
        row = self._row(slot, held[-1])
        self._drop(slot)
        return row

    def _same_cache(self, slot: int, tokens: Sequence[int], where: str) -> int:
        """Compare a slot's entries with a fresh prefill's; gives the number of arrays, 0 without snapshots."""
        try:
            found = [np.array(a) for a in self._target.snapshot(slot)]
        except NotImplementedError:
            return 0
        fresh = self._take()
        self._target.prefill(fresh, np.asarray(tokens, np.int32))
        for i, (a, b) in enumerate(zip(found, self._target.snapshot(fresh), strict=True)):
            self._equal(a, b, f"{where}: cache array {i}")
        self._drop(fresh)
        return len(found)

    def _equal(self, found: FloatArray, true: FloatArray, where: str) -> None:
        if found.shape != true.shape:
            raise _Unequal(f"{where}: shape {found.shape} is not {true.shape}")
        if self._tolerance == 0.0:
            if not np.array_equal(found, true):
                raise _Unequal(f"{where}: differs by {np.abs(found - true).max():.3g}")
        elif not np.abs(found - true).max(initial=0.0) <= self._tolerance:
            raise _Unequal(f"{where}: differs by {np.abs(found - true).max():.3g}, allowed are {self._tolerance:g}")


def _words(tree: DraftTree, node: int) -> list[int]:
    return [int(tree.tokens[i]) for i in tree.path(node)]
