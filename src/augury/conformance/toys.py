"""Toys small enough to know exactly: a target over a few tokens, and drafters of every temper.

``ToyTarget``'s next token depends on the whole context and on its position, through cache entries that each depend
on all before them, as the keys and values of a transformer do. A cache that keeps a wrong row, loses one or puts it
in the wrong place therefore changes everything that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from augury.drafters.drafter import Drafter, View
from augury.errors import InputError
from augury.models.target import Guesser, Rows, Target, TargetInfo
from augury.noise import LawArray, Noise, race
from augury.sampling import Sampler, Sampling
from augury.tree import BoolArray, DraftTree, FloatArray, IntArray, Path

_START = 0x9E3779B9
_PIECE = (1 << 21) - 1  # bits of a cache entry that an f32 of a snapshot holds exactly


class ToyTarget(Target):
    """An enumerable language model with a real cache.

    Args:
        vocab_size: V, a few tokens.
        seed: another seed is another model.
        spread: standard deviation of the logits; 0 makes every law flat.
        trees: whether it takes trees.
        slots: requests it can hold.
        context: tokens one slot can hold.
    """

    def __init__(
        self,
        vocab_size: int = 4,
        seed: int = 0,
        spread: float = 1.5,
        trees: bool = True,
        slots: int = 8,
        context: int = 256,
    ) -> None:
        self.info = TargetInfo(
            name=f"toy of {vocab_size} tokens",
            family="toy",
            runner="numpy",
            dtype="float32",
            vocab_size=vocab_size,
            context=context,
            hidden_size=2,
            layers=1,
            parameters=0,
            weight_bytes=0,
            trees=trees,
            exact=True,
            short=(16, 8, 4),
        )
        self._seed = seed
        self._spread = spread
        self._slots = slots
        self._rows: dict[tuple[int, ...], FloatArray] = {}
        self._cells: dict[int, list[_Cell]] = {}
        self._lengths: dict[int, int] = {}

    def row(self, tokens: Sequence[int]) -> FloatArray:
        """Logits f32[V] of the token behind ``tokens``, computed without any cache."""
        cells: list[_Cell] = []
        for token in tokens:
            cells.append(_follow(cells[-1] if cells else None, int(token), len(cells)))
        return self._logits(cells)

    def open(self) -> int:
        """Reserve a slot."""
        free = [s for s in range(self._slots) if s not in self._cells]
        if not free:
            raise InputError(f"all {self._slots} slots are taken")
        self._cells[free[0]] = []
        self._lengths[free[0]] = 0
        return free[0]

    def release(self, slot: int) -> None:
        """Give a slot back."""
        del self._cells[slot], self._lengths[slot]

    def length(self, slot: int) -> int:
        """Committed tokens."""
        return self._lengths[slot]

    def prefill(self, slot: int, tokens: IntArray) -> None:
        """Append and commit tokens."""
        for token in tokens:
            self._append(slot, int(token))
            self._lengths[slot] += 1

    def verify(self, slots: Sequence[int], roots: Sequence[int], trees: Sequence[DraftTree]) -> Rows:
        """Compute root and nodes into the rows behind the committed ones."""
        if len(set(slots)) != len(slots):
            raise ValueError("a slot appears twice in one forward")
        logits, hidden = [], []
        for slot, root, tree in zip(slots, roots, trees, strict=True):
            if not self.info.trees and not tree.is_chain:
                raise ValueError("this target takes chains only")
            length = self._lengths[slot]
            self._append(slot, int(root))
            for i, parent in enumerate(tree.parents.tolist()):
                self._append(slot, int(tree.tokens[i]), length + parent + 1)
            cells = self._cells[slot]
            paths = [cells[: length + 1] + [cells[length + 1 + i] for i in tree.path(n)] for n in range(-1, len(tree))]
            logits.append(np.stack([self._logits(path) for path in paths]))
            hidden.append(np.array([[path[-1].value & _PIECE, len(path)] for path in paths], np.float32))
        return Rows(logits, hidden)

    def commit(self, slots: Sequence[int], paths: Sequence[Path]) -> None:
        """Move the accepted rows together and forget the others."""
        for slot, path in zip(slots, paths, strict=True):
            length = self._lengths[slot]
            cells = self._cells[slot]
            self._cells[slot] = cells[: length + 1] + [cells[length + 1 + i] for i in path.nodes]
            self._lengths[slot] = length + 1 + len(path.nodes)

    def truncate(self, slot: int, length: int) -> None:
        """Roll back."""
        if not 0 <= length <= self._lengths[slot]:
            raise ValueError(f"slot {slot} holds {self._lengths[slot]} tokens, not {length}")
        self._lengths[slot] = length

    def copy(self, source: int, slot: int, length: int) -> None:
        """Take over another slot's rows."""
        if not 0 <= length <= self._lengths[source]:
            raise ValueError(f"slot {source} holds {self._lengths[source]} tokens, not {length}")
        self._cells[slot] = self._cells[source][:length]
        self._lengths[slot] = length

    def shorten(self, bits: int, layers: Sequence[int]) -> Guesser:
        """Itself with another toy's logits mixed in, the more the fewer bits."""
        other = ToyTarget(self.info.vocab_size, self._seed + 1, self._spread * (16 - bits) / 16)
        return _ToyGuesses(self, other)

    def snapshot(self, slot: int) -> list[FloatArray]:
        """Tokens f32[length, 1] and cache entries f32[length, 3]."""
        cells = self._cells[slot][: self._lengths[slot]]
        tokens = np.array([[c.token] for c in cells], np.float32).reshape(len(cells), 1)
        values = [[(c.value >> shift) & _PIECE for shift in (0, 21, 42)] for c in cells]
        return [tokens, np.array(values, np.float32).reshape(len(cells), 3)]

    def _append(self, slot: int, token: int, parent: int | None = None) -> None:
        """Compute a row behind those of the slot; ``parent`` is the row it follows, the last committed one if None."""
        length, cells = self._lengths[slot], self._cells[slot]
        if parent is None:
            del cells[length:]
            parent = length - 1
        before = cells[parent] if parent >= 0 else None
        cells.append(_follow(before, token, before.position + 1 if before else 0))
        if cells[-1].position >= self.info.context:
            raise ValueError(f"position {cells[-1].position} lies behind the context of {self.info.context}")

    def _logits(self, cells: Sequence[_Cell]) -> FloatArray:
        """The law of what follows reads every row, as attention does."""
        key = tuple(c.value for c in cells)
        if key not in self._rows:
            rng = np.random.default_rng([self._seed, hash(key) & ((1 << 63) - 1)])
            row = (rng.standard_normal(self.info.vocab_size) * self._spread).astype(np.float32)
            row.flags.writeable = False
            self._rows[key] = row
        return self._rows[key]


class _ToyGuesses:
    """A toy with another's logits mixed in; see ``Guesser``."""

    def __init__(self, toy: ToyTarget, other: ToyTarget) -> None:
        self._toy, self._other = toy, other

    def __call__(self, slot: int, ahead: int, tokens: IntArray) -> FloatArray:
        toy = self._toy
        first = toy._lengths[slot] + ahead
        cells = toy._cells[slot]
        if len(cells) < first:
            raise ValueError(f"place {ahead} was guessed before the places it follows")
        del cells[first:]
        for row, token in enumerate(tokens.tolist(), first):
            toy._append(slot, token, row - 1)
        paths = [cells[: row + 1] for row in range(first, len(cells))]
        return np.stack([toy._logits(path) + self._other._logits(path) for path in paths])

    def together(self, slots: Sequence[int], aheads: Sequence[int], tokens: Sequence[int]) -> FloatArray:
        """One place of each slot."""
        if len(set(slots)) != len(slots):
            raise ValueError("a slot appears twice in one forward")
        rows = [self(s, a, np.array([t], np.int32)) for s, a, t in zip(slots, aheads, tokens, strict=True)]
        return np.concatenate(rows)


class SameLaw(ToyTarget):
    """A target whose next token follows the same law everywhere: chance that is met twice shows most here."""

    def __init__(self, law: Sequence[float], slots: int = 8) -> None:
        super().__init__(len(law), slots=slots)
        self._row: FloatArray = np.log(np.asarray(law)).astype(np.float32)

    def _logits(self, cells: Sequence[_Cell]) -> FloatArray:
        return self._row


class _Cell:
    """One row of a toy's cache."""

    __slots__ = ("position", "token", "value")

    def __init__(self, token: int, position: int, value: int) -> None:
        self.token = token
        self.position = position
        self.value = value


def _follow(before: _Cell | None, token: int, position: int) -> _Cell:
    value = hash((before.value if before else _START, token, position)) & ((1 << 63) - 1)
    return _Cell(token, position, value)


class Drift:
    """A logits processor with state: at its n-th position it favours token n mod V, the more the larger n.

    A position seen twice, or left out, changes everything behind it.
    """

    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, history: IntArray, logits: FloatArray) -> FloatArray:
        """See ``LogitsProcessor``."""
        logits[self._seen % len(logits)] += np.float32(0.3 * self._seen)
        self._seen += 1
        return logits

    def snapshot(self) -> object:
        """Positions seen."""
        return self._seen

    def restore(self, state: object) -> None:
        """Return to a number of positions."""
        assert isinstance(state, int)
        self._seen = state


class Turns:
    """A grammar over tokens: at some places one token is forced, at some the answer may end, at the others it may not.

    Which place it is depends on all tokens of the answer.
    """

    def follow(self, vocab_size: int, ends: Sequence[int]) -> _Turning:
        """See ``sampling.Grammar``."""
        return _Turning(vocab_size, frozenset(ends))


class _Turning:
    """See ``sampling.Following``."""

    def __init__(self, vocab_size: int, ends: frozenset[int]) -> None:
        self._vocab, self._ends = vocab_size, ends
        self._words = [token for token in range(vocab_size) if token not in ends]
        self._text: list[int] = []

    def allowed(self, path: Sequence[int], guess: bool = False) -> BoolArray:
        if self.legal(path) < len(path):
            return np.zeros(self._vocab, np.bool_)
        return self._row([*self._text, *path])

    def legal(self, path: Sequence[int]) -> int:
        text = self._text
        return next((i for i, token in enumerate(path) if not self._row([*text, *path[:i]])[token]), len(path))

    def _row(self, text: list[int]) -> BoolArray:
        if not self._ends.isdisjoint(text):
            return np.ones(self._vocab, np.bool_)
        row = np.zeros(self._vocab, np.bool_)
        place, word = (sum(text) + len(text)) % 3, self._words[sum(text) % len(self._words)]
        row[[word] if place == 2 else self._words] = True
        row[word] = place != 0 or len(self._words) == 1
        row[list(self._ends)] = place == 1
        return row

    def forced(self, limit: int) -> Sequence[tuple[int, bool]]:
        found: list[int] = []
        while len(found) < limit and np.count_nonzero(row := self.allowed(found)) == 1:
            found.append(int(np.argmax(row)))
        return [(token, True) for token in found]

    def advance(self, tokens: Sequence[int]) -> None:
        self._text += tokens


# ---- drafters -------------------------------------------------------------------------------------------------------


class Empty(Drafter):
    """Never has a guess."""

    def propose(self, view: View, limit: int) -> DraftTree:
        """Nothing."""
        return DraftTree.empty()


class Script(Drafter):
    """Replays trees, one a step, in a circle."""

    def __init__(self, trees: Sequence[DraftTree]) -> None:
        self._trees = trees
        self._step: dict[int, int] = {}

    def open(self, view: View) -> None:
        """Begin with the first tree."""
        self._step[view.id] = 0

    def propose(self, view: View, limit: int) -> DraftTree:
        """The next tree."""
        step = self._step[view.id]
        self._step[view.id] += 1
        return self._trees[step % len(self._trees)] if self._trees else DraftTree.empty()

    def close(self, view: View) -> None:
        """Forget the place."""
        self._step.pop(view.id, None)


class Half(Drafter):
    """Knows the answer, and is right for j tokens and then wrong; j goes through ``right`` in a circle.

    Args:
        answer: the tokens that plain decoding gives.
        depth: tokens proposed.
        right: how many of them are right, step by step.
        vocab_size: V.
    """

    def __init__(self, answer: Sequence[int], depth: int, right: Sequence[int], vocab_size: int) -> None:
        self._answer = list(answer)
        self._depth = depth
        self._right = right
        self._vocab = vocab_size
        self._step = 0

    def propose(self, view: View, limit: int) -> DraftTree:
        """A chain."""
        done = view.length - view.prompt_length
        tokens = self._answer[done : done + min(self._depth, limit)]
        right = self._right[self._step % len(self._right)]
        self._step += 1
        tokens = [t if i < right else (t + 1) % self._vocab for i, t in enumerate(tokens)]
        return DraftTree.chain(tokens, np.full(len(tokens), 0.5))


def oracle(answer: Sequence[int], depth: int, vocab_size: int) -> Drafter:
    """A drafter that is always right."""
    return Half(answer, depth, [depth], vocab_size)


def liar(answer: Sequence[int], depth: int, vocab_size: int) -> Drafter:
    """A drafter whose first token is always wrong."""
    return Half(answer, depth, [0], vocab_size)


class TopK(Drafter):
    """A full tree of a model's likeliest tokens; deterministic."""

    def __init__(self, model: ToyTarget, width: int = 2, depth: int = 2) -> None:
        self._model = model
        self._width = width
        self._depth = depth

    def propose(self, view: View, limit: int) -> DraftTree:
        """Level by level, likeliest first."""

        def best(path: list[int]) -> list[tuple[int, None]]:
            row = self._model.row([*view.tokens.tolist(), *path])
            return [(int(t), None) for t in np.argsort(-row, kind="stable")[: self._width]]

        return _grow(best, self._depth, limit)


class Sampled(Drafter):
    """Draws from laws and declares them: a chain, or a tree of siblings drawn without replacement.

    Args:
        law: (view, path behind the view's tokens) -> f64[V].
        width: siblings.
        depth: levels.
    """

    def __init__(self, law: Callable[[View, list[int]], LawArray], width: int = 1, depth: int = 3) -> None:
        self._law = law
        self._width = width
        self._depth = depth

    def propose(self, view: View, limit: int) -> DraftTree:
        """Level by level. Siblings share one array of noise, which is drawing without replacement."""

        def drawn(path: list[int]) -> list[tuple[int, FloatArray]]:
            law = self._law(view, path)
            waits = view.noise.exponential(view.length + len(path), len(law))
            siblings = []
            for _ in range(self._width):
                if not law.any():
                    break
                declared = (law / law.sum()).astype(np.float32)
                token = race(declared.astype(np.float64), waits)
                siblings.append((token, declared))
                law = law.copy()
                law[token] = 0.0
            return siblings

        return _grow(drawn, self._depth, limit)


def itself(target: ToyTarget, sampling: Sampling, eos_ids: Sequence[int] = (), depth: int = 3) -> Drafter:
    """The target as its own drafter: q is p, every parameter of sampling included (processors excepted)."""

    def law(view: View, path: list[int]) -> LawArray:
        tokens = view.tokens
        sampler = Sampler(sampling, target.info.vocab_size, eos_ids, tokens[: view.prompt_length], Noise(0, 0))
        sampler.advance(tokens[view.prompt_length :].tolist())
        return sampler.law(target.row([*tokens.tolist(), *path]), path)

    return Sampled(law, depth=depth)


def noisy(model: ToyTarget, width: int = 1, depth: int = 3, temperature: float = 1.0) -> Drafter:
    """A drafter that samples from another model: q is not p."""

    def law(view: View, path: list[int]) -> LawArray:
        row = model.row([*view.tokens.tolist(), *path]).astype(np.float64) / temperature
        weights = np.exp(row - row.max())
        return np.asarray(weights / weights.sum())

    return Sampled(law, width, depth)


def _grow(
    candidates: Callable[[list[int]], Sequence[tuple[int, FloatArray | None]]], depth: int, limit: int
) -> DraftTree:
    """A tree level by level. Survival looks at the place in the tree only, never at the token."""
    tokens: list[int] = []
    parents: list[int] = []
    survival: list[float] = []
    laws: dict[int, FloatArray] = {}
    level: list[tuple[int, list[int]]] = [(-1, [])]
    for _ in range(depth):
        below = []
        for parent, path in level:
            for rank, (token, law) in enumerate(candidates(path)):
                if len(tokens) == limit:
                    return DraftTree.of(tokens, parents, survival, laws=laws)
                if law is not None:
                    laws[len(tokens)] = law
                below.append((len(tokens), [*path, token]))
                tokens.append(token)
                parents.append(parent)
                survival.append((survival[parent] if parent >= 0 else 1.0) * 0.7 * 0.5**rank)
        level = below
    return DraftTree.of(tokens, parents, survival, laws=laws)
