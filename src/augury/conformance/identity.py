"""Is drafted decoding the same as plain decoding: the same tokens, from the same bits?

A target is watched while it answers a prompt twice, plainly and drafted, and the logits behind every
committed token are compared bit by bit. Equal tokens alone prove little: a cache that keeps the wrong rows
often moves logits without moving the choice. On an exact target any difference is a bug. On one whose rows
depend on what else is in the forward, two tokens whose scores nearly tie may change places, and nothing else may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from augury.engine.engine import Engine, Prompt
from augury.errors import InputError
from augury.models.target import Rows, Target, TargetInfo
from augury.sampling import Noise, Sampling, Stream
from augury.tree import DraftTree, FloatArray, IntArray, Path

NEAR = 1e-2
"""Greatest difference of two scores that rounding in another order is believed to bridge, in float32."""

NEAR_HALF = 0.5
"""The same in 16 bits. Two ways to compute SmolLM2-135M in bfloat16 move its logits, of up to 42, by 0.2 as a rule
and by 0.6 at most; a cache that keeps one wrong token moves them by 2 to 9."""

Kind = Literal["identical bits", "same tokens", "near tie", "BUG"]

Scores = Callable[[FloatArray, int], npt.NDArray[np.floating]]
"""(f32[V] logits, absolute position of the token they are the law of) -> f[V], whose largest is chosen."""


class Watched(Target):
    """A target that keeps the logits of everything it commits. One request at a time.

    Attributes:
        rows: absolute position of a committed token -> f32[V], the logits that follow it; copies.
    """

    def __init__(self, target: Target) -> None:
        self.info = target.info
        self.rows: dict[int, FloatArray] = {}
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
        """See ``Target.commit``; the logits of the root and of every kept node are kept too."""
        assert self._verified is not None
        position = self._target.length(slots[0])
        for place, row in enumerate((0, *(node + 1 for node in paths[0].nodes))):
            self.rows[position + place] = self._verified.logits[0][row].copy()
        self._target.commit(slots, paths)

    def truncate(self, slot: int, length: int) -> None:
        """See ``Target.truncate``."""
        self._target.truncate(slot, length)

    def snapshot(self, slot: int) -> list[FloatArray]:
        """See ``Target.snapshot``."""
        return self._target.snapshot(slot)


@dataclass(frozen=True)
class Run:
    """One answer, and the logits it was chosen from.

    Attributes:
        tokens: ids of the answer; ``tokens[j]`` stands at absolute position ``begin + j``.
        begin: tokens of the prompt.
        rows: absolute position -> f32[V], the logits that follow it.
        drafted: draft tokens verified.
        accepted: draft tokens accepted.
        text: the answer's text.
    """

    tokens: tuple[int, ...]
    begin: int
    rows: Mapping[int, FloatArray]
    drafted: int = 0
    accepted: int = 0
    text: str = ""


@dataclass(frozen=True)
class Difference:
    """Where two runs differ first.

    Attributes:
        position: absolute position of the token that the differing logits are the law of.
        tokens: the token of the plain and of the drafted run there; None behind the end of an answer.
        plain: logits of these two tokens in the plain run.
        drafted: the same in the drafted run.
        gap: by how much the plain run preferred its own token (score, not logit, when it was drawn).
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
        moved: greatest difference of any logit at these positions.
        first: the first difference, if there is one.
    """

    kind: Kind
    why: str
    positions: int
    moved: float = 0.0
    first: Difference | None = field(default=None)


def nearness(info: TargetInfo) -> float:
    """How far apart two scores may be for a near tie on a target: by the width of its weights."""
    return NEAR if info.weight_bytes >= 3 * info.parameters else NEAR_HALF


def compare(plain: Run, drafted: Run, *, exact: bool, near: float = NEAR, scores: Scores | None = None) -> Verdict:
    """Judge a drafted run by the plain one.

    Args:
        plain: the run without drafts.
        drafted: the run of the same prompt, parameters and seed with drafts.
        exact: whether the target promises the same bits whatever else is in the forward.
        near: if not, how far apart two scores may be for a near tie; logits may move by twice that.
        scores: what a drawn token is the largest of; the logits themselves (greedy) when None.
    """
    moved, first = 0.0, None
    for j in range(max(len(plain.tokens), len(drafted.tokens))):
        position = plain.begin + j
        a, b = (run.tokens[j] if j < len(run.tokens) else None for run in (plain, drafted))
        if a is None or b is None:
            ends = Difference(position, (a, b))
            return Verdict("BUG", "the same tokens, but one answer ends earlier", j, moved, first or ends)
        rows = plain.rows[position - 1], drafted.rows[position - 1]
        equal = np.array_equal(rows[0].view(np.uint32), rows[1].view(np.uint32))
        if equal and a == b:
            continue
        here = _difference(position, (a, b), rows, scores)
        if not equal:
            moved = max(moved, float(np.max(np.abs(rows[0].astype(np.float64) - rows[1]))))
            first = first or here
        if not equal and exact:
            return Verdict("BUG", "the target promises equal bits, and these logits differ", j + 1, moved, here)
        if a != b and equal:
            return Verdict("BUG", "another token was chosen from the same bits", j + 1, moved, here)
        if moved > 2 * near:
            return Verdict("BUG", f"logits moved by {moved:.3g}; rounding explains {2 * near:g}", j + 1, moved, here)
        if a != b:
            back = _difference(position, (b, a), rows[::-1], scores)
            if max(abs(here.gap), abs(back.gap)) <= near:
                return Verdict("near tie", f"the two tokens are within {near:g} of each other", j + 1, moved, here)
            return Verdict("BUG", f"the two tokens are further apart than {near:g}", j + 1, moved, here)
    count = len(plain.tokens)
    if first is None:
        return Verdict("identical bits", "all tokens and all bits are equal", count)
    return Verdict("same tokens", "this target's logits depend on what else is in the forward", count, moved, first)


def _difference(
    position: int, tokens: tuple[int, int], rows: tuple[FloatArray, FloatArray], scores: Scores | None
) -> Difference:
    a, b = tokens
    score = rows[0] if scores is None else scores(rows[0], position)
    return Difference(
        position,
        tokens,
        (float(rows[0][a]), float(rows[0][b])),
        (float(rows[1][a]), float(rows[1][b])),
        float(score[a]) - float(score[b]),
    )


def watched(engine: Engine) -> Engine:
    """An engine like the given one with its target watched and every guess verified; the given one is closed."""
    engine.close()  # its slots are needed
    return Engine(
        Watched(engine.target),
        engine.parts.drafters,
        acceptance=engine.acceptance,
        tokenizer=engine.tokenizer,
        template=engine.template,
        eos_ids=engine.eos_ids,
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
    verdict = compare(plain, drafted, exact=info.exact, near=nearness(info), scores=_scores(sampling))
    return verdict, plain, drafted


def _run(engine: Engine, prompt: Prompt, sampling: Sampling, max_tokens: int, draft: bool) -> Run:
    assert isinstance(engine.target, Watched)
    engine.target.rows = {}
    result = engine.generate(prompt, sampling, max_tokens=max_tokens, draft=draft)
    record = result.record
    return Run(result.tokens, record.prompt_tokens, engine.target.rows, record.drafted, record.accepted, result.text)


def _scores(sampling: Sampling) -> Scores | None:
    """What a drawn token has the largest of: logit / temperature and the noise of its position."""
    if sampling.temperature == 0.0 or sampling.seed is None:
        return None
    noise, temperature = Noise(sampling.seed, Stream.TARGET), sampling.temperature
    return lambda row, position: np.asarray(row / temperature - np.log(noise.exponential(position, len(row))))
