"""Fixed settings: what they propose, and what their table says."""

from __future__ import annotations

import numpy as np
import pytest
from made import pair

import augury
from augury.bench.fixed import (
    HINDSIGHT,
    LENGTHS,
    RULE,
    RULE_OF_ALL,
    TOGETHER,
    First,
    hindsight,
    measure,
    settings,
    standings,
)
from augury.bench.prompts import Prompt
from augury.drafters.drafter import Drafter
from augury.tree import DraftTree


class _Guesses(Drafter):
    def __init__(self, tokens):
        self.tokens = tokens

    def propose(self, view, limit):
        return DraftTree.chain(self.tokens[:limit], np.ones(len(self.tokens[:limit]), np.float32))


def test_the_first_that_guesses_anything_guesses_alone():
    silent, one, other = _Guesses([]), _Guesses([1, 2, 3]), _Guesses([7])
    assert First([silent, one, other], 2).propose(None, 9).tokens.tolist() == [1, 2]
    assert First([silent, other, one], 8).propose(None, 9).tokens.tolist() == [7]
    assert First([other, one], 8).propose(None, 0).tokens.tolist() == []
    assert not len(First([silent], 8).propose(None, 9))


def test_hindsight_takes_the_best_setting_of_each_kind():
    found = {
        RULE: [pair("a", "qa", 0, 12.0, 10.0), pair("b", "math", 0, 15.0, 10.0)],
        "slow": [pair("a", "qa", 0, 9.0, 10.0), pair("b", "math", 0, 20.0, 10.0)],
        "fast": [pair("a", "qa", 0, 13.0, 10.0), pair("b", "math", 0, 15.0, 10.0)],
    }
    rows = standings(found)
    assert [row.setting for row in rows] == [RULE, "fast", "slow", HINDSIGHT]
    assert rows[-1].by_kind == pytest.approx({"qa": 1.3, "math": 2.0})
    assert rows[-1].speedup == pytest.approx((1.3 * 2.0) ** 0.5)
    assert [rows[0].worst, rows[-1].worst] == pytest.approx([1.2, 1.3])


def test_with_several_rounds_hindsight_is_chosen_in_the_others():
    found = {
        RULE: [pair("a", "qa", turn, 12.0, 10.0) for turn in (0, 1)],
        "steady": [pair("a", "qa", 0, 20.0, 10.0), pair("a", "qa", 1, 20.0, 10.0)],
        "lucky": [pair("a", "qa", 0, 30.0, 10.0), pair("a", "qa", 1, 8.0, 10.0)],
    }
    chosen = hindsight({name: found[name] for name in ("steady", "lucky")})
    # The second round chooses the steady one for the first, which chooses the lucky one for the second.
    assert [(one.round, one.speedup) for one in chosen] == [(0, pytest.approx(2.0)), (1, pytest.approx(0.8))]
    assert standings(found)[-1].speedup == pytest.approx(1.4)


@pytest.mark.real
def test_every_setting_answers_as_plain_decoding_does():
    engine = augury.load("smollm2-135m", drafters="suffix,prediction,self", max_num_seqs=2)
    names = [name for name, _ in settings(engine)]
    assert names == [
        *(f"{who}, {n}" for who in ("suffix", "self", "eagle") for n in LENGTHS),
        *(f"prediction > suffix > {who}, {n}" for who in ("self", "eagle") for n in LENGTHS),
    ]
    (found,) = measure(engine, [Prompt("a", "qa", "Count from one to ten.")], max_tokens=12, rounds=1)
    assert {*found} == {RULE, RULE_OF_ALL, *names}
    assert len(found[RULE]) == len(found[RULE_OF_ALL]) == -(-len(names) // TOGETHER)
    assert all(one.same for pairs in found.values() for one in pairs)
    drafted = {name: found[name][0].drafted.figures for name in names}
    assert all(drafted[f"self, {n}"].drafted <= n * drafted[f"self, {n}"].steps for n in LENGTHS)
    assert drafted["self, 4"].accepted > 0
