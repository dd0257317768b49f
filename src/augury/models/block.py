"""The transformer block in torch: one block with switches, on any device.

The residual stream is f32; inputs of linears are rounded to ``dtype``, their outputs are f32 again; keys and
values are stored in ``dtype`` after rotation; norms, activations and softmax are f32. Activations are written
with ``exp`` because torch's fused ``silu``, ``sigmoid`` and ``gelu`` compute the tail of an array with other
bits than its body, and where the tail lies depends on the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from augury.models.attention import BLOCK, Layout, attend, layout
from augury.models.config import BlockConfig
from augury.models.forward import Ride, Segment, Short, checked_layers, checked_taps
from augury.models.linear import Linear, row_exact
from augury.tree import FloatArray, IntArray


class TorchForward:
    """A ``Forward`` (see forward.py) in plain torch, of a model or of a draft head.

    Args:
        config: the switches.
        weights: canonical name (config.py) -> tensor of any floating-point type.
        slots: number of caches.
        capacity: cache rows of each.
        device: ``cpu`` or ``cuda``.
        dtype: of linears and cache.

    ``exact`` is measured: true when every linear of this model gives row-independent bits on this machine.
    """

    max_rows = 4096
    """More would only make buffers larger: the arithmetic is bound by then."""
    short_bits = (16,)

    def __init__(
        self,
        config: BlockConfig,
        weights: Mapping[str, Tensor],
        slots: int,
        capacity: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.dtype = dtype
        self.name = f"torch {str(dtype).removeprefix('torch.')} {self.device.type}"
        embed = weights["embed"].to(dtype)
        self.embed = embed.to(self.device)
        # Logits keep f32: rounded to bf16 (8 bits) the best two tokens would often tie. The head takes the
        # same rounded weights and inputs in f32, so that only the rounding of its output falls away.
        head = embed if config.tied else weights["head"].to(dtype)
        self._words = head
        self.head = Linear(head, None, torch.float32, self.device)
        self.fuse = Linear(weights["fuse"], None, dtype, self.device) if config.fused else None
        self.final_norm = weights["final_norm"].float().to(self.device)
        self.layers = [_Layer(config, i, weights, self.device, dtype) for i in range(config.layers)]
        self.ropes = [
            (torch.from_numpy(r.cos).to(self.device), torch.from_numpy(r.sin).to(self.device))
            for r in config.rope_tables
        ]
        rows = -(-capacity // BLOCK) * BLOCK
        self.cache = _zeros((config.layers, 2, slots, config.kv_heads, rows, config.head_dim), self.device, dtype)
        self.taps: tuple[int, ...] = ()
        self.tapped = self.cache[:0]
        """[slots, cache rows, taps, d]"""
        self.exact = self.device.type == "cpu" and all(row_exact(linear) for linear in self._kinds())

    def _kinds(self) -> list[Linear]:
        """One linear of each shape."""
        found = {(self.head.rows, self.head.columns, self.head.dtype): self.head}
        for layer in self.layers:
            for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
                found.setdefault((linear.rows, linear.columns, linear.dtype), linear)
        return list(found.values())

    def run(self, segments: Sequence[Segment], logits: bool) -> tuple[FloatArray | None, FloatArray | None]:
        """See ``Forward.run``."""
        return self._run(segments, logits, range(self.config.layers))

    def shorten(self, bits: int, layers: Sequence[int]) -> Short:
        """See ``Shortens``; ``bits`` is 16."""
        order = checked_layers(layers, self.config.layers).tolist()

        def short(segments: Sequence[Segment]) -> FloatArray:
            logits, _ = self._run(segments, True, order)
            assert logits is not None
            for segment in segments:
                rows = slice(segment.length, segment.length + len(segment.tokens))
                self.cache[:, :, segment.slot, :, rows].nan_to_num_()  # halves may overflow where layers are skipped
            return logits

        return short

    def tap(self, layers: Sequence[int]) -> None:
        """See ``Taps``."""
        taps = checked_taps(layers, self.config.layers, self.taps)
        if taps != self.taps:
            slots, rows = self.cache.shape[2], self.cache.shape[4]
            self.tapped = _zeros((slots, rows, len(taps), self.config.hidden_size), self.device, torch.bfloat16)
            self.taps = taps

    def features(self, slot: int, begin: int, end: int, layers: Sequence[int]) -> FloatArray:
        """See ``Taps``."""
        places = [self.taps.index(layer) for layer in layers]
        found: FloatArray = self.tapped[slot, begin:end][:, places].flatten(1).float().cpu().numpy()
        return found

    def words(self, ids: IntArray) -> Tensor:
        """See ``Rides``."""
        return self._words[torch.from_numpy(ids).long()]

    def attach(self, config: BlockConfig, weights: Mapping[str, Tensor]) -> Ride:
        """See ``Rides``."""
        slots, rows = self.cache.shape[2], self.cache.shape[4]
        return TorchForward(config, weights, slots, rows, str(self.device), self.dtype).ride

    @torch.inference_mode()
    def ride(self, segment: Segment, given: FloatArray, fuse: bool, logits: int) -> tuple[FloatArray, FloatArray]:
        """See ``Ride``; of a draft head."""
        assert self.fuse is not None
        held = torch.from_numpy(given).to(self.device)
        x, scores, _ = self._rows([segment], logits, [0], self.fuse(held) if fuse else held)
        return (x[:0] if scores is None else scores).cpu().numpy(), x.cpu().numpy()

    def _keep(self, layer: int, x: Tensor, segments: Sequence[Segment]) -> None:
        """Keep the residual stream f32[R, d] in front of a layer, if it is tapped."""
        if layer not in self.taps:
            return
        place, at = self.taps.index(layer), 0
        for segment in segments:
            m = len(segment.tokens)
            self.tapped[segment.slot, segment.length : segment.length + m, place] = x[at : at + m].bfloat16()
            at += m

    @torch.inference_mode()
    def _run(
        self, segments: Sequence[Segment], logits: bool, order: Iterable[int]
    ) -> tuple[FloatArray | None, FloatArray | None]:
        _, scores, last = self._rows(segments, logits, order)
        return (None, None) if scores is None or last is None else (scores.cpu().numpy(), last.cpu().numpy())

    def _rows(
        self, segments: Sequence[Segment], logits: bool | int, order: Iterable[int], given: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Residual stream behind the last layer, logits and normed hidden states of all or of the last ``logits`` rows.

        ``given``: a draft head's features.
        """
        config = self.config
        tokens = torch.from_numpy(np.concatenate([s.tokens for s in segments])).long().to(self.device)
        plans = [layout(s, self.device) for s in segments]
        positions = torch.cat([p.positions for p in plans])
        rotations = [(cos[positions, None], sin[positions, None]) for cos, sin in self.ropes]
        embedded = self.embed[tokens].float() * config.embed_scale
        x = embedded if given is None else given
        for i in order:
            layer = self.layers[i]
            self._keep(i, x, segments)
            normed = rms_norm(x, layer.attn_norm, config.norm_eps)
            if layer.pair_norm is not None:
                normed = torch.cat([rms_norm(embedded, layer.pair_norm, config.norm_eps), normed], -1)
            y = self._attention(i, layer, normed, segments, plans, rotations)
            x = x + (y if layer.post_attn_norm is None else rms_norm(y, layer.post_attn_norm, config.norm_eps))
            gate, up = layer.gate_up(rms_norm(x, layer.mlp_norm, config.norm_eps)).chunk(2, -1)
            y = layer.down(_activate(gate, config.activation) * up)
            x = x + (y if layer.post_mlp_norm is None else rms_norm(y, layer.post_mlp_norm, config.norm_eps))
        self._keep(config.layers, x, segments)
        if not logits:
            return x, None, None
        last = rms_norm(x if logits is True else x[len(x) - logits :], self.final_norm, config.norm_eps)
        scores = self.head(last.to(self.dtype))
        if config.logit_softcap:
            scores = torch.tanh(scores / config.logit_softcap) * config.logit_softcap
        return x, scores, last

    def _attention(
        self,
        index: int,
        layer: _Layer,
        x: Tensor,
        segments: Sequence[Segment],
        plans: Sequence[Layout],
        rotations: Sequence[tuple[Tensor, Tensor]],
    ) -> Tensor:
        config = self.config
        rows, width = len(x), config.head_dim
        sizes = [config.heads * width, config.kv_heads * width, config.kv_heads * width]
        q, k, v = (t.reshape(rows, -1, width) for t in torch.split(layer.qkv(x), sizes, -1))
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rms_norm(q, layer.q_norm, config.norm_eps), rms_norm(k, layer.k_norm, config.norm_eps)
        if config.ropes[index] >= 0:
            cos, sin = rotations[config.ropes[index]]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        found = []
        at = 0
        for segment, plan in zip(segments, plans, strict=True):
            m = len(segment.tokens)
            keys, values = self.cache[index, 0, segment.slot], self.cache[index, 1, segment.slot]
            behind = slice(segment.length, segment.length + m)
            keys[:, behind] = k[at : at + m].transpose(0, 1).to(self.dtype)
            values[:, behind] = v[at : at + m].transpose(0, 1).to(self.dtype)
            scale, cap, window = config.attn_scale, config.attn_softcap, config.windows[index]
            found.append(attend(q[at : at + m], keys, values, plan, scale, cap, window))
            at += m
        return layer.o(torch.cat(found))

    def move(self, slot: int, rows: Sequence[int], to: int) -> None:
        """See ``Forward.move``."""
        cache = self.cache[:, :, slot]
        cache[:, :, :, to : to + len(rows)] = cache[:, :, :, list(rows)]
        if self.taps:
            self.tapped[slot, to : to + len(rows)] = self.tapped[slot, list(rows)]

    def copy(self, source: int, slot: int, length: int) -> None:
        """See ``Forward.copy``."""
        self.cache[:, :, slot, :, :length] = self.cache[:, :, source, :, :length]
        if self.taps:
            self.tapped[slot, :length] = self.tapped[source, :length]

    def read(self, slot: int, length: int) -> list[FloatArray]:
        """See ``Forward.read``."""
        kept = self.cache[:, :, slot, :, :length].transpose(2, 3).float().cpu()
        return [np.ascontiguousarray(a.numpy()) for layer in kept for a in layer]


class _Layer:
    """Weights of one layer."""

    def __init__(
        self,
        config: BlockConfig,
        index: int,
        weights: Mapping[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        def linear(name: str, bias: bool) -> Linear:
            stored = f"layers.{index}.{name}"
            return Linear(weights[stored], weights[f"{stored}_bias"] if bias else None, dtype, device)

        def norm(name: str) -> Tensor:
            return weights[f"layers.{index}.{name}"].float().to(device)

        self.pair_norm = norm("pair_norm") if config.fused else None
        self.attn_norm = norm("attn_norm")
        self.qkv = linear("qkv", config.qkv_bias)
        self.q_norm = norm("q_norm") if config.qk_norm else None
        self.k_norm = norm("k_norm") if config.qk_norm else None
        self.o = linear("o", config.o_bias)
        self.post_attn_norm = norm("post_attn_norm") if config.post_norms else None
        self.mlp_norm = norm("mlp_norm")
        self.gate_up = linear("gate_up", config.mlp_bias)
        self.down = linear("down", config.mlp_bias)
        self.post_mlp_norm = norm("post_mlp_norm") if config.post_norms else None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last axis."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + r/2) of the first r dimensions of x f[.., hd]; cos and sin f[.., r/2] are spread over x."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def _activate(x: Tensor, kind: str) -> Tensor:
    """SiLU x sigmoid(x); tanh-GELU is x sigmoid(2 u), as (1 + tanh u) / 2 = sigmoid(2 u)."""
    if kind == "gelu_tanh":
        return x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return x / (1 + torch.exp(-x))


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros that cost no memory until written: on a CPU the pages come from calloc, untouched."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    bits = np.zeros(shape, np.int16 if dtype.itemsize == 2 else np.int32)
    return torch.from_numpy(bits).view(dtype)
