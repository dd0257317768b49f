"""Our drafters inside ``transformers``: its texts stay what they are, its options mean what they mean."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import chi2
from tiny import SHAPE, byte_tokenizer, randomise
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, StoppingCriteriaList

from augury.bench.exported import transformers_model
from augury.bench.prompts import own
from augury.errors import CannotRollBack, InputError, UnknownName
from augury.integrations.alongside import Given
from augury.integrations.transformers import drafted

END = 2  # of the real model: <|im_end|>


def small(seed=0, family=LlamaForCausalLM, config=LlamaConfig, **changes):
    shape = SHAPE | {"eos_token_id": None, "attn_implementation": "eager"} | changes
    model = family(config(**shape)).eval()
    randomise(model, seed)
    return model


@pytest.fixture(scope="module")
def tiny_model():
    return small()


@pytest.fixture(scope="module")
def tokens():
    return PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())


def prompt(n=24, seed=0, vocab=250):
    return torch.from_numpy(np.random.default_rng(seed).integers(1, vocab, (1, n)))


def both(model, ids, specs="suffix", prices=None, prediction=None, tokenizer=None, **options):
    """Plain tokens, drafted tokens, the record."""
    given = {"max_new_tokens": 40, "do_sample": False, "attention_mask": torch.ones_like(ids), "pad_token_id": 271}
    given |= options | ({"tokenizer": tokenizer} if tokenizer else {})
    made = drafted(model, specs, prices=prices or Given(0.0), tokenizer=tokenizer)
    kept = given | ({"prediction": prediction} if prediction is not None else {})
    drawn = made.generate(ids, **kept)
    return model.generate(ids, **given), drawn, made.drafts.record


def told(plain, prompt_length):
    """The answer in ids; what stands in for a prediction that is right."""
    return plain[0, prompt_length:].tolist()


# ---- the real model -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    return transformers_model("smollm2-135m").float()


@pytest.fixture(scope="module")
def real_tokens(loaded):
    backend = type(byte_tokenizer()).from_str(loaded.tokenizer._backend.to_str())
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")


def asked(loaded, id):
    """One of the benchmark's prompts in ids."""
    (found,) = (p for p in own() if p.id == id)
    return torch.from_numpy(np.asarray(loaded.render(found.text), np.int64))[None]


@pytest.mark.parametrize("id", ["extraction-1", "coding-1", "chinese-1"])
def test_real_answers_are_those_of_plain_generate(real, loaded, id):
    ids = asked(loaded, id)
    plain, drawn, record = both(real, ids, eos_token_id=END, max_new_tokens=40)
    assert torch.equal(plain, drawn)
    assert record.completion_tokens == drawn.shape[1] - ids.shape[1]
    assert record.drafted > 0
    assert record.accepted > 0


def test_a_prediction_in_text_speeds_up_an_edit(real, loaded, real_tokens):
    ids = asked(loaded, "coding-1")
    options = {"eos_token_id": END, "max_new_tokens": 48}
    words = real_tokens.decode(answer_of(real, ids, **options)).split(" ")
    expected = " ".join([*words[:8], "something", *words[9:]])
    plain, drawn, record = both(real, ids, "prediction", prediction=expected, tokenizer=real_tokens, **options)
    assert torch.equal(plain, drawn)
    assert record.acceptance_length > 2


def test_measured_prices_draft_from_the_third_step_on(real, loaded):
    ids = asked(loaded, "coding-1")
    expected = answer_of(real, ids, 32)
    made = drafted(real, "prediction")
    options = {"do_sample": False, "attention_mask": torch.ones_like(ids), "eos_token_id": END, "pad_token_id": 271}
    drawn = made.generate(ids, max_new_tokens=32, prediction=expected, **options)
    assert told(drawn, ids.shape[1]) == expected
    steps = made.drafts.record.steps
    assert not any(step.drafted for step in steps[:4])
    assert made.drafts.record.accepted > 0
    assert all(step.verify_ms > 0 for step in steps)


# ---- what ends a text, what changes its law -------------------------------------------------------------


def answer_of(model, ids, n=40, **options):
    options = {"max_new_tokens": n, "do_sample": False, "attention_mask": torch.ones_like(ids)} | options
    return told(model.generate(ids, **options), ids.shape[1])


@pytest.mark.parametrize("n", range(1, 12))
def test_the_limit_may_fall_inside_a_chain(tiny_model, n):
    ids = prompt()
    expected = answer_of(tiny_model, ids, 20)
    plain, drawn, record = both(tiny_model, ids, "prediction", prediction=expected, max_new_tokens=n)
    assert torch.equal(plain, drawn)
    assert drawn.shape[1] == ids.shape[1] + n
    assert record.drafted >= min(n - 1, 1)


@pytest.mark.parametrize("place", range(1, 9))
def test_an_end_token_inside_a_chain_ends_the_text(tiny_model, place):
    ids = prompt(seed=3)
    expected = answer_of(tiny_model, ids)
    end = expected[place]
    plain, drawn, record = both(tiny_model, ids, "prediction", prediction=expected, eos_token_id=[end, 271])
    assert torch.equal(plain, drawn)
    assert told(drawn, ids.shape[1])[-1] == end
    assert record.accepted > 0 or expected.index(end) < 2


@pytest.mark.parametrize("place", [2, 3, 5, 8, 13])
def test_stop_strings_end_a_text_where_they_end_a_plain_one(tiny_model, tokens, place):
    letters = {"suppress_tokens": list(range(94, 272))}  # the others are no text by themselves
    ids = prompt(seed=5)
    expected = answer_of(tiny_model, ids, **letters)
    stop = tokens.decode(expected[place : place + 2])
    plain, drawn, record = both(
        tiny_model, ids, "prediction", prediction=expected, stop_strings=[stop], tokenizer=tokens, **letters
    )
    assert torch.equal(plain, drawn)
    assert drawn.shape[1] < ids.shape[1] + 40
    assert record.accepted > 0


def test_a_criterion_of_ones_own_ends_a_text_where_it_ends_a_plain_one(tiny_model):
    ids = prompt(seed=6)
    expected = answer_of(tiny_model, ids)
    wanted = expected[9]
    stops = StoppingCriteriaList([lambda text, scores, **_: torch.tensor([text[0, -1] == wanted])])
    plain, drawn, record = both(tiny_model, ids, "prediction", prediction=expected, stopping_criteria=stops)
    assert torch.equal(plain, drawn)
    assert drawn.shape[1] == ids.shape[1] + expected.index(wanted) + 1
    assert record.accepted > 0


def test_a_criterion_that_reads_scores_is_not_asked_to_judge_guesses(tiny_model):
    ids = prompt(seed=6)
    stops = StoppingCriteriaList([lambda text, scores, **_: torch.tensor([bool(scores[-1].max() > 1e9)])])
    plain, drawn, record = both(
        tiny_model, ids, stopping_criteria=stops, output_scores=True, return_dict_in_generate=True
    )
    assert torch.equal(plain.sequences, drawn.sequences)
    assert len(record.steps) == 40


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 3},
        {"min_new_tokens": 12, "eos_token_id": 17},
        {"bad_words_ids": [[5], [7, 9]]},
        {"suppress_tokens": [1, 2, 3]},
        {"sequence_bias": {(11,): 3.0}},
        {"exponential_decay_length_penalty": (5, 1.2), "eos_token_id": 30},
        {"cache_implementation": "static"},
        {"renormalize_logits": True},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("seed", [0, 1])
def test_options_mean_what_they_mean(tiny_model, options, seed):
    ids = prompt(seed=seed)
    expected = told(
        tiny_model.generate(ids, do_sample=False, max_new_tokens=40, pad_token_id=271, **options), ids.shape[1]
    )
    plain, drawn, record = both(tiny_model, ids, "suffix,prediction", prediction=expected, **options)
    assert torch.equal(plain, drawn)
    assert record.accepted > 0


def test_scores_and_hidden_states_are_given_for_every_token(tiny_model):
    ids = prompt()
    wanted = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "output_hidden_states": True,
    }
    expected = answer_of(tiny_model, ids)
    plain, drawn, record = both(tiny_model, ids, "prediction", prediction=expected, **wanted)
    assert record.accepted > 0
    assert len(drawn.scores) == len(drawn.logits) == len(drawn.hidden_states) == 40
    for a, b in zip(plain.scores, drawn.scores, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_what_may_follow_is_asked_of_allowed_texts_only(tiny_model):
    ids = prompt()
    start = ids.shape[1]

    def allowed(batch, text):
        """Even and odd tokens in turn; chokes on any other text."""
        answer = text[start:].tolist()
        if any(token % 2 != place % 2 for place, token in enumerate(answer)):
            raise KeyError(answer)
        return list(range(len(answer) % 2, 250, 2))

    options = {"prefix_allowed_tokens_fn": allowed}
    expected = told(tiny_model.generate(ids, do_sample=False, max_new_tokens=40, **options), start)
    wrong = [*expected[:6], expected[6] ^ 1, *expected[7:]]
    plain, drawn, record = both(tiny_model, ids, "prediction", prediction=wrong, **options)
    assert torch.equal(plain, drawn)
    assert record.accepted > 5


class Streamer(transformers.generation.BaseStreamer):
    def __init__(self, fails=False):
        self.tokens, self.ended, self.fails = [], False, fails

    def put(self, value):
        self.tokens += value.flatten().tolist()
        if self.fails and len(self.tokens) > 30:
            raise RuntimeError("gone")

    def end(self):
        self.ended = True


def test_a_streamer_gets_every_token_and_the_end(tiny_model):
    streamer = Streamer()
    _, drawn, record = both(tiny_model, prompt(), streamer=None)
    again = drafted(tiny_model, prices=Given(0.0)).generate(
        prompt(), max_new_tokens=40, do_sample=False, pad_token_id=271, streamer=streamer
    )
    assert torch.equal(drawn, again)
    assert streamer.tokens == drawn[0].tolist()
    assert streamer.ended
    assert record.accepted > 0


def test_a_call_that_fails_is_forgotten_and_the_next_is_whole(tiny_model):
    made = drafted(tiny_model, prices=Given(0.0))
    with pytest.raises(RuntimeError, match="gone"):
        made.generate(prompt(), max_new_tokens=40, do_sample=False, pad_token_id=271, streamer=Streamer(fails=True))
    assert 0 < made.drafts.record.completion_tokens < 40
    drawn = made.generate(prompt(), max_new_tokens=40, do_sample=False, pad_token_id=271)
    assert told(drawn, 24) == answer_of(tiny_model, prompt())


# ---- the law --------------------------------------------------------------------------------------------


def test_sampled_texts_follow_the_exact_law():
    """Two tokens of a model with eight, drawn 1,200 times with guesses for both, against the law by the logits."""
    model = small(seed=1, vocab_size=8, bos_token_id=None)
    ids, warped = torch.tensor([[1, 2, 3, 1]]), {"temperature": 1.4, "top_k": 6}
    made = drafted(model, "prediction", prices=Given(0.0))
    torch.manual_seed(0)
    options = {"do_sample": True, "max_new_tokens": 3, "pad_token_id": 271, "attention_mask": torch.ones_like(ids)}
    seen, drafted_tokens, accepted, runs = np.zeros((8, 8)), 0, 0, 1200
    for _ in range(runs):
        a, b, _ = made.generate(ids, prediction=[4, 2, 6], **options, **warped)[0, 4:].tolist()
        seen[a, b] += 1
        drafted_tokens += made.drafts.record.drafted
        accepted += made.drafts.record.accepted
    assert drafted_tokens > runs
    assert 0 < accepted < drafted_tokens

    def law(text, temperature, k):
        with torch.no_grad():
            logits = model(torch.tensor([text])).logits[0, -1].double() / temperature
        logits[logits < logits.topk(k).values[-1]] = -torch.inf
        return logits.softmax(-1).numpy()

    def improbable(temperature, k):
        first = law([1, 2, 3, 1], temperature, k)
        joint = np.stack([first[a] * law([1, 2, 3, 1, a], temperature, k) for a in range(8)])
        assert not seen[joint == 0].any() or (temperature, k) != (1.4, 6)
        expected = runs * joint[joint > 0]
        statistic = float(((seen[joint > 0] - expected) ** 2 / expected).sum())
        return float(chi2.sf(statistic, len(expected) - 1))

    assert improbable(1.4, 6) > 1e-3
    assert improbable(1.0, 6) < 1e-6  # it would be noticed


# ---- many models, caches, callers -----------------------------------------------------------------------


@pytest.mark.parametrize("cache", [None, "static"])
def test_windows_roll_back(cache):
    from transformers import MistralConfig, MistralForCausalLM

    model = small(family=MistralForCausalLM, config=MistralConfig, sliding_window=12 if cache is None else 100)
    expected = answer_of(model, prompt(30), 60)
    expected[7::10] = [1] * len(expected[7::10])
    options = {"cache_implementation": cache, "max_new_tokens": 60}
    plain, drawn, record = both(model, prompt(30), "prediction", prediction=expected, **options)
    assert torch.equal(plain, drawn)
    assert record.drafted > record.accepted > 0


def test_a_static_window_cannot_forget_and_nothing_is_computed():
    from transformers import MistralConfig, MistralForCausalLM

    model = small(family=MistralForCausalLM, config=MistralConfig, sliding_window=12)
    with (
        computing_nothing(model),
        pytest.raises(CannotRollBack, match=r"StaticSlidingWindowLayer, which cannot forget"),
    ):
        drafted(model).generate(prompt(), max_new_tokens=40, cache_implementation="static")


def test_a_recurrent_model_is_refused_at_once():
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(CannotRollBack, match="MambaForCausalLM keeps a recurrent state"):
        drafted(model)


def test_encoders_and_embeddings(tiny_model):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    model = T5ForConditionalGeneration(config).eval()
    randomise(model, 0)
    plain, drawn, record = both(model, prompt(vocab=60))
    assert torch.equal(plain, drawn)
    assert record.accepted > 0
    embedded = {"inputs_embeds": tiny_model.get_input_embeddings()(prompt()), "max_new_tokens": 40, "do_sample": False}
    made = drafted(tiny_model, prices=Given(0.0))
    assert torch.equal(made.generate(**embedded, pad_token_id=271), tiny_model.generate(**embedded, pad_token_id=271))
    assert made.drafts.record.drafted > 0


def test_a_conversation_goes_on_with_its_cache(tiny_model):
    made = drafted(tiny_model, prices=Given(0.0))
    cache = transformers.DynamicCache(config=tiny_model.config)
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 271}
    first = made.generate(prompt(), cache=cache, **options)
    longer = torch.cat([first, prompt(6, seed=9)], dim=1)
    second = made.generate(longer, cache=cache, **options)
    assert torch.equal(second, tiny_model.generate(longer, **options))
    assert made.drafts.record.prompt_tokens == longer.shape[1]
    assert made.drafts.record.drafted > 0
    assert cache.get_seq_length() == second.shape[1] - 1
    with computing_nothing(tiny_model), pytest.raises(InputError, match="the cache holds 69 tokens and 24 are given"):
        made.generate(prompt(), cache=cache, **options)


def test_the_model_given_stays_as_it_was(tiny_model):
    before = tiny_model.generation_config.to_dict()
    made = drafted(tiny_model)
    made.generate(prompt(), max_new_tokens=8, do_sample=False, pad_token_id=271)
    assert tiny_model.generation_config.to_dict() == before
    assert type(tiny_model) is LlamaForCausalLM
    assert isinstance(made, LlamaForCausalLM)
    assert type(made).__name__ == "LlamaForCausalLM"
    assert made.lm_head.weight.data_ptr() == tiny_model.lm_head.weight.data_ptr()
    assert not hasattr(tiny_model, "drafts")


def test_a_pipeline_runs_it(tiny_model, tokens):
    options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 271, "return_full_text": False}
    made = drafted(tiny_model, "prediction", prices=Given(0.0))
    text = "abcabcabcabc"
    plain = transformers.pipeline("text-generation", model=tiny_model, tokenizer=tokens)(text, **options)
    expected = answer_of(tiny_model, tokens(text, return_tensors="pt")["input_ids"])
    drawn = transformers.pipeline("text-generation", model=made, tokenizer=tokens)(text, prediction=expected, **options)
    assert plain == drawn
    assert made.drafts.record.accepted > 0


def test_calls_on_two_threads_keep_apart(tiny_model):
    made, drawn = drafted(tiny_model, "suffix,memory", prices=Given(0.0)), {}

    def ask(seed):
        drawn[seed] = told(made.generate(prompt(seed=seed), max_new_tokens=40, do_sample=False, pad_token_id=271), 24)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drawn == {seed: answer_of(tiny_model, prompt(seed=seed)) for seed in range(4)}


def test_a_text_is_forgotten_unless_memory_is_named(tiny_model):
    ids = torch.arange(20)[None]
    steps = {}
    for specs in ("suffix", "memory"):
        made = drafted(tiny_model, specs, prices=Given(0.0))
        records = []
        for _ in range(2):
            made.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=271, cache_salt="me")
            records.append(made.drafts.record)
        made.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=271, cache_salt="you")
        records.append(made.drafts.record)
        steps[specs] = [len(record.steps) for record in records]
    first, second, stranger = steps["suffix"]
    assert first == second == stranger
    first, second, stranger = steps["memory"]
    assert second < first == stranger


# ---- what is refused ------------------------------------------------------------------------------------


class computing_nothing:
    """Within it a forward is a mistake."""

    def __init__(self, model):
        def fail(*args):
            raise AssertionError("something was computed")

        self._hook = model.register_forward_pre_hook(fail)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self._hook.remove()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_beams": 3}, "num_beams is 3; a drafted model takes 1"),
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences is 2"),
        ({"use_cache": False}, "use_cache is False"),
        ({"assistant_early_exit": 1}, "assistant_early_exit has no part"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens has no part"),
        ({"assistant_model": object()}, "assistant_model has no part"),
        ({"custom_generate": "group-beam-search"}, "custom_generate has no part"),
        ({"prediction": [1, 2]}, "no drafter reads a prediction; name that drafter: suffix,prediction"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_before_anything_is_computed(tiny_model, options, says):
    made = drafted(tiny_model)
    with computing_nothing(tiny_model), pytest.raises(InputError, match=says):
        made.generate(prompt(), max_new_tokens=4, pad_token_id=271, **options)
    assert made.drafts.record is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"watermarking_config": transformers.SynthIDTextWatermarkingConfig(keys=[1, 2, 3], ngram_len=3)},
            "SynthIDTextWatermarkLogitsProcessor remembers .*; leave watermarking_config out",
        ),
        ({"guidance_scale": 1.5}, "remembers the texts it is shown, .*; leave guidance_scale out"),
    ],
)
def test_processors_that_remember_rejected_guesses_are_refused_before_anything_is_computed(tiny_model, options, says):
    made = drafted(tiny_model)
    with computing_nothing(tiny_model), pytest.raises(InputError, match=says) as caught:
        made.generate(prompt(), max_new_tokens=4, pad_token_id=271, do_sample=True, **options)
    assert "\n" not in str(caught.value)
    assert made.drafts.record is None


def test_several_prompts_at_once_are_refused_before_anything_is_computed(tiny_model):
    with computing_nothing(tiny_model), pytest.raises(InputError, match="2 prompts at once; a drafted model takes one"):
        drafted(tiny_model).generate(prompt().repeat(2, 1), max_new_tokens=4, pad_token_id=271)


@pytest.mark.parametrize(
    ("prediction", "says"),
    [
        ("some text", "needs the model's tokenizer"),
        ([5, 999], r"prediction is \[5, 999\]; it must be token ids in 0\.\.271"),
        ([-1], "must be token ids"),
        ([0.5], "must be token ids"),
        ({"a": 1}, "it must be text or token ids"),
    ],
)
def test_predictions_that_are_none(tiny_model, prediction, says):
    with pytest.raises(InputError, match=says):
        drafted(tiny_model, "prediction").generate(prompt(), prediction=prediction, max_new_tokens=4)


@pytest.mark.parametrize("prediction", [3, [[5, 6], [7, 8]]])
def test_a_prediction_is_of_one_text(tiny_model, prediction):
    with pytest.raises(InputError, match=r"prediction has the shape \[.*\]; give text, or the ids of one text"):
        drafted(tiny_model, "prediction").generate(prompt(), prediction=prediction, max_new_tokens=4)


@pytest.mark.parametrize("shape", [list, torch.tensor, lambda ids: torch.tensor([ids])])
def test_a_prediction_in_ids_is_a_list_or_a_tensor(tiny_model, shape):
    plain, drawn, record = both(tiny_model, prompt(), "prediction", prediction=shape([5, 6, 7]))
    assert torch.equal(plain, drawn)
    assert record.completion_tokens == 40


def test_drafters_may_be_a_list(tiny_model):
    plain, drawn, record = both(tiny_model, prompt(), ["suffix", "ngram:min=1,max=3"])
    assert torch.equal(plain, drawn)
    assert record.steps


@pytest.mark.parametrize("given", ["tokenizer", 3])
def test_what_is_no_tokenizer_is_refused(tiny_model, given):
    with pytest.raises(InputError, match="as AutoTokenizer"):
        drafted(tiny_model, tokenizer=given)
    with pytest.raises(InputError, match="as AutoTokenizer"):
        drafted(tiny_model, "prediction").generate(prompt(), prediction="text", tokenizer=given, max_new_tokens=4)


def test_a_tokenizer_with_nothing_inside_is_told_from_none(tiny_model):
    def words(text, **_):
        return {"input_ids": [5]}

    with pytest.raises(
        InputError, match="foreign:smollm2-135m needs a tokenizer with a backend_tokenizer, and function"
    ):
        drafted(tiny_model, "suffix,foreign:smollm2-135m", tokenizer=words)
    assert drafted(tiny_model, "prediction", tokenizer=words).drafts.ids("text", None).tolist() == [5]


def test_prices_that_are_none(tiny_model):
    with pytest.raises(InputError, match=r"prices is 0\.1; give Measured"):
        drafted(tiny_model, prices=0.1)


def test_drafters_that_cannot_be_had(tiny_model):
    with pytest.raises(UnknownName, match="suffix"):
        drafted(tiny_model, "sufix")
    for names in ("auto", "none", "suffix,auto", "", None, 3, [3], []):
        with pytest.raises(InputError, match="such as suffix,ngram") as caught:
            drafted(tiny_model, names)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="eagle has no part in another engine"):
        drafted(tiny_model, "suffix,eagle")


def test_models_that_cannot_be_had(tiny_model):
    with pytest.raises(InputError, match="LlamaForCausalLM is drafted already"):
        drafted(drafted(tiny_model))
    for name in ("smollm2-135m", LlamaForCausalLM):
        with pytest.raises(InputError, match="give a model, as AutoModelForCausalLM"):
            drafted(name)
    with pytest.raises(InputError, match="Linear has no generate of transformers"):
        drafted(torch.nn.Linear(2, 2))
