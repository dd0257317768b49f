"""Requests that run together: no draft, no law, no cache row and no switch of one reaches another."""

from __future__ import annotations

import numpy as np
import pytest

from augury.budget import Costs
from augury.conformance.toys import TopK, ToyTarget, noisy
from augury.drafters.drafter import Drafter
from augury.engine.engine import Engine
from augury.sampling import Sampling
from augury.tree import DraftTree

V = 8


def target(slots=8):
    return ToyTarget(V, seed=2, slots=slots)


def plain(prompt, max_tokens, sampling=None):
    with Engine(target()) as one:
        return one.generate(prompt, sampling, max_tokens=max_tokens).tokens


class Table:
    """A cost table that stands still; the second row is cheap, the others are not."""

    costs = Costs(np.array([0.0, 10.0, 10.5, *np.arange(12.0, 75.0)]), 0.0, 1.0)

    def served(self, *figures):
        pass


class Known(Drafter):
    """Knows the answer to every prompt; how many tokens it proposes, and how many of them are right, is asked of it.

    Args:
        answers: prompt -> answer.
        plan: (prompt, tokens of the answer so far) -> (depth, right).
    """

    def __init__(self, answers, plan):
        self.answers, self.plan = answers, plan

    def propose(self, view, limit):
        prompt = tuple(view.tokens[: view.prompt_length].tolist())
        done = view.length - view.prompt_length
        depth, right = self.plan(prompt, done)
        tokens = self.answers[prompt][done : done + min(depth, limit)]
        tokens = [t if i < right else (t + 1) % V for i, t in enumerate(tokens)]
        return DraftTree.chain(tokens, 0.9 ** np.arange(1, len(tokens) + 1))


@pytest.mark.parametrize("meter", [None, Table()], ids=["every guess", "by cost"])
@pytest.mark.parametrize("slots", [2, 8, 32])
def test_answers_do_not_depend_on_how_many_run_together(slots, meter):
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(0, V, n).tolist()) for n in rng.integers(1, 30, 32)]
    samplings = [Sampling(temperature=t, seed=i) for i, t in enumerate([0.0, 0.7, 1.0, 1e-9] * 8)]
    answers = {p: plain(p, 10, s) for p, s in zip(prompts, samplings, strict=True)}
    known = Known(answers, lambda prompt, done: (len(prompt) % 7, done % 5))
    drafters = [("known", known), ("tree", TopK(target(), 2, 2)), ("samples", noisy(ToyTarget(V, seed=9), depth=2))]
    with Engine(target(slots), drafters, slots=slots, meter=meter) as one:
        results = one.generate_all(prompts, samplings, max_tokens=10)
    assert [r.tokens for r in results] == [answers[p] for p in prompts]
    assert len({step.drafted for r in results for step in r.record.steps}) > (1 if meter else 5), "widths differ"
    assert max(step.rows for r in results for step in r.record.steps) >= slots


def test_seeded_unseeded_and_greedy_requests_share_every_step():
    prompt = (1, 2, 3)
    kinds = [Sampling(temperature=1.0, seed=1), Sampling(temperature=1.0, seed=2), Sampling(temperature=1.0), None]
    alone = [plain(prompt, 16, kind) for kind in kinds]
    free = set()
    with Engine(target(), [("tree", TopK(target(), 2, 3))], slots=4) as one:
        for _ in range(20):
            found = [r.tokens for r in one.generate_all([prompt] * 4, [k or Sampling() for k in kinds], max_tokens=16)]
            assert [found[i] for i in (0, 1, 3)] == [alone[i] for i in (0, 1, 3)]
            free.add(found[2])
    assert len(free) > 15


def test_two_hundred_equal_requests_get_one_answer():
    prompt = (1, 2, 3)
    answer = plain(prompt, 12)
    known = Known({prompt: answer}, lambda prompt, done: (4, done % 5))
    with Engine(target(), [("known", known)], slots=8) as one:
        results = one.generate_all([prompt] * 200, max_tokens=12)
    assert {r.tokens for r in results} == {answer}
    assert sum(r.record.accepted for r in results) > 200


@pytest.mark.parametrize("meter", [None, Table()], ids=["every guess", "by cost"])
def test_a_request_that_is_guessed_badly_does_not_spoil_one_that_is_guessed_well(meter):
    easy, hard = (1, 2, 3), (4, 5, 6, 7)
    answers = {easy: plain(easy, 60), hard: plain(hard, 60)}
    rates = []
    for prompts in ([easy], [easy, hard]):
        known = Known(answers, lambda prompt, done: (6, 6) if prompt == easy else (1 + done % 6, 0))
        with Engine(target(), [("known", known)], slots=2, meter=meter) as one:
            results = one.generate_all(prompts, max_tokens=60)
        assert [r.tokens for r in results] == [answers[p] for p in prompts]
        rates.append(results[0].record.acceptance_rate)
    assert results[1].record.accepted == 0 < results[1].record.drafted
    assert rates[0] == rates[1] == 1.0


def test_drafting_switched_off_for_one_request_goes_on_for_its_neighbour():
    prompt = (1, 2, 3)
    answer = plain(prompt, 30)
    known = Known({prompt: answer}, lambda prompt, done: (3, 3))
    with Engine(target(), [("known", known), ("tree", TopK(target(), 2, 2))], slots=2) as one:
        streams = [one.stream(prompt, max_tokens=30, draft=draft) for draft in (True, False)]
        chunks = [[], []]
        for _ in range(30):  # turn by turn, so that both are in every step
            for stream, taken in zip(streams, chunks, strict=True):
                taken += [chunk] if (chunk := next(stream, None)) else []
    for taken in chunks:
        assert tuple(t for chunk in taken for t in chunk.tokens) == answer
    drafted, free = (taken[-1].record for taken in chunks)
    assert drafted.accepted > 15
    assert free.drafted == 0
    assert all(step.proposals == () for step in free.steps)
    assert any(step.rows > step.drafted + 1 for step in free.steps), "they shared steps"
