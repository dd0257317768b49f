"""Parameters of the law hold at every token of an accepted path, not at its first one only."""

from __future__ import annotations

import numpy as np
import pytest

from augury.conformance.toys import Half, Script, TopK, ToyTarget, noisy, oracle
from augury.engine.engine import Engine
from augury.noise import Noise
from augury.sampling import Sampler, Sampling
from augury.tree import DraftTree

V = 12
PROMPT = [3, 3, 3, 3, 1, 2]
TARGET = ToyTarget(V, seed=1)


def engine(drafters=(), **options):
    return Engine(TARGET, [(f"d{i}", d) for i, d in enumerate(drafters)], **options)


def answer(sampling, max_tokens=30, drafters=(), eos=(), **options):
    with engine(drafters, eos_ids=eos) as one:
        return one.generate(PROMPT, sampling, max_tokens=max_tokens, **options)


FREE = answer(Sampling()).tokens
END = FREE[2]
WANTED = next(t for t in range(V) if t not in FREE[:20])

PARAMETERS = {
    "faint repetition penalty": Sampling(repetition_penalty=1.2),
    "strong repetition penalty": Sampling(repetition_penalty=2.0),
    "presence penalty": Sampling(presence_penalty=1.0),
    "frequency penalty": Sampling(frequency_penalty=0.7),
    "negative penalties": Sampling(presence_penalty=-0.5, frequency_penalty=-0.2),
    "bias": Sampling(logit_bias={FREE[0]: -2.0, WANTED: 2.0}),
    "bad words": Sampling(bad_words=(FREE[:1], FREE[3:5])),
    "drawn with penalties": Sampling(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.7, seed=5),
}

DRAFTERS = {
    "right": lambda held: oracle(held, 4, V),
    "right in part": lambda held: Half(held, 4, range(5), V),
    "right without the parameter": lambda held: oracle(FREE, 4, V),
    "tree": lambda held: TopK(TARGET, 3, 3),
    "samples": lambda held: noisy(TARGET, width=2, depth=3),
}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("who", DRAFTERS)
def test_a_parameter_acts_at_every_token_of_a_path(name, who):
    held = answer(PARAMETERS[name]).tokens
    assert held != FREE, "a parameter that changes nothing here proves nothing"
    result = answer(PARAMETERS[name], drafters=[DRAFTERS[who](held)])
    assert result.tokens == held
    assert result.record.drafted > 0
    if who == "right":
        assert result.record.accepted == 24, "six steps of four accepted tokens and the target's own"


def test_a_banned_favourite_is_never_kept_and_a_forced_token_always_comes():
    favourite = FREE[0]
    drafts = [Script([DraftTree.chain([favourite] * 4, [0.9] * 4)])]
    held = answer(Sampling(logit_bias={favourite: -100}), drafters=drafts)
    assert favourite not in held.tokens
    assert held.tokens == answer(Sampling(logit_bias={favourite: -100})).tokens
    assert held.record.drafted > 0
    assert set(answer(Sampling(logit_bias={WANTED: 100}), drafters=drafts).tokens) == {WANTED}


@pytest.mark.parametrize("least", [1, 4, 9])
def test_an_end_drafted_before_min_tokens_is_refused(least):
    sampling = Sampling(min_tokens=least)
    plain = answer(sampling, eos=[END])
    ends = Script([DraftTree.chain([END] * 3, [0.9] * 3)])
    for drafts in (oracle(FREE, 8, V), ends, oracle(plain.tokens, 8, V)):
        result = answer(sampling, drafters=[drafts], eos=[END])
        assert (result.tokens, result.finish_reason) == (plain.tokens, plain.finish_reason)
        assert END not in result.tokens[:least]


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_pieces_of_a_sampled_answer_join_and_every_token_is_possible_in_its_place(rule):
    """A refusal that comes a step late leaves a token that its own prefix does not allow."""
    sampling = Sampling(temperature=0.8, top_k=2, seed=3)
    guess = answer(sampling, 100).tokens
    drafters = [Half(guess, 4, range(5), V), noisy(ToyTarget(V, seed=2), depth=3)]
    with engine(drafters, acceptance=rule) as one:
        chunks = list(one.stream(PROMPT, sampling, max_tokens=100))
        whole = one.generate(PROMPT, sampling, max_tokens=100)
    tokens = [t for chunk in chunks for t in chunk.tokens]
    record = chunks[-1].record
    assert len(tokens) == record.completion_tokens == len(whole.tokens) == 100
    assert 0 < record.accepted < record.drafted
    for said in (tokens, whole.tokens):
        sampler = Sampler(sampling, V, (), np.asarray(PROMPT, np.int32), Noise(0, 0))
        for i, token in enumerate(said):
            assert sampler.law(TARGET.row([*PROMPT, *said[:i]]), [])[token] > 0.0
            sampler.advance([token])
