"""OpenVINO as a peer, in a Python of its own: run by path, with nothing of Augury imported.

    python -I openvino_worker.py convert MODEL_DIRECTORY TARGET_DIRECTORY
    python -I openvino_worker.py serve TARGET_DIRECTORY THREADS LOOKUP

``convert`` needs optimum-intel, ``serve`` openvino-genai. ``serve`` prints a JSON line with its name when it
is ready, then reads one JSON request a line, ``{"prompt": [ids], "max_tokens": n, "eos": [ids]}``, and answers
with ``{"stamps": [[milliseconds, tokens so far], ...], "tokens": [ids]}``.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

LOOKUP_TOKENS, LOOKUP_NGRAM = 10, 3


def convert(model: str, out: str) -> None:
    """Write the model of a Hugging Face directory as OpenVINO's, weights unchanged."""
    intel = importlib.import_module("optimum.intel")
    converted = intel.OVModelForCausalLM.from_pretrained(model, export=True, compile=False, load_in_8bit=False)
    converted.save_pretrained(out)


def serve(directory: str, threads: int, lookup: bool) -> None:
    """Answer greedily until the input ends; arithmetic in bf16 where the processor has it."""
    openvino, genai = importlib.import_module("openvino"), importlib.import_module("openvino_genai")
    numpy = importlib.import_module("numpy")
    options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads}
    if lookup:
        options["prompt_lookup"] = True
    pipe = genai.LLMPipeline(directory, "CPU", **options)

    class Clock(genai.StreamerBase):  # type: ignore[misc, name-defined] # its base is known only where OpenVINO is
        def __init__(self) -> None:
            super().__init__()
            self.stamps: list[tuple[float, int]] = []
            self.tokens: list[int] = []

        def write(self, token: int | list[int]) -> Any:
            self.tokens += token if isinstance(token, list) else [token]
            self.stamps.append((1e3 * time.perf_counter(), len(self.tokens)))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    print(json.dumps({"name": f"OpenVINO {openvino.get_version().split('-')[0]}"}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        config = genai.GenerationConfig()
        config.max_new_tokens = asked["max_tokens"]
        config.do_sample = False
        config.eos_token_id = asked["eos"][0]
        config.stop_token_ids = set(asked["eos"])
        if lookup:
            config.num_assistant_tokens, config.max_ngram_size = LOOKUP_TOKENS, LOOKUP_NGRAM
        clock = Clock()
        pipe.generate(openvino.Tensor(numpy.asarray([asked["prompt"]], numpy.int64)), config, clock)
        print(json.dumps({"stamps": clock.stamps, "tokens": clock.tokens}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(sys.argv[2], sys.argv[3])
    else:
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1")
