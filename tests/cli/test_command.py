"""The command as a whole: help, version, errors in one line, exit codes, quiet pipes, what is imported."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
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


def written_commands():
    """Every command that a document shows, in lines of their own or within the text: (document, words)."""
    root = Path(__file__).resolve().parents[2]
    for path in [*root.glob("*.md"), *(root / "docs").glob("*.md")]:
        for written in re.findall(r"(?:^(?:\$ )?|`)augury ([^`\n]+)", path.read_text(), flags=re.M):
            yield path.name, [word for word in shlex.split(written, comments=True) if word != "..."]


def test_every_command_in_the_documents_is_one_that_this_version_takes():
    commands = list(written_commands())
    assert {"README.md", "README.zh-CN.md", "CONTRIBUTING.md"} <= {name for name, _ in commands}
    verbs = get_command(app).commands
    for name, (verb, *words) in commands:
        assert verb in verbs, f"{name}: augury {verb}"
        if not words:  # a verb that is spoken of
            continue
        switches = {name for option in verbs[verb].params if getattr(option, "is_flag", False) for name in option.opts}
        if words[-1].startswith("--") and words[-1] not in switches:
            words.append("x")  # a mention of a flag, without its value
        verbs[verb].make_context(verb, words)  # reads the words and runs nothing


def test_check_reads_its_prompts_as_bench_does(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "one"}\n{')
    (tmp_path / "none.txt").write_text("\n")
    for verb in ("check", "bench"):
        for name, said in (("bad.jsonl", "bad.jsonl line 2 is not JSON"), ("none.txt", "none.txt has no prompts")):
            done = CliRunner().invoke(app, [verb, "--file", str(tmp_path / name)])
            assert done.exit_code == 2
            assert said in one_line(done.stderr)


def test_info_where_the_system_does_not_say_which_cores_may_be_used(monkeypatch):
    from augury.models import native

    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(native, "native_available", lambda: "needs Linux")
    done = CliRunner().invoke(app, ["info", "--json"])
    assert done.exit_code == 0, done.exception
    machine = json.loads(done.stdout)["machine"]
    assert machine["cores"] == f"{os.cpu_count()} of {os.cpu_count()} usable"
    assert machine["native"] == "not available: needs Linux"


def test_the_help_of_bad_words_says_that_tokens_are_banned():
    shown = CliRunner().invoke(app, ["generate", "--help"], env={"COLUMNS": "300"}).stdout
    assert "Bans the tokens that spell a text" in shown


@pytest.mark.parametrize("verb", ["check", "bench"])
def test_a_line_separator_inside_a_json_text_does_not_end_its_row(verb, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a\u2028b\u0085c"}\n', "utf-8")
    done = CliRunner().invoke(app, [verb, "--file", str(tmp_path / "a.jsonl"), "--model", "/nonexistent/model"])
    assert done.exit_code == 2
    assert "/nonexistent/model" in one_line(done.stderr)  # the prompts were read before
