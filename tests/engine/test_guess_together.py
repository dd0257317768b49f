"""A drafter that guesses for several requests at once: the same tokens, one call a step, and each pays its share."""

from __future__ import annotations

import numpy as np
import pytest

from augury.budget import Costs, Expected
from augury.conformance.kit import SAMPLINGS
from augury.conformance.toys import Half, ToyTarget
from augury.drafters.itself import Itself
from augury.engine.asking import Asking, Means, Weighed, key_of, pay_together
from augury.engine.costs import Meter
from augury.engine.engine import Engine
from augury.tree import DraftTree

V = 5
PROMPTS = [[1, 2, 3], [2, 2, 4, 4], [3, 0], [4, 4, 1]]
RULES = ("coupled", "rejection", "block")


class Joint(Half):
    """Counts how it is asked."""

    together = True

    def __init__(self, *args):
        super().__init__(*args)
        self.sizes = []

    def propose_all(self, views, limits):
        self.sizes.append(len(views))
        return super().propose_all(views, limits)


def meter():
    """A forward of one row takes 10 ms, and hardly more of many."""
    made = Meter(tuple(range(1, 66)), np.linspace(10.0, 11.0, 65), 0.0)
    made.served = lambda *_: None
    return made


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [k for k in SAMPLINGS if k != "processor"])
def test_guesses_made_together_are_those_made_alone(rule, kind):
    """Token for token and node for node: the toy's own law in fewer bits, in slots of different lengths."""

    def run(together):
        target = ToyTarget(V, seed=3, slots=4)
        drafter = Itself("int8", depth=4, target=target)
        drafter.together = together
        with Engine(target, [("self", drafter)], slots=4, acceptance=rule, meter=meter()) as engine:
            engine.parts.gates.of(4).learn = lambda *_: None
            return engine.generate_all(PROMPTS, SAMPLINGS[kind], max_tokens=12)

    alone, joint = run(False), run(True)
    assert [r.tokens for r in joint] == [r.tokens for r in alone] or rule != "coupled"
    first = [[r.record.steps[0].tree.tokens.tolist() for r in results] for results in (alone, joint)]
    assert first[0] == first[1]
    assert any(first[0]) or kind == "grammar"


def test_all_who_want_it_are_asked_in_one_call():
    drafter = Joint((), 1, range(9), V)
    with Engine(ToyTarget(V, slots=4), [("d", drafter)], slots=4, meter=meter()) as engine:
        engine.generate_all(PROMPTS, max_tokens=3)
        engine.generate(PROMPTS[0], max_tokens=3)
    assert drafter.sizes
    assert set(drafter.sizes) <= {2, 3, 4}


class Broken(Joint):
    """Fails for one request of a group, or for the group."""

    how = "raises"

    def propose_all(self, views, limits):
        if self.how == "raises":
            raise RuntimeError("lost")
        if self.how == "few":
            return []
        trees = super().propose_all(views, limits)
        trees[0] = DraftTree.chain([V + 7], [0.5])
        return trees


@pytest.mark.parametrize("how", ["raises", "few", "nonsense"])
def test_a_group_that_fails_costs_its_step_only(how):
    drafter = Broken((), 1, range(9), V)
    drafter.how = how
    with Engine(ToyTarget(V, slots=4), [("d", drafter)], slots=4, meter=meter()) as engine:
        found = engine.generate_all(PROMPTS, max_tokens=10)
    for prompt, result in zip(PROMPTS, found, strict=True):
        with Engine(ToyTarget(V)) as one:
            assert result.tokens == one.generate(prompt, max_tokens=10).tokens
    faults = [{p.fault for step in r.record.steps for p in step.proposals if p.fault} for r in found]
    said = {"raises": "RuntimeError: lost", "few": "proposed 0 trees for", "nonsense": "proposed token 12"}[how]
    assert any(said in fault for fault in faults[0])
    assert all(faults) == (how != "nonsense")


def weighed(ms, tokens, own=50):
    known = Asking({key_of(0, 4): Means(ms, tokens, 10.0, 50, own, 0)})
    return Weighed(known, Expected(4.0, 10.0), 10.0)


def test_it_is_asked_for_all_or_none_by_what_they_bring_together():
    def pays(*group):
        return pay_together(key_of(0, 4), group, 10.0, 4)

    assert pays(*[weighed(2.0, 4.0)] * 4)  # 16 tokens in 18 ms against 4 in 10
    assert not pays(*[weighed(5.0, 1.5)] * 4)  # 6 in 30
    assert pays(weighed(1.0, 1.0), weighed(1.0, 1.0), weighed(1.0, 8.0), weighed(1.0, 8.0))
    assert not pays(weighed(5.0, 1.0), weighed(5.0, 1.0), weighed(5.0, 1.0), weighed(5.0, 4.0))


def test_groups_of_other_sizes_are_known_apart():
    assert key_of(3, 1) == 3
    assert key_of(3, 2) == key_of(3, 3) != key_of(3, 4)


def test_costs_are_shared_when_it_is_decided_how_deep_to_go():
    """A level that one request would not pay for alone is worth it for four."""
    costs = Costs(np.concatenate([[0.0], np.full(70, 10.0)]), 0.0, 0.0)
    drafter = Itself("int8", target=ToyTarget(V), costs=lambda: costs)
    drafter._ms = {(1, 0): 12.0, (1, 1): 12.0, (4, 0): 1.0, (4, 1): 1.0}
    assert drafter._worth([0.9], [0.9], 0.012, 1) == 0
    assert drafter._worth([0.9], [0.9], 0.001, 4) == 1
