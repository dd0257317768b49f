"""The comparison with other engines: how they are set, who is left out, and what is written."""

import json
import os
import sys
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny import SHAPE, byte_tokenizer, randomise
from typer import Typer
from typer.testing import CliRunner

from augury.bench import peers
from augury.bench.exported import bf16_gguf, file_type, gguf_path
from augury.bench.peers import CONTEXT_SPARE, others, python_of, started
from augury.bench.runners import WORKER, PeerFailed, Setup
from augury.errors import UnknownName
from augury.models.gguf_file import GgufFile


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A GGUF file with some metadata of each kind and a few tensors."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_token_list(["a", "é", "<|im_end|>"])
    writer.add_token_types([1, 1, 3])
    writer.add_add_bos_token(False)
    drawn = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("token_embd.weight", gguf.quants.quantize(drawn, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.linspace(0.5, 1.5, 64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_written_anew_in_bf16_with_the_values_that_our_loader_gives(stored, tmp_path):
    out = tmp_path / "bf16.gguf"
    bf16_gguf(stored, out)
    before, after = GgufFile.open(stored), GgufFile.open(out)
    assert (file_type(stored), file_type(out)) == ("Q8_0", "BF16")
    keys = (
        "general.architecture", "llama.block_count", "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type", "tokenizer.ggml.add_bos_token",
    )  # fmt: skip
    for key in keys:
        assert after.get(key) == before.get(key) is not None
    assert list(after.names()) == list(before.names())
    matrix, vector = "token_embd.weight", "output_norm.weight"
    assert (after.read(matrix) == before.read(matrix).bfloat16().float()).all()
    assert not (after.read(matrix) == before.read(matrix)).all()
    assert (after.read(vector) == before.read(vector)).all()


def test_where_a_gguf_file_lies(stored, tmp_path):
    assert gguf_path(str(stored), tmp_path) == stored
    assert gguf_path(str(tmp_path), tmp_path) is None


def test_every_engine_runs_plainly_and_guessing_with_our_weights(stored, tmp_path):
    setups = others(tmp_path / "model", stored, tmp_path, threads=2, context=512)
    assert len({s.name for s in setups}) == len(setups)
    assert set(peers.ENGINES) == {s.engine for s in setups}
    for engine in peers.ENGINES:
        same = [s for s in setups if s.engine == engine and s.same_weights]
        assert [" + " in s.name for s in same] == [False] + [True] * (len(same) - 1)
        assert len(same) >= 2
        assert WORKER.with_name(f"{engine}.py").is_file()
    assert [s.name for s in setups if not s.same_weights] == [
        "OpenVINO, int8 weights", "OpenVINO, int8 weights + prompt lookup",
        "llama.cpp, Q8_0 file", "llama.cpp, Q8_0 file + prompt lookup",
    ]  # fmt: skip
    for setup in setups:
        assert setup.options["threads"] == 2
        json.dumps(setup.options)
    assert not [s for s in others(tmp_path, None, tmp_path, 2, 512) if s.engine == "llamacpp"]


def test_each_foreign_engine_has_its_pinned_packages():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    for engine in set(peers.ENGINES) - {"transformers"}:
        lines = WORKER.with_name(f"{engine}.txt").read_text().splitlines()
        assert all("==" in line for line in lines if line and not line.startswith("#"))
        assert engine in makefile


def test_room_for_guesses_is_more_than_any_engine_guesses(tmp_path):
    for setup in others(tmp_path, None, tmp_path, 1, 256):
        speculation = setup.options.get("speculation") or {}
        assert setup.options.get("lookup", speculation.get("num_speculative_tokens", 0)) < CONTEXT_SPARE


def test_an_engine_without_an_environment_is_left_out_with_how_to_make_it(tmp_path):
    assert python_of("transformers", tmp_path) == Path(sys.executable)
    with pytest.raises(PeerFailed, match=f"make {tmp_path}/vllm/ready"):
        python_of("vllm", tmp_path)


def test_one_failed_peer_does_not_stop_the_others(tmp_path):
    """A worker of this environment lacks vLLM; another has a Python that is none."""
    (tmp_path / "vllm/bin").mkdir(parents=True)
    (tmp_path / "vllm/bin/python").symlink_to(sys.executable)
    (tmp_path / "openvino/bin").mkdir(parents=True)
    (tmp_path / "openvino/bin/python").write_text("no program")
    setups = [
        Setup(engine, engine, "", options={"threads": 1, "model": "x", "converted": str(tmp_path)})
        for engine in ("vllm", "openvino", "llamacpp")
    ]
    said: list[str] = []
    with started(setups, tmp_path, 1, said.append) as (found, left):
        assert found == []
    assert said == [one.peer for one in left] == ["vllm", "openvino", "llamacpp"]
    reasons = [one.reason for one in left]
    assert "ModuleNotFoundError" in reasons[0]
    assert "cannot be run" in reasons[1]
    assert "not installed" in reasons[2]


def test_an_unknown_engine_lists_the_known_ones_before_anything_is_loaded():
    assert peers._named("vllm, openvino") == ["vllm", "openvino"]
    assert peers._named("") == list(peers.ENGINES)
    with pytest.raises(UnknownName, match="transformers"):
        peers.main(model="no such model", engines="sglang")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The directory of a tiny random model."""
    path = tmp_path_factory.mktemp("model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM

        made = LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True))
        randomise(made, 0)
        made.save_pretrained(path)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|im_end|>"}))
    return path


def test_transformers_answers_beside_us_and_everything_is_written(model, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "FORWARD_CONTEXT", 24)
    monkeypatch.setattr(peers, "FORWARD_REPEATS", 1)
    rows = [{"id": kind, "kind": kind, "prompt": text} for kind, text in (("code", "abcabcabc"), ("prose", "hello"))]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    app = Typer()
    app.command()(peers.main)
    arguments = [
        "--model", model, "--drafters", "suffix", "--file", tmp_path / "prompts.jsonl", "--max-tokens", 12,
        "--rounds", 1, "--threads", 1, "--engines", "transformers,openvino", "--environments", tmp_path,
        "--json", tmp_path / "out.json",
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(app, [str(a) for a in arguments], env={**os.environ, "COLUMNS": "250"})
    assert done.exit_code == 0, (done.output, done.exception)
    for words in ("the same bf16 weights", "augury drafted", "+ prompt lookup", "prompt_lookup_num_tokens=5"):
        assert words in done.output
    assert "left out: OpenVINO: not installed" in done.output
    assert "left out: transformers, assisted generation" in done.output
    assert "other precision" not in done.output
    written = json.loads((tmp_path / "out.json").read_text())
    standings = written["standings"]
    assert [s["setup"]["name"] for s in standings] == [
        "augury plain", "augury drafted", "transformers", "transformers + prompt lookup",
    ]  # fmt: skip
    assert standings[0]["speed"] == 1.0
    assert max(s["to_best"] for s in standings[2:]) == 1.0
    assert set(standings[2]["versions"]) == {"transformers", "torch"}
    assert set(standings[3]["by_kind"]) == {"code", "prose"}
    assert all(s["answers"] == 2 for s in standings)
    assert standings[1]["equal"] == 2
    assert {"vllm", "llamacpp", "OpenVINO", "OpenVINO + prompt lookup"} <= {one["peer"] for one in written["left_out"]}
    assert len(written["answers"]) == 4
