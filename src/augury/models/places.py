"""Medusa heads on board: a small network for each place ahead, no cache; see ``train/medusa.py`` for what they are."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from augury.models.block import rms_norm
from augury.models.forward import Rides
from augury.models.heads import Head
from augury.models.target import Rider
from augury.tree import FloatArray, IntArray


def medusa_rider(head: Head, forward: Rides) -> Rider:
    """A rider of one row: ``given`` are hidden states of the target, and its logits are those of every place ahead.

    Args:
        head: of kind ``medusa``, checked against the model.
        forward: of the model.
    """
    c, device = head.config, forward.embed.device
    weights = {name: tensor.to(device).float() for name, tensor in head.weights.items()}
    words = forward.words(head.draft_ids).float()
    down = weights["layers.0.down.weight"].view(c.guesses, c.hidden_size, -1)
    own = weights.get("lm_head.weight", words)

    @torch.inference_mode()
    def ride(
        slot: int,
        length: int,
        tokens: IntArray,
        given: FloatArray,
        fuse: bool,
        logits: int,
        parents: IntArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        embedded = forward.embed[int(tokens[-1])].float()
        feature = F.linear(torch.from_numpy(given[-1]).to(device), weights["fc.weight"])
        x = torch.cat(
            [
                rms_norm(embedded, weights["layers.0.input_layernorm.weight"], c.norm_eps),
                rms_norm(feature, weights["layers.0.hidden_norm.weight"], c.norm_eps),
            ]
        )
        inner = F.silu(F.linear(x, weights["layers.0.up.weight"])).view(c.guesses, -1, 1)
        y = feature + torch.bmm(down, inner)[..., 0]
        found = rms_norm(y, weights["norm.weight"], c.norm_eps) @ own.T
        return found.cpu().numpy()[:logits], np.empty((0, c.hidden_size), np.float32)

    return ride
