"""Names, options and choices of the loader."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import byte_tokenizer, spelt

from augury.errors import InputError, MissingPackage, ModelError, UnknownName
from augury.models import load
from augury.models.load import EMBEDDED, Embedded, load_target, open_gguf
from augury.models.tokenizer import Tokenizer
from augury.tree import DraftTree
from augury.tree import Path as Accepted


@pytest.mark.parametrize("name", ["smollm", "gemma3-27b"])
def test_unknown_names_list_the_valid_ones(name: str) -> None:
    with pytest.raises(UnknownName, match=r"Valid: .*gemma3-270m, smollm2-135m") as refused:
        load_target(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["no/such/model", "/no/such/folder"])
def test_a_path_that_is_not_there_is_no_unknown_name(name: str) -> None:
    with pytest.raises(ModelError, match=f"there is no directory or file {name}"):
        load_target(name)


def test_paths_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no file .*x\.gguf"):
        load_target(str(tmp_path / "x.gguf"))
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(ModelError, match=r"x\.txt is neither a directory nor a \.gguf file"):
        load_target(tmp_path / "x.txt")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_target(tmp_path)
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="empty"):
        load_target(tmp_path / "empty.gguf")


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("dtype", "bf16", "did you mean 'bfloat16'"),
        ("dtype", "int8", "Valid: bfloat16, float16, float32"),
        ("dtype", "float16", "float16 needs device cuda"),
        ("device", "tpu", "unknown device 'tpu'"),
        ("runner", "llama.cpp", "unknown runner"),
        ("threads", 0, "threads is 0"),
        ("max_num_seqs", 0, "max_num_seqs is 0"),
        ("max_model_len", 0, "max_model_len 0"),
        ("max_model_len", -5, "max_model_len -5"),
    ],
)
def test_options_that_cannot_be_honoured(option: str, value: Any, named: str, made_model: Any) -> None:
    with pytest.raises(InputError, match=named):
        load_target(made_model("llama"), **{"device": "cpu", option: value})


def test_a_missing_device(made_model: Any) -> None:
    import torch

    if torch.cuda.is_available():
        assert load_target(made_model("llama"), device="cuda").target.info.runner.endswith("cuda)")
        return
    with pytest.raises(InputError, match="device cuda is not available here; use cpu"):
        load_target(made_model("llama"), device="cuda")


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_missing_package_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("augury.models.gguf_file")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingPackage) as refused:
        load_target(name)
    assert f"pip install {EMBEDDED[name].install}" in str(refused.value)


def test_packages_are_found_without_running_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(2):
        (tmp_path / f"augury_part{i}").mkdir()
        (tmp_path / f"augury_part{i}" / "__init__.py").write_text("raise RuntimeError('this code must not run')")
        (tmp_path / f"augury_part{i}" / "data").write_bytes(b"GGUF"[2 * i : 2 * i + 2])
    monkeypatch.syspath_prepend(str(tmp_path))
    parts = (("augury_part0", "data"), ("augury_part1", "data"))
    for digest, named in [("00", "checksum is wrong"), (hashlib.sha256(b"GGUF").hexdigest(), "not a sound GGUF")]:
        monkeypatch.setattr(load, "EMBEDDED", {"joined": Embedded("x", parts, digest)})
        for use in (load_target, open_gguf):  # the second is how other runners come by the same weights
            with pytest.raises(ModelError, match=named):
                use("joined")


def test_a_reason_for_every_runner(made_model: Any) -> None:
    path = made_model("llama")
    assert load_target(path, runner="torch").target.info.runner == "torch bfloat16 cpu (as asked)"
    fp32 = load_target(path, dtype="float32").target.info
    assert fp32.runner == "torch float32 cpu (native runs bfloat16 on cpu, not float32 on cpu)"
    with pytest.raises(InputError, match="runner native cannot be used: native runs bfloat16 on cpu"):
        load_target(path, dtype="float32", runner="native")


def test_native_where_it_can_run(made_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from augury.models import native

    path = made_model("llama")
    if native.native_available() is None:
        assert load_target(path).target.info.runner.startswith("native")
    monkeypatch.setattr(native, "native_available", lambda: "the CPU is a potato")
    assert load_target(path).target.info.runner == "torch bfloat16 cpu (native: the CPU is a potato)"
    with pytest.raises(InputError, match="the CPU is a potato; use runner torch"):
        load_target(path, runner="native")


def test_sizes(made_model: Any) -> None:
    tied = load_target(made_model("llama", tie_word_embeddings=True), dtype="float32").target.info
    untied = load_target(made_model("llama"), dtype="float32").target.info
    embedding = 272 * 48
    assert untied.parameters - tied.parameters == embedding
    assert untied.weight_bytes == tied.weight_bytes == tied.parameters * 4


def test_progress_is_told_and_ends(made_model: Any) -> None:
    told: list[tuple[str, float]] = []
    load_target(made_model("llama"), progress=lambda what, share: told.append((what, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert (shares[0], told[-1]) == (0.0, ("ready", 1.0))


def test_what_ends_an_answer(made_model: Any, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made_model("llama"), tmp_path / "m"))
    assert load_target(path).eos_ids == (257,)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 256]}))
    assert load_target(path).eos_ids == (3, 256, 257)
    config = json.loads((path / "config.json").read_text()) | {"eos_token_id": None}
    (path / "config.json").write_text(json.dumps(config))
    (path / "generation_config.json").unlink()
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<s>"}}))
    assert load_target(path).eos_ids == (256, 257)  # the named one, and the end of a chat turn


def test_end_tokens_outside_the_vocabulary_are_none(made_model: Any, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made_model("llama"), tmp_path / "m"))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [-1, 0, 271, 272, 0xFFFFFFFF]}))
    assert load_target(path).eos_ids == (0, 257, 271)


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("generation_config.json", {"eos_token_id": [[2]]}, r"generation_config\.json has eos_token_id = \[\[2\]\]"),
        ("generation_config.json", {"eos_token_id": {}}, r"generation_config\.json has eos_token_id = \{\}"),
        ("generation_config.json", {"eos_token_id": "2"}, r"generation_config\.json has eos_token_id = '2'"),
        ("tokenizer_config.json", {"bos_token": {}}, r"tokenizer_config\.json has bos_token = \{\}; it must be text"),
        ("tokenizer_config.json", {"bos_token": {"content": 1}}, r"tokenizer_config\.json has bos_token = 1"),
        ("tokenizer_config.json", {"eos_token": 5}, r"tokenizer_config\.json has eos_token = 5; it must be text"),
        ("tokenizer_config.json", {"eos_token": "\ud800"}, r"tokenizer_config\.json has eos_token = '\\ud800'"),
        ("tokenizer_config.json", {"chat_template": ["x"]}, r"tokenizer_config\.json has chat_template = \['x'\]"),
        ("tokenizer_config.json", {"chat_template": 5}, r"tokenizer_config\.json has chat_template = 5"),
        ("tokenizer_config.json", "[" * 5000, r"tokenizer_config\.json is not JSON"),
        ("chat_template.jinja", b"\xff", r"chat_template\.jinja is not UTF-8 text"),
    ],
)
def test_values_of_the_wrong_kind_are_named_with_their_file(
    file: str, content: Any, named: str, made_model: Any, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(made_model("llama"), tmp_path / "m"))
    raw = (
        content
        if isinstance(content, bytes)
        else (content if isinstance(content, str) else json.dumps(content)).encode()
    )
    (path / file).write_bytes(raw)
    with pytest.raises(ModelError, match=named) as refused:
        load_target(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("runner", ["torch", "transformers"])
def test_a_target_says_its_dtype(dtype: str, runner: str, made_model: Any) -> None:
    assert load_target(made_model("llama"), dtype=dtype, runner=runner).target.info.dtype == dtype


@pytest.mark.parametrize("where", ["none", "settings", "named", "file"])
def test_where_templates_lie(where: str, made_model: Any, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made_model("llama"), tmp_path / "m"))
    text = "{{ bos_token }}{{ messages[0].content }}"
    settings: dict[str, Any] = {"bos_token": "<s>"}
    if where == "settings":
        settings["chat_template"] = text
    if where == "named":
        settings["chat_template"] = [{"name": "rag", "template": "?"}, {"name": "default", "template": text}]
    if where == "file":
        settings["chat_template"] = "never read"
        (path / "chat_template.jinja").write_text(text)
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    template = load_target(path).template
    if where == "none":
        assert template is None
    else:
        assert template is not None
        ids = template.encode(Tokenizer(byte_tokenizer()), [{"role": "user", "content": "hi"}])
        assert spelt(Tokenizer(byte_tokenizer()), ids) == "<s>hi"


def test_a_directory_without_a_tokenizer(made_model: Any, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made_model("llama"), tmp_path / "m"))
    (path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"m has no tokenizer\.json"):
        load_target(path)


# ---- the embedded models -------------------------------------------------------------------------------------


def greedy(loaded: Any, ids: Any, n: int) -> str:
    target, stream = loaded.target, loaded.tokenizer.incremental(ids)
    slot = target.open()
    target.prefill(slot, ids[:-1])
    root, text = int(ids[-1]), ""
    for _ in range(n):
        root = int(target.verify([slot], [root], [DraftTree.empty()]).logits[0][0].argmax())
        target.commit([slot], [Accepted((), root)])
        if root in loaded.eos_ids:
            break
        text += stream.push([root])
    target.release(slot)
    return text + stream.flush()


@pytest.fixture(scope="module")
def smollm() -> Any:
    return load_target("smollm2-135m", max_model_len=512)


@pytest.mark.real
def test_smollm_answers(smollm: Any) -> None:
    info = smollm.target.info
    assert (info.family, info.parameters, info.vocab_size) == ("llama", 134_515_008, 49_152)
    assert smollm.eos_ids == (2,)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = smollm.template.encode(smollm.tokenizer, question)
    assert "Paris" in greedy(smollm, ids, 12)


@pytest.mark.real
def test_smollm_spells() -> None:
    from augury.models.load import load_wording

    tokenizer = load_wording("smollm2-135m").tokenizer
    assert tokenizer.encode("The quick brown fox").tolist() == [504, 2365, 6354, 16438]
    assert len(tokenizer.encode("12345")) == 5
    for text in ("<|im_start|>user\nhi<|im_end|>", "naïve 你好 🎉\n\n\tx  y", "don't can't 3.14"):
        assert spelt(tokenizer, tokenizer.encode(text)) == text
    assert tokenizer.encode("<|im_end|>").tolist() == [2]
    assert 2 not in tokenizer.encode("<|im_end|>", special=False)


@pytest.mark.real
def test_torch_and_native_agree(smollm: Any) -> None:
    torch_twin = load_target("smollm2-135m", max_model_len=512, runner="torch")
    ids = smollm.tokenizer.encode("def fibonacci(n):\n    if n < 2:\n        return n\n    return", special=False)
    rows = []
    for loaded in (smollm, torch_twin):
        slot = loaded.target.open()
        loaded.target.prefill(slot, ids[:5])
        chain = DraftTree.chain(ids[6:], [0.5] * (len(ids) - 6))
        rows.append(loaded.target.verify([slot], [int(ids[5])], [chain]).logits[0].copy())
    spread = rows[0].std(axis=1).mean()
    assert np.abs(rows[0] - rows[1]).mean() < 0.1 * spread
