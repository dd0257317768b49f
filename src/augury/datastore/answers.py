"""Answers on disk, for a memory that outlives the process: appended to, one writer at a time, and deleted whole.

A directory (``directory.py``) with two files of ``records.py`` for each tenant and tokenizer, named by digests of both.
``NAME.young`` is appended to; when it is full it becomes ``NAME.old``, in the place of the one before.

Several processes may share it. The *lineage* is drawn when a tenant's first file is made: it tells a process that
remembers the tenant whether another one has deleted the files since, or deleted them and begun anew. How far a process
has read is told by the last record it has seen, so what others appended behind it is all that it reads.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from augury.datastore import directory
from augury.datastore.directory import OLD, YOUNG, locked, opened, used
from augury.datastore.records import HEAD, HEADER_BYTES, Header, Record, Unfit, unpack
from augury.tree import IntArray

_LARGEST = 1 << 30
"""Bytes of a file that are read: what nobody here writes is not taken into memory."""

_BRIEFLY_S = 0.05
"""Another process holds the lock for milliseconds; one that holds it longer does not keep an answer waiting."""

_PATIENTLY_S = 2.0
"""For somebody who lists or deletes."""


class News(Enum):
    """What became of a tenant's files since they were read."""

    NONE = "nothing"
    MORE = "something was added"
    FORGOTTEN = "they were deleted"


@dataclass(frozen=True)
class Reach:
    """How far a tenant's files were read.

    Attributes:
        lineage: of the files, or the tenant's mark where there were none.
        at: where the last record that was read begins in its file; 0 when none was.
        head: the first bytes of it; empty when none was.
    """

    lineage: bytes
    at: int = 0
    head: bytes = b""

    @property
    def end(self) -> int:
        """Where what was read ends."""
        return self.at + HEAD.size + 4 * HEAD.unpack(self.head)[0] if self.head else 0

    def within(self, file: int) -> bool:
        """Whether the last record that was read stands in a file where it did."""
        whole = bool(self.head) and os.fstat(file).st_size >= self.end
        return whole and os.pread(file, HEAD.size, self.at) == self.head


@dataclass(frozen=True)
class Kept:
    """What is kept of a tenant, or of it what was not read before.

    Attributes:
        reach: how far it is read herewith.
        old: records i32[n] of the older file, the oldest first.
        young: of the younger one.
        whole: whether this is all that is kept, so that what was read before is no longer part of it.
        notes: what was wrong with the files, in words.
    """

    reach: Reach
    old: list[IntArray]
    young: list[IntArray]
    whole: bool
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


@dataclass(frozen=True)
class Contents:
    """What the files of a name hold.

    Attributes:
        header: of the younger one that has a sound header.
        records: of both, the oldest first, as far as they are sound.
        unfit: why a file is not read, in words.
        damaged: where one is not read to its end, in words.
    """

    header: Header | None
    records: list[Record]
    unfit: list[str]
    damaged: list[str]


class Answers:
    """The answers of one tokenizer in a directory, which is made if it is not there.

    Methods raise ``OSError`` where the directory cannot be read or written, ``BlockingIOError`` where another process
    has locked it, and ``Unfit``.

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
        directory.adopt(place)
        self._place, self._most, self._tenants, self._note = place, most, tenants, note
        self._tokenizer = hashlib.sha256(tokenizer.encode()).hexdigest()[:16]

    def news(self, tenant: str, reach: Reach) -> News:
        """What became of a tenant's files, which are used herewith, since they were read up to ``reach``.

        The lock is not needed: what another process is just writing may be told now or the next time.
        """
        for suffix in (YOUNG, OLD):  # in this order: a file that is renamed meanwhile is found as the other
            path = self._path(tenant, suffix)
            with suppress(FileNotFoundError), opened(path, os.O_RDONLY) as file:
                lineage = directory.header(file, path).lineage
                _use(file)
                if lineage != reach.lineage:
                    return News.MORE if self._unforgotten(tenant, reach) else News.FORGOTTEN
                read = reach.within(file) and os.fstat(file).st_size == reach.end
                return News.NONE if read else News.MORE
        return News.NONE if self._unforgotten(tenant, reach) else News.FORGOTTEN

    def read(self, tenant: str, reach: Reach | None = None) -> Kept | None:
        """What is kept of a tenant. What is damaged is cut off, from the first damaged record on.

        Args:
            tenant: whose it is.
            reach: up to which it was read before; None when it was not.

        Returns:
            What stands behind ``reach``; all, where that is too long ago; None: the tenant was forgotten since.
        """
        with locked(self._place, _BRIEFLY_S):
            there = self._header(tenant)
            lineage = there.lineage if there else directory.mark(self._place, tenant)
            if reach and reach.lineage != lineage and not self._unforgotten(tenant, reach):
                return None
            since = self._since(tenant, reach) if reach else None
            found, notes = dict[str, list[Record]](), list[str]()
            now = Reach(lineage)
            if reach and since:
                now = Reach(lineage, reach.at, reach.head)
            for suffix in (YOUNG,) if since == YOUNG else (OLD, YOUNG):
                path = self._path(tenant, suffix)
                try:
                    with opened(path, os.O_RDONLY) as file:
                        if directory.header(file, path).lineage != lineage:
                            raise Unfit(f"{path.name} is older than what was forgotten")
                        begin = reach.end if reach and suffix == since else HEADER_BYTES
                        found[suffix], end, size = _records(file, begin)
                except FileNotFoundError:
                    continue
                except Unfit as why:
                    notes.append(f"{why}; it is not read")
                    continue
                if end < size:
                    notes.append(_cut(path, end, size))
                    with suppress(OSError):  # where nothing can be written
                        os.truncate(path, end)
                if found[suffix]:
                    last = found[suffix][-1]
                    now = Reach(lineage, end - last.size, last.pack()[: HEAD.size])
            old, young = ([record.tokens for record in found.get(suffix, ())] for suffix in (OLD, YOUNG))
            return Kept(now, old, young, bool(reach and reach.head and not since), notes)

    def add(self, tenant: str, reach: Reach | None, record: IntArray) -> Reach | None:
        """Append a record i32[n], behind the last sound one.

        Args:
            tenant: whose it is.
            reach: as ``read`` gave it, or ``add``; with None whatever is there is added to.
            record: at least one token.

        Returns:
            How far the files are read now, which is up to this record unless another process has added some before it;
            or None: the tenant was forgotten since, and nothing was written.
        """
        now = int(time.time())
        added, notes = Record(now, record), list[str]()
        young, data = self._path(tenant, YOUNG), added.pack()
        with locked(self._place, _BRIEFLY_S):
            there = self._header(tenant)
            if reach and not (there and there.lineage == reach.lineage) and not self._unforgotten(tenant, reach):
                return None
            kept = there or Header(secrets.token_bytes(16), tenant, self._tokenizer, now)
            size, read = self._sound(young, there, reach, notes)
            if size + len(data) > self._most and size:
                young.replace(self._path(tenant, OLD))
                size = 0
            if not size:
                make_room(self._place, young.stem, self._tenants)
                data = kept.pack() + data
            append(young, data)
            at = size or HEADER_BYTES
        for text in notes:  # the lock is not held until they are written
            self._note(text)
        if read:
            return Reach(kept.lineage, at, added.pack()[: HEAD.size])
        return Reach(kept.lineage, reach.at, reach.head) if reach else Reach(kept.lineage)

    def forget(self, tenant: str) -> int:
        """Delete what is kept of a tenant, for every tokenizer; gives the bytes."""
        return forget(self._place, tenant)

    def _path(self, tenant: str, suffix: str) -> Path:
        return self._place / f"{tenant}-{self._tokenizer}{suffix}"

    def _header(self, tenant: str) -> Header | None:
        """Of a tenant's files, which are used herewith; None when there are none."""
        for suffix in (YOUNG, OLD):
            path = self._path(tenant, suffix)
            with suppress(FileNotFoundError), opened(path, os.O_RDONLY) as file:
                found = directory.header(file, path)
                _use(file)
                return found
        return None

    def _unforgotten(self, tenant: str, reach: Reach) -> bool:
        """Whether a tenant of whom nothing was kept was not forgotten since."""
        return reach.lineage == directory.mark(self._place, tenant)

    def _since(self, tenant: str, reach: Reach) -> str | None:
        """The file in which the last record that was read stands."""
        for suffix in (YOUNG, OLD):
            with suppress(FileNotFoundError, Unfit), opened(self._path(tenant, suffix), os.O_RDONLY) as file:
                if reach.within(file):
                    return suffix
        return None

    def _sound(self, young: Path, there: Header | None, reach: Reach | None, notes: list[str]) -> tuple[int, bool]:
        """Cut off what another process left when it was stopped in the middle of a record.

        Returns:
            The size of the younger file, and whether all of the tenant's was read before.
        """
        try:
            with opened(young, os.O_RDWR) as file:
                size = os.fstat(file).st_size
                within = bool(reach and reach.within(file))
                if not size or (reach and within and size == reach.end):
                    return size, within or not there
                directory.header(file, young)
                found, end, size = _records(file, reach.end if reach and within else HEADER_BYTES)
                if end < size:
                    os.ftruncate(file, end)
                    notes.append(_cut(young, end, size))
                return end, within and not found
        except FileNotFoundError:
            return 0, not there


def entries(place: Path) -> list[Entry]:
    """The tenants of a directory, the one used last first.

    Raises:
        InputError: there is no such directory, or it is one that others can change.
        OSError: it cannot be read.
    """
    directory.check(place)
    with locked(place, _PATIENTLY_S):
        found = sorted(used(place).items(), key=lambda item: -item[1])
    return [entry for stem, at in found if (entry := _entry(place, stem, at))]


def forget(place: Path, tenant: str | None) -> int:
    """Delete what a directory keeps of a tenant, or of all; gives the bytes.

    Raises:
        InputError: there is no such directory, or it is one that others can change.
        OSError: it cannot be read or written.
    """
    directory.check(place)
    with locked(place, _PATIENTLY_S):
        if (names := directory.forgotten(place)) is None:
            return directory.forget(place, tenant)
        own = {tenant or directory.EVERYONE: int(time.time()) + directory.SKEW_S}
        names = names | own if tenant else own
        try:
            directory.list_forgotten(place, names)  # first: who is stopped in between has forgotten elsewhere too
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            freed = directory.forget(place, tenant)  # which makes room
            directory.list_forgotten(place, names)
            return freed
        return directory.forget(place, tenant)


def make_room(place: Path, stem: str, tenants: int) -> None:
    """Delete the tenants used longest ago, so that one more, of this name, is not too many; the directory is locked."""
    others = {other: at for other, at in used(place).items() if other != stem}
    for other in sorted(others, key=others.__getitem__)[: max(len(others) + 1 - tenants, 0)]:
        directory.delete(place, other)


def append(path: Path, data: bytes) -> None:
    """Append all of some bytes, or nothing; the directory is locked."""
    with opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
        before = os.fstat(file).st_size
        try:
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, before)
            raise


def contents(place: Path, stem: str) -> Contents:
    """What the files of a name hold; the directory is locked."""
    found = Contents(None, [], [], [])
    for suffix in (OLD, YOUNG):
        path = place / f"{stem}{suffix}"
        try:
            with opened(path, os.O_RDONLY) as file:
                header = directory.header(file, path)
                records, end, size = _records(file, HEADER_BYTES)
        except FileNotFoundError:
            continue
        except Unfit as why:
            found.unfit.append(str(why))
            continue
        damage = [f"{path.name} is damaged behind byte {end} of {size}"] * (end < size)
        found = Contents(header, found.records + records, found.unfit, found.damaged + damage)
    return found


# ---- files -----------------------------------------------------------------------------------------------------


def _entry(place: Path, stem: str, at: float) -> Entry | None:
    """What the files of a name hold, or None when they are gone. Who writes waits while they are read, not longer."""
    size = 0
    with locked(place, _PATIENTLY_S):
        for suffix in (OLD, YOUNG):
            with suppress(FileNotFoundError, Unfit), opened(place / f"{stem}{suffix}", os.O_RDONLY) as file:
                size += os.fstat(file).st_size
        found = contents(place, stem)
    tokens = sum(len(record.tokens) for record in found.records)
    notes = found.unfit + found.damaged
    return Entry(stem.partition("-")[0], len(found.records), tokens, size, at, notes) if size else None


def _records(file: int, begin: int) -> tuple[list[Record], int, int]:
    """The records from a place of a file on, where the last sound one ends, and the size of the file."""
    with os.fdopen(os.dup(file), "rb") as rest:
        rest.seek(begin)
        data = rest.read(_LARGEST)
    records, end = unpack(data)
    return records, begin + end, begin + len(data)


def _use(file: int) -> None:
    """Let a file be one that was used now."""
    with suppress(OSError):  # where nothing can be written
        os.utime(file)


def _cut(path: Path, end: int, size: int) -> str:
    return f"{path.name} is damaged: its last {size - end} of {size} bytes are cut off"
