"""Several segments become one, some sources left out, without sorting anything again.

Values and documents are copied one segment behind the other. The orders are merged as sorted lists are: of each the
next entries are read, and all up to the smallest last key among them can be put in order and written. Leaving out
whole documents changes no context of the others, so the entries that stay are in order as they stand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from augury.datastore.order import DEPTH, Keys, Positions, Values, keys
from augury.datastore.segment import Layout, Segment, write

_TOGETHER = 1 << 20
"""Entries of all orders held at once: 100 to 200 MB with their keys and what sorting them takes."""

_COPIED = 1 << 22  # values copied at once


class _Part:
    """A segment on its way into another: what stays of it, where it goes, and how far its order is read."""

    def __init__(self, segment: Segment, dropped: Collection[int], begin: int) -> None:
        self._segment = segment
        self._starts = segment.starts.astype(np.int64)
        self._stays = ~np.isin(segment.sources, np.fromiter(dropped, np.uint32, len(dropped)))
        self._whole = bool(self._stays.all())
        sizes = np.where(self._stays, np.diff(self._starts), 0)
        news = begin + np.concatenate([[0], np.cumsum(sizes)])
        self._shift = news[:-1] - self._starts[:-1]
        self.end = int(news[-1])
        self.starts: Positions = news[:-1][self._stays].astype(np.uint32)
        self.sources: Positions = segment.sources[self._stays]
        self._read = 0
        self._places: Positions = np.empty(0, np.uint32)  # of positions as they will be
        self.keys: Keys = np.empty(0, segment.samples.dtype)

    def values(self) -> Iterator[Values]:
        """The values of the documents that stay, each with its END."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self._stays, [False]]).astype(np.int8)))
        for first, last in edges.reshape(-1, 2).tolist():
            for at in range(int(self._starts[first]), int(self._starts[last]), _COPIED):
                yield self._segment.values[at : min(at + _COPIED, int(self._starts[last]))]

    @property
    def exhausted(self) -> bool:
        """Whether the whole order has been read."""
        return self._read >= len(self._segment.order)

    def fill(self, count: int) -> None:
        """Read on until ``count`` entries are at hand or there are no more."""
        while len(self._places) < count and not self.exhausted:
            # By a read, not the mapping: what is gone through once must not stay resident.
            places = self._next(count)
            found = keys(self._segment.values, places)
            if self._whole:
                moved = places + self._shift[0]
            else:
                document = np.searchsorted(self._starts, places, "right") - 1
                stay = self._stays[document]
                moved, found = (places + self._shift[document])[stay], found[stay]
            self._places = np.concatenate([self._places, moved.astype(np.uint32)])
            self.keys = np.concatenate([self.keys, found])

    def _next(self, count: int) -> Positions:
        offset = self._segment.layout.offsets()[3] + 4 * self._read
        size = min(count, len(self._segment.order) - self._read)
        self._read += size
        return np.fromfile(self._segment.path, "<u4", size, offset=offset)

    def take(self, frontier: bytes | None) -> tuple[Positions, Keys]:
        """The entries at hand up to a key, or all."""
        size = len(self.keys)
        if frontier is not None:
            size = int(np.searchsorted(self.keys, np.array([frontier], self.keys.dtype), "right")[0])
        taken = self._places[:size], self.keys[:size]
        self._places, self.keys = self._places[size:], self.keys[size:]
        return taken


def merge(segments: Sequence[Segment], dropped: Collection[int], path: Path) -> bool:
    """Write one segment of the documents of several.

    Args:
        segments: at least one, all of one width.
        dropped: numbers of sources to leave out.
        path: of the new file.

    Returns:
        Whether anything was left to write.
    """
    parts: list[_Part] = []
    begin = DEPTH
    for segment in segments:
        parts.append(_Part(segment, dropped, begin))
        begin = parts[-1].end
    starts = np.concatenate([*(p.starts for p in parts), [begin]]).astype(np.uint32)
    if len(starts) == 1:
        return False
    layout = Layout(segments[0].layout.width, begin, len(starts) - 1)
    sources = np.concatenate([p.sources for p in parts])
    write(path, layout, _values(parts, segments[0].values.dtype), starts, sources, _ordered(parts))
    return True


def _values(parts: Sequence[_Part], kind: npt.DTypeLike) -> Iterator[Values]:
    yield np.zeros(DEPTH, kind)
    for part in parts:
        yield from part.values()


def _ordered(parts: Sequence[_Part]) -> Iterator[tuple[Positions, Keys]]:
    each = -(-_TOGETHER // len(parts))
    while True:
        for part in parts:
            part.fill(each)
        # Behind the last key at hand of an order there may be others equal to it, but none smaller.
        frontier = min((part.keys[-1] for part in parts if not part.exhausted), default=None)
        taken = [part.take(frontier) for part in parts]
        places = np.concatenate([t[0] for t in taken])
        found = np.concatenate([t[1] for t in taken])
        if len(places):
            # Stable sorting of numpy is a merge of the sorted runs it finds.
            ranks = np.argsort(found, kind="stable")
            yield places[ranks], found[ranks]
        if frontier is None:
            return
