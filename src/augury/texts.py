"""Text that somebody hands over in a file or on stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from augury.errors import InputError


def utf8(path: Path | None) -> str:
    """The text of a file, or of stdin for None; the end of its last line is not part of it.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    name = "stdin" if path is None else str(path)
    try:
        raw = sys.stdin.buffer.read() if path is None else path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None
    try:
        return raw.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text: byte 0x{raw[error.start]:02x} at {error.start}; convert it first"
        ) from None
