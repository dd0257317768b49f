"""``augury bench``: what is refused before anything is loaded, batches, and what is written and read again."""

from __future__ import annotations

import json
import sys

import pytest
from corpus import Letters
from typer.testing import CliRunner

import augury
from augury.cli import app
from augury.conformance.toys import ToyTarget
from augury.drafters.suffix import Suffix
from augury.engine.engine import Engine

V = 6


def run(*args, code=0):
    done = CliRunner().invoke(app, ["bench", *map(str, args)], env={"COLUMNS": "300"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def loads(monkeypatch):
    """Calls of ``augury.load``, which gives a toy."""
    calls = []

    def load(model, **options):
        calls.append(options)
        drafters = [("suffix", Suffix())]
        return Engine(ToyTarget(V), drafters, tokenizer=Letters(V), slots=options["max_num_seqs"])

    monkeypatch.setattr(augury, "load", load)
    return calls


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"id": f"{kind}-{i}", "kind": kind, "prompt": "123"[i:] + "12"} for kind in ("a", "b") for i in range(3)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize("batch", ["", "0", "-1", "1,,2", "two", "1.5", "1;2"])
def test_a_batch_that_is_no_list_of_numbers(batch):
    assert "is not a comma list of whole numbers" in run("--batch", batch, code=2).stderr


@pytest.mark.usefixtures("nothing_loaded")
def test_what_cannot_be_honoured_is_said_before_anything_is_loaded(prompts, tmp_path):
    said = run("--file", prompts, "--batch", "1,7", code=2).stderr
    assert "--batch 7 needs as many prompts, and there are 6" in said
    for flag in ("--html", "--json"):
        assert (
            f"{flag} /nonexistent/x: there is no directory /nonexistent" in run(flag, "/nonexistent/x", code=2).stderr
        )
        assert "is a directory" in run(flag, tmp_path, code=2).stderr
    said = run("--file", prompts, "--kinds", "adversarial", code=2).stderr
    assert "unknown kind 'adversarial'" in said  # ours are not mixed with those of a file
    assert "Valid: adversarial, chinese" in run("--kinds", "x", code=2).stderr


def test_batches_are_measured_written_and_shown_again(loads, prompts, tmp_path):
    out, html = tmp_path / "a.json", tmp_path / "a.html"
    done = run(
        "--file", prompts, "--batch", "4,2", "--max-tokens", 6, "--rounds", 1, "--drafters", "suffix", "--markdown",
        "--json", out, "--html", html,
    )  # fmt: skip
    assert loads[0]["max_num_seqs"] == 4
    assert "| batch | groups |" in done.stdout
    found = json.loads(out.read_text())
    assert found["arguments"]["batch"] == "4,2"
    (one,) = found["runs"]
    assert [batch["size"] for batch in one["batches"]] == [1, 2, 4]
    assert [batch["groups"] for batch in one["batches"]] == [6, 3, 2]
    assert all(batch["mismatches"] == 0 for batch in one["batches"])
    assert sum(batch["answers"] for batch in one["batches"]) == 6 + 6 + 8
    again = tmp_path / "b.html"
    shown = run("--from", out, "--html", again, "--markdown")
    assert again.read_text() == html.read_text()
    assert shown.stdout == done.stdout
    assert len(loads) == 1


def test_one_request_at_a_time_is_what_is_measured_when_nothing_is_said(loads, prompts, tmp_path):
    out = tmp_path / "a.json"
    run("--file", prompts, "--limit", 1, "--max-tokens", 4, "--rounds", 1, "--json", out)
    assert loads[0]["max_num_seqs"] == 1
    (one,) = json.loads(out.read_text())["runs"]
    assert (one["batches"], one["together"]) == ([], [])


@pytest.mark.usefixtures("nothing_loaded")
def test_a_kept_measurement_takes_no_flags_of_measuring(tmp_path):
    said = run("--from", tmp_path / "a.json", "--seed", 0, code=2).stderr
    assert "so --seed has no place" in said
    (tmp_path / "a.json").write_text("{}")
    assert "is not a file that" in run("--from", tmp_path / "a.json", code=2).stderr


def test_a_kept_measurement_whose_answers_differ_says_so_by_its_exit_code(loads, prompts, tmp_path):
    out = tmp_path / "a.json"
    run("--file", prompts, "--batch", "2", "--max-tokens", 4, "--rounds", 1, "--json", out)
    found = json.loads(out.read_text())
    found["runs"][0]["together"][0]["same"][1] = False
    out.write_text(json.dumps(found))
    assert "5/6" in run("--from", out, "--html", tmp_path / "a.html", code=1).stdout
    assert "11 of 12" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 9 TiB"), RuntimeError("CUDA out of memory. Tried to allocate 9 TiB")]
)
def test_where_memory_ends_it_is_said_what_to_do(monkeypatch, prompts, error):
    def load(*args, **options):
        raise error

    monkeypatch.setattr(augury, "load", load)
    said = run("--file", prompts, "--batch", "6", code=2).stderr
    assert "--batch 6 needs more memory than there is" in said
    assert "9 TiB" in said
    assert "--max-model-len" in said


def test_other_errors_are_not_taken_for_it(monkeypatch, prompts):
    def load(*args, **options):
        raise RuntimeError("something else")

    monkeypatch.setattr(augury, "load", load)
    with pytest.raises(RuntimeError, match="something else"):
        run("--file", prompts, "--batch", "6")


def test_the_time_left_is_known_however_long_an_answer_takes(monkeypatch):
    import rich.progress

    from augury.bench.prompts import Prompt
    from augury.cli.terminal import answering

    clock, bars = [0.0], []

    class Clocked(rich.progress.Progress):
        def __init__(self, *columns, **options):
            super().__init__(*columns, get_time=lambda: clock[0], disable=True, **options)
            bars.append(self)

    monkeypatch.setattr(rich.progress, "Progress", Clocked)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with answering("suffix", 10) as told:
        for _ in range(3):
            clock[0] += 60.0
            told(Prompt("a", "qa", "x"))
        (bar,) = bars
        assert any(isinstance(column, rich.progress.TimeRemainingColumn) for column in bar.columns)
        assert bar.tasks[0].time_remaining == 7 * 60
