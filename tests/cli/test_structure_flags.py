"""Flags for what an answer may be."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

import augury
from augury.cli import app

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["colour", "count"],
    "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
}  # fmt: skip


def refused(*args):
    done = CliRunner().invoke(app, ["generate", "A prompt", *map(str, args)])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_what_contradicts_itself_or_cannot_be_read_is_refused_before_anything_is_loaded(nothing_loaded, tmp_path):
    (tmp_path / "latin").write_bytes(b"\xe9")
    assert "exclude each other" in refused("--regex", "a", "--json-object")
    assert "cannot read" in refused("--json-schema", tmp_path / "none.json")
    assert "UTF-8" in refused("--grammar", tmp_path / "latin")
    assert "leave out --ignore-eos" in refused("--regex", "a", "--ignore-eos")


@pytest.fixture
def said(engine, monkeypatch):
    monkeypatch.setattr(augury, "load", lambda *args, **options: engine)

    def run(*args, code=0):
        done = CliRunner().invoke(app, ["generate", "A colour and a count.", "--no-stats", *map(str, args)])
        assert done.exit_code == code, done.stderr
        return done.stdout.removesuffix("\n") if code == 0 else done.stderr

    return run


@pytest.mark.real
def test_answers_are_as_they_are_wanted(said, tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "g.lark").write_text('start: "a" | "b" start\n')
    found = json.loads(said("--json-schema", tmp_path / "s.json"))
    assert found["colour"] in ("red", "green")
    assert found["count"] in range(10)
    hot = ("--temperature", 1.5, "--seed", 3)
    assert re.fullmatch("[0-9]{4}", said("--regex", "[0-9]{4}", *hot))
    assert re.fullmatch("b*a", said("--grammar", tmp_path / "g.lark"))
    assert said("--regex", "") == ""
    assert said("--json-object", "--max-tokens", 4).lstrip().startswith("{")


@pytest.mark.real
def test_what_is_no_grammar_is_one_line(said, tmp_path):
    (tmp_path / "s.json").write_text('{"type": "strin"}')
    assert "Invalid type: strin" in said("--json-schema", tmp_path / "s.json", code=2)
    assert "unclosed group" in said("--regex", "(a", code=2)
