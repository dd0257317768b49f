"""Hints for a drafting model: what they are, that they change no guess, and that they save forwards."""

from __future__ import annotations

import numpy as np
import pytest

from augury.conformance.toys import ToyTarget
from augury.drafters import itself
from augury.drafters.hints import Hint, Hints
from augury.drafters.itself import Itself
from augury.drafters.phrases import Phrases, Table, write_table
from augury.engine.engine import Engine
from augury.sampling import Sampling
from augury.train.phrases import count


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


# ---- beside what the target usually says -----------------------------------------------------------------------------


def said(*talks, vocab_size=100):
    """Phrases of so many prompts of one token and answers."""
    counted = count([(np.asarray(talk, np.int32), 1) for talk in talks], vocab_size)
    return Table(*counted, vocab_size, "toy", "")


def test_what_usually_follows_is_the_hint_where_the_text_has_none():
    hints = Hints(Phrases(said(*[[1, 2, 3, 4, 5]] * 9)))
    found = hints.after(View([7, 1]), (), 3)
    assert [(hint.token, hint.agree) for hint in found] == [(2, 0), (3, 0), (4, 0)]
    assert all(hint.stated == pytest.approx(0.9, abs=0.01) for hint in found)
    assert [hint.token for hint in hints.after(View([7], id=2), (1, 2), 2)] == [3, 4]
    assert hints.after(View([7, 5], id=3), (), 3) == []


def test_the_likelier_of_both_is_taken_in_each_place():
    hints = Hints(Phrases(said(*[[1, 2, 3, 4, 5]] * 9, *[[20, 21]] * 3, *[[20, 22]] * 6, *[[20, 23]] * 4)))
    view = View([9, 1, 8, 20, 50, 9, 1])
    assert [(hint.token, hint.agree) for hint in hints.after(view, (), 2)] == [(2, 0), (3, 0)]  # 0.9 against 0.35
    agree = View([9, 9, 9, 20, 60, 9, 9, 9, 20], id=2)
    assert [(hint.token, hint.agree) for hint in hints.after(agree, (), 2)] == [(60, 4), (9, 4)]  # 0.65 against 0.43
    mixed = View([5, 6, 7, 20, 1, 70, 5, 6, 7, 20], id=3)
    assert [(hint.token, hint.agree) for hint in hints.after(mixed, (), 3)] == [(1, 4), (2, 0), (3, 0)]
    back = View([1, 2, 3, 4, 5, 40, 41, 42, 43, 1], id=4)  # behind a phrase the text itself is followed again
    for _ in range(60):
        hints.learn(back, Hint(5, 4), True)
    assert [hint.token for hint in hints.after(back, (2, 3, 4, 5), 2)] == [40, 41]


def test_phrases_that_are_seldom_right_are_believed_less_and_the_surest_still_given():
    hints, view = Hints(Phrases(said(*[[1, 2, 3]] * 40, *[[5, 6]] * 3, *[[5, 7]] * 4))), View([8, 1])
    doubtful = View([8, 5], id=2)
    (sure, second), (other,) = hints.after(view, (), 2), hints.after(doubtful, (), 1)
    assert (sure.token, second.token, other.token) == (2, 3, 7)
    for _ in range(200):
        hints.learn(view, sure, False)
    assert hints.after(view, (), 2) == [sure]
    assert hints.after(doubtful, (), 1) == []
    assert hints.after(View([8, 5], temperature=1.0, id=3), (), 1) == [other]  # greedy texts tell nothing of sampled
    for _ in range(200):
        hints.learn(view, sure, True)
    assert hints.after(doubtful, (), 1) == [other]


# ---- within a drafter ------------------------------------------------------------------------------------------------


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


class Listening(Itself):
    """Keeps the hints it was told of."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.told = []

    def heard(self, view, hint, right):
        self.told.append((hint, right))
        super().heard(view, hint, right)


def proposals(most, monkeypatch, sampling, rule="coupled", prompt=(0, 1, 2, 0, 1, 2, 0), phrases="none"):
    monkeypatch.setattr(itself, "MOST_HINTS", most)
    target = Counted(5, seed=2)
    drafter = Listening("int8", depth=5, phrases=str(phrases), target=target)
    with Engine(target, [("self", drafter)], acceptance=rule) as engine:
        record = engine.generate(prompt, sampling, max_tokens=60).record
    target.told = drafter.told
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


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_phrases_change_no_guess_either(monkeypatch, tmp_path, rule, temperature):
    with Engine(ToyTarget(5, seed=2)) as engine:
        texts = [engine.generate([start], Sampling(), max_tokens=80).tokens for start in range(5)]
    write_table(tmp_path / "phrases", said(*([0, *text] for text in texts), vocab_size=5))
    sampling = Sampling(temperature=temperature, seed=4)
    without, plain = proposals(0, monkeypatch, sampling, rule, prompt=[4])
    with_phrases, hinted = proposals(3, monkeypatch, sampling, rule, prompt=[4], phrases=tmp_path / "phrases")
    assert with_phrases == without
    assert hinted.forwards < plain.forwards
    assert {right for hint, right in hinted.told if not hint.agree} == {True, False}, "not both right and wrong phrases"
