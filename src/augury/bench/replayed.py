"""A target that takes its own time and gives somebody else's answers: *synthetic acceptance*, a test aid.

What drafting gains depends on what forwards cost and on how often guesses are right. A large model with random weights
costs what a trained one of its shape costs, but nobody guesses what it says. So a *real* target answers first, and what
it said, and what it would have guessed in fewer bits, is recorded. The large one then computes every forward, and where
its text goes along a recorded one, the recorded token is made the likeliest. vLLM tests speed without pairs of models
in the same spirit (``synthetic`` acceptance); there a coin decides, here what a real run said.

Real are the time of every forward, the prompts, the loop, the budget, the drafters and their time. Recorded are the
target's tokens and, for the drafter ``self``, at each place of the answer and for each number of guesses before it,
the guess and how likely it was beside the next one; phrases that were counted for the real target are read along. One
thing is made up: behind a wrong guess ``self`` goes on with what is recorded of that place of the answer. None of it
can be accepted, but how likely it looked decides how far it goes on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from augury.drafters.itself import DEEPEST
from augury.drafters.spine import inside
from augury.models.target import Guesser, Rows, Target
from augury.tree import DraftTree, FloatArray, IntArray, Path

_SURE = 1e6  # above every logit that a model gives


@dataclass(frozen=True)
class Recorded:
    """One answer of a real target.

    Attributes:
        prompt: how many tokens of ``text`` are the prompt.
        text: i32[m], prompt and answer.
        guesses: i32[n, DEEPEST], what the target in 4 bits guesses for the n tokens of the answer; column a: over its
            own keys and values for the a tokens before, and the target's for all before these.
        leads: f64[n, DEEPEST], how likely it held each of them beside the next likely token, as shares of both.
    """

    prompt: int
    text: IntArray
    guesses: IntArray
    leads: npt.NDArray[np.float64]

    @property
    def answer(self) -> tuple[int, ...]:
        """Its tokens."""
        return tuple(self.text[self.prompt :].tolist())

    @property
    def right(self) -> float:
        """Share of the guesses behind the target's own keys and values that are right."""
        return float(np.mean(self.guesses[:, 0] == self.text[self.prompt :]))


def recorded(target: Target, prompt: IntArray, answer: Sequence[int]) -> Recorded:
    """An answer with what the target in 4 bits guesses along it.

    Args:
        target: whose answer it is; has a free slot and weights in 4 bits.
        prompt: i32[m], at least one token.
        answer: its tokens, at least one.
    """
    text = np.array([*prompt.tolist(), *answer], np.int32)
    guess = target.shorten(4, range(target.info.layers))
    guesses = np.zeros((len(answer), DEEPEST), np.int32)
    leads = np.zeros((len(answer), DEEPEST))
    slot = target.open()
    try:
        target.prefill(slot, text[: len(prompt) - 1])
        for committed in range(len(prompt) - 1, len(text) - 1):
            for ahead in range(min(DEEPEST, len(text) - 1 - committed)):
                row = guess(slot, ahead, text[committed + ahead : committed + ahead + 1])[0]
                place = committed + ahead + 1 - len(prompt)
                guesses[place, ahead], leads[place, ahead] = _likeliest(row)
            target.prefill(slot, text[committed : committed + 1])
    finally:
        target.release(slot)
    for place in range(min(len(answer), DEEPEST)):  # nothing stands so far in front of the first places
        guesses[place, place + 1 :], leads[place, place + 1 :] = guesses[place, place], leads[place, place]
    return Recorded(len(prompt), text, guesses, leads)


def _likeliest(logits: FloatArray) -> tuple[int, float]:
    """The likeliest token of f32[V], and its share of its probability and the next one's."""
    second, first = np.partition(logits, -2)[-2:]
    return int(logits.argmax()), float(1.0 / (1.0 + np.exp(second - first)))


@dataclass
class _Slot:
    held: IntArray = field(default_factory=lambda: np.empty(0, np.int32))  # committed tokens
    root: int = -1
    tree: DraftTree = field(default_factory=DraftTree.empty)


class Replayed(Target):
    """A target with the answers of another one; see the module's text.

    Text that no record begins with is the target's own.

    Args:
        target: that computes.
        records: what is answered; no text twice.
        digest: of the target whose answers these are: what it usually says is what this one usually says.

    Attributes:
        verify_ms: milliseconds of each verify so far, by its rows.
        guess_ms: the same of each guess.
    """

    def __init__(self, target: Target, records: Sequence[Recorded], digest: str = "") -> None:
        # No head can ride on it: its hidden states are not of what it says.
        self.info = replace(target.info, digest=digest, taps=False)
        self.verify_ms: defaultdict[int, list[float]] = defaultdict(list)
        self.guess_ms: defaultdict[int, list[float]] = defaultdict(list)
        self._target, self._records = target, tuple(records)
        self._open: dict[int, _Slot] = {}

    def open(self) -> int:
        """See ``Target.open``."""
        slot = self._target.open()
        self._open[slot] = _Slot()
        return slot

    def release(self, slot: int) -> None:
        """See ``Target.release``."""
        self._target.release(slot)
        del self._open[slot]

    def length(self, slot: int) -> int:
        """See ``Target.length``."""
        return self._target.length(slot)

    def prefill(self, slot: int, tokens: IntArray) -> None:
        """See ``Target.prefill``."""
        self._target.prefill(slot, tokens)
        self._commit(slot, tokens)

    def verify(self, slots: Sequence[int], roots: Sequence[int], trees: Sequence[DraftTree]) -> Rows:
        """See ``Target.verify``; behind each node that the record goes through, its next token is the likeliest."""
        begin = time.perf_counter()
        rows = self._target.verify(slots, roots, trees)
        self.verify_ms[sum(len(tree) + 1 for tree in trees)].append(1e3 * (time.perf_counter() - begin))
        for slot, root, tree, logits in zip(slots, roots, trees, rows.logits, strict=True):
            state = self._open[slot]
            state.root, state.tree = root, tree
            record = self.record(slot)
            if record is None or int(record.text[len(state.held)]) != root:
                continue
            node: int | None = -1
            for token in record.text[len(state.held) + 1 :].tolist():
                assert node is not None
                logits[node + 1, token] = _SURE
                node = next((child for child in tree.children(node) if tree.tokens[child] == token), None)
                if node is None:
                    break
        return rows

    def commit(self, slots: Sequence[int], paths: Sequence[Path]) -> None:
        """See ``Target.commit``."""
        self._target.commit(slots, paths)
        for slot, path in zip(slots, paths, strict=True):
            state = self._open[slot]
            self._commit(slot, np.array([state.root, *state.tree.tokens[list(path.nodes)]], np.int32))

    def truncate(self, slot: int, length: int) -> None:
        """See ``Target.truncate``."""
        self._target.truncate(slot, length)
        self._open[slot].held = self._open[slot].held[:length]

    def copy(self, source: int, slot: int, length: int) -> None:
        """See ``Target.copy``."""
        self._target.copy(source, slot, length)
        self._open[slot].held = self._open[source].held[:length]

    def shorten(self, bits: int, layers: Sequence[int]) -> Guesser:
        """See ``Target.shorten``; what is guessed is recorded, whatever the bits and layers."""
        return _Guesses(self, self._target.shorten(bits, layers))

    def record(self, slot: int) -> Recorded | None:
        """The record that the committed text of a slot is the beginning of, its whole prompt but the root included."""
        held = self._open[slot].held
        for one in self._records:
            if one.prompt - 1 <= len(held) < len(one.text) and np.array_equal(one.text[: len(held)], held):
                return one
        return None

    def _commit(self, slot: int, tokens: IntArray) -> None:
        self._open[slot].held = np.concatenate([self._open[slot].held, np.asarray(tokens, np.int32)])


class _Guesses:
    """The forward in fewer bits is computed; what it gives is recorded."""

    def __init__(self, target: Replayed, guess: Guesser) -> None:
        self._target, self._guess = target, guess

    def __call__(self, slot: int, ahead: int, tokens: IntArray) -> FloatArray:
        begin = time.perf_counter()
        rows = self._guess(slot, ahead, tokens)
        self._target.guess_ms[len(tokens)].append(1e3 * (time.perf_counter() - begin))
        for each, row in enumerate(rows):
            self._replay(slot, ahead + each, row)
        return rows

    def together(self, slots: Sequence[int], aheads: Sequence[int], tokens: Sequence[int]) -> FloatArray:
        begin = time.perf_counter()
        rows = self._guess.together(slots, aheads, tokens)
        self._target.guess_ms[len(slots)].append(1e3 * (time.perf_counter() - begin))
        for slot, ahead, row in zip(slots, aheads, rows, strict=True):
            self._replay(slot, ahead, row)
        return rows

    def _replay(self, slot: int, ahead: int, row: FloatArray) -> None:
        """Write over f32[V] a law of the recorded guess and one other token."""
        record = self._target.record(slot)
        if record is None:
            return
        place = min(self._target.length(slot) + ahead + 1 - record.prompt, len(record.guesses) - 1)
        column = min(ahead, DEEPEST - 1)
        lead, guess = inside(record.leads[place, column]), int(record.guesses[place, column])
        row[:] = -_SURE
        row[guess], row[(guess + 1) % len(row)] = np.log(lead / (1.0 - lead)), 0.0
