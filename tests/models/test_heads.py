"""Draft heads on disk: what comes back, what vLLM would find, what is refused, what survives a failure."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from augury.errors import InputError, ModelError
from augury.models.heads import (
    Head,
    HeadConfig,
    check_head,
    draft_vocabulary,
    export_head,
    read_head,
    shapes,
    vocabulary_maps,
    write_head,
)
from augury.models.target import TargetInfo

D, F, Q, KV, HD, V = 12, 20, 3, 1, 8, 40
SHAPES = {
    "fc.weight": (D, 3 * D),
    "layers.0.input_layernorm.weight": (D,),
    "layers.0.hidden_norm.weight": (D,),
    "layers.0.self_attn.q_proj.weight": (Q * HD, 2 * D),
    "layers.0.self_attn.k_proj.weight": (KV * HD, 2 * D),
    "layers.0.self_attn.v_proj.weight": (KV * HD, 2 * D),
    "layers.0.self_attn.o_proj.weight": (D, Q * HD),
    "layers.0.post_attention_layernorm.weight": (D,),
    "layers.0.mlp.gate_proj.weight": (F, D),
    "layers.0.mlp.up_proj.weight": (F, D),
    "layers.0.mlp.down_proj.weight": (D, F),
    "norm.weight": (D,),
}
IDS = (0, 3, 4, 17, 39)
AHEAD = ("block", "medusa")
G = 3  # places of such a head


def a_head(ids: tuple[int, ...] = IDS, own_rows: bool = False, seed: int = 0, **changes: Any) -> Head:
    made = torch.Generator().manual_seed(seed)
    shapes = SHAPES | ({"lm_head.weight": (len(ids), D)} if own_rows else {})
    weights = {name: torch.randn(shape, generator=made).bfloat16() for name, shape in shapes.items()}
    config = HeadConfig("eagle", D, F, Q, KV, HD, 1e-5, 1e5, (1, 2, 5), V, "smol", "d1")
    return Head(replace(config, **changes), weights, np.asarray(ids, np.int32))


def ahead(kind: str, own_rows: bool = False, **changes: Any) -> Head:
    """A head that guesses all places in one forward."""
    config = replace(a_head().config, kind=kind, guesses=G, mask_token=39 if kind == "block" else 0)
    left_out = {"d2t", "t2d", "embed_tokens.weight"} | (set() if own_rows else {"lm_head.weight"})
    made = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(shape, generator=made).bfloat16()
        for name, (shape, _) in shapes(config, len(IDS)).items()
        if name not in left_out
    }
    return Head(replace(config, **changes), weights, np.asarray(IDS, np.int32))


def an_info(**changes: Any) -> TargetInfo:
    info = TargetInfo("smol", "llama", "native", "bfloat16", V, 128, D, 6, 1000, 2000, True, True, digest="d1")
    return replace(info, **changes)


def assert_same(a: Head, b: Head) -> None:
    assert a.config == b.config
    assert a.draft_ids.dtype == b.draft_ids.dtype == np.int32
    assert a.draft_ids.tolist() == b.draft_ids.tolist()
    assert a.weights.keys() == b.weights.keys()
    for name, tensor in a.weights.items():
        assert b.weights[name].dtype == tensor.dtype
        assert torch.equal(b.weights[name], tensor), name


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A written head with rows of its own."""
    write_head(tmp_path / "head", a_head(own_rows=True))
    return tmp_path / "head"


def edit(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((place / "config.json").read_text())
    change(config)
    (place / "config.json").write_text(json.dumps(config))


def spoil(place: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or drop tensors of a head's file."""
    named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    kept = load_file(place / "model.safetensors") | named
    save_file({name: t for name, t in kept.items() if t is not None}, place / "model.safetensors")


def foreign(place: Path) -> None:
    """As if speculators had written it."""
    edit(place, lambda c: c.pop("augury"))


def refused(place: Path, *says: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_head(place)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{place.name} is not a head")
    for words in says:
        assert words in message


# ---- what comes back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_rows", [False, True])
@pytest.mark.parametrize("ids", [IDS, tuple(range(V)), (39,)], ids=["some", "all", "one"])
def test_a_written_head_comes_back_bit_by_bit(tmp_path: Path, ids: tuple[int, ...], own_rows: bool) -> None:
    head = a_head(ids, own_rows)
    write_head(tmp_path / "new" / "head", head)
    assert_same(read_head(tmp_path / "new" / "head"), head)
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["head"]


@pytest.mark.parametrize("own_rows", [False, True])
@pytest.mark.parametrize("kind", AHEAD)
def test_a_head_of_all_places_comes_back_bit_by_bit(tmp_path: Path, kind: str, own_rows: bool) -> None:
    write_head(tmp_path / "head", ahead(kind, own_rows))
    found = read_head(tmp_path / "head")
    assert_same(found, ahead(kind, own_rows))
    assert (found.config.kind, found.config.guesses) == (kind, G)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_other_floating_types_are_kept(tmp_path: Path, kind: torch.dtype) -> None:
    head = a_head()
    head = replace(head, weights={name: tensor.to(kind) for name, tensor in head.weights.items()})
    write_head(tmp_path / "head", head)
    assert_same(read_head(tmp_path / "head"), head)


def test_weights_that_are_views_of_one_buffer_are_written(tmp_path: Path) -> None:
    head = a_head()
    qkv = torch.cat([head.weights[f"layers.0.self_attn.{one}_proj.weight"] for one in "qkv"])
    parts = qkv.split([Q * HD, KV * HD, KV * HD])
    views = {f"layers.0.self_attn.{one}_proj.weight": part for one, part in zip("qkv", parts, strict=True)}
    write_head(tmp_path / "head", replace(head, weights={**head.weights, **views}))
    assert_same(read_head(tmp_path / "head"), head)


def test_rows_of_a_foreign_head_are_put_into_the_order_of_their_tokens(place: Path) -> None:
    ids, rows = torch.tensor([17, 0, 39, 4, 3]), torch.arange(5 * D).reshape(5, D).float()
    spoil(place, d2t=ids - torch.arange(5), lm_head__weight=rows)
    foreign(place)
    head = read_head(place)
    assert head.draft_ids.tolist() == sorted(ids.tolist())
    for token, row in zip(ids.tolist(), rows, strict=True):
        assert torch.equal(head.weights["lm_head.weight"][head.draft_ids.tolist().index(token)], row)


def test_a_foreign_head_names_its_target_and_no_digest(place: Path) -> None:
    foreign(place)
    edit(place, lambda c: c["speculators_config"]["verifier"].update(name_or_path="org/Some-Model"))
    config = read_head(place).config
    assert (config.target, config.target_digest) == ("org/Some-Model", "")
    edit(place, lambda c: c.pop("speculators_config"))
    assert read_head(place).config.target == ""


def test_embeddings_in_the_file_are_left_out_when_they_are_the_targets_size(place: Path) -> None:
    spoil(place, embed_tokens__weight=torch.zeros(V, D))
    assert "embed_tokens.weight" not in read_head(place).weights
    spoil(place, embed_tokens__weight=torch.zeros(V + 1, D))
    refused(place, "embed_tokens.weight", "[41, 12]", "[40, 12]")


def test_without_maps_the_draft_vocabulary_is_the_whole_one(place: Path) -> None:
    spoil(place, d2t=None, t2d=None, lm_head__weight=torch.ones(V, D))
    edit(place, lambda c: c.update(draft_vocab_size=None))
    assert read_head(place).draft_ids.tolist() == list(range(V))


def test_offsets_without_the_mask_are_enough(place: Path) -> None:
    spoil(place, t2d=None)
    assert read_head(place).draft_ids.tolist() == list(IDS)


def test_the_base_of_rope_is_found_in_both_places(place: Path) -> None:
    edit(place, lambda c: c["transformer_layer_config"].pop("rope_parameters"))
    assert read_head(place).config.rope_theta == 1e5
    edit(place, lambda c: c["transformer_layer_config"].pop("rope_theta"))
    assert read_head(place).config.rope_theta == 1e4
    edit(place, lambda c: c["transformer_layer_config"].update(rope_parameters={"rope_theta": 7.0}))
    assert read_head(place).config.rope_theta == 7.0


# ---- what vLLM reads ---------------------------------------------------------------------------------------------


def test_the_file_has_the_tensors_of_the_format(tmp_path: Path) -> None:
    write_head(tmp_path / "head", a_head(own_rows=True))
    found = load_file(tmp_path / "head" / "model.safetensors")
    expected = SHAPES | {"lm_head.weight": (5, D), "d2t": (5,), "t2d": (V,)}
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == expected
    assert found["d2t"].dtype == torch.int64
    assert found["t2d"].dtype == torch.bool
    assert (torch.arange(5) + found["d2t"]).tolist() == list(IDS)
    assert found["t2d"].nonzero().flatten().tolist() == list(IDS)


def test_the_config_has_the_keys_that_vllm_takes(place: Path) -> None:
    config = json.loads((place / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    spec = config["speculators_config"]
    assert spec["algorithm"] == "eagle3"
    assert spec["proposal_methods"][0]["speculative_tokens"] >= 1
    assert spec["default_proposal_method"] == spec["proposal_methods"][0]["proposal_type"] == "greedy"
    assert spec["verifier"] == {"name_or_path": "smol", "architectures": []}
    assert config["draft_vocab_size"] == 5
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 5]
    assert config["norm_before_residual"] is False  # vLLM takes true where it is left out
    assert config["norm_before_fc"] is False
    assert config["embed_requires_grad"] is False
    assert config["target_hidden_size"] is None
    assert config["dtype"] == "bfloat16"
    assert config["augury"] == {"kind": "eagle", "target": "smol", "target_digest": "d1"}


@pytest.mark.parametrize("kind", AHEAD)
def test_what_reads_eagle_heads_refuses_the_other_kinds_by_name(tmp_path: Path, kind: str) -> None:
    write_head(tmp_path / "head", ahead(kind))
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    type = f"augury-{kind}"
    assert (config["speculators_model_type"], config["speculators_config"]["algorithm"]) == (type, type)
    assert config["architectures"] == [f"Augury{kind.capitalize()}"]
    assert "eagle3" not in json.dumps({**config, "eagle_aux_hidden_state_layer_ids": None}).lower()
    mask = 39 if kind == "block" else 0
    origin = {"target": "smol", "target_digest": "d1"}
    assert config["augury"] == {"kind": kind, **origin, "guesses": G, "mask_token": mask}


@pytest.mark.parametrize(
    ("kind", "tensors"),
    [
        ("block", SHAPES | {"mask.weight": (D,)}),
        (
            "medusa",
            {name: SHAPES[name] for name in ("fc.weight", "norm.weight")}
            | {f"layers.0.{name}.weight": (D,) for name in ("input_layernorm", "hidden_norm")}
            | {"layers.0.up.weight": (G * F, 2 * D), "layers.0.down.weight": (G * D, F)},
        ),
    ],
)
def test_the_other_kinds_have_the_tensors_of_their_own(
    tmp_path: Path, kind: str, tensors: dict[str, tuple[int, ...]]
) -> None:
    write_head(tmp_path / "head", ahead(kind))
    found = load_file(tmp_path / "head" / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == tensors | {"d2t": (5,), "t2d": (V,)}


def test_transformers_understands_the_layer(place: Path) -> None:
    from transformers import LlamaConfig

    layer = json.loads((place / "config.json").read_text())["transformer_layer_config"]
    config = LlamaConfig(**layer)
    sizes = (config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers)
    assert sizes == (D, F, V, 1)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (Q, KV, HD)
    assert config.rope_parameters["rope_type"] == "default"
    assert config.rope_parameters["rope_theta"] == 1e5
    assert config.rms_norm_eps == 1e-5


def test_export_fills_in_the_targets_rows_and_keeps_a_heads_own(tmp_path: Path) -> None:
    rows = torch.randn(5, D)
    head = export_head(a_head(), rows)
    assert torch.equal(head.weights["lm_head.weight"], rows.bfloat16())
    write_head(tmp_path / "head", head)
    assert_same(read_head(tmp_path / "head"), head)
    assert export_head(head, torch.zeros(5, D)) is head
    with pytest.raises(InputError, match=r"\[4, 12\], the head asks for \[5, 12\]"):
        export_head(a_head(), torch.zeros(4, D))


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["norm_before_residual", "norm_before_fc", "fc_norm", "embed_requires_grad", "new"])
def test_a_switch_that_is_on_is_refused(place: Path, key: str) -> None:
    edit(place, lambda c: c.update({key: True}))
    refused(place, f"{key} = True; only false is supported")


def test_a_switch_without_arithmetic_may_be_on(place: Path) -> None:
    edit(place, lambda c: c.update(use_cache=True))
    read_head(place)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"norm_before_fc": 1}, "norm_before_fc = 1; only false is supported"),
        (
            {"speculators_model_type": "dflash"},
            "speculators_model_type = 'dflash'; 'eagle3', 'augury-block', ",
        ),
        ({"target_hidden_size": 64}, "target_hidden_size = 64; 12"),
        ({"draft_vocab_size": V + 1}, "draft_vocab_size = 41; 1 to 40"),
        ({"draft_vocab_size": "5"}, "draft_vocab_size = '5'"),
        ({"draft_vocab_size": 6}, "has shape [5]"),
        ({"eagle_aux_hidden_state_layer_ids": None}, "eagle_aux_hidden_state_layer_ids = None; write 3 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [5, 2, 1]}, "[5, 2, 1]; 3 layers, ascending"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "[1, 2]; 3 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [-1, 2, 3]}, "[-1, 2, 3]"),
        ({"transformer_layer_config": []}, "transformer_layer_config is []"),
        ({"augury": {"kind": "medusa", "target": "", "target_digest": ""}}, "'eagle' beside 'eagle3'"),
        ({"augury": 3}, "augury is 3; a JSON object"),
    ],
)
def test_a_config_that_is_not_run_is_refused(place: Path, changes: dict[str, Any], says: str) -> None:
    edit(place, lambda c: c.update(changes))
    refused(place, says)


@pytest.mark.parametrize("kind", AHEAD)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"guesses": 1}, "augury.guesses = 1; 2 to 16 are run of kind '{kind}'"),
        ({"guesses": 17}, "augury.guesses = 17; 2 to 16 are run of kind '{kind}'"),
        ({"guesses": -3}, "augury.guesses = -3; 2 to 16"),
        ({"guesses": 3.0}, "augury.guesses = 3.0; 2 to 16"),
        ({"guesses": True}, "augury.guesses = True; 2 to 16"),
        ({"guesses": None}, "augury.guesses = None; 2 to 16"),
        ({"mask_token": V}, "augury.mask_token = 40; a token is 0 to 39"),
        ({"mask_token": -1}, "augury.mask_token = -1; a token is 0 to 39"),
        ({"mask_token": "0"}, "augury.mask_token = '0'; a token is 0 to 39"),
        ({"kind": "eagle"}, "augury.kind = 'eagle' beside speculators_model_type = 'augury-{kind}'"),
        ({"kind": "hydra"}, "augury.kind = 'hydra' beside speculators_model_type = 'augury-{kind}'"),
        ({"kind": ["medusa"]}, "augury.kind = ['medusa'] beside"),
        ({"kind": None}, "augury.kind = None beside"),
    ],
)
def test_places_that_are_not_run_are_refused(tmp_path: Path, kind: str, changes: dict[str, Any], says: str) -> None:
    write_head(tmp_path / "head", ahead(kind))
    edit(tmp_path / "head", lambda c: c["augury"].update(changes))
    refused(tmp_path / "head", says.replace("{kind}", kind))


def test_an_eagle_guesses_one_place_of_a_forward(place: Path) -> None:
    edit(place, lambda c: c["augury"].update(guesses=2))
    refused(place, "augury.guesses = 2; 1 are run of kind 'eagle'")


@pytest.mark.parametrize("kind", AHEAD)
def test_a_head_of_all_places_that_does_not_say_its_kind_is_no_eagle(tmp_path: Path, kind: str) -> None:
    write_head(tmp_path / "head", ahead(kind, own_rows=True))
    foreign(tmp_path / "head")
    refused(tmp_path / "head", f"augury.kind = 'eagle' beside speculators_model_type = 'augury-{kind}'")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("block", "mask.weight"), ("medusa", "layers.0.up.weight"), ("medusa", "layers.0.down.weight")],
)
def test_the_tensors_of_a_kind_are_missed_and_have_no_place_in_another(tmp_path: Path, kind: str, name: str) -> None:
    write_head(tmp_path / "head", ahead(kind))
    kept = load_file(tmp_path / "head" / "model.safetensors")[name]
    spoil(tmp_path / "head", **{name: None})
    refused(tmp_path / "head", f"lack the tensor {name}")
    spoil(tmp_path / "head", **{name: kept[:-1].clone()})
    refused(tmp_path / "head", f"{name} has shape [{len(kept) - 1}", f"asks for [{len(kept)}")
    write_head(tmp_path / "eagle", a_head())
    spoil(tmp_path / "eagle", **{name: kept})
    refused(tmp_path / "eagle", f"'{name}' has no place")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "qwen3"}, "model_type = 'qwen3'; 'llama' is supported"),
        ({"num_hidden_layers": 2}, "num_hidden_layers = 2; 1 is supported"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "hidden_act = 'gelu_pytorch_tanh'; 'silu' is supported"),
        ({"attention_bias": True}, "attention_bias = True; False is supported"),
        ({"mlp_bias": True}, "mlp_bias = True; False is supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling = {'rope_type': 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type 'default' is supported"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters = {'rope_type': 'yarn'}"),
        ({"rope_parameters": 3}, "rope_parameters is 3"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta = nan"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps = -1.0"),
        ({"sliding_window": 64}, "sliding_window = 64"),
        ({"hidden_size": "12"}, "hidden_size = 12"),
        ({"hidden_size": 16}, "fc.weight has shape [12, 36], config.json asks for [16, 48]"),
        ({"num_key_value_heads": 2}, "3 attention heads cannot share 2"),
        ({"max_position_embeddings": 0}, "max_model_len 1 is not between 1 and 0"),
    ],
)
def test_a_layer_that_is_not_run_is_refused(place: Path, changes: dict[str, Any], says: str) -> None:
    edit(place, lambda c: c["transformer_layer_config"].update(changes))
    refused(place, says)


def test_a_missing_norm_before_residual_is_not_guessed(place: Path) -> None:
    edit(place, lambda c: c.pop("norm_before_residual"))
    refused(place, "lacks norm_before_residual")


def test_missing_and_unknown_tensors_are_named(place: Path) -> None:
    spoil(place, norm__weight=None)
    refused(place, "lack the tensor norm.weight")
    spoil(place, norm__weight=torch.ones(D), midlayer__extra=torch.ones(1))
    refused(place, "'midlayer.extra' has no place")


def test_only_our_own_files_may_leave_out_the_rows(place: Path) -> None:
    spoil(place, lm_head__weight=None)
    assert "lm_head.weight" not in read_head(place).weights
    foreign(place)
    refused(place, "lack the tensor lm_head.weight")


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"norm__weight": torch.ones(D + 1)}, "norm.weight has shape [13], config.json asks for [12]"),
        ({"norm__weight": torch.ones(D, dtype=torch.float64)}, "norm.weight is stored as F64; BF16, F16, F32 are read"),
        ({"norm__weight": torch.full((D,), torch.nan)}, "norm.weight holds numbers that are not finite"),
        ({"d2t": None}, "lack the tensor d2t"),
        ({"d2t": torch.ones(5)}, "d2t is stored as F32"),
        ({"t2d": torch.ones(V, dtype=torch.int64)}, "t2d is stored as I64"),
        ({"d2t": torch.tensor([0, 0, 0, 0, 36])}, "draft id 40 is not between 0 and 39"),
        ({"d2t": torch.tensor([-1, 0, 0, 0, 0])}, "draft id -1"),
        ({"d2t": torch.tensor([2**63 - 1] * 5)}, "is not between 0 and 39"),
        ({"d2t": torch.tensor([1, 0, 0, 0, 0])}, "names 1 tokens twice"),
        ({"d2t": torch.tensor(IDS)}, "is not between 0 and 39"),  # target ids where offsets belong
        ({"d2t": torch.zeros(5, dtype=torch.int64)}, "d2t and t2d disagree"),
        ({"t2d": torch.ones(V, dtype=torch.bool)}, "d2t and t2d disagree: they name 5 and 40 tokens"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(place: Path, tensors: dict[str, Any], says: str) -> None:
    spoil(place, **tensors)
    refused(place, says)


def test_damage_is_one_line(place: Path) -> None:
    weights, config = place / "model.safetensors", place / "config.json"
    whole = weights.read_bytes()
    for cut in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:cut])
        refused(place, "model.safetensors is not a sound safetensors file")
    weights.rename(place / "model.bin")
    refused(place, "model.bin is a pickle")
    text = config.read_text()
    for wrong in ("", "{", "[" * 100_000, "3", '{"a": 1' + "0" * 5000 + "}"):
        config.write_text(wrong)
        refused(place, "config.json is")
    config.write_bytes(b"\xff\xfe")
    refused(place, "config.json is not JSON")
    config.write_text(text + " " * (1 << 20))
    refused(place, "bytes; at most 1048576 are read")
    config.unlink()
    refused(place, "has no config.json")
    refused(place / "nowhere", "has no config.json")


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(st.recursive(LEAVES, nested, max_leaves=6), st.data())
@settings(max_examples=200, deadline=None)
def test_whatever_a_config_holds_the_answer_is_a_head_or_a_model_error(
    tmp_path_factory: pytest.TempPathFactory, value: Any, data: st.DataObject
) -> None:
    place = tmp_path_factory.getbasetemp() / "any"
    write_head(place, a_head())
    config = json.loads((place / "config.json").read_text())
    inner = data.draw(st.sampled_from([config, config["transformer_layer_config"], config["augury"]]))
    inner[data.draw(st.sampled_from(sorted(inner)))] = value
    (place / "config.json").write_text(json.dumps(config))
    try:
        with contextlib.suppress(ModelError):
            read_head(place)
    finally:
        shutil.rmtree(place)


# ---- the vocabulary of the drafts ----------------------------------------------------------------------------------


@given(st.integers(1, 60).flatmap(lambda v: st.tuples(st.just(v), st.sets(st.integers(0, v - 1), min_size=1))))
def test_draft_ids_and_maps_are_two_spellings_of_the_same(case: tuple[int, set[int]]) -> None:
    size, ids = case
    d2t, t2d = vocabulary_maps(np.asarray(sorted(ids), np.int32), size)
    assert (d2t.dtype, t2d.dtype) == (torch.int64, torch.bool)
    assert (tuple(d2t.shape), tuple(t2d.shape)) == ((len(ids),), (size,))
    assert draft_vocabulary(d2t, t2d, size).tolist() == sorted(ids) == t2d.nonzero().flatten().tolist()
    assert bool((d2t.diff() >= 0).all())  # ascending ids have offsets that never fall


@given(st.lists(st.integers(-3, 12), min_size=1, max_size=8), st.integers(1, 10))
def test_ids_are_taken_exactly_when_they_are_tokens_and_differ(ids: list[int], size: int) -> None:
    sound = len(set(ids)) == len(ids) and all(0 <= id < size for id in ids)
    if sound:
        d2t, t2d = vocabulary_maps(np.asarray(ids, np.int32), size)
        assert draft_vocabulary(d2t, t2d, size).tolist() == ids
        other = t2d.clone()
        other[ids[0]] = False
        with pytest.raises(ModelError, match="disagree"):
            draft_vocabulary(d2t, other, size)
    else:
        with pytest.raises(ModelError, match=r"draft id|twice"):
            vocabulary_maps(np.asarray(ids, np.int32), size)


# ---- whole or not at all -------------------------------------------------------------------------------------------


def test_an_old_head_is_replaced(place: Path) -> None:
    new = a_head((1, 2), seed=1)
    write_head(place, new)
    assert_same(read_head(place), new)
    assert [p.name for p in place.parent.iterdir()] == ["head"]


def test_whoever_may_read_a_directory_may_read_the_head(place: Path) -> None:
    assert (place / "model.safetensors").stat().st_mode == (place / "config.json").stat().st_mode


@pytest.mark.parametrize("kind", AHEAD)
def test_a_head_of_another_kind_is_replaced_too(place: Path, kind: str) -> None:
    write_head(place, ahead(kind))
    assert_same(read_head(place), ahead(kind))
    write_head(place, a_head())
    assert_same(read_head(place), a_head())


def test_an_empty_directory_and_a_link_may_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_head(tmp_path / "link", a_head())
    assert (tmp_path / "link").is_symlink()
    assert_same(read_head(tmp_path / "real"), a_head())


@pytest.mark.parametrize("file", ["notes.txt", "config.json", "model.safetensors"])
def test_what_is_not_a_head_is_never_replaced(tmp_path: Path, file: str) -> None:
    place = tmp_path / "model"
    place.mkdir()
    (place / file).write_text('{"model_type": "llama"}')
    with pytest.raises(InputError, match=r"holds .*, which is not a head's"):
        write_head(place, a_head())
    assert (place / file).read_text() == '{"model_type": "llama"}'


def test_a_head_with_notes_beside_it_and_a_file_are_never_replaced(place: Path) -> None:
    (place / "README.md").write_text("mine")
    with pytest.raises(InputError, match=r"holds README\.md"):
        write_head(place, a_head())
    with pytest.raises(InputError, match=r"holds README\.md"):
        write_head(place / "README.md", a_head())
    assert_same(read_head(place), a_head(own_rows=True))


@pytest.mark.parametrize("fails", ["save", "_flush", "first rename", "second rename"])
def test_a_failure_in_the_middle_leaves_the_old_head_whole(
    place: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    rename, calls = Path.rename, []

    def full(*_args: Any, **_kwargs: Any) -> None:
        raise OSError("no space left on device")

    def renamed(self: Path, to: Path) -> Path:
        calls.append(to)
        if len(calls) == (1 if fails == "first rename" else 2):
            full()
        return rename(self, to)

    with monkeypatch.context() as patch:
        if fails.endswith("rename"):
            patch.setattr(Path, "rename", renamed)
        else:
            patch.setattr(f"augury.models.heads.{fails}", full)
        with pytest.raises(InputError, match=r"cannot write the head .*no space left") as caught:
            write_head(place, a_head((1, 2), seed=1))
    assert "\n" not in str(caught.value)
    assert_same(read_head(place), a_head(own_rows=True))
    assert [p.name for p in place.parent.iterdir()] == ["head"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda h: replace(h, draft_ids=np.asarray([0, 0, 1, 2, 3], np.int32)), "twice"),
        (lambda h: replace(h, draft_ids=np.asarray([], np.int32)), "draft_vocab_size = 0"),
        (lambda h: replace(h, draft_ids=np.asarray([0], np.int32)), "lm_head.weight has shape"),
        (lambda h: replace(h, config=replace(h.config, hidden_size=16)), "fc.weight has shape"),
        (lambda h: replace(h, config=replace(h.config, taps=(1, 2))), "3 layers"),
        (lambda h: replace(h, config=replace(h.config, rope_theta=float("inf"))), "rope_theta = inf"),
        (lambda h: replace(h, weights={}), "lack the tensor"),
        (lambda h: replace(h, config=replace(h.config, kind="block", guesses=3)), r"lack the tensor mask\.weight"),
        (lambda h: replace(h, config=replace(h.config, kind="medusa", guesses=3)), "lack the tensor layers.0.up"),
        (lambda h: replace(h, config=replace(h.config, kind="block")), "guesses = 1; 2 to 16"),
        (lambda h: replace(h, weights={**h.weights, "norm.weight": torch.full((D,), torch.inf)}), "not finite"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(place: Path, change: Callable[[Head], Head], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        write_head(place, change(a_head(own_rows=True)))
    assert_same(read_head(place), a_head(own_rows=True))
    assert [p.name for p in place.parent.iterdir()] == ["head"]


# ---- for which target ----------------------------------------------------------------------------------------------


def test_a_head_fits_its_target_and_where_it_knows_no_digest_sizes_decide() -> None:
    check_head(a_head(), an_info())
    check_head(a_head(), an_info(digest=""))
    check_head(a_head(target_digest=""), an_info(digest="d2"))
    check_head(a_head(taps=(1, 2, 6)), an_info())  # 6 is behind the last layer


@pytest.mark.parametrize(
    ("head", "info", "says"),
    [
        ({}, {"hidden_size": 64}, "has hidden size 12, this target other has 64"),
        ({}, {"vocab_size": 50}, "knows 40 tokens, this target other has 50"),
        ({"taps": (1, 2, 7)}, {}, "reads layer 7, this target other has 6"),
        ({}, {"digest": "d2"}, "does not fit this target other, whose weights are others"),
        ({"target": ""}, {"digest": "d2"}, "the head of an unnamed target does not fit"),
    ],
)
def test_another_target_is_refused_in_one_line(head: dict[str, Any], info: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_head(a_head(**head), an_info(name="other", **info))
    message = str(caught.value)
    assert says in message
    assert message.endswith("train one for it: augury train eagle other")
    assert "\n" not in message
    assert ("smol" in message) == ("target" not in head)
