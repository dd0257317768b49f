"""Medusa heads while they learn: a small network for each place ahead, all fed with what is known at the last token.

Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.1. Unlike there the heads see the embedding of the token that was
just drawn, which is known whenever they are asked (as in Ankner et al. 2024, Hydra, arXiv:2402.05109), and read several
layers of the target.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from augury.models.block import rms_norm
from augury.models.heads import HeadConfig
from augury.train.learning import Batch, HeadNet


class MedusaNet(HeadNet):
    """A ``HeadNet`` of kind ``medusa``."""

    def __init__(self, config: HeadConfig, embed: Tensor, words: Tensor, final_norm: Tensor) -> None:
        super().__init__(config, embed, words, final_norm)
        c = config
        d, f = c.hidden_size, c.intermediate_size
        self.fc = nn.Linear(len(c.taps) * d, d, bias=False)
        self.input_layernorm, self.hidden_norm = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.up = nn.Linear(2 * d, c.guesses * f, bias=False)
        self.down = nn.Parameter(torch.randn(c.guesses * d, f) * 0.1 * f**-0.5)
        with torch.no_grad():  # each begins with what the target thought last
            self.fc.weight.mul_(0.02)
            self.fc.weight[:, -d:] += torch.eye(d)

    def forward(self, batch: Batch, steps: int) -> list[Tensor]:
        """See ``HeadNet``."""
        eps, t = self.config.norm_eps, batch.tokens.shape[1] - 2
        embedded = rms_norm(F.embedding(batch.tokens[:, 1 : t + 1], self.embed), self.input_layernorm, eps)
        feature = self.fc(batch.features)
        x = torch.cat([embedded, rms_norm(feature, self.hidden_norm, eps)], -1)
        inner = F.silu(self.up(x)).chunk(self.config.guesses, -1)
        found = []
        for step, down in enumerate(self.down.chunk(self.config.guesses)[:steps]):
            normed = rms_norm(feature + F.linear(inner[step], down), self.norm, eps)
            found.append(F.pad(normed[:, : t - step], (0, 0, step, 0)))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """See ``HeadNet``."""
        named = {
            "fc": self.fc.weight, "norm": self.norm, "layers.0.input_layernorm": self.input_layernorm,
            "layers.0.hidden_norm": self.hidden_norm,
            "layers.0.up": self.up.weight, "layers.0.down": self.down,
        }  # fmt: skip
        return {f"{name}.weight": tensor.detach().bfloat16() for name, tensor in named.items()}
