"""Weights: tensors on disk -> the canonical names of config.py, one at a time.

A ``Source`` is a file format; a recipe says which stored tensors, edited how, make each canonical weight.
Shapes are checked against the config from the headers, before anything is read, and a layer tensor that no
recipe uses is refused: it would be arithmetic left out.

Only safetensors and GGUF are read. Pickled weights (``.bin``, ``.pt``) can run code and are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from augury.errors import ModelError
from augury.models.config import BlockConfig
from augury.models.families import FAMILIES

Edit = Callable[[Tensor], Tensor]


class Source(Protocol):
    """Tensors of one model on disk."""

    def names(self) -> Iterable[str]:
        """All tensor names."""
        ...

    def file(self, name: str) -> str:
        """Name of the file that holds a tensor."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape from the header, row-major."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor in a floating-point type, as stored or f32."""
        ...


@dataclass(frozen=True)
class Part:
    """One stored tensor of a recipe, and what to do to it."""

    name: str
    edit: Edit | None = None


Recipe = Mapping[str, tuple[Part, ...]]


class Weights(Mapping[str, Tensor]):
    """Canonical name -> tensor of a floating-point type, read at each access and not kept.

    Raises:
        ModelError: a tensor is missing, of the wrong shape, or of a layer and unused.
    """

    def __init__(self, config: BlockConfig, source: Source, recipe: Recipe, layer_prefix: str) -> None:
        self._source = source
        self._recipe = recipe
        self.shapes = shapes(config)
        names = set(source.names())
        used: set[str] = set()
        for weight, shape in self.shapes.items():
            rows = 0
            for part in recipe[weight]:
                if part.name not in names:
                    raise ModelError(f"the model's files lack the tensor {part.name}")
                found = source.shape(part.name)
                if len(found) != len(shape) or found[1:] != shape[1:]:
                    where = f"{part.name} in {source.file(part.name)}"
                    raise ModelError(f"{where} has shape {list(found)}, the config asks for {list(shape)}")
                rows += found[0]
                used.add(part.name)
            if rows != shape[0]:
                parts = " + ".join(p.name for p in recipe[weight])
                raise ModelError(f"{parts} has {rows} rows, the config asks for {shape[0]}")
        for name in sorted(names - used):
            if name.startswith(layer_prefix) and not name.endswith("rotary_emb.inv_freq"):
                raise ModelError(f"the tensor {name} has no place in a {config.family} block of this config")

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        read = [(self._source.read(part.name), part.edit) for part in self._recipe[name]]
        tensors = [tensor if edit is None else edit(tensor) for tensor, edit in read]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def shapes(config: BlockConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape, in the order a forward meets them."""
    d, f, hd = config.hidden_size, config.intermediate_size, config.head_dim
    q, qkv = config.heads * hd, (config.heads + 2 * config.kv_heads) * hd
    found: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, d)}
    for i in range(config.layers):
        layer: dict[str, tuple[int, ...]] = {"attn_norm": (d,), "qkv": (qkv, 2 * d if config.fused else d)}
        if config.fused:
            layer["pair_norm"] = (d,)
        if config.qkv_bias:
            layer["qkv_bias"] = (qkv,)
        if config.qk_norm:
            layer |= {"q_norm": (hd,), "k_norm": (hd,)}
        layer["o"] = (d, q)
        if config.o_bias:
            layer["o_bias"] = (d,)
        if config.post_norms:
            layer["post_attn_norm"] = (d,)
        layer |= {"mlp_norm": (d,), "gate_up": (2 * f, d)}
        if config.mlp_bias:
            layer["gate_up_bias"] = (2 * f,)
        layer["down"] = (d, f)
        if config.mlp_bias:
            layer["down_bias"] = (d,)
        if config.post_norms:
            layer["post_mlp_norm"] = (d,)
        found |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    found["final_norm"] = (d,)
    if not config.tied:
        found["head"] = (config.outputs, d)
    if config.fused:
        found["fuse"] = (d, config.fused * d)
    return found


def huggingface_weights(config: BlockConfig, directory: Path) -> Weights:
    """Weights of a directory of safetensors, named as ``transformers`` names them."""
    source = Safetensors(directory)
    names = set(source.names())
    prefixes = ("model.", "", "language_model.model.", "model.language_model.")
    prefix = next((p for p in prefixes if f"{p}embed_tokens.weight" in names), None)
    if prefix is None:
        raise ModelError(f"{directory.name} has no tensor model.embed_tokens.weight; it is not a causal LM's")
    heads = ("lm_head.weight", "language_model.lm_head.weight")
    head = next((h for h in heads if h in names), heads[0])
    family = FAMILIES[config.family]
    norm: Edit | None = _one_more if family.gemma else None
    layer = {
        "attn_norm": (Part("input_layernorm.weight", norm),),
        **_projections("qkv", "self_attn.", ("qkv_proj",) if family.fused else ("q_proj", "k_proj", "v_proj")),
        "q_norm": (Part("self_attn.q_norm.weight", norm),),
        "k_norm": (Part("self_attn.k_norm.weight", norm),),
        **_projections("o", "self_attn.", ("o_proj",)),
        "post_attn_norm": (Part("post_attention_layernorm.weight", norm),),
        "mlp_norm": (
            Part("pre_feedforward_layernorm.weight" if family.gemma else "post_attention_layernorm.weight", norm),
        ),
        **_projections("gate_up", "mlp.", ("gate_up_proj",) if family.fused else ("gate_proj", "up_proj")),
        **_projections("down", "mlp.", ("down_proj",)),
        "post_mlp_norm": (Part("post_feedforward_layernorm.weight", norm),),
    }
    recipe = spread(layer, config.layers, f"{prefix}layers.")
    recipe["embed"] = (Part(f"{prefix}embed_tokens.weight"),)
    recipe["final_norm"] = (Part(f"{prefix}norm.weight", norm),)
    recipe["head"] = (Part(head),)
    return Weights(config, source, recipe, f"{prefix}layers.")


def spread(layer: Recipe, layers: int, prefix: str) -> dict[str, tuple[Part, ...]]:
    """The recipe of one layer, for all layers: part ``x`` becomes ``{prefix}{i}.x``."""
    return {
        f"layers.{i}.{name}": tuple(Part(f"{prefix}{i}.{p.name}", p.edit) for p in parts)
        for i in range(layers)
        for name, parts in layer.items()
    }


def _projections(name: str, prefix: str, stored: tuple[str, ...]) -> dict[str, tuple[Part, ...]]:
    return {
        name: tuple(Part(f"{prefix}{s}.weight") for s in stored),
        f"{name}_bias": tuple(Part(f"{prefix}{s}.bias") for s in stored),
    }


def _one_more(w: Tensor) -> Tensor:
    return 1.0 + w.float()


class Safetensors:
    """A directory of ``.safetensors`` files, mapped into memory, one file or sharded with an index."""

    def __init__(self, directory: Path) -> None:
        self._files: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        for path in safetensors_files(directory):
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as damage:
                raise ModelError(f"{path.name} is not a sound safetensors file: {damage}") from None
            self._files.update(dict.fromkeys(file.keys(), file))  # type: ignore[no-untyped-call]
            self._names.update(dict.fromkeys(file.keys(), path.name))  # type: ignore[no-untyped-call]

    def file(self, name: str) -> str:
        """See ``Source``."""
        return self._names[name]

    def names(self) -> Iterable[str]:
        """See ``Source``."""
        return self._files

    def shape(self, name: str) -> tuple[int, ...]:
        """See ``Source``."""
        return tuple(self._files[name].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """See ``Source``. Raises ``ModelError`` for numbers that are not floating point (quantised files)."""
        tensor: Tensor = self._files[name].get_tensor(name)
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(f"{name} is stored as {kind}; safetensors of bfloat16, float16 and float32 are read")
        return tensor


def safetensors_files(directory: Path) -> list[Path]:
    """The weight files of a directory.

    Raises:
        ModelError: there are none, only pickled ones, or the index names a file that is not there.
    """
    index = directory / "model.safetensors.index.json"
    if index.exists():
        try:
            shards = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ModelError(f"{index.name} is not a safetensors index with a weight_map") from None
        for shard in shards:
            if not isinstance(shard, str) or not re.fullmatch(r"[\w.\-]+\.safetensors", shard):
                raise ModelError(f"{index.name} names {shard!r}, which is not a safetensors file beside it")
            if not (directory / shard).is_file():
                raise ModelError(f"{index.name} names {shard}, which is missing; copy the whole model")
        return [directory / shard for shard in shards]
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    some = sorted(directory.glob("*.safetensors"))
    if len(some) == 1:
        return some
    if some:
        raise ModelError(f"{directory.name} has {len(some)} safetensors files and no {index.name}; add the index")
    pickled = sorted(p.name for kind in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in directory.glob(kind))
    if pickled:
        raise ModelError(
            f"{pickled[0]} is a pickle, which can run code, and is not read; convert the model to safetensors"
        )
    raise ModelError(f"{directory.name} holds no model.safetensors; give a directory with safetensors or a .gguf file")
