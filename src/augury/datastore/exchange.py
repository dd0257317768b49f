"""Remembered answers in an object store, through which replicas that share no disk learn what the others learnt.

::

    answers/NAME.FIRST.LAST.SHA256    the answers of a tenant and tokenizer, named as their files are, by when the first
                                      and the last were learnt, and by contents; never changed
    forgotten/TENANT-TIME             what was learnt of a tenant (or of "everyone") up to a time is forgotten

Every object is whole in itself. A push joins what the directory keeps of a tenant with what all its objects hold, each
text once and the newest as far as there is room, writes that under a name of its own, and deletes the objects it has
read. So nothing that several push at the same time is lost: their objects stand side by side until the next push joins
them. What joins the same comes out the same, to the byte, so that those who have the same need not read it.

Forgetting wins: whoever pushes or pulls leaves out, deletes from the store, and forgets in the directory, what was
learnt before it, wherever that was and whenever it comes. A directory that was forgotten in says so in its list until
the next push has carried it here. What is older than ``OLDEST_S`` is let go in the same way, and by then so is that
something was forgotten.

A forgetting of a clock that is far ahead counts as one of when it was first seen: whoever pushes or pulls lists it in
the directory under its name with that moment, which a push writes in its place.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from augury.datastore import directory
from augury.datastore.answers import Contents, append, contents, make_room
from augury.datastore.bucket import Bucket, TooLarge
from augury.datastore.directory import BESIDE, EVERYONE, OLD, SKEW_S, YOUNG, locked, used
from augury.datastore.records import HEADER_BYTES, Header, Record, Unfit, joined, unpack
from augury.durable import sync

OLDEST_S = 90 * 24 * 3600
"""Seconds after which an answer that nobody learnt again leaves the store and the directories that are exchanged."""

_HOUR_S, _DAY_S = 3600, 24 * 3600

_AHEAD_S = _HOUR_S
"""By more a clock is wrong. By less it may be ours that is behind: what it says is left to those who know better."""

_ANSWERS, _FORGOTTEN = "answers", "forgotten"
_OBJECT = re.compile("([0-9a-f]{32}-[0-9a-f]{16})[.]([0-9a-f]{8})[.]([0-9a-f]{8})[.]([0-9a-f]{64})")
_TOLD = re.compile(f"([0-9a-f]{{32}}|{EVERYONE})-([0-9a-f]{{8}})")
_MOST_OBJECTS = 64
"""Objects of one tenant that are read: as many replicas may push at the same time."""

_WAIT_S = 5.0
"""For whoever holds the lock."""


@dataclass
class Swapped:
    """What a push or a pull did.

    Attributes:
        tenants: whose answers were sent or taken up, one for each tokenizer.
        answers: that were sent or taken up.
        bytes: sent or fetched.
        forgotten: tenants of whom something was forgotten in the directory.
        notes: what was passed over, in words.
    """

    tenants: int = 0
    answers: int = 0
    bytes: int = 0
    forgotten: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Object:
    """Answers in a store."""

    name: str
    stem: str
    first: int
    last: int
    digest: str
    bytes: int


def push(place: Path, bucket: Bucket, most: int) -> Swapped:
    """Bring to a store what a directory keeps, and what was forgotten in it.

    Args:
        place: the directory.
        bucket: the store.
        most: bytes of a file, as for ``Answers``; an object has twice as many at most.

    Raises:
        InputError: there is no such directory, or the store cannot be read or written.
        OSError: the directory cannot be read or written.
    """
    directory.check(place)
    done, now = Swapped(), int(time.time())
    marks = _marks(bucket)
    told = _told(place, marks, now, done)
    for name, until in told.items():
        bucket.replace(f"{_FORGOTTEN}/{_tenant(name)}-{until:08x}", b"\n")
    over = _forgotten(marks, told, now)
    _obey(place, over, now, done)
    there = _objects(bucket)
    with locked(place, _WAIT_S):
        stems = {*used(place), *there}
    for stem in sorted(stems):
        own = _own(place, stem, over, now, done)
        _join(bucket, stem, own, there.get(stem, []), over, 2 * most, now, done)
    _clean(bucket, over, told, now)
    with locked(place, _WAIT_S):  # who was forgotten meanwhile stays
        names = directory.forgotten(place) or {}
        if told:
            directory.list_forgotten(place, {n: until for n, until in names.items() if told.get(n) != until})
    return done


def pull(place: Path, bucket: Bucket, most: int, tenants: int) -> Swapped:
    """Take up in a directory what a store holds.

    Args:
        place: the directory, which is made if it is not there.
        bucket: the store.
        most: bytes of a file, as for ``Answers``.
        tenants: kept in the directory, of all tokenizers; those who learnt last are taken up.

    Raises:
        InputError: the place is no such directory, or the store cannot be read.
        OSError: the directory cannot be read or written.
    """
    directory.adopt(place)
    done, now = Swapped(), int(time.time())
    marks = _marks(bucket)
    over = _forgotten(marks, _told(place, marks, now, done), now)
    _obey(place, over, now, done)
    there = _objects(bucket)
    latest = {stem: float(max(found.last for found in objects)) for stem, objects in there.items()}
    with locked(place, _WAIT_S):
        here = used(place)
    for stem, at in here.items():
        latest[stem] = max(at, latest.get(stem, 0.0))
    for stem in sorted(latest, key=lambda stem: (-latest[stem], stem))[:tenants]:
        if not (objects := there.get(stem)):
            continue
        own = _own(place, stem, over, now, done)
        if {found.name for found in objects} <= {_named(stem, own, 2 * most) if own else ""}:
            continue
        _, came = _read(bucket, objects, over, 2 * most, now, done)
        if came:
            _take_up(place, stem, came, most, tenants, over, done)
    return done


# ---- the store -------------------------------------------------------------------------------------------------


def _marks(bucket: Bucket) -> dict[str, int]:
    """Until when what was learnt is forgotten, by the names of the objects that say so."""
    return {name: int(fits[2], 16) for name in bucket.sizes(_FORGOTTEN) if (fits := _TOLD.fullmatch(name))}


def _forgotten(marks: Mapping[str, int], told: Mapping[str, int], now: int) -> dict[str, int]:
    """Until when what was learnt is forgotten, by tenant or ``EVERYONE``."""
    found = {EVERYONE: (now - OLDEST_S) // _DAY_S * _DAY_S}  # or a directory would be written anew all day
    for name, until in {**marks, **told}.items():  # of a mark that is far ahead the list knows better
        found[_tenant(name)] = max(until, found.get(_tenant(name), 0))
    return found


def _clean(bucket: Bucket, over: Mapping[str, int], told: Mapping[str, int], now: int) -> None:
    """Delete what pushes that were stopped left behind, and what tells of a forgetting that needs no telling any more.

    That is one that was told again, one that is about what is too old anyway, and one of a clock that is far ahead.
    """
    for name in bucket.sizes(_ANSWERS):
        whole = bucket.part_of(name)
        if whole and (fits := _OBJECT.fullmatch(whole)):
            stem, first, last, _ = fits.groups()
            if int(first, 16) <= _until(stem, over) or int(last, 16) < now - _HOUR_S:
                bucket.delete(f"{_ANSWERS}/{name}")
    latest: dict[str, int] = {}
    for name in sorted(bucket.sizes(_FORGOTTEN), key=lambda name: name[-8:], reverse=True):
        whole = bucket.part_of(name)
        if not (fits := _TOLD.fullmatch(whole or name)):
            continue
        if name in told:  # another was written in its place, which this one must not outlast
            bucket.delete(f"{_FORGOTTEN}/{name}")
            continue
        until = int(fits[2], 16)
        if (until < now - _HOUR_S) if whole else (latest.setdefault(fits[1], until) != until or until < now - OLDEST_S):
            bucket.delete(f"{_FORGOTTEN}/{name}")


def _objects(bucket: Bucket) -> dict[str, list[_Object]]:
    """The objects of a store by whose they are, the newest first."""
    found: dict[str, list[_Object]] = {}
    for name, size in bucket.sizes(_ANSWERS).items():
        if fits := _OBJECT.fullmatch(name):
            found.setdefault(fits[1], []).append(
                _Object(name, fits[1], int(fits[2], 16), int(fits[3], 16), fits[4], size)
            )
    for objects in found.values():
        objects.sort(key=lambda one: (-one.last, one.digest))
    return found


def _read(
    bucket: Bucket, objects: Sequence[_Object], over: Mapping[str, int], most: int, now: int, done: Swapped
) -> tuple[list[_Object], list[Record]]:
    """The objects of which nothing else is to be had, and what those that could be read hold that is not forgotten."""
    read, records = list[_Object](), list[Record]()
    for one in objects[:_MOST_OBJECTS]:
        limit = HEADER_BYTES + most
        if one.bytes > limit:
            done.notes.append(f"{one.name} has {one.bytes} bytes, the limit is {limit}; raise it with --mb")
            continue
        try:
            if (data := bucket.read(f"{_ANSWERS}/{one.name}", limit)) is None:
                continue  # joined with another since it was listed, or the list was old
            found = _unpacked(one, data)
        except (Unfit, TooLarge) as why:
            done.notes.append(f"{why}; it is passed over")
            continue
        if not _ahead(found, _until(one.stem, over), now):
            read.append(one)
        records += found
        done.bytes += len(data)
    return read, _alive(records, objects[0].stem, over, now) if objects else []


def _ahead(records: Iterable[Record], until: int, now: int) -> bool:
    """Whether some records are ahead of our clock and others may have a use for them: it may be ours that is behind.

    Not where the tenant was forgotten not long ago: they may be of before.
    """
    return until <= now - _AHEAD_S and any(now + SKEW_S < record.learnt <= now + _AHEAD_S for record in records)


def _unpacked(one: _Object, data: bytes) -> list[Record]:
    """What an object holds, if it is what its name says."""
    if hashlib.sha256(data).hexdigest() != one.digest:
        raise Unfit(f"{one.name} is damaged: its checksum is wrong")
    header = Header.unpack(data[:HEADER_BYTES], one.name)
    records, end = unpack(data[HEADER_BYTES:])
    if f"{header.tenant}-{header.tokenizer}" != one.stem or HEADER_BYTES + end != len(data):
        raise Unfit(f"{one.name} is not what its name says")
    return records


def _join(
    bucket: Bucket,
    stem: str,
    own: Sequence[Record],
    objects: Sequence[_Object],
    over: Mapping[str, int],
    most: int,
    now: int,
    done: Swapped,
) -> None:
    """Make what is kept of a tenant here and there one object, unless it is."""
    until = _until(stem, over)
    dead = [one for one in objects if one.last <= until]
    alive = [one for one in objects if one.last > until]
    mine = [_named(stem, own, most)] if own else [one.name for one in alive]
    reached = [one for one in alive if one.first <= until or (one.last > now + SKEW_S and until > now - _AHEAD_S)]
    if [one.name for one in alive] != mine or len(alive) > 1 or reached:
        read, came = _read(bucket, alive, over, most, now, done)
        name = ""
        if records := joined([*came, *own], most):
            name = _named(stem, records, most)
            if name not in {one.name for one in alive}:
                bucket.replace(f"{_ANSWERS}/{name}", _packed(stem, records))
                known = {record.tokens.tobytes() for record in came}
                done.tenants += 1
                done.answers += sum(record.tokens.tobytes() not in known for record in records)
                done.bytes += HEADER_BYTES + sum(record.size for record in records)
        dead += [one for one in read if one.name != name]
    for one in dead:
        bucket.delete(f"{_ANSWERS}/{one.name}")


def _packed(stem: str, records: Sequence[Record]) -> bytes:
    """An object: as a file, of no lineage."""
    tenant, _, tokenizer = stem.partition("-")
    header = Header(bytes(16), tenant, tokenizer, 0)
    return header.pack() + b"".join(record.pack() for record in records)


def _named(stem: str, records: Sequence[Record], most: int) -> str:
    """The name of the object that holds some records, at least one."""
    records = joined(records, most)
    digest = hashlib.sha256(_packed(stem, records)).hexdigest()
    return f"{stem}.{records[0].learnt:08x}.{records[-1].learnt:08x}.{digest}"


# ---- the directory ---------------------------------------------------------------------------------------------


def _tenant(name: str) -> str:
    """Whose a name is, of files, of a mark, or of a list."""
    return name.partition("-")[0]


def _until(stem: str, over: Mapping[str, int]) -> int:
    """Until when what was learnt under a name is forgotten."""
    return max(over[EVERYONE], over.get(_tenant(stem), 0))


def _alive(records: Iterable[Record], stem: str, over: Mapping[str, int], now: int) -> list[Record]:
    """Records that are not forgotten, and none of a clock that is ahead: no forgetting would reach it."""
    until = _until(stem, over)
    return [record for record in records if until < record.learnt <= now + SKEW_S]


def _told(place: Path, marks: Mapping[str, int], now: int, done: Swapped) -> dict[str, int]:
    """Who was forgotten in a directory and has not been elsewhere; what somebody was stopped writing goes too.

    What a clock that is far ahead says, here or in a mark, is as of now, once: else it would forget what comes for
    years, or at every push and pull what came until then.
    """
    once = {name: now + 2 * SKEW_S for name, until in marks.items() if until > now + _AHEAD_S}
    with locked(place, _WAIT_S):
        (place / BESIDE).unlink(missing_ok=True)
        if directory.forgotten(place) is None and directory.forgetful(place):
            done.notes.append(
                f"somebody was forgotten in {place} before it was first exchanged, and who is not known any more: "
                "where the store holds answers of theirs, forget them again and push"
            )
        directory.exchanged(place)
        names = directory.forgotten(place) or {}
        told = {name: until for name, until in names.items() if until > now - OLDEST_S or name in marks}
        told = once | {name: until if until <= now + _AHEAD_S else now + 2 * SKEW_S for name, until in told.items()}
        if told != names:
            directory.list_forgotten(place, told)
        return told


def _own(place: Path, stem: str, over: Mapping[str, int], now: int, done: Swapped) -> list[Record]:
    """What a directory keeps under a name that is not forgotten."""
    with locked(place, _WAIT_S):
        found = contents(place, stem)
    done.notes += [f"{why}; it is passed over" for why in found.unfit]
    return _alive(found.records, stem, over, now)


def _obey(place: Path, over: Mapping[str, int], now: int, done: Swapped) -> None:
    """Forget in a directory what is forgotten.

    A lineage that began before goes too, whatever is left of it: a process may remember what it could not write.
    """
    with locked(place, _WAIT_S):
        at, tenants = used(place), dict[str, list[str]]()
        for stem in at:
            tenants.setdefault(_tenant(stem), []).append(stem)
        for tenant, stems in tenants.items():
            until = _until(tenant, over)
            found = {stem: contents(place, stem) for stem in stems}
            if not any(_touched(one, at[stem], until) for stem, one in found.items()):
                continue
            directory.forget(place, tenant)
            done.forgotten += 1
            lineage = secrets.token_bytes(16)
            for stem, one in found.items():
                rest = [record for record in one.records if record.learnt > until]
                if one.header and rest:
                    header = one.header._replace(lineage=lineage, began=max(now, until + 1))
                    _write(place, stem, header, rest, sum(record.size for record in rest), at[stem])


def _touched(found: Contents, at: float, until: int) -> bool:
    """Whether a forgetting is about some of what files hold, or may be about what cannot be read of them."""
    began = found.header is not None and found.header.began <= until
    return began or any(record.learnt <= until for record in found.records) or (bool(found.unfit) and at <= until)


def _take_up(
    place: Path, stem: str, came: Sequence[Record], most: int, tenants: int, over: Mapping[str, int], done: Swapped
) -> None:
    """Add to a directory what came of a tenant and is not there."""
    now = int(time.time())
    with locked(place, _WAIT_S):
        told = directory.forgotten(place) or {}  # somebody may have been forgotten since
        over = {name: max(over.get(name, 0), told.get(name, 0)) for name in {*over, *told}}
        found = contents(place, stem)
        if found.unfit:
            return  # said when it was looked at
        known = {record.tokens.tobytes() for record in found.records}
        # A half of the younger file is left free: else the next answer would end what has just been taken up.
        wanted = joined([*found.records, *_alive(came, stem, over, now)], most + most // 2)
        new = [record for record in wanted if record.tokens.tobytes() not in known]
        if not new:
            return
        tenant, _, tokenizer = stem.partition("-")
        header = found.header or Header(secrets.token_bytes(16), tenant, tokenizer, now)
        at = max(used(place).get(stem, 0.0), float(max(record.learnt for record in came)))
        make_room(place, stem, tenants)
        young = place / f"{stem}{YOUNG}"
        size = young.stat().st_size if young.exists() else 0
        if size and not found.damaged and size + sum(record.size for record in new) <= most:
            append(young, b"".join(record.pack() for record in new))
            os.utime(young, (at, at))
        else:
            _write(place, stem, header, wanted, most - HEADER_BYTES, at)
        done.tenants += 1
        done.answers += len(new)


def _write(place: Path, stem: str, header: Header, records: Sequence[Record], room: int, at: float) -> None:
    """Make the files of a name hold some records, the oldest first, and no others; the directory is locked.

    Of more than ``room`` bytes of records the first ones go to the older file; ``at`` is when they were used last.
    """
    old, filled = 0, 0
    if sum(record.size for record in records) > room:
        while filled + records[old].size <= room:
            filled += records[old].size
            old += 1
    for suffix, part in ((OLD, records[:old]), (YOUNG, records[old:])):
        path = place / f"{stem}{suffix}"
        if not part:
            with suppress(FileNotFoundError):
                path.unlink()
            continue
        directory.write(place / BESIDE, header.pack() + b"".join(record.pack() for record in part))
        sync(place / BESIDE)
        (place / BESIDE).replace(path)
        os.utime(path, (at, at))
