"""The runner: slots, committed lengths and trees over a ``Forward``.

A request's rows in one verify are its root and its nodes, written behind the committed cache rows; commit
moves the accepted path's rows together, right behind the root's. Nothing else knows cache rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from augury.errors import InputError
from augury.models.forward import GUESS_ROWS, Forward, Rides, Segment, Short, Shortens, Taps
from augury.models.target import Features, Guesser, Rider, Rows, Target, TargetInfo
from augury.tree import MAX_NODES, DraftTree, FloatArray, IntArray, Path

if TYPE_CHECKING:
    from augury.models.heads import Head

PREFILL_ROWS = 256
"""Rows of one forward of a prompt: enough to be bound by arithmetic, few enough to keep buffers small."""


def capacity(context: int) -> int:
    """Cache rows of one slot: a full context, and a root with its tree behind it."""
    return context + MAX_NODES + 1


@dataclass
class _Slot:
    length: int = 0
    verified: DraftTree | None = None  # the tree whose rows lie behind the committed ones
    guessed: int = 0  # places behind the committed ones that a guess has filled since


class _Guesses:
    """A cheaper forward over the caches of a runner; see ``Guesser``."""

    def __init__(self, runner: Runner, short: Short) -> None:
        self._runner, self._short = runner, short

    def __call__(self, slot: int, ahead: int, tokens: IntArray) -> FloatArray:
        return self._short([self._runner.place(slot, ahead, tokens)])

    def together(self, slots: Sequence[int], aheads: Sequence[int], tokens: Sequence[int]) -> FloatArray:
        found = []
        for at in range(0, len(slots), GUESS_ROWS):
            some = slice(at, at + GUESS_ROWS)
            segments = [
                self._runner.place(slot, ahead, np.array([token], np.int32))
                for slot, ahead, token in zip(slots[some], aheads[some], tokens[some], strict=True)
            ]
            rows = self._short(segments)
            found.append(rows if len(slots) <= GUESS_ROWS else rows.copy())
        return found[0] if len(found) == 1 else np.concatenate(found)


class Runner(Target):
    """A target over any ``Forward``.

    Args:
        forward: the arithmetic, with ``slots`` caches of ``capacity(info.context)`` rows.
        info: what it is; ``runner``, ``exact``, ``short`` and ``taps`` are taken from the forward.
        slots: number of requests that can be open at once.
    """

    def __init__(self, forward: Forward, info: TargetInfo, slots: int) -> None:
        self.forward = forward
        self.info = replace(
            info,
            runner=info.runner or forward.name,
            exact=forward.exact,
            short=forward.short_bits if isinstance(forward, Shortens) else (),
            taps=isinstance(forward, Taps),
        )
        self._free = list(range(slots))[::-1]
        self._open: dict[int, _Slot] = {}

    def open(self) -> int:
        """See ``Target.open``."""
        if not self._free:
            n = len(self._open)
            raise InputError(f"all {n} slots are taken; release one or load with max_num_seqs={n + 1} or more")
        slot = self._free.pop()
        self._open[slot] = _Slot()
        return slot

    def release(self, slot: int) -> None:
        """See ``Target.release``."""
        self._state(slot)
        del self._open[slot]
        self._free.append(slot)

    def length(self, slot: int) -> int:
        """See ``Target.length``."""
        return self._state(slot).length

    def prefill(self, slot: int, tokens: IntArray) -> None:
        """See ``Target.prefill``. Raises ``InputError`` for a token or a length out of range."""
        state = self._state(slot)
        tokens = self._checked(tokens)
        room = self.info.context - state.length
        if len(tokens) > room:
            raise InputError(
                f"{len(tokens)} tokens do not fit slot {slot}: it holds {state.length} of "
                f"{self.info.context}; prefill at most {room}"
            )
        state.verified, state.guessed = None, 0
        step = min(PREFILL_ROWS, self.forward.max_rows)
        for at in range(0, len(tokens), step):
            chunk = tokens[at : at + step]
            rows = np.arange(len(chunk), dtype=np.int32)
            self.forward.run([Segment(slot, state.length, chunk, rows - 1, rows)], logits=False)
            state.length += len(chunk)

    def verify(self, slots: Sequence[int], roots: Sequence[int], trees: Sequence[DraftTree]) -> Rows:
        """See ``Target.verify``. Raises ``InputError`` before anything is computed."""
        if not len(slots) == len(roots) == len(trees):
            raise InputError(
                f"verify got {len(slots)} slots, {len(roots)} roots and {len(trees)} trees; "
                "give one of each for every request"
            )
        if not slots:
            return Rows([], [])
        if len(set(slots)) < len(slots):
            raise InputError(f"slots {list(slots)} name a slot twice; give every request its own")
        segments = []
        for slot, root, tree in zip(slots, roots, trees, strict=True):
            state = self._state(slot)
            if not (self.info.trees or tree.is_chain):
                raise InputError(
                    f"{self.info.name} ({self.info.runner}) verifies chains only, not a tree with branches"
                )
            if state.length >= self.info.context:
                raise InputError(
                    f"slot {slot} is full: the context holds {self.info.context} tokens and the root would be "
                    f"number {state.length + 1}"
                )
            tokens = self._checked(np.concatenate([np.asarray([root], np.int32), tree.tokens]))
            parents = np.concatenate([np.asarray([-1], np.int32), tree.parents + 1]).astype(np.int32)
            depths = np.concatenate([np.asarray([0], np.int32), tree.depths]).astype(np.int32)
            segments.append(Segment(slot, state.length, tokens, parents, depths))
        found = self._forwards(segments)
        for slot, tree in zip(slots, trees, strict=True):
            self._open[slot].verified, self._open[slot].guessed = tree, 0
        return Rows([logits for logits, _ in found], [hidden for _, hidden in found])

    def _forwards(self, segments: Sequence[Segment]) -> list[tuple[FloatArray, FloatArray]]:
        """Logits and hidden states of each segment, from one forward unless there are too many rows for one."""
        groups: list[list[Segment]] = [[]]
        for segment in segments:
            rows = sum(len(s.tokens) for s in groups[-1])
            if groups[-1] and rows + len(segment.tokens) > self.forward.max_rows:
                groups.append([])
            groups[-1].append(segment)
        found: list[tuple[FloatArray, FloatArray]] = []
        for group in groups:
            logits, hidden = self.forward.run(group, logits=True)
            assert logits is not None
            assert hidden is not None
            if len(groups) > 1:  # the forward's buffers are valid until its next run only
                logits, hidden = logits.copy(), hidden.copy()
            ends = np.cumsum([len(s.tokens) for s in group])[:-1]
            found += zip(np.split(logits, ends), np.split(hidden, ends), strict=True)
        return found

    def commit(self, slots: Sequence[int], paths: Sequence[Path]) -> None:
        """See ``Target.commit``. Raises ``InputError``, with nothing changed, for what was not verified."""
        if len(slots) != len(paths):
            raise InputError(f"commit got {len(slots)} slots and {len(paths)} paths; give one path to each slot")
        if len(set(slots)) < len(slots):
            raise InputError(f"slots {list(slots)} name a slot twice; commit each once")
        for slot, path in zip(slots, paths, strict=True):
            self._check_path(slot, path)
        for slot, path in zip(slots, paths, strict=True):
            state = self._open[slot]
            first = state.length + 1
            rows = [first + node for node in path.nodes]
            if rows != list(range(first, first + len(rows))):
                self.forward.move(slot, rows, first)
            state.length = first + len(rows)
            state.verified, state.guessed = None, 0

    def truncate(self, slot: int, length: int) -> None:
        """See ``Target.truncate``."""
        state = self._state(slot)
        if not 0 <= length <= state.length:
            raise InputError(f"slot {slot} holds {state.length} tokens, it cannot be rolled back to {length}")
        state.length = length
        state.verified, state.guessed = None, 0

    def copy(self, source: int, slot: int, length: int) -> None:
        """See ``Target.copy``."""
        state, given = self._state(slot), self._state(source)
        if source == slot or not 0 <= length <= given.length:
            raise InputError(f"slot {source} holds {given.length} tokens; slot {slot} cannot be given {length} of them")
        if length:
            self.forward.copy(source, slot, length)
        state.length = length
        state.verified, state.guessed = None, 0

    def shorten(self, bits: int, layers: Sequence[int]) -> Guesser:
        """See ``Target.shorten``."""
        if not isinstance(self.forward, Shortens):
            return super().shorten(bits, layers)
        if bits not in self.info.short:
            known = ", ".join(map(str, self.info.short))
            raise InputError(f"{self.info.runner} has no weights of {bits} bits; it has {known}")
        return _Guesses(self, self.forward.shorten(bits, layers))

    def place(self, slot: int, ahead: int, tokens: IntArray) -> Segment:
        """Rows of a guess, behind the committed ones, where the verified rows are written over."""
        state = self._state(slot)
        tokens = self._checked(tokens)
        end = ahead + len(tokens)
        last = min(MAX_NODES + 1, self.info.context - state.length) - 1
        if not 0 <= ahead < end <= last + 1:
            raise InputError(
                f"slot {slot} holds {state.length} of {self.info.context} tokens; there is no room to guess "
                f"places {ahead} to {end - 1} behind them (the last is {last})"
            )
        if ahead > state.guessed:
            raise InputError(f"place {ahead} of slot {slot} cannot be guessed before place {state.guessed}")
        state.verified, state.guessed = None, end
        rows = np.arange(len(tokens), dtype=np.int32)
        return Segment(slot, state.length + ahead, tokens, rows - 1, rows)

    def tap(self, layers: Sequence[int]) -> Features:
        """See ``Target.tap``."""
        if not isinstance(self.forward, Taps):
            return super().tap(layers)
        forward = self.forward
        forward.tap(layers)
        taps = tuple(layers)

        def features(slot: int, begin: int, end: int) -> FloatArray:
            length = self._state(slot).length
            if not 0 <= begin <= end <= length:
                raise InputError(f"slot {slot} holds {length} tokens, there are no hidden states of {begin} to {end}")
            return forward.features(slot, begin, end, taps)

        return features

    def attach(self, head: Head) -> Rider:
        """See ``Target.attach``."""
        from augury.models.heads import check_head
        from augury.models.places import medusa_ride
        from augury.models.ride import head_block

        if not isinstance(self.forward, Rides):
            return super().attach(head)
        check_head(head, self.info)
        if head.config.kind == "medusa":
            ride = medusa_ride(head, self.forward)
        else:
            ride = self.forward.attach(*head_block(head, self.forward, self.info.context))

        def rider(
            slot: int,
            length: int,
            tokens: IntArray,
            given: FloatArray,
            fuse: bool,
            logits: int,
            parents: IntArray | None = None,
        ) -> tuple[FloatArray, FloatArray]:
            self._state(slot)
            most = head.config.guesses if head.config.kind == "medusa" else len(tokens)
            if not 0 <= logits <= most:
                raise InputError(f"logits are wanted of {logits} rows, of {most} they can be had")
            rows = np.arange(len(tokens), dtype=np.int32)
            above, depths = rows - 1, rows
            if parents is not None:
                above, depths = parents, rows.copy()
                for i, parent in enumerate(parents.tolist()):
                    depths[i] = depths[parent] + 1 if parent >= 0 else 0
            return ride(Segment(slot, length, self._checked(tokens), above, depths), given, fuse, logits)

        return rider

    def snapshot(self, slot: int) -> list[FloatArray]:
        """See ``Target.snapshot``: keys then values of every layer, f32[length, kv_heads, head_dim]."""
        return self.forward.read(slot, self._state(slot).length)

    def _state(self, slot: int) -> _Slot:
        try:
            return self._open[slot]
        except KeyError:
            opened = ", ".join(map(str, sorted(self._open))) or "none"
            raise InputError(f"slot {slot} is not open; open slots: {opened}") from None

    def _checked(self, tokens: IntArray) -> IntArray:
        """The tokens as contiguous i32[m], all inside the vocabulary."""
        given = np.asarray(tokens)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise InputError(f"tokens must be a list of integer ids, got {given.dtype} of shape {given.shape}")
        if given.size and not 0 <= int(given.min()) <= int(given.max()) < self.info.vocab_size:
            wrong = int(given.min()) if given.min() < 0 else int(given.max())
            raise InputError(f"token id {wrong} is outside the vocabulary of {self.info.vocab_size}")
        return np.ascontiguousarray(given, np.int32)

    def _check_path(self, slot: int, path: Path) -> None:
        state = self._state(slot)
        tree = state.verified
        if tree is None:
            raise InputError(f"slot {slot} has nothing to commit; call verify first")
        above = -1
        for node in path.nodes:
            if not 0 <= node < len(tree) or int(tree.parents[node]) != above:
                raise InputError(
                    f"{list(path.nodes)} is not a path of the verified tree of {len(tree)} nodes: "
                    f"node {node} does not follow node {above}"
                )
            above = node
        after = state.length + 1 + len(path.nodes)
        if after > self.info.context:
            raise InputError(
                f"committing {1 + len(path.nodes)} tokens makes {after} in slot {slot}, the context holds "
                f"{self.info.context}; cut the path to {self.info.context - state.length - 1} nodes"
            )
