"""What the next request finds in the cache: drafting neither loses a prefix nor leaves a token behind it."""

from __future__ import annotations

import numpy as np
import pytest

from augury.conformance.toys import Half, TopK, ToyTarget, liar, oracle
from augury.engine.engine import Engine

V = 12
END = 7
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


def engine(drafters=(), slots=1, **options):
    target = ToyTarget(V, context=512)
    return Engine(target, [(f"d{i}", d) for i, d in enumerate(drafters)], slots=slots, **options)


def plain(prompt, max_tokens=24, **options):
    with engine(**options) as one:
        return one.generate(prompt, max_tokens=max_tokens)


ANSWER = plain(PROMPT, 64).tokens

DRAFTERS = {
    "nobody": list,
    "right": lambda: [oracle(ANSWER, 8, V)],
    "wrong": lambda: [liar(ANSWER, 8, V)],
    "half": lambda: [Half(ANSWER, 8, range(9), V)],
    "tree": lambda: [TopK(ToyTarget(V), 3, 3)],
}
each = pytest.mark.parametrize("who", DRAFTERS)


@each
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("max_tokens", [4, 64])
def test_the_same_prompt_again_is_found_in_the_cache(who, slots, max_tokens):
    with engine(DRAFTERS[who](), slots) as one:
        first, second = (one.generate(PROMPT, max_tokens=max_tokens) for _ in range(2))
    assert second.tokens == first.tokens == ANSWER[:max_tokens]
    assert (first.record.cached_tokens, second.record.cached_tokens) == (0, len(PROMPT) - 1)


@each
@pytest.mark.parametrize("slots", [1, 4])
def test_a_growing_conversation_is_computed_once(who, slots):
    """Wherever an end token falls inside a path, what was drafted behind it does not spoil the next turn."""
    rng = np.random.default_rng(2)
    turn, held = PROMPT, 0
    ends = set()
    with engine(DRAFTERS[who](), slots, eos_ids=[END]) as one:
        for _ in range(10):
            result = one.generate(turn, max_tokens=16)
            assert result.tokens == plain(turn, 16, eos_ids=[END]).tokens
            # The last token is in the cache too where it was a draft token.
            assert result.record.cached_tokens - held in (0, 1)
            for slot, tokens in one._slots._idle.items():
                assert one.target.length(slot) == len(tokens), "nothing is kept that is not part of the text"
            held = len(turn) + len(result.tokens) - 1
            ends.add(result.finish_reason)
            turn = [*turn, *result.tokens, *rng.integers(0, V, 3).tolist()]
    assert ends == {"stop", "length"}


@pytest.mark.parametrize("drafted", [(False, True), (True, False)])
def test_a_prefix_computed_plainly_serves_drafted_requests_and_the_reverse(drafted):
    with engine(DRAFTERS["half"]()) as one:
        first = one.generate(PROMPT, max_tokens=24, draft=drafted[0])
        second = one.generate([*PROMPT, *first.tokens, 1], max_tokens=24, draft=drafted[1])
        third = one.generate(PROMPT, max_tokens=24, draft=drafted[1])
    assert [r.record.drafted > 0 for r in (first, second, third)] == [drafted[0], drafted[1], drafted[1]]
    assert second.record.cached_tokens == len(PROMPT) + 23
    assert second.tokens == plain([*PROMPT, *first.tokens, 1]).tokens
    assert third.record.cached_tokens == len(PROMPT) - 1
    assert third.tokens == ANSWER[:24]


@each
def test_a_prefix_cut_anywhere_is_as_good_as_new(who):
    with engine(DRAFTERS[who]()) as one:
        said = [*PROMPT, *one.generate(PROMPT, max_tokens=20).tokens]
        for keep in range(1, len(said), 3):
            turn = [*said[:keep], (said[keep] + 1) % V]
            result = one.generate(turn, max_tokens=6)
            assert result.record.cached_tokens == keep
            assert result.tokens == plain(turn, 6).tokens
            said = [*turn, *result.tokens, *said[len(turn) + 6 :]]
            one.generate(said[:-1], max_tokens=1)  # the slot holds the whole text again


@each
def test_a_step_costs_one_forward_whatever_is_refused(who):
    """Nothing is computed again behind a partial hit: the target is asked once a step and once for the prompt."""
    calls = []
    with engine(DRAFTERS[who]()) as one:
        for name in ("prefill", "verify"):
            whole = getattr(one.target, name)
            setattr(one.target, name, lambda *args, name=name, whole=whole: (calls.append(name), whole(*args))[1])
        record = one.generate(PROMPT, max_tokens=64).record
    assert calls == ["prefill"] + ["verify"] * len(record.steps)
    assert all(step.rows == step.drafted + 1 for step in record.steps)
    if who == "half":
        assert any(0 < step.accepted < step.drafted for step in record.steps)
