"""The arithmetic that is told decides as the rules did, with the trace's own figures."""

from __future__ import annotations

import re

import numpy as np
import pytest
from steps import CUT, FORKED, HIT, MISS, PLAIN, begin, event

from augury.accept import RULES, rejection
from augury.conformance.toys import ToyTarget
from augury.drafters.drafter import Drafter
from augury.engine.engine import Engine
from augury.noise import Noise, Stream
from augury.picture.sums import sums
from augury.picture.words import guesses
from augury.sampling import Sampling
from augury.trace import events
from augury.tree import DraftTree

RATIO = Sampling(temperature=1.0, seed=7)


class Any8(Drafter):
    """Guesses each of eight tokens."""

    def propose(self, view, limit):
        return DraftTree.of([*range(8)], [-1] * 8, [0.5] * 8)


def test_a_miss_is_told_whole():
    assert sums(MISS, begin()) == [
        "suffix offered 3 in 0.25 ms; self was not asked (it is dear). Worth verifying: 5.",
        "Tokens expected: 1 + 0.90 + 0.50 + 0.80 + 0.40 + 0.20 = 3.80.",
        'Behind " the" the target\'s own token is " quick". " quick" is it: kept.',
        'Behind " quick" the target\'s own token is " end". " brown" is another: rejected. '
        '" fox" is another: rejected.',
        '1 accepted + the correction " end" = 2 tokens.',
        "draft 1.00 + verify 6.00 + accept 1.00 + commit 0.50 + rest 1.50 = 10.00 ms, 6 rows.",
        "A plain step is reckoned at 8.00 ms: 2 x 8.00 - 10.00 = 6.00 ms saved.",
    ]


def test_other_ends():
    assert '2 accepted + the bonus token " end" = 3 tokens.' in sums(HIT, begin())
    assert "The answer ended inside the path: 1 token." in sums(CUT, begin())
    assert "Nothing was drafted: no drafter had a guess." in sums(PLAIN, begin())
    assert 'The own token " end" = 1 token.' in sums(PLAIN, begin())


def test_long_trees_are_not_added_up_term_by_term():
    chain = DraftTree.chain([2] * 9, [0.5] * 9)
    assert "Tokens expected: 1 + the survival of 9 guesses = 5.50." in sums(event(chain, (), (9,)), begin())


def test_copied_siblings_are_judged_by_what_is_left():
    step = event(FORKED, (1,), (4, 9), p=(0.25, 0.5, 0.1, 0.1, 0.9), coins=(0.5, 0.625, None, None, 0.95))
    told = sums(step, begin("rejection", RATIO))
    assert 'Behind " the", " quick": p 0.2500; chance 0.5000 is not below 0.2500: rejected.' in told
    assert '" quick" is taken out of p, and the rest divided by 0.7500.' in told
    assert (
        'Behind " the", " lazy": what is left of p 0.5000 / 0.7500 = 0.6667; chance 0.6250 is below 0.6667: kept.'
        in told
    )


def test_a_sampled_guess_is_judged_by_p_over_q_and_what_is_left_behind_it_is_not_known():
    step = event(FORKED, (1,), (4, 9), p=(0.25, 0.5, 0.1, 0.1, 0.9), q={0: 0.5}, coins=(0.75, 0.625, None, None, 0.95))
    told = sums(step, begin("rejection", RATIO))
    assert 'Behind " the", " quick": p 0.2500 / q 0.5000 = 0.5000; chance 0.7500 is not below 0.5000: rejected.' in told
    assert "What is left of p is max(0, p - q), made to sum to 1." in told
    assert 'Behind " the", " lazy": kept against what is left of p.' in told


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_greedy_is_the_same_under_every_rule(rule):
    assert sums(MISS, begin(rule))[2:4] == sums(MISS, begin())[2:4]


def test_a_chain_under_block_is_judged_as_a_whole():
    step = event(DraftTree.chain([2, 3], [0.5, 0.25]), (0,), (2, 9), p=(0.5, 0.5), coins=(0.125, 0.875))
    told = sums(step, begin("block", RATIO))
    assert any(said.endswith("that is 1 of 2. Chances: 0.1250, 0.8750.") for said in told)


def test_what_the_trace_does_not_hold_is_not_told():
    step = event(FORKED, (0,), (2, 9), text=False)
    told = " ".join(sums(step, begin("coupled", Sampling(temperature=1.0))))
    assert "wait" not in told
    assert "#2 is it: kept." in told
    assert "kept against what is left of p" in " ".join(sums(step, begin("rejection", RATIO)))


# ---- against the rules themselves -----------------------------------------------------------------------------------


def test_verdicts_that_are_told_are_those_of_the_rule():
    """Random laws and trees: every 'chance x is (not) below y' agrees with the numbers in it and with the rule."""
    rng, compared = np.random.default_rng(0), 0
    for seed in range(200):
        law = rng.dirichlet(np.full(6, 0.5))
        draft = rng.dirichlet(np.full(6, 0.5)).astype(np.float32)
        tokens, parents = [1, 2, 3], [-1, -1, 0]
        laws = {0: draft} if seed % 2 else {}
        whole = DraftTree.of(tokens, parents, [0.5, 0.4, 0.3], laws=laws)
        noise = Noise(seed, Stream.ACCEPT)
        path = rejection(whole, lambda row, law=law: law, noise, 6)
        coins = RULES["rejection"].coins(whole, path, noise, 6)
        emitted = (*(tokens[i] for i in path.nodes), path.next_token)
        step = event(
            whole, path.nodes, emitted, p=tuple(law[t] for t in tokens), coins=coins,
            q={0: float(draft[1])} if laws else {}, words={i: b"%d" % i for i in range(10)},
        )  # fmt: skip
        for said in sums(step, begin("rejection", RATIO)):
            if found := re.search(r"chance ([\d.]+) is (not )?below ([\d.]+)", said):
                coin, limit = float(found[1]), float(found[3])
                if abs(coin - limit) > 2e-4:
                    assert (coin < limit) is (found[2] is None), said
                    compared += 1
    assert compared > 200


def test_the_chances_of_a_coupled_draw_are_those_it_was_made_with():
    """Where every token is guessed, the one that is kept has the greatest p / wait."""
    engine = Engine(ToyTarget(8), [("any", Any8())])
    sampling, kept = Sampling(temperature=1.0, seed=3), 0
    opening = begin("coupled", sampling, ("any",))
    for chunk in engine.stream([1, 2, 3], sampling, max_tokens=40, explain=True):
        if chunk.step is None:
            continue
        step = events.step(0, 0, chunk.step, 0.0, None)
        fates = {g.word: g.fate for g in guesses(step, ("any",))}
        for said in sums(step, opening):
            if said.startswith("The draw"):
                ratios = {w: float(r) for w, r in re.findall(r"(#\d+) p [\d.]+ / wait [\d.]+ = (\d+\.\d+)", said)}
                best = max(ratios, key=ratios.get)
                assert fates[best] == "accepted", said
                kept += 1
    assert kept >= 20
