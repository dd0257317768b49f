"""Whether two models number their tokens alike, and which numbers they share."""

from __future__ import annotations

import numpy as np

from augury.errors import InputError
from augury.models.tokenizer import Tokenizer
from augury.tree import BoolArray, IntArray

ALIKE = 0.99
"""Share of equal ids from which two vocabularies are one with exceptions; below, texts are cut differently."""


def shared_ids(target: Tokenizer | None, draft: Tokenizer | None, target_size: int, draft_size: int) -> BoolArray:
    """bool[target_size]: ids that mean the same to both models.

    Vocabularies may be padded to different sizes, and a few ids may differ: those are never drafted.

    Args:
        target: the target's tokenizer, or None where ids are all there is.
        draft: the draft model's.
        target_size: width of the target's logits.
        draft_size: width of the draft model's.

    Raises:
        InputError: the tokenizers are not one; names the first ids that differ.
    """
    both = min(target_size, draft_size)
    shared = np.arange(target_size) < both
    if target is None or draft is None or target.hash == draft.hash:
        return shared
    mine, theirs = [[(i in t.special, t.token_bytes(i)) for i in range(both)] for t in (target, draft)]
    different = [i for i in range(both) if mine[i] != theirs[i]]
    if len(different) > (1.0 - ALIKE) * both:
        first = ", ".join(f"{i} ({mine[i][1]!r} and {theirs[i][1]!r})" for i in different[:3])
        raise InputError(
            f"the draft model has another tokenizer: {len(different)} of {both} ids differ, first {first}; "
            "use the drafter foreign:MODEL, which drafts across tokenizers"
        )
    shared[different] = False
    return shared


def same_tokens(target: Tokenizer, draft: Tokenizer, target_size: int, draft_size: int) -> IntArray:
    """i32[target_size]: for each target id the draft model's id of the same bytes, or -1. Control tokens have none."""
    ids: dict[bytes, int] = {}
    for i in range(draft_size):
        if i not in draft.special and (data := draft.token_bytes(i)):
            ids.setdefault(data, i)
    found = np.full(target_size, -1, np.int32)
    for i in range(target_size):
        if i not in target.special and (data := target.token_bytes(i)):
            found[i] = ids.get(data, -1)
    return found
