"""A head of one Llama layer while it learns, unrolled over its own steps: EAGLE-3, and the parallel block head.

In use the head goes on from features of its own, so it must learn on them. *Training-time test* (Li et al. 2025,
EAGLE-3, arXiv:2503.01840, section 3.2) unrolls it: at step 0 row t takes the target's feature t and the embedding of
token t + 1, and guesses token t + 2; at step j it takes what step j - 1 left at row t - 1 instead. What such a row may
see is what it would see in use: keys and values of step 0 of the rows up to t - j, then those of steps 1..j of the rows
t - j + 1..t, one each.

The *block* head guesses all its places in one forward: behind the text stand rows that all hold one learnt feature and
one token, the mask, so that its step j takes these, whatever came between (masked tokens as in Monea et al. 2023, PaSS,
arXiv:2311.13581). What it may see is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from augury.models.block import rms_norm, rotate
from augury.models.heads import HeadConfig
from augury.models.rope import rope_table
from augury.train.learning import Batch, HeadNet


class EagleNet(HeadNet):
    """A ``HeadNet`` of kind ``eagle`` or ``block``."""

    def __init__(self, config: HeadConfig, embed: Tensor, words: Tensor, final_norm: Tensor) -> None:
        super().__init__(config, embed, words, final_norm)
        c = config
        d, wide = c.hidden_size, c.heads * c.head_dim
        narrow = c.kv_heads * c.head_dim
        self.fc = nn.Linear(len(c.taps) * d, d, bias=False)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            nn.Parameter(torch.ones(d)) for _ in range(3)
        )
        self.qkv = nn.Linear(2 * d, wide + 2 * narrow, bias=False)
        self.o = nn.Linear(wide, d, bias=False)
        self.gate_up = nn.Linear(d, 2 * c.intermediate_size, bias=False)
        self.down = nn.Linear(c.intermediate_size, d, bias=False)
        self.mask = nn.Parameter(torch.randn(d)) if c.kind == "block" else None
        self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        """Where learning begins: the feature is the last tapped state, scarcely changed."""
        d = self.config.hidden_size
        for linear in (self.fc, self.qkv, self.gate_up):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        for linear in (self.o, self.down):
            nn.init.normal_(linear.weight, std=0.1 * linear.in_features**-0.5)
        self.fc.weight.mul_(0.02)
        self.fc.weight[:, -d:] += torch.eye(d)

    def forward(self, batch: Batch, steps: int) -> list[Tensor]:
        """See ``HeadNet``."""
        c, (b, t) = self.config, batch.tokens[:, 2:].shape
        embedded = rms_norm(F.embedding(batch.tokens[:, 1 : t + 1], self.embed), self.input_layernorm, c.norm_eps)
        rope = rope_table({"rope_type": "default", "rope_theta": c.rope_theta}, c.head_dim, t, t)
        cos, sin = (torch.from_numpy(x).to(embedded) for x in (rope.cos, rope.sin))
        feature = self.fc(batch.features)
        past: list[tuple[Tensor, Tensor]] = []
        found = []
        for step in range(steps):
            if step and self.mask is not None:
                feature = self.mask.expand_as(feature)
                embedded = rms_norm(self.embed[c.mask_token], self.input_layernorm, c.norm_eps).expand_as(embedded)
            elif step:
                feature = torch.cat([torch.zeros_like(feature[:, :1]), feature[:, :-1]], 1)
            x = torch.cat([embedded, rms_norm(feature, self.hidden_norm, c.norm_eps)], -1)
            sizes = [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
            q, k, v = (y.view(b, t, -1, c.head_dim).transpose(1, 2) for y in self.qkv(x).split(sizes, -1))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            past.append((k, v))
            y = self._attend(q, past)
            feature = feature + self.o(y.transpose(1, 2).reshape(b, t, -1))
            gate, up = self.gate_up(rms_norm(feature, self.post_attention_layernorm, c.norm_eps)).chunk(2, -1)
            feature = feature + self.down(F.silu(gate) * up)
            found.append(rms_norm(feature, self.norm, c.norm_eps))
        return found

    def _attend(self, q: Tensor, past: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """What the queries [B, heads, T, hd] of the last step see; ``past`` are keys and values of each step."""
        group, step, t = self.config.heads // self.config.kv_heads, len(past) - 1, q.shape[2]
        keys, values = (torch.cat(x, 2).repeat_interleave(group, 1) for x in zip(*past, strict=True))
        behind = torch.arange(t, device=q.device)[:, None] - torch.arange(t, device=q.device)  # row - key
        seen = torch.cat([behind >= step, *(behind == step - i for i in range(1, step + 1))], 1)
        seen[:step, 0] = True  # rows that are none must not be NaN
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)

    def tensors(self) -> dict[str, Tensor]:
        """See ``HeadNet``."""
        c = self.config
        wide, narrow = c.heads * c.head_dim, c.kv_heads * c.head_dim
        q, k, v = torch.split(self.qkv.weight, [wide, narrow, narrow])
        gate, up = self.gate_up.weight.chunk(2)
        layer = {
            "input_layernorm": self.input_layernorm,
            "hidden_norm": self.hidden_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": self.o.weight,
            "post_attention_layernorm": self.post_attention_layernorm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": self.down.weight,
        }
        named = {"fc": self.fc.weight, "norm": self.norm, **{f"layers.0.{name}": x for name, x in layer.items()}}
        if self.mask is not None:
            named["mask"] = self.mask
        return {f"{name}.weight": tensor.detach().bfloat16() for name, tensor in named.items()}
