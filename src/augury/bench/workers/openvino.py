"""OpenVINO GenAI on the CPU, with the arithmetic it chooses: bf16 where the processor has it, else f32.

Options: ``model`` (a directory), ``converted`` (where that model is written in OpenVINO's format, if it is not there
yet), ``int8`` (whether its weights are then 8-bit integers), ``threads``, and for prompt lookup ``lookup`` (tokens
guessed) and ``ngram`` (tokens matched at most). Needs openvino-genai, and optimum-intel to convert:

    python -I openvino.py MODEL CONVERTED INT8
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def convert(model: str, out: str, int8: bool) -> None:
    """Write the model of a Hugging Face directory as OpenVINO's, its weights unchanged or in 8 bits."""
    intel = importlib.import_module("optimum.intel")
    converted = intel.OVModelForCausalLM.from_pretrained(model, export=True, compile=False, load_in_8bit=int8)
    converted.save_pretrained(out)


def start(options: Mapping[str, Any]) -> tuple[Callable[..., None], Sequence[str]]:
    """See ``worker.py``. The conversion is a process of its own, that no thread of it stays."""
    directory = options["converted"]
    if not Path(directory, "openvino_model.xml").is_file():
        command = [sys.executable, "-I", __file__, options["model"], directory, str(int(options["int8"]))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the model could not be converted: {done.stderr.strip().splitlines()[-1]}")
    openvino, genai = importlib.import_module("openvino"), importlib.import_module("openvino_genai")
    numpy = importlib.import_module("numpy")
    # bf16 is not asked for: prompt lookup fails with it on processors that have AVX-512 without bf16.
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": options["threads"]}
    lookup = options.get("lookup")
    if lookup:
        settings["prompt_lookup"] = True
    pipe = genai.LLMPipeline(directory, "CPU", **settings)

    class Streamer(genai.StreamerBase):  # type: ignore[misc, name-defined] # its base is known only where OpenVINO is
        def __init__(self, emit: Callable[[Sequence[int]], None]) -> None:
            super().__init__()
            self._emit = emit

        def write(self, token: int | list[int]) -> Any:
            self._emit(token if isinstance(token, list) else [token])
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    def answer(prompt: list[int], max_tokens: int, eos: list[int], emit: Callable[[Sequence[int]], None]) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.do_sample = False
        config.eos_token_id = eos[0]
        config.stop_token_ids = set(eos)
        if lookup:
            config.num_assistant_tokens, config.max_ngram_size = lookup, options["ngram"]
        pipe.generate(openvino.Tensor(numpy.asarray([prompt], numpy.int64)), config, Streamer(emit))

    return answer, ["openvino-genai", "openvino"]


if __name__ == "__main__":
    convert(sys.argv[1], sys.argv[2], sys.argv[3] == "1")
