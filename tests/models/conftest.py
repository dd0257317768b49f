"""Tiny random models on disk, as ``transformers`` saves them, with a byte-level tokenizer beside them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import SHAPE, byte_tokenizer, randomise

MadeModel = Callable[..., Path]


@pytest.fixture(scope="session")
def made_model(tmp_path_factory: pytest.TempPathFactory) -> MadeModel:
    """``made_model(model_type, seed=0, **changes)``: the directory of a tiny random model in f32."""
    known: dict[str, Path] = {}

    def make(model_type: str, seed: int = 0, plain: bool = False, **changes: Any) -> Path:
        key = json.dumps([model_type, seed, plain, changes], sort_keys=True)
        if key not in known:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from transformers import AutoConfig, AutoModelForCausalLM

                config = AutoConfig.for_model(model_type, **({} if plain else SHAPE) | changes)
                model = AutoModelForCausalLM.from_config(config)
                randomise(model, seed)
                path = tmp_path_factory.mktemp(model_type)
                model.save_pretrained(path)
            byte_tokenizer().save(str(path / "tokenizer.json"))
            known[key] = path
        return known[key]

    return make


@pytest.fixture(scope="session")
def reference() -> Callable[[Path], Any]:
    """``reference(directory)``: token ids -> f32[m, V], the logits of ``transformers`` on the whole text."""
    known: dict[Path, Any] = {}

    def load(path: Path) -> Any:
        import torch

        if path not in known:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from transformers import AutoModelForCausalLM

                known[path] = AutoModelForCausalLM.from_pretrained(
                    path, dtype=torch.float32, attn_implementation="eager"
                ).eval()

        def logits(ids: Any) -> Any:
            with torch.inference_mode():
                return known[path](torch.tensor([list(map(int, ids))]), use_cache=False).logits[0].numpy()

        return logits

    return load
