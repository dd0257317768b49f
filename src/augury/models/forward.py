"""The seam between the runner, which knows slots and trees, and the arithmetic that fills a cache.

Two forwards stand behind it: ``block.py`` (torch, any device) and ``native.py`` (one compiled call per
forward on a CPU). Both keep their own cache in the layout they like best: for each slot and layer ``capacity``
*cache rows* of keys and values. Cache row ``i < length`` holds position ``i``; a draft tree is computed into the rows
behind the committed ones, in row order, whatever its positions are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from augury.tree import FloatArray, IntArray


@dataclass(frozen=True)
class Segment:
    """The rows of one request in a forward.

    Attributes:
        slot: which cache.
        length: committed rows L of that cache; row r of the segment is written to cache row L + r.
        tokens: i32[m].
        parents: i32[m], row r's parent row, -1 for row 0 (it follows cache row L - 1). A prompt chunk is a chain.
        depths: i32[m], position of row r minus L; row 0 has depth 0.
    """

    slot: int
    length: int
    tokens: IntArray
    parents: IntArray
    depths: IntArray


class Forward(Protocol):
    """The arithmetic of one loaded model.

    Exactness: a row's logits, hidden state, keys and values must be a function of the tokens at its
    positions alone: the same bits whether it was computed alone, among other rows, as a prompt chunk, as a
    node of any tree, in whatever cache row its ancestors lie.
    """

    name: str
    exact: bool
    max_rows: int
    """Rows that one ``run`` takes at most, at least a root with ``MAX_NODES`` nodes."""

    def run(self, segments: Sequence[Segment], logits: bool) -> tuple[FloatArray | None, FloatArray | None]:
        """One forward. Gives (logits f32[R, V], hidden f32[R, d]) over all rows in order, or (None, None)."""
        ...

    def move(self, slot: int, rows: Sequence[int], to: int) -> None:
        """Copy cache rows ``rows`` (ascending) to rows ``to``, ``to + 1``, ... in every layer; rows[j] >= to + j."""
        ...

    def read(self, slot: int, length: int) -> list[FloatArray]:
        """Keys and values of the first ``length`` rows: f32[length, kv_heads, head_dim], k then v by layer."""
        ...
