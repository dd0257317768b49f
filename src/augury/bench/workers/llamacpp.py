"""llama.cpp through llama-cpp-python.

Options: ``model`` (a GGUF file), ``threads``, ``context`` (tokens of prompt and answer at most) and ``lookup``, how
many tokens its prompt lookup guesses, or none. Needs llama-cpp-python.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def start(options: Mapping[str, Any]) -> tuple[Callable[..., None], Sequence[str]]:
    """See ``worker.py``."""
    llama = importlib.import_module("llama_cpp")
    guesser = None
    if options.get("lookup"):
        speculative = importlib.import_module("llama_cpp.llama_speculative")
        guesser = speculative.LlamaPromptLookupDecoding(num_pred_tokens=options["lookup"])
    threads = options["threads"]
    # With logits_all left alone, a guesser needs the logits of all positions but has room for those of one batch.
    model = llama.Llama(
        options["model"], n_ctx=options["context"], n_threads=threads, n_threads_batch=threads, draft_model=guesser,
        logits_all=guesser is not None, verbose=False,
    )  # fmt: skip

    def answer(prompt: list[int], max_tokens: int, eos: list[int], emit: Callable[[Sequence[int]], None]) -> None:
        model.reset()  # the cache of the answer before is not to help
        for number, token in enumerate(model.generate(prompt, temp=0.0), 1):
            emit([token])
            if token in eos or number == max_tokens:
                break

    return answer, ["llama-cpp-python"]
