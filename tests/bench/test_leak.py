"""The judge of what streams give away must see what is there, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from augury.bench.serving.client import Heard
from augury.bench.serving.leak import judge

QUESTIONS, RUNS = 20, 5


def streams(make):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(RUNS):
        answers = []
        for question in range(QUESTIONS):
            sizes, pauses = make(question, rng)
            times = np.cumsum(pauses)
            portions = list(zip(times.tolist(), sizes, strict=True))
            answers.append(Heard(200, portions=portions, last_s=float(times[-1]), wall_s=float(times[-1])))
        found.append(answers)
    return judge(found)


def acceptance(question, rng):
    """Each question has its own pattern of accepted tokens, and the machine's noise on top."""
    own = np.random.default_rng(question)
    length = int(own.integers(20, 40))
    return (own.integers(1, 6, length) * 60 + 200).tolist(), rng.uniform(0.01, 0.03, length)


def pauses_only(question, rng):
    own = np.random.default_rng(question)
    return [500] * 30, own.choice([0.01, 0.05], 30) + rng.uniform(0.0, 0.004, 30)


def nothing(question, rng):
    return [2048] * 32, np.full(32, 0.1) + rng.normal(0.0, 0.002, 32)


@pytest.mark.parametrize("make", [acceptance, pauses_only])
def test_patterns_are_seen(make):
    leak = streams(make)
    assert (leak.streams, leak.questions, leak.chance) == (100, 20, 0.05)
    assert leak.times_chance > 15.0


def test_noise_is_taken_for_noise():
    leak = streams(nothing)
    assert leak.times_chance < 3.0
    assert (leak.portions, leak.bytes) == (32, 32 * 2048)


def test_the_length_alone_is_seen():
    """A stream filled up to one of four lengths tells which of four it is, and no more."""
    leak = streams(lambda question, rng: ([2048] * (32 << (question % 4)), np.full(32 << (question % 4), 0.1)))
    assert 3.0 <= leak.times_chance <= 6.0
