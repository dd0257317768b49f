"""The proposer in vLLM: the same text sooner, whatever happens to requests."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from augury_vllm.counts import Told, named

from conftest import answers, engine, ids, metric, speculation

LONG = 80


@pytest.fixture(scope="module")
def truth(model, prompts):
    """What vLLM says without speculation; greedy, sampled and stopped."""
    with engine(model) as llm:
        text = answers(llm, prompts)
        stop = next(word for word in text[0].outputs[0].text.split()[8:] if len(word) > 3)
        return {
            "greedy": ids(text), "long": ids(answers(llm, prompts, LONG, ignore_eos=True)), "stop": stop,
            "stopped": [one.outputs[0].text for one in answers(llm, prompts, stop=[stop])],
            "penalised": ids(answers(llm, prompts, repetition_penalty=1.2, presence_penalty=0.3)),
        }  # fmt: skip


@pytest.fixture(scope="module")
def drafted(model, truth):  # after the other one, whose metrics would take the place of these
    """Our proposer in vLLM."""
    with engine(model, **speculation()) as llm:
        yield llm


def accepted(llm):
    return metric(llm, "spec_decode_num_accepted_tokens")


def test_the_same_text_sixteen_at_once(drafted, prompts, truth):
    before = accepted(drafted)
    assert ids(answers(drafted, prompts)) == truth["greedy"]
    assert accepted(drafted) > before


@pytest.mark.parametrize("at_once", [1, 4])
def test_the_same_text_fewer_at_once(drafted, prompts, truth, at_once):
    before = accepted(drafted)
    came = [ids(answers(drafted, prompts[i : i + at_once])) for i in range(0, len(prompts), at_once)]
    assert [one for group in came for one in group] == truth["greedy"]
    assert accepted(drafted) > before


def test_the_same_text_with_penalties(drafted, prompts, truth):
    assert ids(answers(drafted, prompts, repetition_penalty=1.2, presence_penalty=0.3)) == truth["penalised"]


def test_stop_strings_end_answers_where_they_do_without(drafted, prompts, truth):
    came = answers(drafted, prompts, stop=[truth["stop"]])
    assert [one.outputs[0].text for one in came] == truth["stopped"]
    assert any(one.outputs[0].stop_reason == truth["stop"] for one in came)


def test_sampled_answers_come(drafted, prompts):
    before = accepted(drafted)
    came = ids(answers(drafted, prompts, temperature=0.8, top_p=0.9, seed=7, ignore_eos=True))
    assert all(len(answer) == 48 for answer in came)
    assert all(0 <= token < 49152 for answer in came for token in answer)
    assert accepted(drafted) > before


def test_two_answers_to_one_prompt(drafted, prompts):
    came = answers(drafted, prompts, n=2, temperature=1.0, seed=3)
    assert all(len(one.outputs) == 2 for one in came)
    assert any(one.outputs[0].token_ids != one.outputs[1].token_ids for one in came)


def test_our_counts_are_those_of_vllm(drafted, prompts):
    told = Told(named(drafted.llm_engine.vllm_config.instance_id, 0))
    told.take()
    names = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
    before = [metric(drafted, name) for name in names]
    answers(drafted, prompts)
    drafts, right = (after - had for after, had in zip([metric(drafted, name) for name in names], before, strict=True))
    ours_drafted, ours_right = (sum(counted) for counted in told.take())
    assert right > 0
    assert ours_right == pytest.approx(right, rel=0.02)
    assert ours_drafted == pytest.approx(drafts, rel=0.02)


def test_preempted_requests_go_on_with_the_same_text(model, prompts, truth):
    short, expected = zip(*[(p, t) for p, t in zip(prompts, truth["long"], strict=True) if len(p) < 100], strict=True)
    crowded = {"num_gpu_blocks_override": 16, "block_size": 32, "max_model_len": 256}
    with engine(model, **speculation(), **crowded) as llm:
        assert ids(answers(llm, short, LONG, ignore_eos=True)) == list(expected)
        assert metric(llm, "num_preemptions") > 0
        assert accepted(llm) > 0


def test_prompts_in_parts_and_the_end_of_the_context(model, prompts, truth):
    options = {"max_num_batched_tokens": 48, "max_num_seqs": 8, "max_model_len": 320, "enable_chunked_prefill": True}
    fitting = [p for p in prompts if len(p) < 300]
    assert any(len(p) > 48 for p in fitting)
    with engine(model, **options) as llm:
        plain = ids(answers(llm, fitting, 300, ignore_eos=True))
    with engine(model, **speculation(), **options) as llm:
        came = ids(answers(llm, fitting, 300, ignore_eos=True))
        assert accepted(llm) > 0
    assert [len(a) for a in came] == [min(300, 320 - len(p)) for p in fitting]
    assert any(len(a) == 320 - len(p) for a, p in zip(came, fitting, strict=True))
    assert came == plain


def test_the_same_text_at_the_prices_of_a_cpu(model, prompts, truth):
    """The defaults there: measured prices, so the first steps are plain and then some are drafted."""
    options = speculation() | {"additional_config": {}}
    with engine(model, **options) as llm:
        assert ids(answers(llm, prompts)) == truth["greedy"]
        assert metric(llm, "spec_decode_num_drafts") > 0


def test_more_is_accepted_than_of_its_own_proposers(model, prompts):
    """Answers are of one length, so who has more accepted needs fewer steps."""
    right = {}
    methods = ["augury", "ngram"]
    if find_spec("arctic_inference"):  # `make vllm` says so where it could not be built
        methods.append("suffix")
    for method in methods:
        with engine(model, **speculation(method)) as llm:
            answers(llm, prompts, LONG, ignore_eos=True)
            right[method] = accepted(llm)
    assert right["augury"] >= max(right[method] for method in methods[1:]) > 0, right


@pytest.mark.parametrize(
    ("augury", "says"), [({"drafters": "sufix"}, "did you mean 'suffix'"), ({"row": 7}, "row is 7")]
)
def test_an_option_that_cannot_be_honoured_stops_vllm_with_its_line(model, augury, says, capfd):
    with pytest.raises(Exception), engine(model, **speculation(**augury)):  # noqa: B017, PT011 - vLLM's own
        pass
    assert says in "".join(capfd.readouterr())
