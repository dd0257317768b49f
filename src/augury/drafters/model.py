"""A smaller model of the same tokenizer: it says what it would say, and the target mostly agrees.

Leviathan et al. 2023; Chen et al. 2023. The model keeps a cache of its own in step with the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from augury.budget import Costs
from augury.drafters.drafter import View
from augury.drafters.follower import Follower
from augury.drafters.spine import RANKS, Spine
from augury.drafters.survival import Line
from augury.drafters.vocabulary import shared_ids
from augury.models.load import load_target
from augury.models.target import Target
from augury.models.tokenizer import Tokenizer
from augury.tree import BoolArray, FloatArray, IntArray

LINES = (*[Line(0.9, -0.1)] * RANKS, *[Line(0.5, 0.5)] * RANKS, Line(0.5, 0.5))
"""Kinds of ``spine``: greedy, coupled, drawn."""


class Led(Spine):
    """A spine led by a model that numbers tokens as the target does.

    Args:
        model: loaded, for this drafter alone.
        shared: bool[V], the target's ids that mean the same to the model.
        slots: requests that can be open at once.
        depth: see ``Spine``.
        width: see ``Spine``.
        costs: see ``Spine``.
        bits: see ``Follower``.
    """

    def __init__(
        self,
        model: Target,
        shared: BoolArray,
        slots: int,
        depth: int = 8,
        width: int = 3,
        costs: Callable[[], Costs | None] | None = None,
        bits: int = 16,
    ) -> None:
        super().__init__(depth, width, LINES, costs)
        self._follower = Follower(model, slots, bits)
        self._size = model.info.vocab_size
        self._shared = shared
        self._all = bool(shared.all()) and len(shared) == self._size

    def open(self, view: View) -> None:
        """Begin a request, and read its prompt."""
        super().open(view)
        self._follower.begin(view.id, self._read(view.tokens), view.tenant)

    def _read(self, tokens: IntArray) -> IntArray:
        """The tokens as the model knows them; what it has no word for it reads as its first."""
        return tokens.copy() if self._all else np.where(self._shared[tokens], tokens, np.int32(0))

    def room(self, view: View) -> int:
        """Places left in the model's context; one at least, so that a full one is told."""
        return max(1, self._follower.target.info.context - view.length + 1)

    def rows(self, view: View, paths: Sequence[Sequence[int]]) -> Sequence[FloatArray]:
        """Logits of the model, in the target's width."""
        (path,) = paths
        logits = self._follower.after(view.id, self._read(view.tokens), self._read(np.asarray(path, np.int32)))
        if self._all:
            return [logits]
        wide = np.full(len(self._shared), -np.inf, np.float32)
        both = min(len(wide), self._size)
        wide[:both] = np.where(self._shared[:both], logits[:both], -np.inf)
        return [wide]

    def close(self, view: View) -> None:
        """Forget a request, and keep its cache for the next that begins alike."""
        super().close(view)
        self._follower.forget(view.id)


class Model(Led):
    """A draft model by name.

    Args:
        model: an embedded name, a directory, or a GGUF file, as for the target.
        depth: tokens drafted in one step at most.
        width: guesses of one place at most.
        dtype: of the draft model's weights.
        bits: of those that say what follows a guess: 16, its own, or 8 or 4, quantised when it is loaded.
        device: where it runs; empty chooses as for a target.
        context: tokens it may see; 0 is its own limit.
        threads: CPU threads; 0 is as many as the target has.
        tokenizer: the target's.
        vocab_size: the target's.
        slots: the engine's.
        target_threads: the target's.
        costs: of the target.

    Raises:
        InputError: an option cannot be honoured, or the tokenizers differ.
        ModelError: the files are damaged.
    """

    def __init__(
        self,
        model: str,
        depth: int = 8,
        width: int = 3,
        dtype: str = "bfloat16",
        bits: int = 16,
        device: str = "",
        context: int = 0,
        threads: int = 0,
        *,
        tokenizer: Tokenizer | None = None,
        vocab_size: int,
        slots: int,
        target_threads: int | None = None,
        costs: Callable[[], Costs | None] | None = None,
    ) -> None:
        loaded = load_target(
            model, dtype=dtype, device=device or None, threads=threads or target_threads, max_model_len=context or None,
            max_num_seqs=slots,
        )  # fmt: skip
        shared = shared_ids(tokenizer, loaded.tokenizer, vocab_size, loaded.target.info.vocab_size)
        super().__init__(loaded.target, shared, slots, depth, width, costs, bits)
