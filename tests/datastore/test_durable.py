"""A file takes another's place whole, or leaves it as it was."""

from __future__ import annotations

import os

import pytest

from augury import durable
from augury.durable import replacing


def test_what_was_written_takes_the_place_when_all_is_there(tmp_path):
    path = tmp_path / "it"
    path.write_text("before")
    with replacing(path) as beside:
        beside.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["it"]


def interrupted(path):
    with replacing(path) as beside:
        beside.write_text("half")
        raise KeyboardInterrupt


@pytest.mark.parametrize("there", [True, False])
def test_where_something_fails_all_is_as_it_was(tmp_path, there):
    path = tmp_path / "it"
    if there:
        path.write_text("before")
    with pytest.raises(ZeroDivisionError), replacing(path, ".mine") as beside:
        beside.write_text(f"half of it {1 / 0}")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass  # nothing was written
    with pytest.raises(KeyboardInterrupt):
        interrupted(path)
    assert os.listdir(tmp_path) == ["it"] * there
    assert not there or path.read_text() == "before"


def test_file_and_names_are_on_the_disk_before_and_behind(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(durable, "sync", lambda path: done.append((path.name, (tmp_path / "it").exists())))
    with replacing(tmp_path / "it") as beside:
        beside.write_text("x")
    assert done == [("it.new", False), (tmp_path.name, False), (tmp_path.name, True)]
