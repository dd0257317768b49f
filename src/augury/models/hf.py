"""Any other causal LM, run by ``transformers`` behind the same contract. The only file that knows its cache classes.

Every slot has a cache of its own, and a batch of requests is a loop over slots: this runner is for reach, not
for speed. It takes chains only, and it is not exact: ``transformers`` rounds a forward of nine rows otherwise than one
of one row.

Weights come from safetensors; code that comes with a model is never run.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from augury.errors import CannotRollBack, InputError, ModelError
from augury.models.target import Rows, Target, TargetInfo
from augury.tree import DraftTree, FloatArray, IntArray, Path

_DEFAULT_CONTEXT = 2048
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention")


@dataclass
class _Slot:
    cache: Any
    length: int = 0


class TransformersTarget(Target):
    """A model directory run by ``transformers``.

    Args:
        directory: with ``config.json`` and safetensors.
        name: for messages.
        dtype: ``bfloat16``, ``float32`` or ``float16``.
        device: ``cpu`` or ``cuda``.
        max_model_len: tokens of context; the model's own, at most 8192, when None.
        slots: requests that can be open at once.
        why: why this runner, for ``info.runner``.

    Raises:
        ModelError: ``transformers`` cannot read the directory.
        CannotRollBack: the model has state that cannot forget a rejected draft.
    """

    def __init__(
        self,
        directory: FilePath,
        name: str,
        dtype: str,
        device: str,
        max_model_len: int | None,
        slots: int,
        why: str,
    ) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # loading is reported by who asked for it

        self._torch = torch
        try:
            config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
            _check_layers(name, config)
            self._model = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=getattr(torch, dtype),
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
            ).to(device)
        except (OSError, ValueError, KeyError, ImportError) as error:
            first = str(error).strip().splitlines()[0]
            raise ModelError(f"transformers cannot load {name}: {first}") from None
        self._model.eval()
        if getattr(self._model, "_is_stateful", False):
            raise CannotRollBack(f"{name} ({config.model_type}) keeps recurrent state, which cannot forget a draft")
        # The argument was renamed; a version knows both names, or one.
        takes = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in takes else "past_key_values"
        self._device = device
        self._slots = slots
        self._open: dict[int, _Slot] = {}
        text = config.get_text_config()
        own = int(getattr(text, "max_position_embeddings", _DEFAULT_CONTEXT) or _DEFAULT_CONTEXT)
        if max_model_len is not None and max_model_len > own:
            raise InputError(f"max_model_len is {max_model_len}; {name} has positions for {own} tokens")
        weights = {p.data_ptr(): p for p in self._model.parameters()}.values()
        self.info = TargetInfo(
            name=name,
            family=str(config.model_type),
            runner=f"transformers {dtype} {device} ({why})",
            vocab_size=int(text.vocab_size),
            context=max_model_len or min(own, 8192),
            hidden_size=int(text.hidden_size),
            layers=int(text.num_hidden_layers),
            parameters=sum(p.numel() for p in weights),
            weight_bytes=sum(p.numel() * p.element_size() for p in weights),
            trees=False,
            exact=False,
        )

    def open(self) -> int:
        """See ``Target.open``."""
        for slot in range(self._slots):
            if slot not in self._open:
                self._open[slot] = _Slot(_empty_cache())
                return slot
        raise InputError(f"all {self._slots} slots are taken; load with max_num_seqs={self._slots + 1} or more")

    def release(self, slot: int) -> None:
        """See ``Target.release``."""
        self._state(slot)
        del self._open[slot]

    def length(self, slot: int) -> int:
        """See ``Target.length``."""
        return self._state(slot).length

    def prefill(self, slot: int, tokens: IntArray) -> None:
        """See ``Target.prefill``."""
        state = self._state(slot)
        if state.length + len(tokens) > self.info.context:
            raise InputError(
                f"{len(tokens)} tokens do not fit slot {slot}: it holds {state.length} of {self.info.context}"
            )
        if len(tokens):
            self._run(state, tokens, logits=False)
            state.length += len(tokens)

    def verify(self, slots: Sequence[int], roots: Sequence[int], trees: Sequence[DraftTree]) -> Rows:
        """See ``Target.verify``. Raises ``InputError`` for a tree with branches."""
        for tree in trees:
            if not tree.is_chain:
                raise InputError("this runner verifies chains only; the tree has branches")
        logits = []
        for slot, root, tree in zip(slots, roots, trees, strict=True):
            state = self._state(slot)
            _crop(state)
            logits.append(self._run(state, np.concatenate([[root], tree.tokens]), logits=True))
        return Rows(logits)

    def commit(self, slots: Sequence[int], paths: Sequence[Path]) -> None:
        """See ``Target.commit``."""
        for slot, path in zip(slots, paths, strict=True):
            state = self._state(slot)
            state.length += 1 + len(path.nodes)
            _crop(state)

    def truncate(self, slot: int, length: int) -> None:
        """See ``Target.truncate``."""
        state = self._state(slot)
        if not 0 <= length <= state.length:
            raise InputError(f"slot {slot} holds {state.length} tokens, it cannot be rolled back to {length}")
        state.length = length
        _crop(state)

    def snapshot(self, slot: int) -> list[FloatArray]:
        """See ``Target.snapshot``: keys then values of every layer, f32[length, kv_heads, head_dim]."""
        state = self._state(slot)
        found: list[FloatArray] = []
        for layer in state.cache.layers:
            for part in (layer.keys, layer.values):
                found.append(part[0, :, : state.length].transpose(0, 1).float().cpu().numpy())
        return found

    def _run(self, state: _Slot, tokens: IntArray, logits: bool) -> FloatArray:
        torch = self._torch
        ids = torch.as_tensor(np.asarray(tokens, np.int64), device=self._device)[None]
        with torch.inference_mode():
            given = {self._cache_name: state.cache}
            out = self._model(input_ids=ids, use_cache=True, logits_to_keep=0 if logits else 1, **given)
        if not logits:
            return np.zeros((0, self.info.vocab_size), np.float32)
        rows: FloatArray = out.logits[0].float().cpu().numpy()
        return rows

    def _state(self, slot: int) -> _Slot:
        if slot not in self._open:
            raise InputError(f"slot {slot} is not open; open slots: {', '.join(map(str, self._open)) or 'none'}")
        return self._open[slot]


def _check_layers(name: str, config: Any) -> None:
    """Refuse layers whose state is a sum over the past."""
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    for kind in kinds:
        if kind not in _ATTENTION:
            raise CannotRollBack(f"{name} has layers of kind {kind}, whose state cannot forget a rejected draft")


def _crop(state: _Slot) -> None:
    """Forget the rows behind the committed ones."""
    extra = int(state.cache.get_seq_length()) - state.length
    if state.length == 0:
        state.cache = _empty_cache()
    elif extra > 0:
        state.cache.crop(-extra)


def _empty_cache() -> Any:
    """A cache whose every layer keeps all rows, windowed ones too.

    A window that has moved on cannot be cropped back; what a layer may see is the mask's business.
    """
    from transformers import DynamicCache

    return DynamicCache()
