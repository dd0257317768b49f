"""Runners of the same model side by side: ours, transformers and OpenVINO behind one interface."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from augury.bench.openvino_worker import LOOKUP_TOKENS
from augury.errors import InputError, ModelError
from augury.tree import IntArray

if TYPE_CHECKING:
    from augury.engine.engine import Engine

_WORKER = Path(__file__).with_name("openvino_worker.py")

Stamps = Sequence[tuple[float, int]]
"""(milliseconds, tokens so far) for every piece of an answer."""


@dataclass(frozen=True)
class Timed:
    """One answer of one peer.

    Attributes:
        tokens: its ids.
        stamps: when which part of it came.
    """

    tokens: tuple[int, ...]
    stamps: Stamps

    @property
    def token_ms(self) -> float | None:
        """Milliseconds a token between the first piece and the last; None for an answer of one piece."""
        (begin, had), (end, have) = self.stamps[0], self.stamps[-1]
        return (end - begin) / (have - had) if have > had else None


class Peer(Protocol):
    """Something that answers greedily."""

    name: str

    def answer(self, prompt: IntArray, max_tokens: int, eos: Sequence[int]) -> Timed:
        """Answer i32[m] token ids."""
        ...


class Ours:
    """Augury itself, plain or drafted."""

    def __init__(self, engine: Engine, draft: bool) -> None:
        self.name = "augury drafted" if draft else "augury plain"
        self._engine = engine
        self._draft = draft

    def answer(self, prompt: IntArray, max_tokens: int, eos: Sequence[int]) -> Timed:
        """See ``Peer``; the engine has its own ``eos``."""
        self._engine.close()  # the cache of the answer before is not to help
        tokens: list[int] = []
        stamps = []
        for chunk in self._engine.stream(prompt, max_tokens=max_tokens, draft=self._draft):
            tokens += chunk.tokens
            stamps.append((1e3 * time.perf_counter(), len(tokens)))
        return Timed(tuple(tokens), stamps)


class Transformers:
    """``generate`` of transformers, as it comes: eager mode, bf16."""

    def __init__(self, model: Any, lookup: bool) -> None:
        self.name = f"transformers bf16{' + prompt lookup' if lookup else ''}"
        self._model = model
        self._options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if lookup else {}

    def answer(self, prompt: IntArray, max_tokens: int, eos: Sequence[int]) -> Timed:
        """See ``Peer``."""
        import torch

        clock = _Streamer()
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        with torch.inference_mode():
            self._model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens,
                eos_token_id=list(eos), pad_token_id=eos[0], streamer=clock, **self._options,
            )  # fmt: skip
        return Timed(tuple(clock.tokens), clock.stamps)


class _Streamer:
    """What ``generate`` hands tokens to; the first it hands is the prompt."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.stamps: list[tuple[float, int]] = []
        self._prompt = True

    def put(self, value: Any) -> None:
        if self._prompt:
            self._prompt = False
            return
        self.tokens += value.flatten().tolist()
        self.stamps.append((1e3 * time.perf_counter(), len(self.tokens)))

    def end(self) -> None:
        pass


class OpenVino:
    """OpenVINO GenAI in a process of its own; see ``openvino_worker.py``."""

    def __init__(self, process: subprocess.Popen[str], lookup: bool) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to: IO[str] = process.stdin
        self._from: IO[str] = process.stdout
        self.name = f"{self._next()['name']} bf16{' + prompt lookup' if lookup else ''}"

    def answer(self, prompt: IntArray, max_tokens: int, eos: Sequence[int]) -> Timed:
        """See ``Peer``."""
        request = {"prompt": prompt.tolist(), "max_tokens": max_tokens, "eos": list(eos)}
        self._to.write(json.dumps(request) + "\n")
        self._to.flush()
        got = self._next()
        return Timed(tuple(got["tokens"]), [(ms, count) for ms, count in got["stamps"]])

    def _next(self) -> Any:
        line = self._from.readline()
        if not line:
            raise ModelError("the OpenVINO process ended; run openvino_worker.py by hand to see why")
        return json.loads(line)


@contextmanager
def openvino(python: Path, directory: Path, threads: int, lookup: bool) -> Iterator[OpenVino]:
    """A running OpenVINO peer for a converted model."""
    command = [str(python), "-I", str(_WORKER), "serve", str(directory), str(threads), str(int(lookup))]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, text=True)
    try:
        yield OpenVino(process, lookup)
    finally:
        process.kill()
        process.communicate()


def transformers_model(model: str) -> Any:
    """The model's weights, as our loader dequantises them, in a bf16 model of transformers.

    Raises:
        InputError: a GGUF file that is not of the Llama family.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if Path(model).is_dir():
        return AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    from augury.models.families import block_config
    from augury.models.gguf_file import gguf_config, gguf_weights
    from augury.models.load import open_gguf

    file = open_gguf(model)
    stored = gguf_config(file)
    if stored.pop("model_type") != "llama":
        raise InputError(f"{model} is a GGUF of {file.architecture}; peers are compared on llama, or on a directory")
    config = block_config({"model_type": "llama", **stored}, None)
    weights = gguf_weights(config, file)
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    state = {"model.embed_tokens.weight": weights["embed"], "model.norm.weight": weights["final_norm"]}
    state["lm_head.weight"] = weights["embed" if config.tied else "head"]
    for i in range(config.layers):
        ours, theirs = f"layers.{i}.", f"model.layers.{i}."
        parts = zip(("q", "k", "v"), torch.split(weights[ours + "qkv"], [q, kv, kv]), strict=True)
        halves = zip(("gate", "up"), weights[ours + "gate_up"].chunk(2), strict=True)
        state |= {f"{theirs}self_attn.{name}_proj.weight": w for name, w in parts}
        state |= {f"{theirs}mlp.{name}_proj.weight": w for name, w in halves}
        state[theirs + "self_attn.o_proj.weight"] = weights[ours + "o"]
        state[theirs + "mlp.down_proj.weight"] = weights[ours + "down"]
        state[theirs + "input_layernorm.weight"] = weights[ours + "attn_norm"]
        state[theirs + "post_attention_layernorm.weight"] = weights[ours + "mlp_norm"]
    built = LlamaForCausalLM(LlamaConfig(**stored, bos_token_id=None, eos_token_id=None)).to(torch.bfloat16)
    built.load_state_dict(state)
    return built.eval()


def converted(python: Path, model: Any, directory: Path) -> Path:
    """Save a model of transformers, and let the other Python write it as OpenVINO's; gives where."""
    model.save_pretrained(directory / "model")
    command = [str(python), "-I", str(_WORKER), "convert", str(directory / "model"), str(directory / "openvino")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ModelError(f"{python} could not convert the model: {done.stderr.strip().splitlines()[-1]}")
    return directory / "openvino"
