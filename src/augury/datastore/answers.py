"""Answers on disk, for a memory that outlives the process: appended to, one writer at a time, and deleted whole.

A directory with two files for each tenant and tokenizer, named by digests of both. ``NAME.young`` is appended to; when
it is full it becomes ``NAME.old``, in the place of the one before::

    header    96 bytes: magic, version, lineage, tenant, tokenizer, CRC-32 of all that
    record    u32 n, u32 CRC-32 of n and the tokens, i32[n]: as often as there are

All numbers are little-endian. The *lineage* is drawn when a tenant's first file is made: it tells a process that
remembers the tenant whether another one has deleted the files since, or deleted them and begun anew. Where there are
no files the tenant's *mark* tells that: one of 256 in the lock's file, by its first digits, each of which is drawn anew
when a tenant that has it is forgotten. Who was forgotten cannot be read from them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from augury.errors import AuguryError, InputError
from augury.tree import IntArray

YOUNG, OLD = ".young", ".old"

_MAGIC, _VERSION = b"AUGURYME", 1
_HEADER = struct.Struct("<8sI16s32s32s")
_SUM = struct.Struct("<I")
_RECORD = struct.Struct("<II")
_LOCK = "augury-memory.lock"
"""By this name a directory of answers is known."""

_MARKS, _MARK = 256, 8  # marks, and bytes of each

_LARGEST = 1 << 30
"""Bytes of a file that are read: what nobody here writes is not taken into memory."""

_NAME = re.compile("[0-9a-f]{32}-[0-9a-f]{16}")
"""Of a tenant and a tokenizer; other files are none of ours."""

_BRIEFLY_S = 0.05
"""Another process holds the lock for milliseconds; one that holds it longer does not keep an answer waiting."""

_PATIENTLY_S = 2.0
"""For somebody who lists or deletes."""


class Unfit(AuguryError):
    """A file is not what its name says; says why."""


@dataclass(frozen=True)
class Kept:
    """What is kept of a tenant.

    Attributes:
        lineage: of its files, or its mark where there are none.
        old: records i32[n] of the older file, the oldest first.
        young: of the younger one.
        notes: what was wrong with the files, in words.
    """

    lineage: bytes
    old: list[IntArray]
    young: list[IntArray]
    notes: list[str]


@dataclass(frozen=True)
class Entry:
    """A tenant of a directory, for one tokenizer, as a list shows it.

    Attributes:
        tenant: its digest.
        answers: that are kept.
        tokens: of them, with what is kept of their prompts.
        bytes: of both files.
        used: when the tenant asked last, in seconds since 1970.
        notes: what is wrong with the files, in words.
    """

    tenant: str
    answers: int
    tokens: int
    bytes: int
    used: float
    notes: list[str]


class Answers:
    """The answers of one tokenizer in a directory, which is made if it is not there.

    Methods raise ``OSError`` where the directory cannot be read or written, ``BlockingIOError`` where another process
    has locked it, and ``Unfit``.

    State: of each of at most ``tenants`` tenants where its younger file ends.

    Args:
        place: the directory.
        tokenizer: hash of the tokenizer.
        most: bytes of a file.
        tenants: tenants kept, of all tokenizers; of more, those used longest ago are deleted.
        note: told what was wrong with a file that was written to.

    Raises:
        InputError: the place is no directory of answers, or one that others can change.
        OSError: it cannot be made.
    """

    def __init__(self, place: Path, tokenizer: str, most: int, tenants: int, note: Callable[[str], None]) -> None:
        if not _adopted(place):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.chmod(0o700)  # it may have been there, empty
            os.close(_lock(place))  # the first file, by which others know the directory
        self._place, self._most, self._tenants, self._note = place, most, tenants, note
        self._ends: dict[str, int] = {}  # of younger files, behind the last record read or written, by last use
        self._tokenizer = hashlib.sha256(tokenizer.encode()).hexdigest()[:32].encode()

    def lineage(self, tenant: str) -> bytes | None:
        """Lineage of a tenant's files, which are used herewith; None when there are none."""
        for suffix in (YOUNG, OLD):  # in this order: a file that is renamed meanwhile is found as the other
            path = self._path(tenant, suffix)
            with suppress(FileNotFoundError), _opened(path, os.O_RDONLY) as file:
                lineage = self._lineage(tenant, file, path.name)
                with suppress(OSError):  # where nothing can be written
                    os.utime(file)
                return lineage
        return None

    def holds(self, tenant: str, lineage: bytes) -> bool:
        """Whether nothing of a tenant was deleted since ``lineage`` was read; its files are used herewith."""
        return lineage in (self.lineage(tenant), _mark(self._place, tenant))

    def read(self, tenant: str) -> Kept:
        """What is kept of a tenant. What is damaged is cut off, from the first damaged record on."""
        with _locked(self._place, _BRIEFLY_S):
            lineage = self.lineage(tenant) or _mark(self._place, tenant)
            kept = Kept(lineage, [], [], [])
            for suffix, records in ((OLD, kept.old), (YOUNG, kept.young)):
                path = self._path(tenant, suffix)
                try:
                    with _opened(path, os.O_RDONLY) as file:
                        if self._lineage(tenant, file, path.name) != lineage:
                            raise Unfit(f"{path.name} is older than what was forgotten")
                        found, end, size = _records(file)
                except FileNotFoundError:
                    continue
                except Unfit as why:
                    kept.notes.append(f"{why}; it is not read")
                    continue
                records += found
                if end < size:
                    kept.notes.append(_cut(path, end, size))
                    with suppress(OSError):  # where nothing can be written
                        os.truncate(path, end)
                if suffix == YOUNG:
                    self._ends_at(path, end)
            return kept

    def add(self, tenant: str, lineage: bytes | None, record: IntArray) -> bytes | None:
        """Append a record i32[n], behind the last sound one.

        Args:
            tenant: whose it is.
            lineage: as ``read`` gave it, or ``add``; None is that of whatever is there.
            record: at least one token.

        Returns:
            The lineage of the files, or None: the tenant was forgotten since, and nothing was written.
        """
        tokens = record.astype("<i4").tobytes()
        count = _SUM.pack(len(record))
        data = count + _SUM.pack(zlib.crc32(tokens, zlib.crc32(count))) + tokens
        young, notes = self._path(tenant, YOUNG), list[str]()
        with _locked(self._place, _BRIEFLY_S):
            there = self.lineage(tenant)
            if lineage not in (None, there, _mark(self._place, tenant)):
                return None
            lineage = there or secrets.token_bytes(16)
            size = self._sound(young, notes)
            if size + len(data) > self._most and size:
                young.replace(self._path(tenant, OLD))
                size = 0
            if not size:
                self._make_room(young.stem)
                fields = _HEADER.pack(_MAGIC, _VERSION, lineage, tenant.encode(), self._tokenizer)
                data = fields + _SUM.pack(zlib.crc32(fields)) + data
            _append(young, data)
            self._ends_at(young, size + len(data))
        for text in notes:  # the lock is not held until they are written
            self._note(text)
        return lineage

    def forget(self, tenant: str) -> int:
        """Delete what is kept of a tenant, for every tokenizer; gives the bytes."""
        return forget(self._place, tenant)

    def _path(self, tenant: str, suffix: str) -> Path:
        return self._place / f"{tenant}-{self._tokenizer[:16].decode()}{suffix}"

    def _lineage(self, tenant: str, file: int, name: str) -> bytes:
        """The lineage that a file's header says, if it is a header of this tenant and tokenizer."""
        lineage, of_tenant, of_tokenizer = _header(file, name)
        if of_tokenizer != self._tokenizer:
            raise Unfit(f"{name} holds tokens of another tokenizer")
        if of_tenant != tenant.encode():
            raise Unfit(f"{name} holds answers of another tenant")
        return lineage

    def _sound(self, young: Path, notes: list[str]) -> int:
        """Cut off what another process left when it was stopped in the middle of a record; gives the size."""
        try:
            with _opened(young, os.O_RDWR) as file:
                end = size = os.fstat(file).st_size
                if size and size != self._ends.get(young.name):
                    _header(file, young.name)
                    _, end, size = _records(file)
                    if end < size:
                        os.ftruncate(file, end)
                        notes.append(_cut(young, end, size))
                return end
        except FileNotFoundError:
            return 0

    def _ends_at(self, young: Path, end: int) -> None:
        """Remember where a file ends, so that it is read again only when another process wrote to it."""
        self._ends.pop(young.name, None)
        self._ends[young.name] = end
        if len(self._ends) > self._tenants:
            del self._ends[next(iter(self._ends))]

    def _make_room(self, stem: str) -> None:
        """Delete the tenants used longest ago, so that one more, of this name, is not too many."""
        used = {other: at for other, at in _used(self._place).items() if other != stem}
        for other in sorted(used, key=used.__getitem__)[: max(len(used) + 1 - self._tenants, 0)]:
            _delete(self._place, other)


def entries(place: Path) -> list[Entry]:
    """The tenants of a directory, the one used last first.

    Raises:
        InputError: there is no such directory, or it is one that others can change.
        OSError: it cannot be read.
    """
    _check(place)
    with _locked(place, _PATIENTLY_S):
        used = sorted(_used(place).items(), key=lambda item: -item[1])
    return [entry for stem, at in used if (entry := _entry(place, stem, at))]


def forget(place: Path, tenant: str | None) -> int:
    """Delete what a directory keeps of a tenant, or of all; gives the bytes.

    Raises:
        InputError: there is no such directory, or it is one that others can change.
        OSError: it cannot be read or written.
    """
    _check(place)
    with _locked(place, _PATIENTLY_S):
        stems = [stem for stem in _used(place) if tenant is None or stem.partition("-")[0] == tenant]
        freed = sum([_delete(place, stem) for stem in stems])  # first: on a full disk it makes room
        first, count = (0, _MARKS) if tenant is None else (_place_of(tenant), 1)
        with _opened(place / _LOCK, os.O_WRONLY) as file:
            os.pwrite(file, secrets.token_bytes(_MARK * count), _MARK * first)
        return freed


# ---- files -------------------------------------------------------------------------------------------------


def _entry(place: Path, stem: str, used: float) -> Entry | None:
    """What the files of a name hold, or None when they are gone. Who writes waits while they are read, not longer."""
    answers = tokens = size = 0
    notes = []
    with _locked(place, _PATIENTLY_S):
        for suffix in (OLD, YOUNG):
            path = place / f"{stem}{suffix}"
            try:
                with _opened(path, os.O_RDONLY) as file:
                    size += os.fstat(file).st_size
                    _header(file, path.name)
                    records, end, whole = _records(file)
            except FileNotFoundError:
                continue
            except Unfit as why:
                notes.append(str(why))
                continue
            answers += len(records)
            tokens += sum(map(len, records))
            notes += [f"{path.name} is damaged behind byte {end} of {whole}"] * (end < whole)
    return Entry(stem.partition("-")[0], answers, tokens, size, used, notes) if size else None


def _adopted(place: Path) -> bool:
    """Whether a place is a directory of answers already; raises for one that may not become it."""
    try:
        names, status = os.listdir(place), place.stat()
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise InputError(f"{place} is no directory; remembered answers need one of their own") from None
    if names and _LOCK not in names:
        raise InputError(f"{place} is a directory of other files; remembered answers need one of their own")
    if status.st_uid != os.getuid():
        raise InputError(f"{place} is another user's; remembered answers need a directory of yours")
    if names and status.st_mode & 0o022:
        raise InputError(f"others can write to {place}; remembered answers need a directory that only you can write to")
    return bool(names)


def _check(place: Path) -> None:
    if not _adopted(place):
        raise InputError(f"there are no remembered answers at {place}; --drafters memory:DIRECTORY keeps them")


def _place_of(tenant: str) -> int:
    return int(tenant[:2], 16)


def _mark(place: Path, tenant: str) -> bytes:
    """The mark of a tenant; zeros before anybody who has it was forgotten, nothing when all files were deleted."""
    with suppress(FileNotFoundError), _opened(place / _LOCK, os.O_RDONLY) as file:
        return os.pread(file, _MARK, _MARK * _place_of(tenant)).ljust(_MARK, b"\0")
    return b""


def _lock(place: Path) -> int:
    """The lock of a directory, opened, and made if it is not there."""
    path, flags = place / _LOCK, os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        return os.open(path, os.O_RDONLY | flags)  # enough for reading


@contextmanager
def _locked(place: Path, wait_s: float) -> Iterator[None]:
    """Be the only one, of all processes, who reads or changes the files of a directory."""
    file = _lock(place)
    try:
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise BlockingIOError(errno.EAGAIN, "another process has locked it", str(place)) from None
                time.sleep(0.002)
        yield
    finally:
        os.close(file)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)  # no pipe is waited for
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Unfit(f"{path.name} is no regular file")
        yield file
    finally:
        os.close(file)


def _append(path: Path, data: bytes) -> None:
    """Append all of some bytes, or nothing."""
    with _opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
        before = os.fstat(file).st_size
        try:
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, before)
            raise


def _header(file: int, name: str) -> tuple[bytes, bytes, bytes]:
    """Lineage, tenant and tokenizer of a file, which is read up to behind them."""
    data = os.read(file, _HEADER.size + _SUM.size)
    if not data:
        raise FileNotFoundError(name)  # whoever made it was stopped before the first write
    fields, sum = data[: _HEADER.size], data[_HEADER.size :]
    if len(sum) < _SUM.size:
        raise Unfit(f"{name} is damaged: it has no whole header")
    magic, version, lineage, tenant, tokenizer = _HEADER.unpack(fields)
    if magic != _MAGIC or version != _VERSION:
        raise Unfit(f"{name} is of another version of Augury, or no file of it")
    if sum != _SUM.pack(zlib.crc32(fields)):
        raise Unfit(f"{name} is damaged: the checksum of its header is wrong")
    return lineage, tenant, tokenizer


def _records(file: int) -> tuple[list[IntArray], int, int]:
    """The records behind the header, where the last good one ends, and the size of the file."""
    begin = os.lseek(file, 0, os.SEEK_CUR)
    with os.fdopen(os.dup(file), "rb") as rest:
        data = rest.read(_LARGEST)
    records, at = [], 0
    while at + _RECORD.size <= len(data):
        count, sum = _RECORD.unpack_from(data, at)
        tokens = data[at + _RECORD.size : at + _RECORD.size + 4 * count]
        if not count or len(tokens) < 4 * count or zlib.crc32(tokens, zlib.crc32(data[at : at + _SUM.size])) != sum:
            break
        found = np.frombuffer(tokens, "<i4").astype(np.int32)
        if found.min() < 0 or found.max() == np.iinfo(np.int32).max:
            break
        records.append(found)
        at += _RECORD.size + 4 * count
    return records, begin + at, begin + len(data)


def _cut(path: Path, end: int, size: int) -> str:
    return f"{path.name} is damaged: its last {size - end} of {size} bytes are cut off"


def _used(place: Path) -> dict[str, float]:
    """What every name of the directory was last used at."""
    used: dict[str, float] = {}
    for path in place.iterdir():
        if path.suffix in (YOUNG, OLD) and _NAME.fullmatch(path.stem):
            used[path.stem] = max(path.lstat().st_mtime, used.get(path.stem, 0.0))
    return used


def _delete(place: Path, stem: str) -> int:
    """Delete the files of a name; gives their bytes."""
    size = 0
    for suffix in (YOUNG, OLD):
        path = place / f"{stem}{suffix}"
        with suppress(FileNotFoundError):
            size += path.lstat().st_size
            path.unlink()
    return size
