"""GGUF files: metadata as a Hugging Face config, tensors dequantised to f32.

Conventions of the format, seen from the block: Llama-like architectures store q and k rows interleaved for a
rotation of neighbouring pairs and are put back into halves; Gemma's norms are stored as 1 + w already; a
missing ``output.weight`` means tied; ``rope_freqs.weight`` divides the frequencies.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from augury.errors import ModelError, shown
from augury.models.config import BlockConfig
from augury.models.families import NotABlock
from augury.models.weights import Edit, Part, Weights, spread

_FAMILY = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3", "smollm3": "smollm3",
    "gemma2": "gemma2", "gemma3": "gemma3_text",
}  # fmt: skip
_INTERLEAVED = ("llama", "smollm3")
_REFUSED = (
    "expert_count", "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "rope.dimension_sections", "attention.scale", "residual_scale", "embedding_scale", "logit_scale",
)  # fmt: skip


class GgufFile:
    """One GGUF file; a ``Source`` of tensors, and its metadata.

    The header is parsed here, every length checked against the file: the ``gguf`` package's reader spends
    seconds on the strings of a vocabulary and trusts a damaged file.

    Args:
        data: the whole file, usually mapped into memory.
        name: for messages.

    Raises:
        ModelError: not a GGUF file, damaged, or one shard of several.
    """

    def __init__(self, data: bytes | mmap.mmap, name: str) -> None:
        self._data = data
        self.name = name
        try:
            self._fields, self._tensors = _header(data)
            shards = _whole(self._fields, "split.count", 1)
        except (struct.error, IndexError, UnicodeDecodeError, ValueError) as damage:
            raise ModelError(f"{name} is not a sound GGUF file: {damage}") from None
        if shards > 1:
            raise ModelError(f"{name} is one shard of {shards}; join them with gguf-split")
        self.architecture = str(self.get("general.architecture"))

    @staticmethod
    def open(path: Path) -> GgufFile:
        """A file on disk, mapped into memory."""
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ModelError(f"{path.name} is empty")
            return GgufFile(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), path.name)

    def get(self, key: str) -> Any:
        """A metadata value, or None."""
        return self._fields.get(key)

    def of(self, key: str) -> Any:
        """A metadata value of the architecture, or None."""
        return self.get(f"{self.architecture}.{key}")

    def need(self, key: str) -> Any:
        """A metadata value of the architecture that must be there."""
        value = self.of(key)
        if value is None:
            raise ModelError(f"the GGUF metadata lack {self.architecture}.{key}")
        return value

    def file(self, name: str) -> str:
        """See ``Source``."""
        return self.name

    def names(self) -> Iterable[str]:
        """See ``Source``."""
        return self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """See ``Source``."""
        return self._tensors[name].shape

    def read(self, name: str) -> Tensor:
        """See ``Source``; dequantised to f32."""
        at = self._tensors[name]
        raw = np.frombuffer(self._data, np.uint8, at.size, at.start)
        try:
            found = gguf.quants.dequantize(raw.reshape(*at.shape[:-1], -1), at.kind)
        except NotImplementedError:
            raise ModelError(f"{name} is stored as {at.kind.name}, which cannot be read") from None
        return torch.from_numpy(np.require(found, np.float32, ["C", "W"]).reshape(at.shape))


@dataclass(frozen=True)
class _Stored:
    """Where a tensor lies."""

    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    start: int
    size: int


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9  # GGUF value types, with those above


class _Cursor:
    """Reads little-endian values one after another, never beyond the end."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, form: str) -> Any:
        value = struct.unpack_from(f"<{form}", self.data, self.at)[0]
        self.at += struct.calcsize(f"<{form}")
        return value

    def count(self, least: int) -> int:
        """A number of things of at least ``least`` bytes each, which must fit into the rest of the file."""
        n = int(self.scalar("Q"))
        if n * least > len(self.data) - self.at:
            raise ValueError(f"it counts {n} entries at byte {self.at}, more than the file holds")
        return n

    def text(self) -> str:
        n = self.count(1)
        self.at += n
        return self.data[self.at - n : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner = self.scalar("I")
            if inner in _SCALARS:
                form = _SCALARS[inner]
                n = self.count(struct.calcsize(f"<{form}"))
                values = list(struct.unpack_from(f"<{n}{form}", self.data, self.at))
                self.at += struct.calcsize(f"<{n}{form}")
                return values
            if inner != _STRING:
                raise ValueError(f"an array of value type {inner} at byte {self.at}")
            return [self.text() for _ in range(self.count(8))]
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind} at byte {self.at}")
        return self.scalar(_SCALARS[kind])


def _header(data: bytes | mmap.mmap) -> tuple[dict[str, Any], dict[str, _Stored]]:
    """Metadata, and where the tensors lie."""
    cursor = _Cursor(data)
    if data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ValueError(f"version {version}; 2 and 3 are read, little-endian")
    tensors, pairs = cursor.count(24), cursor.count(13)
    fields: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.text()
        fields[key] = cursor.value(cursor.scalar("I"))
    places = []
    for _ in range(tensors):
        name, axes = cursor.text(), cursor.scalar("I")
        if not 1 <= axes <= 4:
            raise ValueError(f"tensor {name} has {axes} axes")
        shape = tuple(cursor.scalar("Q") for _ in range(axes))[::-1]  # stored innermost first
        places.append((name, shape, gguf.GGMLQuantizationType(cursor.scalar("I")), cursor.scalar("Q")))
    alignment = _whole(fields, "general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    base = -(-cursor.at // alignment) * alignment
    found: dict[str, _Stored] = {}
    for name, shape, kind, offset in places:
        block, width = gguf.GGML_QUANT_SIZES[kind]
        size = math.prod(shape) // block * width
        if shape[-1] % block or base + offset + size > len(data):
            raise ValueError(f"tensor {name} of shape {list(shape)} does not lie inside the file")
        found[name] = _Stored(shape, kind, base + offset, size)
    return fields, found


def _whole(fields: Mapping[str, Any], key: str, default: int) -> int:
    """A positive whole number of the metadata; 0 means the default."""
    value = fields.get(key, default)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{key} is {shown(value)}; it must be a whole number")
    return value or default


def gguf_config(file: GgufFile) -> dict[str, Any]:
    """The metadata as a Hugging Face config, for ``families.block_config``.

    Raises:
        NotABlock: an architecture or a switch that the block does not compute.
        ModelError: metadata that are missing.
    """
    try:
        return _config(file)
    except (TypeError, ValueError, ArithmeticError) as wrong:
        raise ModelError(f"the GGUF metadata hold a value of the wrong kind: {wrong}") from None


def _config(file: GgufFile) -> dict[str, Any]:
    arch = file.architecture
    if arch not in _FAMILY:
        raise NotABlock(f"GGUF architecture {arch!r} is not run by the block; it runs {', '.join(sorted(_FAMILY))}")
    for key in _REFUSED:
        if file.of(key):
            raise NotABlock(f"GGUF metadata {arch}.{key} = {file.of(key)} is not run by the block")
    heads, layers, hidden = file.need("attention.head_count"), file.need("block_count"), file.need("embedding_length")
    kv_heads, width = file.of("attention.head_count_kv") or heads, file.need("feed_forward_length")
    for value in (heads, kv_heads, width):
        if not isinstance(value, int):
            raise NotABlock("GGUF with heads or widths that change from layer to layer is not run by the block")
    head_dim = file.of("attention.key_length") or hidden // heads
    if (file.of("attention.value_length") or head_dim) != head_dim:
        raise NotABlock("GGUF with values of another width than keys is not run by the block")
    names = set(file.names())
    window = file.of("attention.sliding_window")
    config: dict[str, Any] = {
        "model_type": _FAMILY[arch],
        "vocab_size": file.shape("token_embd.weight")[0] if "token_embd.weight" in names else 0,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": file.need("context_length"),
        "rms_norm_eps": file.need("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in names,
    }
    if arch == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in names
    if arch in ("phi3", "gemma2", "gemma3"):
        config["sliding_window"] = window
    elif window:
        raise NotABlock(f"GGUF architecture {arch} with a sliding window is not run by the block")
    if arch in ("gemma2", "gemma3"):
        largest = layers == (46 if arch == "gemma2" else 62)  # the 27B models scale by the mean width of a head
        config["query_pre_attn_scalar"] = hidden // heads if largest else head_dim
        config["attn_logit_softcapping"] = file.of("attn_logit_softcapping")
        config["final_logit_softcapping"] = file.of("final_logit_softcapping")
    config |= _gguf_rope(file, head_dim)
    return config


def _gguf_rope(file: GgufFile, head_dim: int) -> dict[str, Any]:
    """The rotary keys of a config."""
    arch, kind = file.architecture, file.of("rope.scaling.type") or "none"
    found: dict[str, Any] = {}
    if file.of("rope.freq_base") is not None:
        found["rope_theta"] = file.of("rope.freq_base")
    if arch == "gemma3" and file.of("rope.freq_base_swa") is not None:
        found["rope_local_base_freq"] = file.of("rope.freq_base_swa")
    rotated = file.of("rope.dimension_count") or head_dim
    if arch == "phi3":
        found["partial_rotary_factor"] = rotated / head_dim
    elif rotated != head_dim:
        raise NotABlock(f"GGUF that rotates {rotated} of {head_dim} dimensions is not run by the block")
    names = set(file.names())
    original = file.of("rope.scaling.original_context_length") or file.need("context_length")
    if "rope_factors_long.weight" in names:
        found["original_max_position_embeddings"] = original
        found["rope_scaling"] = {
            "rope_type": "longrope",
            "long_factor": file.read("rope_factors_long.weight").tolist(),
            "short_factor": file.read("rope_factors_short.weight").tolist(),
            "attention_factor": file.of("rope.scaling.attn_factor"),
        }
    elif "rope_freqs.weight" in names:
        found["rope_scaling"] = {"rope_type": "factors", "factors": file.read("rope_freqs.weight").tolist()}
    elif kind in ("linear", "yarn"):
        found["rope_scaling"] = {"rope_type": kind, "factor": file.need("rope.scaling.factor")}
        if kind == "yarn":
            found["rope_scaling"]["original_max_position_embeddings"] = original
    elif kind != "none":
        raise NotABlock(f"GGUF with RoPE scaling {kind!r} is not run by the block")
    return found


def gguf_weights(config: BlockConfig, file: GgufFile) -> Weights:
    """Weights of a GGUF file."""
    arch = file.architecture
    fused = "blk.0.attn_qkv.weight" in set(file.names())
    gate_up = ("ffn_up",) if arch == "phi3" else ("ffn_gate", "ffn_up")
    edits: Mapping[str, Edit] = {}
    if arch in _INTERLEAVED:
        edits = {"attn_q": _halves(config.heads), "attn_k": _halves(config.kv_heads)}

    def linear(name: str, stored: tuple[str, ...]) -> dict[str, tuple[Part, ...]]:
        return {
            name + end: tuple(Part(f"{s}.{kind}", edits.get(s)) for s in stored)
            for end, kind in (("", "weight"), ("_bias", "bias"))
        }

    layer = {
        "attn_norm": (Part("attn_norm.weight"),),
        **linear("qkv", ("attn_qkv",) if fused else ("attn_q", "attn_k", "attn_v")),
        "q_norm": (Part("attn_q_norm.weight"),),
        "k_norm": (Part("attn_k_norm.weight"),),
        **linear("o", ("attn_output",)),
        "post_attn_norm": (Part("post_attention_norm.weight"),),
        "mlp_norm": (Part("ffn_norm.weight"),),
        **linear("gate_up", gate_up),
        **linear("down", ("ffn_down",)),
        "post_mlp_norm": (Part("post_ffw_norm.weight"),),
    }
    recipe = spread(layer, config.layers, "blk.")
    recipe["embed"] = (Part("token_embd.weight"),)
    recipe["final_norm"] = (Part("output_norm.weight"),)
    recipe["head"] = (Part("output.weight"),)
    return Weights(config, file, recipe, "blk.")


def _halves(heads: int) -> Edit:
    """Rows of each head from pairs (0, 1), (2, 3) ... to halves (0, r/2), (1, r/2 + 1) ..."""

    def edit(w: Tensor) -> Tensor:
        return w.reshape(heads, -1, 2, *w.shape[1:]).transpose(1, 2).reshape(w.shape)

    return edit
