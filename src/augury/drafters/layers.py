"""Which layers of a target can be left out: a short search for those it is most itself without.

Layers are dropped one after another, each time the one without which the target still says most of what it said. Only
the 2k that did least harm alone are tried, to drop k. A try is one forward over a text that the target wrote itself; of
n layers, n + k (3k + 1) / 2 are made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augury.errors import InputError
from augury.models.target import Target
from augury.models.tokenizer import Tokenizer
from augury.tree import DraftTree, IntArray, Path

TOKENS = 48
"""Of the text that is judged on: a try costs a forward of so many rows."""

FEWEST = 8
"""Tokens below which nothing is judged."""

_BEGIN = "Here is a short story, and after it a few lines of Python code that count its words.\n\nOnce upon a time"


def choose_layers(target: Target, count: int, tokenizer: Tokenizer | None = None) -> tuple[int, ...]:
    """The ``count`` layers that keep most of the target's own choices, ascending.

    Args:
        target: needs a free slot.
        count: of layers to keep.
        tokenizer: of the target; without one the text begins with its lowest token.

    Raises:
        InputError: the context is too short to judge in.
    """
    begin = np.array([0], np.int32) if tokenizer is None else tokenizer.encode(_BEGIN, start=True)
    begin = begin[: target.info.context // 2]
    if target.info.context - len(begin) < FEWEST:
        raise InputError(
            f"drafter self: layers are chosen on {FEWEST} tokens or more, and the context holds {target.info.context}; "
            f"load with max_model_len={2 * FEWEST} or more"
        )
    slot = target.open()
    try:
        written = _write(target, slot, begin)
        target.truncate(slot, len(begin) - 1)

        def kept(layers: Sequence[int]) -> int:
            """How many of the target's choices these layers make too."""
            rows = target.shorten(16, layers)(slot, 0, written[:-1])
            return int((rows.argmax(1) == written[1:]).sum())

        every = range(target.info.layers)
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


def _write(target: Target, slot: int, begin: IntArray) -> IntArray:
    """The last token of a text, and what the target would go on with."""
    target.prefill(slot, begin[:-1])
    tokens = [int(begin[-1])]
    while len(tokens) <= min(TOKENS, target.info.context - len(begin)):
        row = target.verify([slot], [tokens[-1]], [DraftTree.empty()]).logits[0][0]
        tokens.append(int(row.argmax()))
        target.commit([slot], [Path((), tokens[-1])])
    return np.array(tokens, np.int32)
