"""``augury replay`` and ``augury info --costs``: what is refused, what is shown, what is written."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from corpus import Letters
from typer.testing import CliRunner

import augury
from augury.bench.replay.replay import arms, ready
from augury.budget import Costs
from augury.cli import app
from augury.conformance.toys import ToyTarget
from augury.engine.engine import Engine
from augury.engine.tables import CostTable
from augury.models import load
from augury.models.load import Wording

TEXT = "the red fox and the red hen and the red fox and the red hen"


def run(*args, code=0, verb="replay"):
    done = CliRunner().invoke(app, [verb, *map(str, args)], env={"COLUMNS": "300"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def cells(markdown):
    """Rows of the first Markdown table, by column."""
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    heads, _, *rows = ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows)
    return [dict(zip(heads, row, strict=True)) for row in rows]


@pytest.fixture
def ids(tmp_path):
    file = tmp_path / "ids.jsonl"
    text = list(map(ord, TEXT))
    file.write_text("\n".join(json.dumps({"prompt_ids": text[:20], "answer_ids": text[20:]}) for _ in range(3)))
    return file


@pytest.fixture
def costs(tmp_path):
    file = tmp_path / "costs.json"
    CostTable(Costs(np.concatenate([[0.0], 1e5 + 1e3 * np.arange(65)]), 0.0, 0.0), {"model": "letters"}).write(file)
    return file


@pytest.fixture
def words(monkeypatch):
    monkeypatch.setattr(load, "load_wording", lambda model: Wording(Letters(name=model), None, frozenset()))


def test_every_drafter_that_needs_nothing_alone_and_all_together(ids):
    done = run(ids, "--markdown")
    rows = cells(done.stdout)
    assert [row["drafters"] for row in rows] == ["ngram", "suffix", "ngram + suffix"]
    assert all(float(row["accepted length"]) > 1.5 for row in rows)
    assert "expected speed-up" not in rows[0]
    assert "no speed-up is claimed" in done.stdout
    plain = run(ids).stdout
    assert f"3 answers, {3 * (len(TEXT) - 20)} tokens, of 3 conversations" in plain


def test_with_a_cost_table_the_budget_chooses_and_a_speed_up_is_expected(ids, costs, tmp_path):
    out = tmp_path / "found.json"
    done = run(ids, "--costs", costs, "--drafters", "memory,ngram:max=2", "--json", out, "--markdown", "--limit", 2)
    specs = [*ready(), "memory", "ngram:max=2"]
    rows = cells(done.stdout)
    assert [row["drafters"] for row in rows] == [" + ".join(arm) for arm in arms(specs)]
    for row in rows:
        # A row costs a hundredth of a plain step, and drafting nothing.
        length, speedup = float(row["accepted length"]), float(row["expected speed-up"])
        assert 0.5 * length < speedup < length
    assert "forwards by the cost table (model letters)" in done.stdout
    found = json.loads(out.read_text())
    assert found["arguments"]["limit"] == 2
    assert found["arguments"]["log"] == str(ids)
    assert found["log"]["answers"] == 2
    assert [one["drafters"] for one in found["arms"]] == [list(arm) for arm in arms(specs)]
    assert CostTable.of(found["costs"]).measured_on == {"model": "letters"}


def test_a_memory_learns_from_earlier_answers_of_the_same_user(tmp_path):
    """Noise cannot be guessed from itself, only remembered."""
    noise = np.random.default_rng(0).permutation(4000).tolist()

    def length(users):
        file = tmp_path / "users.jsonl"
        rows = [{"prompt_ids": [7, 8, 9], "answer_ids": noise[:60], "user": user} for user in users]
        file.write_text("\n".join(map(json.dumps, rows)))
        (row,) = cells(run(file, "--only", "--drafters", "memory", "--markdown").stdout)
        return float(row["accepted length"])

    assert length(["ann", "bob"]) == 1.0
    assert length(["ann", "ann"]) > 1.5


@pytest.mark.usefixtures("words")
def test_texts_are_read_with_the_tokenizer_that_is_named(tmp_path):
    file = tmp_path / "log.jsonl"
    rows = [
        {"prompt": TEXT, "response": TEXT, "prediction": TEXT},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    done = run(file, "--tokenizer", "letters", "--only", "--drafters", "prediction", "--markdown", "--max-tokens", 30)
    (row,) = cells(done.stdout)
    assert float(row["accepted length"]) > 5.0
    assert "1 answers, 30 tokens, of 2 conversations" in run(file, "--tokenizer", "x", "--max-tokens", 30).stdout
    assert "answers left out: 1 empty" in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--drafters", "sufix"], "did you mean 'suffix'"),
        (["--drafters", "none"], "the drafter none guesses nothing"),
        (["--only"], "there are none; name some"),
        (["--drafters", "recycle"], "recycle cannot be replayed: it learns from the target's rows"),
        (["--drafters", "memory:here"], "write memory"),
        (["--drafters", "prediction"], "no line of the log has one"),
        (["--drafters", "ngram:max=99"], "drafter ngram: min is 1 and max 99"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--tokenizer", "smollm"], "did you mean 'smollm2-135m'"),
        (["--tokenizer", "/nonexistent/x"], "there is no directory or file /nonexistent/x"),
        (["--costs", "/nonexistent/x"], "cannot read /nonexistent/x"),
        (["--json", "/nonexistent/x.json"], "there is no directory /nonexistent"),
    ],
)
def test_what_cannot_be_honoured_is_one_line_and_exit_code_2(ids, args, said):
    done = run(ids, *args, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("augury: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_log_that_is_not_understood_is_refused(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"prompt": "x", "answer": "y"}')
    assert "log.jsonl line 1: it is text; name the model" in run(tmp_path / "log.jsonl", code=2).stderr
    assert "cannot read" in run(tmp_path / "none.jsonl", code=2).stderr


def test_who_stops_early_has_what_there_is(ids, monkeypatch):
    from augury.bench.replay import replay as source

    real = source.replay

    def first(*given, **options):
        turns = real(*given, **options)
        for _ in range(stop):
            yield next(turns)
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "replay", first)
    stop = 1
    done = run(ids, "--markdown")
    assert "stopped after 1 of 3 answers; this is what they show" in done.stderr
    assert len(cells(done.stdout)) == 3
    stop = 0
    run(ids, code=130)


def test_ids_are_replayed_without_torch(ids):
    code = (
        "import sys; sys.argv = ['augury', 'replay', *sys.argv[1:]]\n"
        "from augury.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "sys.exit(' '.join({'torch', 'transformers', 'scipy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(ids)], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


# ---- augury info --costs --------------------------------------------------------------------------------------------


def test_info_writes_what_steps_cost(monkeypatch, tmp_path, ids):
    monkeypatch.setattr(augury, "load", lambda model, **options: Engine(ToyTarget(8)))
    out = tmp_path / "costs.json"
    done = run("--model", "toy", "--threads", 1, "--costs", out, "--json", verb="info")
    table = CostTable.read(out)
    assert table.measured_on["model"] == "toy of 8 tokens"
    assert table.measured_on["threads"] == 1
    assert {"runner", "dtype", "cpu", "cores", "augury"} <= {*table.measured_on}
    assert table.costs.rest > 0.0, "what surrounds a forward is known from steps that were served"
    assert json.loads(done.stdout)["costs"]["1 rows"] == f"{table.costs.verify[1]:.2f} ms"
    assert "expected speed-up" in cells(run(ids, "--costs", out, "--markdown").stdout)[0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--costs", "x"], "--costs needs --model"),
        (["--model", "smollm2-135m", "--costs", "/nonexistent/x"], "there is no directory /nonexistent"),
    ],
)
def test_info_refuses_costs_of_nothing_or_to_nowhere(args, said):
    done = run(*args, code=2, verb="info")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
