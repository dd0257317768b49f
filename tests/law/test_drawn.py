"""Drawn nodes: nothing that was drawn may decide whether it is judged."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from augury.budget import Costs, best_chain, choose
from augury.conformance.law import distance, engine_law, true_law
from augury.conformance.toys import SameLaw, TopK, ToyTarget
from augury.drafters.drafter import Drafter
from augury.drafters.model import Led
from augury.engine.engine import Engine
from augury.noise import race
from augury.sampling import Sampling
from augury.tree import DraftTree

SAMPLING = Sampling(temperature=1.0)
PROMPT = [0, 1]


class Fixed:
    """A meter that always says the same."""

    def __init__(self, one, more):
        self.costs = Costs(np.array([0.0, one, *[more] * 70]), 0.0, 0.0)

    def served(self, *_):
        pass


def led(vocab, seed):
    return Led(ToyTarget(vocab, seed=seed, spread=2.5), np.ones(vocab, np.bool_), 1, depth=2, width=1)


def off(vocab, rule, make, meter=None, trees=True):
    """Distance of the engine's law from the true one."""
    target = ToyTarget(vocab, seed=0, trees=trees)

    def engine():
        return Engine(target, make(), acceptance=rule, meter=meter)

    law = engine_law(engine, PROMPT, SAMPLING, 3, limit=300_000)
    return distance(law, true_law(target, PROMPT, SAMPLING, 3))


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("more", [17.0, 19.0, 19.91, 21.0])
def test_costs_between_the_survivals_leave_the_law_alone(rule, more):
    assert off(3, rule, lambda: [("model", led(3, 100))], Fixed(10.0, more)) < 1e-9


@pytest.mark.parametrize(("rule", "trees"), [("block", True), ("rejection", False), ("rejection", True)])
@pytest.mark.parametrize("other", ["model", "top"])
def test_of_several_chains_none_is_chosen_for_what_was_drawn(rule, trees, other):
    def make():
        second = led(2, 200) if other == "model" else TopK(ToyTarget(2, seed=300), 1, 2)
        return [("first", led(2, 100)), ("second", second)]

    if other == "model" and rule == "rejection" and trees:
        pytest.skip("too many branches")
    assert off(2, rule, make, trees=trees) < 1e-9


def test_a_tree_with_drawn_nodes_is_kept_whole_beside_one_that_is_cut():
    law = np.array([0.5, 0.5], np.float32)
    drawn = DraftTree.chain([0, 1], [0.1, 0.01], laws={0: law, 1: law})
    plain = DraftTree.chain([0, 1], [0.99, 0.01])
    costs = Costs(np.arange(10.0), 0.0, 0.0)
    kept = choose([drawn, plain], Costs(np.array([0.0, *range(10, 20)]), 0.0, 0.0), [5, 5])
    assert len(kept[0]) == 2
    assert len(kept[1]) == 1
    assert len(choose([drawn], costs, [5])[0]) == 2


def test_a_chain_of_drawn_nodes_goes_by_place():
    law = np.array([0.5, 0.5], np.float32)
    tree = DraftTree.of([0, 1, 0], [-1, -1, 1], [0.2, 0.9, 0.8], laws={0: law, 1: law, 2: law})
    assert best_chain(tree).tokens.tolist() == [0]


def test_laws_are_the_engines_own_once_proposed():
    """A drafter that writes every request's law into one array, as a model's output buffer is."""

    class OneBuffer(Drafter):
        def __init__(self):
            self.law = np.empty(3, np.float32)

        def propose(self, view, limit):
            self.law[:] = [0.8, 0.1, 0.1] if view.id % 2 else [0.1, 0.1, 0.8]
            token = race(self.law.astype(np.float64), view.noise.exponential(view.length, 3))
            return DraftTree.chain([token], [0.5], laws={0: self.law})

    truth = np.array([0.5, 0.3, 0.2])
    counts = [Counter(), Counter()]
    with Engine(SameLaw(truth), [("buffer", OneBuffer())], acceptance="rejection", slots=2) as engine:
        for seed in range(1500):
            samplings = [Sampling(temperature=1.0, seed=seed), Sampling(temperature=1.0, seed=seed + 10**6)]
            for count, result in zip(counts, engine.generate_all([[0], [0]], samplings, max_tokens=2), strict=True):
                count[result.tokens[0]] += 1
    for count in counts:
        assert np.abs(np.array([count[t] / 1500 for t in range(3)]) - truth).max() < 0.06
