"""What one request's slot may take over from another's: the same prompt is computed once, and never across tenants."""

from __future__ import annotations

import numpy as np
import pytest

from augury.conformance.toys import Half, ToyTarget
from augury.engine import engine as engine_module
from augury.engine.engine import Engine
from augury.models.slots import WORTH_COPYING

V = 12
RNG = np.random.default_rng(3)
SYSTEM = RNG.integers(0, V, 60).tolist()
ASKED = [SYSTEM + RNG.integers(0, V, 10).tolist() for _ in range(3)]


class Counting(ToyTarget):
    """A toy that counts the tokens it computes for prompts."""

    def __init__(self, slots):
        super().__init__(V, slots=slots, context=512)
        self.computed = 0

    def prefill(self, slot, tokens):
        self.computed += len(tokens)
        super().prefill(slot, tokens)


def engine(slots=4, drafters=()):
    return Engine(Counting(slots), [(f"d{i}", d) for i, d in enumerate(drafters)], slots=slots)


def alone(prompt, **options):
    with engine(1) as one:
        return one.generate(prompt, max_tokens=12, **options).tokens


@pytest.mark.parametrize("drafted", [False, True])
def test_one_prompt_asked_many_times_at_once_is_computed_once(drafted):
    answer = alone(ASKED[0])
    with engine(drafters=[Half(answer, 4, range(9), V)] if drafted else []) as one:
        results = one.generate_all([ASKED[0]] * 4, max_tokens=12)
        assert one.target.computed == len(ASKED[0]) - 1
    assert [r.tokens for r in results] == [answer] * 4
    assert sorted(r.record.cached_tokens for r in results) == [0] + 3 * [len(ASKED[0]) - 1]
    assert all(r.record.drafted for r in results) == drafted


def test_a_system_prompt_is_copied_and_its_own_slot_stays_whole():
    with engine() as one:
        first = one.generate(ASKED[0], max_tokens=12)
        others = one.generate_all(ASKED[1:], max_tokens=12)
        again = one.generate([*ASKED[0], *first.tokens, 1], max_tokens=12)
        assert one.target.computed == len(ASKED[0]) - 1 + 10 - 1 + 10 - 1 + 1
    assert [r.tokens for r in others] == [alone(p) for p in ASKED[1:]]
    assert [r.record.cached_tokens for r in others] == [60, 60]
    assert again.record.cached_tokens == len(ASKED[0]) + 11
    assert again.tokens == alone([*ASKED[0], *first.tokens, 1])


def test_a_prompt_that_is_still_being_read_is_shared_as_it_grows(monkeypatch):
    monkeypatch.setattr(engine_module, "PREFILL_TOKENS", 20)
    with engine() as one:
        results = one.generate_all([ASKED[0], ASKED[1]], max_tokens=12)
        assert one.target.computed < 2 * len(ASKED[0]) - 2 - 40
    assert [r.tokens for r in results] == [alone(ASKED[0]), alone(ASKED[1])]


@pytest.mark.parametrize("short", [WORTH_COPYING - 1, WORTH_COPYING])
def test_few_tokens_are_not_worth_a_copy(short):
    prompts = [[*SYSTEM[:short], i] * 2 for i in range(2)]
    with engine() as one:
        results = one.generate_all(prompts, max_tokens=4)
    assert results[1].record.cached_tokens == (0 if short < WORTH_COPYING else short)
    assert [r.tokens for r in results] == [alone(p)[:4] for p in prompts]


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("salts", [("a", "b"), ("", "b"), ("a", "")])
def test_nothing_is_shared_between_tenants(slots, salts):
    """Neither from a slot that runs, nor from one that is left, nor by getting the other's own slot."""
    with engine(slots) as one:
        mine = one.generate(ASKED[0], max_tokens=12, cache_salt=salts[0])
        yours = one.generate(ASKED[0], max_tokens=12, cache_salt=salts[1])
        requests = [one.request(ASKED[0], max_tokens=4, cache_salt=salt) for salt in salts]
        one._run(requests)
    assert mine.tokens == yours.tokens
    assert (mine.record.cached_tokens, yours.record.cached_tokens) == (0, 0)
    # Each finds its own again where there are slots for both.
    held = [r.record.cached_tokens for r in requests]
    assert held == ([0, 0] if slots == 1 else [len(ASKED[0]) - 1] * 2)


def test_a_tenant_finds_its_own_again():
    with engine(2) as one:
        for salt in ("a", "b"):
            one.generate(ASKED[0], max_tokens=4, cache_salt=salt)
        again = [one.generate(ASKED[0], max_tokens=4, cache_salt=salt) for salt in ("a", "b")]
    assert [r.record.cached_tokens for r in again] == [len(ASKED[0]) - 1] * 2
