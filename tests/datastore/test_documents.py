"""Which texts a file gives, and what is said of the others."""

from __future__ import annotations

import json
import os

import pytest

from augury.datastore import documents
from augury.datastore.documents import LeftOut, Reading, files
from augury.errors import InputError


def read(path, reading=None, said=None):
    reading = reading or Reading()
    reading.digest(path)
    return ["".join(pieces) for pieces in reading.documents(path, (said if said is not None else []).append)]


def test_a_text_is_one_document(tmp_path):
    path = tmp_path / "a.md"
    for text in ("one\ntwo\n", "no end of line", "Fuß, 你好, \U0001f600\n", "a\r\nb"):
        path.write_bytes(text.encode())
        assert read(path) == [text]
    path.write_bytes("\ufeffwith a mark".encode())
    assert read(path) == ["with a mark"]
    path.write_bytes(b"")
    assert read(path) == []


def test_long_texts_come_in_pieces_that_join(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 10)
    path = tmp_path / "a.txt"
    for text in ("äöü line\n" * 9, "x" * 99, "short\n" + "y" * 50 + "\nend"):
        path.write_text(text)
        pieces = [list(p) for p in Reading().documents(path, print)]
        assert "".join("".join(p) for p in pieces) == text
        assert all(len(p) <= 30 for d in pieces for p in d)
    monkeypatch.setattr(documents, "_PIECES", 3)
    path.write_text("line\n" * 40)
    assert len(read(path)) > 3
    assert "".join(read(path)) == "line\n" * 40


def test_jsonl_gives_its_strings(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"q": "one", "a": ["two", {"deep": "three"}], "n": 4}, "five", ["six", None, True], {"text": "sev\ud800en"}]
    path.write_text("\n".join(json.dumps(r) for r in rows) + "\n\n")
    assert read(path) == ["one", "two", "three", "five", "six", "sev?en"]
    assert read(path, Reading(fields=["a"])) == ["two", "three"]
    assert read(path, Reading(fields=["deep", "q"])) == ["one", "three"]
    assert read(path, Reading(fields=["nothing"])) == []


def test_lines_that_are_no_json_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "_LONGEST_LINE", 1000)
    path = tmp_path / "a.ndjson"
    path.write_text("\n".join(['"good"', "{bad", '"' + "long" * 900 + '"', "[" * 900, '"fine"', '"' + "x" * 500 + '"']))
    said = []
    assert read(path, said=said) == ["good", "fine", "x" * 500]
    assert said == ["3 lines are no JSON, the first is line 2"]


@pytest.mark.parametrize(
    ("data", "reading", "why"),
    [
        (b"PK\x03\x04\0\0", Reading(), "NUL"),
        (b"a" * 9000 + "Fuß".encode("latin-1"), Reading(), "not UTF-8"),
        (b"half \xc3", Reading(), "not UTF-8"),
        (b"x" * 3_000_000, Reading(largest=2_000_000), r"3.0 MB, the limit is 2.0; raise it with --max-file-mb"),
    ],
)
def test_files_that_are_left_out(tmp_path, data, reading, why):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(LeftOut, match=why):
        reading.digest(tmp_path / "a")


def test_what_is_no_file_is_left_out(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LeftOut, match="no regular file"):
        Reading().digest(tmp_path / "pipe")
    with pytest.raises(LeftOut, match="cannot be read: No such file"):
        Reading().digest(tmp_path / "gone")


def test_a_directory_stands_for_the_files_below_it(tmp_path):
    for name in ("b/c.txt", "b/a.txt", "z.txt", ".hidden/x.txt", "b/.secret"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    os.symlink(tmp_path, tmp_path / "b" / "loop")
    os.mkfifo(tmp_path / "pipe")
    found = files([tmp_path, tmp_path / "z.txt", tmp_path / ".hidden" / "x.txt"])
    assert [str(p.relative_to(tmp_path)) for p in found] == ["z.txt", "b/a.txt", "b/c.txt", ".hidden/x.txt"]
    with pytest.raises(InputError, match="there is no file or directory nowhere"):
        files([type(tmp_path)("nowhere")])
