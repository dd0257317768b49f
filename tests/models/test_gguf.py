"""GGUF files, written here from tiny models by the format's own rules, give the logits of those models."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny import CONTROLS, byte_tokenizer, spelt

from augury.errors import ModelError
from augury.models.families import NotABlock
from augury.models.gguf_file import GgufFile, gguf_config
from augury.models.load import load_target
from augury.tree import DraftTree

KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA = {"sliding_window": 12, "head_dim": 16}
FACTORS = [1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0, 3.5]
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": FACTORS, "long_factor": FACTORS}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}

# GGUF architecture, HF family, HF switches, metadata beyond the common ones
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", {}, {}),
    "llama-tied-biased": ("llama", "llama", {"tie_word_embeddings": True, "attention_bias": True}, {}),
    "llama-linear": ("llama", "llama", {"rope_parameters": LINEAR},
                     {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "llama-yarn": ("llama", "llama", {"rope_parameters": YARN},
                   {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                    "rope.scaling.original_context_length": 32}),
    "qwen2": ("qwen2", "qwen2", {}, {}),
    "qwen3": ("qwen3", "qwen3", {}, {}),
    "smollm3": ("smollm3", "smollm3", {"num_hidden_layers": 4, "hidden_size": 96}, {}),
    "phi3": ("phi3", "phi3", {"hidden_size": 96, "intermediate_size": 64, "sliding_window": 12},
             {"attention.sliding_window": 12}),
    "phi3-longrope": ("phi3", "phi3", {"hidden_size": 96, "original_max_position_embeddings": 64,
                                       "max_position_embeddings": 128, "rope_parameters": LONGROPE},
                      {"rope.scaling.original_context_length": 64}),
    "gemma2": ("gemma2", "gemma2", {**GEMMA, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 3.0,
                                    "final_logit_softcapping": 5.0},
               {"attention.sliding_window": 12, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}),
    "gemma3": ("gemma3", "gemma3_text", {**GEMMA, "query_pre_attn_scalar": 16, "num_hidden_layers": 7},
               {"attention.sliding_window": 12, "rope.freq_base": 1e6}),
}  # fmt: skip


def write(
    path: Path,
    source: Path,
    case: str,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **tensors: list[float],
) -> Path:
    """The model in ``source`` as a GGUF file, with further ``tensors``."""
    arch, _, _, extra = CASES[case]
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(path, arch)
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    if "rope.freq_base" not in extra:
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    for key, value in extra.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(f"{arch}.{key}", value)
    vocab = byte_tokenizer().get_vocab()
    tokens = sorted(vocab, key=lambda t: vocab[t])
    tokens += [f"<pad{i}>" for i in range(config["vocab_size"] - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in CONTROLS else 1 for t in tokens])
    writer.add_eos_token_id(256)
    writer.add_chat_template("{{ bos_token }}{{ messages[0].content }}")
    writer.add_bos_token_id(256)
    names = gguf.get_tensor_name_map(_arch(arch), layers)
    for name, tensor in load_file(source / "model.safetensors").items():
        array = tensor.numpy()
        if arch in ("llama", "smollm3") and ("q_proj" in name or "k_proj" in name):
            n = heads if "q_proj" in name else config["num_key_value_heads"]
            array = array.reshape(n, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        if arch.startswith("gemma") and "norm" in name:
            array = array + 1
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        if array.ndim > 1 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(stored, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, np.ascontiguousarray(array, np.float32))
    for name, values in tensors.items():
        writer.add_tensor(f"{name}.weight", np.asarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _arch(name: str) -> gguf.MODEL_ARCH:
    return next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)


@pytest.fixture(scope="module")
def written(made_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    def make(case: str, **options: Any) -> tuple[Path, Path]:
        _, family, changes, _ = CASES[case]
        source = made_model(family, **changes)
        return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", source, case, **options), source

    return make


TOKENS = np.random.default_rng(0).integers(0, 256, 40).astype(np.int32)


def rows(path: Path) -> Any:
    target = load_target(path, dtype="float32").target
    chain = DraftTree.chain(TOKENS[1:], [0.5] * 39)
    return target.verify([target.open()], [int(TOKENS[0])], [chain]).logits[0].copy()


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, written: Any, reference: Any) -> None:
    longrope = {"rope_factors_short": FACTORS, "rope_factors_long": FACTORS} if "longrope" in case else {}
    file, source = written(case, **longrope)
    np.testing.assert_allclose(rows(file), reference(source)(TOKENS), atol=1e-4, rtol=1e-5)


def test_frequencies_divided_one_by_one(made_model: Any, reference: Any, tmp_path: Path) -> None:
    """Llama 3's scaling comes as a tensor of factors."""
    llama3 = {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    source = made_model("llama", rope_parameters=llama3)
    plain = 1e4 ** (-np.arange(0, 16, 2) / 16)
    wavelength = 2 * np.pi / plain
    smooth = np.clip((32 / wavelength - 1) / 3, 0, 1)
    factors = 1 / ((1 - smooth) / 8 + smooth)
    file = write(tmp_path / "tiny.gguf", source, "llama", rope_freqs=factors.tolist())
    np.testing.assert_allclose(rows(file), reference(source)(TOKENS), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Q8_0", "F16", "BF16", "Q4_1"])
def test_quantised_weights(kind: str, written: Any, reference: Any) -> None:
    quantised = gguf.GGMLQuantizationType[kind]
    file, source = written("phi3", kind=quantised)  # whose widths are whole blocks of 32
    wanted = reference(source)(TOKENS)
    off = np.sqrt(np.mean((rows(file) - wanted) ** 2)) / wanted.std()
    assert 0 < off < {"Q8_0": 0.05, "F16": 0.005, "BF16": 0.05, "Q4_1": 0.5}[kind]


def test_what_else_a_file_says(written: Any) -> None:
    loaded = load_target(written("llama")[0])
    assert loaded.eos_ids == (256, 257)  # as named, and the end of a chat turn
    assert loaded.target.info.name == "tiny"
    assert loaded.template is not None
    ids = loaded.template.encode(loaded.tokenizer, [{"role": "user", "content": "a<s>"}])
    assert spelt(loaded.tokenizer, ids) == "<s>a<s>"
    assert ids.tolist().count(256) == 1


# ---- damage --------------------------------------------------------------------------------------------------


def metadata(**fields: Any) -> GgufFile:
    """A file without tensors; a key ``llama__x`` stands for ``llama.x``."""
    made = {
        "general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 64,
        "llama.embedding_length": 16, "llama.feed_forward_length": 16, "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    } | {k.replace("__", "."): v for k, v in fields.items()}  # fmt: skip

    def text(t: str) -> bytes:
        return struct.pack("<Q", len(t)) + t.encode()

    def value(v: Any) -> bytes:
        if isinstance(v, str):
            return struct.pack("<I", 8) + text(v)
        if isinstance(v, list):
            return struct.pack("<IIQ", 9, 4, len(v)) + struct.pack(f"<{len(v)}I", *v)
        return struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<II", 4, v)

    given = {k: v for k, v in made.items() if v is not None}
    body = b"".join(text(k) + value(v) for k, v in given.items())
    return GgufFile(b"GGUF" + struct.pack("<IQQ", 3, 0, len(given)) + body, "m.gguf")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"general__architecture": "mamba"}, "'mamba' is not run"),
        ({"llama__expert_count": 8}, "llama.expert_count = 8"),
        ({"llama__attention__head_count_kv": [1, 2]}, "change from layer to layer"),
        ({"llama__attention__value_length": 4}, "another width than keys"),
        ({"llama__attention__sliding_window": 4}, "sliding window"),
        ({"llama__rope__dimension_count": 4}, "rotates 4 of 8"),
        ({"llama__rope__scaling__type": "longrope"}, "'longrope'"),
    ],
)
def test_other_arithmetic_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(NotABlock, match=named):
        gguf_config(metadata(**fields))


def test_metadata_that_are_missing() -> None:
    with pytest.raises(ModelError, match=r"lack llama\.block_count"):
        gguf_config(metadata(llama__block_count=None))
    with pytest.raises(ModelError, match="one shard of 3"):
        metadata(split__count=3)


@pytest.mark.parametrize("key", ["split.count", "general.alignment"])
@pytest.mark.parametrize("value", ["3", [1, 2], 2.5])
def test_metadata_of_the_wrong_kind_are_named_with_their_file(key: str, value: Any) -> None:
    with pytest.raises(ModelError, match=rf"m\.gguf is not a sound GGUF file: {key} is .*; it must be a whole number"):
        metadata(**{key.replace(".", "__"): value})
    assert metadata(**{key.replace(".", "__"): 0}).architecture == "llama"  # 0 stands for the default


@pytest.mark.parametrize(
    ("key", "value"),
    [("eos_token_id", [256]), ("eot_token_id", "x"), ("chat_template", 5)],
)
def test_tokenizer_metadata_of_the_wrong_kind(key: str, value: Any, written: Any, monkeypatch: Any) -> None:
    path, _ = written("llama")
    whole = GgufFile.get
    spoilt = f"tokenizer.{'' if 'template' in key else 'ggml.'}{key}"
    monkeypatch.setattr(GgufFile, "get", lambda file, key: value if key == spoilt else whole(file, key))
    with pytest.raises(ModelError, match=rf"tiny\.gguf has {spoilt} = .*; it must be "):
        load_target(path)


@pytest.mark.parametrize("id", [0xFFFFFFFF, 272, -1])
def test_end_tokens_outside_the_vocabulary_are_none(id: int, written: Any, monkeypatch: Any) -> None:
    path, _ = written("llama")
    whole = GgufFile.get
    monkeypatch.setattr(GgufFile, "get", lambda file, key: id if key.endswith("eos_token_id") else whole(file, key))
    assert load_target(path).eos_ids == (257,)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "does not begin with GGUF"),
        (b"PK\x03\x04" * 20, "does not begin with GGUF"),
        (b"GGUF\x09\x00\x00\x00" + bytes(16), "version 9"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, "more than the file holds"),
        (b"GGUF\x03\x00\x00\x00" + bytes(8) + b"\x01" + bytes(7), "it counts 1 entries"),
    ],
)
def test_files_that_are_not_gguf(data: bytes, named: str) -> None:
    with pytest.raises(ModelError, match=f"m.gguf is not a sound GGUF file: .*{named}"):
        GgufFile(data, "m.gguf")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_spoilt_file_is_a_model_error_or_a_model(data: st.DataObject, written: Any, tmp_path: Path) -> None:
    """No damage of the header may raise anything else, or take memory that the file does not have."""
    if not hasattr(written, "whole"):
        written.whole = written("qwen2")[0].read_bytes()
    spoilt = bytearray(written.whole)
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, 2500))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(spoilt)) | st.just(len(spoilt)))
    path = tmp_path / "spoilt.gguf"
    path.write_bytes(spoilt[:cut])
    with contextlib.suppress(ModelError):
        load_target(path, dtype="float32", max_model_len=16)
