"""What one request may say about its drafting: how deep, and by what rule."""

from __future__ import annotations

import pytest

import augury
from augury.conformance.toys import ToyTarget, oracle
from augury.engine.engine import Engine
from augury.errors import InputError, UnknownName
from augury.sampling import Sampling
from augury.tree import MAX_NODES

V = 5
PROMPT = [1, 2, 3, 1]
ANSWER = Engine(ToyTarget(V)).generate(PROMPT, max_tokens=24).tokens


def engine(draft_tokens: int | None = None) -> Engine:
    return Engine(ToyTarget(V), [("oracle", oracle(ANSWER, 8, V))], draft_tokens=draft_tokens)


@pytest.mark.parametrize("deepest", [0, 1, 3, None])
def test_no_more_draft_tokens_in_a_row_than_a_request_allows(deepest):
    result = engine().generate(PROMPT, max_tokens=24, draft_tokens=deepest)
    assert result.tokens == ANSWER
    most = MAX_NODES if deepest is None else deepest
    assert all(max(step.tree.depths, default=0) <= most for step in result.record.steps)
    assert (result.record.accepted > 0) is (deepest != 0)
    if deepest == 0:
        assert {step.reason for step in result.record.steps} == {"the request allows no draft tokens"}


@pytest.mark.parametrize("deepest", [0, 2])
def test_no_more_than_the_engine_allows_whatever_a_request_asks_for(deepest):
    result = engine(deepest).generate(PROMPT, max_tokens=24, draft_tokens=5)
    assert result.tokens == ANSWER
    assert max(max(step.tree.depths, default=0) for step in result.record.steps) == deepest


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_a_request_may_have_a_rule_of_its_own(rule):
    one = engine()
    request = one.request(PROMPT, Sampling(temperature=1.0, seed=1), acceptance=rule)
    assert request.rule == rule
    assert all(view.rule == rule for view in request.views)
    assert one.generate(PROMPT, max_tokens=24, acceptance=rule).tokens == ANSWER


def test_both_are_checked():
    with pytest.raises(InputError, match="draft_tokens is -1"):
        engine().generate(PROMPT, draft_tokens=-1)
    with pytest.raises(InputError, match=r"draft_tokens is 1\.5"):
        engine().generate(PROMPT, draft_tokens=1.5)
    with pytest.raises(InputError, match="draft_tokens is True"):
        engine(True)
    with pytest.raises(InputError, match="draft_tokens is -2"):
        augury.load("no-such-model", draft_tokens=-2)  # before anything is looked for
    with pytest.raises(UnknownName, match="typical"):
        engine().generate(PROMPT, acceptance="typical")
