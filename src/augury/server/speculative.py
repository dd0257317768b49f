"""``--speculative-config``: vLLM's keys, as drafters and a rule of ours.

A key is honoured, or states what is so anyway, or is refused with the reason; none is passed over in silence.

================================  ====================================================================================
key                               here
================================  ====================================================================================
method, model                     ``ngram``, ``suffix``, ``draft_model``, ``eagle3`` and ``medusa`` name a drafter
num_speculative_tokens            draft tokens in a row that are verified at most, whoever drafts
prompt_lookup_min, _max           ``min`` and ``max`` of ``ngram``
use_heterogeneous_vocab           the drafter ``foreign`` instead of ``model``
max_model_len                     ``context`` of the draft model
rejection_sample_method           ``standard`` is the rule ``rejection``, ``block`` the rule ``block``
draft_sample_method               what the drafter does under the rule: guesses that copy are ``greedy``, a draft model
                                  under ``rejection`` or ``block`` is ``probabilistic``
================================  ====================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from augury.drafters.drafter import Rule
from augury.errors import InputError, UnknownName, shown
from augury.tree import MAX_NODES

FLAG = "--speculative-config"


@dataclass(frozen=True)
class Speculation:
    """What a config asks for.

    Attributes:
        drafters: as ``augury.load`` takes them.
        acceptance: the rule, or None where the config does not say.
        deepest: draft tokens in a row at most, or None.
    """

    drafters: str
    acceptance: Rule | None = None
    deepest: int | None = None


METHODS: Mapping[str, str] = MappingProxyType({
    "ngram": "ngram", "suffix": "suffix", "draft_model": "model", "eagle3": "eagle", "medusa": "medusa",
})  # fmt: skip
"""vLLM's methods that are ours too, and the drafter of each."""

_ELSEWHERE: Mapping[str, str] = MappingProxyType({
    "ngram_gpu": "use ngram",
    "eagle": "heads of EAGLE-1 and EAGLE-2 are not read here; train one of EAGLE-3 and use eagle3",
    "mtp": "the models with layers of this kind are not run here",
    "mlp_speculator": "heads of this kind are not read here; see eagle3 and medusa",
    "dflash": "heads of this kind are not read here; --drafters block:DIRECTORY takes one of our own",
    "dspark": "heads of this kind are not read here; --drafters block:DIRECTORY takes one of our own",
    "custom_class": "a class of vLLM's cannot draft here; --drafters module:Class takes one of ours",
    "extract_hidden_states": "it drafts nothing",
})  # fmt: skip

_RULES: Mapping[str, Rule] = MappingProxyType({"standard": "rejection", "block": "block"})
_COPIES = ("ngram", "suffix")

_HONOURED = (
    "method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "use_heterogeneous_vocab",
    "max_model_len", "rejection_sample_method", "draft_sample_method",
)  # fmt: skip

_TRUE_ANYWAY: Mapping[str, tuple[tuple[object, ...], str]] = MappingProxyType({
    "enforce_eager": ((True,), "no graphs are captured"),
    "draft_tensor_parallel_size": ((1,), "a model runs on one device"),
    "tensor_parallel_size": ((1,), "a model runs on one device"),
    "quantization": ((), "--drafters model:MODEL,bits=4 or bits=8 quantises a draft model"),
    "kv_cache_dtype": (("auto",), "a cache has the type of its model"),
    "moe_backend": ((), "mixtures of experts are not run here"),
    "attention_backend": ((), "there is one for each runner"),
    "revision": ((), "models are files of this machine"),
    "code_revision": ((), "no model brings code"),
    "draft_load_config": ((), "models are files of this machine"),
    "parallel_drafting": ((False,), "--drafters block:DIRECTORY drafts all places at once"),
    "disable_padded_drafter_batch": ((True,), "nothing is padded"),
    "disable_eagle_block_drop": ((False,), "the cache has no blocks"),
    "use_local_argmax_reduction": ((False,), "a model runs on one device"),
    "index_share_for_mtp_iteration": ((), "the models with layers of this kind are not run here"),
    "enable_adaptive_verification": ((True,), "what is verified always depends on what it is expected to bring"),
    "num_speculative_tokens_per_batch_size": ((), "drafts are sized by what forwards cost, batches included"),
    "dspark_draft_topk": ((), "heads of this kind are not read here"),
    "suffix_decoding_max_tree_depth": ((), "the drafter suffix is bounded by num_speculative_tokens alone"),
    "suffix_decoding_max_cached_requests": (
        (0,), "suffix keeps nothing of earlier requests; --drafters suffix,memory does, in megabytes for each user"),
    "suffix_decoding_max_spec_factor": ((), "drafts are sized by what they are expected to bring"),
    "suffix_decoding_min_token_prob": ((), "drafts are sized by what they are expected to bring"),
    "synthetic_acceptance_rates": ((), "every token of an answer is the target's"),
    "synthetic_acceptance_length": ((), "every token of an answer is the target's"),
})  # fmt: skip
"""Of keys that change nothing here: the values that state what is so, beside null, and why others are refused."""


def parse(text: str) -> Mapping[str, object]:
    """The config, from JSON.

    Raises:
        InputError: it is none, or no object, or names a key twice.
    """

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
            raise InputError(f"{FLAG} names {twice} twice")
        return found

    try:
        config = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise InputError(f"{FLAG} is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise InputError(f"{FLAG} is nested too deep") from None
    if not isinstance(config, dict):
        raise InputError(f'{FLAG} is {shown(config)}; give an object, as {{"method": "ngram"}}')
    return config


def speculation(config: Mapping[str, object]) -> Speculation:
    """What a config asks for.

    Raises:
        UnknownName: a key, method or rule that is none.
        InputError: a value that cannot be honoured.
    """
    for key, value in config.items():
        _check_key(key, value)
    method = _method(config)
    deepest = _number(config, "num_speculative_tokens", MAX_NODES)
    rule = _rule(config)
    _check_sampling(config, method, rule)
    if method == "ngram":
        return Speculation(_ngram(config), rule, deepest)
    for key in ("prompt_lookup_min", "prompt_lookup_max"):
        if config.get(key) is not None:
            raise InputError(f"{FLAG}: {key} is of method ngram, and the method is {method}")
    return Speculation(_spec(config, method, deepest), rule, deepest)


def _check_key(key: str, value: object) -> None:
    """Refuse what is no key, and what cannot be honoured of those that change nothing."""
    if key in _HONOURED:
        return
    if key not in _TRUE_ANYWAY:
        raise UnknownName(f"key of {FLAG}", key, [*_HONOURED, *_TRUE_ANYWAY])
    so, why = _TRUE_ANYWAY[key]
    if value is not None and not any(type(value) is type(one) and value == one for one in so):
        raise InputError(f"{FLAG}: {key} {shown(value)} cannot be honoured: {why}; leave it out")


def _method(config: Mapping[str, object]) -> str:
    method, model = config.get("method"), config.get("model")
    if method is None and model in ("ngram", "[ngram]"):  # vLLM's older way to say it
        return "ngram"
    if method is None:
        raise InputError(f"{FLAG} has no method; give one of {', '.join(METHODS)}")
    name = str(method)
    if (why := _ELSEWHERE.get("mtp" if name.endswith("_mtp") else name)) is not None:
        raise InputError(f"{FLAG}: method {name} cannot be honoured: {why}")
    if name not in METHODS:
        raise UnknownName(f"method of {FLAG}", name, METHODS)
    return name


def _rule(config: Mapping[str, object]) -> Rule | None:
    given = config.get("rejection_sample_method")
    if given is None:
        return None
    if given == "synthetic":
        why = "every token of an answer is the target's; use standard or block"
        raise InputError(f"{FLAG}: rejection_sample_method synthetic cannot be honoured: {why}")
    if str(given) not in _RULES:
        raise UnknownName(f"rejection_sample_method of {FLAG}", str(given), _RULES)
    return _RULES[str(given)]


def _check_sampling(config: Mapping[str, object], method: str, rule: Rule | None) -> None:
    """Whether drafts are made as ``draft_sample_method`` says."""
    given = config.get("draft_sample_method")
    if given is None:
        return
    if given not in ("greedy", "probabilistic"):
        raise UnknownName(f"draft_sample_method of {FLAG}", str(given), ("greedy", "probabilistic"))
    if method in _COPIES:
        if given == "greedy":
            return
        does = "copies what it finds, which is greedy"
    elif rule is None:
        does = "draws with the target's own noise unless rejection_sample_method says otherwise"
    elif given == "probabilistic":
        return
    else:
        does = "draws its guesses under the rules standard and block, which is probabilistic"
    raise InputError(f"{FLAG}: draft_sample_method {given} cannot be honoured: method {method} {does}")


def _ngram(config: Mapping[str, object]) -> str:
    if config.get("model") not in (None, "ngram", "[ngram]"):
        raise InputError(f"{FLAG}: method ngram takes no model")
    _refuse_of_models(config, "ngram")
    low, high = _number(config, "prompt_lookup_min"), _number(config, "prompt_lookup_max")
    low, high = low or high or 5, high or low or 5  # vLLM's defaults
    return f"ngram:min={low},max={high}"


def _spec(config: Mapping[str, object], method: str, deepest: int | None) -> str:
    """The drafter of any other method."""
    model, name = config.get("model"), METHODS[method]
    if method == "suffix":
        if model is not None:
            raise InputError(f"{FLAG}: method suffix takes no model")
        _refuse_of_models(config, method)
        return name
    if not isinstance(model, str) or not model:
        raise InputError(f"{FLAG}: method {method} needs model, the directory of {_kind(method)}")
    if "," in model or "=" in model:
        raise InputError(f"{FLAG}: model {shown(model)} has a comma or an equals sign, which separate options here")
    context = _number(config, "max_model_len") if method == "draft_model" else None
    foreign = config.get("use_heterogeneous_vocab")
    if foreign is not None and not isinstance(foreign, bool):
        raise InputError(f"{FLAG}: use_heterogeneous_vocab is {shown(foreign)}; it must be true or false")
    if method != "draft_model":
        _refuse_of_models(config, method)
    elif foreign:
        name = "foreign"
    options = {"depth": deepest, "context": context}
    return ",".join([f"{name}:{model}", *(f"{key}={value}" for key, value in options.items() if value is not None)])


def _kind(method: str) -> str:
    return "a draft model, or its embedded name" if method == "draft_model" else f"a head of kind {METHODS[method]}"


def _refuse_of_models(config: Mapping[str, object], method: str) -> None:
    """Refuse the keys of draft models."""
    for key in ("max_model_len", "use_heterogeneous_vocab"):
        if config.get(key):
            raise InputError(f"{FLAG}: {key} is of method draft_model, and the method is {method}")


def _number(config: Mapping[str, object], key: str, most: int | None = None) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        limit = f"from 1 to {most}" if most is not None else "1 or more"
        raise InputError(f"{FLAG}: {key} is {shown(value)}; it must be a whole number, {limit}")
    return value
