"""Is drafted decoding the same as plain decoding: the same tokens, from the same bits?

A target is watched while it answers a prompt twice, plainly and drafted, and the logits behind every
committed token are compared bit by bit. Equal tokens alone prove little: a cache that keeps the wrong rows
often moves logits without moving the choice. On an exact target any difference is a bug. On one whose rows
depend on what else is in the forward, two tokens whose scores nearly tie may change places, and nothing else may.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from augury.engine.engine import Engine, Prompt
from augury.errors import InputError
from augury.models.target import Rows, Target, TargetInfo
from augury.noise import Noise, Stream
from augury.sampling import Sampling
from augury.tree import DraftTree, FloatArray, IntArray, Path

NEAR = 1e-2
"""Greatest difference of two scores that rounding in another order is believed to bridge, in float32."""

NEAR_HALF = 0.5
"""The same in 16 bits. Two ways to compute SmolLM2-135M in bfloat16 move its logits, of up to 42, by 0.2 as a rule
and by 0.6 at most; a cache that keeps one wrong token moves them by 2 to 9."""

KEPT = 1024
"""Tokens of a row that are kept, those of greatest score. Two that nearly tie are the two greatest but for rounding,
and what moves logits at all moves the greatest too, so these tell all that is judged; a whole row of 262,144 logits is
a megabyte, and an answer has thousands of rows."""

Kind = Literal["identical bits", "same tokens", "near tie", "BUG"]

Scores = Callable[[FloatArray, int], npt.NDArray[np.floating]]
"""(f32[V] logits, absolute position of the token they are the law of) -> f[V], whose largest is chosen."""


@dataclass(frozen=True)
class Row:
    """What is kept of a row of logits.

    Attributes:
        digest: of all its bits.
        ids: i32[k], the tokens of greatest score, ascending; k is ``KEPT`` or the whole vocabulary.
        logits: f32[k] of these tokens.
        scores: f[k], what a drawn token has the largest of; the logits themselves when greedy.
    """

    digest: bytes
    ids: IntArray
    logits: FloatArray
    scores: npt.NDArray[np.floating]

    @staticmethod
    def of(logits: FloatArray, position: int = 0, scores: Scores | None = None) -> Row:
        """Keep of f32[V] logits what ``compare`` needs.

        Args:
            logits: that follow the token at ``position`` - 1.
            position: absolute, of the token that they are the law of.
            scores: None when greedy.
        """
        every = logits if scores is None else scores(logits, position)
        size = min(KEPT, len(every))
        ids = np.sort(np.argpartition(every, len(every) - size)[len(every) - size :])
        digest = hashlib.blake2b(np.ascontiguousarray(logits, np.float32).data, digest_size=16).digest()
        return Row(digest, ids.astype(np.int32), logits[ids], every[ids])

    def logit(self, token: int) -> float:
        """The logit of a token, NaN when it is not among those kept."""
        at = self._at(token)
        return math.nan if at is None else float(self.logits[at])

    def gap(self, token: int, other: int) -> float:
        """By how much a kept token's score is above another's; infinite when that is not among those kept."""
        at, against = self._at(token), self._at(other)
        return math.inf if at is None or against is None else float(self.scores[at]) - float(self.scores[against])

    def moved(self, other: Row) -> float:
        """Greatest difference to another row's logits, of tokens that both keep; infinite if there are none."""
        _, here, there = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        difference = np.abs(self.logits[here].astype(np.float64) - other.logits[there])
        return float(np.max(difference, initial=-math.inf)) if len(here) else math.inf

    def _at(self, token: int) -> int | None:
        at = int(np.searchsorted(self.ids, token))
        return at if at < len(self.ids) and self.ids[at] == token else None


class Watched(Target):
    """A target that keeps what there is to compare of the logits of everything it commits. One request at a time.

    Attributes:
        rows: absolute position of a committed token -> of the logits that follow it.
        scores: what the tokens of the request that runs are the largest of; None when greedy.
    """

    def __init__(self, target: Target) -> None:
        self.info = target.info
        self.rows: dict[int, Row] = {}
        self.scores: Scores | None = None
        self._target = target
        self._verified: Rows | None = None

    def open(self) -> int:
        """See ``Target.open``."""
        return self._target.open()

    def release(self, slot: int) -> None:
        """See ``Target.release``."""
        self._target.release(slot)

    def length(self, slot: int) -> int:
        """See ``Target.length``."""
        return self._target.length(slot)

    def prefill(self, slot: int, tokens: IntArray) -> None:
        """See ``Target.prefill``."""
        self._target.prefill(slot, tokens)

    def verify(self, slots: Sequence[int], roots: Sequence[int], trees: Sequence[DraftTree]) -> Rows:
        """See ``Target.verify``."""
        if len(slots) != 1:
            raise InputError(f"{len(slots)} requests run together; a watched target follows one at a time")
        self._verified = self._target.verify(slots, roots, trees)
        return self._verified

    def commit(self, slots: Sequence[int], paths: Sequence[Path]) -> None:
        """See ``Target.commit``; the rows of the root and of every accepted node are kept."""
        assert self._verified is not None
        begin = self._target.length(slots[0])
        for position, row in enumerate((0, *(node + 1 for node in paths[0].nodes)), begin):
            self.rows[position] = Row.of(self._verified.logits[0][row], position + 1, self.scores)
        self._target.commit(slots, paths)

    def truncate(self, slot: int, length: int) -> None:
        """See ``Target.truncate``."""
        self._target.truncate(slot, length)

    def copy(self, source: int, slot: int, length: int) -> None:
        """See ``Target.copy``."""
        self._target.copy(source, slot, length)

    def snapshot(self, slot: int) -> list[FloatArray]:
        """See ``Target.snapshot``."""
        return self._target.snapshot(slot)


@dataclass(frozen=True)
class Run:
    """One answer, and the logits it was chosen from.

    Attributes:
        tokens: ids of the answer; ``tokens[j]`` stands at absolute position ``begin + j``.
        begin: tokens of the prompt.
        rows: absolute position -> of the logits that follow it.
        drafted: draft tokens verified.
        accepted: draft tokens accepted.
        text: the answer's text.
        steps: it took.
    """

    tokens: tuple[int, ...]
    begin: int
    rows: Mapping[int, Row]
    drafted: int = 0
    accepted: int = 0
    text: str = ""
    steps: int = 0


@dataclass(frozen=True)
class Difference:
    """Where two runs differ first.

    Attributes:
        position: absolute position of the token that the differing logits are the law of.
        tokens: the token of the plain and of the drafted run there; None behind the end of an answer.
        plain: logits of these two tokens in the plain run; NaN for one that is not among the greatest there.
        drafted: the same in the drafted run.
        gap: by how much the plain run preferred its own token (score, not logit, when it was drawn); infinite where
            the other is not among the greatest.
    """

    position: int
    tokens: tuple[int | None, int | None]
    plain: tuple[float, float] = (0.0, 0.0)
    drafted: tuple[float, float] = (0.0, 0.0)
    gap: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What a comparison found.

    Attributes:
        kind: ``same tokens`` is an answer whose tokens are equal and whose bits are not, on a target that
            does not claim equal bits.
        why: one line.
        positions: how many were compared.
        moved: greatest difference of any of the greatest logits at these positions.
        first: the first difference, if there is one.
    """

    kind: Kind
    why: str
    positions: int
    moved: float = 0.0
    first: Difference | None = field(default=None)


def nearness(info: TargetInfo) -> float:
    """How far apart two scores may be for a near tie on a target: by the width of its arithmetic."""
    return NEAR if info.dtype == "float32" else NEAR_HALF


def compare(plain: Run, drafted: Run, *, exact: bool, near: float = NEAR) -> Verdict:
    """Judge a drafted run by the plain one.

    Args:
        plain: the run without drafts.
        drafted: the run of the same prompt, parameters and seed with drafts.
        exact: whether the target promises the same bits whatever else is in the forward.
        near: if not, how far apart two scores may be for a near tie; logits may move by twice that.
    """
    moved, first = 0.0, None
    for j in range(max(len(plain.tokens), len(drafted.tokens))):
        position = plain.begin + j
        a, b = (run.tokens[j] if j < len(run.tokens) else None for run in (plain, drafted))
        if a is None or b is None:
            ends = Difference(position, (a, b))
            return Verdict("BUG", "the same tokens, but one answer ends earlier", j, moved, first or ends)
        rows = plain.rows[position - 1], drafted.rows[position - 1]
        equal = rows[0].digest == rows[1].digest
        if equal and a == b:
            continue
        here = _difference(position, (a, b), rows)
        if not equal:
            moved = max(moved, rows[0].moved(rows[1]))
            first = first or here
        if not equal and exact:
            return Verdict("BUG", "the target promises equal bits, and these logits differ", j + 1, moved, here)
        if a != b and equal:
            return Verdict("BUG", "another token was chosen from the same bits", j + 1, moved, here)
        if moved > 2 * near:
            return Verdict("BUG", f"logits moved by {moved:.3g}; rounding explains {2 * near:g}", j + 1, moved, here)
        if a != b:
            if max(abs(rows[0].gap(a, b)), abs(rows[1].gap(b, a))) <= near:
                return Verdict("near tie", f"the two tokens are within {near:g} of each other", j + 1, moved, here)
            return Verdict("BUG", f"the two tokens are further apart than {near:g}", j + 1, moved, here)
    count = len(plain.tokens)
    if first is None:
        return Verdict("identical bits", "all tokens and all bits are equal", count)
    return Verdict("same tokens", "this target's logits depend on what else is in the forward", count, moved, first)


def _difference(position: int, tokens: tuple[int, int], rows: tuple[Row, Row]) -> Difference:
    plain, drafted = ((row.logit(tokens[0]), row.logit(tokens[1])) for row in rows)
    return Difference(position, tokens, plain, drafted, 0.0 if tokens[0] == tokens[1] else rows[0].gap(*tokens))


def watched(engine: Engine, budget: bool = False) -> Engine:
    """An engine like the given one with its target watched; the given one is closed.

    Every guess is verified, the most that can go wrong, or with ``budget`` what the engine's costs make worth it.
    """
    engine.close()  # its slots are needed
    return Engine(
        Watched(engine.target),
        engine.parts.drafters,
        acceptance=engine.acceptance,
        tokenizer=engine.tokenizer,
        template=engine.template,
        eos_ids=engine.eos_ids,
        meter=engine.parts.meter if budget else None,
    )


def check_rule(acceptance: str, sampling: Sampling) -> None:
    """Refuse what promises no equal tokens, or whose scores ``compare`` could not tell."""
    if acceptance in ("rejection", "block") and sampling.temperature > 0.0:
        raise InputError(
            f"acceptance={acceptance} keeps the law of sampled text, not its tokens, so there is nothing to compare; "
            "check with acceptance=coupled or at temperature 0"
        )
    if sampling.temperature > 0.0 and sampling.seed is None:
        raise InputError("a sampled answer cannot be repeated without a seed; give one")
    if sampling != Sampling(temperature=sampling.temperature, seed=sampling.seed):
        raise InputError("only temperature and seed can be checked; leave the other sampling parameters out")


def examine(engine: Engine, prompt: Prompt, sampling: Sampling, *, max_tokens: int) -> tuple[Verdict, Run, Run]:
    """Answer a prompt plainly and drafted, and compare.

    Args:
        engine: from ``watched``.
        prompt: see ``Engine.generate``.
        sampling: greedy, or temperature with a seed; other parameters of the law would need its whole
            pipeline to tell how near two tokens are.
        max_tokens: of each answer.

    Raises:
        InputError: see ``check_rule``.
    """
    check_rule(engine.acceptance, sampling)
    plain = _run(engine, prompt, sampling, max_tokens, draft=False)
    drafted = _run(engine, prompt, sampling, max_tokens, draft=True)
    info = engine.target.info
    return compare(plain, drafted, exact=info.exact, near=nearness(info)), plain, drafted


def _run(engine: Engine, prompt: Prompt, sampling: Sampling, max_tokens: int, draft: bool) -> Run:
    assert isinstance(engine.target, Watched)
    engine.target.rows, engine.target.scores = {}, _scores(sampling)
    result = engine.generate(prompt, sampling, max_tokens=max_tokens, draft=draft)
    record, rows = result.record, engine.target.rows
    return Run(
        result.tokens, record.prompt_tokens, rows, record.drafted, record.accepted, result.text, len(record.steps)
    )


def _scores(sampling: Sampling) -> Scores | None:
    """What a drawn token has the largest of: logit / temperature and the noise of its position."""
    if sampling.temperature == 0.0 or sampling.seed is None:
        return None
    noise, temperature = Noise(sampling.seed, Stream.TARGET), sampling.temperature
    return lambda row, position: np.asarray(row / temperature - np.log(noise.exponential(position, len(row))))
