"""The roofline against figures reckoned by hand, and its limits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.bench.plan.hardware import PRESETS, preset
from augury.bench.plan.roofline import PRECISIONS, Hardware, Shape, forward, free_rows, held
from augury.bench.plan.sizes import amount, head_of, in_bits, name_of, of_model, of_size, precision
from augury.errors import InputError, ModelError, UnknownName

ROUND = Hardware("round", 1000.0, 100.0, 200.0)  # 1 GB a millisecond, 0.1 T products a millisecond
TEN = Shape("10B", 10e9, "bf16", 10, 1e6, 1e5)

rows = st.integers(1, 10_000)
batches = st.integers(1, 512)
contexts = st.integers(0, 100_000)


def test_reading_the_weights_bounds_few_rows():
    one = forward(ROUND, TEN, 1, 1, 0)
    assert one.ms == pytest.approx(20.0)  # 20 GB
    assert one.memory == one.ms
    assert one.bound == "memory"


def test_multiplying_bounds_many_rows():
    many = forward(ROUND, TEN, 1000, 1000, 0)
    assert many.ms == pytest.approx(200.0)  # 2 x 10e9 x 1000 at 100e12 a second
    assert many.compute == many.ms
    assert many.bound == "compute"


def test_weights_and_attention_each_wait_for_their_own():
    # Weights: 20 ms of reading. Attention of 8 rows of one request: 1 GB of cache takes 1 ms, 4 x 1e5 x 8 x 1e3
    # products 0.032 ms.
    assert forward(ROUND, TEN, 8, 1, 1000).ms == pytest.approx(21.0)
    # 1000 rows of one request: 200 ms of products; its cache is read once, and 0.4 x 1e12 / 1e14 s are 4 ms.
    one = forward(ROUND, TEN, 1000, 1, 1000)
    assert (one.memory, one.compute) == (0.0, pytest.approx(204.0))
    # 1000 requests: products of the weights 200 ms, their caches 1000 ms.
    both = forward(ROUND, TEN, 1000, 1000, 1000)
    assert (both.memory, both.compute) == (pytest.approx(1000.0), pytest.approx(200.0))
    assert both.bound == "memory"


def test_overhead_is_on_top_and_bounds_what_is_small():
    slow = Hardware("slow", 1000.0, 100.0, overhead=0.5)
    tiny = Shape("tiny", 1e6, "bf16", 1, 0.0, 0.0)
    assert forward(slow, tiny, 1, 1, 0).ms == pytest.approx(0.502)
    assert forward(slow, tiny, 1, 1, 0).bound == "overhead"


def test_fewer_bits_are_fewer_bytes_and_only_fp8_multiplies_faster():
    def ms(bits, rows):
        return forward(ROUND, in_bits(TEN, "", bits), rows, rows, 0).ms

    assert [ms(bits, 1) for bits in ("bf16", "fp8", "int8", "int4")] == pytest.approx([20.0, 10.0, 10.625, 5.625])
    assert [ms(bits, 1000) for bits in ("bf16", "fp8", "int8", "int4")] == pytest.approx([200.0, 100.0, 200.0, 200.0])
    assert Hardware("old", 1000.0, 100.0).rate("fp8") == 100.0


@settings(deadline=None)
@given(rows, batches, contexts, st.sampled_from([*PRECISIONS]))
def test_more_work_never_takes_less_time(rows, batch, context, bits):
    shape = in_bits(TEN, "", bits)
    now = forward(ROUND, shape, rows, batch, context).ms
    assert forward(ROUND, shape, rows + 1, batch, context).ms >= now
    assert forward(ROUND, shape, rows, batch + 1, context).ms >= now
    assert forward(ROUND, shape, rows, batch, context + 1).ms >= now


@settings(deadline=None)
@given(st.sampled_from([*PRESETS.values()]), st.sampled_from([*PRECISIONS]))
def test_free_rows_are_where_memory_and_arithmetic_cross(hardware, bits):
    shape = in_bits(TEN, "", bits)
    free = free_rows(hardware, shape)
    one = forward(hardware, shape, 1, 1, 0).ms
    assert forward(hardware, shape, free, free, 0).ms == pytest.approx(one)
    assert forward(hardware, shape, free, free, 0).bound == "memory"
    assert forward(hardware, shape, free + 1, free + 1, 0).bound == "compute"


def test_the_ridge_of_an_h100_in_bf16():
    assert free_rows(preset("H100"), TEN) == 295  # 989e12 / 3350e9, two products and two bytes a weight


def test_what_a_model_takes_of_memory():
    assert held(TEN, 4, 1000) == pytest.approx(20.0 + 4.0)


# ---- hardware by name ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["RTX-4090", "rtx 4090", "RTX4090", "rtx_4090"])
def test_names_are_read_however_they_are_spelt(name):
    assert preset(name).bandwidth == 1008


def test_an_a100_is_the_one_with_80_gb():
    assert preset("A100") is preset("A100-80G")


def test_an_unknown_name_says_the_nearest_and_all():
    with pytest.raises(UnknownName, match=r"'H10O'; did you mean 'H100'\? Valid: .*MI300X.*--bandwidth and --flops"):
        preset("H10O")


def test_presets_are_possible():
    for name, one in PRESETS.items():
        assert one.name == name
        assert one.overhead == 0.0
        assert 10 < one.bandwidth < 20_000
        assert one.flops8 is None or one.flops8 == pytest.approx(2 * one.flops, rel=0.02)


# ---- shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parameters"), [("70B", 70e9), ("0.3b", 0.3e9), ("135M", 135e6), (" 1.5T ", 1.5e12), ("0.1M", 1e5)]
)
def test_amounts(text, parameters):
    assert amount(text, "--params") == pytest.approx(parameters)


@pytest.mark.parametrize("text", ["70", "B", "-8B", "8 B", "1e3B", "8Q", "", "٣B", "nan"])
def test_what_is_no_amount_is_told_how_to_be_one(text):
    with pytest.raises(InputError, match=r"--params .* as in 70B"):
        amount(text, "--params")


@pytest.mark.parametrize(("text", "near"), [("0.01M", "0.1M"), ("200T", "100T"), ("0B", "0.1M")])
def test_amounts_no_model_has(text, near):
    with pytest.raises(InputError, match=f"the nearest is {near}"):
        amount(text, "--params")


def test_a_size_of_the_family_has_the_shape_of_its_config():
    found = of_size("8B", 8.03e9, "bf16")
    assert found.layers == 32
    assert found.kv_bytes == pytest.approx(131072)  # 2 x 32 layers x 8 heads x 128 x 2 bytes
    assert found.width == pytest.approx(32 * 4096)
    assert found.weight_bytes == pytest.approx(16.06e9)


@settings(deadline=None)
@given(st.floats(1e6, 1e12), st.floats(1.0, 10.0))
def test_larger_models_keep_no_less(parameters, times):
    small, large = (of_size("", p, "bf16") for p in (parameters, parameters * times))
    assert large.kv_bytes >= small.kv_bytes * (1 - 1e-12)
    assert large.layers >= small.layers
    assert of_size("", parameters, "int4").kv_bytes == small.kv_bytes  # the cache stays in 16 bits


def test_a_head_is_one_layer_of_its_target():
    found = head_of(TEN, "head", 1e9)
    assert (found.layers, found.kv_bytes, found.width, found.precision) == (1, 1e5, 1e4, "bf16")


@pytest.mark.parametrize(("text", "name"), [("16", "bf16"), ("8", "int8"), ("4", "int4"), ("FP8", "fp8")])
def test_precisions_by_name_and_by_bits(text, name):
    assert precision(text, "--bits") == name


def test_an_unknown_precision():
    with pytest.raises(UnknownName, match="precision of --bits 'int5'; did you mean"):
        precision("int5", "--bits")


@pytest.mark.real
def test_the_embedded_model_is_read_from_its_files():
    found = of_model("smollm2-135m", "bf16")
    assert found.parameters == 134_515_008
    assert found.layers == 30
    assert found.kv_bytes == 2 * 2 * 30 * 3 * 64
    assert found.width == 30 * 576


def test_a_directory_is_read_from_its_config(tmp_path):
    config = {
        "model_type": "llama", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    untied = of_model(str(tmp_path), "int8")
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    assert of_model(str(tmp_path), "int8").parameters == untied.parameters  # of an untied embedding one row is read
    per_layer = 8 * (4 + 2 + 2) * 2 + 8 * 8 + 3 * 8 * 16 + 2 * 8
    assert untied.parameters == 2 * per_layer + 8 + 100 * 8
    assert (untied.kv_bytes, untied.width) == (2 * 2 * 2 * 2 * 2, 2 * 8)


def test_a_model_is_called_by_its_directory_or_file_dots_included(tmp_path, monkeypatch):
    (tmp_path / "Llama-3.2-1B").mkdir()
    (tmp_path / "Llama-3.2-1B.gguf").write_bytes(b"")
    assert name_of(str(tmp_path / "Llama-3.2-1B")) == name_of(str(tmp_path / "Llama-3.2-1B.gguf")) == "Llama-3.2-1B"
    monkeypatch.chdir(tmp_path / "Llama-3.2-1B")
    assert name_of(".") == "Llama-3.2-1B"
    assert name_of("not-here-1.5") == "not-here-1.5"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "has no config.json"),
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"model_type": "mamba"}', "'mamba' is not run by the block.*; give its size, as in 70B"),
    ],
)
def test_a_directory_that_cannot_be_read(tmp_path, content, said):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=said):
        of_model(str(tmp_path), "bf16")


def test_a_model_that_is_not_there():
    with pytest.raises(UnknownName, match="unknown model 'smollm-135m'; did you mean 'smollm2-135m'"):
        of_model("smollm-135m", "bf16")
    with pytest.raises(ModelError, match=r"there is no file x\.gguf"):
        of_model("x.gguf", "bf16")
