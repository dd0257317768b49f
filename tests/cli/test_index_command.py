"""``augury index``: what it prints, what it refuses, what it leaves out, with the embedded model's tokenizer."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from augury.cli import app, index
from augury.datastore.index import MANIFEST, Manifest

pytestmark = pytest.mark.real


_tokenizer = functools.cache(index._tokenizer)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "_tokenizer", _tokenizer)  # read once for all tests
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "augury" / "index"


@pytest.fixture
def notes(tmp_path):
    directory = tmp_path / "notes"
    directory.mkdir()
    (directory / "a.md").write_text("The quick brown fox jumps over the lazy dog.\n" * 3)
    (directory / "b.jsonl").write_text(json.dumps({"role": "assistant", "content": "It jumps again."}) + "\n{bad\n")
    (directory / "c.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    return directory


def ran(*args, code=0):
    done = CliRunner().invoke(app, ["index", *map(str, args)])
    assert done.exit_code == code, done.output
    if code == 2:
        assert done.stdout == ""
        assert done.stderr.startswith("augury: ")
        assert done.stderr.count("\n") == 1
    return done


def test_the_life_of_an_index(notes, home):
    done = ran("build", notes, "--index", "mine")
    assert "2 added, 2 left out" in done.stdout
    assert "retrieval:mine" in done.stdout
    assert f"left out {notes / 'c.png'}: binary: it has NUL bytes" in done.stderr
    assert "b.jsonl: 1 lines are no JSON, the first is line 2" in done.stderr
    assert "2 unchanged" in ran("add", notes, "--index", "mine").stdout
    (notes / "d.txt").write_text("One more text.")
    assert "1 added, 2 unchanged" in ran("add", notes, "--index", "mine").stdout
    assert ran("list").stdout.startswith("mine: 3 files")
    listed = ran("list", "mine").stdout
    assert f"{notes / 'd.txt'}  0.00 MB" in listed
    assert "1 removed" in ran("remove", notes / "a.md", "--index", "mine").stdout
    assert "2 files" in ran("list", "mine").stdout
    assert "sound" in ran("check", "mine").stdout
    assert [p.name for p in home.iterdir()] == ["mine"]


def test_the_default_index_needs_no_name(notes):
    assert "retrieval\n" in ran("build", notes).stdout
    assert "default: 2 files" in ran("list").stdout
    assert "sound" in ran("check").stdout


def test_an_index_may_lie_anywhere(notes, tmp_path):
    ran("build", notes / "a.md", "--index", tmp_path / "here" / "it")
    assert "sound" in ran("check", tmp_path / "here" / "it").stdout
    assert "0 in " in ran("list").stdout


def test_a_field_of_jsonl(notes):
    done = ran("build", notes / "b.jsonl", "--field", "content")
    assert "1 files, 4 tokens" in done.stdout


def test_damage_is_found_and_has_its_own_exit_code(notes, home):
    ran("build", notes)
    segment = next((home / "default").glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[-100] ^= 1
    segment.write_bytes(data)
    assert "its checksum is wrong; build it again" in ran("check", code=1).stderr
    segment.write_bytes(data[:-64])
    assert "it has" in ran("check", code=2).stderr
    (home / "default" / "manifest.json").write_text("{}")
    assert "default: the manifest" in ran("list").stdout


def test_an_index_goes_through_a_store_and_back(notes, home, tmp_path):
    store = f"file://{tmp_path}/store/it"
    ran("build", notes, "--index", "mine")
    assert "sent 1 of 1 segments" in ran("push", "mine", store).stdout
    assert "sent 0 of 1 segments, 0.0 MB, nothing changed in" in ran("push", "mine", store).stdout
    done = ran("pull", store, "--index", "theirs").stdout
    assert "fetched 1 of 1 segments" in done
    assert "theirs: 2 files" in done
    assert "nothing changed" in ran("pull", store, "--index", "theirs").stdout
    assert "sound" in ran("check", "theirs").stdout
    ran("remove", notes / "a.md", "--index", "mine")
    assert "deleted 1" in ran("push", "mine", store, "--grace-hours", "0").stdout
    assert "theirs: 1 files" in ran("pull", store, "--index", "theirs").stdout
    assert len(list((home / "theirs").glob("*.segment"))) == 1
    ran("pull", store)
    assert "default: 1 files" in ran("list").stdout


def test_names_that_a_store_gives_are_shown_on_one_line(notes, home, tmp_path):
    store = f"file://{tmp_path}/store/it"
    ran("build", notes)
    manifest = Manifest.read(home / "default")
    sources = {number: replace(source, path="/tmp/\x1b[31mred\nline") for number, source in manifest.sources.items()}
    (home / "default" / MANIFEST).write_bytes(replace(manifest, sources=sources, model="a\x1b[2Jb").dump())
    ran("push", "default", store)
    for shown in (ran("pull", store, "--index", "theirs").stdout, ran("list", "theirs").stdout):
        assert "\x1b" not in shown
        assert "a\\u{1B}[2Jb" in shown


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["build", "/nonexistent/notes"], "there is no file or directory /nonexistent/notes"),
        (["build", "{notes}/c.png"], "nothing to index in 1 files"),
        (["build", "{notes}", "--max-file-mb", "0"], "0.0 MB, the limit is 0.0; raise it with --max-file-mb"),
        (["build", "{notes}", "--index", "a b"], "'a b' is no name of an index"),
        (["build", "{notes}", "--index", "{notes}"], "directory of other files"),
        (["build", "{notes}", "--model", "smollm"], "did you mean 'smollm2-135m'?"),
        (["add", "{notes}"], "there is no index 'default'; there is none yet"),
        (["remove", "{notes}"], "there is no index 'default'"),
        (["list", "nothing"], "there is no index 'nothing'"),
        (["check", "./nothing"], "there is no index at"),
        (["push", "nothing", "file:///nonexistent"], "there is no index 'nothing'"),
        (["push", "default", "bucket"], "'bucket' is no address of an object store"),
        (["pull", "file://{notes}/empty"], "there is no index at file://"),
        (["pull", "nosuch://bucket/x"], "unknown protocol 'nosuch'"),
    ],
)
def test_what_cannot_be_honoured_is_one_line_and_exit_code_2(notes, args, said):
    assert said in ran(*[a.format(notes=notes) for a in args], code=2).stderr


def test_another_model_s_tokenizer_is_refused(notes, home):
    ran("build", notes)
    manifest = Manifest.read(home / "default")
    object.__setattr__(manifest, "tokenizer", "0" * 64)
    (home / "default" / MANIFEST).write_bytes(manifest.dump())
    done = ran("add", notes, code=2)
    assert "holds tokens of smollm2-135m (tokenizer 000000000000), and the tokenizer here is" in done.stderr


def test_help_says_what_every_flag_means():
    for verb in ("build", "add", "remove", "list", "check", "push", "pull"):
        done = CliRunner().invoke(app, ["index", verb, "--help"], env={"COLUMNS": "200"})
        assert done.exit_code == 0
        for row in (r for r in done.stdout.splitlines() if r.startswith("│ --")):
            assert len(row.strip(" │").split("  ")) > 1, f"{verb}: {row}"
