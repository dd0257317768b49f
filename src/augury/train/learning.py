"""What every head learns from, whatever it is inside: the target's laws, and how far its guesses would have come.

At *step* j a head guesses j places further than it reads: row t of step j guesses token t + 2 from what was known at
row t - j. A chain that is drafted behind row s thus has its i-th guess at step i, row s + i. As all inputs are the
tokens that came, the guesses tell exactly how far the chain would have been accepted: see ``hits``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from augury.models.heads import HeadConfig

_UNSURE = 0.3
"""Of the target's norm: surer logits would be wrong, and the first hundred steps do nothing but find the scale."""


@dataclass(frozen=True)
class Batch:
    """Some conversations of T rows, padded.

    Attributes:
        tokens: i64[B, T + 2]; row t guesses ``tokens[:, t + 2]``.
        features: f[B, T, k d], hidden states of the target at tokens 0..T-1.
        laws: f[B, T, d], normed hidden states of the target at tokens 1..T, whose law row t is to guess.
        weight: f[B, T], how much a row counts: 0 for padding and where the target's law is not known.
        answer: bool[B, T], rows whose token t + 2 is of the target's answer.
    """

    tokens: Tensor
    features: Tensor
    laws: Tensor
    weight: Tensor
    answer: Tensor


class HeadNet(nn.Module, ABC):
    """The arithmetic of a head for whole conversations, in the dtype of its parameters.

    Args:
        config: its shape.
        embed: f[V, d], the target's; frozen.
        words: f[v, d], rows of the target's head that it may guess; frozen.
        final_norm: f[d], the target's, where the head's own begins.
    """

    softcap: float = 0.0
    """c of c tanh(x / c) over the target's own logits, or 0."""

    def __init__(self, config: HeadConfig, embed: Tensor, words: Tensor, final_norm: Tensor) -> None:
        super().__init__()
        self.config, self.embed, self.words = config, embed, words
        self.norm = nn.Parameter(_UNSURE * final_norm)

    @abstractmethod
    def forward(self, batch: Batch, steps: int) -> list[Tensor]:
        """Normed features f[B, T, d] of each step, for the rows of ``words``. Of step j the first j rows are none."""

    @abstractmethod
    def tensors(self) -> Mapping[str, Tensor]:
        """What is learnt, bf16, named as in a head's file."""


def loss(net: HeadNet, batch: Batch, steps: int, decay: float = 0.8) -> Tensor:
    """Cross-entropy to the target's law over the draft vocabulary, step j weighing ``decay ** j``; a mean over rows."""
    with torch.no_grad():
        laws = logits(net, batch.laws)
        if net.softcap:
            laws = net.softcap * torch.tanh(laws / net.softcap)
        laws = laws.softmax(-1)
    total, weights = batch.weight.new_zeros(()), 0.0
    for step, normed in enumerate(net(batch, steps)):
        rows = batch.weight[:, step:] > 0
        guessed = logits(net, normed[:, step:][rows]).log_softmax(-1)
        total = total - decay**step * (laws[:, step:][rows] * guessed).sum(-1).mean()
        weights += decay**step
    return total / weights


@torch.no_grad()
def hits(net: HeadNet, batch: Batch, ids: Tensor, steps: int) -> tuple[Tensor, Tensor]:
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
        guess = ids[logits(net, normed).argmax(-1)]
        right.append(F.pad((guess == batch.tokens[:, 2:])[:, step:], (0, step)))
    chains = (batch.weight > 0) & batch.answer
    chains[:, max(t - steps + 1, 0) :] = False
    for step in range(1, steps):
        chains = chains & (F.pad(batch.weight[:, step:], (0, step)) > 0)
    return torch.stack(right, -1).cumprod(-1).bool(), chains


def logits(net: HeadNet, normed: Tensor) -> Tensor:
    """f[.., d] -> f[.., v]."""
    return normed @ net.words.T
