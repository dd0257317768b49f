"""What each drafter brought, told by the process that guesses to the one that serves: a few counters in a shared file.

The file has one page and is named by the instance and the engine; it lies in a folder that only its user can enter, and
only its user can read it. Numbers are all it holds, and all that is read of it. The writer locks it for its lifetime,
so that files which nobody writes any more are told apart, whoever left them; the next writer deletes them. Of several
processes that serve for one engine one reports: it locks the file in another way, and what it has reported stands there
too, so that another one goes on where it ends.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np
import numpy.typing as npt

from augury.errors import ModelError

Numbers = npt.NDArray[np.uint64]

PLACES = 64
"""Drafters that there is room for."""

_MARK = 0x31796775726175  # of files of this kind, with the number of their layout
_BYTES = 8 * (1 + 4 * PLACES)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def folder() -> Path:
    """Where the files lie; made if it is not there.

    Raises:
        ModelError: something else has its name, or others can enter it.
        OSError: it cannot be made.
    """
    path = Path(tempfile.gettempdir()) / f"augury-vllm-{os.getuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ModelError(f"{path} is not a folder of this user's alone; delete it, or set TMPDIR to another place")
    return path


def named(instance: str, engine: int) -> Path:
    """The file of one engine of an instance.

    Raises:
        ModelError: the instance's name cannot be one of a file, or see ``folder``.
        OSError: see ``folder``.
    """
    if not _NAME.fullmatch(instance):
        raise ModelError(f"instance_id {instance!r} cannot name a file")
    return folder() / f"{instance}-{engine}"


class _Page:
    """The counters, u64[PLACES] each."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _BYTES)
        whole: Numbers = np.frombuffer(self._map, np.uint64)
        self.mark = whole[:1]
        self.drafted, self.accepted, self.told_drafted, self.told_accepted = whole[1:].reshape(4, PLACES)


class Counts:
    """What the proposer counts. The file is deleted when its process ends, when nobody holds this, or with ``close``.

    Args:
        path: see ``named``.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        with _alone(path.parent):
            for other in path.parent.iterdir():
                _delete_if_left(other)
            with suppress(FileNotFoundError):
                path.unlink()
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Written, not only sized: on a full disk the first touch of the mapping would end this process.
                if os.write(self._descriptor, bytes(_BYTES)) < _BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                os.close(self._descriptor)
                path.unlink()
                raise
        self._page = _Page(self._descriptor)
        self._page.mark[0] = _MARK
        # Not atexit, which a process that was forked leaves out. It acts once, and in the process that made it alone.
        self._end = Finalize(self, _ended, (path, self._descriptor), exitpriority=0)

    def add(self, drafter: int, drafted: int, accepted: int) -> None:
        """Count what a step brought of the guesses of a drafter, by its place."""
        self._page.drafted[drafter] += np.uint64(drafted)
        self._page.accepted[drafter] += np.uint64(accepted)

    def close(self) -> None:
        """Delete the file; only the process that made it does."""
        self._end()


class Told:
    """What was counted and not reported yet, to one reader at a time.

    Args:
        path: see ``named``.

    Raises:
        FileNotFoundError: nobody counts there, or not yet.
        ModelError: it is another kind of file.
    """

    def __init__(self, path: Path) -> None:
        # Read from here on by its descriptor: what is renamed into its place later is another file.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_size != _BYTES:
            os.close(self._descriptor)
            raise ModelError(f"{path} holds no counts of this user's")
        self._page = _Page(self._descriptor)
        self._mine = False
        # Its writer may be killed before it can do so. Whoever reads beside this one has opened it too.
        Finalize(None, path.unlink, kwargs={"missing_ok": True}, exitpriority=0)

    def take(self) -> tuple[list[int], list[int]] | None:
        """Draft tokens and accepted ones of each drafter since the last call; None where another process reports."""
        if not self._mine:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return None
            self._mine = True
        page = self._page
        if int(page.mark[0]) != _MARK:
            return None
        # Accepted ones first: what is counted in between must not make more of them than were drafted.
        accepted = page.accepted - page.told_accepted
        drafted = page.drafted - page.told_drafted
        page.told_accepted += accepted
        page.told_drafted += drafted
        return drafted.tolist(), accepted.tolist()

    def close(self) -> None:
        """Let another process report."""
        os.close(self._descriptor)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """No other process makes or deletes files here in the meantime."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _ended(path: Path, descriptor: int) -> None:
    """Delete a file that its writer has no more use for."""
    with suppress(OSError):
        path.unlink()
    os.close(descriptor)


def _delete_if_left(path: Path) -> None:
    """Delete a file that its writer left behind."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)
