"""Drafting that costs more than it brings pauses, by the clock, and comes back when it pays again."""

from __future__ import annotations

import numpy as np
import pytest

from augury.conformance.toys import Half, ToyTarget, oracle
from augury.drafters.drafter import Drafter
from augury.engine.costs import Meter
from augury.engine.engine import Engine
from augury.engine.gate import LONGEST, PAUSE, PAUSED, TRIAL, Gate, Gates

V = 12
PROMPT = [3, 1, 4, 1, 5]


def run(gate, steps, tokens, ms, requests=1):
    """How many of so many steps were drafted, each of which brings and takes so much; a plain one takes 10 ms."""
    drafted = 0
    for _ in range(steps):
        if gate.open():
            drafted += 1
            gate.learn(tokens, requests, ms, 10.0)
    return drafted


def test_drafting_that_pays_is_never_paused():
    assert run(Gate(), 1000, 3, 15.0) == 1000


def test_what_does_not_pay_is_tried_ever_more_rarely():
    gate = Gate()
    assert run(gate, TRIAL + PAUSE, 1, 15.0) == TRIAL
    steps = 10_000
    drafted = run(gate, steps, 1, 15.0)
    lost = drafted * 0.5  # plain steps that the drafted ones took longer
    assert 0 < lost < 0.02 * steps
    assert gate.pause == LONGEST


def test_a_trial_ends_when_it_has_lost_enough():
    gate = Gate()
    assert run(gate, PAUSE, 1, 200.0) == 1


def test_plain_requests_do_not_end_a_pause():
    meter = Meter(tuple(range(1, 66)), np.full(65, 10.0), 0.0)
    with Engine(ToyTarget(V), [("d", oracle((1,), 1, V))], meter=meter, slots=2) as engine:
        gate = engine.parts.gates.of(2)
        gate.left = 5
        engine.generate_all([PROMPT, PROMPT], max_tokens=20, draft=False)
        assert gate.left == 5
        engine.generate_all([PROMPT, PROMPT], max_tokens=3)
        assert gate.left == 2
        engine.generate(PROMPT, max_tokens=3)
        assert gate.left == 2, "who runs alone is none of its business"


def test_it_comes_back_when_the_text_changes():
    gate = Gate()
    run(gate, 2000, 1, 15.0)
    assert run(gate, LONGEST + 1000, 3, 15.0) >= 1000
    assert gate.pause == PAUSE, "and what was held against it is forgotten"


def test_requests_that_share_a_step_share_its_worth():
    assert run(Gate(), 200, 4, 12.0, requests=4) < 100
    assert run(Gate(), 200, 6, 12.0, requests=4) == 200


def test_sizes_are_judged_apart():
    gates = Gates()
    run(gates.of(8), TRIAL, 8, 20.0, requests=8)
    assert 0 < gates.of(8).left <= PAUSE
    assert gates.of(3).open()
    assert gates.of(9) is gates.of(8)


class Clock:
    """Time that passes when the toys say so."""

    now = 0.0

    def perf_counter(self):
        self.now += 1e-6
        return self.now


CLOCK = Clock()


class Slow(Half):
    """Takes more than it brings, and is taken for cheap."""

    def propose(self, view, limit):
        CLOCK.now += 0.02
        return super().propose(view, limit)


class Timed(ToyTarget):
    """Takes ``ms`` for a forward, whatever the table says."""

    ms = 10.0

    def verify(self, slots, roots, trees):
        CLOCK.now += self.ms / 1e3
        return super().verify(slots, roots, trees)


@pytest.mark.parametrize("ms", [10.0, 40.0])
@pytest.mark.parametrize("slow", [False, True])
def test_an_engine_goes_on_plainly_and_says_why(monkeypatch, slow, ms):
    """However slow the machine is now beside the table."""
    for module in ("drafting", "loop"):
        monkeypatch.setattr(f"augury.engine.{module}.time", CLOCK)
    monkeypatch.setattr("augury.engine.asking.Asking.cheap", lambda *_: True)
    answer = Engine(ToyTarget(V, context=1024)).generate(PROMPT, max_tokens=300).tokens
    drafter: Drafter = Slow(answer, 1, [0], V) if slow else oracle(answer, 4, V)
    meter = Meter(tuple(range(1, 66)), np.full(65, 10.0), 0.0)
    target = Timed(V, context=1024, slots=2)
    target.ms = ms
    with Engine(target, [("d", drafter)], meter=meter, slots=2) as engine:
        found = engine.generate_all([PROMPT, PROMPT], max_tokens=300)
    assert [r.tokens for r in found] == [answer] * 2
    paused = [step.reason == PAUSED for step in found[0].record.steps]
    if slow:
        assert sum(paused) > 0.6 * len(paused)
        assert not all(paused[TRIAL + PAUSE :]), "it is tried again"
    else:
        assert not any(paused)
