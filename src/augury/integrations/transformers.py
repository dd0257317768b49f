"""Our drafters inside ``generate`` of ``transformers``.

    model = drafted(model, "suffix,prediction", tokenizer=tokenizer)
    model.generate(**inputs, max_new_tokens=200, prediction="what I expect to read")
    model.drafts.record.acceptance_length

``drafted`` gives the same model, its weights not copied, whose ``generate`` asks our drafters. Everything else is that
of ``transformers``: its assisted decoding runs the model with its own streamers, caches, generation config and draws.

Logits processors and stopping criteria must be functions of the text that they are given, as in any assisted decoding:
they are also shown texts with guesses that turn out wrong, and one that counts its calls or remembers what it has seen
would take those in. Those of ``transformers`` itself that do are refused.

The rule is *sample and compare*: behind every guess the target's own token is taken from the processed logits, by
argmax or one multinomial draw, and a guess is kept when it is that token, so the law of the text is that of plain
``generate``. It is ``_assisted_decoding`` without logits of the candidates. Greedy texts are those of plain
``generate`` as far as the model's rows are the same in a forward of another size; sampled ones are other draws for the
same seed, since a forward draws for every one of its rows.

One thing is done better than in assisted decoding with other candidates: there a stopping criterion sees a text only
after a step, so a stop string in the middle of accepted guesses is passed over. Here guesses end in front of the token
with which any criterion would stop.

Why not ``generate(custom_generate=...)``: a callable given there gets neither the streamer nor the tokenizer that stop
strings need; ``generate`` drops both.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers.generation import (
    CandidateGenerator,
    EosTokenCriteria,
    GenerationMixin,
    MaxLengthCriteria,
    MaxTimeCriteria,
    PrefixConstrainedLogitsProcessor,
)

from augury.drafters import takes, unreplayable
from augury.errors import CannotRollBack, InputError, shown
from augury.integrations.alongside import Alongside, Came, Measured, Prices, Text
from augury.integrations.specs import listed
from augury.models.tokenizer import Tokenizer
from augury.record import RequestRecord
from augury.tree import IntArray

Prediction = str | Sequence[int] | Tensor
"""What is expected to come: text, or ids."""

M = TypeVar("M")

_ENDLESS = 1 << 20
"""Tokens that a text may have where the model does not say."""

_HOOKS = (
    "_assisted_decoding", "_get_candidate_generator", "_validate_generation_mode", "prepare_inputs_for_generation",
)  # fmt: skip
"""Of ``GenerationMixin``, by which we come in; the last alone is public."""

_REMEMBERING = {
    "DiaEOSDelayPatternLogitsProcessor": "it",
    "SynthIDTextWatermarkLogitsProcessor": "watermarking_config",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
}
"""Logits processors that are no functions of the text, and the option of ``generate`` that they come from."""

_OTHERS = ("assistant_early_exit", "use_mtp")
"""Other guesses that a generation config may ask for."""


def drafted(
    model: M, drafters: str | Sequence[str] = "suffix", *, tokenizer: Any = None, prices: Prices | None = None
) -> M:
    """The same model, whose ``generate`` is drafted; ``model.drafts`` is a ``Drafts``.

    Its ``generate`` takes two arguments more: ``prediction``, text or ids expected to come, and ``cache_salt``, whose
    text it is (see ``drafters/memory.py``). The model given stays as it was, and may be used beside it.

    Args:
        model: a model of ``transformers`` that generates.
        drafters: a comma list of specs, or a list of them, see ``augury drafters``.
        tokenizer: the model's, of ``transformers``: for predictions in text, and for drafters that need it.
        prices: of the model's forwards; they are measured when None, from the third step on.

    Several threads may call ``generate`` at once. Of steps at the same time none tells what a row costs, so little is
    learnt then; and ``model`` and ``foreign``, whose cache holds one text, guess for one call and not for those beside.

    Raises:
        InputError: a model without ``generate``, or with one of its own; a drafter that cannot be had; a tokenizer or
            prices that are none.
        CannotRollBack: the model keeps a state that cannot forget rejected guesses.
    """
    kind: Any = type(model)
    if isinstance(model, _Drafted):
        raise InputError(f"{kind.__name__} is drafted already; give drafted() the model it was made of")
    if isinstance(model, (str, os.PathLike, type)):
        raise InputError(
            f"model is {shown(model)}; give a model, as AutoModelForCausalLM.from_pretrained(...) returns it"
        )
    if not isinstance(model, GenerationMixin):
        hint = "of a wrapper give the model inside, as get_base_model() of PEFT does"
        raise InputError(f"{kind.__name__} has no generate of transformers; {hint}")
    if "generate" in vars(model):
        raise InputError(f"this {kind.__name__} has a generate of its own, from custom_generate; load it without")
    if missing := [name for name in _HOOKS if not hasattr(kind, name)]:
        raise InputError(
            f"transformers {transformers.__version__} has no {missing[0]}; use a version that has, 5.24 does"
        )
    if getattr(model, "_is_stateful", False):
        raise CannotRollBack(_recurrent(kind.__name__))
    text: Any = model.config.get_text_config(decoder=True)
    drafts = Drafts(
        drafters,
        vocab_size=text.vocab_size,
        context=getattr(text, "max_position_embeddings", None) or _ENDLESS,
        prices=Measured() if prices is None else prices,
        tokenizer=tokenizer,
    )
    # Another object over the same attributes: weights, hooks and what is set later are shared, and only methods differ.
    members = {
        "__module__": kind.__module__,
        "drafts": drafts,
        "prepare_inputs_for_generation": _reads_on(kind.prepare_inputs_for_generation),
    }
    made: Any = object.__new__(type(kind.__name__, (_Drafted, kind), members))
    object.__setattr__(made, "__dict__", vars(model))
    return made  # type: ignore[no-any-return]


class Drafts:
    """The drafters of one model, and what came of them.

    Attributes:
        record: of the last call of ``generate`` that ended, or None; ``verify_ms`` is all of a step but the drafting.
        vocab_size: V of the model.
    """

    def __init__(
        self, drafters: str | Sequence[str], *, vocab_size: int, context: int, prices: Prices, tokenizer: Any
    ) -> None:
        self.record: RequestRecord | None = None
        self._tokenizer = tokenizer
        specs = listed(drafters)
        backend = _backend(tokenizer, specs)
        self._beside = Alongside(
            specs,
            vocab_size=vocab_size,
            context=context,
            prices=prices,
            tokenizer=None if backend is None else Tokenizer(backend),
        )
        self.vocab_size = vocab_size
        self._lock = threading.Lock()  # drafters serve one thread at a time

    def ids(self, prediction: Prediction | None, tokenizer: Any) -> IntArray | None:
        """A prediction as i32[m]; ``tokenizer`` is the call's, in front of our own.

        Raises:
            InputError: text without a tokenizer, ids beyond the vocabulary, or no drafter that would read it.
        """
        if prediction is None:
            return None
        self._beside.check_reads_prediction()
        if isinstance(prediction, str):
            tokenizer = self._tokenizer if tokenizer is None else tokenizer
            if tokenizer is None:
                raise InputError("a prediction in text needs the model's tokenizer; give it to drafted(), or give ids")
            _check_tokenizer(tokenizer)
            prediction = tokenizer(prediction, add_special_tokens=False)["input_ids"]
        try:
            ids = np.asarray(torch.as_tensor(prediction).cpu())
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"prediction is {shown(prediction)}; it must be text or token ids") from None
        if ids.ndim == 2 and len(ids) == 1:  # as a tokenizer returns tensors
            ids = ids[0]
        if ids.ndim != 1:
            raise InputError(f"prediction has the shape {list(ids.shape)}; give text, or the ids of one text as a list")
        if len(ids) and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= self.vocab_size):
            raise InputError(f"prediction is {shown(ids.tolist())}; it must be token ids in 0..{self.vocab_size - 1}")
        return ids.astype(np.int32)

    def open(self, prompt: IntArray, temperature: float, cache_salt: str, prediction: IntArray | None) -> Text:
        """Begin a text."""
        with self._lock:
            return self._beside.open(prompt, temperature=temperature, cache_salt=cache_salt, prediction=prediction)

    def step(self, text: Text, came: Sequence[int], deepest: int, timed: bool) -> tuple[int, ...]:
        """Learn what came, and guess what comes next."""
        with self._lock:
            (chain,) = self._beside.step([Came(text, came)], max(deepest, 0), timed)
            return chain

    def close(self, text: Text) -> None:
        """End a text."""
        with self._lock:
            self._beside.close(text)
            self.record = text.record


class _Candidates(CandidateGenerator):  # type: ignore[misc]  # the library has no types here
    """The guesses for one call of ``generate``."""

    def __init__(self, drafts: Drafts, prediction: IntArray | None, cache_salt: str) -> None:
        self._drafts, self._prediction, self._salt = drafts, prediction, cache_salt
        self._text: Text | None = None
        self._known = self._steps = 0
        self._latest: Tensor | None = None

    def begin(self, config: Any, criteria: Iterable[Any], processors: Iterable[Any], held: int, embedded: bool) -> None:
        """What the loop that follows goes by.

        Args:
            config: its generation config.
            criteria: its stopping criteria.
            processors: its logits processors.
            held: tokens of the text that are in the cache already.
            embedded: whether the prompt is given in embeddings, behind which the first step can have no guesses.
        """
        self.held, self._embedded = held, embedded
        ends = getattr(config, "_eos_token_tensor", None)
        self._ends = frozenset(() if ends is None else ends.flatten().tolist())
        self._limit = int(config.max_length)
        self._temperature = (
            float(1.0 if config.temperature is None else config.temperature) if config.do_sample else 0.0
        )
        # Length and end tokens are seen to by the loop; time has nothing to do with which token it is.
        self._criteria = [
            c for c in criteria if not isinstance(c, (MaxLengthCriteria, EosTokenCriteria, MaxTimeCriteria))
        ]
        self._processors = [p for p in processors if _may_refuse(p)]

    def get_candidates(self, input_ids: Tensor, **_: Any) -> tuple[Tensor, None]:
        """The text i64[1, n] with guesses behind it, i64[1, n + k]; no logits of theirs, see the module's text."""
        length = input_ids.shape[1]
        if self._embedded:
            self._embedded = False
            return input_ids, None
        came: Sequence[int] = ()
        if self._text is None:
            prompt = input_ids[0].to("cpu", torch.int32).numpy()
            self._text = self._drafts.open(prompt, self._temperature, self._salt, self._prediction)
        else:
            came = input_ids[0, self._known :].tolist()
        # The first step computes the prompt too.
        guessed = self._drafts.step(self._text, came, self._limit - length - 1, timed=self._steps > 1)
        self._known, self._steps = length, self._steps + 1
        chain = self._within(input_ids, guessed)
        if not chain:
            return input_ids, None
        guesses = torch.tensor([chain], dtype=input_ids.dtype, device=input_ids.device)
        return torch.cat([input_ids, guesses], dim=1), None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """Note the text as it is now: of the last step there is no other word."""
        self._latest = input_ids

    def end(self) -> None:
        """The loop is over, or has failed."""
        text, latest = self._text, self._latest
        if text is None:
            return
        if latest is not None and (came := latest[0, self._known :].tolist()):
            self._drafts.step(text, came, 0, timed=self._steps > 1)
        self._drafts.close(text)
        self._text = self._latest = None
        self._known = self._steps = 0

    def _within(self, input_ids: Tensor, chain: Sequence[int]) -> Sequence[int]:
        """As much of a chain as comes before an end: the token that ends the text is then the target's own."""
        text = input_ids
        for place, token in enumerate(chain):
            if token in self._ends or self._refused(text, token):
                return chain[:place]
            if self._criteria or self._processors:
                text = torch.cat([text, text.new_tensor([[token]])], dim=1)
            if self._stops(text):
                return chain[:place]
        return chain

    def _refused(self, text: Tensor, token: int) -> bool:
        """Whether a logits processor that may choke on a text it did not allow bans a token behind i64[1, n]."""
        if not self._processors:
            return False
        scores = torch.zeros((1, self._drafts.vocab_size), device=text.device)
        for processor in self._processors:
            scores = processor(text, scores)
        return bool(scores[0, token] == -torch.inf)

    def _stops(self, text: Tensor) -> bool:
        """Whether a stopping criterion ends i64[1, n] here; one that cannot judge a guess ends the guessing."""
        try:
            return any(bool(torch.as_tensor(criterion(text, None)).any()) for criterion in self._criteria)
        except Exception:  # of a user's criterion anything, such as one that reads scores, which guesses have not
            return True


_CALL: ContextVar[_Candidates] = ContextVar("augury_candidates")
"""The guesses of the call of ``generate`` that this thread is in."""


class _Drafted:
    """What a drafted model does otherwise; it stands in front of the model's own class."""

    drafts: ClassVar[Drafts]

    def generate(self, *args: Any, prediction: Prediction | None = None, cache_salt: str = "", **kwargs: Any) -> Any:
        for name in ("custom_generate", "assistant_model", "prompt_lookup_num_tokens"):
            if kwargs.get(name) is not None:
                raise InputError(
                    f"{name} has no part in a drafted model; leave it out, or generate with the model itself"
                )
        ids = self.drafts.ids(prediction, kwargs.get("tokenizer"))
        call = _CALL.set(_Candidates(self.drafts, ids, cache_salt))
        try:
            # The number turns assisted decoding on; how many tokens are guessed is ours to say.
            return super().generate(*args, prompt_lookup_num_tokens=1, **kwargs)  # type: ignore[misc]
        finally:
            _CALL.reset(call)

    def _validate_generation_mode(self, generation_mode: Any, generation_config: Any, *rest: Any) -> None:
        beams, answers = generation_config.num_beams or 1, generation_config.num_return_sequences or 1
        for name, value in (("num_beams", beams), ("num_return_sequences", answers)):
            if value > 1:
                raise InputError(f"{name} is {value}; a drafted model takes 1, more go with the model itself")
        if generation_config.use_cache is False:
            raise InputError("use_cache is False; a drafted model needs its cache: leave use_cache out")
        for name in _OTHERS:
            if getattr(generation_config, name, None):
                raise InputError(f"{name} has no part in a drafted model; leave it out")
        if "assisted" not in (mode := str(getattr(generation_mode, "value", generation_mode))):
            raise InputError(f"generation mode is {mode}; a drafted model is greedy or samples")
        super()._validate_generation_mode(generation_mode, generation_config, *rest)  # type: ignore[misc]

    def _assisted_decoding(
        self,
        input_ids: Tensor,
        *,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **rest: Any,
    ) -> Any:
        if len(input_ids) > 1:
            raise InputError(
                f"{len(input_ids)} prompts at once; a drafted model takes one, more go with the model itself"
            )
        _check_processors(logits_processor)
        cache = rest.get("cache", rest.get("past_key_values"))
        _check_cache(cache)
        embeds, mask = rest.get("inputs_embeds"), rest.get("attention_mask")
        given = (input_ids if embeds is None else embeds).shape[1]
        decodes = not self.config.is_encoder_decoder  # type: ignore[attr-defined]
        held = int(cache.get_seq_length()) if cache is not None and decodes else 0
        whole = getattr(generation_config, "_mask_length", given) if mask is None else mask.shape[1]
        if held and not held < given == whole:
            said = f"the cache holds {held} tokens and {given} are given"
            raise InputError(f"{said}; give a drafted model the whole text, with what the cache holds and more")
        candidates = _CALL.get()
        candidates.begin(generation_config, stopping_criteria, logits_processor, held, embeds is not None)
        try:
            return super()._assisted_decoding(  # type: ignore[misc]
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                **rest,
            )
        finally:
            candidates.end()

    def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> _Candidates:
        return _CALL.get()


def _backend(tokenizer: Any, specs: Sequence[str]) -> Any:
    """What is inside a tokenizer of ``transformers``, or None.

    Raises:
        InputError: it is no tokenizer; or nothing is inside, and a drafter cannot do without.
    """
    if tokenizer is None:
        return None
    _check_tokenizer(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        able = [spec for spec in specs if unreplayable(spec) is None]  # what is not will be refused
        if needing := [spec for spec in able if takes(spec, "tokenizer", without=False)]:
            kind = type(tokenizer).__name__
            raise InputError(
                f"drafter {needing[0]} needs a tokenizer with a backend_tokenizer, and {kind} has none; "
                "give a fast one, PreTrainedTokenizerFast is"
            )
    return backend


def _check_tokenizer(tokenizer: Any) -> None:
    if not callable(tokenizer):
        raise InputError(
            f"tokenizer is {shown(tokenizer)}; give the model's, as AutoTokenizer.from_pretrained(...) returns it"
        )


def _reads_on(theirs: Any) -> Any:
    """``prepare_inputs_for_generation`` of a model's class, for a first step behind what a cache holds already.

    Without this, assisted decoding would compute that part of the text again, behind itself.
    """

    @functools.wraps(theirs)  # the library looks into its signature
    def prepare(self: Any, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        if (
            kwargs.get("is_first_iteration")
            and kwargs.get("next_sequence_length") is None
            and (call := _CALL.get()).held
        ):
            embeds = kwargs.get("inputs_embeds")
            kwargs["next_sequence_length"] = (input_ids if embeds is None else embeds).shape[1] - call.held
        return theirs(self, input_ids, *args, **kwargs)

    return prepare


def _check_processors(processors: Iterable[Any]) -> None:
    """Refuse logits processors of the library that remember the texts they were shown, before anything is computed.

    Raises:
        InputError: one of them; names what it comes from.
    """
    for kind, option in ((type(one).__name__, _REMEMBERING.get(type(one).__name__)) for one in processors):
        if option:
            said = f"{kind} remembers the texts it is shown, and rejected guesses are among them"
            raise InputError(f"{said}; leave {option} out, or generate with the model itself")


def _check_cache(cache: Any) -> None:
    """Refuse a cache that cannot roll back, before anything is computed.

    Raises:
        CannotRollBack: it has such a layer; names its kind.
    """
    for layer in getattr(getattr(cache, "self_attention_cache", cache), "layers", ()):
        # Layers of linear attention know it only once they hold something; models that recur in them are refused whole.
        if not (getattr(layer, "is_croppable", True) or hasattr(layer, "recurrent_states")):
            said = f"the cache has a {type(layer).__name__}, which cannot forget rejected guesses"
            raise CannotRollBack(f"{said}; leave cache_implementation out, or generate with the model itself")


def _recurrent(kind: str) -> str:
    return f"{kind} keeps a recurrent state, which cannot forget rejected guesses; generate with the model as it is"


def _may_refuse(processor: Any) -> bool:
    """Whether a logits processor may choke on a text it would not have allowed: those that follow a language may."""
    ours = type(processor).__module__.startswith("transformers.")
    return isinstance(processor, PrefixConstrainedLogitsProcessor) or not ours
