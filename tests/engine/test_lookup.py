"""Drafters that copy, in the engine: they change no token, and cost little where there is nothing to copy."""

from __future__ import annotations

import numpy as np
import pytest

from augury.budget import Costs
from augury.conformance.toys import ToyTarget
from augury.drafters import make
from augury.engine.engine import Engine
from augury.sampling import Sampling

V = 40
TAGS = [7, 7, 1, 2, 7, 7, 3, 7, 7, 1, 4, 7, 7, 2, 5, 7, 7]  # an opening that occurs five times and goes on otherwise


class Table:
    """Costs in the shape that was measured: two rows cost no more than one, eight little more, then it climbs."""

    costs = Costs(np.interp(np.arange(66), [0, 1, 2, 8, 16, 32, 65], [0, 12.7, 12.5, 14.8, 19.8, 28.6, 50]), 0.0, 1.0)

    def served(self, *figures):
        pass


def engine(target, specs=(), **options):
    return Engine(target, [(spec, make(spec)) for spec in specs], **options)


@pytest.mark.parametrize("spec", ["ngram:min=1", "ngram:min=2", "ngram:min=8,max=8", "suffix:shortest=3", "suffix"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_length_of_a_match_does_not_change_the_answer(spec, temperature):
    sampling = Sampling(temperature=temperature, seed=1)
    target = ToyTarget(8, seed=3, spread=2.0)
    with engine(target) as one:
        answer = one.generate(TAGS, sampling, max_tokens=80).tokens
    with engine(target, [spec]) as one:
        again = [*TAGS, *answer, *TAGS]  # enough text for matches of eight tokens
        results = [one.generate(prompt, sampling, max_tokens=80) for prompt in (TAGS, again)]
    assert results[0].tokens == answer
    with engine(target) as one:
        assert results[1].tokens == one.generate(again, sampling, max_tokens=80).tokens
    assert results[1].record.drafted > 0


@pytest.mark.parametrize("specs", [["ngram"], ["suffix"], ["suffix", "prediction", "ngram"]], ids="+".join)
@pytest.mark.parametrize("vocab", [5, 40, 300])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_that_copies_nothing_costs_hardly_more_than_plain_decoding(specs, vocab, temperature):
    target = ToyTarget(vocab, spread=1.0)
    wrong = np.random.default_rng(1).integers(0, vocab, 150).tolist()
    with engine(target, specs, meter=Table()) as one:
        sampling = Sampling(temperature=temperature, seed=0)
        hint = wrong if one.reads_prediction else None
        record = one.generate([1, 2, 3, 0], sampling, max_tokens=150, prediction=hint).record
    assert record.drafted > 0
    assert sum(Table.costs.verify[step.rows] for step in record.steps) <= 1.05 * 150 * Table.costs.verify[1]
    if vocab > 5:  # of five tokens even a blind guess is right too often to be left out
        late = record.steps[32:]
        assert sum(step.drafted > 1 for step in late) < 0.25 * len(late), "more than the second row, which is free"
        assert {step.reason for step in late} & {"no drafter had a guess", "the guesses were not worth their rows"}
