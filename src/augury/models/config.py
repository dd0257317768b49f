"""The shape of one transformer of the Llama family: one block with switches.

Names of weights, in the order a forward meets them (``i`` is the layer)::

    embed                  [V, d]
    layers.i.attn_norm     [d]
    layers.i.qkv           [(heads + 2 kv_heads) head_dim, d]   rows: all q heads, all k heads, all v heads
    layers.i.qkv_bias      [(heads + 2 kv_heads) head_dim]      only with ``qkv_bias``
    layers.i.q_norm        [head_dim]                           only with ``qk_norm``
    layers.i.k_norm        [head_dim]                           only with ``qk_norm``
    layers.i.o             [d, heads head_dim]
    layers.i.o_bias        [d]                                  only with ``o_bias``
    layers.i.post_attn_norm[d]                                  only with ``post_norms``
    layers.i.mlp_norm      [d]
    layers.i.gate_up       [2 f, d]                             rows: all gate, all up
    layers.i.gate_up_bias  [2 f]                                only with ``mlp_bias``
    layers.i.down          [d, f]
    layers.i.down_bias     [d]                                  only with ``mlp_bias``
    layers.i.post_mlp_norm [d]                                  only with ``post_norms``
    final_norm             [d]
    head                   [V, d]                               absent when ``tied``: the embedding is used

A draft head that rides on a model (EAGLE-3, Li et al. 2025, arXiv:2503.01840) is a block of one layer whose residual
stream begins with a *feature* instead of an embedding: ``fuse`` of ``fused`` hidden states of the model, or what the
head itself left behind one place earlier. It differs in::

    fuse                   [d, fused d]
    layers.0.pair_norm     [d]                                  of the embedding; ``attn_norm`` is of the feature
    layers.0.qkv           [.., 2 d]                            inputs: normed embedding, normed feature
    head                   [drafted, d]                         of the tokens it can guess

Norm weights are stored as they multiply: families that multiply by ``1 + w`` are folded when weights are
read, so no forward knows the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from augury.tree import FloatArray


@dataclass(frozen=True)
class Rope:
    """One rotary table.

    Attributes:
        cos: f32[context, r/2] with r the rotated dimensions (half-split pairing: i with i + r/2).
        sin: f32[context, r/2], both already multiplied by the kind's attention factor.
    """

    cos: FloatArray
    sin: FloatArray


@dataclass(frozen=True)
class BlockConfig:
    """Switches of the block; every family is a setting of these.

    Attributes:
        windows: per layer, how many positions a query sees counting itself, or 0 for all.
        ropes: per layer, index into ``rope_tables``, or -1 for no rotation.
        attn_scale: factor on q k.
        attn_softcap: c in c tanh(s / c) on scores, or 0.
        logit_softcap: the same on logits, or 0.
        embed_scale: factor on embeddings.
        post_norms: norms after attention and after the MLP, before the residual sum.
        fused: hidden states of the model that a draft head reads; 0 for a model.
        drafted: tokens that a draft head can guess.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    norm_eps: float
    activation: Literal["silu", "gelu_tanh"]
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    post_norms: bool
    attn_scale: float
    attn_softcap: float
    logit_softcap: float
    embed_scale: float
    windows: tuple[int, ...]
    ropes: tuple[int, ...]
    rope_tables: tuple[Rope, ...]
    fused: int = 0
    drafted: int = 0

    @property
    def outputs(self) -> int:
        """Width of a row of logits."""
        return self.drafted or self.vocab_size
