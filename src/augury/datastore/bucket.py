"""A place in an object store, or whatever else ``fsspec`` reaches: files that are written whole, by name.

What an object store guarantees is used and no more: an object is there whole or not at all. Where files are written in
place instead, a file of its own name is written first and renamed. Lists may be old; nothing here relies on them but
what says so.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit, urlunsplit

from augury.errors import AuguryError, InputError, MissingPackage, UnknownName, first_line

_PART = re.compile("(.+)[.][0-9a-f]{8}[.]part")
_USUAL = ("s3", "gs", "abfs", "hdfs", "sftp", "https", "file")
_BLOCK = 1 << 22
_MOST_NAMES = 200_000
"""Of a folder: a longer list is not gone through."""


class Missing(Exception):
    """There is no such file."""


class TooLarge(InputError):
    """A file has more bytes than are read of it."""


class Bucket:
    """A directory of a file system that an address names, as in ``s3://bucket/folder`` or ``file:///shared/folder``.

    Methods raise ``InputError`` when the other side does not do what was asked.

    Args:
        url: the address.

    Raises:
        InputError: it is no address, or of a protocol that nobody knows.
        MissingPackage: ``fsspec``, or the package of the protocol.
    """

    def __init__(self, url: str) -> None:
        protocol, _, rest = url.partition("://")
        if not rest or "::" in url or not protocol.isalnum():
            raise InputError(
                f"{_shown(url)!r} is no address of an object store; give one as in s3://bucket/folder, gs://, abfs://, "
                "or file:///directory"
            )
        if protocol in ("file", "local") and not rest.startswith(("/", "~")):
            raise InputError(
                f"{_shown(url)!r} is another place for each program that is started elsewhere; give one from the root "
                f"on, as in {protocol}:///directory"
            )
        try:
            fsspec = importlib.import_module("fsspec")
        except ImportError:
            raise MissingPackage("an object store", "fsspec", "pip install 'augury[store]'") from None
        self._url, self.shown = url, _shown(url).rstrip("/")
        try:
            self._files, root = fsspec.url_to_fs(url)
        except ImportError as error:
            missing = getattr(error.__cause__, "name", None) or protocol
            raise MissingPackage(f"{protocol}://", missing, f"pip install {missing}") from None
        except Exception as error:
            if protocol not in fsspec.available_protocols():
                raise UnknownName("protocol", protocol, _USUAL, "And what else fsspec knows") from None
            raise self._failed("open", "", error) from None
        self._root = str(root).rstrip("/")

    def read(self, name: str, most: int) -> bytes | None:
        """A small file whole; None where there is none.

        Raises:
            TooLarge: it has more than ``most`` bytes.
        """
        with self._trying("read", name):
            try:
                with self._reading(name) as file:
                    data = _all(file, most + 1)
            except Missing:
                return None
        if len(data) > most:
            raise TooLarge(f"{self.shown}/{name} has more than the {most} bytes that are read of such a file")
        return data

    def fetch(self, name: str, into: Path, size: int, sha256: str) -> None:
        """Write a file to the disk, which must be of a size and have a digest.

        Raises:
            Missing: there is none.
            InputError: it is another.
        """
        digest, got = hashlib.sha256(), 0
        with into.open("wb") as out:
            with self._trying("read", name), self._reading(name) as file:
                while got <= size and (piece := file.read(_BLOCK)):
                    got += len(piece)
                    digest.update(piece)
                    out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        if got != size:
            more = "more" if got > size else f"only {got}"
            raise InputError(f"{self.shown}/{name} is damaged: it has {more} of {size} bytes; push it again")
        if digest.hexdigest() != sha256:
            # A push goes by sizes, and would leave it as it is.
            raise InputError(f"{self.shown}/{name} is damaged: its checksum is wrong; delete it there and push again")

    def put(self, name: str, file: BinaryIO, size: int) -> None:
        """Write a file that nobody reads yet; who is stopped leaves none, or a shorter one."""
        self._make_folder(name)
        with self._trying("write", name):
            try:
                with self._files.open(self._path(name), "wb") as out:
                    while piece := file.read(_BLOCK):
                        out.write(piece)
            except BaseException:
                with suppress(Exception):
                    self._files.rm_file(self._path(name))  # closing it may have left what there was of it
                raise
        if (there := self.size(name)) != size:
            raise InputError(f"cannot write {self.shown}/{name}: of {size} bytes {there or 0} have arrived")

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file that others read: they find it whole, or what was there before."""
        self._make_folder(name)
        for last in (False, False, True):
            beside = f"{name}.{os.urandom(4).hex()}.part"  # as ``part_of`` reads it
            with self._trying("write", name):
                try:
                    with self._files.open(self._path(beside), "wb") as out:
                        out.write(data)
                    if self._files.info(self._path(beside))["size"] != len(data):
                        raise OSError("it did not arrive whole")
                    self._files.mv(self._path(beside), self._path(name))
                    return
                except BaseException as error:
                    with suppress(Exception):
                        self._files.rm_file(self._path(beside))
                    # Who tidies up at the same time may have taken it for one that was left behind.
                    if last or not isinstance(error, FileNotFoundError):
                        raise

    @staticmethod
    def part_of(name: str) -> str:
        """The file that one by this name was to replace, if it is one that somebody was stopped writing; else empty."""
        fits = _PART.fullmatch(name)
        return fits[1] if fits else ""

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        with self._trying("read", name):
            self._files.invalidate_cache()
            try:
                return int(self._files.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of the files of a folder, by name, as a list that may be old says it."""
        with self._trying("list", folder):
            self._files.invalidate_cache()
            try:
                listed: list[dict[str, Any]] = self._files.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
            if len(listed) > _MOST_NAMES:
                raise InputError(f"{self.shown}/{folder} has {len(listed)} files, the limit is {_MOST_NAMES}")
            files = [entry for entry in listed if entry.get("type") == "file"]
            return {str(entry["name"]).rsplit("/", 1)[-1]: int(entry["size"] or 0) for entry in files}

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with self._trying("delete", name), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _reading(self, name: str) -> Iterator[BinaryIO]:
        try:
            opened = self._files.open(self._path(name), "rb")
        except FileNotFoundError:
            raise Missing from None
        with opened as file:
            yield file

    def _make_folder(self, name: str) -> None:
        """Make what a file stands in, where there is such a thing.

        Object stores, whose paths do not begin with a slash, have no folders, and would make a bucket of a slip.
        """
        if self._root.startswith("/"):
            with self._trying("write", name):
                self._files.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)

    @contextmanager
    def _trying(self, what: str, name: str) -> Iterator[None]:
        """Say in one line what did not go; the packages behind ``fsspec`` raise errors of all kinds."""
        try:
            yield
        except (AuguryError, Missing):
            raise
        except Exception as error:
            raise self._failed(what, name, error) from None

    def _failed(self, what: str, name: str, error: Exception) -> InputError:
        said = first_line(error)
        parts = urlsplit(self._url)
        for secret in (parts.netloc.rpartition("@")[0], parts.query):
            said = said.replace(secret, "...") if secret else said
        return InputError(f"cannot {what} {self.shown}/{name}: {said}")


def _shown(url: str) -> str:
    """An address without what may be secret in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "..."
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _all(file: BinaryIO, most: int) -> bytes:
    """What a file has, ``most`` bytes at most."""
    pieces = list[bytes]()
    while most > 0 and (piece := file.read(min(most, _BLOCK))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)
