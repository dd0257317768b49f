"""A model of ours as a directory that vLLM loads: ``python -m augury_vllm.model smollm2-135m DIRECTORY``.

Weights in bf16, with the values that our own loader gives them; tokenizer, chat template and ends of answers beside.
Needs the model's package, transformers and gguf.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from augury.bench.exported import transformers_model
from augury.models.load import load_wording


def write(model: str, directory: Path) -> None:
    """Write a model.

    Raises:
        InputError: see ``transformers_model``.
    """
    built = transformers_model(model)
    wording = load_wording(model)
    ends = list(wording.eos_ids(built.config.vocab_size))
    built.config.eos_token_id = built.generation_config.eos_token_id = ends
    built.save_pretrained(directory)
    wording.tokenizer.save(directory / "tokenizer.json")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": wording.template.source if wording.template else None,
        "eos_token": wording.tokenizer.special[ends[0]] if ends else None,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in settings.items() if v}), "utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Write a model of augury's as a directory that vLLM loads.")
    parser.add_argument("model", help="embedded name, or a GGUF file of the Llama family")
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    write(given.model, given.directory)


if __name__ == "__main__":
    main()
