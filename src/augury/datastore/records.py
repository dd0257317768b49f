"""Remembered answers as bytes: in files of a directory, and in the objects that replicas exchange.

::

    header    84 bytes: magic, version, lineage, tenant, tokenizer, when the lineage began, CRC-32 of all that
    record    u32 n, u32 when it was learnt, u32 CRC-32 of both and the tokens, i32[n]: as often as there are

All numbers are little-endian, times in seconds since 1970.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np

from augury.errors import AuguryError
from augury.tree import IntArray

_MAGIC, _VERSION = b"AUGURYME", 2
_HEADER = struct.Struct("<8sI16s32s16sI")
_SUM = struct.Struct("<I")
_WHAT = struct.Struct("<II")
HEAD = struct.Struct("<III")
"""What stands before the tokens of a record."""

HEADER_BYTES = _HEADER.size + _SUM.size


class Unfit(AuguryError):
    """Bytes are not what their name says; says why."""


class Header(NamedTuple):
    """What a file says of itself.

    Attributes:
        lineage: 16 bytes, drawn when the tenant's first file was made.
        tenant: its name, 32 hexadecimal digits.
        tokenizer: digest of the tokenizer's hash, 16 hexadecimal digits.
        began: when the lineage was drawn.
    """

    lineage: bytes
    tenant: str
    tokenizer: str
    began: int

    def pack(self) -> bytes:
        """The bytes of it."""
        fields = _HEADER.pack(
            _MAGIC, _VERSION, self.lineage, self.tenant.encode(), self.tokenizer.encode(), self.began
        )  # fmt: skip
        return fields + _SUM.pack(zlib.crc32(fields))

    @classmethod
    def unpack(cls, data: bytes, name: str) -> Self:
        """What the first bytes of a file say.

        Raises:
            Unfit: they are no header.
        """
        fields, sum = data[: _HEADER.size], data[_HEADER.size : HEADER_BYTES]
        if len(sum) < _SUM.size:
            raise Unfit(f"{name} is damaged: it has no whole header")
        magic, version, lineage, tenant, tokenizer, began = _HEADER.unpack(fields)
        if magic != _MAGIC or version != _VERSION:
            raise Unfit(f"{name} is of another version of Augury, or no file of it")
        if sum != _SUM.pack(zlib.crc32(fields)):
            raise Unfit(f"{name} is damaged: the checksum of its header is wrong")
        return cls(lineage, tenant.decode("ascii", "replace"), tokenizer.decode("ascii", "replace"), began)


class Record(NamedTuple):
    """An answer behind the end of its prompt.

    Attributes:
        learnt: when.
        tokens: i32[n], n >= 1.
    """

    learnt: int
    tokens: IntArray

    @property
    def size(self) -> int:
        """Bytes of it."""
        return HEAD.size + 4 * len(self.tokens)

    def pack(self) -> bytes:
        """The bytes of it."""
        tokens = self.tokens.astype("<i4").tobytes()
        what = _WHAT.pack(len(self.tokens), self.learnt)
        return what + _SUM.pack(zlib.crc32(tokens, zlib.crc32(what))) + tokens


def unpack(data: bytes) -> tuple[list[Record], int]:
    """The records that some bytes begin with, and where the last sound one ends."""
    records, at = list[Record](), 0
    while at + HEAD.size <= len(data):
        count, learnt, sum = HEAD.unpack_from(data, at)
        tokens = data[at + HEAD.size : at + HEAD.size + 4 * count]
        if not count or len(tokens) < 4 * count or zlib.crc32(tokens, zlib.crc32(data[at : at + _WHAT.size])) != sum:
            break
        found = np.frombuffer(tokens, "<i4").astype(np.int32)
        if found.min() < 0 or found.max() == np.iinfo(np.int32).max:
            break
        records.append(Record(learnt, found))
        at += HEAD.size + 4 * count
    return records, at


def joined(records: Iterable[Record], most: int) -> list[Record]:
    """The newest of some records that ``most`` bytes hold, each text once, in one order whatever order they come in."""
    latest: dict[bytes, Record] = {}
    for record in records:
        key = record.tokens.tobytes()
        if (known := latest.get(key)) is None or known.learnt < record.learnt:
            latest[key] = record
    kept: list[Record] = []
    for _, record in sorted(latest.items(), key=lambda item: (item[1].learnt, item[0]), reverse=True):
        most -= record.size
        if most < 0:
            break
        kept.append(record)
    return kept[::-1]
