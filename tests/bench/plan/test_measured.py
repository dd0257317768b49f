"""Measured costs as functions, what cannot be measured, and results of a benchmark read back."""

from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import pytest

from augury.bench.document import Run, document
from augury.bench.paired import Answer, Pair
from augury.bench.plan import measured
from augury.bench.plan.drafts import read_draft
from augury.bench.plan.gain import Steps
from augury.bench.plan.measured import check, draft_ms, read_seen, verify_ms
from augury.bench.prompts import Prompt
from augury.budget import Costs
from augury.errors import InputError
from augury.models.target import TargetInfo
from augury.record import RequestRecord, StepRecord
from augury.trace.figures import figures
from augury.tree import DraftTree, Path

DOCS = pathlib.Path(__file__).parents[3] / "docs"


def result(path, drafters="self", runs=1, drafted=4):
    """A file of ``augury bench --json``: steps that accept three of four guesses, 15 ms of them for 40 plain ones."""

    def answer(steps, prompt, **of_step):
        record = RequestRecord(prompt, ("self",), prefill_ms=1.0, steps=[step(**of_step)] * steps, finish="length")
        tokens = tuple(t for s in record.steps for t in s.emitted)
        return Answer(tokens, 1.0 + record.decode_ms, figures(record))

    def pair(name, prompt):
        drafted_answer = answer(10, prompt, drafted=drafted, accepted=min(drafted, 3), ms=4.0)
        plain = answer(len(drafted_answer.tokens), prompt, drafted=0, accepted=0, ms=1.5)
        return Pair(Prompt(name, "qa", ""), 0, plain, drafted_answer, True)

    info = TargetInfo("toy", "llama", "none", "bfloat16", 10, 100, 4, 1, 100, 200, True, True)
    run = Run(drafters, 0.0, [pair("a", 100), pair("b", 200)])
    path.write_text(json.dumps(document({}, info, [run] * runs)))
    return path


def step(drafted, accepted, ms):
    tree = DraftTree.chain(list(range(drafted)), np.ones(drafted, np.float32), 0)
    return StepRecord(
        position=0, root=0, tree=tree, path=Path(tuple(range(accepted)), 9), emitted=(*range(accepted), 9),
        proposals=(), reason=None, rows=drafted + 1, draft_ms=0.0, verify_ms=ms, accept_ms=0.0, commit_ms=0.0,
        rest_ms=0.0,
    )  # fmt: skip


ROWS = Costs(np.linspace(9.0, 74.0, 66), 0.0, 0.0)
"""10 ms for one row, and 1 ms for each more."""


def test_a_profile_as_a_function_of_rows():
    costs = Costs(np.array([0.0, 10.0, 11.0, 13.0]), 0.5, 0.25)
    verify = verify_ms(costs, 2000)
    assert verify(1, 1) == pytest.approx(10.0 + 0.5 * 2 + 0.25)
    assert verify(3, 1) == pytest.approx(13.0 + 0.5 * 6 + 0.25)
    assert verify(5, 5) == pytest.approx(17.0 + 0.5 * 10 + 0.25)  # beyond the table its last slope goes on


def test_copying_has_no_forward_to_measure():
    assert draft_ms(read_draft("copy:2"), None, 100, ROWS)(8, 5) == 2.0


@pytest.mark.parametrize("text", ["head:1B", "block:1B", "8B"])
def test_what_is_known_by_its_size_cannot_be_measured(text):
    with pytest.raises(InputError, match=f"--draft {text} is known by its size only; name self:int4"):
        check(read_draft(text))


def test_a_draft_model_is_measured_as_it_is_loaded():
    with pytest.raises(InputError, match="in bf16; name it as smollm2-135m"):
        check(read_draft("smollm2-135m:int4"))
    check(read_draft("smollm2-135m"))
    check(read_draft("self:int4"))


@pytest.mark.real
def test_the_target_in_fewer_bits_is_measured(engine, monkeypatch):
    copied = Prompt("a", "qa", "Repeat: one two three four five six seven eight nine ten eleven twelve.")
    monkeypatch.setattr(measured, "own", lambda: [copied, Prompt("b", "math", "word " * 4000)])  # one does not fit
    if 4 not in engine.target.info.short:
        with pytest.raises(InputError, match="has no such weights"):
            draft_ms(read_draft("self:int4"), engine, 16, ROWS)
        return
    draft = draft_ms(read_draft("self:int4"), engine, 16, ROWS)
    assert 0.0 < draft(1, 1) < 10.0  # of a row of 10 ms
    assert draft(3, 4) == pytest.approx(12 * draft(1, 1))
    monkeypatch.setattr(measured, "own", lambda: [Prompt("b", "math", "word " * 4000)])
    with pytest.raises(InputError, match="holds none of them"):
        draft_ms(read_draft("self:int4"), engine, 16, ROWS)


def test_a_result_of_bench(tmp_path):
    seen = read_seen(result(tmp_path / "self.json"))
    assert (seen.model, seen.drafters, seen.gain) == ("toy", "self", 1.5)
    assert seen.tokens == pytest.approx(1 + 60 / 20)
    assert seen.length == pytest.approx(80 / 20)
    assert seen.context == 170
    assert seen.answers == (Steps(4.0, 1.0, 4.0),) * 2
    assert (seen.plain_rest, seen.rest) == (0.0, 0.0)


def test_steps_that_guess_nothing_and_what_surrounds_forwards(tmp_path):
    path = result(tmp_path / "self.json")
    kept = json.loads(path.read_text())
    for pair in kept["runs"][0]["pairs"]:
        pair["plain"]["figures"] |= {"rest_ms": 20.0, "draft_ms": 4.0}  # of 40 steps
        pair["drafted"]["figures"] |= {"rest_ms": 8.0, "undrafted": {"no guess": 2}}  # of 10 steps
    path.write_text(json.dumps(kept))
    seen = read_seen(path)
    assert seen.answers == (Steps(4.0, 0.8, 5.0),) * 2
    assert (seen.plain_rest, seen.rest) == pytest.approx((0.6, 0.8))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runs": 2}, "has 2 runs; measure one drafter"),
        ({"drafters": "auto"}, "is of several drafters, auto"),
        ({"drafters": "suffix,self"}, "is of several drafters, suffix,self"),
        ({"drafted": 0}, "nothing was drafted"),
    ],
)
def test_results_that_cannot_be_compared(tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        read_seen(result(tmp_path / "x.json", **options))


def test_options_of_one_drafter_are_not_several(tmp_path):
    assert read_seen(result(tmp_path / "x.json", drafters="self:int8,depth=4")).drafters == "self:int8,depth=4"


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="is not a file that `augury bench --json`"):
        read_seen(tmp_path / "x.json")


def test_a_kept_result_of_the_documentation_says_what_the_page_reckons_with(tmp_path):
    kept = json.loads((DOCS / "results" / "drafters-avx2.json").read_text())
    kept["runs"] = [run for run in kept["runs"] if run["drafters"] == "self"]
    (tmp_path / "x.json").write_text(json.dumps(kept))
    seen = read_seen(tmp_path / "x.json")
    page = (DOCS / "planning.md").read_text()
    assert f"emitted {seen.tokens:.2f} tokens a step\nfrom {seen.length:.2f} guesses" in page
    assert f"where {seen.gain:.2f} was measured" in page


def test_the_page_says_what_the_kept_plans_printed():
    page = (DOCS / "planning.md").read_text()
    said = re.findall(r"measured speed-up .*", (DOCS / "results" / "plan.txt").read_text())
    assert len(said) == 2
    assert all(line in page for line in said)
    assert all(int(line.split(", ")[-1].split("%")[0]) <= 15 for line in said)
