"""A drafter is asked when it is expected to earn its time, and never costs much when it does not."""

from __future__ import annotations

import numpy as np
import pytest

from augury.budget import Costs
from augury.conformance.toys import Half, ToyTarget, liar, oracle
from augury.engine.asking import PROBES, Asking
from augury.engine.costs import Meter
from augury.engine.engine import Engine


class Clock:
    """Time that passes when a drafter says so, so that no load of the machine counts."""

    now = 0.0

    def perf_counter(self):
        self.now += 1e-6
        return self.now


CLOCK = Clock()
V = 5
PROMPT = [1, 2, 3, 1]


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    for module in ("drafting", "loop"):
        monkeypatch.setattr(f"augury.engine.{module}.time", CLOCK)


def answer(n):
    return Engine(ToyTarget(V)).generate(PROMPT, max_tokens=n).tokens


class Slow(Half):
    """A drafter that takes some milliseconds for every proposal."""

    ms = 4.0
    asked = 0

    def propose(self, view, limit):
        self.asked += 1
        CLOCK.now += self.ms / 1e3
        return super().propose(view, limit)


def measured(*drafters, slots=1):
    """An engine that believes a forward of one row to take 10 ms, and to hardly grow."""
    meter = Meter(tuple(range(1, 66)), np.linspace(10.0, 11.0, 65), 0.0)
    meter.served = lambda *_: None  # the toy's own times are no guide
    return Engine(ToyTarget(V, slots=16), [(f"d{i}", d) for i, d in enumerate(drafters)], meter=meter, slots=slots)


def test_a_slow_drafter_that_is_never_right_is_hardly_asked():
    drafter = Slow(answer(400), 4, [0], V)
    result = measured(drafter).generate(PROMPT, max_tokens=400)
    assert drafter.asked * drafter.ms < 2 * PROBES * 400 * 10.0
    reasons = {p.unasked for step in result.record.steps for p in step.proposals}
    assert reasons == {None, "it is not expected to earn its time"}


def test_a_first_call_that_takes_long_is_not_held_against_a_drafter():
    class Cold(Slow):
        def propose(self, view, limit):
            self.ms = 2.0 if self.asked else 60.0
            return super().propose(view, limit)

    text = answer(200)
    drafter = Cold(text, 4, [4], V)
    with measured(drafter) as engine:
        found = engine.generate(PROMPT, max_tokens=200)
    assert found.tokens == text
    assert drafter.asked > 0.9 * len(found.record.steps)


def test_a_slow_drafter_that_is_always_right_is_always_asked():
    drafter = Slow(answer(200), 4, [4], V)
    result = measured(drafter).generate(PROMPT, max_tokens=200)
    assert drafter.asked == len(result.record.steps) <= 41


@pytest.mark.parametrize(("requests", "asks"), [(1, True), (4, False)])
def test_a_slow_drafter_is_asked_for_one_request_and_not_for_four_that_all_wait(requests, asks):
    """Alone it brings 5 tokens in 30 ms instead of 1 in 10; beside three others, 8 in 30 instead of 4 in 10."""
    drafter = Slow(answer(150), 4, [4], V)
    drafter.ms = 20.0
    with measured(drafter, slots=requests) as engine:
        results = engine.generate_all([PROMPT] * requests, max_tokens=150)
    asked = sum(p.ms > 0.0 for r in results for s in r.record.steps for p in s.proposals)
    steps = sum(len(r.record.steps) for r in results)
    assert asked == steps if asks else asked < 0.1 * steps


@pytest.mark.parametrize("requests", [1, 4, 16])
def test_probes_of_all_requests_together_keep_to_their_share(requests):
    drafter = Slow(answer(400), 4, [0], V)
    drafter.ms = 20.0
    with measured(drafter, slots=requests) as engine:
        results = engine.generate_all([PROMPT] * requests, max_tokens=400)
    steps = max(len(r.record.steps) for r in results)
    assert drafter.asked * drafter.ms < 2 * PROBES * steps * 10.0 + 3 * requests * drafter.ms


def test_a_slow_drafter_is_not_asked_where_a_cheap_one_is_sure():
    text = answer(300)
    slow = Slow(text, 2, [2], V)
    result = measured(Sure(text), slow).generate(PROMPT, max_tokens=300)
    assert slow.asked < 0.5 * len(result.record.steps)


class Sure(Half):
    """Right for long, says so, and cheap."""

    def __init__(self, text):
        super().__init__(text, 12, [12], V)

    def propose(self, view, limit):
        tree = super().propose(view, limit)
        return type(tree).chain(tree.tokens, np.full(len(tree), 0.99, np.float32))


def test_a_drafter_that_begins_to_be_right_is_found_out_by_probes():
    """Wrong through a whole answer, then right in the next."""
    text = answer(300)
    drafter = Slow(text, 4, [0], V)
    engine = measured(drafter)
    engine.generate(PROMPT, max_tokens=300)
    drafter._right, drafter.asked = [4], 0
    result = engine.generate(PROMPT, max_tokens=300)
    assert drafter.asked > 0.8 * len(result.record.steps)


@pytest.mark.parametrize("make", [liar, oracle])
def test_without_measured_costs_everyone_is_asked(make):
    result = Engine(ToyTarget(V), [("d", make(answer(40), 4, V))]).generate(PROMPT, max_tokens=40)
    assert all(step.proposals[0].nodes for step in result.record.steps[:-1])


def test_requests_keep_their_means_apart_and_begin_with_the_engines():
    engine = Asking()
    engine.learn(0, 5.0, 1, 10.0)
    own = engine.own()
    own.learn(0, 5.0, 9, 10.0)
    assert engine.means[0].tokens == 1.0
    assert own.means[0].tokens > 1.0
    assert not engine.cheap(0, 10.0)
    assert engine.cheap(0, 1000.0)
    assert not engine.cheap(1, 1000.0)


def test_costs_of_the_promise_are_those_of_one_request():
    from augury.budget import promise
    from augury.tree import DraftTree

    costs = Costs(np.array([0.0, 10.0, 10.0, 40.0]), 0.0, 0.0)
    tokens, ms = promise(DraftTree.chain([1, 2], [0.5, 0.5]), costs, 5)
    assert (tokens, ms) == (1.5, 10.0)
    assert promise(DraftTree.empty(), costs, 5) == (1.0, 10.0)
    assert promise(DraftTree.empty(), costs, 5, others=2) == (3.0, 40.0)
    law = np.array([0.5, 0.5], np.float32)
    drawn = DraftTree.of([0, 1], [-1, 0], [0.5, 0.25], 0, {0: law, 1: law})
    assert promise(drawn, costs, 5) == (1.75, 40.0)  # whole, though its first node alone would be better
