"""Weight files: what is read, what is refused before it is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from augury.errors import InputError, ModelError
from augury.models.load import load_target
from augury.models.weights import safetensors_files
from augury.tree import DraftTree


@pytest.fixture
def model(made_model: Any, tmp_path: Path) -> Path:
    """A copy of a tiny model that a test may spoil."""
    return Path(shutil.copytree(made_model("llama"), tmp_path / "tiny"))


def first_row(path: Path, dtype: str = "float32") -> Any:
    target = load_target(path, dtype=dtype).target
    return target.verify([target.open()], [7], [DraftTree.empty()]).logits[0][0].copy()


def spoil(path: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or drop tensors of a model's file."""
    named = {name.replace("__", "."): t for name, t in tensors.items()}
    kept = load_file(path / "model.safetensors") | named
    save_file({name: t for name, t in kept.items() if t is not None}, path / "model.safetensors")


def shard(path: Path) -> dict[str, str]:
    """Split a model's file in two, as large models are; the weight map."""
    tensors = load_file(path / "model.safetensors")
    names = [f"model-{i + 1:05}-of-00002.safetensors" for i in range(2)]
    where = {tensor: names[i % 2] for i, tensor in enumerate(tensors)}
    for name in names:
        save_file({t: tensors[t] for t in tensors if where[t] == name}, path / name)
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return where


def test_shards_are_one_model(model: Path) -> None:
    whole = first_row(model)
    shard(model)
    np.testing.assert_array_equal(first_row(model), whole)


def test_a_shard_that_is_missing(model: Path) -> None:
    shard(model)
    (model / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"names model-00002-of-00002\.safetensors, which is missing"):
        load_target(model)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "x/y.safetensors", "model.bin", 3])
def test_an_index_may_name_files_beside_it_only(model: Path, name: Any) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelError, match="not a safetensors"):
        load_target(model)


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": 3}', "{}"])
def test_a_damaged_index(model: Path, text: str) -> None:
    (model / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match="not a safetensors index"):
        load_target(model)


@pytest.mark.parametrize("pickled", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickles_are_refused(model: Path, pickled: str) -> None:
    (model / "model.safetensors").rename(model / pickled)
    with pytest.raises(ModelError, match=f"{pickled} is a pickle, which can run code") as refused:
        load_target(model)
    assert "\n" not in str(refused.value)


def test_one_file_of_any_name_will_do(model: Path) -> None:
    (model / "model.safetensors").rename(model / "weights.safetensors")
    assert [p.name for p in safetensors_files(model)] == ["weights.safetensors"]
    shutil.copy(model / "weights.safetensors", model / "more.safetensors")
    with pytest.raises(ModelError, match="2 safetensors files and no"):
        safetensors_files(model)


def test_no_weights_at_all(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"tiny holds no model\.safetensors"):
        load_target(model)


@pytest.mark.parametrize("cut", [0, 5, 8, 100, 5000])
def test_a_file_cut_short(model: Path, cut: int) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ModelError, match=r"model\.safetensors is not a sound safetensors file"):
        load_target(model)


def test_a_header_of_nonsense(model: Path) -> None:
    (model / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}" * 50)
    with pytest.raises(ModelError, match="not a sound safetensors file"):
        load_target(model)


NORM = "model__layers__1__input_layernorm__weight"
Q = "model__layers__1__self_attn__q_proj__weight"


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({Q: None}, r"lack the tensor model\.layers\.1\.self_attn\.q_proj\.weight"),
        (
            {Q: torch.zeros(96, 47)},
            r"q_proj\.weight in model\.safetensors has shape \[96, 47\], the config asks for \[160, 48\]",
        ),
        ({NORM: torch.tensor(1.0)}, r"input_layernorm\.weight in model\.safetensors has shape \[\], .* \[48\]"),
        ({NORM: torch.ones(48, 1)}, r"input_layernorm\.weight in model\.safetensors has shape \[48, 1\]"),
        ({Q: torch.zeros(95, 48)}, "has 159 rows, the config asks for 160"),
        ({Q: torch.zeros(96, 48, dtype=torch.int8)}, "stored as int8"),
        ({"model__layers__1__self_attn__q_proj__bias": torch.zeros(96)}, "q_proj.bias has no place in a llama block"),
        ({"model__layers__3__mlp__up_proj__weight": torch.zeros(80, 48)}, "layers.3.mlp.up_proj.weight has no place"),
        ({"model__embed_tokens__weight": None}, "no tensor model.embed_tokens.weight"),
        ({"lm_head__weight": None}, "lack the tensor lm_head.weight"),
    ],
)
def test_tensors_that_do_not_fit(model: Path, tensors: dict[str, Any], named: str) -> None:
    spoil(model, **tensors)
    with pytest.raises(ModelError, match=named):
        load_target(model, dtype="float32")


def test_leftover_frequencies_and_other_towers_do_not_matter(model: Path) -> None:
    whole = first_row(model)
    spoil(model, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8), vision_tower__x=torch.zeros(3))
    np.testing.assert_array_equal(first_row(model), whole)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_stored_types(model: Path, kind: torch.dtype) -> None:
    whole = first_row(model)
    spoil(model, **{n.replace(".", "__"): t.to(kind) for n, t in load_file(model / "model.safetensors").items()})
    rounded = first_row(model)
    assert 0 < np.abs(rounded - whole).max() < 0.3


def test_bf16_rounds_and_stays_near(model: Path) -> None:
    whole, rounded = first_row(model), first_row(model, "bfloat16")
    assert 0 < np.abs(rounded - whole).max() < 0.3


def test_damaged_configs(model: Path) -> None:
    for text, named in [("[]", "not a JSON object"), ("{", "not JSON")]:
        (model / "config.json").write_text(text)
        with pytest.raises(ModelError, match=f"config.json is {named}"):
            load_target(model)
    (model / "config.json").unlink()
    with pytest.raises(ModelError, match=r"tiny has no config\.json"):
        load_target(model)


def test_a_context_that_is_too_long(model: Path) -> None:
    assert load_target(model, max_model_len=20).target.info.context == 20
    with pytest.raises(InputError, match="max_model_len 129 is not between 1 and 128"):
        load_target(model, max_model_len=129)
