"""Drafters alone on a toy whose answers are known, and figures that were worked out by hand."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from corpus import Letters

from augury.bench import alone_report
from augury.bench.alone import Tried, Watched, alone
from augury.bench.prompts import Prompt
from augury.bench.reliability import Bin, Trial, calibration, reliability
from augury.bench.report import markdown
from augury.budget import Costs
from augury.conformance.toys import Empty, Half, Script, ToyTarget, oracle
from augury.drafters.drafter import Drafter
from augury.engine.engine import Engine
from augury.sampling import Sampling
from augury.tree import DraftTree

V = 6
PROMPT = [1, 2, 3, 1]
TARGET = ToyTarget(V)
ANSWER = Engine(TARGET, []).generate(PROMPT, max_tokens=64).tokens


class Sure(Drafter):
    """Knows the answer to PROMPT, is right in every second step, and sure in all."""

    def __init__(self):
        self._step = 0

    def propose(self, view, limit):
        done = view.length - view.prompt_length
        self._step += 1
        return DraftTree.chain([(ANSWER[done] + self._step % 2) % V], [0.99])


class Refuses(Empty):
    """Cannot be made."""

    def __init__(self):
        raise RuntimeError("no such luck\nat all")


class Silent(Drafter):
    """Breaks its contract in every step."""

    def propose(self, view, limit):
        raise KeyError("x")


class Dear:
    """Every row costs a tenth of a plain step; the table stands still."""

    costs = Costs(np.concatenate([[0.0], np.linspace(10.0, 74.0, 65)]), 0.0, 0.0)

    def served(self, *figures):
        pass


HERE = __name__


def tried(drafter, max_tokens=24, **options):
    """(Trial, record) of one toy answer with one drafter."""
    watched = Watched(drafter)
    with Engine(TARGET, [("d", watched)], **options) as engine:
        record = engine.generate(PROMPT, max_tokens=max_tokens).record
    return Trial(record, watched.offers())


def test_figures_of_a_scripted_run():
    """Three steps of seven tokens: two right of three, a fork whose second child is right, nothing offered."""
    a = ANSWER

    def wrong(i):
        return (a[i] + 1) % V

    script = Script([
        DraftTree.chain([a[0], a[1], wrong(2)], [0.9, 0.5, 0.25]),  # emits a[0..2]
        DraftTree.of([wrong(3), a[3], a[4]], [-1, -1, 1], [0.5, 0.25, 0.125]),  # emits a[3..5]
        DraftTree.empty(),  # emits a[6]
    ])  # fmt: skip
    trial = tried(script, 7)
    assert [s.emitted for s in trial.record.steps] == [a[0:3], a[3:6], a[6:7]]
    found = reliability([trial])
    # In the last step there is room for one token only, so nobody is asked.
    assert (found.steps, found.asked, found.guessed) == (3, 2, 2)
    assert (found.asked_rate, found.guess_rate, found.hit_rate) == (2 / 3, 1.0, 1.0)
    assert [(d.depth, d.steps, d.stated, d.real) for d in found.survival] == [
        (1, 2, pytest.approx((0.9 + 0.75) / 2), 1.0),
        (2, 2, pytest.approx((0.5 + 0.125) / 2), 1.0),
        (3, 2, pytest.approx(0.25 / 2), 0.0),
        (4, 2, 0.0, 0.0),
    ]
    assert found.run_length == 2.0
    assert found.calibration.nodes == 6
    assert found.calibration.stated == pytest.approx((0.9 + 0.5 + 0.25 + 0.5 + 0.25 + 0.125) / 6)
    assert found.calibration.accepted == pytest.approx(4 / 6)
    # By bin: 0.9 (1/1), 0.5 and 0.5 (1/2), 0.25 and 0.25 (1/2), 0.125 (1/1).
    assert found.calibration.error == pytest.approx((0.1 + 0.0 + 2 * 0.25 + 0.875) / 6)
    assert found.draft_ms > 0.0
    assert found.dropped == {}


def test_a_guess_that_was_not_verified_is_judged_by_the_text_all_the_same():
    """Who is right and states no trust in it is verified by no engine, and known here for what it is."""

    class Modest(Drafter):
        def propose(self, view, limit):
            done = view.length - view.prompt_length
            return DraftTree.chain(ANSWER[done : done + 3], [0.03, 0.02, 0.01])

    trial = tried(Modest(), 12, meter=Dear())
    assert trial.record.drafted == 0
    found = reliability([trial])
    assert found.guessed > 0
    assert (found.hit_rate, found.run_length, found.calibration) == (1.0, 0.0, None)
    assert [d.real for d in found.survival] == [1.0, 1.0, 1.0, 0.0]


def test_overstated_survival_is_a_large_calibration_error():
    boast, honest = tried(Sure(), 48), tried(oracle(ANSWER, 1, V), 48)
    found = reliability([boast]).calibration
    assert found.stated == pytest.approx(0.99)
    assert found.error == pytest.approx(0.99 - found.accepted)
    assert found.error > 0.4
    assert reliability([honest]).calibration.error == pytest.approx(0.5)  # says 0.5, and is always right
    half = tried(Half(ANSWER, 1, [1, 0], V), 48)
    assert reliability([half]).calibration.error < 0.1


def test_bins_hold_their_bounds():
    found = calibration([0.0, 0.05, 0.1, 1.0, 1.0], [False, True, True, True, False])
    assert found.bins == [Bin(2, 0.025, 0.5), Bin(1, pytest.approx(0.1), 1.0), Bin(2, 1.0, 0.5)]
    assert found.error == pytest.approx((2 * 0.475 + 0.9 + 2 * 0.5) / 5)
    assert calibration([], []) is None


def test_a_drafter_without_a_guess_has_no_figures_but_how_often_it_was_asked():
    found = reliability([tried(Script([]), 8)])
    assert (found.guess_rate, found.hit_rate, found.run_length, found.calibration) == (0.0, None, None, None)
    assert found.survival == []
    assert found.asked == 7
    nothing = reliability([])
    assert (nothing.asked_rate, nothing.guess_rate, nothing.draft_ms) == (None, None, None)


def test_what_is_offered_is_kept_as_it_was():
    """A drafter may write into its arrays again, and a law is not kept."""

    class Reuses(Drafter):
        tree = DraftTree.chain([1], [0.5], laws={0: np.eye(V, dtype=np.float32)[1]})

        def propose(self, view, limit):
            self.tree.tokens[0] = view.length % V
            return self.tree

    trial = tried(Reuses(), 6)
    assert all(not tree.laws for tree in trial.offers.values())
    assert [int(t.tokens[0]) for t in trial.offers.values()] == [(p + 1) % V for p in trial.offers]


# ---- all alone ----------------------------------------------------------------------------------------------------

PROMPTS = [Prompt("a", "qa", "1231"), Prompt("b", "rag", "1231"), Prompt("c", "qa", "1231")]


@pytest.fixture(scope="module")
def everyone():
    base = Engine(TARGET, [], tokenizer=Letters(V))
    specs = [f"{HERE}:Sure", "ngram", "model:/nonexistent", f"{HERE}:Refuses", f"{HERE}:Silent"]
    *_, last = alone(base, None, specs, PROMPTS, Sampling(), max_tokens=20, rounds=2)
    return last


def length(pairs):
    """Acceptance length of drafted answers."""
    figures = [pair.drafted.figures for pair in pairs]
    return 1 + sum(f.accepted for f in figures) / sum(f.steps for f in figures)


def test_who_cannot_be_made_says_why_and_stops_nobody(everyone):
    sure, ngram, model, refuses, silent = everyone
    assert [one.why is None for one in everyone] == [True, True, False, False, True]
    assert "/nonexistent" in model.why
    assert refuses.why == "no such luck"
    for one in (sure, ngram, silent):
        assert len(one.pairs) == 6
        assert all(pair.same for pair in one.pairs)
        assert len(one.trials) == 3, "the first round only"
    assert reliability(sure.trials).guess_rate == 1.0


def test_the_table_has_a_row_for_each(everyone):
    rows = markdown(alone_report.by_drafter("x", everyone)).splitlines()
    heads, _, sure, _, model, refuses, silent = ([c.strip() for c in row.split("|")[1:-1]] for row in rows)
    row = dict(zip(heads, sure, strict=True))
    found = reliability(everyone[0].trials)
    assert row["drafter"] == f"{HERE}:Sure"
    assert row["accepted length"] == f"{length(everyone[0].pairs):.2f}"
    assert row["hits"] == f"{found.hit_rate:.0%}"
    assert row["S1"] == f"0.99/{found.hit_rate:.2f}"
    assert row["S2"] == "0.00/0.00"
    assert row["error"] == f"{found.calibration.error:.2f}"
    assert "/nonexistent" in model[0]
    assert set(model[1:]) == {"-"}
    assert refuses[0] == f"{HERE}:Refuses: no such luck"
    assert dict(zip(heads, silent, strict=True))["hits"] == "-"


def test_the_table_by_kind_has_a_column_for_each(everyone):
    heads, _, *rows = markdown(alone_report.by_kind("x", everyone)).splitlines()
    assert heads == "| drafter | qa | rag | all |"
    assert len(rows) == len(everyone)
    cells = rows[0].split(" | ")
    assert len(cells) == 4
    by_kind = [[p for p in everyone[0].pairs if p.prompt.kind == kind] for kind in ("qa", "rag")]
    for cell, pairs in zip(cells[1:], [*by_kind, everyone[0].pairs], strict=True):
        assert re.fullmatch(rf"{length(pairs):.2f} / \d+% / \d+\.\d\d( \|)?", cell)
    assert rows[3] == f"| {HERE}:Refuses: no such luck | - | - | - |"


def test_notes_say_what_was_dropped_and_whether_the_tokens_are_the_same(everyone):
    lines = alone_report.notes(everyone)
    assert lines[0] == "18 of 18 pairs have the same tokens"
    assert any(line.startswith(f"{HERE}:Silent: ") and "KeyError" in line for line in lines)
    assert alone_report.mismatches(everyone) == 0
    wrong = [Tried("x", [type(p)(p.prompt, p.round, p.plain, p.drafted, False) for p in everyone[0].pairs])]
    assert alone_report.mismatches(wrong) == 6
    assert "x: 6 of 6 pairs differ" in alone_report.notes(wrong)
    assert alone_report.notes([Tried("y", why="no")]) == []


def test_the_document_is_json(everyone):
    found = json.loads(json.dumps(alone_report.whole({"seed": 3}, TARGET.info, 0.0, everyone)))
    assert found["arguments"] == {"seed": 3}
    assert [run["drafters"] for run in found["runs"]] == [f"{HERE}:Sure", "ngram", f"{HERE}:Silent"]
    sure, _, model, *_ = found["drafters"]
    assert sure["why"] is None
    assert sure["reliability"]["guess_rate"] == 1.0
    assert sure["reliability"]["calibration"]["error"] > 0.3
    assert sure["reliability"]["survival"][0]["depth"] == 1
    assert model["reliability"] is None
    assert "/nonexistent" in model["why"]
    assert found["machine"]
    assert found["versions"]
