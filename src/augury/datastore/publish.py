"""An index in an object store: one machine pushes it, others pull it, each to a directory of its own.

::

    pieces/SHA256    segments, named by their contents and never changed
    manifest.json    that of the index; written when all pieces are there
    left.json        when files were first found that nobody needs

Who reads the manifest finds its pieces, and who read the one before still finds those for a while. Whatever is
interrupted leaves files that nobody names, here or there, which the next push or pull deletes. Of several who push the
last one's manifest stands.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from augury.datastore.bucket import Bucket, Missing
from augury.datastore.index import LARGEST_MANIFEST, MANIFEST, Index, Manifest, Piece, Source
from augury.datastore.order import value_type
from augury.datastore.segment import Segment, checksum
from augury.datastore.writing import commit, fresh, writing
from augury.errors import InputError

_PIECES, _LEFT = "pieces", "left.json"
_MOST_PIECES = 256
_LARGEST_LEFT = 1 << 24
_ATTEMPTS = 5
_DIGEST = re.compile("[0-9a-f]{64}")

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Moved:
    """What a push or a pull did.

    Attributes:
        manifest: the index as it is there, or here, now.
        pieces: segments that were sent or fetched; the others were there.
        bytes: of them.
        deleted: files deleted from the store.
        changed: whether the index is another than before.
    """

    manifest: Manifest
    pieces: int
    bytes: int
    deleted: int
    changed: bool


def push(place: Path, bucket: Bucket, grace_s: float, progress: Progress | None = None) -> Moved:
    """Make an index the one of a store.

    Args:
        place: its directory.
        bucket: the store.
        grace_s: seconds that pieces stay which the manifest does not name any more.
        progress: told what is being done and the share of it that is done.

    Raises:
        InputError: there is no index, it is damaged, it changes all the time, or the store cannot be written.
    """
    for _ in range(_ATTEMPTS):
        own, say = Index(place).manifest, progress or (lambda _what, _share: None)
        manifest = replace(own, segments=[replace(piece, file=piece.sha256) for piece in own.segments])
        data = manifest.dump()
        try:
            sent = _send(place, own.segments, bucket, say)
            if changed := bucket.read(MANIFEST, LARGEST_MANIFEST) != data:
                bucket.replace(MANIFEST, data)
                # What was there and nobody named, another push may have deleted until now.
                sent += _send(place, own.segments, bucket, say)
        except FileNotFoundError:
            continue  # of a segment: the index was changed since it was opened
        return Moved(manifest, len(sent), sum(p.bytes for p in sent), _clean(bucket, manifest, grace_s), changed)
    raise InputError(f"index {place} is changed all the time; push it when that has ended")


def pull(place: Path, bucket: Bucket, most: int, progress: Progress | None = None) -> Moved:
    """Make the index of a store the one at a place.

    Args:
        place: its directory, made if it is not there.
        bucket: the store.
        most: bytes of all segments that are accepted.
        progress: told what is being done and the share of it that is done.

    Raises:
        InputError: there is none in the store, it is damaged or too large, or the place cannot be written.
    """
    for _ in range(_ATTEMPTS):
        manifest = _published(bucket, most)
        try:
            with writing(place, create=True):
                return _take(place, manifest, bucket, progress or (lambda _what, _share: None))
        except Missing:
            continue  # another manifest was written since, and the grace is over
    raise InputError(f"{bucket.shown} is damaged: it lacks segments that its manifest names; push the index again")


def _send(place: Path, pieces: Sequence[Piece], bucket: Bucket, say: Progress) -> list[Piece]:
    """Send the pieces that are not there, or not whole."""
    sent: list[Piece] = []
    for at, piece in enumerate(pieces):
        name = f"{_PIECES}/{piece.sha256}"
        if bucket.size(name) == piece.bytes:
            continue
        say("pushing", at / len(pieces))
        with (place / piece.file).open("rb") as file:
            if checksum(place / piece.file) != piece.sha256:
                raise InputError(f"index {place} is damaged: the checksum of {piece.file} is wrong; build it again")
            bucket.put(name, file, piece.bytes)
        sent.append(piece)
    return sent


def _clean(bucket: Bucket, manifest: Manifest, grace_s: float) -> int:
    """Delete pieces that have not been named for a while, and what somebody was stopped writing."""
    named = {piece.sha256 for piece in manifest.segments}
    if (there := bucket.read(MANIFEST, LARGEST_MANIFEST)) is not None:  # somebody else may have pushed meanwhile
        named |= {piece.sha256 for piece in Manifest.parse(there, bucket.shown, "push it again").segments}
    now = int(time.time())
    before = _left(bucket.read(_LEFT, _LARGEST_LEFT) or b"{}")
    pieces = [name for name in bucket.sizes(_PIECES) if _DIGEST.fullmatch(name) and name not in named]
    unnamed = [f"{_PIECES}/{name}" for name in pieces] + [name for name in bucket.sizes("") if bucket.part_of(name)]
    left = {name: min(before.get(name, now), now) for name in unnamed}
    over = [name for name, since in left.items() if now - since >= grace_s]
    for name in over:
        bucket.delete(name)
        del left[name]
    if left != before:
        bucket.replace(_LEFT, json.dumps(left).encode())
    return len(over)


def _left(data: bytes) -> dict[str, int]:
    """What is known of files that nobody needs; nothing where the file is damaged, so that the grace begins anew."""
    try:
        found = json.loads(data)
        return {str(name): int(since) for name, since in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _published(bucket: Bucket, most: int) -> Manifest:
    """The manifest of a store, when all it says is within limits."""
    if (data := bucket.read(MANIFEST, LARGEST_MANIFEST)) is None:
        raise InputError(f"there is no index at {bucket.shown}; push one with: augury index push NAME {bucket.shown}")
    manifest = Manifest.parse(data, bucket.shown, "push the index again")
    pieces = manifest.segments
    if len(pieces) > _MOST_PIECES:
        raise InputError(f"the index at {bucket.shown} has {len(pieces)} segments, the limit is {_MOST_PIECES}")
    parts: list[Manifest | Piece | Source] = [manifest, *pieces, *manifest.sources.values()]
    fits = all(map(_typed, parts)) and 0 < manifest.vocab_size < 1 << 31
    if not (fits and all(piece.bytes > 0 and _DIGEST.fullmatch(piece.sha256) for piece in pieces)):
        raise InputError(f"the manifest at {bucket.shown} is none; push the index again")
    if manifest.size > most:
        raise InputError(
            f"the index at {bucket.shown} has {manifest.size / 1e9:.2f} GB, the limit is {most / 1e9:.2f}; "
            "raise it with --max-gb"
        )
    return manifest


def _typed(part: Manifest | Piece | Source) -> bool:
    """Whether the numbers and texts of a part are such: its checksum says only that nothing was changed by accident."""
    told = {field.name: field.type for field in fields(part) if field.type in ("int", "str")}
    return all(type(getattr(part, name)).__name__ == kind for name, kind in told.items())


def _take(place: Path, manifest: Manifest, bucket: Bucket, say: Progress) -> Moved:
    """Fetch what is not here, and make the manifest that of the place, whose only writer we are."""
    before = _here(place)
    known = _known(place, before)
    missing = [piece for piece in manifest.segments if piece.sha256 not in known]
    size, free = sum(piece.bytes for piece in missing), shutil.disk_usage(place).free
    if size > free:
        short = f"it takes {size / 1e9:.2f} GB more, and {free / 1e9:.2f} are free"
        raise InputError(f"cannot write index {place}: {short}")
    for at, piece in enumerate(missing):
        say("pulling", at / len(missing))
        path = fresh(place)
        bucket.fetch(f"{_PIECES}/{piece.sha256}", path, piece.bytes, piece.sha256)
        segment = Segment(path)
        if segment.values.dtype != value_type(manifest.vocab_size):
            raise InputError(f"the index at {bucket.shown} is damaged: it has a segment of another vocabulary")
        final = path.with_suffix("")  # the name is drawn here: none that the store gives is used
        path.rename(final)
        known[piece.sha256] = Piece(final.name, piece.bytes, piece.sha256)
    found = replace(manifest, segments=[known[piece.sha256] for piece in manifest.segments])
    if changed := before != found:
        commit(place, found)
    return Moved(found, len(missing), size, 0, changed)


def _here(place: Path) -> Manifest | None:
    """The manifest of a place, if there is a sound one."""
    try:
        return Manifest.read(place)
    except InputError:
        return None


def _known(place: Path, manifest: Manifest | None) -> dict[str, Piece]:
    """Pieces of a place by what they hold, as far as they are there with their sizes."""
    found: dict[str, Piece] = {}
    for piece in manifest.segments if manifest else ():
        path = place / Path(piece.file).name
        if path.is_file() and path.stat().st_size == piece.bytes:
            found[piece.sha256] = piece
    return found
