"""The command as a whole: help, version, errors in one line, exit codes, quiet pipes, what is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from augury import __version__
from augury.cli import VERBS, app

COMMAND = [sys.executable, "-c", "from augury.cli import main; main()"]


def command(*args, stdin="", env=None, timeout=120):
    return subprocess.run(
        [*COMMAND, *args], input=stdin.encode() if isinstance(stdin, str) else stdin, capture_output=True,
        timeout=timeout, env={**os.environ, "COLUMNS": "200", **(env or {})},
    )  # fmt: skip


def one_line(text):
    assert text.startswith("augury: ")
    assert text.count("\n") == 1
    return text


def test_help_and_version_import_no_torch():
    for args in (["--help"], ["--version"], ["generate", "--help"], ["generate"]):
        code = (
            "import sys; sys.argv = ['augury', *sys.argv[1:]]\n"
            "from augury.cli import main\n"
            "try: main()\n"
            "except SystemExit: pass\n"
            "sys.exit(' '.join({'torch', 'transformers', 'scipy'} & set(sys.modules)) or 0)"
        )
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_version():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"augury {__version__}\n")


def test_every_verb_says_what_it_does_and_what_every_flag_means():
    listed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    for verb in VERBS:
        assert f" {verb} " in listed
        done = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"})
        assert done.exit_code == 0
        flags = [row for row in done.stdout.splitlines() if row.startswith("│ --")]
        assert flags
        for row in flags:
            assert len(row.strip(" │").split("  ")) > 1, f"{verb}: {row}"


def test_no_verb_shows_the_help():
    done = CliRunner().invoke(app, [])
    assert "generate" in done.output


def test_an_unknown_option_or_verb_is_named():
    done = CliRunner().invoke(app, ["generate", "--temperatur", "1", "x"])
    assert done.exit_code == 2
    assert "--temperatur" in done.stderr
    done = CliRunner().invoke(app, ["generat", "x"])
    assert done.exit_code == 2
    assert "generat" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give one prompt"),
        (["x", "--file", "y"], "give one prompt"),
        (["--file", "/nonexistent/prompt.txt"], "cannot read /nonexistent/prompt.txt: No such file"),
        (["x", "--raw", "--system", "y"], "--raw takes the prompt as it stands"),
        (["x", "--prediction", "a", "--prediction-file", "b"], "exclude each other"),
        (["x", "--no-draft", "--drafters", "ngram"], "exclude each other"),
        (["x", "--no-draft", "--prediction", "a"], "needs the drafter prediction"),
        (["x", "--drafters", "suffix", "--prediction", "a"], "needs the drafter prediction"),
        (["x", "--json", "--show-drafts"], "leave out --show-drafts"),
        (["x", "--min-tokens", "9", "--max-tokens", "8"], "--min-tokens 9 is above --max-tokens 8"),
        (["x", "--temperature", "-1"], "temperature is -1.0"),
        (["x", "--temperature", "nan"], "temperature is nan"),
        (["x", "--top-p", "0"], "top_p is 0"),
        (["x", "--logit-bias", "5"], "not ID=VALUE"),
        (["x", "--logit-bias", "5=1000"], "logit_bias of token 5 is 1000.0"),
        (["x", "--stop-token-ids", "1;2"], "comma list of token ids"),
        (["x", "--acceptance", "couple"], "did you mean 'coupled'"),
        (["x", "--drafters", "sufix"], "did you mean 'suffix'"),
        (["x", "--drafters", "none,suffix"], "none together with suffix"),
        (["x", "--model", "/nonexistent/model"], "/nonexistent/model"),
        (["x", "--prediction-file", "/nonexistent/p"], "cannot read /nonexistent/p"),
    ],
)
def test_what_cannot_be_honoured_is_one_line_and_exit_code_2(args, said):
    done = CliRunner().invoke(app, ["generate", *args])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert said in one_line(done.stderr)


def test_a_prompt_that_is_no_text_is_named(tmp_path):
    (tmp_path / "latin1").write_bytes("Fuß".encode("latin-1"))
    done = command("generate", "--file", str(tmp_path / "latin1"))
    assert done.returncode == 2
    assert "is not UTF-8 text: byte 0xdf at 2" in one_line(done.stderr.decode())
    done = command("generate", "-", stdin=b"\xff\xfe")
    assert done.returncode == 2
    assert "stdin is not UTF-8 text" in one_line(done.stderr.decode())
    done = subprocess.run([*COMMAND, "generate", b"Fu\xdf"], capture_output=True, timeout=60)
    assert done.returncode == 2
    assert "prompt is not UTF-8 text" in one_line(done.stderr.decode())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["x", "--file", "y"], "exclude each other"),
        (["x", "--drafters", "none"], "nothing to compare"),
        (["x", "--acceptance", "rejection", "--temperature", "1"], "keeps the law"),
        (["--file", "/nonexistent/p"], "cannot read /nonexistent/p"),
    ],
)
def test_check_refuses_what_proves_nothing(args, said):
    done = CliRunner().invoke(app, ["check", *args])
    assert done.exit_code == 2
    assert said in one_line(done.stderr)


def test_prompt_files(tmp_path):
    from augury.cli.prompts import dialogues
    from augury.errors import InputError

    (tmp_path / "a.txt").write_text("one\n\n{two}\n")
    assert dialogues(tmp_path / "a.txt") == [["one"], ["{two}"]]
    (tmp_path / "a.jsonl").write_text('{"prompt": "one"}\n{"turns": ["two", "three"], "id": 1}\n')
    assert dialogues(tmp_path / "a.jsonl") == [["one"], ["two", "three"]]
    for bad, said in (
        ("{", "line 2 is not JSON"),
        ("[1]", "neither"),
        ('{"turns": []}', "neither"),
        ('{"prompt": 1}', "neither"),
    ):
        (tmp_path / "b.jsonl").write_text('{"prompt": "one"}\n' + bad + "\n")
        with pytest.raises(InputError, match=said):
            dialogues(tmp_path / "b.jsonl")
