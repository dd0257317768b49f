"""The target: the model whose output the user wants, and the only authority.

A target owns its cache. Outside ``models/`` a cache is a *slot* number and a *committed length*: the number
of tokens whose keys and values the slot holds. The root of a draft tree (the last committed token of the
request) is not in the cache yet: ``verify`` computes it together with the tree, and ``commit`` keeps it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from augury.errors import InputError
from augury.tree import DraftTree, FloatArray, IntArray, Path

if TYPE_CHECKING:
    from augury.models.heads import Head


@dataclass(frozen=True)
class TargetInfo:
    """What a target is and can do.

    Attributes:
        name: how the user named it.
        family: architecture, as in the HF config's ``model_type`` (``llama``, ``gemma3_text``, ...).
        runner: what runs it, e.g. ``native bf16 (AVX-512)``, ``torch bfloat16 cpu``, ``transformers float32 cpu``.
        dtype: of weights and arithmetic: ``bfloat16``, ``float32`` or ``float16``.
        vocab_size: V, width of a row of logits.
        context: tokens one slot can hold, in tokens.
        hidden_size: d, width of a hidden state.
        layers: number of transformer layers.
        parameters: number of weights.
        weight_bytes: bytes of weights read by one forward of one row.
        trees: whether ``verify`` takes trees; if not, chains only.
        exact: whether every row gets the same bits whatever else is in the forward.
        short: bits of a weight that ``shorten`` takes, most first; none if the target cannot be made cheaper.
        taps: whether ``tap`` can keep hidden states.
        digest: tells this target's weights from others', whatever they are quantised to; empty where unknown.
    """

    name: str
    family: str
    runner: str
    dtype: str
    vocab_size: int
    context: int
    hidden_size: int
    layers: int
    parameters: int
    weight_bytes: int
    trees: bool
    exact: bool
    short: tuple[int, ...] = ()
    taps: bool = False
    digest: str = ""


@dataclass(frozen=True)
class Rows:
    """What one verify gives.

    Attributes:
        logits: for each request f32[n+1, V]; row 0 follows the root, row i+1 follows node i. The arrays are
            valid until the next ``verify`` of the same target (they may be views of its buffers).
        hidden: for each request f32[n+1, d], the last hidden state after the final norm, or None if the
            target was not asked for it.
    """

    logits: Sequence[FloatArray]
    hidden: Sequence[FloatArray] | None = None


class Guesser(Protocol):
    """A cheaper target. It sees a slot's cache, and what it computed of the places behind it since the last commit; it
    commits nothing. The rows it gives are valid until the target's next forward.
    """

    def __call__(self, slot: int, ahead: int, tokens: IntArray) -> FloatArray:
        """f32[m, V], what it says behind each of i32[m] tokens, the first of which stands ``ahead`` places behind the
        committed ones; the root is at 0.
        """
        ...

    def together(self, slots: Sequence[int], aheads: Sequence[int], tokens: Sequence[int]) -> FloatArray:
        """f32[n, V], the same behind one token of each of n slots, in as few forwards as can be."""
        ...


Features = Callable[[int, int, int], FloatArray]
"""(slot, begin, end) -> f32[end - begin, k d], hidden states of the committed positions begin..end-1, those of the k
tapped layers side by side; zeros where nothing was tapped yet. The values are bfloat16. A copy."""


class Rider(Protocol):
    """A draft head on board of a target."""

    def __call__(
        self,
        slot: int,
        length: int,
        tokens: IntArray,
        given: FloatArray,
        fuse: bool,
        logits: int,
        parents: IntArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Some rows behind the first ``length`` rows of the head's own cache for a slot.

        Args:
            slot: the target's.
            length: what lies behind it in the cache is forgotten.
            tokens: i32[m]; row r takes the embedding of ``tokens[r]`` and ``given[r]``.
            given: f32[m, k d] hidden states of the target, or f32[m, d] features that the head left.
            fuse: whether they are the target's.
            logits: of how many of the last rows they are wanted; of none it only fills the cache. Medusa heads, which
                have no cache, take one row, and give those of so many places ahead.
            parents: i32[m], the row that each stands behind, -1 for the cache; None is a chain.

        Returns:
            (f32[logits, v], f32[m, d] features), valid until the head's next forward.
        """
        ...


class Target(ABC):
    """A language model with a cache that can commit and roll back. Not thread-safe: one engine, one thread."""

    info: TargetInfo

    @abstractmethod
    def open(self) -> int:
        """Reserve an empty slot. Raises ``InputError`` when all are taken (the limit is given at load)."""

    @abstractmethod
    def release(self, slot: int) -> None:
        """Give a slot back; its cache is forgotten."""

    @abstractmethod
    def length(self, slot: int) -> int:
        """Committed length of a slot, in tokens."""

    @abstractmethod
    def prefill(self, slot: int, tokens: IntArray) -> None:
        """Append i32[m] tokens to the slot's cache and commit them. The caller may split a prompt at will."""

    @abstractmethod
    def verify(self, slots: Sequence[int], roots: Sequence[int], trees: Sequence[DraftTree]) -> Rows:
        """One forward over the root and all nodes of every request's tree; nothing is committed.

        Every slot may appear once. The root of request ``j`` is the token ``roots[j]`` at position
        ``length(slots[j])``; a node of depth k stands k positions further.
        """

    @abstractmethod
    def commit(self, slots: Sequence[int], paths: Sequence[Path]) -> None:
        """After ``verify``: keep the root and the accepted nodes of each request, forget the other nodes."""

    @abstractmethod
    def truncate(self, slot: int, length: int) -> None:
        """Roll a slot back to its first ``length`` tokens (used when a new prompt shares a prefix)."""

    @abstractmethod
    def copy(self, source: int, slot: int, length: int) -> None:
        """Give a slot the first ``length`` committed tokens of another one, instead of what it held."""

    def shorten(self, bits: int, layers: Sequence[int]) -> Guesser:
        """The target made cheaper, for a drafter: weights of fewer bits, or some of its layers only.

        Args:
            bits: of a weight, one of ``info.short``; 16 keeps the target's own.
            layers: that run, ascending; the others are skipped.

        Raises:
            InputError: this target cannot be made so.
        """
        raise InputError(f"{self.info.name} cannot be made cheaper under {self.info.runner}")

    def tap(self, layers: Sequence[int]) -> Features:
        """Keep hidden states of everything that is committed from now on, for heads that guess from them.

        Args:
            layers: ascending; 0..n-1 is the residual stream in front of a layer, n that behind the last one (a prompt
                costs more then, as its last layer is not left out).

        Raises:
            InputError: these are no layers, or this target keeps no hidden states.
        """
        raise InputError(f"{self.info.name} keeps no hidden states under {self.info.runner}")

    def attach(self, head: Head) -> Rider:
        """Take a trained draft head on board; ``tap`` gives the hidden states it reads.

        Raises:
            ModelError: the head was trained for another target.
            InputError: nothing can ride on this target.
        """
        raise InputError(f"no draft head can ride on {self.info.name} under {self.info.runner}")

    def snapshot(self, slot: int) -> list[FloatArray]:
        """Committed keys and values of a slot as f32 arrays [length, ...], for cache-equality tests."""
        raise NotImplementedError
