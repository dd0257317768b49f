"""Hints for a drafting model: what they are, that they change no guess, and that they save forwards."""

from __future__ import annotations

import numpy as np
import pytest

from augury.conformance.toys import ToyTarget
from augury.drafters import itself
from augury.drafters.hints import Hint, Hints
from augury.drafters.itself import Itself
from augury.engine.engine import Engine
from augury.sampling import Sampling


class View:
    """What hints look at."""

    def __init__(self, tokens, temperature=0.0, id=1):
        self.tokens, self.temperature, self.id = np.asarray(tokens, np.int32), temperature, id


def test_what_followed_the_same_tokens_is_the_hint():
    hints = Hints()
    view = View([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4])
    assert [hint.token for hint in hints.after(view, (), 3)] == [5, 6, 7]
    assert [hint.agree for hint in hints.after(view, (), 3)] == [4, 4, 4]
    assert hints.after(view, (9,), 3) == []
    assert [hint.token for hint in hints.after(view, (5, 6), 1)] == [7]
    assert hints.after(view, (), 0) == []


def test_the_text_is_followed_as_it_grows_and_forgotten_at_its_end():
    hints = Hints()
    assert hints.after(View([1, 2, 3]), (), 2) == []
    for tokens in ([1, 2, 3, 1, 2], [*range(1, 4), 1, 2, *range(20, 60), 2]):
        found = hints.after(View(tokens), (), 1)
    assert found == [Hint(20, 1)]  # the latest place
    hints.forget(View([]))
    assert hints.after(View([8, 9]), (), 2) == []
    assert hints.after(View([7, 8, 9, 7, 8], id=2), (), 1) == [Hint(9, 2)]


def test_hints_that_are_never_right_are_given_no_more():
    hints, view = Hints(), View([1, 2, 3, 1, 2])
    (hint,) = hints.after(view, (), 1)
    for _ in range(40):
        hints.learn(view, hint, False)
    assert hints.after(view, (), 1) == []
    warm = View([1, 2, 3, 1, 2], temperature=1.0, id=2)
    assert hints.after(warm, (), 1) == [hint]  # greedy texts tell nothing of sampled ones
    for _ in range(40):
        hints.learn(view, hint, True)
    assert hints.after(view, (), 1) == [hint]


class Counted(ToyTarget):
    """Counts the forwards of its guesser, and their rows."""

    forwards = rows = 0

    def shorten(self, bits, layers):
        guess = super().shorten(bits, layers)

        def counted(slot, ahead, tokens):
            self.forwards += 1
            self.rows += len(tokens)
            return guess(slot, ahead, tokens)

        counted.together = guess.together
        return counted


def proposals(most, monkeypatch, sampling, rule="coupled", prompt=(0, 1, 2, 0, 1, 2, 0)):
    monkeypatch.setattr(itself, "MOST_HINTS", most)
    target = Counted(5, seed=2)
    with Engine(target, [("self", Itself("int8", depth=5, target=target))], acceptance=rule) as engine:
        record = engine.generate(prompt, sampling, max_tokens=60).record
    return [(step.tree.tokens.tolist(), step.tree.survival.round(5).tolist()) for step in record.steps], target


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_guesses_are_the_same_and_cost_fewer_forwards(monkeypatch, rule, temperature):
    sampling = Sampling(temperature=temperature, seed=4)
    without, plain = proposals(0, monkeypatch, sampling, rule)
    with_hints, hinted = proposals(3, monkeypatch, sampling, rule)
    assert with_hints == without
    assert plain.rows == plain.forwards
    assert hinted.rows > hinted.forwards, "no hint was given"
    assert hinted.forwards < plain.forwards
