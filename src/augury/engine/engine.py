"""The engine: owns the target, the drafters and the requests, and turns the loop for them."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, Unpack, get_args

import numpy as np

from augury.drafters.drafter import Drafter, Rule, tenant_of
from augury.engine.costs import Meter
from augury.engine.drafting import begin, end
from augury.engine.loop import Parts, step
from augury.engine.output import Detokenizer, Output, Stops
from augury.engine.request import Chunk, Request, Switches, TokenLogprob
from augury.errors import AuguryError, ContextTooLong, InputError, UnknownName, shown
from augury.grammar.grammars import Grammars
from augury.models.slots import WORTH_COPYING, Slots
from augury.models.target import Target
from augury.noise import Noise, Stream
from augury.record import FinishReason, RequestRecord
from augury.sampling import Grammar, Sampler, Sampling
from augury.tree import MAX_NODES, IntArray, common

MAX_LOGPROBS = 20
"""Alternatives that may be reported with each token."""

PREFILL_TOKENS, PREFILL_BESIDE = 256, 64
"""Prompt tokens computed in one turn of the loop, alone and beside answers that run, which go on between the chunks."""

Prompt = str | Sequence[int] | IntArray
Message = Mapping[str, object]


class Options(TypedDict, total=False):
    """What may be asked for besides prompt and sampling.

    Attributes:
        max_tokens: tokens of the answer at most; 512 when nothing is said.
        stop: one or more stop strings.
        include_stop: keep the stop string in the text.
        ignore_eos: go on behind end tokens.
        prediction: what the answer is expected to be, as a whole or in parts; costs nothing when wrong. Needs a
            drafter that reads it.
        draft: False decodes plainly.
        drafters: names of the loaded drafters that are asked; all of them when nothing is said.
        draft_tokens: draft tokens in a row that are verified at most; as many as pay when nothing is said.
        acceptance: the rule of this request; the engine's own when nothing is said.
        logprobs: report the target's log-probabilities and that many alternatives.
        explain: put the target's probability of every drafted token in the step records.
        cache_salt: a secret of up to 1024 characters that stands for a tenant: what drafters remember of the tenant's
            answers they use in its requests only. Empty: the local user's, as are all requests without one.
    """

    max_tokens: int
    stop: str | Sequence[str]
    include_stop: bool
    ignore_eos: bool
    prediction: Prompt | None
    draft: bool
    drafters: Sequence[str] | None
    draft_tokens: int | None
    acceptance: Rule | None
    logprobs: int | None
    explain: bool
    cache_salt: str


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def special(self) -> Mapping[int, str]:
        """Control tokens: id -> text. No answer's text shows them."""
        ...

    def encode(self, text: str, special: bool = True, start: bool = False, limit: int | None = None) -> IntArray:
        """Ids of a text; ``special``: read control tokens written in it as such; ``start``: add a begin token;
        ``limit``: tokens that there is room for, far more may be refused unread.
        """
        ...

    def token_bytes(self, id: int) -> bytes:
        """The bytes a token stands for."""
        ...

    def incremental(self, context: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer for an answer that follows ``context``."""
        ...


class Template(Protocol):
    """What the engine needs of a chat template."""

    def reads(self, name: str) -> bool:
        """Whether it looks at a variable of that name."""
        ...

    def encode(
        self,
        tokenizer: Any,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        switches: Mapping[str, bool] | None = None,
        continues: bool = False,
        limit: int | None = None,
    ) -> IntArray:
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
        draft_tokens: draft tokens in a row that are verified at most; as many as pay when None.
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
        draft_tokens: int | None = None,
    ) -> None:
        if acceptance not in get_args(Rule):
            raise UnknownName("acceptance rule", acceptance, get_args(Rule))
        self.target = target
        self.tokenizer = tokenizer
        self.template = template
        self.acceptance: Rule = acceptance
        for id in eos_ids:
            if not isinstance(id, int | np.integer) or not 0 <= id < target.info.vocab_size:
                raise InputError(f"eos_ids has {shown(id)}; valid ids are 0..{target.info.vocab_size - 1}")
        self.eos_ids = tuple(int(t) for t in eos_ids)
        self.parts = Parts(target, tuple(drafters), meter, deepest=deepest(draft_tokens))
        self._names = tuple(name for name, _ in drafters)
        self._grammars = Grammars(tokenizer, target.info.vocab_size)
        self._slots = Slots(target, slots)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._numbers = itertools.count(1)  # taken without the lock, which is held for whole steps
        self._turning = False
        self._lock = threading.RLock()

    # ---- what callers use -------------------------------------------------------------------------------

    def generate(self, prompt: Prompt, sampling: Sampling | None = None, **options: Unpack[Options]) -> Result:
        """Answer one prompt (text, or token ids).

        Args:
            prompt: text is read as it stands, control tokens included; use ``render`` for a conversation.
            sampling: greedy when None.
            options: see ``Options``.

        Raises:
            InputError: a value cannot be honoured; nothing was started.
        """
        (result,) = self.generate_all([prompt], sampling, **options)
        return result

    def generate_all(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        predictions: Sequence[Prompt | None] | None = None,
        **options: Unpack[Options],
    ) -> list[Result]:
        """Answer several prompts together, as many at a time as there are slots; see ``generate``.

        Args:
            prompts: as for ``generate``.
            sampling: of all, or one of each.
            predictions: what each answer is expected to be, where the option ``prediction`` would be of all.
            options: of all; see ``Options``.

        An answer that fails does not stop the others: the first error is raised when all have ended, with a note of
        which prompts it was that failed. Where every answer counts, ``stream`` each prompt.
        """
        samplings = [sampling] * len(prompts) if not isinstance(sampling, Sequence) else list(sampling)
        if len(samplings) != len(prompts):
            raise InputError(f"{len(samplings)} samplings were given for {len(prompts)} prompts")
        if predictions is None:
            return self._run([self.request(p, s, **options) for p, s in zip(prompts, samplings, strict=True)])
        if len(predictions) != len(prompts):
            raise InputError(f"{len(predictions)} predictions were given for {len(prompts)} prompts")
        if options.get("prediction") is not None:
            raise InputError("prediction is of all answers, and predictions of each: give one of them")
        requests = []
        for prompt, one, expected in zip(prompts, samplings, predictions, strict=True):
            own: Options = {**options, "prediction": expected}
            requests.append(self.request(prompt, one, **own))
        return self._run(requests)

    def stream(
        self, prompt: Prompt, sampling: Sampling | None = None, **options: Unpack[Options]
    ) -> Generator[Chunk, None, None]:
        """Answer one prompt step by step; see ``generate``. Closing the iterator cancels the request."""
        return self._chunks(self.request(prompt, sampling, **options))

    @property
    def reads_prediction(self) -> bool:
        """Whether a drafter is loaded that reads the ``prediction`` of a request."""
        return any(drafter.reads_prediction for _, drafter in self.parts.drafters)

    def render(self, messages: str | Sequence[Message]) -> IntArray:
        """Token ids of a conversation (or of one user message) under the target's chat template."""
        if self.template is None or self.tokenizer is None:
            raise InputError(f"{self.target.info.name} has no chat template; give the prompt as text instead")
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return self.template.encode(self.tokenizer, turns)

    def grammar(self, kind: str, source: object = None) -> Grammar:
        """Which texts an answer may be, for ``Sampling(grammar=...)``. Safe in any thread; the last ones are kept.

        Args:
            kind: ``json_schema``, ``json_object`` (any JSON object, no source), ``regex``, ``lark`` or ``choice``.
            source: a schema as a mapping or as JSON; a regular expression; a grammar in Lark; a list of texts.

        Raises:
            InputError: it is none of its kind, too large, or admits no text.
        """
        return self._grammars.get(kind, source)

    def close(self) -> None:
        """Cancel what runs and give the target's slots back."""
        with self._lock:
            self._refuse_inside()
            for request in [*self._running, *self._waiting]:
                request.output.finish = request.output.finish or "cancelled"
                self._leave(request)
            self._slots.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- one turn after the other, for who keeps a thread for it (``service.py``) -------------------------

    @property
    def slots(self) -> int:
        """Requests that can run at the same time."""
        return self._slots.count

    @property
    def free(self) -> int:
        """Requests that would run at once if they were entered now."""
        return self._slots.free - len(self._waiting)

    def enter(self, request: Request) -> None:
        """Let a request wait for its turn."""
        with self._lock:
            self._waiting.append(request)

    def turn(self) -> None:
        """Turn the loop once for all who run, then take out who has ended; does nothing where nobody is.

        Raises:
            Exception: a forward failed; who took part in it has ended with an error.
        """
        with self._lock:
            self._refuse_inside()
            self._turning = True
            try:
                self._turn()
            finally:
                try:
                    while gone := next((r for r in self._running if r.done), None):
                        self._remove(gone)
                finally:
                    self._turning = False

    def leave(self, requests: Sequence[Request]) -> None:
        """Nobody waits for these requests any more. Does nothing the second time."""
        with self._lock:
            for request in requests:
                self._leave(request)

    def request(
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
        drafters: Sequence[str] | None = None,
        draft_tokens: int | None = None,
        acceptance: Rule | None = None,
        logprobs: int | None = None,
        explain: bool = False,
        cache_salt: str = "",
    ) -> Request:
        """Check everything that was asked for, before anything is started; see ``generate``. Safe in any thread."""
        info = self.target.info
        if sampling is not None and not isinstance(sampling, Sampling):
            raise InputError(f"sampling is {shown(sampling)}; give an augury.Sampling")
        switches = {"include_stop": include_stop, "ignore_eos": ignore_eos, "draft": draft, "explain": explain}
        for name, switch in switches.items():
            if not isinstance(switch, bool):
                raise InputError(f"{name} is {shown(switch)}; it must be True or False")
        sampling = sampling or Sampling()
        tokens = self._ids("prompt", prompt)
        if not len(tokens):
            raise InputError("the prompt is empty; give at least one token")
        if len(tokens) >= info.context:
            raise ContextTooLong(len(tokens), info.context)
        if not _whole(max_tokens):
            raise InputError(f"max_tokens is {shown(max_tokens)}; it must be a whole number, 0 or more")
        if logprobs is not None and not (_whole(logprobs) and 0 <= logprobs <= MAX_LOGPROBS):
            raise InputError(f"logprobs is {shown(logprobs)}; it must be a whole number in 0..{MAX_LOGPROBS}")
        most = deepest(draft_tokens)
        if acceptance is not None and acceptance not in get_args(Rule):
            raise UnknownName("acceptance rule", str(acceptance), get_args(Rule))
        rule = acceptance or self.acceptance
        room = info.context - len(tokens)
        if sampling.min_tokens > room:
            raise InputError(f"min_tokens is {sampling.min_tokens}; behind the prompt the context has room for {room}")
        ends = frozenset(sampling.stop_token_ids) | (frozenset() if ignore_eos else frozenset(self.eos_ids))
        if isinstance(stop, bytes) or not isinstance(stop, Sequence) or not all(isinstance(s, str) for s in stop):
            raise InputError(f"stop is {shown(stop)}; give a text or a list of texts")
        stops = Stops(
            max_tokens=min(max_tokens, room),
            strings=(stop,) if isinstance(stop, str) else tuple(stop),
            token_ids=ends,
            min_tokens=sampling.min_tokens,
            include=include_stop,
        )
        self._check_strings(stops.strings)
        asked = self._asked(draft, drafters)
        expected = None if prediction is None else self._expected(prediction, asked)
        tenant = tenant_of(cache_salt)
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
        target_noise = Noise(seed, Stream.TARGET)
        return Request(
            number=next(self._numbers),
            prompt=tokens,
            sampler=Sampler(sampling, info.vocab_size, tuple(ends), tokens, target_noise),
            output=Output(stops, self.tokenizer.incremental(tokens.tolist()) if self.tokenizer else None),
            switches=Switches(asked, logprobs, explain, most),
            rule=rule,
            draft_noise=target_noise if rule == "coupled" else Noise(seed, Stream.DRAFT),
            accept_noise=Noise(seed, Stream.ACCEPT),
            drafters=self._names,
            prediction=expected,
            tenant=tenant,
        )

    # ---- inside -----------------------------------------------------------------------------------------

    def _check_strings(self, strings: Sequence[str]) -> None:
        """Refuse stop strings that no text ever holds."""
        controls = {text: id for id, text in self.tokenizer.special.items()} if strings and self.tokenizer else {}
        for string in strings:
            if string in controls:
                raise InputError(
                    f"stop string {shown(string)} is a control token, which has no text; "
                    f"give stop_token_ids=({controls[string]},) in the sampling instead"
                )

    def _asked(self, draft: bool, names: Sequence[str] | None) -> frozenset[int]:
        """Places of the drafters that a request wants to be asked."""
        if names is None:
            return frozenset(range(len(self._names))) if draft else frozenset()
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise InputError(f"drafters is {shown(names)}; give a list of names")
        if not draft and names:
            raise InputError(f"drafters is {shown(names)}, and draft is False; leave one of them out")
        for name in names:
            if name not in self._names:
                raise UnknownName("loaded drafter", str(name), self._names)
        return frozenset(i for i, name in enumerate(self._names) if name in names)

    def _expected(self, prediction: Prompt, asked: frozenset[int]) -> IntArray:
        """Token ids of a prediction that some drafter will read."""
        if not asked and self._names:
            raise InputError("a prediction is read by drafters only, and none is to be asked; leave the prediction out")
        if not any(self.parts.drafters[i][1].reads_prediction for i in asked):
            names = ", ".join(self._names[i] for i in sorted(asked)) or "none"
            raise InputError(f"a prediction needs a drafter that reads it, such as prediction; asked: {names}")
        ids = self._ids("prediction", prediction)
        if len(ids) > self.target.info.context:
            limit = self.target.info.context
            raise InputError(f"the prediction has {len(ids)} tokens, the context holds {limit}; give what comes next")
        return ids

    def _ids(self, what: str, prompt: Prompt) -> IntArray:
        """Token ids of a prompt or prediction."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InputError(f"the {what} is text, but this engine has no tokenizer; give token ids")
            return self.tokenizer.encode(prompt, special=True, start=what == "prompt")
        try:
            ids = np.asarray(prompt)
        except ValueError:  # ragged
            ids = np.empty((0, 0))
        if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            raise InputError(f"the {what} must be text or a flat list of token ids")
        vocab = self.target.info.vocab_size
        wrong = ids[(ids < 0) | (ids >= vocab)]
        if wrong.size:
            raise InputError(f"the {what} has token id {int(wrong[0])}; valid ids are 0..{vocab - 1}")
        return ids.astype(np.int32)

    def _run(self, requests: Sequence[Request]) -> list[Result]:
        """Run requests to their ends; on any way out nothing of them is left behind."""
        try:
            with self._lock:
                self._waiting.extend(requests)
            while not all(r.done for r in requests):
                self._advance(requests)
        finally:
            try:
                self.leave(requests)
            finally:
                self.leave(requests)  # Ctrl-C may have cut the first short
        failed = [i for i, r in enumerate(requests) if r.error is not None]
        if failed and len(requests) > 1:
            error = requests[failed[0]].error
            assert error is not None
            error.add_note(f"failed of prompts 0 to {len(requests) - 1}: {', '.join(map(str, failed))}")
        return [_result(r) for r in requests]

    def _chunks(self, request: Request) -> Generator[Chunk, None, None]:
        """Chunks of one request as they come."""
        try:
            with self._lock:
                self._waiting.append(request)
            while True:
                while not request.chunks and not request.done:
                    self._advance([request])
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
            try:
                self.leave([request])
            finally:
                self.leave([request])

    def _advance(self, awaited: Sequence[Request]) -> None:
        """Turn the loop once, unless all that is awaited has come."""
        with self._lock:
            if all(r.done for r in awaited):  # another thread was first
                return
            if not (self._running or self._waiting):
                raise AuguryError("nothing runs, and an answer that is waited for has not ended")
            self.turn()

    def _turn(self) -> None:
        """Admit who waits while there are slots, go on with their prompts, and step those whose prompt is whole."""
        while self._waiting and self._slots.free:
            self._admit()
        room = PREFILL_BESIDE if any(r.ready for r in self._running) else PREFILL_TOKENS
        for request in tuple(self._running):
            if room > 0 and not request.ready and not request.done:
                room -= self._fill(request, room)
        batch = tuple(r for r in self._running if r.ready and not r.done)
        if not batch:
            return
        try:
            step(self.parts, batch)
        except BaseException as error:
            # A forward that was cut short leaves caches in doubt: none of these slots is used again as it is.
            for request in batch:
                self._fail(request, error)
            raise

    def _admit(self) -> None:
        """Give the first who waits a slot."""
        request = self._waiting[0]
        if request.done:
            del self._waiting[0]
            return
        self._running += [request]  # no calls here: Ctrl-C comes behind calls, and somebody else may wait for this one
        del self._waiting[0]
        request.record.began = time.perf_counter()
        try:
            request.slot, request.filled = self._slots.take(request.tokens[:-1], request.tenant)
        except BaseException as error:
            self._fail(request, error)
            if not isinstance(error, Exception):
                raise
        request.record.cached_tokens = request.filled

    def _fill(self, request: Request, room: int) -> int:
        """Compute at most ``room`` more tokens of a prompt, up to the root; gives how many. Then tell the drafters."""
        held = request.tokens[:-1]
        clock = time.perf_counter()
        try:
            self._take_over(request, held)
            chunk = held[request.filled : request.filled + room]
            if len(chunk):
                self.target.prefill(request.slot, chunk)
        except BaseException as error:
            self._fail(request, error)
            if not isinstance(error, Exception):
                raise
            return room
        request.filled += len(chunk)
        request.record.prefill_ms += 1e3 * (time.perf_counter() - clock)
        if request.filled == len(held):
            request.ready = True
            begin(self.parts.drafters, request, self.parts.asking, self.parts.trust)
        return len(chunk)

    def _take_over(self, request: Request, held: IntArray) -> None:
        """Copy what a request of the same tenant that runs holds of a prompt by now."""
        found, slot = 0, -1
        for other in self._running:
            if other is not request and other.slot >= 0 and other.tenant == request.tenant and not other.doubtful:
                there = common(other.tokens[: other.length - 1 if other.ready else other.filled], held)
                found, slot = max((found, slot), (there, other.slot))
        if found >= request.filled + WORTH_COPYING:
            self.target.copy(slot, request.slot, found)
            request.record.cached_tokens += found - request.filled
            request.filled = found

    def _fail(self, request: Request, error: BaseException) -> None:
        """End a request whose cache is in doubt; who waits for it, in whatever thread, gets the error."""
        interrupted = AuguryError("the answer was cut off: the step it shared was interrupted")
        request.error = request.error or (error if isinstance(error, Exception) else interrupted)
        request.doubtful = True

    def _leave(self, request: Request) -> None:
        """Nobody waits for a request any more: take it out, finished or not. Does nothing the second time."""
        if self._turning and request in self._running:
            # Drafters, processors and the garbage collector may close a stream in the middle of a step. The step
            # goes on with all it began with.
            request.abandoned = True
        else:
            self._remove(request)

    def _remove(self, request: Request) -> None:
        """Take a request out and give its slot back. Does nothing the second time."""
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._running:
            self._running.remove(request)
        if request.record.finish is None:
            request.record.finish = request.output.finish or ("error" if request.error else "cancelled")
        if request.slot < 0:
            return
        try:
            end(self.parts.drafters, request)
        finally:
            try:
                if request.doubtful:
                    self._slots.drop(request.slot)
                else:
                    self._slots.give(request.slot, request.tokens)
            except Exception:
                request.slot = -1
                raise
            request.slot = -1  # last: who is interrupted before gives the slot back the second time

    def _refuse_inside(self) -> None:
        """Refuse to work while at work: drafters and processors are called in a step, and may not call back."""
        if self._turning:
            raise AuguryError("the engine was called from within one of its own steps")


def deepest(draft_tokens: int | None) -> int:
    """Draft tokens in a row that are verified at most, where so many were asked for.

    Raises:
        InputError: it is no number of tokens.
    """
    if draft_tokens is None:
        return MAX_NODES
    if not (_whole(draft_tokens) and draft_tokens >= 0):
        raise InputError(f"draft_tokens is {shown(draft_tokens)}; it must be a whole number, 0 or more")
    return draft_tokens


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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
