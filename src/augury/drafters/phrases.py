"""What a target usually says behind its last few tokens: a fixed table, counted once in text it wrote itself.

For a context of 1 to ``LONGEST`` tokens the table holds the token that came most often behind it and the *rate*, how
often it did. Where a context is not known, a shorter one speaks (back-off, Katz 1987): the longest that is known. A
longer one that would say what a shorter one says already is left out. ``train/phrases.py`` counts.

A context is kept as one number, its tokens from the last one back being digits of a base that is odd and no less than
the vocabulary + 1, modulo 2^64. Up to 65,534 tokens of vocabulary no two contexts have the same number; beyond that two
may, and one then has the other's token: a wrong guess, which the target judges as any other.

The table is read and never written: nothing of any request enters it, so that all requests may read the same one. It
belongs to one target. On disk it is one safetensors file::

    keys     u64[n]    contexts, ascending
    tokens   i32[n]    what usually follows each, 0..V - 1
    rates    u8[n]     how often it does, in 255ths

whose metadata name the target, its digest and V. State: some 110 bytes an entry.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from augury.durable import replacing
from augury.errors import InputError, ModelError, first_line, shown
from augury.models.target import TargetInfo
from augury.tree import IntArray

FILE = "phrases.safetensors"
"""How the file is called beside heads of the same target."""

LONGEST = 4
"""Tokens of context that are told apart."""

MOST = 1 << 20
"""Entries of a table."""

FORMAT = 1
"""Version of what is written; others are refused."""

_KEY = "augury"
_MASK = (1 << 64) - 1
_BITS = 8  # of a rate
_FULL = (1 << _BITS) - 1
_HEADER = 1 << 16  # bytes of a file that are not tensors
_KINDS: dict[str, np.dtype[Any]] = {
    "keys": np.dtype(np.uint64),
    "tokens": np.dtype(np.int32),
    "rates": np.dtype(np.uint8),
}
_BYTES = sum(kind.itemsize for kind in _KINDS.values())


class Phrase(NamedTuple):
    """A token that usually follows, and how often it did, 0 to 1."""

    token: int
    rate: float


@dataclass(frozen=True)
class Table:
    """What a file holds; see the module's text.

    Attributes:
        keys: u64[n].
        tokens: i32[n].
        rates: u8[n].
        vocab_size: V.
        target: its name, for messages.
        digest: ``TargetInfo.digest``; empty where unknown, and then equal to every other.
    """

    keys: npt.NDArray[np.uint64]
    tokens: IntArray
    rates: npt.NDArray[np.uint8]
    vocab_size: int
    target: str
    digest: str


class Phrases:
    """A table for look-ups.

    Args:
        table: whose; it is copied.
    """

    def __init__(self, table: Table) -> None:
        packed = table.tokens.astype(np.int64) << _BITS | table.rates
        self._known: dict[int, int] = dict(zip(table.keys.tolist(), packed.tolist(), strict=True))
        self._places = [power(table.vocab_size, n) for n in range(LONGEST)]

    def __len__(self) -> int:
        return len(self._known)

    def after(self, tokens: Sequence[int]) -> Phrase | None:
        """What usually follows the longest known ending of some tokens, of which the last ``LONGEST`` count."""
        key, found = 0, None
        for token, place in zip(tokens[: -LONGEST - 1 : -1], self._places, strict=False):
            key = key + (token + 1) * place & _MASK
            found = self._known.get(key, found)
        return None if found is None else Phrase(found >> _BITS, (found & _FULL) / _FULL)


def power(vocab_size: int, n: int) -> int:
    """What the digit of a context's token counts that is ``n`` in front of its last; see the module's text."""
    return pow((vocab_size + 1) | 1, n, 1 << 64)


def write_table(path: Path, table: Table) -> None:
    """Write a table, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    told = {"format": FORMAT, "target": table.target, "digest": table.digest, "vocab_size": table.vocab_size}
    tensors = {name: np.ascontiguousarray(getattr(table, name)) for name in _KINDS}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            beside.write_bytes(save(tensors, {_KEY: json.dumps(told, sort_keys=True)}))
    except OSError as error:
        raise InputError(f"cannot write {path}: {first_line(error)}") from None


def read_table(path: Path) -> Table:
    """The table of a file.

    Raises:
        ModelError: there is none, or it is damaged; says what is wrong.
    """
    try:
        if not path.is_file():
            raise ModelError(f"there is no such file; a table of phrases is a file, DIR/{FILE}")
        size = path.stat().st_size
        if size > _HEADER + MOST * _BYTES:
            raise ModelError(f"it has {size} bytes; at most {_HEADER + MOST * _BYTES} are read")
        file: Any
        with safe_open(path, framework="np") as file:
            table = _table(json.loads((file.metadata() or {}).get(_KEY, "null")), file)
        _check(table)
    except (ModelError, OSError, SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as wrong:
        # numpy has no bfloat16 and no floats of 8 bits: safetensors then raises what numpy does.
        raise ModelError(f"{path} holds no phrases that are read here: {first_line(wrong)}") from None
    return table


def check_table(table: Table, info: TargetInfo) -> None:
    """Whether phrases are a target's own; where one of the two digests is not known, sizes decide.

    Raises:
        ModelError: they are of another.
    """
    wrong = ""
    if table.vocab_size != info.vocab_size:
        wrong = f"know {table.vocab_size} tokens, this target {info.name} has {info.vocab_size}"
    elif table.digest and info.digest and table.digest != info.digest:
        wrong = f"do not fit this target {info.name}, whose weights are others"
    if wrong:
        raise ModelError(
            f"the phrases of {shown(table.target)} {wrong}; count some of it: augury train phrases {info.name}"
        )


def _table(told: object, file: Any) -> Table:
    if not isinstance(told, dict):
        raise ModelError(f"its metadata are {shown(told)}; it was not written by augury train phrases")
    if told.get("format") != FORMAT:
        raise ModelError(f"it is of format {shown(told.get('format'))}; this version reads {FORMAT}")
    vocab_size, target, digest = (told.get(name) for name in ("vocab_size", "target", "digest"))
    if not isinstance(vocab_size, int) or not isinstance(target, str) or not isinstance(digest, str):
        raise ModelError(f"its metadata are {shown(told)}; target, digest and vocab_size are expected")
    if sorted(file.keys()) != sorted(_KINDS):
        raise ModelError(f"it holds {shown(sorted(file.keys()))}; {', '.join(_KINDS)} are expected")
    keys, tokens, rates = (file.get_tensor(name) for name in _KINDS)
    return Table(keys, tokens, rates, vocab_size, target, digest)


def _check(table: Table) -> None:
    """Refuse arrays that do not fit together."""
    n = table.keys.size
    for name, kind in _KINDS.items():
        found = getattr(table, name)
        if found.dtype != kind or found.shape != (n,):
            raise ModelError(f"{name} is {found.dtype} of shape {list(found.shape)}; {kind} [{n}] is expected")
    if (table.keys[1:] <= table.keys[:-1]).any():
        raise ModelError("keys do not ascend")
    if n and not 0 <= int(table.tokens.min()) <= int(table.tokens.max()) < table.vocab_size:
        raise ModelError(f"tokens lie outside 0..{table.vocab_size - 1}")
