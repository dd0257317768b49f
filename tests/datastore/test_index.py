"""What an index answers, against a scan of the texts; what it refuses; what survives which accident."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import signal

import numpy as np
import pytest
from corpus import Letters, built, written
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.datastore import change
from augury.datastore.change import add, build, remove
from augury.datastore.documents import Reading
from augury.datastore.index import MANIFEST, NOTHING, Index, Manifest, locate, names
from augury.datastore.order import DEPTH, END, as_values, keys, order, value_type
from augury.datastore.segment import Layout, Segment
from augury.errors import InputError

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "sat on the mat again"]


def ids(text):
    return Letters().encode(text).tolist()


def shared(context, text, position):
    """Tokens that a context and the one of a position share, ``DEPTH`` at most."""
    length = 0
    while length < min(DEPTH, len(context), position + 1) and context[-1 - length] == text[position - length]:
        length += 1
    return length


def scan(texts, context, shortest):
    """The longest match, and what followed each place that matches as long."""
    found = [(shared(context, t, p), t[p + 1 :]) for t in texts for p in range(len(t) - 1)]
    longest = max([n for n, _ in found], default=0)
    return (longest, sorted(rest for n, rest in found if n == longest)) if longest >= shortest else (0, [])


def answered(index, context, count, shortest, far=40):
    found = index.followed(context, count, shortest, far)
    rows = [row[: row.index(NOTHING)] if NOTHING in row else row for row in found.ahead.tolist()]
    assert len(found.lengths) == len(rows) <= count
    return found, rows


texts = st.lists(st.text("ab", min_size=2, max_size=30), min_size=1, max_size=12)


# Search


@settings(max_examples=60, deadline=None)
@given(
    texts, st.text("abc", min_size=1, max_size=20), st.integers(1, 4), st.sampled_from([1, 3, 64]), st.integers(1, 3)
)
def test_the_longest_match_is_that_of_a_scan(tmp_path_factory, documents, context, shortest, count, splits):
    place = tmp_path_factory.mktemp("index") / "it"
    parts = np.array_split(np.arange(len(documents)), splits)
    built(place, [documents[i] for i in parts[0]] or ["zz"])
    for number, part in enumerate(parts[1:]):
        if len(part):
            add(place, written(place.parent / f"more{number}", [documents[i] for i in part]), Letters())
    index = Index(place)
    spelt = [ids(d) for d in documents]
    longest, rests = scan(spelt, ids(context), shortest)
    found, rows = answered(index, ids(context), count, shortest)
    best = [row for n, row in zip(found.lengths, rows, strict=True) if n == longest]
    assert max(found.lengths, default=0) == longest
    assert found.whole == (len(rests) <= count)
    if found.whole:
        assert sorted(best) == rests
    else:
        assert len(best) == count
        assert all(row in rests for row in best)
    for length, row in zip(found.lengths, rows, strict=True):  # the shorter ones are real too
        assert shortest <= length <= longest
        assert any(shared(ids(context), t, p) == length and t[p + 1 :] == row for t in spelt for p in range(len(t) - 1))
    assert index.check() == []
    shutil.rmtree(place)


@pytest.mark.parametrize("vocab_size", [200, 100_000])
def test_ranges_longer_than_a_block_are_found_whole(tmp_path, vocab_size):
    dice = np.random.default_rng(0)
    documents = ["".join(dice.choice(list("ab"), 400)) for _ in range(20)]
    built(tmp_path / "it", documents, Letters(vocab_size))
    index = Index(tmp_path / "it")
    assert index.segments[0].values.dtype.itemsize == (2 if vocab_size < 65536 else 4)
    for context in ("a", "ab", "abba", "bbbbb", "abababa"):
        near = index.segments[0].near(as_values(np.array(ids(context)[::-1]), index.segments[0].values.dtype))
        places = [(t, p) for t in documents for p in range(len(t) - 1) if t[: p + 1].endswith(context)]
        assert (near.length, near.high - near.low) == (len(context), len(places))
        found, _ = answered(index, ids(context), 8, 1)
        assert found.lengths == [len(context)] * 8


def test_occurrences_are_spread_over_all(tmp_path):
    built(tmp_path / "it", [f"xy{chr(97 + i // 40)}{i}" for i in range(400)])
    _, rows = answered(Index(tmp_path / "it"), ids("xy"), 40, 2)
    assert len({row[0] for row in rows}) >= 2
    assert len({tuple(row) for row in rows}) == 40


def test_documents_do_not_run_into_each_other(tmp_path):
    built(tmp_path / "it", ["ab", "cd", "cdx"])
    index = Index(tmp_path / "it")
    found, rows = answered(index, ids("abc"), 8, 1)
    assert max(found.lengths) == 1
    assert all(len(row) == 1 or row == ids("dx") for row in rows)
    _, rows = answered(index, ids("a"), 8, 1)
    assert rows == [ids("b")]


def test_ids_that_are_none_match_nothing(tmp_path):
    built(tmp_path / "it", TEXTS)
    index = Index(tmp_path / "it")
    for context in ([], [500, 501], [-1, -1], [7], [2**31 - 1] * 3):
        assert index.followed(context, 8, 2, 4).lengths == []
        assert index.followed(context, 8, 2, 4).ahead.shape == (0, 4)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=40), min_size=1, max_size=8), st.sampled_from([9, 99999])
)
def test_the_order_is_that_of_the_keys(documents, vocab_size):
    kind = value_type(vocab_size)
    parts = [v for d in documents for v in (as_values(np.array(d), kind), np.array([END], kind))]
    values = np.concatenate([np.zeros(DEPTH, kind), *parts])
    places = order(values)
    found = keys(values, places)
    assert (found[1:] >= found[:-1]).all()
    assert sorted(places.tolist()) == [p for p in range(len(values) - 1) if values[p] != END != values[p + 1]]


# Changes


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_changes_leave_what_a_fresh_build_would_answer(tmp_path_factory, data):
    place = tmp_path_factory.mktemp("index") / "it"
    documents = data.draw(texts)
    paths = written(place.parent / "files", documents)
    there = dict(zip(paths, documents, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        run = data.draw(st.sampled_from([5, 50, 10_000]))
        patch.setattr(change, "_RUN", run)
        build(place, paths, Letters(), "letters")
        for _ in range(data.draw(st.integers(1, 4))):
            path = data.draw(st.sampled_from(paths))
            if path in there and len(there) > 1 and data.draw(st.booleans()):
                assert remove(place, [path]).removed == 1
                del there[path]
            else:
                there[path] = data.draw(st.text("ab", min_size=2, max_size=30))
                path.write_text(there[path])
                add(place, [path], Letters())
    index = Index(place)
    assert index.check() == []
    assert {s.path for s in index.manifest.sources.values()} == {str(p) for p in there}
    assert sum(s.tokens for s in index.segments) == index.manifest.tokens
    context = data.draw(st.text("ab", min_size=1, max_size=6))
    if run > 30:  # else documents are cut
        longest, rests = scan([ids(t) for t in there.values()], ids(context), 1)
        found, rows = answered(index, ids(context), 64, 1)
        assert sorted(r for n, r in zip(found.lengths, rows, strict=True) if n == longest) == rests[:64]
    assert sorted(os.listdir(place)) == sorted([MANIFEST, "lock", *(p.file for p in index.manifest.segments)])
    shutil.rmtree(place.parent)


def test_many_runs_are_merged_into_one(tmp_path, monkeypatch):
    dice = np.random.default_rng(1)
    documents = ["".join(dice.choice(list("abc"), 90)) for _ in range(60)]
    built(tmp_path / "one", documents)
    monkeypatch.setattr(change, "_RUN", 200)
    monkeypatch.setattr("augury.datastore.merge._TOGETHER", 64)
    built(tmp_path / "many", documents)
    one, many = Index(tmp_path / "one"), Index(tmp_path / "many")
    assert many.check() == []
    assert len(many.segments) == 1
    for context in ("ab", "cabca", "bbbb"):
        a, b = (answered(i, ids(context), 64, 2) for i in (one, many))
        assert sorted(a[0].lengths) == sorted(b[0].lengths)


def test_segments_stay_few_as_files_are_added(tmp_path):
    built(tmp_path / "it", ["word " * 2000])
    for number in range(30):
        add(tmp_path / "it", written(tmp_path / f"f{number}", [f"note {number} of many"]), Letters())
        assert len(Index(tmp_path / "it").segments) <= 4
    assert len(Index(tmp_path / "it").manifest.sources) == 31


def test_segments_too_large_together_stay_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(change, "_RUN", 100)
    monkeypatch.setattr(change, "MAX_VALUES", 450)
    documents = [f"{i:02} " * 30 for i in range(12)]
    built(tmp_path / "it", documents)
    index = Index(tmp_path / "it")
    assert len(index.segments) > 2
    assert index.check() == []
    for i in (0, 7, 11):
        assert answered(index, ids(f"{i:02} {i:02}"), 64, 2)[0].lengths[0] == 5


def test_a_file_is_read_again_only_if_it_changed(tmp_path):
    paths = written(tmp_path / "files", TEXTS)
    build(tmp_path / "it", paths, Letters(), "letters")
    assert add(tmp_path / "it", paths, Letters()).unchanged == 4
    paths[0].write_text("the cat sat on my lap")
    outcome = add(tmp_path / "it", paths, Letters())
    assert (outcome.added, outcome.unchanged) == (1, 3)
    index = Index(tmp_path / "it")
    assert answered(index, ids("on my "), 4, 4)[1] == [ids("lap")]
    assert max(answered(index, ids("the cat sat on t"), 4, 1)[0].lengths) < 16


def test_what_is_removed_is_gone_from_the_disk(tmp_path):
    secret = "my password is swordfish"
    paths = written(tmp_path / "files", [*TEXTS, secret])
    build(tmp_path / "it", paths, Letters(), "letters")
    spelt = as_values(Letters().encode(secret), value_type(200)).tobytes()
    assert any(spelt in p.read_bytes() for p in (tmp_path / "it").iterdir())
    remove(tmp_path / "it", [paths[-1]])
    assert not any(spelt in p.read_bytes() for p in (tmp_path / "it").iterdir())
    remove(tmp_path / "it", [tmp_path / "files"])
    index = Index(tmp_path / "it")
    assert (index.segments, index.manifest.tokens) == ([], 0)
    assert index.followed(ids("the c"), 4, 2, 4).lengths == []
    with pytest.raises(InputError, match="it is empty"):
        remove(tmp_path / "it", [paths[0]])
    assert add(tmp_path / "it", paths[:1], Letters()).added == 1


def test_removing_what_is_not_there_names_the_nearest(tmp_path):
    built(tmp_path / "it", TEXTS)
    with pytest.raises(InputError, match=r"0009.txt is in the index; the nearest is .*000\d.txt"):
        remove(tmp_path / "it", [tmp_path / "it-files" / "0009.txt"])


# Damage and strangers


@pytest.mark.parametrize("size", [0, 10, 63, 64, 1000, -1, 1_000_000])
def test_a_file_of_another_length_is_refused_at_once(tmp_path, size):
    built(tmp_path / "it", TEXTS * 40)
    segment = next((tmp_path / "it").glob("*.segment"))
    os.truncate(segment, segment.stat().st_size + size if size < 0 else size)
    with pytest.raises(InputError, match="damaged") as caught:
        Index(tmp_path / "it")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("offset", range(0, 44, 4))
def test_a_damaged_header_is_refused_at_once(tmp_path, offset):
    built(tmp_path / "it", TEXTS)
    segment = next((tmp_path / "it").glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[offset] ^= 255
    segment.write_bytes(data)
    with pytest.raises(InputError, match="damaged or of another version"):
        Index(tmp_path / "it")


def test_sizes_that_would_not_fit_are_no_header():
    assert Layout.read(Layout(2, 1 << 40, 1).header()) is None
    assert Layout.read(Layout(3, 100, 1).header()) is None
    assert Layout.read(b"") is None
    assert Layout.read(Layout(2, 100, 1).header()) == Layout(2, 100, 1)


def test_a_full_check_finds_any_changed_byte_and_reading_survives_it(tmp_path):
    built(tmp_path / "it", TEXTS * 10)
    segment = next((tmp_path / "it").glob("*.segment"))
    sound = segment.read_bytes()
    dice = np.random.default_rng(0)
    for at in dice.integers(64, len(sound), 60).tolist():
        data = bytearray(sound)
        data[at] ^= int(dice.integers(1, 256))
        segment.write_bytes(data)
        index = Index(tmp_path / "it")
        assert index.check() == [f"{segment.name}: its checksum is wrong"]
        with contextlib.suppress(IndexError):  # a position out of bounds: an error of this step only
            index.followed(ids("sat on the "), 16, 2, 8)
    segment.write_bytes(sound)
    assert Index(tmp_path / "it").check() == []


def test_contents_that_only_pretend_are_found_by_the_full_check(tmp_path):
    built(tmp_path / "it", TEXTS * 10)
    path = next((tmp_path / "it").glob("*.segment"))
    sound = path.read_bytes()
    offsets = Segment(path).layout.offsets()
    first, last = offsets[3], offsets[3] + 4 * Segment(path).layout.entries - 4
    for at, wrong, said in (
        (offsets[1], b"\0\0\0\0", "documents do not follow"),
        (offsets[0], b"\1\0", "documents do not end"),
        (first, b"\xff\xff\xff\xff", "points to 4294967295"),
        (first, sound[last : last + 4], "not in order"),
        (first, sound[first + 4 : first + 8], "leaves positions out|not in order"),
        (offsets[4], b"\xff\xff", "sample is not"),
    ):
        data = bytearray(sound)
        data[at : at + len(wrong)] = wrong
        path.write_bytes(data)
        assert any(part in Segment(path).check() for part in said.split("|")), said


def test_another_tokenizer_is_refused(tmp_path):
    built(tmp_path / "it", TEXTS)
    with pytest.raises(
        InputError, match=r"holds tokens of letters \(tokenizer letters\), and the tokenizer here is other"
    ):
        Index(tmp_path / "it").check_tokenizer("other")
    with pytest.raises(InputError, match="the tokenizer here is other"):
        add(tmp_path / "it", [], Letters(name="other"))


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"[" * 1000])
def test_a_damaged_manifest_is_refused_and_can_be_replaced(tmp_path, damage):
    built(tmp_path / "it", TEXTS)
    (tmp_path / "it" / MANIFEST).write_bytes(damage)
    with pytest.raises(InputError, match="checksum is wrong; build the index again"):
        Index(tmp_path / "it")
    built(tmp_path / "it", TEXTS)
    assert Index(tmp_path / "it").check() == []
    assert len(list((tmp_path / "it").glob("*.segment"))) == 1


def test_manifests_of_others_are_refused(tmp_path):
    built(tmp_path / "it", TEXTS)
    file = tmp_path / "it" / MANIFEST
    found = json.loads(file.read_bytes().partition(b"\n")[0])

    def rewritten(**fields):
        line = json.dumps({**found, **fields}).encode()
        file.write_bytes(line + b"\n" + hashlib.sha256(line).hexdigest().encode())

    rewritten(format=2)
    with pytest.raises(InputError, match="another version"):
        Manifest.read(tmp_path / "it")
    for name in ("../outside", "/etc/passwd"):
        rewritten(segments=[{**found["segments"][0], "file": name}])
        with pytest.raises(InputError, match="is no file of it"):
            Index(tmp_path / "it")
    rewritten(segments=[{**found["segments"][0], "file": "gone.segment"}])
    with pytest.raises(InputError, match=r"gone.segment is missing"):
        Index(tmp_path / "it")
    rewritten(vocab_size=100_000)
    with pytest.raises(InputError, match="is not the segment it names"):
        Index(tmp_path / "it")


# Nothing to index, nowhere to write


def test_nothing_to_index_is_an_error_and_leaves_the_old_index(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match=r"nothing to index in 1 files; .*a.txt: it has less than two tokens"):
        build(tmp_path / "it", [tmp_path / "a.txt"], Letters(), "letters")
    built(tmp_path / "old", TEXTS)
    with pytest.raises(InputError, match="nothing to index in 0 files"):
        build(tmp_path / "old", [], Letters(), "letters")
    assert len(Index(tmp_path / "old").manifest.sources) == 4


def test_a_directory_of_other_files_is_not_taken(tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(InputError, match="directory of other files"):
        build(tmp_path, [tmp_path / "mine.txt"], Letters(), "letters")
    with pytest.raises(InputError, match="cannot write index"):
        build(tmp_path / "mine.txt" / "below", [tmp_path / "mine.txt"], Letters(), "letters")
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_where_indexes_lie(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert locate("mine") == tmp_path / "augury" / "index" / "mine"
    assert locate("./mine").name == "mine"
    assert locate("./mine").parent != tmp_path
    assert names() == []
    with pytest.raises(InputError, match="there is none yet"):
        Index(locate("mine"))
    built(locate("notes"), TEXTS)
    assert names() == ["notes"]
    with pytest.raises(InputError, match=r"did you mean 'notes'\?"):
        Index(locate("note"))
    with pytest.raises(InputError, match="there is no index at"):
        Index(locate(str(tmp_path / "x")))
    for name in ("", "..", "a b", "x" * 65, "-x"):
        with pytest.raises(InputError, match="no name of an index"):
            locate(name)
    assert oct(locate("notes").stat().st_mode)[-3:] == "700"


def test_a_tokenizer_that_breaks_its_word_is_named(tmp_path):
    class Liar(Letters):
        def encode(self, text, special=True):
            return np.array([5, 7_000], np.int32)

    with pytest.raises(InputError, match="gave id 7000, its vocabulary ends at 199"):
        built(tmp_path / "it", TEXTS, Liar())
    assert not list((tmp_path / "it").glob("*segment*"))


# Readers and writers at once


def test_a_second_writer_is_refused(tmp_path):
    seen = []

    class Slow(Letters):
        def encode(self, text, special=True):
            if not seen:
                seen.append(True)
                with pytest.raises(InputError, match="being changed by another process"):
                    remove(tmp_path / "it", [tmp_path])
            return super().encode(text)

    built(tmp_path / "it", TEXTS)
    built(tmp_path / "it", TEXTS, Slow())
    assert seen


def test_a_reader_keeps_what_it_opened_and_others_get_the_new(tmp_path):
    built(tmp_path / "it", TEXTS)
    old = Index(tmp_path / "it")
    built(tmp_path / "it", ["another text altogether"])
    assert answered(old, ids("the cat s"), 4, 4)[1][0] == ids("at on the mat")
    assert answered(Index(tmp_path / "it"), ids("another t"), 4, 4)[1] == [ids("ext altogether")]


def _replace(place):
    for number in range(8):
        built(place, [f"{t} {number}" for t in TEXTS])


def test_readers_never_see_half_of_a_replacement(tmp_path):
    built(tmp_path / "it", TEXTS)
    writer = multiprocessing.get_context("spawn").Process(target=_replace, args=(tmp_path / "it",))
    writer.start()
    seen = set()
    while writer.is_alive():
        index = Index(tmp_path / "it")
        seen.add(tuple(p.file for p in index.manifest.segments))
        assert index.followed(ids("the cat s"), 4, 4, 8).lengths[0] == 9
    writer.join()
    assert writer.exitcode == 0
    assert len(seen) > 2


class _Killer(Letters):
    """Ends the process at its third text."""

    count = 0

    def encode(self, text, special=True):
        self.count += 1
        if self.count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(text)


def _die(place):
    change._RUN = 4
    change.os.cpu_count = lambda: 1
    built(place, TEXTS * 3, _Killer())


@pytest.mark.parametrize("old", [True, False])
def test_a_build_that_is_killed_leaves_the_old_index(tmp_path, old):
    if old:
        built(tmp_path / "it", TEXTS)
    process = multiprocessing.get_context("spawn").Process(target=_die, args=(tmp_path / "it",))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if old:
        assert Index(tmp_path / "it").check() == []
        assert len(Index(tmp_path / "it").manifest.sources) == 4
    else:
        with pytest.raises(InputError, match="there is no index"):
            Index(tmp_path / "it")
    (tmp_path / "it" / "0123456789abcdef.segment.new").write_bytes(b"half")
    built(tmp_path / "it", ["and then it worked"])
    assert len(os.listdir(tmp_path / "it")) == 3
    assert Index(tmp_path / "it").check() == []


def test_reading_is_what_makes_a_file_new(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"q": "what is it", "a": "it is that"}\n')
    build(tmp_path / "it", [path], Letters(), "letters", Reading(fields=["a"]))
    assert Index(tmp_path / "it").manifest.sources[0].documents == 1
    assert add(tmp_path / "it", [path], Letters(), Reading(fields=["a"])).unchanged == 1
    assert add(tmp_path / "it", [path], Letters()).added == 1
    assert next(iter(Index(tmp_path / "it").manifest.sources.values())).documents == 2
