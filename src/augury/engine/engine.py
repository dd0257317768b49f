"""The engine: owns the target, the drafters and the requests, and turns the loop for them."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, get_args

import numpy as np

from augury.drafters.drafter import Drafter, Rule
from augury.engine.admission import Slots
from augury.engine.costs import Meter
from augury.engine.drafting import begin, end
from augury.engine.loop import Parts, step
from augury.engine.output import Detokenizer, Output, Stops
from augury.engine.request import Chunk, Request, Switches, TokenLogprob
from augury.errors import AuguryError, ContextTooLong, InputError, UnknownName
from augury.models.target import Target
from augury.record import FinishReason, RequestRecord
from augury.sampling import Noise, Sampler, Sampling, Stream
from augury.tree import IntArray

MAX_LOGPROBS = 20
"""Alternatives that may be reported with each token."""

Prompt = str | Sequence[int] | IntArray
Message = Mapping[str, object]


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    def encode(self, text: str, special: bool = True, start: bool = False) -> IntArray:
        """Ids of a text; ``special``: read control tokens written in it as such; ``start``: add a begin token."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """The bytes a token stands for."""
        ...

    def incremental(self, context: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer for an answer that follows ``context``."""
        ...


class Template(Protocol):
    """What the engine needs of a chat template."""

    def encode(self, tokenizer: Any, messages: Sequence[Message], add_generation_prompt: bool = True) -> IntArray:
        """Ids of a conversation, as the target was trained to read it; what users wrote holds no control token."""
        ...


@dataclass(frozen=True)
class Result:
    """A finished answer.

    Attributes:
        text: its text, without the stop string; empty for an engine without a tokenizer.
        tokens: its ids, an end token included.
        finish_reason: ``stop`` (end token or stop string) or ``length`` (max_tokens or the context's end).
        logprobs: one entry a token when asked for.
        record: what happened, step by step; figures are computed from it.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...]
    record: RequestRecord


class Engine:
    """Plain and drafted decoding of one target. Safe to call from several threads; one of them works at a time.

    Args:
        target: the model.
        drafters: (name, drafter) in order of preference on ties.
        acceptance: ``coupled`` (default), ``rejection`` or ``block``.
        tokenizer: None for an engine on token ids.
        template: the target's chat template, if it has one.
        eos_ids: tokens that end an answer.
        meter: measured costs; None verifies every proposed node.
        slots: requests that run at the same time.
    """

    def __init__(
        self,
        target: Target,
        drafters: Sequence[tuple[str, Drafter]] = (),
        *,
        acceptance: Rule = "coupled",
        tokenizer: Tokenizer | None = None,
        template: Template | None = None,
        eos_ids: Sequence[int] = (),
        meter: Meter | None = None,
        slots: int = 1,
    ) -> None:
        if acceptance not in get_args(Rule):
            raise UnknownName("acceptance rule", acceptance, get_args(Rule))
        self.target = target
        self.tokenizer = tokenizer
        self.template = template
        self.acceptance: Rule = acceptance
        self.eos_ids = tuple(int(t) for t in eos_ids)
        self.parts = Parts(target, tuple(drafters), meter)
        self._names = tuple(name for name, _ in drafters)
        self._slots = Slots(target, slots)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._number = 0
        self._lock = threading.RLock()

    # ---- what callers use -------------------------------------------------------------------------------

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int = 512,
        stop: str | Sequence[str] = (),
        include_stop: bool = False,
        ignore_eos: bool = False,
        prediction: Prompt | None = None,
        draft: bool = True,
        logprobs: int | None = None,
        explain: bool = False,
    ) -> Result:
        """Answer one prompt (text, or token ids).

        Args:
            prompt: text is read as it stands, control tokens included; use ``render`` for a conversation.
            sampling: greedy when None.
            max_tokens: tokens of the answer at most.
            stop: one or more stop strings.
            include_stop: keep the stop string in the text.
            ignore_eos: go on behind end tokens.
            prediction: what the answer is expected to be, as a whole or in parts; costs nothing when wrong.
            draft: False decodes plainly.
            logprobs: report the target's log-probabilities and that many alternatives.
            explain: put the target's probability of every drafted token in the step records.

        Raises:
            InputError: a value cannot be honoured; nothing was started.
        """
        (result,) = self.generate_all(
            [prompt], sampling, max_tokens=max_tokens, stop=stop, include_stop=include_stop, ignore_eos=ignore_eos,
            prediction=prediction, draft=draft, logprobs=logprobs, explain=explain,
        )  # fmt: skip
        return result

    def generate_all(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        max_tokens: int = 512,
        stop: str | Sequence[str] = (),
        include_stop: bool = False,
        ignore_eos: bool = False,
        prediction: Prompt | None = None,
        draft: bool = True,
        logprobs: int | None = None,
        explain: bool = False,
    ) -> list[Result]:
        """Answer several prompts together, as many at a time as there are slots; see ``generate``."""
        samplings = [sampling] * len(prompts) if not isinstance(sampling, Sequence) else list(sampling)
        if len(samplings) != len(prompts):
            raise InputError(f"{len(samplings)} samplings were given for {len(prompts)} prompts")
        requests = [
            self._request(
                p, s or Sampling(), max_tokens, stop, include_stop, ignore_eos, prediction,
                Switches(draft, logprobs, explain),
            )
            for p, s in zip(prompts, samplings, strict=True)
        ]  # fmt: skip
        return self._run(requests)

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int = 512,
        stop: str | Sequence[str] = (),
        include_stop: bool = False,
        ignore_eos: bool = False,
        prediction: Prompt | None = None,
        draft: bool = True,
        logprobs: int | None = None,
        explain: bool = False,
    ) -> Generator[Chunk, None, None]:
        """Answer one prompt step by step; see ``generate``. Closing the iterator cancels the request."""
        request = self._request(
            prompt, sampling or Sampling(), max_tokens, stop, include_stop, ignore_eos, prediction,
            Switches(draft, logprobs, explain),
        )  # fmt: skip
        return self._chunks(request)

    def render(self, messages: str | Sequence[Message]) -> IntArray:
        """Token ids of a conversation (or of one user message) under the target's chat template."""
        if self.template is None or self.tokenizer is None:
            raise InputError(f"{self.target.info.name} has no chat template; give the prompt as text instead")
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return self.template.encode(self.tokenizer, turns)

    def close(self) -> None:
        """Cancel what runs and give the target's slots back."""
        with self._lock:
            for request in [*self._running, *self._waiting]:
                request.output.finish = request.output.finish or "cancelled"
                self._leave(request)
            self._slots.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside -----------------------------------------------------------------------------------------

    def _request(
        self,
        prompt: Prompt,
        sampling: Sampling,
        max_tokens: int,
        stop: str | Sequence[str],
        include_stop: bool,
        ignore_eos: bool,
        prediction: Prompt | None,
        switches: Switches,
    ) -> Request:
        """Check everything that was asked for, before anything is started."""
        info = self.target.info
        tokens = self._ids("prompt", prompt)
        if not len(tokens):
            raise InputError("the prompt is empty; give at least one token")
        if len(tokens) >= info.context:
            raise ContextTooLong(len(tokens), info.context)
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
            raise InputError(f"max_tokens is {max_tokens!r}; it must be a whole number, 0 or more")
        if switches.logprobs is not None and not 0 <= switches.logprobs <= MAX_LOGPROBS:
            raise InputError(f"logprobs is {switches.logprobs}; it must lie in 0..{MAX_LOGPROBS}")
        ends = frozenset(sampling.stop_token_ids) | (frozenset() if ignore_eos else frozenset(self.eos_ids))
        stops = Stops(
            max_tokens=min(max_tokens, info.context - len(tokens)) if max_tokens >= 0 else max_tokens,
            strings=(stop,) if isinstance(stop, str) else tuple(stop),
            token_ids=ends,
            min_tokens=min(sampling.min_tokens, max(max_tokens, 0)),
            include=include_stop,
        )
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
        target_noise = Noise(seed, Stream.TARGET)
        with self._lock:
            self._number += 1
            return Request(
                number=self._number,
                prompt=tokens,
                sampler=Sampler(sampling, info.vocab_size, tuple(ends), tokens, target_noise),
                output=Output(stops, self.tokenizer.incremental(tokens.tolist()) if self.tokenizer else None),
                switches=switches,
                rule=self.acceptance,
                draft_noise=target_noise if self.acceptance == "coupled" else Noise(seed, Stream.DRAFT),
                accept_noise=Noise(seed, Stream.ACCEPT),
                drafters=self._names,
                prediction=None if prediction is None else self._ids("prediction", prediction),
            )

    def _ids(self, what: str, prompt: Prompt) -> IntArray:
        """Token ids of a prompt or prediction."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InputError(f"the {what} is text, but this engine has no tokenizer; give token ids")
            return self.tokenizer.encode(prompt, special=True, start=what == "prompt")
        ids = np.asarray(prompt)
        if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            raise InputError(f"the {what} must be text or a flat list of token ids")
        vocab = self.target.info.vocab_size
        wrong = ids[(ids < 0) | (ids >= vocab)]
        if wrong.size:
            raise InputError(f"the {what} has token id {int(wrong[0])}; valid ids are 0..{vocab - 1}")
        return ids.astype(np.int32)

    def _run(self, requests: Sequence[Request]) -> list[Result]:
        """Run requests to their ends; on any way out nothing of them is left behind."""
        with self._lock:
            self._waiting.extend(requests)
        try:
            while not all(r.done for r in requests):
                self._advance()
        finally:
            with self._lock:
                for request in requests:
                    self._leave(request)
        return [_result(r) for r in requests]

    def _chunks(self, request: Request) -> Generator[Chunk, None, None]:
        """Chunks of one request as they come."""
        with self._lock:
            self._waiting.append(request)
        try:
            while True:
                while not request.chunks and not request.done:
                    self._advance()
                if request.error is not None:
                    raise request.error
                if not request.chunks:  # an answer of no tokens
                    yield Chunk("", (), (), (), request.output.finish, None, request.record)
                    return
                chunk = request.chunks.popleft()
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            with self._lock:
                self._leave(request)

    def _advance(self) -> None:
        """Admit who waits while there are slots, then turn the loop once for all who run."""
        with self._lock:
            while self._waiting and self._slots.free:
                self._admit(self._waiting.popleft())
            self._running = [r for r in self._running if not r.done]
            if not self._running:
                return
            try:
                step(self.parts, self._running)
            except BaseException as error:
                # A forward that was cut short leaves caches in doubt: none of these slots is used again as it is.
                for request in [*self._running]:
                    self._fail(request, error)
                raise
            for request in [r for r in self._running if r.done]:
                self._leave(request)

    def _admit(self, request: Request) -> None:
        """Give a request a slot, fill its cache up to the root, and tell the drafters."""
        if request.done:
            return
        held = request.tokens[:-1]
        request.slot, shared = self._slots.take(held)
        self._running.append(request)
        request.record.cached_tokens = shared
        clock = time.perf_counter()
        try:
            self.target.prefill(request.slot, held[shared:])
        except BaseException as error:
            self._fail(request, error)
            if not isinstance(error, Exception):
                raise
            return
        request.record.prefill_ms = 1e3 * (time.perf_counter() - clock)
        begin(self.parts.drafters, request)

    def _fail(self, request: Request, error: BaseException) -> None:
        """End a request whose cache is in doubt; who waits for it, in whatever thread, gets the error."""
        interrupted = AuguryError("the answer was cut off: the step it shared was interrupted")
        request.error = request.error or (error if isinstance(error, Exception) else interrupted)
        self._leave(request, trust=False)

    def _leave(self, request: Request, trust: bool = True) -> None:
        """Take a request out, finished or not. Does nothing the second time."""
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._running:
            self._running.remove(request)
        if request.record.finish is None:
            request.record.finish = request.output.finish or ("error" if request.error else "cancelled")
        if request.slot < 0:
            return
        end(self.parts.drafters, request)
        if trust:
            self._slots.give(request.slot, request.tokens)
        else:
            self._slots.drop(request.slot)
        request.slot = -1


def _result(request: Request) -> Result:
    """The whole answer of a request that has ended."""
    if request.error is not None:
        raise request.error
    assert request.output.finish is not None
    return Result(
        text=request.output.text,
        tokens=tuple(request.tokens[len(request.prompt) :].tolist()),
        finish_reason=request.output.finish,
        logprobs=tuple(entry for chunk in request.chunks for entry in chunk.logprobs),
        record=request.record,
    )
