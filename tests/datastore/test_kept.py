"""Answers on disk: what is written is read, what is damaged is cut off, what is deleted stays so."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.datastore import answers
from augury.datastore.answers import OLD, YOUNG, Answers, Unfit
from augury.errors import InputError

ME, YOU = "a" * 32, "b" * 32
NOTES = []
"""What was said of files that were written to."""

records = st.lists(
    st.lists(st.integers(0, 2**31 - 2), min_size=1, max_size=30).map(lambda one: np.array(one, np.int32)), max_size=8
)


def store(place, **options):
    return Answers(place, **{"tokenizer": "letters", "most": 10_000, "tenants": 10, "note": NOTES.append, **options})


def written(place, texts, tenant=ME, lineage=None, **options):
    """Add texts; gives the lineage."""
    it = store(place, **options)
    for text in texts:
        lineage = it.add(tenant, lineage, np.array(text, np.int32))
        assert lineage is not None
    return lineage


def lists(kept):
    return [one.tolist() for one in kept.old + kept.young]


def young(place):
    (path,) = place.glob(f"{ME}*{YOUNG}")
    return path


@settings(max_examples=40, deadline=None)
@given(texts=records, others=records)
def test_what_is_written_is_read(tmp_path_factory, texts, others):
    place = tmp_path_factory.mktemp("it")
    written(place, texts)
    written(place, others, YOU)
    for tenant, own in ((ME, texts), (YOU, others)):
        kept = store(place).read(tenant)
        assert lists(kept) == [one.tolist() for one in own] if own else not lists(kept)
    assert not lists(store(place, tokenizer="other").read(ME))


@settings(max_examples=40, deadline=None)
@given(texts=records.filter(len), data=st.data())
def test_behind_damage_nothing_is_read_and_before_it_everything(tmp_path_factory, texts, data):
    place = tmp_path_factory.mktemp("it")
    lineage = written(place, texts)
    whole = young(place).read_bytes()
    sizes = [8 + 4 * len(one) for one in texts]
    at = data.draw(st.integers(96, len(whole) - 1))
    if data.draw(st.booleans()):
        young(place).write_bytes(whole[:at])
    else:
        damaged = bytearray(whole)
        damaged[at] ^= data.draw(st.integers(1, 255))
        young(place).write_bytes(damaged)
    size = young(place).stat().st_size
    sound = sum(96 + sum(sizes[: n + 1]) <= at for n in range(len(sizes)))
    kept = store(place).read(ME)
    assert lists(kept) == [one.tolist() for one in texts[:sound]]
    assert bool(kept.notes) == (size > 96 + sum(sizes[:sound]))
    # What comes next stands behind what is sound.
    assert store(place).add(ME, lineage, np.array([7], np.int32)) == lineage
    kept = store(place).read(ME)
    assert lists(kept) == [*(one.tolist() for one in texts[:sound]), [7]]
    assert not kept.notes


@pytest.mark.parametrize("known", [True, False])
def test_what_comes_behind_a_record_that_somebody_did_not_finish_is_kept(tmp_path, known):
    """Another process is killed while it writes, and one that runs since before goes on."""
    it, NOTES[:] = store(tmp_path), []
    lineage = it.add(ME, None, np.array([1, 2], np.int32))
    assert it.add(ME, lineage, np.array([3], np.int32)) == lineage
    if not known:
        it = store(tmp_path)
    with young(tmp_path).open("ab") as file:
        file.write((5).to_bytes(4, "little") + bytes(10))
    for token in (4, 5):
        assert it.add(ME, lineage, np.array([token], np.int32)) == lineage
    kept = store(tmp_path).read(ME)
    assert lists(kept) == [[1, 2], [3], [4], [5]]
    assert not kept.notes
    (said,) = NOTES
    assert said == f"{young(tmp_path).name} is damaged: its last 14 of 138 bytes are cut off"


def test_a_file_that_nobody_else_wrote_to_is_not_read_again(tmp_path, monkeypatch):
    read, seen = answers._records, []
    monkeypatch.setattr(answers, "_records", lambda file: seen.append(1) or read(file))
    it, lineage = store(tmp_path, most=300), None
    for token in range(40):  # some files are filled
        lineage = it.add(ME, lineage, np.array([token], np.int32))
    assert not seen
    other = store(tmp_path, most=300)
    other.read(ME)
    seen.clear()
    other.add(ME, lineage, np.array([40], np.int32))
    assert not seen
    it.add(ME, lineage, np.array([41], np.int32))
    assert len(seen) == 1
    assert lists(store(tmp_path).read(ME))[-3:] == [[39], [40], [41]]


def test_where_files_end_is_known_of_no_more_tenants_than_there_may_be(tmp_path):
    it = store(tmp_path, tenants=3)
    for number in range(9):
        it.add(f"{number:032}", None, np.array([1], np.int32))
    assert len(it._ends) == 3


def test_a_record_that_no_augury_wrote_is_damage(tmp_path):
    written(tmp_path, [[1, 2]])
    for token in (-1, 2**31 - 1):
        head, tokens = (1).to_bytes(4, "little"), np.array([token], "<i4").tobytes()
        with young(tmp_path).open("ab") as file:
            file.write(head + zlib.crc32(head + tokens).to_bytes(4, "little") + tokens)
        assert lists(store(tmp_path).read(ME)) == [[1, 2]]
    with young(tmp_path).open("ab") as file:
        file.write(bytes(64))  # as a file system may leave them behind a power cut
    assert lists(store(tmp_path).read(ME)) == [[1, 2]]


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (0, b"X", "another version of Augury, or no file of it"),
        (8, b"\2", "another version of Augury"),
        (20, b"X", "the checksum of its header is wrong"),
        (95, b"X", "the checksum of its header is wrong"),
        (None, b"short", "it has no whole header"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_and_the_file_left_alone(tmp_path, place, value, says):
    written(tmp_path, [[1, 2]])
    data = young(tmp_path).read_bytes()
    data = value if place is None else data[:place] + value + data[place + 1 :]
    young(tmp_path).write_bytes(data)
    it, record = store(tmp_path), np.array([1], np.int32)
    for call in (lambda: it.read(ME), lambda: it.add(ME, None, record), lambda: it.lineage(ME)):
        with pytest.raises(Unfit, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert young(tmp_path).read_bytes() == data
    (entry,) = answers.entries(tmp_path)
    assert says in entry.notes[0]
    assert answers.forget(tmp_path, ME) == len(data)


def test_another_tokenizer_s_file_under_this_name_is_refused(tmp_path):
    written(tmp_path, [[1, 2]], tokenizer="other")
    young(tmp_path).rename(store(tmp_path)._path(ME, YOUNG))
    with pytest.raises(Unfit, match="holds tokens of another tokenizer"):
        store(tmp_path).read(ME)


def test_a_full_file_becomes_the_old_one(tmp_path):
    lineage = written(tmp_path, [[n] * 10 for n in range(12)], most=300)  # four records a file
    kept = store(tmp_path).read(ME)
    assert (len(kept.old), len(kept.young)) == (4, 4)
    assert lists(kept) == [[n] * 10 for n in range(4, 12)]
    assert kept.lineage == lineage
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 600
    written(tmp_path, [[99] * 200], lineage=lineage, most=300)  # one too large for any file: it has one of its own
    assert lists(store(tmp_path).read(ME))[-1] == [99] * 200


def test_an_old_file_that_does_not_fit_is_not_read(tmp_path):
    written(tmp_path, [[n] * 10 for n in range(8)], most=300)
    old = young(tmp_path).with_suffix(OLD)
    saved = old.read_bytes()
    old.write_bytes(b"X" + saved[1:])
    kept = store(tmp_path).read(ME)
    assert (len(kept.old), len(kept.young)) == (0, 4)
    assert "it is not read" in kept.notes[0]
    answers.forget(tmp_path, ME)
    written(tmp_path, [[5]])
    old.write_bytes(saved)  # a copy from before it was forgotten
    kept = store(tmp_path).read(ME)
    assert lists(kept) == [[5]]
    assert "older than what was forgotten" in kept.notes[0]


def test_who_was_stopped_between_two_files_is_taken_up(tmp_path):
    lineage = written(tmp_path, [[1], [2]])
    young(tmp_path).rename(young(tmp_path).with_suffix(OLD))
    assert store(tmp_path).lineage(ME) == lineage
    store(tmp_path)._path(ME, YOUNG).touch()  # made, and not yet written to
    assert lists(store(tmp_path).read(ME)) == [[1], [2]]
    assert written(tmp_path, [[3]], lineage=lineage) == lineage
    assert lists(store(tmp_path).read(ME)) == [[1], [2], [3]]


def test_deleted_is_deleted_for_whoever_wrote_before(tmp_path):
    lineage = written(tmp_path, [[1]])
    written(tmp_path, [[1]], tokenizer="other")
    written(tmp_path, [[2]], YOU)
    assert answers.forget(tmp_path, ME) > 0
    assert answers.forget(tmp_path, ME) == 0
    assert not list(tmp_path.glob(f"{ME}*"))
    assert store(tmp_path).add(ME, lineage, np.array([3], np.int32)) is None
    anew = written(tmp_path, [[4]])
    assert anew != lineage
    assert store(tmp_path).add(ME, lineage, np.array([3], np.int32)) is None
    assert lists(store(tmp_path).read(ME)) == [[4]]
    assert answers.forget(tmp_path, None) > 0
    assert os.listdir(tmp_path) == ["augury-memory.lock"]


@pytest.mark.parametrize("fails", ["short", "error"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, fails, before):
    lineage = written(tmp_path, [[n] for n in range(before)])
    write = os.write

    def full(file, data):
        if fails == "short":
            return write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            store(tmp_path).add(ME, lineage, np.arange(50, dtype=np.int32))
    kept = store(tmp_path).read(ME)
    assert (lists(kept) if kept else []) == [[n] for n in range(before)]
    assert not (kept and kept.notes)
    written(tmp_path, [[9]], lineage=lineage)
    assert lists(store(tmp_path).read(ME)) == [*([n] for n in range(before)), [9]]


def test_who_may_not_write_may_read(tmp_path, monkeypatch):
    written(tmp_path, [[1, 2], [3]])
    young(tmp_path).write_bytes(young(tmp_path).read_bytes()[:-2])
    opened, path = os.open, young(tmp_path)

    def readonly(name, flags, *more, **named):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(name, flags, *more, **named)

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", readonly)
    monkeypatch.setattr(os, "truncate", refuse)
    assert lists(store(tmp_path).read(ME)) == [[1, 2]]
    with pytest.raises(OSError, match="Read-only"):
        store(tmp_path).add(ME, store(tmp_path).lineage(ME), np.array([4], np.int32))
    assert path.stat().st_size > 0


def test_a_lock_that_is_not_given_back_is_not_waited_for(tmp_path, monkeypatch):
    lineage = written(tmp_path, [[1]])
    monkeypatch.setattr(answers, "_PATIENTLY_S", 0.01)
    with (tmp_path / "augury-memory.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        it = store(tmp_path)
        for call in (
            lambda: it.add(ME, lineage, np.array([2], np.int32)),
            lambda: it.read(ME),
            lambda: answers.entries(tmp_path),
            lambda: answers.forget(tmp_path, None),
        ):
            with pytest.raises(BlockingIOError, match="another process has locked it"):
                call()
    written(tmp_path, [[2]], lineage=lineage)
    assert lists(store(tmp_path).read(ME)) == [[1], [2]]


def test_a_list_lets_others_write_between_two_tenants(tmp_path, monkeypatch):
    for tenant in (ME, YOU):
        written(tmp_path, [[1]], tenant)
    read, locked, seen = answers._records, answers._locked, []

    @contextmanager
    def watched(*given):
        with locked(*given):
            seen.append("locked")
            yield

    monkeypatch.setattr(answers, "_locked", watched)
    monkeypatch.setattr(answers, "_records", lambda file: seen.append("read") or read(file))
    assert len(answers.entries(tmp_path)) == 2
    assert seen == ["locked", *["locked", "read"] * 2]


def test_who_is_forgotten_while_a_list_is_made_is_not_in_it(tmp_path, monkeypatch):
    written(tmp_path, [[1]])
    used = answers._used
    monkeypatch.setattr(answers, "_used", lambda place: {**used(place), f"{YOU}-{'0' * 16}": 0.0})
    assert [entry.tenant for entry in answers.entries(tmp_path)] == [ME]


def test_other_failures_of_the_lock_are_not_hidden(tmp_path, monkeypatch):
    written(tmp_path, [[1]])

    def broken(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(OSError, match="Input/output"):
        store(tmp_path).read(ME)


WRITER = """
import sys, numpy as np
from pathlib import Path
from augury.datastore import answers
answers._BRIEFLY_S = 60  # nothing may be left out
it = answers.Answers(Path(sys.argv[1]), "letters", 25_000, 10, print)
for n in range(150):
    kept = it.lineage("a" * 32)
    assert it.add("a" * 32, kept, np.full(1 + n % 40, int(sys.argv[2]) * 1000 + n, np.int32)) is not None
"""


def test_forgetting_is_known_without_files_and_tells_no_name(tmp_path):
    it = store(tmp_path)
    mine, yours = it.read(ME).lineage, it.read(YOU).lineage
    answers.forget(tmp_path, ME)
    assert not it.holds(ME, mine)
    assert it.holds(YOU, yours)
    assert it.add(ME, mine, np.array([1], np.int32)) is None
    assert os.listdir(tmp_path) == ["augury-memory.lock"]
    assert ME[:8].encode() not in (tmp_path / "augury-memory.lock").read_bytes()
    answers.forget(tmp_path, None)
    assert not it.holds(YOU, yours)
    lineage = it.add(YOU, it.read(YOU).lineage, np.array([1], np.int32))
    assert it.holds(YOU, lineage)


def test_several_processes_append_and_nothing_is_lost(tmp_path):
    place = tmp_path / "it"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(place), str(n)]) for n in range(3)]
    assert [one.wait(60) for one in writers] == [0, 0, 0]
    kept = store(place).read(ME)
    assert not kept.notes
    assert kept.old
    found = lists(kept)
    assert all(len(set(one)) == 1 and len(one) == 1 + one[0] % 1000 % 40 for one in found)
    for n in range(3):
        own = [one[0] for one in found if one[0] // 1000 == n]
        assert own == list(range(n * 1000, n * 1000 + 150))


@pytest.mark.parametrize("there", [True, False])
def test_a_directory_is_made_for_its_owner_alone(tmp_path, there):
    place = tmp_path / "it"
    if there:
        place.mkdir(mode=0o755)
    written(place, [[1]])
    assert place.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in place.iterdir()} == {0o600}


def test_a_directory_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="directory of other files"):
        store(tmp_path)
    with pytest.raises(InputError, match="is no directory"):
        store(tmp_path / "mine.txt")
    for call in (answers.entries, lambda place: answers.forget(place, None)):
        with pytest.raises(InputError, match="there are no remembered answers at"):
            call(tmp_path / "nowhere")
    assert os.listdir(tmp_path) == ["mine.txt"]


OTHERS = ("lock", "notes.old", "draft.young", f"{'a' * 32}-{'b' * 15}.old", f"{'A' * 32}-{'b' * 16}.young", "x.txt")


def test_files_of_others_are_no_tenants(tmp_path):
    place = tmp_path / "it"
    written(place, [[1]])
    for name in OTHERS:
        (place / name).write_text("mine")
    assert [entry.tenant for entry in answers.entries(place)] == [ME]
    written(place, [[2]], YOU, tenants=1)
    assert [entry.tenant for entry in answers.entries(place)] == [YOU]
    assert answers.forget(place, None) > 0
    assert sorted(os.listdir(place)) == sorted(["augury-memory.lock", *OTHERS])


def test_a_directory_with_somebody_s_lock_is_not_ours(tmp_path):
    for name in OTHERS:
        (tmp_path / name).write_text("mine")
    for call in (store, answers.entries, lambda place: answers.forget(place, None)):
        with pytest.raises(InputError, match="directory of other files"):
            call(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(OTHERS)


@pytest.mark.parametrize("there", [True, False])
def test_a_directory_that_others_can_change_is_refused(tmp_path, monkeypatch, there):
    place = tmp_path / "it"
    if there:
        written(place, [[1]])
    else:
        place.mkdir()
    for mode in (0o770, 0o702) if there else ():
        place.chmod(mode)
        for call in (store, answers.entries, lambda place: answers.forget(place, None)):
            with pytest.raises(InputError, match=r"others can write to .*it; .*only you can write to$"):
                call(place)
    place.chmod(0o755)
    if there:
        assert len(answers.entries(place)) == 1
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    for call in (store, answers.entries, lambda place: answers.forget(place, None)):
        with pytest.raises(InputError, match=r"it is another user's; "):
            call(place)
    assert place.stat().st_mode & 0o777 == 0o755


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    written(tmp_path / "it", [[1]])
    (tmp_path / "it" / "augury-memory.lock").unlink()
    (tmp_path / "it" / "augury-memory.lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match=r"[Ss]ymbolic links"):
        store(tmp_path / "it").read(ME)
    assert not (tmp_path / "made").exists()


def test_a_link_is_not_followed(tmp_path):
    written(tmp_path / "it", [[1]])
    secret = tmp_path / "secret"
    young(tmp_path / "it").rename(secret)
    store(tmp_path / "it")._path(ME, YOUNG).symlink_to(secret)
    with pytest.raises(OSError, match=r"[Ss]ymbolic links"):
        store(tmp_path / "it").read(ME)


def test_tenants_beyond_the_limit_are_deleted_the_one_used_longest_ago_first(tmp_path):
    for number in range(4):
        written(tmp_path, [[number]], f"{number:032}")
        os.utime(next(tmp_path.glob(f"{number:032}*")), (number, number))
    store(tmp_path).read(f"{0:032}")  # used now
    written(tmp_path, [[4]], f"{4:032}", tenants=3)
    assert {entry.tenant for entry in answers.entries(tmp_path)} == {f"{n:032}" for n in (0, 3, 4)}


def test_a_list_says_how_much_there_is_and_what_is_damaged(tmp_path):
    written(tmp_path, [[1, 2], [3]])
    written(tmp_path, [[4]], YOU)
    with young(tmp_path).open("ab") as file:
        file.write(b"rest")
    mine = next(entry for entry in answers.entries(tmp_path) if entry.tenant == ME)
    assert (mine.answers, mine.tokens, mine.bytes) == (2, 3, 96 + 8 * 2 + 4 * 3 + 4)
    assert "is damaged behind byte" in mine.notes[0]
    assert young(tmp_path).read_bytes().endswith(b"rest"), "a list changes nothing"


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    kept = store(tmp_path)
    kept.add(ME, None, np.array([1, 2], np.int32))
    path = young(tmp_path)
    path.unlink()
    os.mkfifo(path)
    for call in (kept.read, kept.lineage):
        with pytest.raises(Unfit, match="is no regular file"):
            call(ME)
    assert answers.entries(tmp_path) == []
