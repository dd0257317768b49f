"""The comparison inside vLLM keeps what engines did, and prints what it has."""

from __future__ import annotations

import json
import sys

import pytest
from augury_vllm import compare
from augury_vllm.compare import PLAIN, Results, Run
from augury_vllm.engine import Answered

from augury.errors import InputError

NOTHING = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}


def run(accepted=0, answers=((1, 2, 3, 4, 5), (1, 2, 3, 4, 6))):
    made = Run()
    counts = {"drafts": 3, "draft_tokens": 6, "accepted_tokens": accepted}
    made.add(Answered([list(answer) for answer in answers], 20.0, counts), NOTHING)
    return made


def test_a_step_without_a_draft_counts_too():
    assert run(4).tokens_per_step == 2.0  # eight tokens behind the first ones, four of them guessed
    assert run(3).acceptance_length == 2.0
    assert Run().acceptance_length is None
    assert run().ms_per_token == 2.0


def test_what_engines_did_is_there_for_the_next_run(tmp_path):
    file, same = tmp_path / "results.json", {"model": "m", "max_tokens": 5}
    first = Results(file, same)
    assert first.lacks(PLAIN, [1, 16]) == [1, 16]
    first.add(16, PLAIN, run(2))
    again = Results(file, same)
    assert again.lacks(PLAIN, [1, 16]) == [1]
    assert again.runs[16][PLAIN] == run(2)


@pytest.mark.parametrize(
    "kept", ["", "[]", '{"same": {}}', '{"same": {"model": "m"}, "runs": {"1": {"plain": {"a": 1}}}}']
)
def test_another_file_is_none_of_results(tmp_path, kept):
    file = tmp_path / "other.json"
    file.write_text(kept)
    with pytest.raises(InputError, match="holds no results"):
        Results(file, {"model": "m"})


def test_results_of_another_comparison_are_not_mixed_in(tmp_path):
    file = tmp_path / "results.json"
    Results(file, {"max_tokens": 64}).add(1, PLAIN, run())
    with pytest.raises(InputError, match="made with max_tokens 64, not 32"):
        Results(file, {"max_tokens": 32})


class Played:
    """An engine that says the same to everybody; every other token was guessed where it speculates."""

    def __init__(self, options):
        self.accepted, self.each = 0, 4 if "speculative_config" in options else 0

    def answer(self, prompts, max_tokens):
        self.accepted += self.each * len(prompts)
        return Answered([[7] * max_tokens for _ in prompts], 10.0, {**NOTHING, "accepted_tokens": self.accepted})

    def close(self):
        pass


def said(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(compare, "Engine", Played)
    monkeypatch.setattr(compare, "prompts_of", lambda *_: {"a": [1, 2], "b": [3]})
    monkeypatch.setattr(sys, "argv", ["compare", "model", "--max-tokens", "9", *map(str, arguments)])
    compare.main()
    return capsys.readouterr().out


def test_engines_run_in_parts_and_the_last_part_prints_all(monkeypatch, capsys, tmp_path):
    kept = ("--results", tmp_path / "results.json", "--at-once", "1,2")
    first = said(monkeypatch, capsys, *kept, "--only", PLAIN)
    assert "vllm-suffix" not in first
    last = said(monkeypatch, capsys, *kept, "--only", "plain,vllm-suffix", "--json", tmp_path / "answers.json")
    table = [line.split() for line in last.splitlines() if line.strip().startswith(("1 ", "2 "))]
    assert [row[:3] for row in table[1:]] == [
        ["1", "plain", "1.00"], ["1", "vllm-suffix", "2.00"], ["2", "plain", "1.00"], ["2", "vllm-suffix", "2.00"],
    ]  # fmt: skip
    assert all(row[-1] == "2/2" for row in table[1:])
    assert json.loads((tmp_path / "answers.json").read_text())[0] == {"id": "a", "prompt": [1, 2], "answer": [7] * 9}


def test_an_engine_that_is_none_is_answered_with_those_there_are(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        said(monkeypatch, capsys, "--only", "vllm-sufix")
    assert "did you mean 'vllm-suffix'" in capsys.readouterr().err
