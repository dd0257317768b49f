"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def aside(*paths: Path) -> Iterator[list[Path]]:
    """Fresh files beside others, which they become when all is written; where something fails they are gone.

    Args:
        paths: of files that are there or not; no other file is touched, whatever the names of those beside them.

    Raises:
        OSError: they cannot be made, or cannot become the others.
    """
    parts: list[Path] = []
    try:
        for path in paths:
            part = path.with_name(f".{secrets.token_hex(8)}.part")
            part.touch(exist_ok=False)  # tempfile's are for their owner alone, whatever the umask says
            parts.append(part)
        yield [*parts]
        for part, path in zip([*parts], paths, strict=True):
            os.replace(part, path)
            parts.remove(part)
    finally:
        for part in parts:
            with suppress(OSError):
                part.unlink()
