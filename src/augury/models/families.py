"""From a Hugging Face ``config.json`` to the switches of the block.

Each family is a set of defaults and a few switches over the same block. What is not known to be the same
arithmetic is refused by name (``NotABlock``): a family that is not listed, an unknown switch that is on, a
RoPE kind, an activation. The loader then runs the model through ``transformers``.

GGUF files come here too: ``gguf_file.py`` writes their metadata as such a config.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from augury.errors import InputError, ModelError
from augury.models.config import BlockConfig, Rope
from augury.models.rope import KINDS, rope_limit, rope_table
from augury.models.runner import capacity

DEFAULT_CONTEXT = 8192
"""Tokens of context when the caller does not say, if the model has as many."""


class NotABlock(ModelError):
    """The model is not one of the family that the block computes; ``transformers`` may still run it."""


@dataclass(frozen=True)
class Family:
    """How one ``model_type`` sets the switches.

    Attributes:
        defaults: keys that a config may leave out, with the value ``transformers`` then takes.
        keys: further keys this family understands.
        qkv_bias, o_bias: "always", "never", or "attention_bias" to follow that key.
        gemma: norms multiply by 1 + w, embeddings are scaled, norms stand on both sides, scores use
            ``query_pre_attn_scalar``.
        qk_norm: queries and keys are normed per head.
        fused: projections are stored joined (``qkv_proj``, ``gate_up_proj``).
        windows: config -> positions seen by each layer, or 0 for all.
    """

    windows: Callable[[Mapping[str, Any]], tuple[int, ...]]
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    keys: tuple[str, ...] = ()
    qkv_bias: Literal["always", "never", "attention_bias"] = "never"
    o_bias: Literal["never", "attention_bias"] = "never"
    gemma: bool = False
    qk_norm: bool = False
    fused: bool = False


def _no_windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    return (0,) * int(config["num_hidden_layers"])


def _one_window(config: Mapping[str, Any]) -> tuple[int, ...]:
    return (int(config["sliding_window"] or 0),) * int(config["num_hidden_layers"])


def _typed_windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Windows of the layers that ``layer_types`` calls sliding."""
    window = int(config["sliding_window"] or 0) if config.get("use_sliding_window", True) else 0
    return tuple(window if kind == "sliding_attention" else 0 for kind in _layer_types(config))


def _layer_types(config: Mapping[str, Any]) -> list[str]:
    """Kind of each layer: as listed, or by the rule of the family when the list is left out."""
    layers = int(config["num_hidden_layers"])
    listed = config.get("layer_types")
    if listed is not None:
        strange = sorted(set(listed) - {"full_attention", "sliding_attention"})
        if strange:
            raise NotABlock(f"layer kind {strange[0]!r} is not run by the block")
        if len(listed) != layers:
            raise ModelError(f"config.json lists {len(listed)} layer_types for {layers} layers")
        return list(listed)
    family = config["model_type"]
    if family in ("gemma2", "gemma3_text"):
        every = 2 if family == "gemma2" else int(config.get("sliding_window_pattern") or 6)
        full = [(i + 1) % every == 0 for i in range(layers)]
    elif not config["use_sliding_window"]:
        full = [True] * layers
    elif family == "smollm3":
        full = [bool(rotated) for rotated in _rotated(config)]
    else:
        full = [i < int(config["max_window_layers"]) for i in range(layers)]
    return ["full_attention" if f else "sliding_attention" for f in full]


def _rotated(config: Mapping[str, Any]) -> list[bool]:
    """Which layers rotate queries and keys (SmolLM3 leaves some out)."""
    layers = int(config["num_hidden_layers"])
    listed = config.get("no_rope_layers")
    if listed is not None:
        return [bool(one) for one in listed[:layers]]
    every = config.get("no_rope_layer_interval")
    return [not every or (i + 1) % every != 0 for i in range(layers)]


_WINDOW_KEYS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_QWEN = {"num_key_value_heads": 32, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096, "tie_word_embeddings": True,
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
}  # fmt: skip
_GEMMA_KEYS = ("attention_bias", "layer_types", "final_logit_softcapping", "attn_logit_softcapping")

FAMILIES: Mapping[str, Family] = MappingProxyType({
    "llama": Family(_no_windows, keys=("attention_bias", "mlp_bias"), qkv_bias="attention_bias",
                    o_bias="attention_bias"),
    "mistral": Family(_one_window, {"sliding_window": 4096, "num_key_value_heads": 8}),
    "qwen2": Family(_typed_windows, _QWEN, _WINDOW_KEYS, qkv_bias="always"),
    "qwen3": Family(_typed_windows, {**_QWEN, "head_dim": 128}, (*_WINDOW_KEYS, "attention_bias"),
                    qkv_bias="attention_bias", o_bias="attention_bias", qk_norm=True),
    "phi3": Family(_one_window, {"sliding_window": None, "rms_norm_eps": 1e-5},
                   ("original_max_position_embeddings", "partial_rotary_factor"), fused=True),
    "smollm3": Family(_typed_windows,
                      {"num_key_value_heads": 4, "use_sliding_window": False, "sliding_window": None,
                       "no_rope_layer_interval": 4, "tie_word_embeddings": True, "rope_theta": 2e6},
                      (*_WINDOW_KEYS, "attention_bias", "mlp_bias", "no_rope_layers"),
                      qkv_bias="attention_bias", o_bias="attention_bias"),
    "gemma2": Family(_typed_windows,
                     {**_GEMMA, "vocab_size": 256000, "max_position_embeddings": 8192,
                      "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
                     _GEMMA_KEYS, qkv_bias="attention_bias", o_bias="attention_bias", gemma=True),
    "gemma3_text": Family(_typed_windows,
                          {**_GEMMA, "vocab_size": 262208, "max_position_embeddings": 131072,
                           "rope_theta": 1e6, "rope_local_base_freq": 1e4},
                          (*_GEMMA_KEYS, "sliding_window_pattern"), qkv_bias="attention_bias",
                          o_bias="attention_bias", gemma=True, qk_norm=True),
})  # fmt: skip
"""``model_type`` -> switches."""

_SHAPE_KEYS = {
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "hidden_activation", "max_position_embeddings",
    "rms_norm_eps", "tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
}  # fmt: skip
_NO_ARITHMETIC = {
    "architectures", "auto_map", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
    "initializer_range", "torch_dtype", "dtype", "transformers_version", "use_cache", "pretraining_tp",
    "embd_pdrop", "resid_pdrop", "hidden_dropout", "cache_implementation", "transformers.js_config",
    "unsloth_fixed", "unsloth_version", "max_window_layers", "name_or_path", "rope_interleaved", "id2label",
    "label2id", "return_dict", "use_return_dict", "chunk_size_feed_forward", "problem_type", "max_length",
}  # fmt: skip
"""Keys without effect on a forward. ``auto_map`` names Python files beside the weights, which are never run;
``rope_interleaved`` is written by one trainer for q/k rows that its export has already put into halves."""


_NULL_SPEAKS = ("sliding_window", "num_key_value_heads")
"""Keys whose null is a value (no window; as many as query heads); of others it means the default."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's own config: of a Gemma 3 with an image tower the ``text_config`` inside it."""
    if config.get("model_type") == "gemma3" and isinstance(config.get("text_config"), Mapping):
        inner = {"model_type": "gemma3_text", **config["text_config"]}
        if config.get("tie_word_embeddings") is not None:
            inner.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
        return inner
    return config


def block_config(config: Mapping[str, Any], max_model_len: int | None = None) -> BlockConfig:
    """The block's switches for a config.

    Args:
        config: parsed ``config.json``.
        max_model_len: tokens of context to prepare for; by default the model's own, at most 8192.

    Raises:
        NotABlock: a family, switch, activation or RoPE kind that the block does not compute; names it.
        ModelError: keys that are missing or do not fit together.
        InputError: ``max_model_len`` is more than the model has.
    """
    given = text_config(config)
    name = str(given.get("model_type"))
    if name not in FAMILIES:
        raise NotABlock(f"model_type {name!r} is not run by the block; it runs {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[name]
    known = _SHAPE_KEYS | _NO_ARITHMETIC | set(family.keys) | set(family.defaults)
    for key, value in given.items():
        if key not in known and value not in (None, False, 0, 0.0, "", [], {}) and not key.startswith("_"):
            raise NotABlock(f"{name} with the switch {key} = {str(value)[:60]} is not run by the block")
    defaults = {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False, **family.defaults}
    full = defaults | {k: v for k, v in given.items() if v is not None or k in _NULL_SPEAKS}
    try:
        return _build(name, family, full, max_model_len)
    except InputError:
        raise
    except KeyError as missing:
        raise ModelError(f"the config of {name} lacks the key {missing.args[0]!r}") from None
    except (TypeError, AttributeError, ValueError, ArithmeticError) as wrong:
        raise ModelError(f"the config of {name} has a value of the wrong kind: {wrong}") from None


def _build(name: str, family: Family, c: Mapping[str, Any], max_model_len: int | None) -> BlockConfig:
    heads, layers = _size(c, "num_attention_heads", 4096), _size(c, "num_hidden_layers", 1024)
    kv_heads = _size(c, "num_key_value_heads", 4096) if c.get("num_key_value_heads") else heads
    head_dim = _size(c, "head_dim", 4096) if c.get("head_dim") else c["hidden_size"] // heads
    if heads % kv_heads:
        raise ModelError(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    params, ropes = _ropes(name, c)
    limit = min(rope_limit(p, int(c["max_position_embeddings"])) for p in params)
    context = min(limit, DEFAULT_CONTEXT) if max_model_len is None else max_model_len
    if not 1 <= context <= limit:
        raise InputError(f"max_model_len {context} is not between 1 and {limit}, the context of this model")
    tables = tuple(_table(name, p, head_dim, int(c["max_position_embeddings"]), capacity(context)) for p in params)
    bias = bool(c.get("attention_bias"))
    return BlockConfig(
        family=name,
        vocab_size=_size(c, "vocab_size"),
        hidden_size=_size(c, "hidden_size"),
        intermediate_size=_size(c, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=context,
        norm_eps=float(c["rms_norm_eps"]),
        activation=_activation(name, c, family),
        tied=bool(c["tie_word_embeddings"]),
        qkv_bias=family.qkv_bias == "always" or (family.qkv_bias == "attention_bias" and bias),
        o_bias=family.o_bias == "attention_bias" and bias,
        mlp_bias=bool(c.get("mlp_bias")),
        qk_norm=family.qk_norm,
        post_norms=family.gemma,
        attn_scale=float(c["query_pre_attn_scalar"] if family.gemma else head_dim) ** -0.5,
        attn_softcap=float(c.get("attn_logit_softcapping") or 0),
        logit_softcap=float(c.get("final_logit_softcapping") or 0),
        embed_scale=float(c["hidden_size"]) ** 0.5 if family.gemma else 1.0,
        windows=family.windows(c),
        ropes=ropes,
        rope_tables=tables,
    )


def _size(c: Mapping[str, Any], key: str, most: int = 1 << 24) -> int:
    """A positive whole number no model exceeds: a damaged config must not ask for all memory."""
    value = c[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ModelError(f"the config has {key} = {str(value)[:40]}; a whole number from 1 to {most} is expected")
    return value


def _activation(name: str, c: Mapping[str, Any], family: Family) -> Literal["silu", "gelu_tanh"]:
    key = "hidden_activation" if family.gemma else "hidden_act"
    act = c.get(key, "silu")
    if act in ("silu", "swish"):
        return "silu"
    if act == "gelu_pytorch_tanh":
        return "gelu_tanh"
    raise NotABlock(f"{name} with {key} = {act!r} is not run by the block; it runs silu, gelu_pytorch_tanh")


def _ropes(name: str, c: Mapping[str, Any]) -> tuple[list[dict[str, Any]], tuple[int, ...]]:
    """Parameters of each rotary table, and each layer's table or -1."""
    layers = int(c["num_hidden_layers"])
    new = c.get("rope_parameters") or {}
    old = c.get("rope_scaling") or {}
    if name == "gemma3_text":
        nested = {k: dict(new.get(k) or {}) for k in ("full_attention", "sliding_attention")}
        full = _params(name, {**nested["full_attention"], **old}, c, c["rope_theta"])
        local = _params(name, nested["sliding_attention"], c, c["rope_local_base_freq"])
        kinds = _layer_types(c)
        return [full, local], tuple(int(kind == "sliding_attention") for kind in kinds)
    if any(isinstance(value, Mapping) for value in new.values()):
        raise NotABlock(f"{name} with rope_parameters by layer type is not run by the block")
    params = [_params(name, {**new, **old}, c, c["rope_theta"])]
    if name == "smollm3":
        return params, tuple(0 if rotated else -1 for rotated in _rotated(c))
    return params, (0,) * layers


def _params(name: str, given: Mapping[str, Any], c: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """One rotary table's parameters with defaults filled as ``transformers`` fills them."""
    params = {k: v for k, v in given.items() if v is not None}
    kind = params.setdefault("rope_type", params.get("type", "default"))
    params.setdefault("rope_theta", theta)
    if name == "phi3":
        params.setdefault("partial_rotary_factor", c.get("partial_rotary_factor", 1.0))
        if kind in ("su", "yarn"):  # early configs of the family call LongRoPE so
            kind = params["rope_type"] = "longrope"
        if kind == "longrope":
            params["original_max_position_embeddings"] = c.get(
                "original_max_position_embeddings",
                params.get("original_max_position_embeddings", 4096),
            )
    elif float(params.get("partial_rotary_factor", 1.0)) != 1.0:
        raise NotABlock(f"{name} with partial_rotary_factor {params['partial_rotary_factor']} is not run by the block")
    if kind not in KINDS or "mrope_section" in params:
        shown = "mrope" if "mrope_section" in params else kind
        raise NotABlock(f"RoPE kind {shown!r} is not run by the block; it runs {', '.join(KINDS)}")
    if kind in ("yarn", "llama3", "longrope"):
        params.setdefault("original_max_position_embeddings", c["max_position_embeddings"])
    if kind == "yarn":
        params.setdefault("factor", None)
    return params


def _table(name: str, params: Mapping[str, Any], head_dim: int, max_positions: int, rows: int) -> Rope:
    table = rope_table(params, head_dim, max_positions, rows)
    if name != "phi3" and table.cos.shape[1] * 2 != head_dim:
        raise ModelError(f"{name} rotates whole heads of {head_dim}, the table has {table.cos.shape[1] * 2}")
    return table
