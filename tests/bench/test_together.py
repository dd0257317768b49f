"""Groups of prompts, and what several requests at once come to."""

import pytest
from corpus import Letters
from made import pair, together

from augury.bench import paired
from augury.bench.adversarial import chosen
from augury.bench.prompts import Prompt
from augury.bench.together import answered_alone, batches, groups, run
from augury.conformance.toys import ToyTarget
from augury.drafters.prediction import Prediction
from augury.engine.engine import Engine
from augury.sampling import Sampling


def prompts(**kinds: int) -> list[Prompt]:
    return [Prompt(f"{kind}{i}", kind, "x") for kind, count in kinds.items() for i in range(count)]


def test_groups_mix_kinds_and_hold_every_prompt():
    found = groups(prompts(a=3, b=3, c=1), 2)
    assert [[p.id for p in group] for group in found] == [["a0", "b0"], ["c0", "a1"], ["b1", "a2"], ["b2", "a0"]]


@pytest.mark.parametrize("size", range(1, 8))
def test_a_group_has_as_many_prompts_as_it_should_and_none_twice(size):
    asked = prompts(a=3, b=4)
    found = groups(asked, size)
    assert all(len({p.id for p in group}) == size for group in found)
    assert {p.id for group in found for p in group} == {p.id for p in asked}
    assert len(found) == -(-7 // size)


def test_a_group_counts_by_the_median_of_its_rounds():
    found = [together(4, 0, turn, ratio) for turn, ratio in enumerate([1.0, 2.0, 100.0])]
    found += [together(4, 1, turn, 8.0) for turn in range(3)]
    (row,) = batches(found)
    assert (row.size, row.groups, row.answers, row.mismatches) == (4, 2, 24, 0)
    assert row.speedup == pytest.approx(4.0)
    assert row.plain == pytest.approx(1e3 * 16 / 40)
    assert row.interval is None


def test_end_to_end_includes_the_prompts():
    one = together(2, 0, 0, 4.0)
    assert one.speedup == pytest.approx(4.0)
    assert one.end_to_end == pytest.approx(50 / 20)


def test_where_tokens_are_not_promised_none_are_compared():
    (row,) = batches([together(2, 0, 0, 2.0, same=None)])
    assert (row.answers, row.mismatches) == (0, 0)


def test_requests_run_at_once_plain_and_drafted_in_turn():
    texts = [Prompt("a", "x", "1"), Prompt("b", "x", "2", prediction="123"), Prompt("c", "y", "3")]
    order, seen = [], []

    class Watched(Engine):
        def _run(self, requests):
            order.append(len(requests))
            return super()._run(requests)

    with Watched(ToyTarget(6), [("prediction", Prediction())], tokenizer=Letters(6), slots=3) as engine:
        alone = answered_alone(paired.run(engine, texts, Sampling(), max_tokens=12, rounds=1))
        order.clear()
        found = run(engine, texts, Sampling(), 3, alone, max_tokens=12, rounds=2, progress=seen.append)
        wrong = run(engine, texts, Sampling(), 3, {**alone, "c": (0,)}, max_tokens=12, rounds=1)
    assert order[:6] == [3] * 6  # two to warm up, and two rounds of two
    assert len(seen) == 3 * 2 * 2
    for one in found:
        assert one.prompts == ("a", "c", "b")  # kinds in turn
        assert one.same == (True, True, True)
        assert one.plain.tokens == one.drafted.tokens
        assert [f.drafted for f in one.plain.figures] == [0, 0, 0]
        assert [f.drafted > 0 for f in one.drafted.figures] == [False, False, True]  # who has a prediction
        assert all(f.cached_tokens == 0 for wave in (one.plain, one.drafted) for f in wave.figures)
    assert [one.same for one in wrong] == [(True, False, True)]


def test_the_answers_that_others_are_compared_with_are_the_first_plain_ones():
    first, second = pair("a", "qa", 0, 1.0, 1.0), pair("a", "qa", 1, 1.0, 1.0)
    assert answered_alone([first, second]) == {"a": first.plain.tokens}


@pytest.mark.real
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_together_are_those_alone(engine, temperature):
    asked = chosen(["qa", "rag"], 1)
    sampling = Sampling(temperature=temperature, seed=1)
    parts = engine.parts
    with Engine(
        parts.target, parts.drafters, tokenizer=engine.tokenizer, template=engine.template, slots=2
    ) as every:  # fmt: skip
        alone = answered_alone(paired.run(every, asked, sampling, max_tokens=12, rounds=1))
        (found,) = run(every, asked, sampling, 2, alone, max_tokens=12, rounds=1)
    assert found.same == (True, True)
    assert sum(f.drafted for f in found.drafted.figures) > 0
    assert found.plain.decode_ms > 0.0
