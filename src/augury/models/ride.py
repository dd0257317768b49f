"""A trained draft head as a block of one layer that rides on a model; see ``config.py`` for what differs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from augury.models.config import BlockConfig
from augury.models.forward import Rides
from augury.models.heads import Head
from augury.models.rope import rope_table
from augury.models.runner import capacity

_NAMES = {
    "layers.0.pair_norm": ("layers.0.input_layernorm.weight",),
    "layers.0.attn_norm": ("layers.0.hidden_norm.weight",),
    "layers.0.qkv": tuple(f"layers.0.self_attn.{x}_proj.weight" for x in "qkv"),
    "layers.0.o": ("layers.0.self_attn.o_proj.weight",),
    "layers.0.mlp_norm": ("layers.0.post_attention_layernorm.weight",),
    "layers.0.gate_up": ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight"),
    "layers.0.down": ("layers.0.mlp.down_proj.weight",),
    "final_norm": ("norm.weight",),
    "fuse": ("fc.weight",),
}
"""Names of the block -> names of the file."""


def head_block(head: Head, forward: Rides, context: int) -> tuple[BlockConfig, Mapping[str, Tensor]]:
    """Switches and weights of a head for ``Rides.attach``.

    Args:
        head: checked against the model.
        forward: of the model.
        context: tokens of a slot.
    """
    c = head.config
    rope = rope_table({"rope_type": "default", "rope_theta": c.rope_theta}, c.head_dim, context, capacity(context))
    config = BlockConfig(
        family="eagle3",
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        layers=1,
        heads=c.heads,
        kv_heads=c.kv_heads,
        head_dim=c.head_dim,
        context=context,
        norm_eps=c.norm_eps,
        activation="silu",
        tied=False,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        post_norms=False,
        attn_scale=c.head_dim**-0.5,
        attn_softcap=0.0,
        logit_softcap=0.0,
        embed_scale=1.0,
        windows=(0,),
        ropes=(0,),
        rope_tables=(rope,),
        fused=len(c.taps),
        drafted=len(head.draft_ids),
    )
    weights = {name: torch.cat([head.weights[part] for part in parts]) for name, parts in _NAMES.items()}
    weights["embed"] = forward.embed
    own = head.weights.get("lm_head.weight")
    weights["head"] = forward.words(head.draft_ids) if own is None else own
    return config, weights
