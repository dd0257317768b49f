"""A trained draft head on disk. Of kind ``eagle`` it has the EAGLE-3 layout of ``speculators``, so that heads move
between vLLM and here; the other kinds are ours alone, and what reads EAGLE-3 refuses them.

A head is a directory with ``config.json`` and ``model.safetensors``. With d the hidden size, f the MLP's width, V the
target's vocabulary and v that of the drafts, its tensors are::

    fc.weight                                  [d, 3 d]     three hidden states of the target -> one feature
    layers.0.input_layernorm.weight            [d]          of the embedding
    layers.0.hidden_norm.weight                [d]          of the feature
    layers.0.self_attn.{q,k,v}_proj.weight     [.., 2 d]    columns: the embedding's, then the feature's
    layers.0.self_attn.o_proj.weight           [d, heads head_dim]
    layers.0.post_attention_layernorm.weight   [d]
    layers.0.mlp.{gate,up}_proj.weight         [f, d]
    layers.0.mlp.down_proj.weight              [d, f]
    norm.weight                                [d]
    lm_head.weight                             [v, d]       absent in our own files: the target's rows are used
    d2t                                        i64[v]       offsets: target id = draft id + d2t[draft id]
    t2d                                        bool[V]      which target ids can be drafted
    embed_tokens.weight                        [V, d]       the target's, if there at all; never read

A head of kind ``block`` has the same and ``mask.weight`` [d], the feature of a place that is guessed ahead. One of kind
``medusa`` has ``fc``, the two norms of its input, ``norm``, the vocabulary, and for the g places that it guesses::

    layers.0.up.weight                         [g f, 2 d]   columns: the embedding's, then the feature's
    layers.0.down.weight                       [g d, f]

``d2t`` and ``t2d`` are absent where v = V. ``eagle_aux_hidden_state_layer_ids`` counts as ``Target.tap`` does: id i is
the residual stream in front of layer i, so what layers 0..i-1 made of the embedding (0), and it is not normed. vLLM
joins them in ascending order, however they are listed.

Sources: EAGLE-3 (Li et al., 2503.01840); speculators ``models/eagle3/{config,core,model_definitions}.py``,
``model.py`` (vocabulary) and ``data_generation/vocab_mapping.py`` (offsets); vLLM ``models/llama_eagle3.py``,
``models/interfaces.py`` (layer ids) and ``transformers_utils/configs/speculators/{algos,base}.py``. Where
``norm_before_residual`` is left out, vLLM takes true and speculators false: a file must say it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from augury.errors import InputError, ModelError, first_line, shown
from augury.models.families import block_config
from augury.models.kinds import KINDS, MOST_GUESSES, Kind
from augury.models.target import TargetInfo
from augury.models.weights import safetensors_files
from augury.tree import IntArray

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_CONFIG_BYTES = 1 << 20
_TAPS = 3  # of the input of fc; no config key says another number
_FLOATS, _INTS, _BOOLS = ("BF16", "F16", "F32"), ("I64", "I32"), ("BOOL",)

_TYPES: Mapping[Kind, str] = {"eagle": "eagle3", "block": "augury-block", "medusa": "augury-medusa"}
_OFF = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "embed_requires_grad")
_NO_ARITHMETIC = ("use_cache", "return_dict", "enable_sp_ulysses", "tie_word_embeddings", "has_no_defaults_at_init")
_LAYER: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("llama",), "num_hidden_layers": (1,), "hidden_act": ("silu", "swish"),
    "attention_bias": (False,), "mlp_bias": (False,),
}  # fmt: skip
"""What a head's layer may be, the default first."""


@dataclass(frozen=True)
class HeadConfig:
    """Shape and origin of a head.

    Attributes:
        kind: what its forward is. ``eagle`` is one Llama layer over the target's hidden states, a forward for each
            place; ``block`` the same, for all places in one forward; ``medusa`` a small network for each place.
        taps: layers of the target whose input it reads, ascending, as ``Target.tap`` takes them.
        vocab_size: V of the target.
        target: name of the target it was trained for, for messages; may be empty.
        target_digest: ``TargetInfo.digest`` of that target, or empty where unknown.
        guesses: places that one forward guesses; 1 of an eagle.
        mask_token: of a block head, the token of a place that is guessed ahead.
    """

    kind: Kind
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    taps: tuple[int, ...]
    vocab_size: int
    target: str
    target_digest: str
    guesses: int = 1
    mask_token: int = 0


@dataclass(frozen=True)
class Head:
    """A head in memory.

    Attributes:
        weights: named as in the file, in the file's floating-point type, without ``d2t`` and ``t2d``.
        draft_ids: i32[v], target ids of the rows of ``lm_head.weight``, ascending.
    """

    config: HeadConfig
    weights: Mapping[str, Tensor]
    draft_ids: IntArray


def read_head(directory: Path) -> Head:
    """The head in a directory, ours or one that speculators wrote.

    Raises:
        ModelError: there is none, it is damaged, or it is of a kind that is not run here; names what.
    """
    return _read(directory, directory.name or str(directory))


def write_head(directory: Path, head: Head) -> None:
    """Write a head, whole or not at all: ``directory`` holds the old head until the new one is finished.

    Raises:
        InputError: the directory holds something else, or cannot be written.
        ModelError: the head's parts do not fit together.
    """
    directory = directory.resolve()  # a link keeps pointing where it does
    _refuse_others(directory)
    folder = directory.with_name(f".{directory.name}.{secrets.token_hex(6)}")
    d2t, t2d = vocabulary_maps(head.draft_ids, head.config.vocab_size)
    maps = {} if len(d2t) == len(t2d) else {"d2t": d2t, "t2d": t2d}
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in {**head.weights, **maps}.items()}
    try:
        folder.mkdir(parents=True)
        (folder / WEIGHTS).write_bytes(save(tensors, {"format": "pt"}))  # save_file would let nobody else read it
        (folder / CONFIG).write_text(json.dumps(config_json(head), indent=2) + "\n", "utf-8")
        _read(folder, "the head to be written")  # what could not be read again is never put in place
        _flush(folder)
        _put(folder, directory)
    except (OSError, SafetensorError) as failure:
        raise InputError(f"cannot write the head {directory}: {first_line(failure)}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def export_head(head: Head, target_head_rows: Tensor) -> Head:
    """The head with an ``lm_head.weight``, which vLLM needs; one that it has itself is kept.

    Args:
        head: any.
        target_head_rows: f[v, d], rows of the target's own head at ``head.draft_ids``.

    Raises:
        InputError: rows of another shape.
    """
    if "lm_head.weight" in head.weights:
        return head
    wanted = (len(head.draft_ids), head.config.hidden_size)
    if tuple(target_head_rows.shape) != wanted:
        raise InputError(f"target_head_rows has shape {list(target_head_rows.shape)}, the head asks for {list(wanted)}")
    rows = target_head_rows.to(head.weights["fc.weight"].dtype)
    return replace(head, weights={**head.weights, "lm_head.weight": rows})


def check_head(head: Head, info: TargetInfo) -> None:
    """Whether a head can guess for a target; where it does not know its target's digest, sizes decide.

    Raises:
        ModelError: it was trained for another target.
    """
    config, wrong = head.config, ""
    if config.hidden_size != info.hidden_size:
        wrong = f"has hidden size {config.hidden_size}, this target {info.name} has {info.hidden_size}"
    elif config.vocab_size != info.vocab_size:
        wrong = f"knows {config.vocab_size} tokens, this target {info.name} has {info.vocab_size}"
    elif max(config.taps) > info.layers:
        wrong = f"reads layer {max(config.taps)}, this target {info.name} has {info.layers}"
    elif config.target_digest and info.digest and config.target_digest != info.digest:
        wrong = f"does not fit this target {info.name}, whose weights are others"
    if wrong:
        origin = f"trained for {shown(config.target)}" if config.target else "of an unnamed target"
        raise ModelError(f"the head {origin} {wrong}; train one for it: augury train {config.kind} {info.name}")


# ---- the vocabulary of the drafts ----------------------------------------------------------------------------


def vocabulary_maps(draft_ids: IntArray, vocab_size: int) -> tuple[Tensor, Tensor]:
    """i32[v] target ids -> (d2t i64[v], t2d bool[V]). Raises ``ModelError`` for ids that repeat or are outside V."""
    ids = torch.from_numpy(np.asarray(draft_ids, np.int64).reshape(-1))
    _check_ids(ids, vocab_size)
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[ids] = True
    return ids - torch.arange(len(ids)), t2d


def draft_vocabulary(d2t: Tensor, t2d: Tensor | None, vocab_size: int) -> Tensor:
    """(d2t i[v], t2d bool[V]) -> i64[v] target ids in the file's order. Raises ``ModelError`` where they disagree."""
    ids = d2t.long() + torch.arange(len(d2t))
    _check_ids(ids, vocab_size)
    if t2d is not None and not (int(t2d.sum()) == len(ids) and bool(t2d[ids].all())):
        raise ModelError(f"d2t and t2d disagree: they name {len(ids)} and {int(t2d.sum())} tokens, not the same ones")
    return ids


def _check_ids(ids: Tensor, vocab_size: int) -> None:
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if len(outside):
        raise ModelError(f"draft id {int(outside[0])} is not between 0 and {vocab_size - 1}, the target's tokens")
    if len(set(ids.tolist())) != len(ids):
        raise ModelError(f"the draft vocabulary names {len(ids) - len(set(ids.tolist()))} tokens twice")


# ---- reading ---------------------------------------------------------------------------------------------------


def _read(directory: Path, name: str) -> Head:
    try:
        config, size, own = _parse(_json(directory))
        files = _open(directory)
        _check_tensors(config, size, own, files)
        tensors = {key: file.get_tensor(key) for key, file in files.items() if key != "embed_tokens.weight"}
        d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
        ids = draft_vocabulary(torch.zeros(size, dtype=torch.long) if d2t is None else d2t, t2d, config.vocab_size)
        for key, tensor in tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise ModelError(f"{key} holds numbers that are not finite")
    except (ModelError, OSError, SafetensorError) as wrong:
        raise ModelError(f"{name} is not a head that is run here: {first_line(wrong)}") from None
    ids, order = ids.sort()
    if "lm_head.weight" in tensors and not torch.equal(order, torch.arange(len(order))):
        tensors["lm_head.weight"] = tensors["lm_head.weight"][order]
    return Head(config, tensors, ids.numpy().astype(np.int32))


def _json(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    if not path.is_file():
        raise ModelError(f"it has no {CONFIG}; give a directory with {CONFIG} and {WEIGHTS}")
    if path.stat().st_size > _CONFIG_BYTES:
        raise ModelError(f"{CONFIG} has {path.stat().st_size} bytes; at most {_CONFIG_BYTES} are read")
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as damage:
        raise ModelError(f"{CONFIG} is not JSON: {first_line(damage)}") from None
    return _object(found, CONFIG)


def _parse(config: Mapping[str, Any]) -> tuple[HeadConfig, int, bool]:
    """(the config, v, whether we wrote it)."""
    if config.get("speculators_model_type") not in _TYPES.values():
        kind = shown(config.get("speculators_model_type"))
        raise ModelError(
            f"{CONFIG} has speculators_model_type = {kind}; {', '.join(map(repr, _TYPES.values()))} are supported"
        )
    if "norm_before_residual" not in config:
        raise ModelError(f"{CONFIG} lacks norm_before_residual, of which readers assume different things; false is run")
    for key, value in config.items():
        if (key in _OFF and value not in (False, None)) or (value is True and key not in _NO_ARITHMETIC):
            raise ModelError(f"{CONFIG} has {shown(key)[1:-1]} = {shown(value)}; only false is supported")
    layer = _object(config.get("transformer_layer_config"), "transformer_layer_config")
    for key, allowed in _LAYER.items():
        if layer.get(key) not in (None, *allowed):
            raise ModelError(f"the head's layer has {key} = {shown(layer[key])}; {allowed[0]!r} is supported")
    theta = _theta(layer)
    try:
        block = block_config({"max_position_embeddings": 2048, **layer, "model_type": "llama"}, max_model_len=1)
    except (ModelError, InputError) as wrong:
        raise ModelError(f"the head's layer: {wrong}") from None
    d, size = block.hidden_size, config.get("draft_vocab_size")
    if config.get("target_hidden_size") not in (None, d):
        width = shown(config["target_hidden_size"])
        raise ModelError(f"{CONFIG} has target_hidden_size = {width}; {d}, the head's own hidden_size, is supported")
    if size is not None and (type(size) is not int or not 1 <= size <= block.vocab_size):
        raise ModelError(f"{CONFIG} has draft_vocab_size = {shown(size)}; 1 to {block.vocab_size} are supported")
    target, digest, own = _origin(config)
    kind, guesses, mask = _guesses(config, block.vocab_size)
    found = HeadConfig(
        kind, d, block.intermediate_size, block.heads, block.kv_heads, block.head_dim,
        _positive(block.norm_eps, "rms_norm_eps"), theta, _taps(config), block.vocab_size, target, digest,
        guesses, mask,
    )  # fmt: skip
    return found, size or block.vocab_size, own


def _guesses(config: Mapping[str, Any], vocab_size: int) -> tuple[Kind, int, int]:
    """(kind, places of one forward, mask token) of a file of ours; an eagle where nothing is said."""
    own = config.get("augury") or {"kind": "eagle"}
    kind, guesses, mask = own.get("kind"), own.get("guesses", 1), own.get("mask_token", 0)
    if kind not in KINDS or _TYPES[kind] != config["speculators_model_type"]:
        known = ", ".join(f"{kind!r} beside {type!r}" for kind, type in _TYPES.items())
        named = config["speculators_model_type"]
        raise ModelError(
            f"{CONFIG} has augury.kind = {shown(kind)} beside speculators_model_type = {named!r}; known are {known}"
        )
    if type(guesses) is not int or not 1 <= guesses <= MOST_GUESSES or (guesses > 1) == (kind == "eagle"):
        few = "1" if kind == "eagle" else f"2 to {MOST_GUESSES}"
        raise ModelError(f"{CONFIG} has augury.guesses = {shown(guesses)}; {few} are run of kind {kind!r}")
    if type(mask) is not int or not 0 <= mask < vocab_size:
        raise ModelError(f"{CONFIG} has augury.mask_token = {shown(mask)}; a token is 0 to {vocab_size - 1}")
    return kind, guesses, mask


def _theta(layer: Mapping[str, Any]) -> float:
    """RoPE's base: beside the other keys before transformers 5, in ``rope_parameters`` since."""
    theta = layer.get("rope_theta")
    for key in ("rope_scaling", "rope_parameters"):
        if layer.get(key) is not None:
            rope = _object(layer[key], key)
            if rope.get("rope_type", rope.get("type", "default")) != "default":
                raise ModelError(f"the head's layer has {key} = {shown(rope)}; rope_type 'default' is supported")
            theta = rope.get("rope_theta", theta)
    return _positive(1e4 if theta is None else theta, "rope_theta")


def _taps(config: Mapping[str, Any]) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    taps = config.get(key)
    if not isinstance(taps, list) or any(type(tap) is not int or not 0 <= tap <= 1024 for tap in taps):
        raise ModelError(f"{CONFIG} has {key} = {shown(taps)}; write {_TAPS} layers there (vLLM's: 2, n/2, n - 3 of n)")
    if len(taps) != _TAPS or taps != sorted(set(taps)):
        raise ModelError(f"{CONFIG} has {key} = {shown(taps)}; {_TAPS} layers, ascending, are supported")
    return tuple(taps)


def _origin(config: Mapping[str, Any]) -> tuple[str, str, bool]:
    """(name of the target, its digest, whether we wrote the file)."""
    if "augury" not in config:
        spec = config.get("speculators_config")
        verifier = spec.get("verifier") if isinstance(spec, dict) else None
        name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
        return (name if isinstance(name, str) else ""), "", False
    own = _object(config["augury"], "augury")
    target, digest = own.get("target"), own.get("target_digest")
    if not isinstance(target, str) or not isinstance(digest, str):
        raise ModelError(f"{CONFIG} has augury = {shown(own)}; kind, target and target_digest are expected")
    return target, digest, True


def _object(value: object, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ModelError(f"{key} is {shown(value)}; a JSON object is expected")
    return value


def _positive(value: object, key: str) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e30:  # type: ignore[operator]
        raise ModelError(f"the head's layer has {key} = {shown(value)}; a number above 0 is expected")
    return float(value)  # type: ignore[arg-type]


def _open(directory: Path) -> dict[str, Any]:
    """Tensor name -> the open file that holds it; nothing of the tensors is read yet."""
    found: dict[str, Any] = {}
    for path in safetensors_files(directory):
        try:
            file = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as damage:
            raise ModelError(f"{path.name} is not a sound safetensors file: {first_line(damage)}") from None
        found.update(dict.fromkeys(file.keys(), file))  # type: ignore[no-untyped-call]
    return found


def _check_tensors(config: HeadConfig, size: int, own: bool, files: Mapping[str, Any]) -> None:
    wanted = shapes(config, size)
    whole = size == config.vocab_size
    optional = {"embed_tokens.weight", "t2d"} | ({"lm_head.weight"} if own else set()) | ({"d2t"} if whole else set())
    for name, (shape, kinds) in wanted.items():
        if name not in files:
            if name not in optional:
                raise ModelError(f"its files lack the tensor {name}")
            continue
        part = files[name].get_slice(name)
        if tuple(part.get_shape()) != shape:
            raise ModelError(f"{name} has shape {list(part.get_shape())}, {CONFIG} asks for {list(shape)}")
        if part.get_dtype() not in kinds:
            raise ModelError(f"{name} is stored as {part.get_dtype()}; {', '.join(kinds)} are read")
    for name in sorted(set(files) - set(wanted)):
        raise ModelError(f"the tensor {shown(name)} has no place in a head of this config")


def shapes(config: HeadConfig, size: int) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    """Name -> (shape, safetensors types) of every tensor a file may hold; ``size`` is v."""
    d, f, hd = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv, layer = config.heads * hd, config.kv_heads * hd, "layers.0."
    floats: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, _TAPS * d),
        f"{layer}input_layernorm.weight": (d,), f"{layer}hidden_norm.weight": (d,),
        f"{layer}self_attn.q_proj.weight": (q, 2 * d), f"{layer}self_attn.k_proj.weight": (kv, 2 * d),
        f"{layer}self_attn.v_proj.weight": (kv, 2 * d), f"{layer}self_attn.o_proj.weight": (d, q),
        f"{layer}post_attention_layernorm.weight": (d,),
        f"{layer}mlp.gate_proj.weight": (f, d), f"{layer}mlp.up_proj.weight": (f, d),
        f"{layer}mlp.down_proj.weight": (d, f),
        "norm.weight": (d,), "lm_head.weight": (size, d), "embed_tokens.weight": (config.vocab_size, d),
    }  # fmt: skip
    if config.kind == "block":
        floats["mask.weight"] = (d,)
    elif config.kind == "medusa":
        none = (f"{layer}self", f"{layer}mlp", f"{layer}post")
        floats = {name: shape for name, shape in floats.items() if not name.startswith(none)}
        floats |= {f"{layer}up.weight": (config.guesses * f, 2 * d), f"{layer}down.weight": (config.guesses * d, f)}
    maps: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
        "d2t": ((size,), _INTS), "t2d": ((config.vocab_size,), _BOOLS),
    }  # fmt: skip
    return maps | {name: (shape, _FLOATS) for name, shape in floats.items()}


# ---- writing ---------------------------------------------------------------------------------------------------


def config_json(head: Head) -> dict[str, Any]:
    """The ``config.json`` of a head: what speculators and vLLM read, and our own fields under ``augury``."""
    c = head.config
    ahead = {} if c.kind == "eagle" else {"guesses": c.guesses, "mask_token": c.mask_token}
    greedy = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["Eagle3DraftModel" if c.kind == "eagle" else f"Augury{c.kind.capitalize()}"],
        "speculators_model_type": _TYPES[c.kind],
        "speculators_config": {
            "algorithm": _TYPES[c.kind], "default_proposal_method": "greedy", "proposal_methods": [greedy],
            "verifier": {"name_or_path": c.target, "architectures": []},
        },
        "transformer_layer_config": {
            "model_type": "llama", "num_hidden_layers": 1, "vocab_size": c.vocab_size, "hidden_size": c.hidden_size,
            "intermediate_size": c.intermediate_size, "num_attention_heads": c.heads,
            "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim, "hidden_act": "silu",
            "rms_norm_eps": c.norm_eps, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
            "rope_theta": c.rope_theta, "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
            "max_position_embeddings": 1 << 17,  # no limit of ours: vLLM takes the lesser of this and the target's
        },
        "draft_vocab_size": len(head.draft_ids),
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(c.taps),
        "norm_before_residual": False,
        "norm_before_fc": False,
        "embed_requires_grad": False,
        "dtype": str(head.weights["fc.weight"].dtype).removeprefix("torch.") if "fc.weight" in head.weights else None,
        "augury": {"kind": c.kind, "target": c.target, "target_digest": c.target_digest, **ahead},
    }  # fmt: skip


def _refuse_others(directory: Path) -> None:
    """Only nothing, an empty directory or a head may be replaced."""
    if not directory.exists():
        return
    names = sorted(p.name for p in directory.iterdir()) if directory.is_dir() else [directory.name]
    other = next((name for name in names if name not in (CONFIG, WEIGHTS)), None)
    if other is None and names:
        try:
            other = None if _json(directory).get("speculators_model_type") in _TYPES.values() else CONFIG
        except (ModelError, OSError):
            other = CONFIG
    if other is not None:
        raise InputError(f"{directory} holds {other}, which is not a head's; name a new or empty directory")


def _flush(folder: Path) -> None:
    """Onto the disk, or a loss of power after the renaming could leave a head of empty files."""
    for path in (folder / WEIGHTS, folder / CONFIG):
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _put(folder: Path, directory: Path) -> None:
    """Rename a finished folder to ``directory``; what stood there goes only when the new one stands."""
    old = folder.with_name(f"{folder.name}.old")
    if directory.exists():
        directory.rename(old)
    try:
        folder.rename(directory)
    except BaseException:
        if old.exists():
            old.rename(directory)
        raise
    shutil.rmtree(old, ignore_errors=True)
