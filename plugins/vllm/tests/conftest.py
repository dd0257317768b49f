"""A small model as vLLM loads it, and engines that end with the test that started them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

MODEL = "smollm2-135m"
TOKENS = 5


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the embedded model."""
    from augury_vllm.model import write

    directory = tmp_path_factory.mktemp("model")
    write(MODEL, directory)
    return directory


@pytest.fixture(scope="session")
def prompts(model: Path) -> list[list[int]]:
    """One of each kind of our own."""
    from augury_vllm.compare import prompts_of

    from augury.bench.prompts import own, select

    return list(prompts_of(str(model), select(own(), (), 1), 900).values())


def speculation(method: str = "augury", **augury: Any) -> dict[str, Any]:
    """Arguments of ``vllm.LLM`` for a way to speculate. Prices are given unless said otherwise, so that what is guessed
    does not depend on what else the machine does.
    """
    config: dict[str, Any] = {
        "augury": {"method": "custom_class", "model": "augury_vllm.AuguryProposer"},
        "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
        "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    }[method]
    speculative = {**config, "num_speculative_tokens": TOKENS}
    return {
        "speculative_config": speculative,
        "additional_config": {"augury": {"prices": "given", "row": 0.005, **augury}},
    }


@contextmanager
def engine(model: Path, **options: Any) -> Iterator[Any]:
    """A ``vllm.LLM`` in float32, where answers part by rounding in one of very many tokens only."""
    import vllm

    settings: dict[str, Any] = {
        "model": str(model), "dtype": "float32", "max_model_len": 1024, "max_num_seqs": 16, "enforce_eager": True,
        "enable_prefix_caching": False, "disable_log_stats": False, "seed": 0,
    }  # fmt: skip
    llm = vllm.LLM(**{**settings, **options})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def answers(llm: Any, prompts: Sequence[Sequence[int]], tokens: int = 48, **sampling: Any) -> list[Any]:
    """Outputs of the prompts, greedy if nothing else is asked for."""
    import vllm

    parameters = vllm.SamplingParams(**{"temperature": 0.0, "max_tokens": tokens, **sampling})
    return llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], parameters, use_tqdm=False)


def ids(outputs: Sequence[Any]) -> list[list[int]]:
    """Token ids of the first answer to each prompt."""
    return [list(output.outputs[0].token_ids) for output in outputs]


def metric(llm: Any, name: str) -> int:
    """One of vLLM's own counters."""
    return sum(int(one.value) for one in llm.get_metrics() if one.name == f"vllm:{name}")
