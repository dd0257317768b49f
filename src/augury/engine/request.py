"""One request: what was asked, what has come so far, and what the drafters may see of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from augury.drafters.drafter import Rule, View
from augury.engine.asking import Asking
from augury.engine.output import Output
from augury.engine.trust import Trust
from augury.noise import Noise
from augury.record import FinishReason, RequestRecord, StepRecord
from augury.sampling import Sampler
from augury.tree import MAX_NODES, FloatArray, IntArray

Shown = TypeVar("Shown", IntArray, FloatArray)


@dataclass(frozen=True)
class TokenLogprob:
    """The target's log-probability of an emitted token, and of the likeliest ones in its place.

    Attributes:
        token: the emitted id.
        logprob: natural logarithm, of the raw row before any sampling parameter.
        top: (id, logprob), likeliest first, as many as were asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Chunk:
    """What one step adds to an answer.

    Attributes:
        text: text that became whole; may be empty while bytes or a possible stop string are held back.
        tokens: emitted ids.
        sources: for each token the name of the drafter that guessed it, or None for the target's own.
        logprobs: one entry a token when asked for, else empty.
        finish_reason: set on the last chunk.
        step: the step's record, or None for an answer of no tokens.
        record: the whole request's record so far; the same object in every chunk.
    """

    text: str
    tokens: tuple[int, ...]
    sources: tuple[str | None, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    step: StepRecord | None
    record: RequestRecord


@dataclass(frozen=True)
class Switches:
    """Per-request choices that are not about the law of the answer.

    Attributes:
        drafters: places of the drafters that are asked; none decodes plainly.
        logprobs: None, or how many alternatives to report with each token's log-probability.
        explain: whether step records hold the target's probability of every drafted token.
        deepest: draft tokens in a row that are verified at most.
    """

    drafters: frozenset[int] = frozenset()
    logprobs: int | None = None
    explain: bool = False
    deepest: int = MAX_NODES


class Request:
    """State of one request. ``tokens[:length]`` is prompt and answer; the last of them is the root."""

    def __init__(
        self,
        number: int,
        prompt: IntArray,
        sampler: Sampler,
        output: Output,
        switches: Switches,
        rule: Rule,
        draft_noise: Noise,
        accept_noise: Noise,
        drafters: tuple[str, ...],
        prediction: IntArray | None,
        tenant: str,
    ) -> None:
        self.number = number
        self.prompt = prompt
        self.sampler = sampler
        self.output = output
        self.switches = switches
        self.rule: Rule = rule
        self.accept_noise = accept_noise
        self.tenant = tenant
        self.record = RequestRecord(len(prompt), drafters)
        self.slot = -1
        self.chunks: deque[Chunk] = deque()
        self.error: Exception | None = None
        self.filled = 0
        """Tokens of the prompt that are in the cache; before the first step it must be all but the last."""
        self.ready = False
        """Whether it takes part in steps: its prompt is in the cache, and the drafters have seen it."""
        self.doubtful = False
        """Whether its cache may hold anything at all."""
        self.abandoned = False
        """Whether nobody waits for it any more."""
        self.asking = Asking()
        """Which drafters pay in this request."""
        self.trust = Trust()
        """How far they are believed in it."""
        self.opened: set[int] = set()
        """Drafters (by index) that were shown the request and not yet told to forget it."""
        self.benched: dict[int, str] = {}
        """Drafters (by index) that broke their contract too often in this request, and how."""
        self.faults: dict[int, int] = {}
        # Twice: what drafters see is theirs to spoil, by mistake or not, and the engine goes by its own.
        self._buffer, self._theirs = (np.empty(2 * len(prompt) + 64, np.int32) for _ in range(2))
        self._buffer[: len(prompt)] = self._theirs[: len(prompt)] = prompt
        self._length = len(prompt)
        self._shown, self._shown_length = [frozen(self._theirs)], [len(prompt)]
        self._shown_slot, self._shown_room, self._shown_floor, self._shown_chain = [-1], [0], [0.0], [False]
        self.views = tuple(
            View(
                number,
                len(prompt),
                rule,
                seat,
                draft_noise,
                sampler.temperature,
                None if prediction is None else frozen(prediction),
                tenant,
                sampler.guess,
                self._shown,
                self._shown_length,
                self._shown_slot,
                self._shown_room,
                sampler.forced,
                self._shown_floor,
                self._shown_chain,
            )
            for seat in range(len(drafters))
        )
        """What each drafter may see; they differ in the noise to sample with."""

    @property
    def length(self) -> int:
        """Tokens of prompt and answer; the target has committed one fewer (the root is still to be computed)."""
        return self._length

    @property
    def tokens(self) -> IntArray:
        """i32[length]; a view."""
        return self._buffer[: self._length]

    @property
    def root(self) -> int:
        """The last committed token."""
        return int(self._buffer[self._length - 1])

    @property
    def done(self) -> bool:
        """Whether nothing more is to come."""
        return self.output.finish is not None or self.error is not None or self.abandoned

    def show(self, room: int, floor: float = 0.0, chain: bool = False) -> None:
        """Tell the views which slot it got, how deep a node may be, how likely it must be, and whether it may have
        siblings.
        """
        self._shown_slot[0], self._shown_room[0], self._shown_floor[0] = self.slot, room, floor
        self._shown_chain[0] = chain

    def append(self, tokens: IntArray) -> None:
        """Add emitted tokens."""
        need = self._length + len(tokens)
        if need > len(self._buffer):
            for name in ("_buffer", "_theirs"):
                grown = np.empty(2 * need, np.int32)
                grown[: self._length] = self.tokens
                setattr(self, name, grown)
            self._shown[0] = frozen(self._theirs)
        self._buffer[self._length : need] = self._theirs[self._length : need] = tokens
        self._length = self._shown_length[0] = need


def frozen(array: Shown) -> Shown:
    """The same array as drafters may see it: not to be written to."""
    view = array.view()
    view.flags.writeable = False
    return view
