"""A target without a model: it says again what was recorded.

Behind every beginning of a recorded text its law is certain, so under the coupled rule, whatever the temperature, the
loop accepts what the model that wrote the text would have accepted. Behind anything else it says nothing: no rule asks
a row off the accepted path, and drafters that learn from rows cannot be replayed. Its forwards take no time worth
learning, so a meter stands still beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augury.budget import Costs
from augury.engine.costs import Meter
from augury.errors import AuguryError, InputError
from augury.models.target import Rows, Target, TargetInfo
from augury.tree import MAX_NODES, DraftTree, IntArray, Path

_CERTAIN = np.float32(1e9)
"""A logit above zeros that leaves them no probability at any temperature below a million."""

_CONTEXT = 1 << 30


class Recorded(Target):
    """Follows one text at a time.

    Args:
        vocab_size: V, above every id of the texts.
    """

    def __init__(self, vocab_size: int) -> None:
        self.info = TargetInfo(
            name="recorded answers", family="recorded", runner="replay", dtype="float32", vocab_size=vocab_size,
            context=_CONTEXT, hidden_size=0, layers=0, parameters=0, weight_bytes=0, trees=True, exact=True,
        )  # fmt: skip
        self.text: IntArray = np.empty(0, np.int32)
        """i32[n], prompt and answer that are to be said again; set before the request begins."""
        self._length: int | None = None  # of the one slot, if it is open
        # Zeros take no memory until they are written to: a row costs one page, not V numbers.
        self._logits = np.zeros((MAX_NODES + 1, vocab_size), np.float32)
        self._certain: list[tuple[int, int]] = []

    def open(self) -> int:
        """Reserve the one slot."""
        if self._length is not None:
            raise InputError("a recorded target has 1 slot")
        self._length = 0
        return 0

    def release(self, slot: int) -> None:
        """Give it back."""
        self._length = None

    def length(self, slot: int) -> int:
        """Committed length."""
        assert self._length is not None
        return self._length

    def prefill(self, slot: int, tokens: IntArray) -> None:
        """Go on in the text, which must read so."""
        begin = self.length(slot)
        self._check(begin, tokens)
        self._length = begin + len(tokens)

    def verify(self, slots: Sequence[int], roots: Sequence[int], trees: Sequence[DraftTree]) -> Rows:
        """Certain rows along the text, rows of zeros elsewhere and behind its end."""
        (tree,), at = trees, self.length(slots[0])
        self._check(at, np.asarray(roots, np.int32))
        for place in self._certain:
            self._logits[place] = 0.0
        depths = {-1: 0}  # of the nodes that the text goes through, and the root
        for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
            depth = depths.get(parent, -1) + 1
            if depth and at + depth < len(self.text) and token == self.text[at + depth]:
                depths[node] = depth
        self._certain = [
            (node + 1, int(self.text[at + depth + 1]))
            for node, depth in depths.items()
            if at + depth + 1 < len(self.text)
        ]
        for place in self._certain:
            self._logits[place] = _CERTAIN
        return Rows([self._logits[: len(tree) + 1]])

    def commit(self, slots: Sequence[int], paths: Sequence[Path]) -> None:
        """Keep the root and the accepted nodes."""
        self._length = self.length(slots[0]) + 1 + len(paths[0].nodes)

    def truncate(self, slot: int, length: int) -> None:
        """Go back in the text."""
        self._length = length

    def copy(self, source: int, slot: int, length: int) -> None:
        """Never: it has one slot."""
        raise InputError(f"slot {source} cannot be copied; a recorded text has one slot")

    def _check(self, begin: int, tokens: IntArray) -> None:
        if not np.array_equal(self.text[begin : begin + len(tokens)], tokens):
            raise AuguryError(f"the recorded text does not go on so behind its first {begin} tokens")


class Fixed(Meter):
    """A meter that stands still: nothing is learnt from the times of steps whose forwards are not real."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs

    def served(self, rows: int, read: float, verify_ms: float, rest_ms: float) -> None:
        """Learn nothing."""
