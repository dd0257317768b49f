"""Recorded answers, played to a proposer as vLLM would call it: a batch of rows that come, change places and go.

The target is the record: of a chain it accepts what the record says, and adds the token behind. So what is played
depends on the guesses, as in the engine, and on nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from augury_vllm.rows import Table

Guess = Callable[[list[list[int]], Table, Table, Sequence[str]], list[list[int]]]
"""What is called after every step, with sampled tokens, lengths, tokens and requests of the rows: ours is not told the
last, as vLLM does not tell it."""


@dataclass(frozen=True)
class Answer:
    """A prompt and what the target says to it, in token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass
class Figures:
    """What came of it.

    Attributes:
        ms: of each call.
        rows: of each call.
        tokens: that came.
        drafts: chains that were verified.
        drafted: tokens of these.
        accepted: of these.
        gaps: calls from one in which a request got tokens to the next such one.
        guesses: all that was guessed, call by call, if it was asked for.
    """

    ms: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    tokens: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    gaps: list[int] = field(default_factory=list)
    guesses: list[Any] = field(default_factory=list)

    @property
    def acceptance_length(self) -> float:
        """Tokens of a step that verified a chain, as vLLM's metrics count them."""
        return 1.0 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step brought a request, drafted or not."""
        return self.tokens / sum(self.rows) if self.rows else 0.0


@dataclass(eq=False)
class _Playing:
    name: str
    answer: Answer
    at: int = 0
    chain: list[int] = field(default_factory=list)
    parts: int = 0  # steps of its prompt that are still to come
    away: int = 0
    last: int = 0  # call in which it got tokens


def play(
    guess: Guess, answers: Sequence[Answer], *, rows: int, context: int, disturb: int | None = None, keep: bool = False
) -> Figures:
    """Play answers to a proposer.

    Args:
        guess: the proposer.
        answers: of each request, in the order of their coming.
        rows: requests at once at most.
        context: tokens that a row holds.
        disturb: seed of what happens to rows: they change places, requests are preempted and come back, prompts come in
            parts; None disturbs nobody.
        keep: whether the guesses are kept.
    """
    figures, rng = Figures(), np.random.default_rng(disturb)
    waiting: list[_Playing] = [_Playing(str(i), answer) for i, answer in enumerate(answers)]
    batch: list[_Playing] = []
    gone: list[_Playing] = []
    lengths, tokens = np.zeros(rows, np.int32), np.full((rows, context), -1, np.int32)
    while waiting or batch or gone:
        for one in gone:
            one.away -= 1
        back = [one for one in gone if one.away <= 0][: rows - len(batch)]
        gone = [one for one in gone if one not in back]
        batch += back
        while waiting and len(batch) < rows:
            batch.append(waiting.pop(0))
            if disturb is not None and rng.random() < 0.3:
                batch[-1].parts = int(rng.integers(1, 4))
        if disturb is not None and len(batch) > 1:
            if rng.random() < 0.2:
                rng.shuffle(batch)
            if rng.random() < 0.1:
                left = batch.pop(int(rng.integers(len(batch))))
                left.away, left.chain = int(rng.integers(1, 50)), []
                left.parts = int(rng.integers(0, 2))
                gone.append(left)
        sampled = [_step(one, figures) for one in batch]
        for row, one in enumerate(batch):
            text = [*one.answer.prompt, *one.answer.answer[: one.at]]
            lengths[row] = len(text)
            tokens[row, : len(text)] = text
            tokens[row, len(text) :] = -1  # what lies behind a text is left from others
        began = time.perf_counter()
        chains = guess(sampled, lengths, tokens, [one.name for one in batch])
        figures.ms.append(1e3 * (time.perf_counter() - began))
        figures.rows.append(sum(map(bool, sampled)))
        if keep:
            figures.guesses.append([list(chain) for chain in chains])
        for one, new, chain in zip(batch, sampled, chains, strict=True):
            if new:
                figures.gaps += [len(figures.ms) - one.last] if one.last else []
                one.chain, one.last = list(chain), len(figures.ms)
        batch = [one for one in batch if one.at < len(one.answer.answer)]
    return figures


def _step(one: _Playing, figures: Figures) -> list[int]:
    """What a step brings a request."""
    if one.parts:
        one.parts -= 1
        return []
    rest = one.answer.answer[one.at :]
    chain = one.chain[: len(rest)]
    right = 0
    while right < len(chain) and chain[right] == rest[right]:
        right += 1
    figures.drafts += bool(one.chain)
    figures.drafted += len(one.chain)
    figures.accepted += right
    came = list(rest[: right + 1])
    one.at += len(came)
    figures.tokens += len(came)
    return came
