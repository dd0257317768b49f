"""The law of the next token: one pipeline for every row, and the noise it is drawn with.

A row of raw logits becomes a law in this order, each step on the result of the one before:

1. ``min_tokens``: end tokens and ``stop_token_ids`` are banned until the answer has that many tokens.
2. ``bad_words``: the last token of a banned sequence is banned where the rest of it has just been written.
3. ``logit_bias`` is added.
4. Penalties. Repetition (Keskar et al. 2019): the logit of a token seen in prompt or answer is divided by the
   penalty if positive, else multiplied. Frequency and presence: ``frequency * count + presence * (count > 0)`` is
   subtracted, counts over the answer only.
5. ``processors``, in order.
6. ``grammar``: a token is banned if no text of the grammar begins with what the answer would then be, and an end token
   or one of ``stop_token_ids`` is banned where the answer is no whole text of it. No step lifts a ban of this one. (In
   a row behind an end token, whose own token is never emitted, nothing is banned.)
7. ``temperature`` divides. At 0 the law is the point mass on the greatest logit, the lowest id on ties, and 8 to
   11 do not apply.
8. ``top_k``: the k greatest logits, and those equal to the last of them.
9. ``top_p`` (Holtzman et al. 2020): tokens from the likeliest down, lower ids first on ties, while the mass before
   them is below ``top_p``.
10. ``min_p``: tokens of at least ``min_p`` times the likeliest one's probability.
11. ``typical_p`` (Meister et al. 2022): tokens by the distance of their surprise from the law's entropy, while the
    mass before them is below ``typical_p``, and those as distant as the last of them.

8 to 11 each work on the law left by the one before, and always leave a token. Steps 1 to 6 see the answer as it
will stand: committed tokens and, behind them, the draft tokens the row follows.

A row whose every token is banned has no law: that is an error, never a silent choice.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from augury.errors import InputError, ModelError, shown
from augury.noise import LawArray, Noise, race
from augury.tree import BoolArray, FloatArray, IntArray

_BANNED = np.float32(-np.inf)
_MANY = 1024  # tokens among which looking for those that can win a race is sooner done than running it
_COLD = 1e-3  # temperature below which a guess's law is not reckoned in single precision


@runtime_checkable
class LogitsProcessor(Protocol):
    """A caller's own step of the pipeline; may keep state from one position to the next.

    It is called once for every position, in order, along the tokens that come to be emitted, and perhaps for
    draft positions that do not: before every call its state is set by ``restore`` to what ``snapshot`` gave after
    the call for the position before, and outside calls it is what it was when the request began. A processor may
    therefore serve several requests. Without state ``snapshot`` gives None.
    """

    def __call__(self, history: IntArray, logits: FloatArray) -> FloatArray:
        """Logits f32[V], perhaps the given array itself, for the token behind ``history`` (i32, prompt and answer).

        Both arrays may be kept only during the call. -inf bans a token.
        """
        ...

    def snapshot(self) -> object:
        """The state, not changed by later calls."""
        ...

    def restore(self, state: object) -> None:
        """Return to a state."""
        ...


class Following(Protocol):
    """A grammar along one answer, from its first token on. ``path`` are draft tokens behind the committed ones."""

    def allowed(self, path: Sequence[int], guess: bool = False) -> BoolArray:
        """bool[V], the tokens that step 6 leaves behind ``path``; behind what it bans none, behind an end token all.

        Not to be written to. For a ``guess`` it may be all where finding out takes too much work.

        Raises:
            InputError: finding out would take too much work.
        """
        ...

    def legal(self, path: Sequence[int]) -> int:
        """How many of the first tokens of a path may be written; where that takes too much work, all. Never raises."""
        ...

    def forced(self, limit: int) -> Sequence[tuple[int, bool]]:
        """At most ``limit`` tokens that spell the only text with which the answer can go on.

        With each goes whether it is known to be the only token allowed in its place. Others would spell the same text.
        """
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit emitted tokens. Never raises."""
        ...


@runtime_checkable
class Grammar(Protocol):
    """Which texts an answer may be; ``Engine.grammar`` makes one. May serve several requests."""

    def follow(self, vocab_size: int, ends: Sequence[int]) -> Following:
        """Begin an answer over ``vocab_size`` tokens that any of ``ends`` ends.

        Raises:
            InputError: it was made for another vocabulary.
        """
        ...


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; the module's text defines every step. The default is greedy.

    Attributes:
        temperature: 0 (greedy) or above.
        top_k: tokens kept, 0 keeps all.
        top_p: mass kept, above 0 and at most 1.
        min_p: least probability relative to the likeliest token's, 0 to 1.
        typical_p: mass kept by typicality, above 0 and at most 1.
        repetition_penalty: 0.01 to 100, 1 is none.
        presence_penalty: -2 to 2.
        frequency_penalty: -2 to 2.
        logit_bias: token id -> -100 to 100.
        min_tokens: tokens of the answer before it may end.
        bad_words: token sequences that may not be written.
        stop_token_ids: further ids that end the answer.
        seed: the same seed gives the same answer; None takes a fresh one for every request.
        processors: further steps, see ``LogitsProcessor``.
        grammar: texts that the answer may be, from ``Engine.grammar``. An answer that a limit or a stop string cuts
            short is the beginning of one.

    Raises:
        InputError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "temperature", _number("temperature", self.temperature, 0.0, math.inf))
        put(self, "top_p", _share("top_p", self.top_p))
        put(self, "min_p", _number("min_p", self.min_p, 0.0, 1.0))
        put(self, "typical_p", _share("typical_p", self.typical_p))
        put(self, "repetition_penalty", _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0))
        put(self, "presence_penalty", _number("presence_penalty", self.presence_penalty, -2.0, 2.0))
        put(self, "frequency_penalty", _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0))
        put(self, "top_k", _whole("top_k", self.top_k, hint="0 keeps all tokens"))
        put(self, "min_tokens", _whole("min_tokens", self.min_tokens))
        if not isinstance(self.logit_bias, Mapping):
            raise InputError(f"logit_bias is a {type(self.logit_bias).__name__}; give a mapping of token id to number")
        bias = {
            _whole("a token id of logit_bias", t): _number(f"logit_bias of token {t}", b, -100.0, 100.0)
            for t, b in self.logit_bias.items()
        }
        put(self, "logit_bias", bias)
        put(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if isinstance(self.bad_words, str) or not isinstance(self.bad_words, Sequence):
            raise InputError(f"bad_words is a {type(self.bad_words).__name__}; give sequences of token ids")
        words = tuple(_ids("a sequence of bad_words", word) for word in self.bad_words)
        if () in words:
            raise InputError("bad_words has an empty sequence; give each at least one token id")
        put(self, "bad_words", words)
        if self.seed is not None:
            put(self, "seed", _whole("seed", self.seed, -(1 << 63), (1 << 64) - 1))
        put(self, "processors", tuple(self.processors))
        for one in self.processors:
            if not isinstance(one, LogitsProcessor):
                kind = type(one).__name__
                raise InputError(f"processor {kind} must be callable and have snapshot and restore")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InputError(f"grammar is {shown(self.grammar)}; make one with engine.grammar(kind, source)")


def _number(name: str, value: object, low: float, high: float) -> float:
    """A finite float in [low, high]."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number) and low <= number <= high:
        return number
    if high == math.inf:
        span = f"be {low:g} or more"
    else:
        span = f"be above 0 and at most {high:g}" if low == -math.inf else f"lie in {low:g}..{high:g}"
    near = f"; the nearest is {min(max(number, low), high):g}" if math.isfinite(number) else ""
    raise InputError(f"{name} is {shown(value)}; it must {span}{near}")


def _share(name: str, value: object) -> float:
    """A float in (0, 1]."""
    number = _number(name, value, -math.inf, 1.0)
    if number <= 0.0:
        raise InputError(f"{name} is {shown(value)}; it must be above 0 and at most 1 (temperature=0 is greedy)")
    return number


def _whole(name: str, value: object, low: int = 0, high: int = (1 << 31) - 1, hint: str = "") -> int:
    """An integer in [low, high]."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        near = "" if number is None else f"; the nearest is {min(max(number, low), high)}"
        tail = f" ({hint})" if hint else ""
        raise InputError(f"{name} is {shown(value)}; it must be a whole number in {low}..{high}{near}{tail}")
    return number


def _ids(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
        raise InputError(f"{name} is {shown(value)}; give a sequence of token ids")
    return tuple(_whole(f"a token id of {name}", token) for token in value)


class _Words:
    """Banned sequences by what stands before their last token, read backwards: a row costs what of them matches."""

    def __init__(self, words: Sequence[tuple[int, ...]] = ()) -> None:
        self._last: list[int] = []
        self._before: dict[int, _Words] = {}
        for word in words:
            here = self
            for token in word[-2::-1]:
                here = here._before.setdefault(token, _Words())
            here._last.append(word[-1])

    def ban(self, scores: FloatArray, history: IntArray) -> None:
        """Ban the last tokens of those whose rest ends the history."""
        here: _Words | None = self
        at = len(history)
        while here is not None:
            if here._last:
                scores[here._last] = -np.inf
            at -= 1
            here = here._before.get(int(history[at])) if at >= 0 else None


class Sampler:
    """One request's laws and draws. Rows may be asked in any order; a row with processors after the one before it.

    Args:
        sampling: what was asked for.
        vocab_size: V.
        eos_ids: ids that end the answer, for ``min_tokens``.
        prompt: i32[m].
        noise: the stream of ``draw``.

    Raises:
        InputError: a token id lies outside the vocabulary; the grammar is of another one, or nothing ends the answer
            where its texts end.
    """

    def __init__(
        self, sampling: Sampling, vocab_size: int, eos_ids: Sequence[int], prompt: IntArray, noise: Noise
    ) -> None:
        named = {
            "logit_bias": sampling.logit_bias,
            "bad_words": [t for word in sampling.bad_words for t in word],
            "stop_token_ids": sampling.stop_token_ids,
        }
        for name, ids in named.items():
            for token in ids:
                if token >= vocab_size:
                    raise InputError(f"{name} has token id {token}; valid ids are 0..{vocab_size - 1}")
        self._sampling = sampling
        self._vocab = vocab_size
        self._noise = noise
        self._ends = sorted({int(t) for t in eos_ids} | set(sampling.stop_token_ids))
        self._words = _Words(sampling.bad_words)
        self._bias_ids = np.fromiter(sampling.logit_bias.keys(), np.intp)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        self._prompt_length = self._length = len(prompt)
        self._tokens = np.empty(2 * len(prompt) + 64, np.int32)
        self._tokens[: len(prompt)] = prompt
        self._answered = sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        self._repeated = sampling.repetition_penalty != 1.0
        self._counts = np.zeros(vocab_size if self._answered else 0, np.float32)
        self._seen = np.zeros(vocab_size if self._repeated else 0, np.bool_)
        if self._repeated:
            self._seen[prompt] = True
        self._edited = bool(
            self._answered or self._repeated or sampling.min_tokens or sampling.bad_words
            or sampling.logit_bias or sampling.processors
        )  # fmt: skip
        self._filtered = bool(
            0 < sampling.top_k < vocab_size or sampling.top_p < 1.0 or sampling.min_p > 0.0 or sampling.typical_p < 1.0
        )
        if sampling.grammar is not None and not self._ends:
            raise InputError(
                "with a grammar the answer needs an end token to end with; leave out ignore_eos, or give stop_token_ids"
            )
        self._following = None if sampling.grammar is None else sampling.grammar.follow(vocab_size, self._ends)
        self._start = tuple(p.snapshot() for p in sampling.processors)
        self._states = self._start
        self._tried: dict[tuple[int, ...], tuple[tuple[object, ...], FloatArray]] = {}

    @property
    def sampling(self) -> Sampling:
        """What was asked for."""
        return self._sampling

    @property
    def temperature(self) -> float:
        """0 is greedy."""
        return self._sampling.temperature

    def law(self, logits: FloatArray, path: Sequence[int]) -> LawArray:
        """The law f64[V] of the token behind the committed ones and ``path``.

        Args:
            logits: f32[V], the target's raw row; not changed.
            path: draft tokens behind the committed ones.

        Raises:
            ModelError: the row holds NaN or +inf.
            InputError: every token is banned.
        """
        weights = self._weights(self._scores(logits, path))
        return np.asarray(weights / weights.sum(), np.float64)

    def guess(self, logits: FloatArray, path: Sequence[int], ids: IntArray | None = None) -> FloatArray:
        """The law f32[v] of another model's row under this request's parameters, for a drafter.

        Args:
            logits: f32[v], the other model's raw row; not changed.
            path: draft tokens behind the committed ones.
            ids: i32[v], the tokens that the row is over, where it is not over all.

        The caller's processors are left out, as their state belongs to the target's rows. When greedy it is the law
        at temperature 1, whose likeliest token is the guess. A row whose every token is banned gives zeros.
        """
        scores = logits
        if self._edited and ids is None:
            scores = self._edit(logits, path)
        elif self._edited:
            wide = np.full(self._vocab, -np.inf, np.float32)
            wide[ids] = logits
            scores = self._edit(wide, path)[ids]
        if self._following is not None:
            allowed = self._following.allowed(path, guess=True)
            scores = np.where(allowed if ids is None else allowed[ids], scores, _BANNED)
        best = float(scores.max())
        if not math.isfinite(best):
            return np.zeros(len(scores), np.float32)
        if self._sampling.temperature == 0.0:
            weights = np.exp(scores - np.float32(best))
            return np.asarray(weights / weights.sum(), np.float32)
        if self._filtered or self._sampling.temperature < _COLD:
            law = self._weights(scores)
            return np.asarray(law / law.sum(), np.float32)
        surplus = scores - np.float32(best)
        surplus /= np.float32(self._sampling.temperature)
        np.exp(surplus, out=surplus)
        surplus /= surplus.sum()
        return surplus

    def draw(self, logits: FloatArray, path: Sequence[int]) -> int:
        """The target's own token behind ``path``: a function of row, seed and position alone. See ``law``."""
        scores = self._scores(logits, path)
        if self._sampling.temperature == 0.0:
            return int(np.argmax(scores))
        waits = self._noise.exponential(self._length + len(path), self._vocab)
        if self._filtered or self._vocab < _MANY:
            return race(self._weights(scores), waits)
        return _first(scores, self._sampling.temperature, waits)

    def legal(self, path: Sequence[int]) -> int:
        """How many of the first draft tokens the grammar allows, for cutting a draft; without a grammar all."""
        return len(path) if self._following is None else self._following.legal(path)

    def forced(self, limit: int) -> Sequence[tuple[int, bool]]:
        """What the grammar forces next, for a drafter; see ``Following.forced``. Without a grammar nothing."""
        return () if self._following is None else self._following.forced(limit)

    @property
    def guided(self) -> bool:
        """Whether there is a grammar."""
        return self._following is not None

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit emitted tokens."""
        if not len(tokens):
            return
        if self._following is not None:
            self._following.advance(tokens)
        if self._sampling.processors:
            self._states, _ = self._row(tuple(tokens[:-1]))
            self._tried.clear()
        self._put(tokens)
        self._length += len(tokens)
        if self._answered:
            np.add.at(self._counts, np.asarray(tokens), np.float32(1.0))
        if self._repeated:
            self._seen[np.asarray(tokens)] = True

    def _put(self, tokens: Sequence[int]) -> IntArray:
        """Write tokens behind the committed ones without committing them; gives both."""
        end = self._length + len(tokens)
        if end > len(self._tokens):
            grown = np.empty(2 * end, np.int32)
            grown[: self._length] = self._tokens[: self._length]
            self._tokens = grown
        self._tokens[self._length : end] = tokens
        return self._tokens[:end]

    def _scores(self, logits: FloatArray, path: Sequence[int]) -> FloatArray:
        """Steps 1 to 6: f32[V], finite at the maximum."""
        if not self._edited:
            scores = logits
        elif not self._sampling.processors:
            scores = self._edit(logits, path)
        else:
            scores = self._process(logits, tuple(path))
        if self._following is not None:
            scores = np.where(self._following.allowed(path), scores, _BANNED)
        best = float(scores[np.argmax(scores)])  # argmax takes NaN for the greatest
        if math.isfinite(best):
            return scores
        at = self._length + len(path)
        if best == -math.inf and np.isfinite(logits).any():
            raise InputError(f"every token is banned at position {at}; lift a ban of {', '.join(self._bans())}")
        raise ModelError(f"the target's logits at position {at} have no finite maximum but {best}")

    def _bans(self) -> list[str]:
        s = self._sampling
        kinds = {"min_tokens": s.min_tokens, "bad_words": s.bad_words, "processors": s.processors, "grammar": s.grammar}
        return [name for name, used in kinds.items() if used]

    def _edit(self, logits: FloatArray, path: Sequence[int]) -> FloatArray:
        """Steps 1 to 4 on a copy."""
        s = self._sampling
        scores = np.array(logits, np.float32)
        if self._ends and self._length - self._prompt_length + len(path) < s.min_tokens:
            scores[self._ends] = -np.inf
        if s.bad_words:
            self._words.ban(scores, self._put(path))
        if len(self._bias):
            scores[self._bias_ids] += self._bias
        if self._repeated:
            seen = self._seen
            if len(path):
                seen = seen.copy()
                seen[np.asarray(path)] = True
            some = scores[seen]
            penalty = np.float32(s.repetition_penalty)
            scores[seen] = np.where(some > 0.0, some / penalty, some * penalty)
        if self._answered:
            counts = self._counts
            if len(path):
                counts = counts.copy()
                np.add.at(counts, np.asarray(path), np.float32(1.0))
            scores -= np.float32(s.frequency_penalty) * counts
            scores -= np.float32(s.presence_penalty) * (counts > 0.0)
        return scores

    def _process(self, logits: FloatArray, path: tuple[int, ...]) -> FloatArray:
        """Steps 1 to 5, once for each path: stateful processors must not see a position twice."""
        if path in self._tried:
            return self._tried[path][1]
        states = self._row(path[:-1])[0] if path else self._states
        scores = self._edit(logits, path)
        processors = self._sampling.processors
        history = self._put(path)
        history.flags.writeable = False
        try:
            for processor, state in zip(processors, states, strict=True):
                processor.restore(state)
                scores = np.asarray(processor(history, scores), np.float32)
                if scores.shape != (self._vocab,):
                    kind = type(processor).__name__
                    raise InputError(f"processor {kind} gave an array of shape {scores.shape}, not ({self._vocab},)")
            after = tuple(processor.snapshot() for processor in processors)
        finally:
            for processor, state in zip(processors, self._start, strict=True):
                processor.restore(state)
        self._tried[path] = after, scores.copy()
        return self._tried[path][1]

    def _row(self, path: tuple[int, ...]) -> tuple[tuple[object, ...], FloatArray]:
        """What the processors left at a row."""
        if path not in self._tried:
            raise ValueError(f"processors go along a path in order: the row behind {list(path)} was not asked for")
        return self._tried[path]

    def _weights(self, scores: FloatArray) -> LawArray:
        """Steps 7 to 11: f64[V], proportional to the law; the likeliest token has weight 1."""
        s = self._sampling
        best = np.argmax(scores)
        weights = np.zeros(len(scores))
        if s.temperature == 0.0:
            weights[best] = 1.0
            return weights
        ids = None
        kept = scores
        if 0 < s.top_k < len(scores):
            ids = np.flatnonzero(scores >= np.partition(scores, -s.top_k)[-s.top_k])
            kept = scores[ids]
        surplus = kept.astype(np.float64) - float(scores[best])
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
            surplus /= s.temperature
        some = np.exp(surplus)
        if s.top_p < 1.0:
            some[~_nucleus(some, s.top_p)] = 0.0
        if s.min_p > 0.0:
            some[some < s.min_p] = 0.0  # the likeliest has weight 1
        if s.typical_p < 1.0:
            some[~_typical(some, surplus, s.typical_p)] = 0.0
        if ids is None:
            return some
        weights[ids] = some
        return weights


def _first(scores: FloatArray, temperature: float, waits: LawArray) -> int:
    """Who wins the race whose weights are exp(scores / temperature): the index that ``race`` gives, sooner.

    The likeliest token has weight 1, so it arrives at its own wait. Who is so unlikely that even the shortest wait of
    all would bring it later need not run.
    """
    best = int(np.argmax(scores))
    top = float(scores[best])
    behind = temperature * math.log(float(waits.min()) / float(waits[best]))
    margin = 1e-5 * (abs(top) + abs(behind)) + 1e-5  # more than rounding does
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        able = np.flatnonzero(scores >= np.float32(top + behind - margin))
        surplus = scores[able].astype(np.float64) - top
        surplus /= temperature
    return int(able[race(np.exp(surplus), waits[able])])


def _nucleus(weights: LawArray, mass: float) -> BoolArray:
    """Step 9."""
    limit = mass * float(weights.sum())
    for size in (min(256, len(weights)), len(weights)):  # few laws need more than their head sorted
        order = np.sort(np.partition(weights, -size)[-size:])[::-1]
        if order.sum() >= limit:
            break
    count = _needed(order, limit)
    last = order[count - 1]
    keep: BoolArray = weights > last
    keep[np.flatnonzero(weights == last)[: count - np.count_nonzero(keep)]] = True
    return keep


def _typical(weights: LawArray, surplus: LawArray, mass: float) -> BoolArray:
    """Step 11; ``surplus`` are the logarithms of the weights before steps 9 and 10."""
    alive = np.flatnonzero(weights)
    total = float(weights.sum())
    law = weights[alive] / total
    surprise = math.log(total) - surplus[alive]
    distance = np.abs(surprise - float((law * surprise).sum()))  # no BLAS call: its threads cost more than the sum
    order = np.argsort(distance)
    last = distance[order[_needed(law[order], mass) - 1]]
    keep = np.zeros(len(weights), np.bool_)
    keep[alive[distance <= last]] = True
    return keep


def _needed(masses: LawArray, limit: float) -> int:
    """How many of the first masses it takes to reach a limit; at least one."""
    return 1 + int(np.count_nonzero(np.cumsum(masses)[:-1] < limit))


def logprobs(logits: FloatArray, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """Natural logarithms of a raw row's probabilities, before any sampling parameter.

    Args:
        logits: f32[V].
        token: the id whose log-probability is wanted.
        top: how many of the likeliest (id, logprob) to give, likeliest first, lower ids first on ties.

    Raises:
        ModelError: the row has no finite maximum.
    """
    best = float(logits[np.argmax(logits)])
    if not math.isfinite(best):
        raise ModelError(f"the target's logits have no finite maximum but {best}")
    row = logits.astype(np.float64) - best
    row -= math.log(float(np.exp(row).sum()))
    top = min(top, len(row))
    if top <= 0:
        return float(row[token]), []
    head = np.flatnonzero(logits >= np.partition(logits, -top)[-top])
    order = head[np.argsort(-logits[head], kind="stable")][:top]
    return float(row[token]), [(int(i), float(row[i])) for i in order]
