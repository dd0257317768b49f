"""The commands of the plug-in for vLLM: a mistake in their arguments is one line, before anything is started."""

from __future__ import annotations

import json
import sys

import pytest
from augury_vllm import compare, overhead

GOOD = json.dumps([{"prompt": [1, 2, 3, 1, 2], "answer": [3, 1, 2, 3, 1, 2, 3]}])


@pytest.fixture
def said(monkeypatch, capsys, tmp_path):
    """What a command says to arguments that it cannot take."""

    def run(command, *arguments):
        def start(*_):
            raise AssertionError("an engine was started")

        monkeypatch.setattr(compare, "Engine", start)
        monkeypatch.setattr(compare, "prompts_of", lambda model, chosen, longest: {"a": [1, 2]} if longest > 1 else {})
        monkeypatch.setattr(sys, "argv", [command.__name__, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert ended.value.code == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        return line.partition("error: ")[2]

    return run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--at-once", "0"], "argument --at-once: '0' is no whole number, 1 or more"),
        (["--at-once", "1,x"], "argument --at-once: 'x' is no whole number, 1 or more"),
        (["--max-tokens", "1"], "argument --max-tokens: '1' is no whole number, 2 or more"),
        (["--tokens", "0"], "argument --tokens: '0' is no whole number, 1 or more"),
        (["--augury", "5"], "argument --augury: '5' is no object of JSON, such as"),
        (["--augury", "{"], "argument --augury: '{' is no object of JSON, such as"),
        (["--augury", '{"rows": 1}'], "unknown option of augury 'rows'; did you mean 'row'?"),
        (["--drafters", "sufix"], "unknown drafter 'sufix'; did you mean 'suffix'?"),
        (["--context", "64"], "no prompt and 64 tokens fit --context 64; raise it"),
    ],
)
def test_a_comparison_is_refused_before_an_engine_starts(said, arguments, says):
    assert said(compare, "model", *arguments).startswith(says)


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        (None, [], "cannot read {}: No such file or directory"),
        ("", [], "{} holds no answers; give what augury_vllm.compare --json writes"),
        ("[]", [], "{} holds no answers"),
        ('{"prompt": [1]}', [], "{} holds no answers"),
        ('[{"prompt": ["a"], "answer": [1]}]', [], "{} holds no answers"),
        ('[{"prompt": [1], "answer": []}]', [], "{} holds no answers"),
        (GOOD, ["--rows", "0"], "argument --rows: '0' is no whole number, 1 or more"),
        (GOOD, ["--context", "5"], "none of 1 answers fits --context 5; raise it"),
        (GOOD, ["--augury", "[]"], "argument --augury: '[]' is no object of JSON"),
        (GOOD, ["--drafters", "sufix"], "unknown drafter 'sufix'; did you mean 'suffix'?"),
    ],
)
def test_what_cannot_be_timed_is_said(said, tmp_path, text, arguments, says):
    file = tmp_path / "answers.json"
    if text is not None:
        file.write_text(text)
    assert said(overhead, file, *arguments).startswith(says.format(file))
