"""vLLM's keys, one by one: honoured, true anyway, or refused by name; never passed over."""

from __future__ import annotations

import json

import pytest

from augury.errors import InputError, UnknownName
from augury.server.speculative import _HONOURED, _TRUE_ANYWAY, METHODS, Speculation, parse, speculation

VLLM_KEYS = """
    enforce_eager num_speculative_tokens model method draft_tensor_parallel_size tensor_parallel_size quantization
    moe_backend attention_backend kv_cache_dtype max_model_len revision code_revision index_share_for_mtp_iteration
    disable_padded_drafter_batch disable_eagle_block_drop use_local_argmax_reduction use_heterogeneous_vocab
    prompt_lookup_max prompt_lookup_min parallel_drafting num_speculative_tokens_per_batch_size
    suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor
    suffix_decoding_min_token_prob draft_load_config rejection_sample_method synthetic_acceptance_rates
    synthetic_acceptance_length enable_adaptive_verification draft_sample_method dspark_draft_topk
""".split()  # fields of SpeculativeConfig in vllm/config/speculative.py (0.32) that a user sets


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"method": "ngram"}, Speculation("ngram:min=5,max=5")),
        (
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
            Speculation("ngram:min=2,max=4", None, 5),
        ),
        ({"method": "ngram", "prompt_lookup_max": 3}, Speculation("ngram:min=3,max=3")),
        ({"model": "ngram", "prompt_lookup_min": 3}, Speculation("ngram:min=3,max=3")),
        ({"model": "[ngram]", "draft_sample_method": "greedy"}, Speculation("ngram:min=5,max=5")),
        ({"method": "suffix", "num_speculative_tokens": 24}, Speculation("suffix", None, 24)),
        ({"method": "suffix", "suffix_decoding_max_cached_requests": 0}, Speculation("suffix")),
        (
            {"method": "draft_model", "model": "/m/small", "num_speculative_tokens": 6, "max_model_len": 2048},
            Speculation("model:/m/small,depth=6,context=2048", None, 6),
        ),
        (
            {"method": "draft_model", "model": "x", "use_heterogeneous_vocab": True, "num_speculative_tokens": 2},
            Speculation("foreign:x,depth=2", None, 2),
        ),
        ({"method": "draft_model", "model": "x", "use_heterogeneous_vocab": False}, Speculation("model:x")),
        ({"method": "eagle3", "model": "h", "num_speculative_tokens": 3}, Speculation("eagle:h,depth=3", None, 3)),
        ({"method": "medusa", "model": "h"}, Speculation("medusa:h")),
        ({"method": "medusa", "model": "h", "rejection_sample_method": "block"}, Speculation("medusa:h", "block")),
        (
            {"method": "draft_model", "model": "x", "rejection_sample_method": "standard",
             "draft_sample_method": "probabilistic"},
            Speculation("model:x", "rejection"),
        ),
        (
            {"method": "suffix", "enforce_eager": True, "draft_tensor_parallel_size": 1, "quantization": None,
             "kv_cache_dtype": "auto", "enable_adaptive_verification": True},
            Speculation("suffix"),
        ),
    ],
)  # fmt: skip
def test_what_a_config_means(config, expected):
    assert speculation(parse(json.dumps(config))) == expected


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "has no method; give one of ngram, suffix, draft_model, eagle3, medusa"),
        ({"model": "x", "num_speculative_tokens": 3}, "has no method"),
        ({"method": "ngrm"}, "did you mean 'ngram'"),
        ({"method": "eagle", "model": "x"}, "use eagle3"),
        ({"method": "ngram_gpu"}, "use ngram"),
        ({"method": "deepseek_mtp"}, "method deepseek_mtp cannot be honoured"),
        ({"method": "custom_class", "model": "a.B"}, "--drafters module:Class"),
        ({"method": "ngram", "prompt_lookup_mx": 3}, "did you mean 'prompt_lookup_max'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens is 0"),
        ({"method": "ngram", "num_speculative_tokens": 65}, "from 1 to 64"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens is True"),
        ({"method": "ngram", "num_speculative_tokens": "5"}, "num_speculative_tokens is '5'"),
        ({"method": "ngram", "prompt_lookup_min": 1.5}, "prompt_lookup_min is 1.5"),
        ({"method": "ngram", "model": "x"}, "method ngram takes no model"),
        ({"method": "suffix", "model": "x"}, "method suffix takes no model"),
        ({"method": "suffix", "prompt_lookup_min": 2}, "prompt_lookup_min is of method ngram"),
        ({"method": "suffix", "suffix_decoding_max_cached_requests": 100}, "--drafters suffix,memory"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 0.1}, "suffix_decoding_min_token_prob 0.1 cannot"),
        ({"method": "suffix", "draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size 2 cannot be honoured"),
        ({"method": "suffix", "draft_tensor_parallel_size": True}, "draft_tensor_parallel_size True cannot"),
        ({"method": "suffix", "draft_sample_method": "probabilistic"}, "copies what it finds"),
        ({"method": "draft_model"}, "needs model, the directory of a draft model"),
        ({"method": "eagle3", "model": ""}, "a head of kind eagle"),
        ({"method": "eagle3", "model": "x", "max_model_len": 9}, "max_model_len is of method draft_model"),
        ({"method": "draft_model", "model": "a,b=1"}, "has a comma"),
        ({"method": "draft_model", "model": "x", "use_heterogeneous_vocab": 1}, "must be true or false"),
        ({"method": "draft_model", "model": "x", "draft_sample_method": "greedy"}, "draws with the target's own noise"),
        ({"method": "suffix", "rejection_sample_method": "synthetic"}, "every token of an answer is the target's"),
        ({"method": "suffix", "rejection_sample_method": "blok"}, "did you mean 'block'"),
        ({"method": "suffix", "synthetic_acceptance_length": 3.0}, "synthetic_acceptance_length 3.0 cannot"),
    ],
)
def test_what_cannot_be_honoured_is_named(config, said):
    with pytest.raises(InputError) as caught:
        speculation(parse(json.dumps(config)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_key_of_vllm_is_known():
    assert sorted([*_HONOURED, *_TRUE_ANYWAY]) == sorted(VLLM_KEYS)


@pytest.mark.parametrize("key", sorted(_TRUE_ANYWAY))
def test_no_key_is_passed_over(key):
    so, _ = _TRUE_ANYWAY[key]
    assert speculation({"method": "suffix", key: None}) == Speculation("suffix")
    for value in so:
        assert speculation({"method": "suffix", key: value}) == Speculation("suffix")
    with pytest.raises(InputError, match=f"{key} 'something' cannot be honoured"):
        speculation({"method": "suffix", key: "something"})


def test_every_method_is_a_drafter():
    from augury.drafters import DRAFTERS

    assert set(METHODS.values()) <= set(DRAFTERS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON: "),
        ("ngram", "is not JSON: "),
        ('["ngram"]', "give an object"),
        ('{"method": "ngram", "method": "suffix"}', "names method twice"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_what_is_no_config(text, said):
    with pytest.raises(InputError, match=said):
        parse(text)


def test_an_unknown_key_is_an_unknown_name():
    with pytest.raises(UnknownName):
        speculation({"method": "suffix", "target_model_config": 1})
