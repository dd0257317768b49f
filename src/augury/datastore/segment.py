"""One file of an index: the values of some documents, their order, and a sample of it that is searched first.

::

    header    64 bytes: magic, version, bytes a value (2 or 4), values n, documents d, entries m, CRC-32 of all that
    values    u16[n] or u32[n]     DEPTH times END, then every document with an END behind it
    starts    u32[d + 1]           where documents begin; the last is n
    sources   u32[d]               number of the source each document is from
    order     u32[m]               positions by context; m = n - DEPTH - 2d
    samples   S[DEPTH values][*]   keys of every STRIDE-th entry of the order

All numbers are little-endian, keys big-endian; every part begins at a multiple of 64 bytes. A file is never changed,
only written anew and mapped: 7 bytes a token for a vocabulary below 65,536, else 10 and more.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from augury.datastore.order import DEPTH, END, Keys, Positions, Values, key, keys
from augury.errors import InputError

STRIDE = 32
"""Entries of the order behind one sample: as many contexts are compared at once where a search ends."""

MAX_VALUES = 1 << 28
"""Values of one segment: about a gigabyte of text, whose values (512 MB or 1 GB) a merge holds in memory."""

_MAGIC, _VERSION = b"AUGURYDS", 1
_HEADER = struct.Struct("<8sIIQQQI")
_ALIGN = 64
_BACK = np.arange(DEPTH)
_CHECKED = 1 << 20  # entries that a full check looks at together


@dataclass(frozen=True)
class Layout:
    """Sizes of a segment, and the offsets that follow from them.

    Attributes:
        width: bytes of a value, 2 or 4.
        values: n.
        documents: d.
    """

    width: int
    values: int
    documents: int

    @property
    def entries(self) -> int:
        """Positions in the order: all but each document's last, and no END."""
        return self.values - DEPTH - 2 * self.documents

    @property
    def samples(self) -> int:
        """Keys in the sample."""
        return -(-self.entries // STRIDE)

    def offsets(self) -> tuple[int, ...]:
        """Where values, starts, sources, order and samples begin, and where the file ends."""
        sizes = (
            self.width * self.values, 4 * (self.documents + 1), 4 * self.documents, 4 * self.entries,
            self.width * DEPTH * self.samples,
        )  # fmt: skip
        found = [_ALIGN]
        for size in sizes:
            found.append(-(-(found[-1] + size) // _ALIGN) * _ALIGN)
        return tuple(found)

    def header(self) -> bytes:
        """The first bytes of the file."""
        fields = (_MAGIC, _VERSION, self.width, self.values, self.documents, self.entries)
        return _HEADER.pack(*fields, zlib.crc32(_HEADER.pack(*fields, 0)))

    @classmethod
    def read(cls, header: bytes) -> Self | None:
        """What a header says, or None if it is none."""
        if len(header) < _HEADER.size:
            return None
        magic, version, width, values, documents, entries, _ = _HEADER.unpack_from(header)
        layout = cls(width, values, documents)
        fine = magic == _MAGIC and version == _VERSION and width in (2, 4) and values <= MAX_VALUES
        fine = fine and layout.entries == entries >= 0 and layout.header() == header[: _HEADER.size]
        return layout if fine else None


class Near(NamedTuple):
    """Where a context stands in the order of a segment.

    Attributes:
        length: tokens of the longest match.
        low: first entry that matches as long.
        high: end of them.
        first: the first of some entries next to them.
        lengths: i64[k], tokens that each of those matches.
    """

    length: int
    low: int
    high: int
    first: int
    lengths: npt.NDArray[np.int64]


class Segment:
    """A mapped file, read-only. It stays readable when the file is deleted.

    Raises:
        InputError: no segment, or not as long as it says.
        FileNotFoundError: there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            layout = Layout.read(file.read(_HEADER.size))
            if layout is None:
                raise InputError(f"{path.name} is damaged or of another version of Augury; build the index again")
            if size != layout.offsets()[-1]:
                raise InputError(
                    f"{path.name} is damaged: it has {size} bytes and should have {layout.offsets()[-1]}; "
                    "build the index again"
                )
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.layout = layout
        values, starts, sources, order, samples, _ = layout.offsets()
        kind = f"<u{layout.width}"
        self.values: Values = np.frombuffer(mapped, kind, layout.values, values)
        self.starts: Positions = np.frombuffer(mapped, "<u4", layout.documents + 1, starts)
        self.sources: Positions = np.frombuffer(mapped, "<u4", layout.documents, sources)
        self.order: Positions = np.frombuffer(mapped, "<u4", layout.entries, order)
        self.samples: Keys = np.frombuffer(mapped, f"S{DEPTH * layout.width}", layout.samples, samples)

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return self.layout.values - DEPTH - self.layout.documents

    def near(self, context: Values) -> Near | None:
        """The longest match of a context.

        Args:
            context: values[1 to DEPTH], newest first.
        """
        block = int(np.searchsorted(self.samples, key(context, 0), "right")[0])
        # The entries on both sides of the context's place are among these, and one of them matches longest.
        first = max(block - 1, 0) * STRIDE
        lengths = self._agree(first, block * STRIDE + 1, context)
        length = int(lengths.max(initial=0))
        if length == 0:
            return None
        best = (lengths == length).nonzero()[0]
        low, high = first + int(best[0]), first + int(best[-1]) + 1
        if low == first > 0:
            low = self._low(context[:length])
        if high == first + len(lengths) < len(self.order):
            high = self._high(context[:length])
        return Near(length, low, high, first, lengths)

    def ahead(self, places: npt.NDArray[np.int64], count: int) -> Values:
        """Values[k, count]: what follows the positions at some places of the order; END and beyond mean nothing."""
        behind = self.order[places].astype(np.int64)[:, None] + np.arange(1, count + 1)
        found: Values = self.values[np.minimum(behind, len(self.values) - 1)]
        return found

    def check(self) -> str:
        """What is wrong with the contents, in words; empty when nothing is. Reads everything."""
        n, d = self.layout.values, self.layout.documents
        starts = self.starts.astype(np.int64)
        if starts[0] != DEPTH or starts[-1] != n or (np.diff(starts) < 3).any():
            return "documents do not follow each other"
        if self.values[:DEPTH].any() or self.values[starts[1:] - 1].any() or (self.values == END).sum() != DEPTH + d:
            return "documents do not end where they should"
        seen = np.zeros(n, np.bool_)
        last = b""
        for at in range(0, len(self.order), _CHECKED):
            places = self.order[at : at + _CHECKED]
            if int(places.max()) >= n - 1:
                return f"an entry of the order points to {int(places.max())}, behind the last position {n - 2}"
            seen[places] = True
            found = keys(self.values, places)
            if found[0] < last or (found[1:] < found[:-1]).any():
                return "the order is not in order"
            sample = self.samples[-(-at // STRIDE) : -(-(at + len(places)) // STRIDE)]
            if (found[-at % STRIDE :: STRIDE] != sample).any():
                return "the sample is not of this order"
            last = found[-1]
        followed = (self.values[:-1] != END) & (self.values[1:] != END)
        if int(seen.sum()) != len(self.order) or not followed[seen[:-1]].all():
            return "the order leaves positions out"
        return ""

    def _agree(self, first: int, last: int, context: Values) -> npt.NDArray[np.int64]:
        """i64[*]: tokens that a context shares with those at ``first`` to ``last`` of the order."""
        places = self.order[first:last].astype(np.int64)[:, None] - _BACK[: len(context)]
        alike = np.zeros((len(places), len(context) + 1), np.bool_)
        np.equal(self.values[places], context, out=alike[:, :-1])
        found: npt.NDArray[np.int64] = alike.argmin(1)
        return found

    def _low(self, context: Values) -> int:
        """The first entry that begins with a context which some entry begins with."""
        block = int(np.searchsorted(self.samples, key(context, 0), "left")[0])
        first = max(block - 1, 0) * STRIDE
        found = np.flatnonzero(self._agree(first, block * STRIDE, context) == len(context))
        return first + int(found[0]) if len(found) else block * STRIDE

    def _high(self, context: Values) -> int:
        """The end of the entries that begin with a context which some entry begins with."""
        block = int(np.searchsorted(self.samples, key(context, 255), "right")[0])
        first = (block - 1) * STRIDE
        found = np.flatnonzero(self._agree(first, block * STRIDE, context) == len(context))
        return first + int(found[-1]) + 1


def write(
    path: Path,
    layout: Layout,
    values: Iterable[Values],
    starts: Positions,
    sources: Positions,
    ordered: Iterable[tuple[Positions, Keys]],
) -> None:
    """Write a segment, piece by piece, and wait until it is on the disk.

    Args:
        path: of a file that nobody reads yet.
        layout: its sizes, which the pieces must add up to.
        values: pieces of the values.
        starts: u32[d + 1].
        sources: u32[d].
        ordered: pieces of the order, with their keys.
    """
    kind, offsets = f"<u{layout.width}", layout.offsets()
    with path.open("wb") as file:
        file.write(layout.header())
        file.seek(offsets[0])
        for piece in values:
            file.write(np.ascontiguousarray(piece, kind).data)
        for offset, table in ((offsets[1], starts), (offsets[2], sources)):
            file.seek(offset)
            file.write(np.ascontiguousarray(table, "<u4").data)
        done = sampled = 0
        for places, found in ordered:
            file.seek(offsets[3] + 4 * done)
            file.write(np.ascontiguousarray(places, "<u4").data)
            picked = np.ascontiguousarray(found[-done % STRIDE :: STRIDE])
            file.seek(offsets[4] + picked.dtype.itemsize * sampled)
            file.write(picked.view(np.uint8).data)
            done, sampled = done + len(places), sampled + len(picked)
        assert (done, sampled) == (layout.entries, layout.samples)
        file.truncate(offsets[-1])
        file.flush()
        os.fsync(file.fileno())


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
