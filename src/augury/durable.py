"""What is written survives a loss of power, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def sync(path: Path) -> None:
    """Onto the disk: what a file holds, or the names in a directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path, suffix: str = ".new") -> Iterator[Path]:
    """A path beside another, to write a file to, which takes the other's place at once when the block ends.

    What else was written into the directory before is on the disk when it does. Where something fails the file beside
    is deleted and the other one as it was.

    Args:
        path: of a file that is there or not.
        suffix: of the file beside; one for each writer, where there may be several at a time.

    Raises:
        OSError: it cannot be written, or cannot take the place.
    """
    beside = path.with_name(path.name + suffix)
    try:
        yield beside
        sync(beside)
        sync(path.parent)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    sync(path.parent)
