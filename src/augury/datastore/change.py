"""Building an index and changing it, in bounded memory, one writer at a time.

Tokens are gathered until there are ``_RUN`` of them, sorted and written as a segment; segments are merged until few are
left (``_settled``), for every one of them costs each look-up a search. Then the manifest is replaced, and what it no
longer names is deleted. A change that is interrupted at any point leaves the index as it was, and files that the next
change deletes.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from augury.datastore.documents import LeftOut, Reading
from augury.datastore.index import Index, Manifest, Piece, Source
from augury.datastore.merge import merge
from augury.datastore.order import DEPTH, END, Values, ValueType, as_values, keys, order, value_type
from augury.datastore.segment import MAX_VALUES, Layout, Segment, checksum, write
from augury.datastore.writing import commit, fresh, writing
from augury.errors import InputError
from augury.tree import IntArray

_RUN = 1 << 22
"""Tokens sorted at once, which takes some 300 MB."""

_STEP = 8
"""A segment is left alone by a change that adds less than a ``_STEP``-th of it."""

_MOST = 4
"""Segments, beyond those too large to be merged."""

Progress = Callable[[str, float], None]


class Tokenizer(Protocol):
    """What building needs of a tokenizer."""

    @property
    def hash(self) -> str:
        """Equal for tokenizers whose ids mean the same."""
        ...

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""
        ...

    def encode(self, text: str, special: bool = True) -> IntArray:
        """Ids of a text; ``special``: read control tokens written in it as such."""
        ...


@dataclass
class Outcome:
    """What a change did.

    Attributes:
        added: files indexed, files whose contents were new included.
        unchanged: files that were in the index as they are.
        removed: files taken out.
        left_out: (path, why) of files, or parts of them, not indexed.
        manifest: the index as it is now.
    """

    added: int = 0
    unchanged: int = 0
    removed: int = 0
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    manifest: Manifest | None = None


def build(
    place: Path,
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    model: str,
    reading: Reading | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Make an index of files, in the place of one that may be there.

    Args:
        place: its directory.
        paths: files, as from ``documents.files``.
        tokenizer: of the model it is for.
        model: the name of that.
        reading: how files are read.
        progress: told what is being done and the share of it that is done.

    Raises:
        InputError: nothing to index, a place that is no index, another writer, or a full disk.
    """
    fresh = Manifest(tokenizer.hash, model, tokenizer.vocab_size, 0, {}, ())
    with writing(place, create=True):
        return _change(place, fresh, (), paths, tokenizer, reading or Reading(), progress)


def add(
    place: Path,
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    reading: Reading | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Add files to an index; those that are in it are read again if their contents changed. See ``build``."""
    with writing(place):
        index = Index(place)
        index.check_tokenizer(tokenizer.hash)
        return _change(place, index.manifest, index.segments, paths, tokenizer, reading or Reading(), progress)


def remove(place: Path, paths: Sequence[Path]) -> Outcome:
    """Take files out of an index, by path or by a directory above them; their text is gone from the disk.

    Raises:
        InputError: a path of which nothing is in the index, or as ``build``.
    """
    with writing(place):
        index = Index(place)
        gone: set[int] = set()
        for path in paths:
            full = os.path.abspath(path)
            below = full.rstrip(os.sep) + os.sep
            found = {n for n, s in index.manifest.sources.items() if s.path == full or s.path.startswith(below)}
            if not found:
                known = [s.path for s in index.manifest.sources.values()]
                near = difflib.get_close_matches(full, known, n=1, cutoff=0.5) or known[:1]
                hint = f"; the nearest is {near[0]}" if near else "; it is empty"
                raise InputError(f"nothing at or below {full} is in the index{hint}")
            gone |= found
        kept = {n: s for n, s in index.manifest.sources.items() if n not in gone}
        pieces = _settled(place, index.segments, index.manifest.segments, [], gone, lambda _share: None)
        manifest = replace(index.manifest, sources=kept, segments=pieces)
        commit(place, manifest)
        return Outcome(removed=len(gone), manifest=manifest)


def _change(
    place: Path,
    old: Manifest,
    segments: Sequence[Segment],
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    reading: Reading,
    progress: Progress | None,
) -> Outcome:
    """Read files into new segments, and settle them with those that are there."""
    say = progress or (lambda _what, _share: None)
    outcome = Outcome()
    known = {source.path: number for number, source in old.sources.items()}
    sources, gone = dict(old.sources), set[int]()
    sorter = _Sorter(place, value_type(tokenizer.vocab_size), tokenizer.vocab_size)
    number = old.next_source
    with _encoder(tokenizer) as encode:
        for at, path in enumerate(paths):
            say(f"reading {path.name}", at / len(paths))
            try:
                size, digest = reading.digest(path)
            except LeftOut as why:
                outcome.left_out.append((path, str(why)))
                continue
            before = known.get(str(path))
            if before is not None and sources[before].digest == digest:
                outcome.unchanged += 1
                continue
            parts: list[str] = []
            try:
                documents = encode(reading.documents(path, parts.append))
                counted = [taken for ids in documents if (taken := sorter.add(ids, number))]
            except FileNotFoundError:
                raise InputError(f"{path} was deleted while it was read; start again") from None
            outcome.left_out += [(path, part) for part in parts]
            if not counted:
                outcome.left_out.append((path, "it has less than two tokens"))
                continue
            if before is not None:
                gone.add(before)
                del sources[before]
            sources[number] = Source(str(path), size, digest, len(counted), sum(counted))
            outcome.added += 1
            number += 1
    if not sources:
        first = f"; {outcome.left_out[0][0]}: {outcome.left_out[0][1]}" if outcome.left_out else ""
        raise InputError(f"nothing to index in {len(paths)} files{first}")
    runs = sorter.close()
    pieces = _settled(place, segments, old.segments, runs, gone, lambda share: say("merging", share))
    outcome.manifest = replace(old, next_source=number, sources=sources, segments=pieces)
    commit(place, outcome.manifest)
    return outcome


# ---- tokens ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _encoder(tokenizer: Tokenizer) -> Iterator[Callable[[Iterable[Iterator[str]]], Iterator[IntArray]]]:
    """Turns documents into ids, on all cores, a few pieces ahead."""
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:

        def encode(documents: Iterable[Iterator[str]]) -> Iterator[IntArray]:
            waiting: deque[list[Future[IntArray]]] = deque()
            for document in documents:
                # A control token that stands in a file is text there.
                waiting.append([pool.submit(tokenizer.encode, piece, special=False) for piece in document])
                while len(waiting) > 4 * workers:
                    yield _joined(waiting.popleft())
            while waiting:
                yield _joined(waiting.popleft())

        yield encode


def _joined(pieces: Sequence[Future[IntArray]]) -> IntArray:
    return np.concatenate([np.empty(0, np.int32), *(piece.result() for piece in pieces)])


class _Sorter:
    """Gathers documents and writes a sorted segment whenever there are enough."""

    def __init__(self, place: Path, kind: ValueType, vocab_size: int) -> None:
        self._place, self._kind, self._vocab_size = place, kind, vocab_size
        self._documents: list[Values] = []
        self._sources: list[int] = []
        self._size = 0
        self._runs: list[Path] = []

    def add(self, ids: IntArray, source: int) -> int:
        """Take a document, unless it is too short for anything to follow in it; gives the tokens taken."""
        if len(ids) < 2:
            return 0
        if int(ids.min()) < 0 or int(ids.max()) >= self._vocab_size:
            raise InputError(f"the tokenizer gave id {int(ids.max())}, its vocabulary ends at {self._vocab_size - 1}")
        for at in range(0, len(ids), _RUN):
            piece = ids[at : at + _RUN]
            if len(piece) < 2:
                return at
            self._documents.append(as_values(piece, self._kind))
            self._sources.append(source)
            self._size += len(piece)
            if self._size >= _RUN:
                self._write()
        return len(ids)

    def close(self) -> list[Path]:
        """The files written."""
        if self._documents:
            self._write()
        return self._runs

    def _write(self) -> None:
        sizes = [len(d) + 1 for d in self._documents]
        end = np.array([END], self._kind)
        values = np.concatenate([np.zeros(DEPTH, self._kind), *(v for d in self._documents for v in (d, end))])
        starts = np.cumsum([DEPTH, *sizes]).astype(np.uint32)
        sources = np.array(self._sources, np.uint32)
        self._documents, self._sources, self._size = [], [], 0
        places = order(values)
        layout = Layout(self._kind.itemsize, len(values), len(sources))
        path = fresh(self._place)
        # Keys again by pieces: those that were sorted are not kept.
        pieces = (places[at : at + (1 << 20)] for at in range(0, len(places), 1 << 20))
        write(path, layout, [values], starts, sources, ((p, keys(values, p)) for p in pieces))
        self._runs.append(path)


# ---- segments ----------------------------------------------------------------------------------------------


def _settled(
    place: Path,
    segments: Sequence[Segment],
    pieces: Sequence[Piece],
    runs: Sequence[Path],
    gone: Collection[int],
    say: Callable[[float], None],
) -> list[Piece]:
    """Merge new runs, segments that lose sources, and those hardly larger; gives the pieces of the new manifest.

    Sizes of segments that stay apart fall by ``_STEP`` from one to the next, so their number grows with the logarithm
    of the text, and each token is written again as often.
    """
    lost = np.fromiter(gone, np.uint32, len(gone))
    known = {id(s): p for s, p in zip(segments, pieces, strict=True)}
    moved = [Segment(path) for path in runs]
    moved += [s for s in segments if len(lost) and np.isin(s.sources, lost).any()]
    stays = sorted((s for s in segments if s not in moved), key=lambda s: s.layout.values)
    size = sum(s.layout.values for s in moved)
    while stays and moved and (stays[0].layout.values < _STEP * size or len(stays) >= _MOST):
        if stays[0].layout.values + size > MAX_VALUES:
            break
        moved.append(stays.pop(0))
        size += moved[-1].layout.values
    made: list[Path] = []
    groups = _groups(moved)
    for at, group in enumerate(groups):
        say(at / len(groups))
        path = fresh(place)
        if len(group) == 1 and id(group[0]) not in known:
            made.append(group[0].path)
        elif merge(group, gone, path):
            made.append(path)
    found = [known[id(s)] for s in stays]
    for path in made:
        final = path.with_suffix("")
        path.rename(final)
        found.append(Piece(final.name, final.stat().st_size, checksum(final)))
    return sorted(found, key=lambda p: -p.bytes)


def _groups(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Segments to be merged with each other, as many together as one file may hold."""
    groups: list[list[Segment]] = []
    size = MAX_VALUES + 1
    for segment in segments:
        size += segment.layout.values
        if size > MAX_VALUES:
            groups.append([])
            size = segment.layout.values
        groups[-1].append(segment)
    return groups
