"""Which layers of a target can be left out: a short search for those it is most itself without.

Layers are dropped one after another, each time the one without which the target still says most of what it said. Only
the 2k that did least harm alone are tried, to drop k. A try is one forward over a short text; of n
layers, n + k (3k + 1) / 2 are made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augury.errors import InputError
from augury.models.target import Target
from augury.models.tokenizer import Tokenizer
from augury.tree import IntArray

TOKENS = 48
"""Of the text that is judged on: a try costs a forward of so many rows."""

FEWEST = 8
"""Tokens below which nothing is judged."""

_TEXT = """Once upon a time a keeper and his dog lived in a lighthouse at the end of a long pier. Every evening he \
wrote down how many ships had passed:

def passed(log):
    return sum(len(line.split()) for line in log if line.strip())

Sum the numbers 3, 4 and 5."""


def choose_layers(target: Target, count: int, tokenizer: Tokenizer | None = None) -> tuple[int, ...]:
    """The ``count`` layers that keep most of the target's own choices, ascending.

    Args:
        target: needs a free slot.
        count: of layers to keep.
        tokenizer: of the target; without one the text is its lowest tokens in turn.

    Raises:
        InputError: the context is too short to judge in.
    """
    context, vocab = target.info.context, target.info.vocab_size
    text = np.arange(TOKENS, dtype=np.int32) % vocab if tokenizer is None else tokenizer.encode(_TEXT, start=True)
    text = text[: min(TOKENS, context // 2)]
    if len(text) < FEWEST:
        raise InputError(
            f"drafter self: layers are chosen on {FEWEST} tokens or more, and the context holds {context}; "
            f"load with max_model_len={2 * FEWEST} or more"
        )
    slot = target.open()
    try:

        def choices(layers: Sequence[int]) -> IntArray:
            """What these layers say behind each token of the text."""
            said: IntArray = target.shorten(16, layers)(slot, 0, text).argmax(1).astype(np.int32)
            return said

        every = range(target.info.layers)
        whole = choices(every)

        def kept(layers: Sequence[int]) -> int:
            """How many of the target's choices these layers make too."""
            return int((choices(layers) == whole).sum())

        drop = len(every) - count
        alone = sorted(every, key=lambda out: -kept([i for i in every if i != out]))
        candidates, layers = alone[: 2 * drop], list(every)
        for _ in range(drop):
            out = max(candidates, key=lambda out: kept([i for i in layers if i != out]))
            candidates.remove(out)
            layers.remove(out)
        return tuple(layers)
    finally:
        target.release(slot)
