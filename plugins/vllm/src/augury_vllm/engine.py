"""vLLM in a process of its own, for comparisons: JSON lines in, JSON lines out.

    python -m augury_vllm.engine OPTIONS

OPTIONS are arguments of ``vllm.LLM``. One line says that it is ready. Then each line read, ``{"prompts": [[ids], ...],
"max_tokens": n}``, is answered greedily with ``{"tokens": [[ids], ...], "ms": milliseconds, "counts": {name: value}}``,
where the counts are those of vLLM's own metrics of speculation since the engine began.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

COUNTS = ("drafts", "draft_tokens", "accepted_tokens")
"""vLLM's counters of speculation, by what stands behind ``vllm:spec_decode_num_``."""


@dataclass(frozen=True)
class Answered:
    """What an engine said to some prompts at once.

    Attributes:
        tokens: ids of each answer.
        ms: from the first prompt to the last token.
        counts: of ``COUNTS``, since the engine began.
    """

    tokens: Sequence[Sequence[int]]
    ms: float
    counts: Mapping[str, int]


class Engine:
    """A process that answers.

    Args:
        options: arguments of ``vllm.LLM``.

    Raises:
        RuntimeError: it does not start.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._said()

    def answer(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Answered:
        """Answer prompts in token ids, all at once, and as long as is asked for."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self._process.stdin.flush()
        return Answered(**self._said())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _said(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("vLLM ended; what it says of it stands above")
        said: dict[str, Any] = json.loads(line)
        return said


def main(options: Mapping[str, Any]) -> None:
    """Start vLLM, and answer until the input ends."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer
    # Of two cores vLLM would keep one for its scheduler unless it is told which to use.
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    ours = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}  # fmt: skip
    for name, value in ours.items():
        os.environ.setdefault(name, value)
    vllm = import_module("vllm")
    llm = vllm.LLM(**options, disable_log_stats=False)
    _say(lines, {"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        sampling = vllm.SamplingParams(
            temperature=0.0, max_tokens=asked["max_tokens"], ignore_eos=True, detokenize=False
        )
        began = time.perf_counter()
        answers = llm.generate([{"prompt_token_ids": ids} for ids in asked["prompts"]], sampling, use_tqdm=False)
        ms = 1e3 * (time.perf_counter() - began)
        tokens = [list(answer.outputs[0].token_ids) for answer in answers]
        _say(lines, {"tokens": tokens, "ms": ms, "counts": counts(llm)})


def counts(llm: Any) -> dict[str, int]:
    """The counters of speculation of vLLM itself, see ``COUNTS``."""
    found = {metric.name: int(metric.value) for metric in llm.get_metrics() if hasattr(metric, "value")}
    return {name: found.get(f"vllm:spec_decode_num_{name}", 0) for name in COUNTS}


def _say(lines: Any, message: Mapping[str, Any]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
