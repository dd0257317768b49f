"""``augury drafters``: the list, what is refused before anything is loaded, and the tables."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from corpus import Letters, built
from typer.testing import CliRunner

import augury
from augury.cli import app
from augury.conformance.toys import ToyTarget
from augury.drafters import DRAFTERS, free
from augury.engine.engine import Engine

V = 6


def run(*args, code=0):
    done = CliRunner().invoke(app, ["drafters", *map(str, args)], env={"COLUMNS": "300"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def loads(monkeypatch):
    """Calls of ``augury.load``, which gives a toy."""
    calls = []

    def load(model, **options):
        calls.append({"model": model, **options})
        return Engine(ToyTarget(V), [], tokenizer=Letters(V))

    monkeypatch.setattr(augury, "load", load)
    return calls


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"question_id": i, "category": c, "turns": ["12312312", "1"]} for i, c in enumerate(("qa", "rag", "qa"))]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def cells(markdown):
    """Rows of the first Markdown table."""
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in (rows[0], *rows[2:])]


# ---- the list -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_loaded")
def test_the_list_names_every_drafter_and_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    heads, *rows = cells(run("--markdown").stdout)
    assert heads == ["drafter", "guesses from", "needs", "for smollm2-135m"]
    assert [row[:3] for row in rows] == [[name, spec.doc, spec.needs] for name, spec in DRAFTERS.items()]
    for name, _, needs, here in rows:
        assert here == ("no index yet" if name == "retrieval" else "when given" if needs else "yes")
    plain = run().stdout
    assert all(name in plain for name in DRAFTERS)


@pytest.mark.usefixtures("nothing_loaded")
def test_the_list_names_the_indexes_of_this_target(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    home = tmp_path / "augury" / "index"
    home.mkdir(parents=True)
    built(home / "mine", ["some text of mine"])
    built(home / "torn", ["some text of mine"])
    (home / "torn" / "manifest.json").write_text("{}")
    out = tmp_path / "list.json"
    run("--model", "letters", "--json", out)
    found = json.loads(out.read_text())
    assert found["model"] == "letters"
    assert {one["name"]: one["available"] for one in found["drafters"]}["retrieval"] == "retrieval:mine"
    run("--model", "another", "--json", out)
    assert {one["name"]: one["available"] for one in json.loads(out.read_text())["drafters"]}["retrieval"] == (
        "no index yet"
    )


def test_the_list_imports_no_torch():
    code = (
        "import sys; sys.argv = ['augury', 'drafters']\n"
        "from augury.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit(' '.join({'torch', 'transformers', 'scipy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--by", "kind"], "--by needs prompts: give --file, or --measure"),
        (["--drafters", "suffix"], "--drafters needs prompts"),
        (["--max-tokens", "3"], "--max-tokens needs prompts"),
        (["--threads", "3"], "--threads needs prompts"),
        (["--measure", "--file", "x"], "leave one out"),
        (["--measure", "--by", "kinds"], "did you mean 'kind'"),
        (["--measure", "--only"], "there are none; name some"),
        (["--measure", "--drafters", "sufix"], "did you mean 'suffix'"),
        (["--measure", "--drafters", "none"], "compared with plain decoding anyway"),
        (["--measure", "--kinds", "prose"], "unknown kind 'prose'"),
        (["--measure", "--temperature", "-1"], "temperature is -1.0"),
        (["--file", "/nonexistent/p"], "cannot read /nonexistent/p"),
        (["--json", "/nonexistent/x.json"], "there is no directory /nonexistent"),
    ],
)
def test_what_cannot_be_honoured_is_one_line_and_exit_code_2(args, said):
    done = run(*args, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("augury: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


ALONE = [*free(), "self"]
"""What is measured unasked on a target that can be made cheaper, as the toy can."""


# ---- measuring ----------------------------------------------------------------------------------------------------


def test_all_that_need_nothing_are_measured_and_those_given(loads, prompts, tmp_path):
    out = tmp_path / "found.json"
    done = run("--file", prompts, "--drafters", "ngram:max=2,model:/nonexistent,model", "--max-tokens", 16,
               "--rounds", 2, "--markdown", "--json", out)  # fmt: skip
    assert len(loads) == 1
    assert loads[0]["drafters"] == "none"
    heads, *rows = cells(done.stdout)
    assert [row[0].partition(": ")[0] for row in rows] == [*ALONE, "ngram:max=2", "model:/nonexistent", "model"]
    assert "there is no directory or file /nonexistent" in rows[-2][0]
    assert "drafter model needs model" in rows[-1][0]
    ngram = dict(zip(heads, rows[ALONE.index("ngram")], strict=True))
    assert float(ngram["speed-up"]) > 0.0
    assert float(ngram["accepted length"]) >= 1.0
    assert ngram["asked"].endswith("%")
    for column in ("guesses", "hits"):  # a toy's step is so short that a drafter may never be worth asking
        assert ngram[column].endswith("%") or ngram["asked"] == "0%"
    assert f"{6 * (len(ALONE) + 1)} of {6 * (len(ALONE) + 1)} pairs have the same tokens" in done.stdout
    assert "model:/nonexistent is left out: there is no directory or file" in done.stderr
    found = json.loads(out.read_text())
    assert found["arguments"]["rounds"] == 2
    assert found["arguments"]["file"] == str(prompts)
    assert [one["drafter"] for one in found["drafters"]] == [*ALONE, "ngram:max=2", "model:/nonexistent", "model"]
    assert [one["why"] is None for one in found["drafters"]] == [True] * (len(ALONE) + 1) + [False] * 2
    assert len(found["runs"]) == len(ALONE) + 1


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("by", ["kind", "CATEGORY"])
def test_the_table_by_category(prompts, by):
    done = run("--file", prompts, "--by", by, "--only", "--drafters", "suffix,ngram,model", "--max-tokens", 8,
               "--markdown")  # fmt: skip
    heads, *rows = cells(done.stdout)
    assert heads == ["drafter", "qa", "rag", "all"]
    assert [row[0].partition(":")[0] for row in rows] == ["suffix", "ngram", "model"]
    for row in rows[:2]:
        for cell in row[1:]:
            length, drafting, speedup = cell.split(" / ")
            assert float(length) >= 1.0
            assert 0 <= int(drafting.removesuffix("%")) < 100
            assert float(speedup) > 0.0
    assert rows[2][1:] == ["-"] * 3


@pytest.mark.usefixtures("loads")
def test_where_nobody_could_be_made_the_exit_code_says_so(prompts):
    done = run("--file", prompts, "--only", "--drafters", "model:/nonexistent", code=2)
    assert "directory" in done.stdout  # why, in a narrow cell


def test_own_prompts_are_measured_when_asked_for(monkeypatch, loads, tmp_path):
    from augury.bench import prompts as source
    from augury.bench.prompts import Prompt

    monkeypatch.setattr(source, "own", lambda: [Prompt("a", "ours", "1231"), Prompt("b", "ours", "1231")])
    out = tmp_path / "found.json"
    run("--measure", "--limit", 1, "--only", "--drafters", "ngram", "--max-tokens", 4, "--threads", 1, "--json", out)
    assert loads[0]["threads"] == 1
    (measured,) = json.loads(out.read_text())["runs"]
    assert [pair["prompt"] for pair in measured["pairs"]] == ["a"]


# ---- augury bench --each ------------------------------------------------------------------------------------------


def test_each_of_bench_takes_those_that_need_nothing_and_prediction(monkeypatch, prompts):
    asked = []

    def load(model, **options):
        asked.append(options["drafters"])
        return Engine(ToyTarget(V), [], tokenizer=Letters(V))

    monkeypatch.setattr(augury, "load", load)
    done = CliRunner().invoke(app, ["bench", "--each", "--file", str(prompts), "--max-tokens", "4", "--rounds", "1"])
    assert done.exit_code == 0, done.output
    alone = [*free(), "prediction", "self"]
    assert asked == ["none", *alone, ",".join(alone)]  # the first load tells what the target can be
    assert {"suffix", "ngram", "recycle", "lookahead"} <= set(alone)
    assert not {"model", "foreign", "retrieval"} & set(alone)
