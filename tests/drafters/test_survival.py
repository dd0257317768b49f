"""Calibration: what is stated becomes what comes."""

from __future__ import annotations

import numpy as np
import pytest

from augury.drafters.survival import SURE, Line, Survival


def feed(rates, probability, raw, count, kind=0, seed=0):
    for hit in np.random.default_rng(seed).random(count) < probability:
        rates.score(kind, raw, bool(hit))


def test_it_begins_with_the_line():
    survival = Survival([Line(2.0, 1.0)])
    raw = 0.7
    logit = 2.0 * np.log(raw / (1 - raw)) + 1.0
    assert survival.open(0.0).hit(0, raw) == pytest.approx(1 / (1 + np.exp(-logit)))
    warm, hot, beyond = (survival.open(t).hit(0, raw) for t in (0.5, 1.0, 9.0))
    assert survival.open(0.0).hit(0, raw) > warm > hot > beyond > 0.1


@pytest.mark.parametrize(("real", "raw"), [(0.05, 0.9), (0.5, 0.9), (0.9, 0.3), (0.98, 0.5)])
def test_a_request_finds_its_own_rate(real, raw):
    found = []
    for seed in range(20):
        rates = Survival([Line(), Line()]).open(0.0)
        before = rates.hit(1, raw)
        feed(rates, real, raw, 200, seed=seed)
        assert rates.hit(1, raw) == before, "kinds learn apart"
        found.append(rates.hit(0, raw))
    assert np.mean(found) == pytest.approx(real, abs=0.1)


def test_the_next_request_begins_where_many_ended_and_an_odd_one_moves_it_little():
    survival = Survival([Line()])
    for number in range(40):
        feed(survival.open(0.0), 0.3, 0.8, 60, seed=number)
    learnt = survival.open(0.0).hit(0, 0.8)
    assert learnt == pytest.approx(0.3, abs=0.07)
    odd = survival.open(0.0)
    feed(odd, 1.0, 0.8, 60)
    assert odd.hit(0, 0.8) > 0.7
    assert abs(survival.open(0.0).hit(0, 0.8) - learnt) < 0.1
    assert survival.open(1.0).hit(0, 0.8) == Survival([Line()]).open(1.0).hit(0, 0.8), "other sampling, other shifts"


def test_nothing_is_certain():
    rates = Survival([Line()]).open(0.0)
    feed(rates, 1.0, 0.999, 5000)
    assert rates.hit(0, 0.9999) == SURE
    feed(rates, 0.0, 0.001, 5000)
    assert rates.hit(0, 1e-9) == 1.0 - SURE


def test_old_scores_fade():
    rates = Survival([Line()]).open(0.0)
    feed(rates, 0.95, 0.5, 3000)
    feed(rates, 0.1, 0.5, 200)
    assert rates.hit(0, 0.5) < 0.3
