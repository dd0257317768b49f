"""transformers: ``generate`` as it comes, eager mode, bf16.

Options: ``model`` (a directory), ``threads``, and ``lookup``, how many tokens prompt lookup guesses, or none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def start(options: Mapping[str, Any]) -> tuple[Callable[..., None], Sequence[str]]:
    """See ``worker.py``."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.set_num_threads(options["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(options["model"], dtype=torch.bfloat16).eval()
    guessing = {"prompt_lookup_num_tokens": options["lookup"]} if options.get("lookup") else {}

    def answer(prompt: list[int], max_tokens: int, eos: list[int], emit: Callable[[Sequence[int]], None]) -> None:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens,
                eos_token_id=eos, pad_token_id=eos[0], streamer=_Streamer(emit), **guessing,
            )  # fmt: skip

    return answer, ["transformers", "torch"]


class _Streamer:
    """What ``generate`` hands tokens to; the first it hands is the prompt."""

    def __init__(self, emit: Callable[[Sequence[int]], None]) -> None:
        self._emit = emit
        self._prompt = True

    def put(self, value: Any) -> None:
        if not self._prompt:
            self._emit(value.flatten().tolist())
        self._prompt = False

    def end(self) -> None:
        pass
