"""The instruments: exact laws by running every branch, and how far a count may stray."""

from __future__ import annotations

import numpy as np
import pytest

from augury.conformance.exact import ExactNoise, NotEnumerable, outcomes
from augury.conformance.law import bound, distance, true_law
from augury.conformance.toys import Drift, ToyTarget
from augury.noise import race
from augury.sampling import Sampling

P = np.array([0.5, 0.3, 0.2])


def test_a_race_takes_every_index_with_its_share():
    law = outcomes(lambda c: race(2 * P, ExactNoise(c).exponential(0, 3)))
    assert law == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2})


def test_a_verdict_takes_both_answers():
    assert outcomes(lambda c: ExactNoise(c).uniform(0, 0) < 0.3) == pytest.approx({True: 0.3, False: 0.7})
    assert outcomes(lambda c: ExactNoise(c).uniform(0, 0) * 4.0 <= 1.0) == pytest.approx({True: 0.25, False: 0.75})
    assert outcomes(lambda c: 0.5 * ExactNoise(c).uniform(0, 0) < 0.9) == {True: 1.0}
    assert outcomes(lambda c: ExactNoise(c).uniform(0, 0) * 0.0 < 0.0) == {False: 1.0}
    assert outcomes(lambda c: ExactNoise(c).uniform(0, 0) * 0.0 <= 0.0) == {True: 1.0}


def test_drawing_without_replacement_from_one_array_is_understood():
    def pair(chances):
        waits = ExactNoise(chances).exponential(0, 3)
        first = race(P, waits)
        return first, race(P * (np.arange(3) != first), waits)

    law = outcomes(pair)
    assert law[0, 1] == pytest.approx(0.5 * 0.6)
    assert law[2, 0] == pytest.approx(0.2 * 0.5 / 0.8)
    assert sum(law.values()) == pytest.approx(1.0)


def test_the_same_agrees_with_real_noise():
    """The stand-ins say what Philox does, siblings of one array included."""
    from augury.noise import Noise

    def pair(waits):
        first = race(P, waits)
        return first, race(P * (np.arange(3) != first), waits)

    exact = outcomes(lambda c: pair(ExactNoise(c).exponential(0, 3)))
    counts: dict = {}
    for seed in range(6000):
        both = pair(Noise(seed, 0).exponential(5, 3))
        counts[both] = counts.get(both, 0.0) + 1 / 6000
    assert distance(exact, counts) < bound(exact, 6000)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda n: (n.exponential(0, 3), lambda w: race(P, w) + race(P[::-1], w)),
        lambda n: (n.uniform(0, 0), lambda u: (u < 0.5) + (u < 0.4)),
        lambda n: (n.uniform(0, 0), lambda u: (u < 0.5) + (u * 2.0 < 0.4)),
    ],
)
def test_chance_used_twice_is_refused(misuse):
    def program(chances):
        value, use = misuse(ExactNoise(chances))
        return use(value)

    with pytest.raises(NotEnumerable):
        outcomes(program)


def test_too_many_branches_are_refused():
    with pytest.raises(NotEnumerable, match="more than 100 branches"):
        outcomes(lambda c: tuple(race(P, ExactNoise(c).exponential(0, 3)) for _ in range(5)), limit=100)


def test_truth_is_a_law_and_ends_where_answers_end():
    target = ToyTarget(3, seed=1)
    sampling = Sampling(temperature=1.0, min_tokens=1, processors=(Drift(),))
    law = true_law(target, (0, 1), sampling, 3, (2,))
    assert sum(law.values()) == pytest.approx(1.0)
    assert all(2 not in answer[:-1] and answer[0] != 2 for answer in law)
    assert {len(answer) for answer in law} == {2, 3}


def test_a_fair_count_stays_within_the_bound_and_a_loaded_one_does_not():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(20))
    law = {(i,): float(x) for i, x in enumerate(p)}
    apart = [distance(law, {(i,): n / 500 for i, n in enumerate(rng.multinomial(500, p))}) for _ in range(3000)]
    assert max(apart) < bound(law, 500)
    mean = bound(law, 500, risk=1.0)
    assert 0.7 * mean < np.mean(apart) < mean, "the mean part of the bound is a bound, and no loose one"
    loaded = np.roll(p, 1)
    assert distance(law, {(i,): n / 500 for i, n in enumerate(rng.multinomial(500, loaded))}) > bound(law, 500)
