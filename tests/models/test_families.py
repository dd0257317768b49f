"""Every family, with every switch it has, gives the logits that ``transformers`` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augury.errors import InputError, ModelError
from augury.models.families import FAMILIES, NotABlock, block_config
from augury.models.load import load_target
from augury.tree import DraftTree
from augury.tree import Path as Accepted

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0, 3.5],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
}  # fmt: skip
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-biased": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama-dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-yarn-mscale": ("llama", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.6}}),
    "llama-yarn-exact": ("llama", {"rope_parameters": YARN | {"truncate": False, "attention_factor": 0.9}}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "mistral": ("mistral", {"sliding_window": 12}),
    "mistral-full": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3-biased-typed": ("qwen3", {"attention_bias": True, "use_sliding_window": True, "sliding_window": 9,
                                     "layer_types": KINDS}),
    "phi3": ("phi3", {"hidden_size": 96}),
    "phi3-window-partial": ("phi3", {"hidden_size": 96, "sliding_window": 12,
                                     "partial_rotary_factor": 0.5}),
    "phi3-longrope": ("phi3", {"hidden_size": 96, "original_max_position_embeddings": 64,
                               "max_position_embeddings": 256, "rope_parameters": LONGROPE}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "hidden_size": 96}),
    "smollm3-window": ("smollm3", {"hidden_size": 96, "no_rope_layers": [1, 0, 1],
                                   "use_sliding_window": True, "sliding_window": 12}),
    "gemma2": ("gemma2", {"sliding_window": 12, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0,
                          "final_logit_softcapping": 5.0}),
    "gemma3_text": ("gemma3_text", {"sliding_window": 12, "query_pre_attn_scalar": 24, "num_hidden_layers": 7}),
    "gemma3_text-linear": ("gemma3_text", {
        "sliding_window": 12, "layer_types": KINDS,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }),
}  # fmt: skip

TOKENS = np.random.default_rng(0).integers(0, 256, 40).astype(np.int32)


def test_every_family_is_tried() -> None:
    assert {family for family, _ in CASES.values()} == set(FAMILIES)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, made_model: Any, reference: Any) -> None:
    family, changes = CASES[case]
    path = made_model(family, **changes)
    target = load_target(path, dtype="float32").target
    assert target.info.family == family
    assert "torch" in target.info.runner
    wanted = reference(path)(TOKENS)
    assert wanted.std() > 0.3  # the comparison below would accept anything if logits were all alike
    slot = target.open()
    chain = DraftTree.chain(TOKENS[1:], [0.5] * 39)
    rows = target.verify([slot], [int(TOKENS[0])], [chain]).logits[0]
    np.testing.assert_allclose(rows, wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_tree_after_prefill_in_chunks(case: str, made_model: Any, reference: Any) -> None:
    family, changes = CASES[case]
    path = made_model(family, **changes)
    target = load_target(path, dtype="float32").target
    slot = target.open()
    target.prefill(slot, TOKENS[:7])
    target.prefill(slot, TOKENS[7:33])
    tree = DraftTree.of([5, 9, 5, 7, 1, 2, 3], [-1, -1, 0, 0, 1, 2, 5], [0.5] * 7)
    root = int(TOKENS[33])
    rows = target.verify([slot], [root], [tree]).logits[0].copy()
    for row in range(len(tree) + 1):
        text = [*TOKENS[:33], root, *tree.tokens[tree.path(row - 1)]]
        np.testing.assert_allclose(rows[row], reference(path)(text)[-1], atol=1e-4, rtol=1e-5)
    target.commit([slot], [Accepted((0, 2, 5), 4)])
    after = target.verify([slot], [4], [DraftTree.empty()]).logits[0]
    text = [*TOKENS[:33], root, *tree.tokens[[0, 2, 5]], 4]
    np.testing.assert_allclose(after[0], reference(path)(text)[-1], atol=1e-4, rtol=1e-5)


def test_gemma3_with_an_image_tower_runs_its_text_model(made_model: Any, reference: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    family, changes = CASES["gemma3_text"]
    inner = made_model(family, **changes)
    tensors = load_file(inner / "model.safetensors")
    renamed = {name.replace("model.", "language_model.model.", 1): t for name, t in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    config = json.loads((inner / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))
    (tmp_path / "tokenizer.json").write_text((inner / "tokenizer.json").read_text())
    target = load_target(tmp_path, dtype="float32").target
    slot = target.open()
    target.prefill(slot, TOKENS[:-1])
    row = target.verify([slot], [int(TOKENS[-1])], [DraftTree.empty()]).logits[0][0]
    np.testing.assert_allclose(row, reference(inner)(TOKENS)[-1], atol=1e-4, rtol=1e-5)


BASE = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": None, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("case", ["qwen2-window", "smollm3", "smollm3-window", "gemma2", "gemma3_text"])
def test_layers_that_a_config_does_not_list(case: str, made_model: Any) -> None:
    """Files of the hub leave out what transformers derives and then writes down."""
    family, changes = CASES[case]
    listed = json.loads((made_model(family, **changes) / "config.json").read_text())
    derived = {"layer_types", "no_rope_layers"} - set(changes)
    short = {key: value for key, value in listed.items() if key not in derived}
    assert len(short) < len(listed)
    a, b = block_config(listed), block_config(short)
    assert (a.windows, a.ropes) == (b.windows, b.ropes)
    assert len(set(a.windows)) == 2 or len(set(a.ropes)) == 2


def test_old_and_new_rope_keys_mean_the_same() -> None:
    old = block_config(BASE | {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"rope_theta": None}})
    new = block_config(BASE | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}})
    np.testing.assert_array_equal(old.rope_tables[0].cos, new.rope_tables[0].cos)
    other = block_config(BASE | {"rope_parameters": LLAMA3})
    assert np.abs(old.rope_tables[0].cos - other.rope_tables[0].cos).max() > 0.1


def test_old_gemma3_keys() -> None:
    base = BASE | {"model_type": "gemma3_text", "head_dim": 8, "num_key_value_heads": 1}
    old = block_config(base | {"rope_theta": 3e5, "rope_local_base_freq": 2e4, "sliding_window_pattern": 2})
    new = block_config(
        base
        | {
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 3e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        }
    )
    assert old.ropes == new.ropes == (1, 0)
    assert old.windows == new.windows == (4096, 0)
    for a, b in zip(old.rope_tables, new.rope_tables, strict=True):
        np.testing.assert_array_equal(a.sin, b.sin)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mixtral"}, "mixtral"),
        ({"model_type": None}, "None"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"sliding_window": 4}, "sliding_window"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "mrope", "mrope_section": [1, 2]}}, "mrope"),
        ({"rope_scaling": {"type": "proportional"}}, "proportional"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "qwen2", "layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"model_type": "mistral", "layer_types": ["sliding_attention"] * 2}, "layer_types"),
    ],
)
def test_other_arithmetic_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(NotABlock, match=named) as refused:
        block_config(BASE | changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_key_value_heads": 3, "num_attention_heads": 4}, "4 attention heads"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "1 layer_types for 2 layers"),
        ({"vocab_size": [3]}, r"vocab_size = \[3\]"),
        ({"num_hidden_layers": 1 << 40}, "from 1 to 1024"),
        ({"rms_norm_eps": "tiny"}, "wrong kind"),
        ({"rope_scaling": "big"}, "wrong kind"),
    ],
)
def test_damaged_configs_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        block_config(BASE | changes)


def test_switches_that_are_off_do_not_matter() -> None:
    plain = block_config(BASE)
    noisy = block_config(BASE | {"num_local_experts": None, "use_moe": False, "_name_or_path": "x", "torch_dtype": "y"})
    assert plain.windows == noisy.windows


def test_context() -> None:
    assert block_config(BASE).context == 64
    assert block_config(BASE | {"max_position_embeddings": 1 << 17}).context == 8192
    assert block_config(BASE, 10).context == 10
    for wrong in (0, 65):
        with pytest.raises(InputError, match=f"max_model_len {wrong} is not between 1 and 64"):
            block_config(BASE, wrong)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_kinds_that_change_with_length_stop_where_they_would_change(kind: str) -> None:
    config = BASE | {"model_type": "phi3" if kind == "longrope" else "llama", "original_max_position_embeddings": None}
    if kind == "longrope":
        config |= {"max_position_embeddings": 256, "original_max_position_embeddings": 48}
        config |= {"rope_scaling": {"type": "longrope", "short_factor": [1] * 4, "long_factor": [2] * 4}}
        limit = 48
    else:
        config |= {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
        limit = 64
    assert block_config(config).context == limit
    with pytest.raises(InputError, match=f"between 1 and {limit}"):
        block_config(config, limit + 1)


def test_yarn_reaches_factor_times_the_original_length() -> None:
    assert block_config(BASE | {"rope_scaling": YARN}).context == 128
