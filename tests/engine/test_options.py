"""No option is ignored: what cannot be honoured is refused in one line, before anything starts."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import byte_tokenizer

from augury.conformance.toys import Empty, ToyTarget
from augury.drafters import make
from augury.engine.engine import Engine
from augury.errors import InputError
from augury.models.tokenizer import Tokenizer
from augury.sampling import Sampling

V = 5
PROMPT = [1, 2, 3, 1]


def engine(*names, context=256, **options):
    return Engine(ToyTarget(V, context=context), [(name, make(name)) for name in names], **options)


REFUSED = {
    "logprobs, real": (engine, {"logprobs": 1.5}, r"logprobs is 1\.5; it must be a whole number in 0\.\.20"),
    "logprobs, true": (engine, {"logprobs": True}, "logprobs is True"),
    "logprobs, text": (engine, {"logprobs": "2"}, "logprobs is '2'"),
    "max_tokens, true": (engine, {"max_tokens": True}, "max_tokens is True"),
    "nobody reads": (engine, {"prediction": [1]}, "a prediction needs a drafter that reads it.*asked: none"),
    "others read": (lambda: engine("suffix", "ngram"), {"prediction": [1]}, "asked: suffix, ngram"),
    "not drafted": (lambda: engine("prediction"), {"prediction": [1], "draft": False}, "none is to be asked"),
    "wrong name": (lambda: engine("suffix", "ngram"), {"drafters": ["sufix"]}, "loaded drafter.*sufix.*suffix"),
    "one name": (lambda: engine("suffix"), {"drafters": "suffix"}, "drafters is 'suffix'; give a list of names"),
    "drafters, not drafted": (lambda: engine("suffix"), {"drafters": ["suffix"], "draft": False}, "draft is False"),
    "others are asked": (
        lambda: engine("suffix", "prediction"),
        {"prediction": [1], "drafters": ["suffix"]},
        "asked: suffix",
    ),
    "long prediction": (
        lambda: engine("prediction", context=16),
        {"prediction": [1] * 17},
        "the prediction has 17 tokens, the context holds 16",
    ),
    "salt, number": (engine, {"cache_salt": 5}, r"cache_salt is a int; give a text \(empty: the local user's\)"),
    "salt, none": (engine, {"cache_salt": None}, "cache_salt is a NoneType; give a text"),
    "salt, long": (engine, {"cache_salt": "x" * 1025}, "cache_salt has 1025 characters; it may have up to 1024"),
    "min above max": (engine, {"sampling": Sampling(min_tokens=9), "max_tokens": 8}, "min_tokens is 9, above max_tok"),
    "min above none": (engine, {"sampling": Sampling(min_tokens=1), "max_tokens": 0}, "min_tokens is 1, above max_tok"),
    "min above the context": (
        lambda: engine(context=16),
        {"sampling": Sampling(min_tokens=13)},
        "min_tokens is 13; behind the prompt the context has room for 12",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused(case):
    build, options, words = REFUSED[case]
    one = build()
    for ask in (one.generate, lambda prompt, **options: one.generate_all([prompt], **options), one.stream):
        with pytest.raises(InputError, match=words) as caught:
            ask(PROMPT, **options)
        assert "\n" not in str(caught.value)
    assert len(one.generate(PROMPT, max_tokens=4).tokens) == 4


def test_an_option_that_is_not_known_is_refused():
    one = engine()
    for ask in (one.generate, one.stream, lambda prompt, **options: one.generate_all([prompt], **options)):
        with pytest.raises(TypeError, match="temperature"):
            ask(PROMPT, temperature=1.0)


def test_a_prediction_as_long_as_the_context_and_min_tokens_at_the_limit_are_honoured():
    one = engine("prediction", context=16)
    result = one.generate(PROMPT, Sampling(min_tokens=12), prediction=[1] * 16)
    assert len(result.tokens) == 12


def test_a_drafter_of_ones_own_says_that_it_reads_predictions():
    class Reads(Empty):
        reads_prediction = True

        def open(self, view):
            self.read = view.prediction.tolist()

    mine = Reads()
    Engine(ToyTarget(V), [("mine", mine)]).generate(PROMPT, max_tokens=2, prediction=[1, 2])
    assert mine.read == [1, 2]


def test_a_stop_string_that_is_a_control_token_is_refused_and_the_other_way_named():
    one = Engine(ToyTarget(272), tokenizer=Tokenizer(byte_tokenizer()))
    with pytest.raises(InputError, match=r"'<\|im_end\|>' is a control token.*stop_token_ids=\(257,\)"):
        one.generate([1], stop=["x", "<|im_end|>"])
    for text in ("<|im_end", " <|im_end|>", "im_end"):  # these may be written
        assert one.generate([1], stop=text, max_tokens=2).finish_reason == "length"


class Mends:
    """A processor that makes a law of rows that have none."""

    def __call__(self, history, logits):
        return np.nan_to_num(logits, nan=0.0)

    def snapshot(self):
        return None

    def restore(self, state):
        pass


def test_logprobs_that_cannot_be_had_end_their_own_request_only():
    """A processor may rescue the law of a row, but there are no log-probabilities of the row itself."""
    target = ToyTarget(V, slots=2)
    one = Engine(target, slots=2)
    with Engine(ToyTarget(V)) as alone:
        answer = alone.generate(PROMPT, max_tokens=12).tokens
    verify = target.verify

    def damaged(slots, roots, trees):
        rows = verify(slots, roots, trees)
        for slot, logits in zip(slots, rows.logits, strict=True):
            if target._cells[slot][0].token == 4:
                logits[...] = np.nan
        return rows

    target.verify = damaged
    stream = one.stream(PROMPT, max_tokens=12)
    first = next(stream)
    with pytest.raises(Exception, match="no finite maximum"):
        one.generate([4, 4], Sampling(processors=(Mends(),)), max_tokens=5, logprobs=2)
    assert (*first.tokens, *(t for chunk in stream for t in chunk.tokens)) == answer
    assert len(one.generate([4, 4], Sampling(processors=(Mends(),)), max_tokens=5).tokens) == 5


@pytest.mark.parametrize("stop", [None, 5, b"x", ["a", 1]])
def test_a_stop_that_is_no_text_is_refused_in_one_line(stop):
    with pytest.raises(InputError, match=r"stop is .*; give a text or a list of texts"):
        Engine(ToyTarget(5)).generate([1, 2], max_tokens=2, stop=stop)


def test_a_ragged_prompt_is_refused_in_one_line():
    with pytest.raises(InputError, match="flat list of token ids"):
        Engine(ToyTarget(5)).generate([[1, 2], [3]], max_tokens=2)


@pytest.mark.parametrize("name", ["include_stop", "ignore_eos", "draft", "explain"])
def test_a_switch_that_is_neither_true_nor_false_is_refused(name):
    with pytest.raises(InputError, match=f"{name} is 'no'; it must be True or False"):
        Engine(ToyTarget(5)).generate([1, 2], max_tokens=2, **{name: "no"})


def test_a_sampling_of_another_kind_is_refused():
    with pytest.raises(InputError, match=r"sampling is .*; give an augury.Sampling"):
        Engine(ToyTarget(5)).generate([1, 2], {"temperature": 1})


def test_a_cache_salt_reaches_drafters_as_a_digest_and_nobody_else():
    class Sees(Empty):
        def open(self, view):
            seen.append(view)

    seen = []
    one = Engine(ToyTarget(V), [("sees", Sees())], slots=2)
    for salts in ({}, {"cache_salt": ""}, {"cache_salt": "hush"}, {"cache_salt": "x" * 1024}):
        result = one.generate(PROMPT, max_tokens=2, **salts)
        assert "hush" not in repr(result)
    one.generate_all([PROMPT, PROMPT], max_tokens=2, cache_salt="hush")
    next(one.stream(PROMPT, max_tokens=2, cache_salt="hush"))
    names = [view.tenant for view in seen]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert names[4:] == [names[2]] * 3
    assert "hush" not in repr(seen)
    with pytest.raises(InputError) as caught:
        one.generate(PROMPT, cache_salt=["hush"])
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(("names", "shown"), [(None, "abc"), (["c", "a"], "ac"), (("b",), "b"), ([], "")])
def test_a_request_may_name_who_is_asked(names, shown):
    """The others do not even see it; the answer is the same."""

    class Notes(Empty):
        def __init__(self):
            self.calls = set()

        def open(self, view):
            self.calls.add("open")

        def propose(self, view, limit):
            self.calls.add("propose")
            return super().propose(view, limit)

        def observe(self, view, seen):
            self.calls.add("observe")

        def close(self, view):
            self.calls.add("close")

    loaded = {name: Notes() for name in "abc"}
    with Engine(ToyTarget(V), list(loaded.items())) as one:
        found = one.generate(PROMPT, max_tokens=6, drafters=names)
    assert "".join(name for name, notes in loaded.items() if notes.calls) == shown
    assert all(notes.calls in (set(), {"open", "propose", "observe", "close"}) for notes in loaded.values())
    assert [p.drafter for p in found.record.steps[0].proposals] == list(shown)
    assert found.tokens == Engine(ToyTarget(V)).generate(PROMPT, max_tokens=6).tokens
