"""Figures of a replay that were worked out by hand, and drafters that cannot be replayed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from augury.bench.replay import report as replay_report
from augury.bench.replay.recordings import Log, Recording
from augury.bench.replay.replay import arms, check, ready, replay
from augury.bench.report import markdown
from augury.budget import Costs
from augury.drafters.drafter import Drafter
from augury.engine.tables import CostTable
from augury.errors import InputError
from augury.tree import DraftTree

V = 300
ANSWER = list(range(100, 117))  # 17 tokens
HERE = __name__
KNOWS, SILENT, HIDDEN, WANTS = (f"{HERE}:{name}" for name in ("Knows", "Silent", "Hidden", "Wants"))


class Knows(Drafter):
    """Knows the next three tokens, and is right with two of them in every second step."""

    def __init__(self):
        self._step = 0

    def propose(self, view, limit):
        done = view.length - view.prompt_length
        self._step += 1
        tokens = ANSWER[done : done + 3]
        if self._step % 2 == 0 and len(tokens) == 3:
            tokens[2] = 0
        return DraftTree.chain(tokens, [0.99, 0.98, 0.97][: len(tokens)])


class Silent(Drafter):
    def propose(self, view, limit):
        raise KeyError("x")


class Hidden(Silent):
    needs_hidden = True


class Wants(Silent):
    def __init__(self, target):
        pass


def held(answers=1, **options):
    one = Recording(1, np.array([1, 2], np.int32), np.array(ANSWER, np.int32), False)
    return Log([one] * answers, answers, options.get("left_out", {}), V)


def test_figures_of_a_scripted_replay():
    """Steps emit 4, 3, 4, 3 and 3 of 17 tokens: of 3 guesses 3, 2, 3 and 2 are right, then both there is room for."""
    costs = Costs(np.concatenate([[0.0], 1e6 + 1e5 * np.arange(65)]), 1000.0, 5000.0)
    *_, (found,) = replay(held(), [(KNOWS,)], costs)
    assert (found.answers, found.tokens, found.steps) == (1, 17, 5)
    assert (found.offered, found.verified, found.accepted) == (15, 14, 12)
    assert found.histogram == {3: 2, 2: 3}
    assert found.acceptance_length == 1 + 12 / 5
    assert found.acceptance_rate == 12 / 14
    assert [found.reached(n) for n in (0, 1, 2, 3, 4)] == [1.0, 1.0, 1.0, 0.4, 0.0]
    # A token of plain decoding: 1e6 ms, 5000 around it, and one for each of the tokens before it.
    assert found.plain_ms == pytest.approx(17 * 1_005_000.0 + sum(range(1, 18)))
    # Roots at 1, 5, 8, 12 and 15; four rows, in the last step three.
    rows, roots = [4, 4, 4, 4, 3], [1, 5, 8, 12, 15]
    forwards = sum(1e6 + 1e5 * (r - 1) + 5000 + r * at for r, at in zip(rows, roots, strict=True))
    assert found.drafted_ms - found.draft_ms == pytest.approx(forwards)
    assert found.draft_ms > 0.0
    assert found.speedup == pytest.approx(found.plain_ms / (forwards + found.draft_ms))


def test_without_a_table_no_speed_up_is_claimed():
    *_, (found,) = replay(held(), [(KNOWS,)])
    assert (found.speedup, found.plain_ms, found.drafted_ms) == (None, 0.0, 0.0)
    assert found.acceptance_length > 2.0
    table = markdown(replay_report.by_arm("x", [found]))
    assert "speed-up" not in table
    assert "without --costs every guess is verified, and no speed-up is claimed" in replay_report.notes(
        held(), None, [found]
    )


def test_what_drafting_takes_is_in_the_speed_up():
    """Where a forward costs nothing to speak of, drafting is slower than plain decoding."""
    costs = Costs(np.concatenate([[0.0], np.full(65, 1e-6)]), 0.0, 0.0)
    *_, (found,) = replay(held(), [("ngram",)], costs)
    assert found.speedup < 0.1


def test_arms_are_replayed_side_by_side_and_a_fault_is_told():
    told, taken = [], []
    seen = [
        [one.answers for one in now]
        for now in replay(held(2), arms([KNOWS, SILENT]), progress=told.append, taken=lambda arm, *_: taken.append(arm))
    ]
    assert seen == [[1, 1, 1], [2, 2, 2]]
    assert taken == [(KNOWS,), (SILENT,), (KNOWS, SILENT)] * 2
    assert told == [KNOWS, SILENT, f"{KNOWS} + {SILENT}"] * 2
    *_, (knows, silent, both) = replay(held(2, left_out={"empty": 3}), arms([KNOWS, SILENT]))
    assert both.accepted == knows.accepted > silent.accepted == 0
    assert silent.acceptance_rate is None
    lines = replay_report.notes(held(2, left_out={"empty": 3}), None, [silent])
    assert "answers left out: 3 empty" in lines
    assert any(line.startswith(f"{SILENT}: {SILENT}: ") and "KeyError" in line for line in lines)


def test_the_table_and_the_document():
    table = CostTable(Costs(np.concatenate([[0.0], 1e6 + 1e5 * np.arange(65)]), 0.0, 0.0), {"model": "toy", "cores": 2})
    *_, found = replay(held(left_out={"empty": 1}), arms([KNOWS, SILENT]), table.costs)
    heads, _, row, *_ = (
        [c.strip() for c in line.split("|")[1:-1]] for line in markdown(replay_report.by_arm("", found)).splitlines()
    )
    cells = dict(zip(heads, row, strict=True))
    assert cells["drafters"] == KNOWS
    assert cells["accepted length"] == "3.40"
    assert (cells["offered"], cells["verified"], cells["accepted"], cells["share"]) == ("15", "14", "12", "86%")
    assert [cells[f"{n}+"] for n in (1, 2, 3, 4)] == ["100%", "100%", "40%", "0%"]
    assert cells["expected speed-up"] == f"{found[0].speedup:.2f}"
    assert "forwards by the cost table (model toy, cores 2)" in "\n".join(replay_report.notes(held(), table, found))
    whole = json.loads(json.dumps(replay_report.whole({"limit": 3}, held(left_out={"empty": 1}), table, found)))
    assert whole["arguments"] == {"limit": 3}
    assert whole["log"] == {"conversations": 1, "answers": 1, "tokens": 17, "left_out": {"empty": 1}}
    assert whole["costs"] == table.document()
    assert [one["drafters"] for one in whole["arms"]] == [[KNOWS], [SILENT], [KNOWS, SILENT]]
    assert whole["arms"][0]["histogram"] == [0, 0, 3, 2]
    assert whole["arms"][0]["expected_speedup"] == found[0].speedup
    whole = replay_report.whole({}, held(), None, list(replay(held(), [(KNOWS,)]))[-1])
    assert (whole["costs"], whole["arms"][0]["plain_ms"]) == (None, None)


def test_who_can_be_replayed():
    assert ready() == ["ngram", "suffix"]
    check(["ngram:max=2", "memory", "memory:mb=4", "prediction", "retrieval:mine", "model:smollm2-135m", KNOWS])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("recycle", "it learns from the target's rows of logits"),
        ("lookahead:window=3", "it learns from the target's rows of logits"),
        ("self", "it works with the target itself"),
        ("eagle:x", "it works with the target itself"),
        ("medusa:x", "it works with the target itself"),
        ("block:x", "it works with the target itself"),
        ("grammar", "it follows the request's grammar, which a log does not hold"),
        (HIDDEN, "it reads the target's hidden states"),
        (WANTS, "it works with the target itself"),
    ],
)
def test_who_cannot_is_refused_with_those_that_can(spec, said):
    with pytest.raises(InputError) as refused:
        check(["ngram", spec])
    assert str(refused.value) == (
        f"drafter {spec} cannot be replayed: {said}; "
        "those that can: foreign, memory, model, ngram, prediction, retrieval, suffix"
    )


@pytest.mark.parametrize("spec", ["memory:here", "memory:mb=4,path=here", "memory:here,mb=4"])
def test_a_memory_on_disk_is_left_alone(spec):
    with pytest.raises(InputError, match="would keep the log's answers; write memory"):
        check([spec])


def test_one_alone_is_not_joined_by_all():
    assert arms(["ngram"]) == [("ngram",)]
    assert arms(["a", "b"]) == [("a",), ("b",), ("a", "b")]
