"""An index on disk as its readers see it: where it lies, what it says of itself, and what followed a context.

A directory with a manifest and the segments it names. The manifest is replaced by renaming; segments are written
before and deleted after, so whoever opens an index gets one state of it or another, and keeps it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from augury.datastore.order import DEPTH, END, Values, as_values, value_type
from augury.datastore.segment import Near, Segment, checksum
from augury.errors import InputError
from augury.tree import IntArray

MANIFEST = "manifest.json"
DEFAULT = "default"

NOTHING = -1
"""Behind the end of a document."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FORMAT = 1
LARGEST_MANIFEST = 1 << 28  # bytes; 100 of them a source make 2.6 million sources
_SEAL = 65  # bytes: the SHA-256 at its end
_ATTEMPTS = 5


@dataclass(frozen=True)
class Source:
    """A file that was indexed.

    Attributes:
        path: absolute.
        bytes: its size.
        digest: of its contents and of how they were read.
        documents: texts found in it.
        tokens: of all of them.
    """

    path: str
    bytes: int
    digest: str
    documents: int
    tokens: int


@dataclass(frozen=True)
class Piece:
    """A segment of an index.

    Attributes:
        file: its name in the index's directory.
        bytes: its size.
        sha256: of the file, in hex.
    """

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What an index says of itself.

    Attributes:
        tokenizer: hash of the tokenizer whose ids it holds.
        model: the model the tokenizer was taken from.
        vocab_size: V.
        next_source: number of the next source.
        sources: by number.
        segments: largest first.
    """

    tokenizer: str
    model: str
    vocab_size: int
    next_source: int
    sources: Mapping[int, Source]
    segments: Sequence[Piece]

    @property
    def tokens(self) -> int:
        """Tokens of all sources."""
        return sum(s.tokens for s in self.sources.values())

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(p.bytes for p in self.segments)

    def dump(self) -> bytes:
        """The file: one line of JSON, and its SHA-256."""
        line = json.dumps({"format": _FORMAT, **asdict(self)}).encode()
        return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"

    @classmethod
    def read(cls, place: Path) -> Self:
        """Of the index at a place.

        Raises:
            InputError: there is none, or it is damaged.
        """
        file = place / MANIFEST
        try:
            size = file.stat().st_size
            if size > LARGEST_MANIFEST:
                raise InputError(f"the manifest of index {place} has {size} bytes, the limit is {LARGEST_MANIFEST}")
            data = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(_missing(place)) from None
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror}") from None
        return cls.parse(data, f"index {place}", "build the index again")

    @classmethod
    def parse(cls, data: bytes, whose: str, remedy: str) -> Self:
        """What the bytes of one say.

        Args:
            data: as from ``dump``.
            whose: what they belong to, as a message names it.
            remedy: what a message advises.

        Raises:
            InputError: they are damaged, or of another version.
        """
        line, _, sum = data.partition(b"\n")
        if sum.strip() != hashlib.sha256(line).hexdigest().encode():
            raise InputError(f"the manifest of {whose} is damaged: its checksum is wrong; {remedy}")
        # The checksum holds, so this is what some Augury wrote, unless somebody else made it up.
        try:
            found: dict[str, Any] = json.loads(line)
            if found.pop("format") != _FORMAT:
                raise InputError(f"{whose} is of another version of Augury; {remedy}")
            found["sources"] = {int(number): Source(**fields) for number, fields in found["sources"].items()}
            found["segments"] = [Piece(**fields) for fields in found["segments"]]
            return cls(**found)
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InputError(f"the manifest of {whose} is none; {remedy}") from None


def seal(place: Path) -> bytes:
    """The end of the manifest at a place, which is another for every state of the index; empty where there is none.

    The file is opened and read: of a mere ``stat`` a network file system may give what it knew a minute ago.
    """
    try:
        with (place / MANIFEST).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return os.pread(file.fileno(), _SEAL, max(size - _SEAL, 0))
    except OSError:
        return b""


def home() -> Path:
    """Where indexes with a name lie."""
    data = os.environ.get("XDG_DATA_HOME", "")
    return (Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share") / "augury" / "index"


def locate(index: str) -> Path:
    """The directory of an index, given by name or, with a ``/`` in it, by path.

    Raises:
        InputError: neither.
    """
    if "/" in index or os.sep in index:
        return Path(os.path.abspath(os.path.expanduser(index)))
    if not _NAME.fullmatch(index):
        raise InputError(
            f"{index!r} is no name of an index: letters, digits and . _ - only, 64 at most; "
            "a path has a / in it, as in ./mine"
        )
    return home() / index


def names() -> list[str]:
    """Names of the indexes of this user."""
    try:
        return sorted(p.name for p in home().iterdir() if (p / MANIFEST).is_file())
    except OSError:
        return []


def _missing(place: Path) -> str:
    if place.parent != home():
        return f"there is no index at {place}; make one with: augury index build FILE... --index {place}"
    known = names()
    near = difflib.get_close_matches(place.name, known, n=1, cutoff=0.5)
    have = f"did you mean {near[0]!r}? " if near else ""
    have += f"Valid: {', '.join(known)}, or a path with a / in it" if known else "there is none yet"
    return f"there is no index {place.name!r}; {have}; make one with: augury index build FILE... --index {place.name}"


class Followed(NamedTuple):
    """What followed a context in the index.

    Attributes:
        lengths: tokens each occurrence shares with the context; those that share the most come first.
        ahead: i32[k, far], token ids behind each, with ``NOTHING`` where its document ends; what stands behind that
            has nothing to do with it.
        whole: whether these are all that share the most.
    """

    lengths: list[int]
    ahead: IntArray
    whole: bool


class Index:
    """An index that is open for reading.

    Args:
        place: its directory.

    Raises:
        InputError: there is none, or it is damaged.
    """

    def __init__(self, place: Path) -> None:
        for attempt in range(_ATTEMPTS):
            self.manifest = Manifest.read(place)
            try:
                self.segments = [self._open(place, piece) for piece in self.manifest.segments]
                break
            except FileNotFoundError as gone:
                # Replaced between the two reads, unless it stays so.
                if attempt == _ATTEMPTS - 1:
                    missing = Path(str(gone.filename)).name
                    raise InputError(f"index {place} is damaged: {missing} is missing; build it again") from None
        self.place = place

    def _open(self, place: Path, piece: Piece) -> Segment:
        if Path(piece.file).name != piece.file:
            raise InputError(f"index {place} is damaged: segment {piece.file!r} is no file of it; build it again")
        try:
            segment = Segment(place / piece.file)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise InputError(f"cannot read {place / piece.file}: {error.strerror}") from None
        fits = segment.layout.offsets()[-1] == piece.bytes
        if not fits or segment.values.dtype != value_type(self.manifest.vocab_size):
            raise InputError(f"index {place} is damaged: {piece.file} is not the segment it names; build it again")
        return segment

    def check_tokenizer(self, hash: str) -> None:
        """Refuse another tokenizer than the index was built with.

        Raises:
            InputError: it is another.
        """
        if hash != self.manifest.tokenizer:
            raise InputError(
                f"index {self.place} holds tokens of {self.manifest.model} (tokenizer {self.manifest.tokenizer[:12]}), "
                f"and the tokenizer here is {hash[:12]}; build one for this model with: augury index build --model"
            )

    def followed(self, context: Sequence[int], count: int, shortest: int, far: int) -> Followed:
        """What followed the longest match of a context, and shorter ones that lie next to it in the order.

        Args:
            context: token ids, the newest last; the last ``DEPTH`` are looked at.
            count: occurrences at most; of more they are spread evenly over all.
            shortest: tokens an occurrence must share, at least 1.
            far: tokens behind each occurrence at most.
        """
        met: list[tuple[Segment, Near]] = []
        asked = context[: -DEPTH - 1 : -1]
        if len(asked) >= shortest and min(asked) >= 0 and max(asked) < self.manifest.vocab_size:
            newest_first = as_values(np.asarray(asked), value_type(self.manifest.vocab_size))
            for segment in self.segments:
                near = segment.near(newest_first)
                if near is not None and near.length >= shortest:
                    met.append((segment, near))
        longest = max([near.length for _, near in met], default=0)
        best = [(segment, near) for segment, near in met if near.length == longest]
        total = sum([near.high - near.low for _, near in best])
        # Of all that match longest, in all segments one behind the other, every (total / taken)-th.
        taken = min(total, count)
        wanted = (np.arange(taken) * total + total // 2) // max(taken, 1)
        lengths = [longest] * taken
        ahead: list[Values] = []
        for segment, near in best:
            size = near.high - near.low
            here = wanted if size == total else wanted[(wanted >= 0) & (wanted < size)]
            ahead.append(segment.ahead(near.low + here, far))
            wanted = wanted - size
        for segment, near in met if taken < count else ():
            beside = np.flatnonzero((near.lengths >= shortest) & (near.lengths < longest))
            beside = beside[np.argsort(-near.lengths[beside], kind="stable")][: count - len(lengths)]
            ahead.append(segment.ahead(near.first + beside, far))
            lengths += near.lengths[beside].tolist()
        rows = np.concatenate(ahead).astype(np.int32) if ahead else np.empty((0, far), np.int32)
        return Followed(lengths, rows + (NOTHING - END), total <= count)

    def check(self) -> list[str]:
        """What is wrong with the files, in words. Reads everything."""
        wrong: list[str] = []
        for segment, piece in zip(self.segments, self.manifest.segments, strict=True):
            if checksum(segment.path) != piece.sha256:
                wrong.append(f"{piece.file}: its checksum is wrong")
            elif found := segment.check():
                wrong.append(f"{piece.file}: {found}")
        return wrong
