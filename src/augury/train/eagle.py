"""An EAGLE-3 head while it learns: one Llama layer over hidden states of the target, unrolled over its own steps.

In use the head goes on from features of its own, so it must learn on them. *Training-time test* (Li et al. 2025,
EAGLE-3, arXiv:2503.01840, section 3.2) unrolls it: at step 0 row t takes the target's feature t and the embedding of
token t + 1, and guesses token t + 2; at step j it takes what step j - 1 left at row t - 1 instead. What such a row may
see is what it would see in use: keys and values of step 0 of the rows up to t - j, then those of steps 1..j of the rows
t - j + 1..t, one each.

A chain that is drafted behind row s thus has its i-th guess at step i, row s + i. As all its inputs are the tokens that
came, the guesses tell exactly how far the chain would have been accepted: see ``hits``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from augury.models.block import rms_norm, rotate
from augury.models.heads import HeadConfig
from augury.models.rope import rope_table


@dataclass(frozen=True)
class Batch:
    """Some conversations of T rows, padded.

    Attributes:
        tokens: i64[B, T + 2]; row t guesses ``tokens[:, t + 2]``.
        features: f[B, T, k d], hidden states of the target at tokens 0..T-1.
        laws: f[B, T, d], normed hidden states of the target at tokens 1..T, whose law row t is to guess.
        weight: f[B, T], how much a row counts: 0 for padding and where the target's law is not known.
    """

    tokens: Tensor
    features: Tensor
    laws: Tensor
    weight: Tensor


class EagleNet(nn.Module):
    """The head's arithmetic, in the dtype of its parameters, for whole conversations.

    Args:
        config: its shape.
        embed: f[V, d], the target's.
        words: f[v, d], rows of the target's head that it may guess; frozen.
        final_norm: f[d], the target's, where its own norm begins.
    """

    def __init__(self, config: HeadConfig, embed: Tensor, words: Tensor, final_norm: Tensor) -> None:
        super().__init__()
        c = config
        d, wide = c.hidden_size, c.heads * c.head_dim
        narrow = c.kv_heads * c.head_dim
        self.config = config
        self.embed, self.words = embed, words
        self.fc = nn.Linear(len(c.taps) * d, d, bias=False)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm, self.norm = (
            nn.Parameter(torch.ones(d)) for _ in range(4)
        )
        self.qkv = nn.Linear(2 * d, wide + 2 * narrow, bias=False)
        self.o = nn.Linear(wide, d, bias=False)
        self.gate_up = nn.Linear(d, 2 * c.intermediate_size, bias=False)
        self.down = nn.Linear(c.intermediate_size, d, bias=False)
        self._begin(final_norm)

    @torch.no_grad()
    def _begin(self, final_norm: Tensor) -> None:
        """Where learning begins: the feature is the last tapped state, scarcely changed, under the target's own norm.

        Logits then have the target's scale; with random ones the first hundred steps do nothing but find it.
        """
        d = self.config.hidden_size
        for linear in (self.fc, self.qkv, self.gate_up):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        for linear in (self.o, self.down):
            nn.init.normal_(linear.weight, std=0.1 * linear.in_features**-0.5)
        self.fc.weight.mul_(0.02)
        self.fc.weight[:, -d:] += torch.eye(d)
        self.norm.copy_(final_norm)

    def forward(self, batch: Batch, steps: int) -> list[Tensor]:
        """Normed features f[B, T, d] of each step, for ``logits``. Of step j the first j rows are none."""
        c, (b, t) = self.config, batch.tokens[:, 2:].shape
        embedded = rms_norm(F.embedding(batch.tokens[:, 1 : t + 1], self.embed), self.input_layernorm, c.norm_eps)
        rope = rope_table({"rope_type": "default", "rope_theta": c.rope_theta}, c.head_dim, t, t)
        cos, sin = (torch.from_numpy(x).to(embedded) for x in (rope.cos, rope.sin))
        feature = self.fc(batch.features)
        rows = torch.arange(t, device=embedded.device)
        past: list[tuple[Tensor, Tensor]] = []
        found = []
        for step in range(steps):
            if step:
                feature = torch.cat([torch.zeros_like(feature[:, :1]), feature[:, :-1]], 1)
            x = torch.cat([embedded, rms_norm(feature, self.hidden_norm, c.norm_eps)], -1)
            sizes = [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
            q, k, v = (y.view(b, t, -1, c.head_dim).transpose(1, 2) for y in self.qkv(x).split(sizes, -1))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            past.append((k, v))
            y = self._attend(q, past, rows)
            feature = feature + self.o(y.transpose(1, 2).reshape(b, t, -1))
            gate, up = self.gate_up(rms_norm(feature, self.post_attention_layernorm, c.norm_eps)).chunk(2, -1)
            feature = feature + self.down(F.silu(gate) * up)
            found.append(rms_norm(feature, self.norm, c.norm_eps))
        return found

    def _attend(self, q: Tensor, past: Sequence[tuple[Tensor, Tensor]], rows: Tensor) -> Tensor:
        """What the queries [B, heads, T, hd] of the last step see; ``past`` are keys and values of each step."""
        group, step = self.config.heads // self.config.kv_heads, len(past) - 1
        scale = self.config.head_dim**-0.5
        keys, values = (x.repeat_interleave(group, 1) for x in past[0])
        scores = (q @ keys.transpose(-1, -2)) * scale
        scores = scores.masked_fill(rows[None, :] > rows[:, None] - step, -torch.inf)
        own = []
        for i in range(1, step + 1):  # row t sees of step i the row t - step + i
            key = shifted(past[i][0], step - i).repeat_interleave(group, 1)
            own.append(((q * key).sum(-1, keepdim=True) * scale).masked_fill((rows < step - i)[:, None], -torch.inf))
        law = torch.cat([scores, *own], -1)
        law = law.masked_fill((rows < step)[:, None], 0.0).softmax(-1)  # rows that are none must not be NaN
        seen = law[..., : len(rows)] @ values
        for i in range(1, step + 1):
            value = shifted(past[i][1], step - i).repeat_interleave(group, 1)
            seen = seen + law[..., len(rows) + i - 1, None] * value
        return seen

    def logits(self, normed: Tensor) -> Tensor:
        """f[.., d] -> f[.., v]."""
        return normed @ self.words.T

    def tensors(self) -> dict[str, Tensor]:
        """What is learnt, named as in a head's file."""
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
        return {f"{name}.weight": tensor.detach().bfloat16() for name, tensor in named.items()}


def loss(net: EagleNet, batch: Batch, steps: int, decay: float = 0.8) -> Tensor:
    """Cross-entropy to the target's law over the draft vocabulary, step j weighing ``decay ** j``; a mean over rows."""
    with torch.no_grad():
        laws = net.logits(batch.laws).softmax(-1)
    total, weights = batch.weight.new_zeros(()), 0.0
    for step, normed in enumerate(net(batch, steps)):
        rows = batch.weight[:, step:] > 0
        guessed = net.logits(normed[:, step:][rows]).log_softmax(-1)
        total = total - decay**step * (laws[:, step:][rows] * guessed).sum(-1).mean()
        weights += decay**step
    return total / weights


@torch.no_grad()
def hits(net: EagleNet, batch: Batch, ids: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """How far greedy chains go on text that came: (bool[B, T, steps], bool[B, T] of the chains that count).

    ``hits[b, s, i]``: guess i of the chain behind row s, and all before it, are the tokens of the text.

    Args:
        net: the head.
        batch: of greedy text, or the figures mean little.
        ids: i64[v], the draft vocabulary.
        steps: guesses of a chain.
    """
    t = batch.weight.shape[1]
    right = []
    for step, normed in enumerate(net(batch, steps)):
        guess = ids[net.logits(normed).argmax(-1)]
        right.append(F.pad((guess == batch.tokens[:, 2:])[:, step:], (0, step)))
    chains = batch.weight > 0
    chains[:, max(t - steps + 1, 0) :] = False
    for step in range(1, steps):
        chains = chains & (F.pad(batch.weight[:, step:], (0, step)) > 0)
    return torch.stack(right, -1).cumprod(-1).bool(), chains


def shifted(x: Tensor, by: int) -> Tensor:
    """[B, heads, T, hd] with row t - ``by`` at row t."""
    return x if not by else F.pad(x[:, :, :-by], (0, 0, by, 0))
