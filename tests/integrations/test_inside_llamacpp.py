"""Our drafters as a draft model of llama-cpp-python: the adapter alone, and, where there is one, in llama.cpp."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest

from augury.errors import InputError, UnknownName
from augury.integrations.alongside import Given
from augury.integrations.llamacpp import AuguryDraft

SURE = Given(0.0)


class Loop:
    """llama-cpp-python's loop around a draft model, for a target that says what it is told to."""

    def __init__(self, draft):
        self._draft, self._ids, self.steps = draft, np.zeros(4096, np.intc), 0

    def say(self, prompt, answer):
        n = len(prompt)
        self._ids[:n] = prompt
        at = self.steps = 0
        guesses = np.empty(0, np.intc)
        while at < len(answer):
            for guess in [*guesses[: len(answer) - at - 1].tolist(), None]:
                self._ids[n + at] = answer[at]
                at += 1
                if guess != answer[at - 1]:
                    break
            self.steps += 1
            guesses = self._draft(self._ids[: n + at])
            assert guesses.dtype == np.intc
            self._ids[n + at : n + at + len(guesses)] = guesses  # it writes them into the same buffer
        return self.steps


def test_guesses_what_was_said_before():
    draft = AuguryDraft(prices=SURE)
    chain = draft(np.array([5, 6, 7, 8, 9, 5, 6, 7], np.intc))
    assert chain[:2].tolist() == [8, 9]


def test_takes_fewer_steps_than_tokens_and_keeps_a_record():
    draft = AuguryDraft(prices=SURE)
    answer = [*range(3, 20), *range(3, 20)]
    steps = Loop(draft).say([*range(20)], answer)
    assert steps < len(answer) / 2
    assert draft.record.prompt_tokens == 20
    assert draft.record.completion_tokens >= len(answer) - 1
    assert draft.record.accepted >= len(answer) - steps


def test_another_text_is_another_request():
    draft = AuguryDraft("suffix", prices=SURE)
    loop = Loop(draft)
    loop.say([1, 2, 3, 4], [10, 11, 12, 13])
    first = draft.record
    loop.say([1, 2, 3, 4], [10, 11, 12, 13])  # again: nothing of the first is known to it
    assert draft.record is not first
    assert draft.record.accepted == 0
    # A chat that goes on: its prompt begins with the text before, and is longer by more than a step can bring.
    loop.say([1, 2, 3, 4, 10, 11, 12, 13, 30, 31, 32], [40, 41])
    assert draft.record.prompt_tokens == 11
    assert draft.record.completion_tokens == 2


def test_memory_knows_the_text_before():
    loop = Loop(AuguryDraft("memory", prices=SURE))
    answer = [*range(100, 130)]
    first = loop.say([1, 2, 3, 4], answer)
    assert loop.say([1, 2, 3, 4], answer) < first


def test_a_prediction_is_for_the_next_text_only():
    draft = AuguryDraft("prediction", prices=SURE)
    loop, answer = Loop(draft), [*range(100, 130)]
    draft.expect(answer)
    assert loop.say([1, 2, 3], answer) < 15
    assert loop.say([1, 2, 4], answer) == 30


def test_a_prediction_is_for_the_next_text_even_where_that_goes_on_from_the_last():
    draft = AuguryDraft("suffix,prediction", prices=SURE)
    loop, answer = Loop(draft), [*range(100, 130)]
    prompt = [1, 2, 3, 1, 2, 3, 1]
    loop.say(prompt, [2, 3, 1, 2])
    first = draft.record
    draft.expect(answer)
    # The prompt of the next text is the last one and a token more: what a step could have brought.
    assert loop.say([*prompt, 2, 3, 1, 2, 3], answer) < 15
    assert draft.record is not first
    assert loop.say([7, 8, 9], answer) == 30, "it was kept for later"


def test_measured_prices_draft_from_the_third_step_on():
    draft = AuguryDraft("suffix")
    loop = Loop(draft)
    loop.say([*range(20)], [*range(3, 20)] * 6)
    drafted = [step.drafted for step in draft.record.steps]
    assert not any(drafted[:3])
    assert any(drafted)


def test_a_text_of_one_token():
    assert AuguryDraft(prices=SURE)(np.array([3], np.intc)).shape == (0,)


@pytest.mark.parametrize("bad", [[-1], [0.5], [[1, 2]], [1 << 21], "text"])
def test_predictions_that_are_none(bad):
    with pytest.raises(InputError, match="it must be a list of token ids"):
        AuguryDraft("prediction").expect(bad)


def test_a_prediction_that_nobody_reads_is_refused():
    with pytest.raises(InputError, match="name that drafter: suffix,ngram,prediction"):
        AuguryDraft(["suffix", "ngram"]).expect([1, 2])


def test_prices_that_are_none():
    with pytest.raises(InputError, match="prices is 'given'; give Measured"):
        AuguryDraft(prices="given")


def test_drafters_that_cannot_be_had():
    for names in ("auto", "none", None, 3, [], np.zeros(2, np.intc)):
        with pytest.raises(InputError, match="such as suffix,ngram"):
            AuguryDraft(names)
    with pytest.raises(UnknownName, match="suffix"):
        AuguryDraft("sufix")
    with pytest.raises(InputError, match="recycle has no part in another engine"):
        AuguryDraft("recycle")
    with pytest.raises(InputError, match="foreign:smollm2-135m needs the target's tokenizer, and none is given"):
        AuguryDraft("foreign:smollm2-135m")


def test_our_module_does_without_llama_cpp():
    import subprocess
    import sys

    code = "import sys, augury.integrations.llamacpp; assert not {'llama_cpp', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- in llama.cpp; `make llamacpp` ----------------------------------------------------------------------

inside = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None or "AUGURY_GGUF" not in os.environ,
    reason="needs llama-cpp-python and a GGUF file; make llamacpp has both",
)
TEXTS = (
    "Repeat this three times: the quick brown fox jumps over the lazy dog.",
    "List the numbers from one to twenty, each on a line of its own.",
    "Say what a lighthouse is, in one sentence.",
)


@pytest.fixture(scope="module")
def models():
    import llama_cpp

    path = os.environ["AUGURY_GGUF"]
    options = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    draft = AuguryDraft("suffix", prices=SURE)
    assert isinstance(draft, llama_cpp.llama_speculative.LlamaDraftModel)
    return llama_cpp.Llama(path, **options), llama_cpp.Llama(path, draft_model=draft, **options), draft


def asked(model, text):
    written = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return model.tokenize(written.encode(), add_bos=False, special=True)


def said(model, text, n=64):
    model.reset()
    answer = []
    for token in model.generate(asked(model, text), temp=0.0):
        answer.append(token)
        if token == model.token_eos() or len(answer) == n:
            return answer
    return answer


@inside
def test_greedy_answers_are_those_of_llama_cpp_but_for_near_ties(models):
    plain, guessing, draft = models
    accepted = 0
    for text in TEXTS:
        expected, answer = said(plain, text), said(guessing, text)
        accepted += draft.record.accepted
        if answer != expected:
            place = next(i for i, (a, b) in enumerate(zip(answer, expected, strict=False)) if a != b)
            guessing.reset()
            guessing.eval([*asked(guessing, text), *expected[:place]])
            row = guessing.scores[guessing.n_tokens - 1]
            assert abs(row[answer[place]] - row[expected[place]]) < 0.25
    assert accepted > 20


@inside
def test_chat_completions_and_streams(models):
    _, guessing, draft = models
    wanted = {"messages": [{"role": "user", "content": TEXTS[0]}], "max_tokens": 48, "temperature": 0.0}
    whole = guessing.create_chat_completion(**wanted)["choices"][0]["message"]["content"]
    pieces = [
        p["choices"][0]["delta"].get("content", "") for p in guessing.create_chat_completion(**wanted, stream=True)
    ]
    assert "".join(pieces)[:12] == whole[:12]
    assert len(pieces) > 8
    assert draft.record.drafted > 0


@inside
def test_a_full_context_ends_the_text():
    import llama_cpp

    path = os.environ["AUGURY_GGUF"]
    draft = AuguryDraft(prices=SURE)
    model = llama_cpp.Llama(path, n_ctx=256, n_threads=1, draft_model=draft, verbose=False)
    answer = model.create_completion("one two three four " * 40, max_tokens=200, temperature=0.0)
    assert draft.record.accepted > 20
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 256
