"""The seam between the runner, which knows slots and trees, and the arithmetic that fills a cache.

Two forwards stand behind it: ``block.py`` (torch, any device) and ``native.py`` (one compiled call per
forward on a CPU). Both keep their own cache in the layout they like best: for each slot and layer ``capacity``
*cache rows* of keys and values. Cache row ``i < length`` holds position ``i``; a draft tree is computed into the rows
behind the committed ones, in row order, whatever its positions are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from augury.errors import InputError
from augury.models.config import BlockConfig
from augury.tree import FloatArray, IntArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Segment:
    """The rows of one request in a forward.

    Attributes:
        slot: which cache.
        length: committed rows L of that cache; row r of the segment is written to cache row L + r.
        tokens: i32[m].
        parents: i32[m], row r's parent row, -1 for row 0 and others that follow cache row L - 1. A prompt chunk is a
            chain.
        depths: i32[m], position of row r minus L; row 0 has depth 0.
    """

    slot: int
    length: int
    tokens: IntArray
    parents: IntArray
    depths: IntArray


GUESS_ROWS = 16
"""Rows that a shorter forward in fewer than 16 bits takes at most."""

Short = Callable[[Sequence[Segment]], FloatArray]
"""A cheaper forward over the same cache: f32[R, V] logits of all rows, valid until the next forward. Keys and values
go into the rows behind the committed ones, where the next verify writes over them; like all rows they hold finite
numbers, as some forwards multiply what nobody sees by zero."""


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

    def copy(self, source: int, slot: int, length: int) -> None:
        """Copy the first ``length`` cache rows of slot ``source`` to the same rows of ``slot`` in every layer."""
        ...

    def read(self, slot: int, length: int) -> list[FloatArray]:
        """Keys and values of the first ``length`` rows: f32[length, kv_heads, head_dim], k then v by layer."""
        ...


@runtime_checkable
class Shortens(Protocol):
    """A forward that can be made cheaper."""

    short_bits: tuple[int, ...]
    """What weights of a shorter forward may have, most first; 16 stands for those of ``run``."""

    def shorten(self, bits: int, layers: Sequence[int]) -> Short:
        """A cheaper forward that guesses what ``run`` would say; what it gives need not be exact.

        Args:
            bits: of ``short_bits``. Fewer than 16 may take a few rows only.
            layers: that run, ascending; the others are skipped.

        Raises:
            InputError: these are no layers of the model.
        """
        ...


@runtime_checkable
class Taps(Protocol):
    """A forward that can keep hidden states beside keys and values."""

    def tap(self, layers: Sequence[int]) -> None:
        """From now on ``run`` keeps in the cache what ``Target.tap`` says; ``move`` and ``copy`` take it along. Layers
        that are tapped already stay so, but what was kept before is forgotten where others come to them.

        Raises:
            InputError: these are no layers of the model.
        """
        ...

    def features(self, slot: int, begin: int, end: int, layers: Sequence[int]) -> FloatArray:
        """Hidden states of cache rows begin..end-1 in front of k tapped layers: f32[end - begin, k d]."""
        ...


Ride = Callable[[Segment, FloatArray, bool, int], tuple[FloatArray, FloatArray]]
"""(segment, given, fuse, n) -> (f32[n, v] logits of the last n rows, f32[m, d] features): a forward of a draft head
over a cache of its own, with as many slots and rows as the model's. ``given`` are f32[m, k d] hidden states of the
model to ``fuse``, or f32[m, d] features that the head left. Of no row (n = 0) it only writes keys and values, and the
features are not to be read; else both are valid until its next forward."""


@runtime_checkable
class Rides(Protocol):
    """A forward that a draft head can ride on."""

    config: BlockConfig
    embed: torch.Tensor
    """[V, d], of what ``run`` reads."""
    final_norm: torch.Tensor
    """f32[d]"""

    def words(self, ids: IntArray) -> torch.Tensor:
        """Rows [n, d] of the head for token ids i32[n]."""
        ...

    def attach(self, config: BlockConfig, weights: Mapping[str, torch.Tensor]) -> Ride:
        """Take a draft head on board; ``config.fused`` is not 0, and ``embed`` is this forward's own."""
        ...


def checked_layers(layers: Sequence[int], count: int) -> npt.NDArray[np.int64]:
    """The layers of a shorter forward as i64[n]; raises ``InputError`` for what is none of ``count`` layers."""
    order = np.array(layers, np.int64)
    if not len(order) or order[0] < 0 or order[-1] >= count or (np.diff(order) <= 0).any():
        raise InputError(f"layers are {order.tolist()}; they must be ascending numbers of 0 to {count - 1}")
    return order


def checked_taps(layers: Sequence[int], count: int, before: Sequence[int]) -> tuple[int, ...]:
    """All layers that are tapped when ``layers`` of ``count`` come to those of ``before``, ascending."""
    taps = [int(i) for i in layers]
    if not taps or taps[0] < 0 or taps[-1] > count or any(b <= a for a, b in itertools.pairwise(taps)):
        raise InputError(f"taps are {taps}; they must be ascending numbers of 0 to {count}")
    return tuple(sorted({*taps, *before}))
