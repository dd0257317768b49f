"""A directory of remembered answers: whose it is, who may change it now, and who was forgotten in it.

Each tenant has a *mark*, which tells where there are no files of it whether it was forgotten: one of 256 in the lock's
file, by its first digits, each of which is drawn anew when a tenant that has it is forgotten. Who was forgotten cannot
be read from them.

A directory that is exchanged with others (``exchange.py``) has a list besides, of who was forgotten and must be
elsewhere; a name leaves it when that has been carried there. A mark of elsewhere that is of a clock far ahead stands in
it by its name, with what it is taken for.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from augury.datastore.records import HEADER_BYTES, Header, Unfit
from augury.durable import replacing
from augury.errors import InputError

YOUNG, OLD = ".young", ".old"

LOCK = "augury-memory.lock"
"""By this name a directory of answers is known."""

BESIDE = "augury-memory.new"
"""Written to while something is replaced; whoever is stopped may leave it behind."""

EVERYONE = "everyone"
"""Stands in the list of who was forgotten for all tenants."""

NAME = re.compile("([0-9a-f]{32})-[0-9a-f]{16}")
"""Of a tenant and a tokenizer; other files are none of ours."""

SKEW_S = 60
"""Seconds by which clocks of replicas may differ: what was learnt up to as long behind a forgetting falls under it."""

_FORGOTTEN = "augury-memory.forgotten"
_LINE = re.compile(f"((?:[0-9a-f]{{32}}|{EVERYONE})(?:-[0-9a-f]{{8}})?) ([0-9]{{1,10}})")
_MARKS, _MARK = 256, 8  # marks, and bytes of each


def adopt(place: Path) -> None:
    """Make a directory of answers, if it is not there.

    Raises:
        InputError: the place is no directory of answers, or one that others can change.
        OSError: it cannot be made.
    """
    if not _adopted(place):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.chmod(0o700)  # it may have been there, empty
        os.close(_lock(place)[0])  # the first file, by which others know the directory


def check(place: Path) -> None:
    """Refuse a place where there is no directory of answers.

    Raises:
        InputError: there is none, or it is one that others can change.
    """
    if not _adopted(place):
        raise InputError(f"there are no remembered answers at {place}; --drafters memory:DIRECTORY keeps them")


@contextmanager
def locked(place: Path, wait_s: float) -> Iterator[None]:
    """Be the only one, of all processes, who changes the files of a directory; who may only read shares it.

    Raises:
        BlockingIOError: another process has held it for ``wait_s`` seconds.
        OSError: it cannot be locked.
    """
    file, kind = _lock(place)
    try:
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise BlockingIOError(errno.EAGAIN, "another process has locked it", str(place)) from None
                time.sleep(0.002)
        yield
    finally:
        os.close(file)


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A file of a directory, made for its owner alone where ``flags`` make it.

    Raises:
        Unfit: it is no regular file.
        OSError: it cannot be opened; it may be a link.
    """
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)  # no pipe is waited for
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Unfit(f"{path.name} is no regular file")
        yield file
    finally:
        os.close(file)


def write(path: Path, data: bytes) -> None:
    """A file of some bytes, made for its owner alone."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file, os.fdopen(os.dup(file), "wb") as whole:
        whole.write(data)


def header(file: int, path: Path) -> Header:
    """The header of an open file, which must be of the tenant and the tokenizer that its name says.

    Raises:
        Unfit: it is none, or another's.
        FileNotFoundError: the file is empty.
    """
    data = os.pread(file, HEADER_BYTES, 0)
    if not data:
        raise FileNotFoundError(path.name)  # whoever made it was stopped before the first write
    found = Header.unpack(data, path.name)
    tenant, _, tokenizer = path.stem.partition("-")
    if found.tokenizer != tokenizer:
        raise Unfit(f"{path.name} holds tokens of another tokenizer")
    if found.tenant != tenant:
        raise Unfit(f"{path.name} holds answers of another tenant")
    return found


def mark(place: Path, tenant: str) -> bytes:
    """The mark of a tenant; zeros before anybody who has it was forgotten, nothing when all files were deleted."""
    with suppress(FileNotFoundError), opened(place / LOCK, os.O_RDONLY) as file:
        return os.pread(file, _MARK, _MARK * int(tenant[:2], 16)).ljust(_MARK, b"\0")
    return b""


def forgetful(place: Path) -> bool:
    """Whether anybody was forgotten in a directory, ever; who it was is not told."""
    with suppress(FileNotFoundError), opened(place / LOCK, os.O_RDONLY) as file:
        return any(os.pread(file, _MARK * _MARKS, 0))
    return False


def used(place: Path) -> dict[str, float]:
    """What every name of the directory was last used at."""
    found: dict[str, float] = {}
    for path in place.iterdir():
        if path.suffix in (YOUNG, OLD) and NAME.fullmatch(path.stem):
            found[path.stem] = max(path.lstat().st_mtime, found.get(path.stem, 0.0))
    return found


def delete(place: Path, stem: str) -> int:
    """Delete the files of a name; gives their bytes."""
    size = 0
    for suffix in (YOUNG, OLD):
        path = place / f"{stem}{suffix}"
        with suppress(FileNotFoundError):
            size += path.lstat().st_size
            path.unlink()
    return size


def forget(place: Path, tenant: str | None) -> int:
    """Delete what is kept of a tenant, or of all, and draw marks anew; the directory is locked. Gives the bytes."""
    stems = [stem for stem in used(place) if tenant is None or stem.partition("-")[0] == tenant]
    freed = sum([delete(place, stem) for stem in stems])  # first: on a full disk it makes room
    (place / BESIDE).unlink(missing_ok=True)
    first, count = (0, _MARKS) if tenant is None else (int(tenant[:2], 16), 1)
    with opened(place / LOCK, os.O_WRONLY) as file:
        os.pwrite(file, secrets.token_bytes(_MARK * count), _MARK * first)
    return freed


# ---- who was forgotten, where answers are exchanged ------------------------------------------------------------


def exchanged(place: Path) -> None:
    """From now on it is listed who is forgotten; the directory is locked."""
    with opened(place / _FORGOTTEN, os.O_RDONLY | os.O_CREAT):
        pass


def forgotten(place: Path) -> dict[str, int] | None:
    """Until when what was learnt is forgotten, by tenant, ``EVERYONE``, or mark; None where nothing is exchanged."""
    try:
        with opened(place / _FORGOTTEN, os.O_RDONLY) as file:
            lines = os.read(file, 1 << 26).decode("ascii", "replace").split("\n")
    except FileNotFoundError:
        return None
    found: dict[str, int] = {}
    for line in lines:
        if fits := _LINE.fullmatch(line):
            found[fits[1]] = max(int(fits[2]), found.get(fits[1], 0))
    return found


def list_forgotten(place: Path, names: dict[str, int]) -> None:
    """Replace the list; the directory is locked."""
    text = "".join(f"{name} {until}\n" for name, until in sorted(names.items()))
    with replacing(place / _FORGOTTEN) as beside:
        write(beside, text.encode())


# ---- whose it is -----------------------------------------------------------------------------------------------


def _adopted(place: Path) -> bool:
    """Whether a place is a directory of answers already; raises for one that may not become it."""
    try:
        names, status = os.listdir(place), place.stat()
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise InputError(f"{place} is no directory; remembered answers need one of their own") from None
    if names and LOCK not in names:
        raise InputError(f"{place} is a directory of other files; remembered answers need one of their own")
    if status.st_uid != os.getuid():
        raise InputError(f"{place} is another user's; remembered answers need a directory of yours")
    if names and status.st_mode & 0o022:
        raise InputError(f"others can write to {place}; remembered answers need a directory that only you can write to")
    return bool(names)


def _lock(place: Path) -> tuple[int, int]:
    """The lock of a directory, opened, and made if it is not there; and how it can be locked."""
    path, flags = place / LOCK, os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600), fcntl.LOCK_EX
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        # Enough for reading; over NFS only a file that is open for writing can be locked exclusively.
        return os.open(path, os.O_RDONLY | flags), fcntl.LOCK_SH
