"""Answers on disk: what is written is read, what is damaged is cut off, what is deleted stays so."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.datastore import answers, directory
from augury.datastore.answers import Answers, News, Reach
from augury.datastore.directory import OLD, YOUNG
from augury.datastore.records import HEAD, HEADER_BYTES, Record, Unfit
from augury.errors import InputError

ME, YOU = "a" * 32, "b" * 32
NOTES = []
"""What was said of files that were written to."""

records = st.lists(
    st.lists(st.integers(0, 2**31 - 2), min_size=1, max_size=30).map(lambda one: np.array(one, np.int32)), max_size=8
)


def store(place, **options):
    return Answers(place, **{"tokenizer": "letters", "most": 10_000, "tenants": 10, "note": NOTES.append, **options})


def written(place, texts, tenant=ME, reach=None, **options):
    """Add texts; gives how far they are read."""
    it = store(place, **options)
    for text in texts:
        reach = it.add(tenant, reach, np.array(text, np.int32))
        assert reach is not None
    return reach


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
    reach = written(place, texts)
    whole = young(place).read_bytes()
    sizes = [HEAD.size + 4 * len(one) for one in texts]
    at = data.draw(st.integers(HEADER_BYTES, len(whole) - 1))
    if data.draw(st.booleans()):
        young(place).write_bytes(whole[:at])
    else:
        damaged = bytearray(whole)
        damaged[at] ^= data.draw(st.integers(1, 255))
        young(place).write_bytes(damaged)
    size = young(place).stat().st_size
    sound = sum(HEADER_BYTES + sum(sizes[: n + 1]) <= at for n in range(len(sizes)))
    kept = store(place).read(ME)
    assert lists(kept) == [one.tolist() for one in texts[:sound]]
    assert bool(kept.notes) == (size > HEADER_BYTES + sum(sizes[:sound]))
    # What comes next stands behind what is sound.
    assert store(place).add(ME, reach, np.array([7], np.int32)).lineage == reach.lineage
    kept = store(place).read(ME)
    assert lists(kept) == [*(one.tolist() for one in texts[:sound]), [7]]
    assert not kept.notes


@pytest.mark.parametrize("known", [True, False])
def test_what_comes_behind_a_record_that_somebody_did_not_finish_is_kept(tmp_path, known):
    """Another process is killed while it writes, and one that runs since before goes on."""
    it, NOTES[:] = store(tmp_path), []
    reach = it.add(ME, it.add(ME, None, np.array([1, 2], np.int32)), np.array([3], np.int32))
    if not known:
        reach = None
    with young(tmp_path).open("ab") as file:
        file.write((5).to_bytes(4, "little") + bytes(10))
    for token in (4, 5):
        reach = it.add(ME, reach, np.array([token], np.int32))
    kept = store(tmp_path).read(ME)
    assert lists(kept) == [[1, 2], [3], [4], [5]]
    assert not kept.notes
    (said,) = NOTES
    size = HEADER_BYTES + 2 * HEAD.size + 12 + 14
    assert said == f"{young(tmp_path).name} is damaged: its last 14 of {size} bytes are cut off"


def test_of_a_file_that_others_wrote_to_only_that_is_read(tmp_path, monkeypatch):
    read, seen = answers._records, []

    def watched(file, begin):
        seen.append(begin)
        return read(file, begin)

    monkeypatch.setattr(answers, "_records", watched)
    it, reach = store(tmp_path, most=300), None
    for token in range(40):  # some files are filled
        reach = it.add(ME, reach, np.array([token], np.int32))
    assert not seen
    assert it.news(ME, reach) is News.NONE
    other = store(tmp_path, most=300)
    theirs = other.read(ME).reach
    assert theirs == reach
    seen.clear()
    theirs = other.add(ME, theirs, np.array([40], np.int32))
    assert other.news(ME, theirs) is News.NONE
    assert not seen
    assert it.news(ME, reach) is News.MORE
    mine = it.add(ME, reach, np.array([41], np.int32))  # it has not seen 40, and does not say so
    assert seen == [reach.end]
    assert (mine.at, mine.head) == (reach.at, reach.head)
    kept = it.read(ME, mine)
    assert seen == [reach.end, reach.end]
    assert (kept.old, lists(kept), kept.whole) == ([], [[40], [41]], False)
    assert it.news(ME, kept.reach) is News.NONE
    assert lists(store(tmp_path).read(ME))[-3:] == [[39], [40], [41]]


def test_a_record_that_was_read_and_is_cut_since_is_noticed(tmp_path):
    it, NOTES[:] = store(tmp_path), []
    reach = it.add(ME, it.add(ME, None, np.array([1], np.int32)), np.array([2, 3], np.int32))
    os.truncate(young(tmp_path), reach.end - 2)
    other = store(tmp_path)
    added = other.add(ME, reach, np.array([4], np.int32))
    assert len(NOTES) == 1
    assert lists(store(tmp_path).read(ME)) == [[1], [4]]
    assert it.news(ME, added) is News.MORE
    os.truncate(young(tmp_path), young(tmp_path).stat().st_size - 2)
    assert it.news(ME, reach) is News.MORE
    kept = it.read(ME, reach)
    assert (lists(kept), kept.whole) == ([[1]], True)
    assert "its last 14 of" in kept.notes[0]


def test_what_others_added_is_read_across_a_file_that_was_filled_meanwhile(tmp_path):
    it, other = store(tmp_path, most=300), store(tmp_path, most=300)
    mine = it.add(ME, None, np.array([0], np.int32))
    theirs, number = other.read(ME).reach, 1
    while not young(tmp_path).with_suffix(OLD).exists():
        theirs = other.add(ME, theirs, np.array([number], np.int32))
        number += 1
    assert it.news(ME, mine) is News.MORE
    kept = it.read(ME, mine)
    assert not kept.whole
    assert lists(kept) == [[n] for n in range(1, number)]
    for n in range(number, number + 40):  # so many that what was read is no longer there
        theirs = other.add(ME, theirs, np.array([n], np.int32))
    again = it.read(ME, kept.reach)
    assert again.whole
    assert lists(again) == lists(store(tmp_path).read(ME))
    assert it.news(ME, again.reach) is News.NONE


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_who_catches_up_has_what_a_fresh_reader_has(tmp_path_factory, data):
    """Two processes in any order of adding and reading, with damage behind the end, files filled and renamed."""
    place = tmp_path_factory.mktemp("it")
    stores = [store(place, most=400), store(place, most=400)]
    reaches, seen, number = [None, None], [[], []], 0
    for _ in range(data.draw(st.integers(1, 40))):
        who = data.draw(st.integers(0, 1))
        what = data.draw(st.sampled_from(["add", "add", "read", "tear"]))
        if what == "add":
            number += 1
            size = data.draw(st.sampled_from([1, 3, 30]))
            own = np.full(size, number, np.int32)
            reaches[who] = stores[who].add(ME, reaches[who], own)
            seen[who].append(own.tolist())
        elif what == "read":
            if reaches[who] and stores[who].news(ME, reaches[who]) is News.NONE:
                continue
            kept = stores[who].read(ME, reaches[who])
            seen[who] = [*([] if kept.whole else seen[who]), *lists(kept)]
            reaches[who] = kept.reach
        elif young_there := list(place.glob(f"{ME}*{YOUNG}")):
            with young_there[0].open("ab") as file:
                file.write(b"\5\0\0\0torn")
    for who in (0, 1):
        if reaches[who] and stores[who].news(ME, reaches[who]) is not News.NONE:
            kept = stores[who].read(ME, reaches[who])
            seen[who] = [*([] if kept.whole else seen[who]), *lists(kept)]
            assert stores[who].news(ME, kept.reach) is News.NONE
        if reaches[who]:
            assert {one[0] for one in lists(store(place).read(ME))} <= {one[0] for one in seen[who]}


def test_a_record_that_no_augury_wrote_is_damage(tmp_path):
    written(tmp_path, [[1, 2]])
    for token in (-1, 2**31 - 1):
        with young(tmp_path).open("ab") as file:
            file.write(Record(7, np.array([token], np.int32)).pack())
        assert lists(store(tmp_path).read(ME)) == [[1, 2]]
    with young(tmp_path).open("ab") as file:
        file.write(bytes(64))  # as a file system may leave them behind a power cut
    assert lists(store(tmp_path).read(ME)) == [[1, 2]]


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (0, b"X", "another version of Augury, or no file of it"),
        (8, b"\1", "another version of Augury"),
        (20, b"X", "the checksum of its header is wrong"),
        (HEADER_BYTES - 1, b"X", "the checksum of its header is wrong"),
        (None, b"short", "it has no whole header"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_and_the_file_left_alone(tmp_path, place, value, says):
    written(tmp_path, [[1, 2]])
    data = young(tmp_path).read_bytes()
    data = value if place is None else data[:place] + value + data[place + 1 :]
    young(tmp_path).write_bytes(data)
    it, record = store(tmp_path), np.array([1], np.int32)
    for call in (lambda: it.read(ME), lambda: it.add(ME, None, record), lambda: it.news(ME, Reach(b""))):
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
    reach = written(tmp_path, [[n] * 10 for n in range(12)], most=300)  # four records a file
    kept = store(tmp_path).read(ME)
    assert (len(kept.old), len(kept.young)) == (4, 4)
    assert lists(kept) == [[n] * 10 for n in range(4, 12)]
    assert kept.reach == reach
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 600
    written(tmp_path, [[99] * 200], reach=reach, most=300)  # one too large for any file: it has one of its own
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
    reach = written(tmp_path, [[1], [2]])
    young(tmp_path).rename(young(tmp_path).with_suffix(OLD))
    assert store(tmp_path).news(ME, reach) is News.NONE
    store(tmp_path)._path(ME, YOUNG).touch()  # made, and not yet written to
    assert lists(store(tmp_path).read(ME)) == [[1], [2]]
    assert written(tmp_path, [[3]], reach=reach).lineage == reach.lineage
    assert lists(store(tmp_path).read(ME)) == [[1], [2], [3]]


def test_deleted_is_deleted_for_whoever_wrote_before(tmp_path):
    reach = written(tmp_path, [[1]])
    written(tmp_path, [[1]], tokenizer="other")
    written(tmp_path, [[2]], YOU)
    assert answers.forget(tmp_path, ME) > 0
    assert answers.forget(tmp_path, ME) == 0
    assert not list(tmp_path.glob(f"{ME}*"))
    assert store(tmp_path).add(ME, reach, np.array([3], np.int32)) is None
    anew = written(tmp_path, [[4]])
    assert anew.lineage != reach.lineage
    assert store(tmp_path).add(ME, reach, np.array([3], np.int32)) is None
    assert lists(store(tmp_path).read(ME)) == [[4]]
    assert answers.forget(tmp_path, None) > 0
    assert os.listdir(tmp_path) == ["augury-memory.lock"]


@pytest.mark.parametrize("fails", ["short", "error"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, fails, before):
    reach = written(tmp_path, [[n] for n in range(before)])
    write = os.write

    def full(file, data):
        if fails == "short":
            return write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            store(tmp_path).add(ME, reach, np.arange(50, dtype=np.int32))
    kept = store(tmp_path).read(ME)
    assert (lists(kept) if kept else []) == [[n] for n in range(before)]
    assert not (kept and kept.notes)
    written(tmp_path, [[9]], reach=reach)
    assert lists(store(tmp_path).read(ME)) == [*([n] for n in range(before)), [9]]


@pytest.mark.parametrize("tenant", [ME, None])
def test_who_is_stopped_while_it_forgets_has_listed_it(tmp_path, monkeypatch, tenant):
    """Else what is deleted here would come back from elsewhere."""
    written(tmp_path, [[1]])
    directory.exchanged(tmp_path)

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(directory, "delete", stopped)
        with pytest.raises(KeyboardInterrupt):
            answers.forget(tmp_path, tenant)
    assert [*directory.forgotten(tmp_path)] == [tenant or directory.EVERYONE]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_on_a_full_disk_forgetting_makes_the_room_that_its_list_takes(tmp_path, monkeypatch, error):
    written(tmp_path, [[1]])
    directory.exchanged(tmp_path)
    write = directory.write

    def full(path, data):
        if list(tmp_path.glob("*.young")):
            raise OSError(error, os.strerror(error))
        write(path, data)

    monkeypatch.setattr(directory, "write", full)
    if error == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            answers.forget(tmp_path, ME)
        assert store(tmp_path).read(ME) is not None
        assert directory.forgotten(tmp_path) == {}
    else:
        assert answers.forget(tmp_path, ME) > 0
        assert [*directory.forgotten(tmp_path)] == [ME]


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
        store(tmp_path).add(ME, None, np.array([4], np.int32))
    assert path.stat().st_size > 0


def test_a_lock_that_is_not_given_back_is_not_waited_for(tmp_path, monkeypatch):
    reach = written(tmp_path, [[1]])
    monkeypatch.setattr(answers, "_PATIENTLY_S", 0.01)
    with (tmp_path / "augury-memory.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        it = store(tmp_path)
        for call in (
            lambda: it.add(ME, reach, np.array([2], np.int32)),
            lambda: it.read(ME),
            lambda: answers.entries(tmp_path),
            lambda: answers.forget(tmp_path, None),
        ):
            with pytest.raises(BlockingIOError, match="another process has locked it"):
                call()
    written(tmp_path, [[2]], reach=reach)
    assert lists(store(tmp_path).read(ME)) == [[1], [2]]


def test_a_list_lets_others_write_between_two_tenants(tmp_path, monkeypatch):
    for tenant in (ME, YOU):
        written(tmp_path, [[1]], tenant)
    read, locked, seen = answers._records, answers.locked, []

    @contextmanager
    def watched(*given):
        with locked(*given):
            seen.append("locked")
            yield

    monkeypatch.setattr(answers, "locked", watched)
    monkeypatch.setattr(answers, "_records", lambda *given: seen.append("read") or read(*given))
    assert len(answers.entries(tmp_path)) == 2
    assert seen == ["locked", *["locked", "read"] * 2]


def test_who_is_forgotten_while_a_list_is_made_is_not_in_it(tmp_path, monkeypatch):
    written(tmp_path, [[1]])
    used = answers.used
    monkeypatch.setattr(answers, "used", lambda place: {**used(place), f"{YOU}-{'0' * 16}": 0.0})
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
from augury.datastore import answers, directory
answers._BRIEFLY_S = 60  # nothing may be left out
it = answers.Answers(Path(sys.argv[1]), "letters", 25_000, 10, print)
for n in range(150):
    assert it.add("a" * 32, None, np.full(1 + n % 40, int(sys.argv[2]) * 1000 + n, np.int32)) is not None
"""


def test_forgetting_is_known_without_files_and_tells_no_name(tmp_path):
    it = store(tmp_path)
    mine, yours = it.read(ME).reach, it.read(YOU).reach
    answers.forget(tmp_path, ME)
    assert it.news(ME, mine) is News.FORGOTTEN
    assert it.read(ME, mine) is None
    assert it.news(YOU, yours) is News.NONE
    assert it.add(ME, mine, np.array([1], np.int32)) is None
    assert os.listdir(tmp_path) == ["augury-memory.lock"]
    assert ME[:8].encode() not in (tmp_path / "augury-memory.lock").read_bytes()
    answers.forget(tmp_path, None)
    assert it.news(YOU, yours) is News.FORGOTTEN
    reach = it.add(YOU, it.read(YOU).reach, np.array([1], np.int32))
    assert it.news(YOU, reach) is News.NONE


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
    assert (mine.answers, mine.tokens, mine.bytes) == (2, 3, HEADER_BYTES + HEAD.size * 2 + 4 * 3 + 4)
    assert "is damaged behind byte" in mine.notes[0]
    assert young(tmp_path).read_bytes().endswith(b"rest"), "a list changes nothing"


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    kept = store(tmp_path)
    kept.add(ME, None, np.array([1, 2], np.int32))
    path = young(tmp_path)
    path.unlink()
    os.mkfifo(path)
    for call in (kept.read, lambda tenant: kept.news(tenant, Reach(b""))):
        with pytest.raises(Unfit, match="is no regular file"):
            call(ME)
    assert answers.entries(tmp_path) == []
