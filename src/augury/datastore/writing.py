"""The files of an index as whoever changes it sees them: one writer at a time, and nothing that is half done.

Segments are written under names that no manifest has yet; then the manifest is replaced, and what it no longer names is
deleted. Whoever is stopped at any point leaves the index as it was, and files that the next writer deletes.
"""

from __future__ import annotations

import contextlib
import fcntl
import secrets
from collections.abc import Iterator
from pathlib import Path

from augury.datastore.index import MANIFEST, Manifest
from augury.durable import replacing
from augury.errors import InputError

_LOCK = "lock"
_SEGMENT = ".segment"
_NEW = ".new"


@contextlib.contextmanager
def writing(place: Path, create: bool = False) -> Iterator[None]:
    """Be the only writer of an index, and leave nothing behind that its manifest does not name.

    Args:
        place: its directory.
        create: whether it is made where there is none.

    Raises:
        InputError: another writer, a directory of other files, or a disk that cannot be written.
    """
    if not create and not (place / MANIFEST).is_file():
        Manifest.read(place)  # says what is missing
    try:
        if place.is_dir() and not (place / _LOCK).exists() and any(place.iterdir()):
            raise InputError(f"{place} is a directory of other files; give an index a directory of its own")
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (place / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"index {place} is being changed by another process; wait until it ends") from None
            _sweep(place)
            try:
                yield
            finally:
                _sweep(place)
    except OSError as error:
        raise InputError(f"cannot write index {place}: {error.strerror or error}") from None


def fresh(place: Path) -> Path:
    """A segment that no manifest names yet; without the last suffix it is one that a manifest may name."""
    return place / f"{secrets.token_hex(8)}{_SEGMENT}{_NEW}"


def commit(place: Path, manifest: Manifest) -> None:
    """Make a manifest the index's own, at once or not at all; the segments' names are on the disk before it."""
    with replacing(place / MANIFEST, _NEW) as beside:
        beside.write_bytes(manifest.dump())


def _sweep(place: Path) -> None:
    """Delete what an interrupted change, or the last one, left behind."""
    named: set[str] = set()
    if (place / MANIFEST).is_file():
        try:
            named = {piece.file for piece in Manifest.read(place).segments}
        except InputError:
            return  # damaged: what belongs to it is not known, and a build will replace it
    for path in place.iterdir():
        if path.name.endswith(_NEW) or (path.suffix == _SEGMENT and path.name not in named):
            path.unlink()
