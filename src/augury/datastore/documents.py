"""From files to texts.

A directory stands for the regular files below it, by name; what begins with a dot is passed over, and links to
directories are not followed. Of a file ``.jsonl`` or ``.ndjson`` every line is a JSON value, and every string in it
at any depth, keys of objects left out, is a document; with ``fields``, only strings that are, or stand below, a value
of a key so named. Any other file is one document of UTF-8 text, or one for every 16 MiB of it.

Left out, and said so: binary files (a NUL byte among the first 8192, or no UTF-8), files above the size limit, files
that cannot be read, lines of JSONL that are no JSON or longer than 16 MiB.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from augury.errors import InputError

PIECE = 1 << 20
"""Bytes of a text that are tokenized at once."""

_PIECES = 16
"""Pieces of a document: of longer texts every 16 MiB are one of their own, so that no file fills the memory."""

_LINES = (".jsonl", ".ndjson")
_LOOKED_AT = 8192
_LONGEST_LINE = 1 << 24


class LeftOut(Exception):
    """A file is not indexed; the text says why."""


@dataclass(frozen=True)
class Reading:
    """How files are read.

    Attributes:
        largest: bytes of the largest file that is read.
        fields: keys of JSONL whose strings are documents; all when empty.
    """

    largest: int = 100_000_000
    fields: Collection[str] = ()

    def digest(self, path: Path) -> tuple[int, str]:
        """Size of a file, and a hash of its contents and of how they are read.

        Raises:
            LeftOut: it cannot be indexed.
        """
        hash = hashlib.sha256(json.dumps([path.suffix, sorted(self.fields)]).encode())
        utf8 = codecs.getincrementaldecoder("utf-8")()
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise LeftOut("no regular file")
            if found.st_size > self.largest:
                raise LeftOut(
                    f"{found.st_size / 1e6:.1f} MB, the limit is {self.largest / 1e6:.1f}; raise it with --max-file-mb"
                )
            with path.open("rb") as file:
                if b"\0" in file.read(_LOOKED_AT):
                    raise LeftOut("binary: it has NUL bytes")
                file.seek(0)
                while piece := file.read(PIECE):
                    hash.update(piece)
                    utf8.decode(piece)
                utf8.decode(b"", final=True)
        except OSError as error:
            raise LeftOut(f"cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise LeftOut("binary, or text that is not UTF-8") from None
        return found.st_size, hash.hexdigest()[:32]

    def documents(self, path: Path, say: Callable[[str], None]) -> Iterator[Iterator[str]]:
        """The texts of a file, each in pieces.

        Args:
            path: of a file that has a digest.
            say: told in words what of it is left out.
        """
        with path.open("rb") as file:
            if path.suffix.lower() not in _LINES:
                pieces = _text(file)
                while document := list(itertools.islice(pieces, _PIECES)):
                    yield iter(document)
                return
            bad: list[int] = []
            for number, line in enumerate(_lines(file), 1):
                try:
                    # JSON can spell half a character, which no tokenizer reads.
                    strings = [s.encode("utf-8", "replace").decode() for s in _strings(json.loads(line), self.fields)]
                except (ValueError, RecursionError):
                    bad.append(number)
                    continue
                for text in strings:
                    yield iter([text[at : at + PIECE] for at in range(0, len(text), PIECE)])
            if bad:
                say(f"{len(bad)} lines are no JSON, the first is line {bad[0]}")


def files(paths: Sequence[Path]) -> list[Path]:
    """All files that some paths stand for, absolute, each once.

    Raises:
        InputError: a path that is not there.
    """
    found: dict[Path, None] = {}
    for path in paths:
        full = Path(os.path.abspath(path))
        if not full.exists():
            raise InputError(f"there is no file or directory {path}")
        found.update(dict.fromkeys(_below(full) if full.is_dir() else [full]))
    return list(found)


def _below(directory: Path) -> Iterator[Path]:
    for here, directories, names in os.walk(directory):
        directories[:] = sorted(d for d in directories if not d.startswith("."))
        for name in sorted(names):
            path = Path(here, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _text(file: BinaryIO) -> Iterator[str]:
    """A text in pieces that end with a line where there is an end of one."""
    utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")  # it was checked, but may have changed since
    rest = ""
    while piece := file.read(PIECE):
        whole, end, rest = (rest + utf8.decode(piece)).rpartition("\n")
        if whole or end:
            yield whole + end
        if len(rest) >= PIECE:
            yield rest
            rest = ""
    if rest := rest + utf8.decode(b"", final=True):
        yield rest


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with anything on them; of one that is too long a beginning, which is no JSON."""
    while line := file.readline(_LONGEST_LINE):
        if not line.endswith(b"\n") and len(line) == _LONGEST_LINE:
            while (more := file.readline(_LONGEST_LINE)) and not more.endswith(b"\n"):
                pass
            line = b"{"
        yield line if line.strip() else b"[]"


def _strings(value: object, fields: Collection[str], within: bool = False) -> Iterator[str]:
    """Strings of a JSON value, in its order."""
    if isinstance(value, str):
        if within or not fields:
            yield value
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one, fields, within)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _strings(one, fields, within or key in fields)
