"""Answers in an object store: joined, never lost, for their tenant alone, and forgotten wherever they are."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import Flaky, broke_off

from augury.datastore import answers, directory, exchange
from augury.datastore.answers import Answers, News
from augury.datastore.bucket import Bucket
from augury.datastore.exchange import OLDEST_S, pull, push
from augury.datastore.records import HEAD, HEADER_BYTES, Header, Record, joined, unpack
from augury.errors import InputError

ME, YOU = "a" * 32, "b" * 32
MOST = 20_000
LOCK, LIST = "augury-memory.lock", "augury-memory.forgotten"
NOON = 1_800_000_000


class Clock:
    """What time it is, for all who write."""

    now = NOON

    def time(self):
        return float(self.now)

    def __getattr__(self, name):
        return getattr(time, name)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    it = Clock()
    for module in (answers, exchange):
        monkeypatch.setattr(module, "time", it)
    Flaky.reset()
    yield it
    Flaky.reset()


@pytest.fixture
def bucket():
    return Bucket("flaky://store/it")


@pytest.fixture(params=["flaky", "memory", "file"])
def any_bucket(request, tmp_path):
    if request.param == "memory":
        import fsspec

        fsspec.filesystem("memory").store.clear()
    return Bucket(f"file://{tmp_path}/store" if request.param == "file" else f"{request.param}://store/it")


def store(place, most=MOST, tenants=10, tokenizer="letters"):
    return Answers(place, tokenizer, most, tenants, pytest.fail)


def learn(place, *texts, tenant=ME, **options):
    """Add texts, as a process that catches up with others."""
    it = store(place, **options)
    reach = it.read(tenant).reach
    for text in texts:
        reach = it.add(tenant, reach, np.array(text, np.int32))
    return reach


def known(place, tenant=ME, **options):
    kept = store(place, **options).read(tenant)
    assert not kept.notes
    return sorted(one.tolist() for one in kept.old + kept.young)


def there(bucket):
    """What a store holds: texts by tenant, of sound objects alone."""
    found = {}
    for name in bucket.sizes("answers"):
        records, _ = unpack(bucket.read(f"answers/{name}", 1 << 30)[HEADER_BYTES:])
        found.setdefault(name[:32], []).extend(sorted(record.tokens.tolist() for record in records))
    return found


def test_what_one_learnt_the_other_knows_and_nothing_twice(any_bucket, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    learn(one, [1], [2, 3])
    learn(one, [9], tenant=YOU)
    learn(two, [4], [2, 3])
    sent = push(one, any_bucket, MOST)
    assert (sent.tenants, sent.answers) == (2, 3)
    got = pull(two, any_bucket, MOST, 10)
    assert (got.tenants, got.answers, got.notes) == (2, 2, [])
    assert known(two) == [[1], [2, 3], [4]]
    assert known(two, YOU) == [[9]]
    sent = push(two, any_bucket, MOST)
    assert (sent.tenants, sent.answers) == (1, 1)
    assert there(any_bucket) == {ME: [[1], [2, 3], [4]], YOU: [[9]]}
    assert pull(one, any_bucket, MOST, 10).answers == 1
    assert known(one) == [[1], [2, 3], [4]]
    assert len(any_bucket.sizes("answers")) == 2, "one object for each tenant"


def test_nothing_is_fetched_and_nothing_sent_where_all_have_the_same(bucket, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    learn(one, [1], [2, 3])
    push(one, bucket, MOST)
    pull(two, bucket, MOST, 10)
    Flaky.calm()
    for done in (
        push(one, bucket, MOST),
        push(two, bucket, MOST),
        pull(one, bucket, MOST, 10),
        pull(two, bucket, MOST, 10),
    ):
        assert (done.tenants, done.answers, done.bytes, done.forgotten) == (0, 0, 0, 0)
    assert (Flaky.opened, Flaky.written) == ([], [])


def test_tokenizers_are_kept_apart_and_tenants_too(bucket, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    learn(one, [1])
    learn(one, [2], tokenizer="other")
    push(one, bucket, MOST)
    pull(two, bucket, MOST, 10)
    assert (known(two), known(two, tokenizer="other"), known(two, YOU)) == ([[1]], [[2]], [])
    learn(two, [3])
    learn(two, [4], tokenizer="other")


def test_several_who_push_at_the_same_time_lose_nothing(bucket, tmp_path, monkeypatch):
    """Each lists before the other has written."""
    one, two = tmp_path / "one", tmp_path / "two"
    learn(one, [1])
    learn(two, [2])
    found = exchange._objects

    def overtaken(it):
        objects = found(it)
        monkeypatch.setattr(exchange, "_objects", found)
        push(two, it, MOST)
        return objects

    monkeypatch.setattr(exchange, "_objects", overtaken)
    push(one, bucket, MOST)
    assert len(bucket.sizes("answers")) == 2, "side by side"
    pull(tmp_path / "three", bucket, MOST, 10)
    assert known(tmp_path / "three") == [[1], [2]]
    push(one, bucket, MOST)
    assert len(bucket.sizes("answers")) == 1
    assert there(bucket) == {ME: [[1], [2]]}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_the_order_all_end_with_all(tmp_path_factory, clock, data):
    """Three replicas learn, push and pull in any order; then each pushes and pulls once more, and all is everywhere."""
    Flaky.reset()
    clock.now = NOON
    bucket, places = Bucket("flaky://store/it"), [tmp_path_factory.mktemp("it") / "it" for _ in range(3)]
    everything, gone = {}, {}
    for place in places:
        learn(place)
    for number in range(data.draw(st.integers(1, 25))):
        clock.now += data.draw(st.sampled_from([0, 1, 100]))
        place = places[data.draw(st.integers(0, 2))]
        tenant = data.draw(st.sampled_from([ME, YOU]))
        what = data.draw(st.sampled_from(["learn", "learn", "push", "pull", "forget"]))
        if what == "learn":
            learn(place, [number], tenant=tenant)
            everything[tenant, number] = clock.now
        elif what == "forget":
            answers.forget(place, tenant)
            if (place / LIST).exists():
                gone[tenant] = clock.now + directory.SKEW_S
            else:  # it was not exchanged yet: then only this directory forgets
                for key in [key for key in everything if key[0] == tenant]:
                    del everything[key]
                return
        else:
            push(place, bucket, MOST) if what == "push" else pull(place, bucket, MOST, 10)
    for _ in range(2):
        for place in places:
            push(place, bucket, MOST)
            pull(place, bucket, MOST, 10)
    for place in places:
        pull(place, bucket, MOST, 10)
    for tenant in (ME, YOU):
        left = sorted([n] for (t, n), at in everything.items() if t == tenant and at > gone.get(t, 0))
        assert [known(place, tenant) for place in places] == [left] * 3
        assert there(bucket).get(tenant, []) == left


# ---- forgetting ----------------------------------------------------------------------------------------------------


def test_forgetting_wins_everywhere_and_what_is_learnt_afterwards_stays(bucket, tmp_path, clock):
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    learn(one, [1])
    learn(two, [2])
    learn(three, [3])  # has pushed nothing yet
    learn(two, [9], tenant=YOU)
    for place in (one, two):
        push(place, bucket, MOST)
        pull(place, bucket, MOST, 10)
    running = store(two)
    reach = running.read(ME).reach
    clock.now += 10
    answers.forget(one, ME)
    clock.now += directory.SKEW_S + 1
    learn(two, [4])
    pull(one, bucket, MOST, 10)
    assert known(one) == [], "what was forgotten here does not come back before it is forgotten there"
    push(one, bucket, MOST)
    assert (one / LIST).read_bytes() == b""
    assert ME not in there(bucket)
    done = push(two, bucket, MOST)
    assert done.forgotten == 1
    assert running.news(ME, reach) is News.FORGOTTEN
    assert running.add(ME, reach, np.array([5], np.int32)) is None
    assert known(two) == [[4]]
    push(three, bucket, MOST)
    assert known(three) == []
    for place in (one, two, three):
        pull(place, bucket, MOST, 10)
        assert (known(place), known(place, YOU)) == ([[4]], [[9]])
    assert there(bucket) == {ME: [[4]], YOU: [[9]]}
    assert (push(two, bucket, MOST).forgotten, pull(two, bucket, MOST, 10).forgotten) == (0, 0), "once"


def test_forgetting_of_whom_nothing_is_kept_here_is_carried_too(bucket, tmp_path, clock):
    one, two = tmp_path / "one", tmp_path / "two"
    learn(two, [1])
    learn(one, [9], tenant=YOU)
    push(one, bucket, MOST)
    push(two, bucket, MOST)
    clock.now += 5
    assert answers.forget(one, ME) == 0
    push(one, bucket, MOST)
    pull(two, bucket, MOST, 10)
    assert known(two) == []
    assert list(there(bucket)) == [YOU]


def test_everybody_is_forgotten_everywhere(bucket, tmp_path, clock):
    one, two = tmp_path / "one", tmp_path / "two"
    for place, number in ((one, 1), (two, 2)):
        learn(place, [number])
        learn(place, [number], tenant=YOU)
        push(place, bucket, MOST)
    clock.now += 5
    answers.forget(one, None)
    push(one, bucket, MOST)
    assert there(bucket) == {}
    pull(two, bucket, MOST, 10)
    assert (known(two), known(two, YOU)) == ([], [])


def test_a_push_that_overtakes_a_forgetting_brings_nothing_back(bucket, tmp_path, clock, monkeypatch):
    """One has read what is there; the tenant is forgotten; then it writes."""
    one, two = tmp_path / "one", tmp_path / "two"
    for place in (one, two):
        learn(place, [1])
        push(place, bucket, MOST)
    learn(two, [2])
    found = exchange._objects

    def overtaken(it):
        objects = found(it)
        monkeypatch.setattr(exchange, "_objects", found)
        answers.forget(one, ME)
        push(one, it, MOST)
        return objects

    monkeypatch.setattr(exchange, "_objects", overtaken)
    push(two, bucket, MOST)
    assert there(bucket) == {ME: [[1], [2]]}, "it came too late to know"
    pull(tmp_path / "three", bucket, MOST, 10)
    assert known(tmp_path / "three") == []
    push(one, bucket, MOST)
    assert there(bucket) == {}
    pull(two, bucket, MOST, 10)
    assert known(two) == []


def test_of_an_object_of_which_a_part_is_forgotten_the_rest_stays_whoever_pushes(bucket, tmp_path, clock):
    one, two = tmp_path / "one", tmp_path / "two"
    learn(one, [1])
    clock.now += 1000
    learn(one, [2])
    push(one, bucket, MOST)
    learn(two, [9], tenant=YOU)
    bucket.replace(f"forgotten/{ME}-{NOON + 500:08x}", b"")
    push(two, bucket, MOST)  # which knows nothing of the tenant
    assert there(bucket) == {ME: [[2]], YOU: [[9]]}


def test_what_a_push_that_was_stopped_left_behind_is_deleted(bucket, tmp_path, clock):
    """It may hold what is forgotten."""
    one = tmp_path / "one"
    learn(one, [1])
    learn(one, [2], tenant=YOU)
    push(one, bucket, MOST)
    for name in (*bucket.sizes("answers"),):
        bucket._files.copy(f"store/it/answers/{name}", f"store/it/answers/{name}.0123abcd.part")
    bucket._files.pipe_file(f"store/it/forgotten/{YOU}-{NOON:08x}.0123abcd.part", b"")
    clock.now += 10
    push(one, bucket, MOST)
    assert len(bucket.sizes("answers")) == 4, "somebody may be writing them"
    answers.forget(one, ME)
    push(one, bucket, MOST)
    assert sorted(name[0] for name in bucket.sizes("answers")) == ["b", "b"]
    clock.now += 4000
    push(one, bucket, MOST)
    assert [name[0] for name in bucket.sizes("answers")] == ["b"]
    assert [*bucket.sizes("forgotten")] == [f"{ME}-{NOON + 70:08x}"]
    assert pull(tmp_path / "two", bucket, MOST, 10).notes == []


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_just_being_written_is_written_though_another_push_takes_it_for_left_behind(
    bucket, tmp_path, clock, monkeypatch, times
):
    """By its name it is as old as the last answer in it, and two machines push at the same moment."""
    one, two = tmp_path / "one", tmp_path / "two"
    learn(one, [1], [2, 3])
    learn(two, [4])
    clock.now += 2 * 3600
    move, moved = bucket._files.mv, []

    def slowly(*names):
        moved.append(names)
        if len(moved) in range(1, 2 * times, 2):  # the second of each is of the other one
            push(two, Bucket("flaky://store/it"), MOST)
        move(*names)

    with monkeypatch.context() as patch:
        patch.setattr(type(bucket._files), "mv", lambda _, *names: slowly(*names))
        push(one, bucket, MOST)
    push(two, bucket, MOST)
    assert there(bucket) == {ME: [[1], [2, 3], [4]]}
    assert not [name for name in bucket.sizes("answers") if "part" in name]


def test_files_that_are_renamed_meanwhile_are_found(bucket, tmp_path, monkeypatch):
    """Names are listed under the lock."""
    one, held = tmp_path / "one", []
    learn(one, [1])
    locked, used = exchange.locked, exchange.used

    @contextmanager
    def watched(*given):
        with locked(*given):
            held.append(1)
            yield
            held.pop()

    monkeypatch.setattr(exchange, "locked", watched)
    monkeypatch.setattr(exchange, "used", lambda place: (held or pytest.fail("not locked")) and used(place))
    push(one, bucket, MOST)
    pull(one, bucket, MOST, 10)


def test_what_is_old_is_let_go_and_so_is_that_it_was_forgotten(bucket, tmp_path, clock):
    one = tmp_path / "one"
    learn(one, [1])
    push(one, bucket, MOST)
    clock.now += 10
    answers.forget(one, YOU)
    answers.forget(one, YOU)
    push(one, bucket, MOST)
    assert len(bucket.sizes("forgotten")) == 1
    clock.now += OLDEST_S // 2
    learn(one, [2])
    clock.now += OLDEST_S // 2 - 2 * 24 * 3600
    push(one, bucket, MOST)
    assert there(bucket) == {ME: [[1], [2]]}
    clock.now += 4 * 24 * 3600
    push(one, bucket, MOST)
    assert there(bucket) == {ME: [[2]]}
    assert known(one) == [[2]]
    assert bucket.sizes("forgotten") == {}
    assert push(one, bucket, MOST).forgotten == 0


def test_an_answer_of_a_clock_that_is_ahead_is_not_shared(bucket, tmp_path, clock):
    one, two = tmp_path / "one", tmp_path / "two"
    clock.now += 10_000
    learn(one, [1])
    clock.now -= 10_000
    learn(one, [2])
    push(one, bucket, MOST)
    pull(two, bucket, MOST, 10)
    assert known(two) == [[2]]


FAR = ("ffffffff", f"{NOON + 9 * 3600:08x}")


@pytest.mark.parametrize("who", [ME, directory.EVERYONE])
@pytest.mark.parametrize("far", FAR)
def test_a_mark_of_a_clock_far_ahead_forgets_once_what_was_learnt_before(bucket, tmp_path, clock, far, who):
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    learn(one, [1])
    push(one, bucket, MOST)
    pull(two, bucket, MOST, 10)
    bucket.replace(f"forgotten/{who}-{far}", b"")
    clock.now += 10
    push(one, bucket, MOST)
    assert (known(one), there(bucket)) == ([], {})
    assert [*bucket.sizes("forgotten")] == [f"{who}-{NOON + 130:08x}"], "as of when it was first seen"
    clock.now += 1000
    learn(one, [2])
    learn(two, [3])  # has not heard of it yet
    for _ in range(3):
        clock.now += 1000
        for place in (one, two):
            push(place, bucket, MOST)
            pull(place, bucket, MOST, 10)
    pull(three, bucket, MOST, 10)
    assert [known(place) for place in (one, two, three)] == [[[2], [3]]] * 3
    assert [*bucket.sizes("forgotten")] == [f"{who}-{NOON + 130:08x}"]


@pytest.mark.parametrize("far", FAR)
def test_who_only_pulls_obeys_a_mark_of_a_clock_far_ahead_once(bucket, tmp_path, clock, far):
    one, two = tmp_path / "one", tmp_path / "two"
    for place, number in ((one, 1), (two, 9)):
        learn(place, [number])
        push(place, bucket, MOST)
    bucket.replace(f"forgotten/{ME}-{far}", b"")
    assert pull(one, bucket, MOST, 10).forgotten == 1
    assert known(one) == []
    clock.now += 1000
    learn(one, [2])
    for _ in range(12):
        clock.now += 3600  # until the time of the nearer one is over
        assert pull(one, bucket, MOST, 10).forgotten == 0
    assert known(one) == [[2]]
    answers.forget(one, ME)
    clock.now += 100
    learn(one, [3])
    pull(one, bucket, MOST, 10)
    assert known(one) == [[3]], "what is forgotten here later is forgotten too"
    clock.now += OLDEST_S - 1000
    learn(one, [4])
    for _ in range(3):
        clock.now += 1000
        pull(one, bucket, MOST, 10)
    assert [4] in known(one), "nor when it was long ago"
    push(one, bucket, MOST)
    assert f"{ME}-{far}" not in bucket.sizes("forgotten")
    assert (one / LIST).read_bytes() == b""


def test_a_push_that_is_stopped_keeps_the_moment_of_a_mark_far_ahead(bucket, tmp_path, clock, monkeypatch):
    one = tmp_path / "one"
    learn(one, [1])
    bucket.replace(f"forgotten/{ME}-ffffffff", b"")

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(exchange, "_clean", stopped)
        with pytest.raises(KeyboardInterrupt):
            push(one, bucket, MOST)
    clock.now += 1000
    learn(one, [2])
    push(one, bucket, MOST)
    assert there(bucket) == {ME: [[2]]}
    assert [*bucket.sizes("forgotten")] == [f"{ME}-{NOON + 120:08x}"]


def test_who_was_forgotten_under_a_clock_far_ahead_is_forgotten_as_of_the_first_push(bucket, tmp_path, clock):
    one, two = tmp_path / "one", tmp_path / "two"
    for place in (one, two):
        learn(place, [1])
        push(place, bucket, MOST)
    clock.now += 10 * 365 * 24 * 3600
    answers.forget(one, ME)
    clock.now = NOON + 50
    push(one, bucket, MOST)
    assert there(bucket) == {}
    assert [*bucket.sizes("forgotten")] == [f"{ME}-{NOON + 170:08x}"]
    clock.now += 1000
    learn(two, [2])
    for _ in range(2):
        push(two, bucket, MOST)
        pull(one, bucket, MOST, 10)
        clock.now += 1000
    assert known(one) == known(two) == [[2]]


def test_a_clock_that_is_behind_shortens_no_forgetting(bucket, tmp_path, clock):
    """To it a sound mark is ahead."""
    one, two, behind = (tmp_path / name for name in ("one", "two", "behind"))
    learn(one, [1])
    learn(two, [1])
    answers.forget(one, ME)
    push(one, bucket, MOST)
    answers.forget(one, ME)
    push(one, bucket, MOST)
    clock.now -= 2000
    learn(behind, [5], tenant=YOU)
    push(behind, bucket, MOST)
    clock.now += 2000
    pull(two, bucket, MOST, 10)
    assert known(two) == []


def test_a_clock_that_is_behind_deletes_no_newer_answers(bucket, tmp_path, clock):
    one, behind = tmp_path / "one", tmp_path / "behind"
    learn(one, [1])
    clock.now += 500
    learn(one, [2])
    push(one, bucket, MOST)
    clock.now = NOON + 100
    learn(behind, [3])
    for _ in range(2):
        push(behind, bucket, MOST)
        pull(behind, bucket, MOST, 10)
        assert known(behind) == [[1], [3]]
    Flaky.calm()
    push(behind, bucket, MOST)
    assert Flaky.written == [], "once"
    clock.now = NOON + 600
    assert sorted(text for text in there(bucket)[ME]) == [[1], [1], [2], [3]], "side by side"
    pull(tmp_path / "two", bucket, MOST, 10)
    assert known(tmp_path / "two") == [[1], [2], [3]]
    push(one, bucket, MOST)
    assert there(bucket) == {ME: [[1], [2], [3]]}
    assert len(bucket.sizes("answers")) == 1


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_no_forgetting_would_reach_does_not_stay_in_a_store(bucket, tmp_path, clock, forgotten):
    """Of a clock that is ahead by more than ours may be behind; or of a tenant who has just been forgotten."""
    one, ahead = tmp_path / "one", tmp_path / "ahead"
    learn(one, [1])
    clock.now += 1800 if forgotten else 9000
    learn(ahead, [2])
    push(ahead, bucket, MOST)
    clock.now = NOON + 5
    if forgotten:
        push(one, bucket, MOST)
        assert [2] in there(bucket)[ME]
        answers.forget(one, ME)
    push(one, bucket, MOST)
    assert there(bucket) == ({} if forgotten else {ME: [[1]]})


def test_a_lineage_that_began_before_ends_whatever_is_left_of_it(bucket, tmp_path, clock):
    """A process may remember what it could not write, or what its files have given up since."""
    one = tmp_path / "one"
    first = learn(one, [0], most=300)
    clock.now += 100
    for number in range(1, 40):
        last = learn(one, [number], most=300)
    left = known(one, most=300)
    assert [0] not in left
    assert first.lineage == last.lineage
    bucket.replace(f"forgotten/{ME}-{NOON + 50:08x}", b"")
    assert pull(one, bucket, 300, 10).forgotten == 1
    assert store(one, most=300).news(ME, last) is News.FORGOTTEN
    assert known(one, most=300) == left
    assert pull(one, bucket, 300, 10).forgotten == 0


def test_a_directory_that_is_not_exchanged_does_not_list_whom_it_forgot(tmp_path):
    learn(tmp_path / "it", [1])
    answers.forget(tmp_path / "it", ME)
    assert os.listdir(tmp_path / "it") == [LOCK]


@pytest.mark.parametrize("how", ["push", "pull"])
def test_who_was_forgotten_before_the_first_exchange_is_asked_for_again(bucket, tmp_path, clock, how):
    """As on a new disk: the directory does not know who it was, and the store still holds the answers."""
    one, two, three = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    learn(one, [1])
    push(one, bucket, MOST)
    clock.now += 100
    learn(two, [2], tenant=YOU)
    answers.forget(two, ME)

    def exchanged(place):
        return push(place, bucket, MOST) if how == "push" else pull(place, bucket, MOST, 10)

    (note,) = exchanged(two).notes
    assert "somebody was forgotten in" in note
    assert "forget them again and push" in note
    assert ME in there(bucket)
    answers.forget(two, ME)
    assert exchanged(two).notes == []
    assert push(two, bucket, MOST).notes == []
    assert ME not in there(bucket)
    learn(three, [3], tenant=YOU)
    assert exchanged(three).notes == [], "nobody was forgotten there"


def test_what_is_half_written_is_deleted_with_the_rest(bucket, tmp_path):
    one = tmp_path / "one"
    for forget in (lambda: answers.forget(one, ME), lambda: pull(one, bucket, MOST, 10)):
        learn(one, [1], tenant=YOU)
        (one / directory.BESIDE).write_bytes(b"half of it")
        forget()
        assert not (one / directory.BESIDE).exists()
        assert known(one, YOU)[0] == [1]


def test_who_only_pulls_does_not_list_for_ever_whom_it_forgot(bucket, tmp_path, clock):
    one = tmp_path / "one"
    pull(one, bucket, MOST, 10)
    answers.forget(one, ME)
    clock.now += 10
    answers.forget(one, YOU)
    clock.now += OLDEST_S + directory.SKEW_S - 5
    pull(one, bucket, MOST, 10)
    assert list(directory.forgotten(one)) == [YOU]


def test_a_file_that_cannot_be_read_is_forgotten_too(bucket, tmp_path, clock):
    one = tmp_path / "one"
    learn(one, [1])
    push(one, bucket, MOST)
    (path,) = one.glob("*.young")
    path.write_bytes(b"of another version" * 10)
    os.utime(path, (NOON, NOON))
    done = push(one, bucket, MOST)
    assert done.notes == [f"{path.name} is of another version of Augury, or no file of it; it is passed over"]
    assert there(bucket) == {ME: [[1]]}, "what is there stays"
    pull(one, bucket, MOST, 10)
    assert path.read_bytes() == b"of another version" * 10
    bucket.replace(f"forgotten/{ME}-{NOON + 5:08x}", b"")
    pull(one, bucket, MOST, 10)
    assert not path.exists()


# ---- running processes ---------------------------------------------------------------------------------------------


def test_a_running_process_reads_only_what_came(bucket, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    learn(one, [1], [2])
    it = store(two)
    reach = it.add(ME, None, np.array([3], np.int32))
    push(one, bucket, MOST)
    pull(two, bucket, MOST, 10)
    assert it.news(ME, reach) is News.MORE
    kept = it.read(ME, reach)
    assert not kept.whole
    assert [one.tolist() for one in kept.young] == [[1], [2]]
    assert it.news(ME, kept.reach) is News.NONE


def test_more_than_there_is_room_for_keeps_the_newest_and_comes_to_rest(bucket, tmp_path, clock):
    """Each learns more than a file holds; nothing is taken up again that had to give way."""
    most = 2000
    places = [tmp_path / name for name in ("one", "two")]
    for number in range(60):
        clock.now += 1
        learn(places[number % 2], [number] * 20, most=most)
    for _ in range(3):
        for place in places:
            push(place, bucket, most)
            pull(place, bucket, most, 10)
    texts = there(bucket)[ME]
    room = 2 * most // (HEAD.size + 80)
    assert texts == [[n] * 20 for n in range(60 - room, 60)]
    for place in places:
        own = known(place, most=most)
        assert own == texts[-len(own) :]
        assert most < len(own) * (HEAD.size + 80) <= 2 * most
        assert all(path.stat().st_size <= most for path in place.iterdir())
    Flaky.calm()
    for place in places:
        assert push(place, bucket, most).answers == 0
        assert pull(place, bucket, most, 10).answers == 0
    assert not Flaky.written
    reach = learn(places[0], [99] * 20, most=most)
    assert store(places[0], most=most).news(ME, reach) is News.NONE
    assert [99] * 20 in known(places[0], most=most)


def test_tenants_are_limited_and_the_latest_are_taken_up(bucket, tmp_path, clock):
    one, two = tmp_path / "one", tmp_path / "two"
    for number in range(6):
        clock.now += 10
        learn(one, [number], tenant=f"{number:032x}")
    push(one, bucket, MOST)
    learn(two, [7], tenant=YOU)  # used now
    for path in two.glob("*.young"):
        os.utime(path, (clock.now + 5, clock.now + 5))
    pull(two, bucket, MOST, 3)
    assert {entry.tenant for entry in answers.entries(two)} == {YOU, f"{5:032x}", f"{4:032x}"}
    for _ in range(2):
        assert pull(two, bucket, MOST, 3).tenants == 0
    used = {entry.tenant: entry.used for entry in answers.entries(two)}
    assert used[f"{4:032x}"] == NOON + 50, "nobody asked here"


def test_a_lock_that_is_held_is_said(bucket, tmp_path, monkeypatch):
    learn(tmp_path / "it", [1])
    monkeypatch.setattr(exchange, "_WAIT_S", 0.01)
    with (tmp_path / "it" / LOCK).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for call in (lambda: push(tmp_path / "it", bucket, MOST), lambda: pull(tmp_path / "it", bucket, MOST, 10)):
            with pytest.raises(BlockingIOError, match="another process has locked it"):
                call()


# ---- what a store may do and say -----------------------------------------------------------------------------------


def test_whatever_breaks_off_nothing_is_lost(bucket, tmp_path):
    one, two, whole = (tmp_path / name for name in ("one", "two", "whole"))
    learn(one, [1] * 50)
    push(one, bucket, MOST)
    learn(two, [2] * 50, [3] * 50)
    broken = 0
    for after in (0, 1, 100, 300, 400, 700, 900, 1200):
        for call in (lambda: push(two, bucket, MOST), lambda: pull(one, bucket, MOST, 10)):
            Flaky.fails_after = after
            broken += broke_off(call)
            Flaky.calm()
            shutil.rmtree(whole, ignore_errors=True)
            pull(whole, bucket, MOST, 10)
            assert [1] * 50 in known(whole)
            assert [1] * 50 in known(one)
            assert [3] * 50 in known(two)
    assert broken > 5
    push(two, bucket, MOST)
    assert there(bucket) == {ME: [[1] * 50, [2] * 50, [3] * 50]}
    assert len(bucket.sizes("answers")) == 1


def test_files_that_are_cut_are_passed_over(bucket, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    learn(one, [1])
    push(one, bucket, MOST)
    learn(two, [2])
    Flaky.cut = 3
    done = pull(two, bucket, MOST, 10)
    assert len(done.notes) == 1
    assert done.notes[0].endswith("is damaged: its checksum is wrong; it is passed over")
    assert known(two) == [[2]]
    push(two, bucket, MOST)
    Flaky.calm()
    assert there(bucket) == {ME: [[1], [2]]}, "what could not be read was not deleted"
    pull(two, bucket, MOST, 10)
    assert known(two) == [[1], [2]]


def test_lists_that_are_old_do_no_harm(bucket, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    learn(one, [1])
    push(one, bucket, MOST)
    old = bucket._files.ls("store/it/answers", detail=True)
    learn(one, [2])
    push(one, bucket, MOST)
    Flaky.stale = {"answers": old}
    done = pull(two, bucket, MOST, 10)
    assert (done.notes, known(two)) == ([], [])
    learn(two, [3])
    push(two, bucket, MOST)
    Flaky.calm()
    pull(two, bucket, MOST, 10)
    assert known(two) == [[1], [2], [3]]
    Flaky.stale = {"answers": [], "forgotten": []}
    assert pull(two, bucket, MOST, 10).notes == []
    assert known(two) == [[1], [2], [3]]


def test_what_is_larger_than_it_may_be_is_not_fetched(bucket, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    learn(one, [1] * 2000)
    push(one, bucket, MOST)
    (name,) = bucket.sizes("answers")
    Flaky.calm()
    done = pull(two, bucket, 1000, 10)
    assert done.notes == [
        f"{name} has {HEADER_BYTES + HEAD.size + 8000} bytes, the limit is {HEADER_BYTES + 2000}; raise it with --mb"
    ]
    assert Flaky.opened == []
    entry = bucket._files.ls("store/it/answers", detail=True)[0]
    Flaky.stale = {"answers": [{**entry, "size": 10}]}
    (said,) = pull(two, bucket, 1000, 10).notes
    assert said.endswith(
        f"has more than the {HEADER_BYTES + 2000} bytes that are read of such a file; it is passed over"
    )


REST = f"00000001.00000001.{'0' * 64}"
NAME = f"{ME}-{'0' * 16}"
EVIL = (
    "../../evil", "..", f"../{NAME}.{REST}", f"{NAME}.young", "augury-memory.lock", f"{ME}/x.{REST}", f"{NAME}.1.1",
    f"{NAME}.{REST}\n", f"{NAME}.{REST}.part",
)  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_names_that_are_none_are_not_looked_at(bucket, tmp_path, name):
    Flaky.stale = {"answers": [{"name": f"/store/it/answers/{name}", "size": 10, "type": "file"}]}
    learn(tmp_path / "it", [1])
    pull(tmp_path / "it", bucket, MOST, 10)
    assert sorted(os.listdir(tmp_path)) == ["it"]
    assert len(os.listdir(tmp_path / "it")) == 3
    if "/" not in name:
        push(tmp_path / "it", bucket, MOST)
        assert Flaky.opened == []


@pytest.mark.parametrize(
    "data",
    [
        b"", b"short", Header(bytes(16), YOU, "0" * 16, 0).pack() + Record(NOON, np.array([1], np.int32)).pack(),
        Header(bytes(16), ME, "1" * 16, 0).pack() + Record(NOON, np.array([1], np.int32)).pack(),
        Header(bytes(16), ME, "0" * 16, 0).pack() + Record(NOON, np.array([1], np.int32)).pack() + b"rest",
        Header(bytes(16), ME, "0" * 16, 0).pack() + Record(NOON, np.array([-1], np.int32)).pack(),
    ],
)  # fmt: skip
def test_an_object_that_is_not_what_its_name_says_is_passed_over(bucket, tmp_path, data):
    """Whoever can write to the store can put there what it likes, and under another's name nothing of it is used."""
    name = f"{ME}-{'0' * 16}.{NOON:08x}.{NOON:08x}.{hashlib.sha256(data).hexdigest()}"
    bucket.replace(f"answers/{name}", data)
    done = pull(tmp_path / "it", bucket, MOST, 10)
    assert done.notes[0].startswith(name)
    assert done.notes[0].endswith("it is passed over")
    assert sorted(os.listdir(tmp_path / "it")) == [LIST, LOCK]


def test_a_damaged_list_of_the_forgotten_says_what_it_can(bucket, tmp_path):
    one = tmp_path / "one"
    learn(one, [1])
    push(one, bucket, MOST)
    (one / LIST).write_bytes(b"\xff\n" + f"{ME} {NOON}\n../x 5\n{YOU} 99999999999\n".encode())
    push(one, bucket, MOST)
    assert known(one) == []
    assert list(bucket.sizes("forgotten")) == [f"{ME}-{NOON:08x}"]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 2), min_size=1, max_size=3)), max_size=12),
    st.randoms(),
    st.integers(0, 200),
)
def test_joining_is_the_same_in_any_order(pairs, random, most):
    records = [Record(at, np.array(text, np.int32)) for at, text in pairs]
    shuffled = [*records]
    random.shuffle(shuffled)

    def plain(found):
        return [(one.learnt, one.tokens.tolist()) for one in found]

    once = joined(records, most)
    assert (
        plain(once)
        == plain(joined(shuffled, most))
        == plain(joined([*once, *shuffled], most))
        == plain(joined(once, most))
    )
    assert sum(one.size for one in once) <= most
    assert len({tuple(one.tokens.tolist()) for one in once}) == len(once)
    assert plain(once) == sorted(plain(once), key=lambda one: one[0])


def test_there_must_be_a_directory_to_push(bucket, tmp_path):
    with pytest.raises(InputError, match="there are no remembered answers at"):
        push(tmp_path / "nowhere", bucket, MOST)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    with pytest.raises(InputError, match="directory of other files"):
        pull(tmp_path / "full", bucket, MOST, 10)
