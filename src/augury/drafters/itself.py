"""The target made cheaper: its own weights in fewer bits, or some of its layers only, over its own cache.

A draft token costs a forward of one row, which memory bounds; fewer bytes are that much faster, and weights of 4 bits
mostly say what the target says. The drafter reads the keys and values that the target computed of everything
committed, and writes its own for what it guesses into the rows behind, where verification writes over them: it has no
prompt to read, nothing to keep in step, and nothing to roll back. What followed the same few tokens before, or usually
does in the target's text, is read along (``hints.py``): where it says the same, one forward gives several guesses.

Zhang et al. 2023 (skipped layers, "Draft & Verify"); Tiwari et al. 2025 (quantised weights over one cache).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from augury.budget import Costs
from augury.drafters.drafter import View
from augury.drafters.hints import Hint, Hints
from augury.drafters.layers import choose_layers
from augury.drafters.phrases import Phrases, check_table, read_table
from augury.drafters.shipped import shipped_phrases
from augury.drafters.spine import RANKS, Spine
from augury.drafters.survival import Line
from augury.errors import InputError, UnknownName
from augury.models.target import Target, TargetInfo
from augury.models.tokenizer import Tokenizer
from augury.tree import FloatArray

WEIGHTS = {"int4": 4, "int8": 8, "bf16": 16}
"""What weights may be kept as, and the bits of each."""

DEEPEST = 16
"""Guesses in a row at most. The budget stops earlier unless text is all but sure, and there long drafts bring most."""

MOST_HINTS = 3
"""Tokens that are read beside the one it goes on from: four rows share what is read of weights in 4 or 8 bits."""

NO_PHRASES = "none"
"""Instead of a file of phrases."""

WHOLE = (
    Line(14.0), *[Line(0.6, 0.0)] * (RANKS - 1),
    Line(6.0, 0.5), *[Line(0.2, 0.0)] * (RANKS - 1),
    Line(0.2, 3.5),
)  # fmt: skip
FEWER = (*[Line(0.85, 1.5)] * RANKS, *[Line(0.2, 1.2)] * RANKS, Line(0.2, 1.2))
"""Kinds of ``spine``, with all layers and with fewer: greedy, coupled, drawn. With all of them first guesses are judged
by their lead; slopes were fitted to answers to our own prompts, in 4 bits."""


class Itself(Spine):
    """See the module's text.

    Args:
        weights: ``int4``, ``int8``, or ``bf16``, the target's own.
        layers: how many run, chosen by a short measurement at the start; 0 is all.
        depth: see ``Spine``.
        width: see ``Spine``.
        phrases: file of what the target usually says, as ``augury train phrases`` writes it; empty: the one that is
            shipped for these weights, if there is one; ``none``: none.
        target: whose own guess it is.
        tokenizer: the target's, which makes the text that layers are chosen on.
        costs: see ``Spine``.

    Raises:
        InputError: an option cannot be honoured, or the target cannot be made cheaper so.
        ModelError: the phrases are damaged, or of another target.
    """

    def __init__(
        self,
        weights: str = "int4",
        layers: int = 0,
        depth: int = DEEPEST,
        width: int = 1,
        phrases: str = "",
        *,
        target: Target,
        tokenizer: Tokenizer | None = None,
        costs: Callable[[], Costs | None] | None = None,
    ) -> None:
        if weights not in WEIGHTS:
            raise UnknownName("weights of drafter self", weights, WEIGHTS)
        count = target.info.layers
        if not 0 <= layers <= count:
            raise InputError(f"drafter self: layers is {layers}; {target.info.name} has {count}, and 0 is all of them")
        if WEIGHTS[weights] == 16 and layers in (0, count):
            raise InputError("drafter self: all layers in bf16 is the target; name fewer layers, or int4 or int8")
        if WEIGHTS[weights] not in target.info.short:
            known = ", ".join(name for name, bits in WEIGHTS.items() if bits in target.info.short)
            raise InputError(
                f"drafter self: {target.info.runner} has no weights in {weights}; "
                + (f"it has {known}, with layers=K" if known else "use runner native or torch")
            )
        kept = range(count) if layers in (0, count) else choose_layers(target, layers, tokenizer)
        usual = _phrases(phrases, target.info)
        super().__init__(depth, width, WHOLE if len(kept) == count else FEWER, costs)
        self.layers = tuple(kept)
        self.by_lead = len(kept) == count
        self._guess = target.shorten(WEIGHTS[weights], self.layers)
        self._hints = Hints(usual)

    together = True

    def close(self, view: View) -> None:
        """Forget a request."""
        super().close(view)
        self._hints.forget(view)

    def rows_together(self, asked: Sequence[tuple[View, Sequence[Sequence[int]]]]) -> list[Sequence[FloatArray]]:
        """A row each of several requests, in one forward."""
        places = [(view, paths[0]) for view, paths in asked]
        slots, aheads = [view.slot for view, _ in places], [len(path) for _, path in places]
        tokens = [int(path[-1] if path else view.tokens[-1]) for view, path in places]
        return [[row] for row in self._guess.together(slots, aheads, tokens)]

    def rows(self, view: View, paths: Sequence[Sequence[int]]) -> Sequence[FloatArray]:
        """Logits of the cheaper target. Those of the path's earlier tokens were computed just before."""
        (path,) = paths
        return self.rows_along(view, path, ())

    def beyond(self, view: View, path: Sequence[int], most: int) -> Sequence[Hint]:
        """What followed the same few tokens before, or usually does."""
        return self._hints.after(view, path, min(most, MOST_HINTS))

    def rows_along(self, view: View, path: Sequence[int], beyond: Sequence[Hint]) -> Sequence[FloatArray]:
        """The same of several tokens in a row."""
        last = path[-1] if path else view.tokens[-1]
        return list(self._guess(view.slot, len(path), np.array([last, *(h.token for h in beyond)], np.int32)))

    def heard(self, view: View, hint: Hint, right: bool) -> None:
        """Learn which hints are right."""
        self._hints.learn(view, hint, right)


def _phrases(named: str, info: TargetInfo) -> Phrases | None:
    """Those that an option names."""
    if named == NO_PHRASES:
        return None
    table = read_table(Path(named)) if named else shipped_phrases(info)
    if table is None:
        return None
    check_table(table, info)
    return Phrases(table)
