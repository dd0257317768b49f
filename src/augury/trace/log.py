"""Trace files: a header and one event a line, written as they come and read again with every line checked.

Only what ``events`` writes is read; whoever reads on need not be afraid of what a file holds. Keys of an event that are
not known are left out, kinds of events that are not known are refused.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from augury.errors import AuguryError, InputError, first_line, shown
from augury.trace.events import FORMAT, Event, encode
from augury.tree import MAX_NODES

try:
    import fcntl
except ImportError:  # not everywhere
    fcntl = None  # type: ignore[assignment]

MAX_LINE = 16 << 20
"""Bytes of a line that is read: a prompt of a million tokens, spelt too."""

MAX_ID = (1 << 53) - 1
"""The largest id of a request: every number up to it is itself in JavaScript too."""

_MAX_TOKEN = (1 << 31) - 1
_MAX_MS = 1e12
"""The longest time that is read, in milliseconds: thirty years, and still exact to a microsecond."""


class TraceWriter:
    """Writes a file, line by line; what was put is with the system when ``put`` returns. Not thread-safe.

    Args:
        path: is written anew, for its owner's eyes: a trace tells what was asked and answered.
        header: its first line.
        room: bytes that the file takes at most; None is no limit.

    Raises:
        AuguryError: the file cannot be written, or somebody else writes it.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], room: int | None = None) -> None:
        self.path = path
        self.left_out = 0
        """Events that found no room."""
        self._room, self._taken = room, 0
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if stat.S_ISREG(os.fstat(self._file).st_mode):
                self._lock()
                os.fchmod(self._file, 0o600)  # of a file that was there
                os.ftruncate(self._file, 0)
        except OSError as error:
            self._fail(error)
        self.add(encode(header))

    def put(self, event: Mapping[str, Any]) -> bool:
        """Write an event; see ``add``."""
        return self.add(encode(event))

    def add(self, line: bytes) -> bool:
        """Write the line of an event; tells whether there was room. Behind one without room nothing is written.

        Raises:
            AuguryError: the file cannot be written, as when the disk is full.
        """
        if self.left_out or (self._room is not None and self._taken + len(line) + 1 > self._room):
            self.left_out += 1
            return False
        rest = memoryview(line + b"\n")
        self._taken += len(rest)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            self._fail(error)
        return True

    def close(self) -> None:
        """Close the file; does nothing the second time."""
        if self._file < 0:
            return
        file, self._file = self._file, -1
        try:
            os.close(file)
        except OSError as error:
            self._fail(error)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _lock(self) -> None:
        """Be the only writer until the file is closed, before anything of it is gone."""
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise AuguryError(
                f"{self.path} is a trace that is being written by another run; give another file"
            ) from None
        except OSError:  # a file system that knows no locks
            pass

    def _fail(self, error: OSError) -> NoReturn:
        raise AuguryError(f"the trace cannot be written to {self.path}: {error.strerror}") from None


class TraceFile:
    """A file that is read from its beginning whenever it is gone through; one line at a time is in memory.

    Args:
        path: of the file.

    Attributes:
        header: its first line.
        torn: what of it is left out at its end, told in words; None before it was gone through, and where all is whole.

    Raises:
        InputError: it cannot be read, or is no trace of this version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn: str | None = None
        _, _, line, whole = next(self._lines(), (1, 0, b"", True))
        try:
            self.header: Event = _header(line)
        except InputError as error:
            cut = "" if whole else " (it ends in the middle of that line)"
            raise InputError(f"{path.name} line 1: {error}{cut}") from None

    def __iter__(self) -> Iterator[Event]:
        """Its events; see ``places``."""
        return (event for _, _, event in self.places())

    def places(self) -> Iterator[tuple[int, bytes, Event]]:
        """Its events, each behind the place of its line in the file, in bytes, and the line itself.

        Raises:
            InputError: the file cannot be read, or a line is not an event; says which.
        """
        self.torn = None
        check = Check(self.header)
        lines = self._lines()
        next(lines, None)
        for number, place, line, whole in lines:
            try:
                event = check(parsed(line))
            except InputError as error:
                if not whole:  # its writer was stopped while it wrote
                    self.torn = f"the last line, {number}, was cut off after {len(line)} bytes and is left out"
                    return
                raise InputError(f"{self.path.name} line {number}: {error}") from None
            yield place, line, event

    def _lines(self) -> Iterator[tuple[int, int, bytes, bool]]:
        """Number, place and bytes of every line that is not empty, and whether its end is there."""
        try:
            kind = self.path.stat().st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # a pipe has nothing when it is read again
                raise InputError(f"{self.path} is no file, and a trace is read more than once; write it into one first")
            with self.path.open("rb") as file:
                number = place = 0
                while line := file.readline(MAX_LINE + 1):
                    number += 1
                    whole = line.endswith(b"\n")
                    if len(line) > MAX_LINE:
                        raise InputError(
                            f"{self.path.name} line {number}: it is longer than {MAX_LINE >> 20} MiB, and no event is"
                        )
                    if line.strip():
                        yield number, place, line, whole
                    place += len(line)
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from None


class Check:
    """Whether events, in their order, are a trace: each as ``events`` makes it, and all of a request in order.

    A trace may begin in the middle of requests, as that of a ring does, and end there.

    Args:
        header: of the trace.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        self._drafters = len(header["drafters"])
        self._seen: dict[int, tuple[int, int]] = {}  # requests: how many drafters, and the number of the last step
        self._ended: set[int] = set()

    def __call__(self, event: Mapping[str, Any]) -> Event:
        """The next event, with the keys that are known.

        Raises:
            InputError: it is none, or not the next.
        """
        known = self.alone(event)
        if known["kind"] != "load":
            self._follow(known["kind"], known)
        return known

    @staticmethod
    def alone(event: Mapping[str, Any]) -> Event:
        """An event, whatever was before it, with the keys that are known.

        Raises:
            InputError: it is none.
        """
        kind = event.get("kind")
        if not isinstance(kind, str) or kind not in _KINDS:
            raise InputError(f'"kind" is {shown(kind)}; it must be one of {", ".join(_KINDS)}')
        known: Event = {"kind": kind}
        for key, fits in _KINDS[kind].items():
            if key not in event:
                raise InputError(f'"{key}" is missing in this {kind}')
            fits(key, event[key])
            known[key] = event[key]
        for key, fits in _OPTIONAL.get(kind, {}).items():
            if key in event:
                fits(key, event[key])
                known[key] = event[key]
        return known

    def _follow(self, kind: str, event: Event) -> None:
        """Whether it is the next of its request."""
        id = event["id"]
        if id in self._ended:
            raise InputError(f"request {id} has ended before this {kind}")
        if kind == "begin":
            if id in self._seen:
                raise InputError(f"request {id} begins a second time")
            self._seen[id] = len(event["drafters"]), -1
        elif kind == "step":
            drafters, last = self._seen.get(id, (self._drafters, -1))
            _tree(event, drafters)
            if event["n"] <= last:
                raise InputError(f"request {id} has step {event['n']} behind step {last}")
            self._seen[id] = drafters, event["n"]
        else:
            self._seen.pop(id, None)
            self._ended.add(id)


def _header(line: bytes) -> Event:
    """The first line."""
    none = f'a trace begins with {{"augury_trace":{FORMAT},...}}; augury generate --trace FILE writes one'
    if not line:
        raise InputError(f"it is empty, and {none}")
    try:
        header = parsed(line)
    except InputError as error:
        raise InputError(f"{error}; {none}") from None
    if "augury_trace" not in header:
        raise InputError(f"it has no version; {none}")
    version = header["augury_trace"]
    if type(version) is not int or version != FORMAT:
        raise InputError(
            f"it is a trace of version {shown(version)}, written by augury {shown(header.get('version'))}; "
            f"this augury reads version {FORMAT}"
        )
    for key, fits in _HEADER.items():
        if key not in header:
            raise InputError(f'"{key}" is missing')
        fits(key, header[key])
    return header


def parsed(line: bytes) -> Event:
    """A line as JSON, which alone is not an event yet.

    Raises:
        InputError: it is no object.
    """
    try:
        row = json.loads(line.decode("utf-8-sig"), parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is not JSON: {first_line(error)}") from None
    if not isinstance(row, dict):
        raise InputError(f"it is a JSON {type(row).__name__}; an object is expected")
    return row


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


# ---- what a value must be: each raises InputError, naming its key ------------------------------------------------

Fits = Callable[[str, Any], None]


def _whole(low: int, high: int) -> Fits:
    """An integer in [low, high]."""

    def fits(key: str, value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            raise InputError(f'"{key}" is {shown(value)}; it must be a whole number in {low}..{high}')

    return fits


def _real(low: float, high: float) -> Fits:
    """A number in [low, high]."""

    def fits(key: str, value: Any) -> None:
        if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):
            raise InputError(f'"{key}" is {shown(value)}; it must be a number in {low:g}..{high:g}')

    return fits


def _text(key: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InputError(f'"{key}" is {shown(value)}; it must be a text')
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise InputError(f'"{key}" is {shown(value)}, with half a surrogate pair, which is no text')


def _switch(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InputError(f'"{key}" is {shown(value)}; it must be true or false')


def _or_null(fits: Fits) -> Fits:
    return lambda key, value: None if value is None else fits(key, value)


def _numbers(kinds: set[type], low: float, high: float, most: int | None = None, null: bool = False) -> Fits:
    """A list of at most so many numbers in [low, high], looked at together: a step has a hundred of them."""
    one = _whole(int(low), int(high)) if float not in kinds else _real(low, high)
    each = _list(_or_null(one) if null else one, most)

    def all_fit(key: str, value: Any) -> None:
        found = [n for n in value if n is not None] if null and type(value) is list else value
        fits = type(found) is list and {*map(type, found)} <= kinds and (most is None or len(value) <= most)
        if not fits or (found and not low <= min(found) <= max(found) <= high):
            each(key, value)  # says what is wrong

    return all_fit


def _list(fits: Fits, most: int | None = None) -> Fits:
    """A list of at most so many."""

    def all_fit(key: str, value: Any) -> None:
        if not isinstance(value, list):
            raise InputError(f'"{key}" is {shown(value)}; it must be a list')
        if most is not None and len(value) > most:
            raise InputError(f'"{key}" has {len(value)} entries; at most {most} are allowed')
        for one in value:
            fits(key, one)

    return all_fit


def _one_of(*valid: object) -> Fits:
    def fits(key: str, value: Any) -> None:
        if not any(value is one or (type(value) is str and value == one) for one in valid):
            raise InputError(f'"{key}" is {shown(value)}; it must be one of {", ".join(map(str, valid))}')

    return fits


def _keyed(fits: Fits) -> Fits:
    """An object whose keys are whole numbers."""

    def all_fit(key: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise InputError(f'"{key}" is {shown(value)}; it must be an object')
        for name, one in value.items():
            if not (name.isascii() and name.isdigit() and len(name) <= 10):
                raise InputError(f'"{key}" has the key {shown(name)}; a whole number is expected')
            fits(key, one)

    return all_fit


def _sampling(key: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise InputError(f'"{key}" is {shown(value)}; it must be an object')
    for name, one in value.items():
        if not (name.isidentifier() and name.isascii() and len(name) <= 64):
            raise InputError(f'"{key}" has the key {shown(name)}; the name of a parameter is expected')
        if not isinstance(one, bool):
            _real(-1e39, 1e39)(name, one)


def _stop(key: str, value: Any) -> None:
    if isinstance(value, str):
        _text(key, value)
    elif value is not None and value is not True:
        _token(key, value)


def _proposal(key: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise InputError(f'"{key}" has {shown(value)}; an object is expected')
    if wrong := _PROPOSAL.keys() ^ value.keys():
        one = min(wrong)
        why = "missing" if one in _PROPOSAL else "not known"
        raise InputError(f'"{key}" has an entry where {shown(one)} is {why}')
    for part, fits in _PROPOSAL.items():
        fits(part, value[part])


_id = _whole(0, MAX_ID)
_count = _whole(0, _MAX_TOKEN)
_token = _whole(0, _MAX_TOKEN)
_tokens = _numbers({int}, 0, _MAX_TOKEN)
_ms = _real(0.0, _MAX_MS)
_at = _real(-_MAX_MS, _MAX_MS)
_names = _list(_text, 256)
_note = _or_null(_text)

_HEADER: Mapping[str, Fits] = {
    "version": _text,
    "model": _text,
    "runner": _text,
    "drafters": _names,
    "text": _switch,
    "unix": _real(0.0, 1e11),
    "source": _text,
}

_PROPOSAL: Mapping[str, Fits] = {"drafter": _text, "nodes": _count, "ms": _ms, "fault": _note, "unasked": _note}

_KINDS: Mapping[str, Mapping[str, Fits]] = {
    "begin": {
        "id": _id,
        "at": _at,
        "label": _text,
        "prompt_tokens": _count,
        "cached_tokens": _count,
        "prefill_ms": _ms,
        "drafters": _names,
        "rule": _text,
        "sampling": _sampling,
    },
    "step": {
        "id": _id,
        "n": _count,
        "at": _at,
        "position": _count,
        "root": _token,
        "tokens": _numbers({int}, 0, _MAX_TOKEN, MAX_NODES),
        "parents": _numbers({int}, -1, MAX_NODES, MAX_NODES),
        "source": _numbers({int}, 0, 255, MAX_NODES),
        "survival": _numbers({int, float}, 0.0, 1.0, MAX_NODES),
        "p": _or_null(_numbers({int, float}, 0.0, 1.0, MAX_NODES, null=True)),
        "q": _keyed(_or_null(_real(-1e39, 1e39))),  # what a drafter said of itself, which need not be a share
        "path": _numbers({int}, 0, MAX_NODES, MAX_NODES),
        "next": _token,
        "own": _one_of("correction", "bonus", "plain", None),
        "emitted": _numbers({int}, 0, _MAX_TOKEN, MAX_NODES + 1),
        "proposals": _list(_proposal, 256),
        "reason": _note,
        "rows": _whole(1, _MAX_TOKEN),
        "requests": _whole(1, _MAX_TOKEN),
        "draft_ms": _ms,
        "verify_ms": _ms,
        "accept_ms": _ms,
        "commit_ms": _ms,
        "rest_ms": _ms,
        "plain_ms": _or_null(_ms),
        "saved_ms": _or_null(_at),
        "coins": _or_null(_numbers({int, float}, 0.0, 1.0, MAX_NODES, null=True)),
    },
    "end": {
        "id": _id,
        "at": _at,
        "finish": _one_of("stop", "length", "cancelled", "error", None),
        "stop": _stop,
        "tokens": _count,
        "steps": _count,
        "error": _note,
    },
    "load": {"at": _at, "running": _count, "waiting": _count, "kv_used": _real(0.0, 1e6)},
}


_OPTIONAL: Mapping[str, Mapping[str, Fits]] = {
    "begin": {"prompt": _tokens, "prompt_text": _text, "pair": _text},
    "step": {"texts": _keyed(_text)},
    "end": {"included": _switch},
}


def _tree(event: Mapping[str, Any], drafters: int) -> None:
    """Whether the arrays of a step are a tree, and the path leads down it."""
    n = len(event["tokens"])
    for key in ("parents", "source", "survival", "p", "coins"):
        if event[key] is not None and len(event[key]) != n:
            raise InputError(f'"{key}" has {len(event[key])} entries, and there are {n} tokens')
    if any(int(node) >= n for node in event["q"]):
        raise InputError(f'"q" names a node that is not among the {n}')
    survival: Sequence[float] = event["survival"]
    for node, parent in enumerate(event["parents"]):
        if parent >= node:
            raise InputError(f'"parents" has {parent} for node {node}; a parent is -1 or an earlier node')
        # Both are rounded to four decimals.
        if parent >= 0 and survival[node] > survival[parent] + 2e-4:
            raise InputError(f'"survival" of node {node} is {survival[node]:g}, above its parent\'s')
        if event["source"][node] >= drafters:
            raise InputError(f'"source" of node {node} is {event["source"][node]}; there are {drafters} drafters')
    above = -1
    for node in event["path"]:
        if node >= n or event["parents"][node] != above:
            raise InputError(f'"path" goes from node {above} to {node}, which does not hang on it')
        above = node
    whole = [*(event["tokens"][node] for node in event["path"]), event["next"]]
    if event["emitted"] != whole[: len(event["emitted"])]:
        raise InputError('"emitted" is not what "path" and "next" are')
