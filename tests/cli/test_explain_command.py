"""``augury explain``: every step in the terminal, and the same answer as a page."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

import augury
from augury.cli import app
from augury.trace.log import TraceFile


def run(*args, code=0):
    done = CliRunner().invoke(app, ["explain", *map(str, args)], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/no/x.html", "--html /no/x.html: there is no directory /no"),
        ("/", "--html / is a directory; give a file in it"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_loaded(nothing_loaded, path, said):
    done = run("x", "--html", path, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.real
def test_the_page_is_the_answer_that_was_told(monkeypatch, engine, tmp_path):
    monkeypatch.setattr(augury, "load", lambda *args, **options: engine)
    prompt = "Say <script>alert(1)</script> twice, and <script>alert(1)</script> once more."
    file = tmp_path / "x.html"
    done = run(prompt, "--max-tokens", 24, "--html", file, "--trace", tmp_path / "x.jsonl")
    text = file.read_text("utf-8")
    assert "<script" not in text
    assert "Say &lt;script&gt;alert(1)&lt;" in text
    steps = done.stdout.count("\nstep ") + done.stdout.startswith("step ")
    assert steps > 0
    assert text.count("<details") == steps
    assert text.count('class="picture tree"') == steps
    traced = [event for event in TraceFile(tmp_path / "x.jsonl") if event["kind"] == "step"]
    assert len(traced) == steps
    assert all(event["p"] is not None for event in traced)


@pytest.mark.real
def test_where_the_answer_is_drawn_a_seed_is_chosen_and_told(monkeypatch, engine, tmp_path):
    monkeypatch.setattr(augury, "load", lambda *args, **options: engine)
    file = tmp_path / "x.html"
    run("List a, b, c.", "--temperature", 0.9, "--max-tokens", 8, "--html", file)
    assert re.search(r"temperature 0\.9, seed \d+", file.read_text("utf-8"))
    run("List a, b, c.", "--temperature", 0.9, "--seed", 5, "--max-tokens", 8, "--html", file)
    assert "temperature 0.9, seed 5" in file.read_text("utf-8")
