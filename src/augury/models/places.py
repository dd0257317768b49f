"""Medusa heads on board: a small network for each place ahead, no cache; see ``train/medusa.py`` for what they are."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from augury.models.block import rms_norm
from augury.models.forward import Ride, Rides, Segment
from augury.models.heads import Head
from augury.tree import FloatArray


def medusa_ride(head: Head, forward: Rides) -> Ride:
    """A ride of one row: what is given are hidden states of the target, and its logits are those of the places ahead.

    Args:
        head: of kind ``medusa``, checked against the model.
        forward: of the model.
    """
    c, device = head.config, forward.embed.device
    weights = {name: tensor.to(device).float() for name, tensor in head.weights.items()}
    words = weights.get("lm_head.weight")
    if words is None:
        words = forward.words(head.draft_ids).to(device).float()
    down = weights["layers.0.down.weight"].view(c.guesses, c.hidden_size, -1)

    @torch.inference_mode()
    def ride(segment: Segment, given: FloatArray, fuse: bool, logits: int) -> tuple[FloatArray, FloatArray]:
        embedded = forward.embed[int(segment.tokens[-1])].float()
        feature = F.linear(torch.from_numpy(given[-1]).to(device), weights["fc.weight"])
        x = torch.cat(
            [
                rms_norm(embedded, weights["layers.0.input_layernorm.weight"], c.norm_eps),
                rms_norm(feature, weights["layers.0.hidden_norm.weight"], c.norm_eps),
            ]
        )
        inner = F.silu(F.linear(x, weights["layers.0.up.weight"])).view(c.guesses, -1, 1)
        y = feature + torch.bmm(down, inner)[..., 0]
        found = rms_norm(y, weights["norm.weight"], c.norm_eps) @ words.T
        return found.cpu().numpy()[:logits], np.empty((0, c.hidden_size), np.float32)

    return ride
