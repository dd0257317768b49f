"""Rotary tables of every kind the Llama family uses, computed in f32 as ``transformers`` computes them.

Sources: RoPE (Su et al., 2104.09864), linear scaling (kaiokendev), dynamic NTK (bloc97), YaRN (Peng et al.,
2309.00071, eqs. 17-22), Llama 3.1's wavelength bands, LongRoPE (Ding et al., 2402.13753).

Two kinds change *all* frequencies when a sequence outgrows the pretraining length: dynamic NTK and LongRoPE.
Keys already in the cache were rotated with the old ones, so no cache can honour that; such a model is run up
to that length and no further (``rope_limit``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from augury.errors import ModelError
from augury.models.config import Rope

KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "factors")


def rope_limit(params: Mapping[str, Any], max_positions: int) -> int:
    """Positions up to which a table is a function of position alone, in tokens."""
    kind = params["rope_type"]
    if kind == "longrope":
        return min(max_positions, int(params["original_max_position_embeddings"]))
    if kind == "yarn" and params.get("factor"):
        return max(max_positions, int(params["original_max_position_embeddings"] * params["factor"]))
    return max_positions


def rope_table(params: Mapping[str, Any], head_dim: int, max_positions: int, rows: int) -> Rope:
    """The table of one kind.

    Args:
        params: ``rope_type``, ``rope_theta`` and what the kind needs, named as in a config's
            ``rope_parameters``; kind ``factors`` (GGUF) divides each frequency by ``factors[i]``.
        head_dim: width of a head; ``partial_rotary_factor`` of it is rotated.
        max_positions: the config's ``max_position_embeddings``.
        rows: positions wanted.

    Raises:
        ModelError: an unknown kind or a missing parameter.
    """
    kind = params["rope_type"]
    if kind not in KINDS:
        raise ModelError(f"RoPE kind {kind!r} is not run by the block; it runs {', '.join(KINDS)}")
    dim = int(head_dim * params.get("partial_rotary_factor", 1.0))
    if dim % 2:
        raise ModelError(f"RoPE rotates {dim} dimensions of a head, an odd number")
    powers = torch.arange(0, dim, 2, dtype=torch.float) / dim
    try:
        inverse, scale = _frequencies(kind, params, float(params["rope_theta"]) ** powers, dim, max_positions)
    except KeyError as missing:
        raise ModelError(f"RoPE kind {kind!r} needs the parameter {missing.args[0]!r}") from None
    angles = torch.arange(rows, dtype=torch.float)[:, None] * inverse
    return Rope((angles.cos() * scale).numpy(), (angles.sin() * scale).numpy())


def _frequencies(
    kind: str, params: Mapping[str, Any], periods: Tensor, dim: int, max_positions: int
) -> tuple[Tensor, float]:
    """Inverse frequencies f32[dim/2] and the factor on cos and sin."""
    plain = 1.0 / periods
    if kind == "linear":
        return plain / params["factor"], 1.0
    if kind == "factors":
        return plain / torch.tensor(params["factors"], dtype=torch.float), 1.0
    if kind == "llama3":
        return _llama3(plain, params), 1.0
    if kind == "yarn":
        return _yarn(periods, params, dim, max_positions)
    if kind == "longrope":
        return _longrope(periods, params, max_positions)
    return plain, 1.0  # "default", and "dynamic" below its limit


def _llama3(plain: Tensor, params: Mapping[str, Any]) -> Tensor:
    factor, low, high = params["factor"], params["low_freq_factor"], params["high_freq_factor"]
    original = params["original_max_position_embeddings"]
    wavelength = 2 * math.pi / plain
    slow = torch.where(wavelength > original / low, plain / factor, plain)
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * slow / factor + smooth * slow
    medium = ~(wavelength < original / high) & ~(wavelength > original / low)
    return torch.where(medium, between, slow)


def _yarn(periods: Tensor, params: Mapping[str, Any], dim: int, max_positions: int) -> tuple[Tensor, float]:
    base, original = params["rope_theta"], params["original_max_position_embeddings"]
    factor = params["factor"] or max_positions / original

    def magnitude(scale: float, weight: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * weight * math.log(scale) + 1.0

    attention = params.get("attention_factor")
    if attention is None:
        one, all_dim = params.get("mscale"), params.get("mscale_all_dim")
        attention = magnitude(factor, one) / magnitude(factor, all_dim) if one and all_dim else magnitude(factor)

    def dimension(rotations: float) -> float:
        return float(dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base)))

    low, high = dimension(params.get("beta_fast") or 32), dimension(params.get("beta_slow") or 1)
    if params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(dim // 2, dtype=torch.float) - low) / (high - low), 0, 1)
    keep = 1 - ramp
    return 1.0 / (factor * periods) * (1 - keep) + 1.0 / periods * keep, float(attention)


def _longrope(periods: Tensor, params: Mapping[str, Any], max_positions: int) -> tuple[Tensor, float]:
    original = params["original_max_position_embeddings"]
    factor = params.get("factor") or max_positions / original
    attention = params.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    short = torch.tensor(params["short_factor"], dtype=torch.float)
    return 1.0 / (short * periods), float(attention)
