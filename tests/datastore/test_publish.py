"""An index in an object store: whole for whoever reads, whatever is interrupted, and within limits."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from dataclasses import replace

import pytest
from corpus import Letters, built, written
from stores import Flaky, broke_off

from augury.datastore import live, publish
from augury.datastore.bucket import Bucket
from augury.datastore.change import add, remove
from augury.datastore.index import MANIFEST, Index, Manifest, Piece
from augury.datastore.live import Live
from augury.datastore.publish import pull, push
from augury.errors import InputError, MissingPackage, UnknownName

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog"]
PLENTY = 1 << 30
HOUR = 3600.0


@pytest.fixture(autouse=True)
def empty():
    Flaky.reset()
    yield
    Flaky.reset()


@pytest.fixture(params=["flaky", "memory", "file"])
def bucket(request, tmp_path):
    if request.param == "memory":
        import fsspec

        fsspec.filesystem("memory").store.clear()
    return Bucket(f"file://{tmp_path}/store/it" if request.param == "file" else f"{request.param}://store/it")


@pytest.fixture
def flaky():
    return Bucket("flaky://store/it")


@pytest.fixture
def mine(tmp_path):
    built(tmp_path / "mine", TEXTS)
    return tmp_path / "mine"


@pytest.fixture
def theirs(tmp_path):
    return tmp_path / "theirs"


def changed(place, text="one more text"):
    """Replace all that is in an index."""
    built(place, [f"{text} {n}" for n in range(3)])


def same(one, other):
    """Whether two indexes hold the same, under whatever names."""
    a, b = Index(one), Index(other)
    assert b.check() == []
    return [p.sha256 for p in a.manifest.segments] == [p.sha256 for p in b.manifest.segments] and (
        a.manifest.sources == b.manifest.sources
    )


def names(bucket, folder="pieces"):
    return set(bucket.sizes(folder))


def test_what_is_pushed_is_pulled_and_only_what_is_missing_is_moved(bucket, mine, theirs):
    first = push(mine, bucket, HOUR)
    assert (first.pieces, first.changed, first.deleted) == (1, True, 0)
    assert first.bytes == Index(mine).manifest.size
    got = pull(theirs, bucket, PLENTY)
    assert (got.pieces, got.bytes, got.changed) == (1, first.bytes, True)
    assert same(mine, theirs)
    before = (theirs / MANIFEST).stat().st_mtime_ns
    for again in (push(mine, bucket, HOUR), pull(theirs, bucket, PLENTY)):
        assert (again.pieces, again.bytes, again.changed) == (0, 0, False)
    assert (theirs / MANIFEST).stat().st_mtime_ns == before, "engines have nothing to open anew"
    add(mine, written(mine.parent / "large", ["ab" * 4000]), Letters())
    add(mine, written(mine.parent / "more", ["xy"]), Letters())
    assert len(Index(mine).manifest.segments) == 2
    push(mine, bucket, HOUR)
    assert pull(theirs, bucket, PLENTY).pieces == 2
    add(mine, written(mine.parent / "more", ["xyz"]), Letters())
    assert push(mine, bucket, HOUR).pieces == 1
    assert pull(theirs, bucket, PLENTY).pieces == 1, "the large one is here"
    assert same(mine, theirs)
    assert len(os.listdir(theirs)) == 4


def test_a_running_engine_uses_what_was_pulled(flaky, mine, theirs, monkeypatch):
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    push(mine, flaky, HOUR)
    pull(theirs, flaky, PLENTY)
    it = Live(theirs, "letters", pytest.fail)
    old = it.now()
    changed(mine)
    push(mine, flaky, HOUR)
    pull(theirs, flaky, PLENTY)
    assert it.now().manifest.sources == Index(mine).manifest.sources
    assert old.followed(Letters().encode("the cat s").tolist(), 4, 2, 8).lengths[0] == 9, "it stays readable"


def test_who_read_the_manifest_before_still_finds_its_pieces_and_not_for_ever(flaky, mine, theirs, monkeypatch):
    push(mine, flaky, HOUR)
    before = flaky.read(MANIFEST, PLENTY)
    old = names(flaky)
    changed(mine)
    assert push(mine, flaky, HOUR).deleted == 0
    new = names(flaky) - old
    assert old < names(flaky)
    after = flaky.read(MANIFEST, PLENTY)
    flaky.replace(MANIFEST, before)
    assert pull(theirs, flaky, PLENTY).pieces == 1
    flaky.replace(MANIFEST, after)
    clock = time.time()
    monkeypatch.setattr(publish.time, "time", lambda: clock + HOUR - 5)
    assert push(mine, flaky, HOUR).deleted == 0
    monkeypatch.setattr(publish.time, "time", lambda: clock + HOUR + 5)
    assert push(mine, flaky, HOUR).deleted == 1
    assert names(flaky) == new
    assert json.loads(flaky.read("left.json", PLENTY)) == {}
    changed(mine, "and another")
    assert push(mine, flaky, 0.0).deleted == 1, "without grace it is gone at once"
    assert names(flaky) == {piece.sha256 for piece in Index(mine).manifest.segments}


def test_what_is_named_again_or_by_somebody_else_is_not_deleted(flaky, mine, tmp_path, monkeypatch):
    push(mine, flaky, HOUR)
    shutil.copytree(mine, tmp_path / "copy")
    changed(mine)
    push(mine, flaky, HOUR)
    later = time.time() + 2 * HOUR
    monkeypatch.setattr(publish.time, "time", lambda: later)
    push(tmp_path / "copy", flaky, HOUR)
    assert pull(tmp_path / "theirs", flaky, PLENTY).pieces == 1
    replaced = flaky.replace

    def overtaken(name, data):
        """Another machine's manifest is written right behind ours."""
        replaced(name, data)
        if name == MANIFEST:
            replaced(name, theirs)

    theirs = flaky.read(MANIFEST, PLENTY)
    monkeypatch.setattr(flaky, "replace", overtaken)
    push(mine, flaky, 0.0)
    monkeypatch.undo()
    assert pull(tmp_path / "others", flaky, PLENTY).pieces == 1
    assert same(tmp_path / "copy", tmp_path / "others")


def test_a_piece_that_another_push_deletes_before_it_is_named_is_sent_again(flaky, mine, theirs, tmp_path, monkeypatch):
    push(mine, flaky, HOUR)
    shutil.copytree(mine, tmp_path / "copy")
    changed(mine)
    push(mine, flaky, HOUR)
    send, told = publish._send, []

    def overtaken(*given):
        sent = send(*given)
        if not told:
            told.append(len(sent))
            push(mine, flaky, 0.0)
        return sent

    monkeypatch.setattr(publish, "_send", overtaken)
    done = push(tmp_path / "copy", flaky, HOUR)
    assert (told, done.pieces, done.bytes) == ([0], 1, Index(tmp_path / "copy").manifest.size)
    pull(theirs, flaky, PLENTY)
    assert same(tmp_path / "copy", theirs)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{bad", b'{"a": []}', b"[" * 100_000])
def test_a_damaged_list_of_what_is_left_only_begins_the_grace_anew(flaky, mine, damage):
    push(mine, flaky, HOUR)
    changed(mine)
    flaky.replace("left.json", damage)
    assert push(mine, flaky, HOUR).deleted == 0
    assert [name[:7] for name in json.loads(flaky.read("left.json", PLENTY))] == ["pieces/"]


# ---- interruptions -------------------------------------------------------------------------------------------------


def test_a_push_that_breaks_off_anywhere_leaves_one_version_or_the_other(flaky, mine, theirs, tmp_path):
    push(mine, flaky, HOUR)
    shutil.copytree(mine, tmp_path / "old")
    changed(mine)
    size, broken = Index(mine).manifest.size, 0
    for after in (0, 1, size // 2, size - 1, size, size + 1, size + 300, size + 10_000):
        Flaky.fails_after = after
        broken += broke_off(lambda: push(mine, flaky, HOUR))
        Flaky.calm()
        pull(theirs, flaky, PLENTY)
        assert same(tmp_path / "old", theirs) or (after >= size and same(mine, theirs))
        assert not [name for name in names(flaky, "") if "part" in name]
    assert broken > 4
    push(mine, flaky, HOUR)
    pull(theirs, flaky, PLENTY)
    assert same(mine, theirs)


def test_what_a_push_that_was_stopped_left_behind_is_deleted(flaky, mine):
    push(mine, flaky, HOUR)
    flaky._files.pipe_file("store/it/manifest.json.0123abcd.part", b"half")
    assert push(mine, flaky, HOUR).deleted == 0
    assert push(mine, flaky, 0.0).deleted == 1
    assert names(flaky, "") == {MANIFEST, "left.json"}


def test_who_tidies_up_without_grace_does_not_stop_a_push(flaky, mine, theirs, tmp_path, monkeypatch):
    push(mine, flaky, HOUR)
    changed(mine)
    move, moved = flaky._files.mv, []

    def slowly(*names):
        moved.append(names)
        if len(moved) == 1:
            push(theirs, Bucket("flaky://store/it"), 0.0)  # another machine, at this very moment
        move(*names)

    shutil.copytree(mine, theirs)
    changed(theirs, "of the other")
    monkeypatch.setattr(type(flaky._files), "mv", lambda _, *names: slowly(*names))
    push(mine, flaky, HOUR)
    monkeypatch.undo()
    shutil.rmtree(theirs)
    pull(theirs, flaky, PLENTY)
    assert same(mine, theirs)


def test_half_a_piece_that_somebody_left_is_written_again(flaky, mine, theirs):
    (piece,) = Index(mine).manifest.segments
    with flaky._files.open(f"store/it/pieces/{piece.sha256}", "wb") as file:
        file.write(b"half")
    assert push(mine, flaky, HOUR).pieces == 1
    pull(theirs, flaky, PLENTY)
    assert same(mine, theirs)


def test_a_pull_that_breaks_off_anywhere_leaves_what_was_there(flaky, mine, theirs, tmp_path):
    push(mine, flaky, HOUR)
    pull(theirs, flaky, PLENTY)
    changed(mine)
    push(mine, flaky, HOUR)
    manifest, size = len(flaky.read(MANIFEST, PLENTY)), Index(mine).manifest.size
    before = sorted(os.listdir(theirs))
    for after in (0, 1, manifest - 1, manifest, manifest + size // 2, manifest + size - 1):
        Flaky.fails_after = after
        with pytest.raises(InputError, match=r"cannot read flaky://store/it/.*the connection was lost"):
            pull(theirs, flaky, PLENTY)
        assert sorted(os.listdir(theirs)) == before
        assert Index(theirs).check() == []
    Flaky.calm()
    pull(theirs, flaky, PLENTY)
    assert same(mine, theirs)


def test_a_piece_that_is_cut_is_not_used(flaky, mine, theirs):
    push(mine, flaky, HOUR)
    read = flaky.read
    flaky.read = lambda name, most: read(name, most)  # the manifest is whole
    data = read(MANIFEST, PLENTY)
    flaky.read = lambda name, most: data
    Flaky.cut = 100
    with pytest.raises(InputError, match=r"is damaged: it has only \d+ of \d+ bytes; push it again"):
        pull(theirs, flaky, PLENTY)
    assert os.listdir(theirs) == ["lock"]
    flaky.read = read
    with pytest.raises(InputError, match="its checksum is wrong; push the index again"):
        pull(theirs, flaky, PLENTY)  # a manifest that is cut


@pytest.mark.parametrize("how", ["another", "longer"])
def test_a_piece_that_holds_something_else_is_not_used(flaky, mine, theirs, how):
    push(mine, flaky, HOUR)
    (path,) = [name for name in Flaky.store if "/pieces/" in name]
    data = bytearray(Flaky.store[path].getvalue())
    if how == "another":
        data[-70] ^= 1
    else:
        data += b"more"
    with flaky._files.open(path, "wb") as file:
        file.write(bytes(data))
    says = "its checksum is wrong" if how == "another" else "it has more of"
    with pytest.raises(InputError, match=says):
        pull(theirs, flaky, PLENTY)
    assert os.listdir(theirs) == ["lock"]


def test_what_is_said_of_a_damaged_piece_mends_it(flaky, mine, theirs):
    push(mine, flaky, HOUR)
    (path,) = [name for name in Flaky.store if "/pieces/" in name]
    data = Flaky.store[path].getvalue()
    for damaged in (data[:-70], data + b"more", data[:-70] + bytes(70)):
        with flaky._files.open(path, "wb") as file:
            file.write(damaged)
        with pytest.raises(InputError, match="is damaged") as said:
            pull(theirs, flaky, PLENTY)
        if "delete it there and push again" in str(said.value):
            flaky.delete(f"pieces/{path.rpartition('/')[2]}")
        else:
            assert "push it again" in str(said.value)
        push(mine, flaky, HOUR)
        pull(theirs, flaky, PLENTY)
        assert same(mine, theirs)
        shutil.rmtree(theirs)


def test_pieces_that_go_while_they_are_pulled_are_looked_for_in_the_newer_manifest(flaky, mine, theirs):
    push(mine, flaky, HOUR)
    old = flaky.read(MANIFEST, PLENTY)
    changed(mine)
    push(mine, flaky, 0.0)
    read, answers = flaky.read, [old]
    flaky.read = lambda name, most: answers.pop() if answers else read(name, most)
    assert pull(theirs, flaky, PLENTY).pieces == 1
    assert same(mine, theirs)
    Flaky.gone = names(flaky)
    shutil.rmtree(theirs)
    with pytest.raises(InputError, match="lacks segments that its manifest names; push the index again"):
        pull(theirs, flaky, PLENTY)
    assert os.listdir(theirs) == ["lock"]


def test_lists_that_are_old_delete_nothing_that_is_named(flaky, mine, theirs):
    push(mine, flaky, HOUR)
    changed(mine)
    push(mine, flaky, HOUR)
    Flaky.stale = {"pieces": [{"name": f"/store/it/pieces/{'0' * 64}", "size": 5, "type": "file"}]}
    changed(mine, "yet another")
    assert push(mine, flaky, 0.0).deleted == 1, "what the list has, though it is not there"
    pull(theirs, flaky, PLENTY)
    assert same(mine, theirs)


def test_an_index_that_is_changed_while_it_is_pushed_is_pushed_as_it_is_then(flaky, mine, theirs, monkeypatch):
    found, times = Index, []

    def opened(place):
        index = found(place)
        times.append(1)
        if len(times) == 1:
            changed(mine)  # its segments are gone
        return index

    monkeypatch.setattr(publish, "Index", opened)
    push(mine, flaky, HOUR)
    assert len(times) == 2
    pull(theirs, flaky, PLENTY)
    assert same(mine, theirs)


def test_a_damaged_segment_is_not_pushed(flaky, mine):
    (piece,) = Index(mine).manifest.segments
    data = bytearray((mine / piece.file).read_bytes())
    data[-100] ^= 1
    (mine / piece.file).write_bytes(data)
    with pytest.raises(InputError, match=r"the checksum of .* is wrong; build it again"):
        push(mine, flaky, HOUR)
    assert flaky.read(MANIFEST, PLENTY) is None
    assert not names(flaky)


# ---- what a store may say ------------------------------------------------------------------------------------------


def forged(bucket, mine, **fields):
    """A manifest of the store with other fields, and a right checksum."""
    manifest = Index(mine).manifest
    data = json.loads(replace(manifest, **fields).dump().partition(b"\n")[0])
    line = json.dumps(data).encode()
    bucket.replace(MANIFEST, line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")


@pytest.mark.parametrize("file", ["../../evil", "/etc/passwd", "..", "manifest.json", "lock", "a/b"])
def test_no_name_that_a_store_gives_is_used_here(flaky, mine, theirs, tmp_path, file):
    push(mine, flaky, HOUR)
    (piece,) = Index(mine).manifest.segments
    forged(flaky, mine, segments=[replace(piece, file=file)])
    pull(theirs, flaky, PLENTY)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "mine-files", "theirs"]
    assert sorted(p.suffix for p in theirs.iterdir()) == ["", ".json", ".segment"]
    assert same(mine, theirs)


@pytest.mark.parametrize(
    "piece",
    [
        Piece("x", 5, "../../evil"),
        Piece("x", 5, "a" * 63 + "/"),
        Piece("x", 5, "A" * 64),
        Piece("x", -5, "a" * 64),
        Piece("x", "5", "a" * 64),
        Piece("x", 5.0, "a" * 64),
        Piece("x", True, "a" * 64),
        Piece("x", 5, 7),
        Piece(None, 5, "a" * 64),
    ],
)
def test_a_segment_that_is_none_is_refused_before_anything_is_fetched(flaky, mine, theirs, piece):
    push(mine, flaky, HOUR)
    forged(flaky, mine, segments=[piece])
    Flaky.opened.clear()
    with pytest.raises(InputError, match=r"the manifest .* is none; push the index again"):
        pull(theirs, flaky, PLENTY)
    assert Flaky.opened == [MANIFEST]
    assert not theirs.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"vocab_size": 0},
        {"vocab_size": "9"},
        {"vocab_size": 1 << 40},
        {"model": 5},
        {"tokenizer": None},
        {"next_source": 1.5},
    ],
)
def test_other_nonsense_is_refused(flaky, mine, theirs, fields):
    push(mine, flaky, HOUR)
    forged(flaky, mine, **fields)
    with pytest.raises(InputError, match=r"the manifest .* is none"):
        pull(theirs, flaky, PLENTY)


@pytest.mark.parametrize(
    "line", [b"[]", b"{}", b'{"format": 1}', b'{"format": 1, "sources": [], "segments": {"a": 1}}', b"5"]
)
def test_json_that_is_no_manifest_is_refused(flaky, theirs, line):
    flaky.replace(MANIFEST, line + b"\n" + hashlib.sha256(line).hexdigest().encode())
    with pytest.raises(InputError, match="is none"):
        pull(theirs, flaky, PLENTY)


def test_sizes_are_limited_before_anything_is_fetched(flaky, mine, theirs, monkeypatch):
    push(mine, flaky, HOUR)
    size = Index(mine).manifest.size
    Flaky.opened.clear()
    with pytest.raises(InputError, match=r"has 0.00 GB, the limit is 0.00; raise it with --max-gb"):
        pull(theirs, flaky, size - 1)
    forged(flaky, mine, segments=[Piece("x", 1 << 60, "a" * 64)])
    with pytest.raises(InputError, match=r"and .* are free"):
        pull(theirs, flaky, 1 << 62)
    forged(flaky, mine, segments=[Piece("x", 1, "a" * 64)] * 257)
    with pytest.raises(InputError, match="has 257 segments, the limit is 256"):
        pull(theirs, flaky, PLENTY)
    assert set(Flaky.opened) == {MANIFEST}
    monkeypatch.setattr(publish, "LARGEST_MANIFEST", 100)
    with pytest.raises(InputError, match="has more than the 100 bytes"):
        pull(theirs, flaky, PLENTY)


def test_a_segment_of_another_vocabulary_is_refused(flaky, mine, theirs):
    push(mine, flaky, HOUR)
    forged(flaky, mine, vocab_size=100_000)
    with pytest.raises(InputError, match="a segment of another vocabulary"):
        pull(theirs, flaky, PLENTY)
    assert os.listdir(theirs) == ["lock"]


def test_a_file_that_is_no_segment_is_refused(flaky, mine, theirs):
    push(mine, flaky, HOUR)
    data = b"#!/bin/sh\n" * 30
    digest = hashlib.sha256(data).hexdigest()
    with flaky._files.open(f"store/it/pieces/{digest}", "wb") as file:
        file.write(data)
    forged(flaky, mine, segments=[Piece("x", len(data), digest)])
    with pytest.raises(InputError, match="is damaged or of another version"):
        pull(theirs, flaky, PLENTY)
    assert os.listdir(theirs) == ["lock"]


def test_where_nothing_is_it_says_so(bucket, theirs, mine):
    with pytest.raises(InputError, match=r"there is no index at .*; push one with: augury index push NAME"):
        pull(theirs, bucket, PLENTY)
    with pytest.raises(InputError, match="there is no index at"):
        push(theirs, bucket, HOUR)
    (theirs.parent / "full").mkdir()
    (theirs.parent / "full" / "x").write_text("mine")
    push(mine, bucket, HOUR)
    with pytest.raises(InputError, match="is a directory of other files"):
        pull(theirs.parent / "full", bucket, PLENTY)


def test_a_damaged_index_here_is_replaced_by_a_pull(flaky, mine, theirs):
    push(mine, flaky, HOUR)
    pull(theirs, flaky, PLENTY)
    (theirs / MANIFEST).write_bytes(b"damaged")
    assert pull(theirs, flaky, PLENTY).pieces == 1
    assert same(mine, theirs)
    next(theirs.glob("*.segment")).write_bytes(b"short")
    assert pull(theirs, flaky, PLENTY).pieces == 1
    assert same(mine, theirs)
    assert len(os.listdir(theirs)) == 3


def test_what_is_removed_leaves_the_store_without_grace(bucket, mine):
    push(mine, bucket, 0.0)
    remove(mine, [mine.parent / "mine-files" / "0001.txt"])
    assert push(mine, bucket, 0.0).deleted == 1
    assert names(bucket) == {piece.sha256 for piece in Index(mine).manifest.segments}


# ---- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "bucket", "s3:/x", "s3://", "://x", "a b://x", "simplecache::s3://x/y", "/tmp/x"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(InputError, match="is no address of an object store; give one as in s3://bucket/folder"):
        Bucket(url)


@pytest.mark.parametrize("url", ["file://shared/work", "file://./work", "local://work"])
def test_a_path_that_does_not_begin_at_the_root_is_refused(url, tmp_path, monkeypatch):
    """Of two slashes instead of three; a push and a pull from two places would not meet."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"is another place for each program .* give one from the root on, as in"
    ) as it:
        Bucket(url)
    assert "\n" not in str(it.value)


def test_an_unknown_protocol_names_the_nearest():
    with pytest.raises(UnknownName, match="unknown protocol 'flake'; did you mean 'file'"):
        Bucket("flake://x/y")


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingPackage, match=r"s3:// needs the package s3fs; install it with: pip install s3fs"):
        Bucket("s3://bucket/folder")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        MissingPackage, match=r"needs the package fsspec; install it with: pip install 'augury\[store\]'"
    ):
        Bucket("s3://bucket/folder")


def test_secrets_of_an_address_are_not_shown(monkeypatch):
    it = Bucket("flaky://user:hush@store/it?sig=hushhush")
    monkeypatch.setattr(Flaky, "info", lambda self, path, **_: (_ for _ in ()).throw(OSError(f"no way to {path}")))
    with pytest.raises(InputError) as caught:
        it.size("x")
    assert "hush" not in str(caught.value)
    assert "no way to" in str(caught.value)
    assert it.shown == "flaky://store/it"


def test_a_folder_with_too_many_files_is_not_gone_through(flaky, monkeypatch):
    from augury.datastore import bucket

    monkeypatch.setattr(bucket, "_MOST_NAMES", 2)
    for name in "abc":
        flaky.replace(f"pieces/{name}", b"x")
    with pytest.raises(InputError, match="has 3 files, the limit is 2"):
        flaky.sizes("pieces")


def test_manifests_here_and_there_say_the_same(flaky, mine, theirs):
    push(mine, flaky, HOUR)
    pull(theirs, flaky, PLENTY)
    there = Manifest.parse(flaky.read(MANIFEST, PLENTY), "it", "")
    here, own = Index(theirs).manifest, Index(mine).manifest
    for one in (there, here):
        assert (one.tokenizer, one.model, one.vocab_size, one.next_source) == ("letters", "letters", 200, 3)
        assert one.sources == own.sources
    assert [p.file for p in there.segments] == [p.sha256 for p in own.segments]
