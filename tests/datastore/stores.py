"""Object stores for tests: one in memory that can be told to fail, to give less than it has, and to list what was."""

from __future__ import annotations

from typing import ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from augury.errors import InputError


class Flaky(MemoryFileSystem):
    """Files in memory, of this class alone.

    Attributes:
        fails_after: bytes that can still be written or read; None: as many as there are.
        cut: bytes that every file lacks at its end when it is read.
        stale: what a folder's list says, by its end, instead of what it has.
        gone: names that cannot be opened, though they are listed.
        opened: names, in order, of files that were opened for reading.
        written: names, in order, of files that were opened for writing.
    """

    protocol = "flaky"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    cachable = False
    fails_after = None
    cut = 0
    stale: ClassVar[dict] = {}
    gone: ClassVar[set] = set()
    opened: ClassVar[list] = []
    written: ClassVar[list] = []

    @classmethod
    def reset(cls):
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.calm()

    @classmethod
    def calm(cls):
        cls.fails_after, cls.cut, cls.stale, cls.gone, cls.opened, cls.written = None, 0, {}, set(), [], []

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://"))

    def _open(self, path, mode="rb", **more):
        name = path.rpartition("/")[2]
        reading = "r" in mode
        (Flaky.opened if reading else Flaky.written).append(name)
        if reading and name in Flaky.gone:
            raise FileNotFoundError(path)
        file = super()._open(path, mode=mode, **more)
        return _Failing(file, len(file.getvalue()) - Flaky.cut if reading else None)

    def ls(self, path, detail=True, **more):
        for end, listed in Flaky.stale.items():
            if path.endswith(end):
                return listed
        return super().ls(path, detail=detail, **more)


class _Failing:
    """A file that breaks off."""

    def __init__(self, file, size):
        self._file, self._size = file, size

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._size is None:
            self._file.close()  # as fsspec's own files do: what has been written is there, whatever happened

    def close(self):
        self.__exit__()

    def _spend(self, count):
        if Flaky.fails_after is not None:
            if Flaky.fails_after < count:
                count, Flaky.fails_after = Flaky.fails_after, 0
                return count, True
            Flaky.fails_after -= count
        return count, False

    def read(self, count=-1):
        data = self._file.read(count if count >= 0 else self._size)
        past = self._file.tell() - self._size
        data = data[: max(len(data) - max(past, 0), 0)]
        _, broken = self._spend(len(data))
        if broken:
            raise OSError("the connection was lost")
        return data

    def write(self, data):
        count, broken = self._spend(len(data))
        self._file.write(bytes(data)[:count])
        if broken:
            raise OSError("the connection was lost")
        return count


fsspec.register_implementation("flaky", Flaky, clobber=True)


def broke_off(call):
    """Whether it did, and said so."""
    try:
        call()
    except InputError as error:
        return "the connection was lost" in str(error)
    return False
