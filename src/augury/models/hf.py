"""Any causal LM through ``transformers``, behind the same runner as the block.

Requests of one verify are computed one after another: each has its own ``DynamicCache``, whose rows are cut
and moved here. What a model can do is not read off its class but tried at load: a cache that does not forget
(recurrent and convolutional layers) is refused, and trees are taken only if a mask in four dimensions gives
the rows that chains give. A sliding window is kept as a mask over a full cache, so that it can roll back; the
windows of a mask given from outside would be lost, so such models take chains only.

Code beside the weights is never run (``trust_remote_code=False``), weights are read from safetensors only.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from augury.errors import CannotRollBack, InputError, ModelError, first_line
from augury.models.families import DEFAULT_CONTEXT
from augury.models.forward import Segment
from augury.models.runner import Runner
from augury.models.target import TargetInfo
from augury.tree import MAX_NODES, FloatArray

_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}


class TransformersForward:
    """A ``Forward`` (see forward.py) over one loaded model.

    Attributes:
        trees: whether a segment may be a tree.
        vocab_size: width of its logits.
        positions: rows at positions from here on are not right; they can be computed but never committed.

    Raises:
        CannotRollBack: the model keeps a state that cannot forget; names the layer kind.
    """

    exact = False
    max_rows = 4096

    def __init__(self, model: Any, slots: int, positions: int) -> None:
        self.model = model
        self.positions = positions
        kind = str(model.dtype).removeprefix("torch.")
        self.name = f"transformers {kind} {model.device.type}"
        known = inspect.signature(model.forward).parameters
        self._cache_argument = next((name for name in ("cache", "past_key_values") if name in known), "")
        self._takes_positions = "position_ids" in known
        self._takes_keep = "logits_to_keep" in known
        _refuse_recurrent(model, self._cache_argument)
        self._caches: list[Any] = [None] * max(slots, 1)
        self.trees = False
        self.vocab_size = self._try_chain()
        self.trees = self._try_tree()
        self._caches = [None] * slots

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment], logits: bool) -> tuple[FloatArray | None, FloatArray | None]:
        """See ``Forward.run``."""
        found = [self._one(segment, logits) for segment in segments]
        if not logits:
            return None, None
        scores, hidden = (torch.cat([pair[i] for pair in found]).float().cpu().numpy() for i in (0, 1))
        return scores, hidden

    def _one(self, segment: Segment, logits: bool) -> tuple[Tensor, Tensor]:
        """Logits [m, V] and last hidden states [m, d] of one segment."""
        length, rows, device = segment.length, len(segment.tokens), self.model.device
        options: dict[str, Any] = {self._cache_argument: self._cut(segment.slot, length)}
        if self._takes_positions:
            at = torch.from_numpy(segment.depths).long() + length
            options["position_ids"] = at.clamp(max=self.positions - 1)[None].to(device)
        parents = segment.parents.tolist()
        if parents != list(range(-1, rows - 1)):
            options["attention_mask"] = self._mask(length, parents)
        if self._takes_keep and not logits:
            options["logits_to_keep"] = 1
        ids = torch.from_numpy(segment.tokens).long()[None].to(device)
        with _quiet():
            out = self.model(input_ids=ids, use_cache=True, output_hidden_states=logits, **options)
        return out.logits[0], out.hidden_states[-1][0] if logits else out.logits[0]

    def _mask(self, length: int, parents: Sequence[int]) -> Tensor:
        """[1, 1, m, length + m], 0 where a row sees a cache row, the lowest number where it does not."""
        rows = len(parents)
        sees = torch.zeros(rows, length + rows, dtype=torch.bool)
        sees[:, :length] = True
        for row, parent in enumerate(parents):
            if parent >= 0:
                sees[row] = sees[parent]
            sees[row, length + row] = True
        lowest = torch.finfo(self.model.dtype).min
        mask = torch.zeros(rows, length + rows, dtype=self.model.dtype).masked_fill_(~sees, lowest)
        return mask[None, None].to(self.model.device)

    def _cut(self, slot: int, length: int) -> Any:
        """The slot's cache, rolled back to its first ``length`` rows."""
        from transformers import DynamicCache

        if length == 0 or self._caches[slot] is None:
            self._caches[slot] = DynamicCache()  # without a config: full layers, also for windows
        for layer in self._layers(slot):
            layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]
        return self._caches[slot]

    def _layers(self, slot: int) -> list[Any]:
        """Layers of a slot's cache that hold something."""
        return [layer for layer in self._caches[slot].layers if layer.is_initialized]

    def move(self, slot: int, rows: Sequence[int], to: int) -> None:
        """See ``Forward.move``."""
        with torch.inference_mode():
            for layer in self._layers(slot):
                for kept in (layer.keys, layer.values):
                    kept[..., to : to + len(rows), :] = kept[..., list(rows), :]

    def copy(self, source: int, slot: int, length: int) -> None:
        """See ``Forward.copy``."""
        with torch.inference_mode():
            self._caches[slot] = copy.deepcopy(self._caches[source])
            self._cut(slot, length)

    def read(self, slot: int, length: int) -> list[FloatArray]:
        """See ``Forward.read``."""
        if self._caches[slot] is None:
            return []
        return [
            np.ascontiguousarray(kept[0, :, :length].transpose(0, 1).float().cpu().numpy())
            for layer in self._layers(slot)
            for kept in (layer.keys, layer.values)
        ]

    # ---- what the model can do ------------------------------------------------------------------------------

    def _try_chain(self) -> int:
        """Roll back and go on as if nothing had been there; the width of the logits."""
        wrong, right = [3, 1, 4, 1, 5, 9], [3, 1, 4, 2, 7, 6]
        try:
            self.run([_chain(0, 0, wrong)], logits=True)
            rolled, _ = self.run([_chain(0, 3, right[3:])], logits=True)
            fresh, _ = self.run([_chain(0, 0, right)], logits=True)
        except Exception as error:  # whatever a model raises when it is given this kind of cache
            raise CannotRollBack(
                f"{self._kind()} does not run on a key-value cache that can be cut: {first_line(error)}"
            ) from None
        assert rolled is not None
        assert fresh is not None
        if not _alike(rolled, fresh[3:]):
            raise CannotRollBack(f"{self._kind()} does not forget rejected tokens: its rows change after a roll back")
        return int(fresh.shape[1])

    def _try_tree(self) -> bool:
        """Whether siblings and their children get the rows of the chains they stand for."""
        if not self._takes_positions or _has_windows(self.model.config):
            return False
        parents = np.asarray([-1, 0, 0, 1], np.int32)
        tree = Segment(0, 3, np.asarray([2, 7, 6, 8], np.int32), parents, np.asarray([0, 1, 1, 2], np.int32))
        try:
            self.run([_chain(0, 0, [3, 1, 4])], logits=True)
            rows, _ = self.run([tree], logits=True)
            chains = [self.run([_chain(0, 3, path)], logits=True)[0] for path in ([2, 7, 8], [2, 6])]
        except Exception:  # a model that cannot take such a mask may raise anything; it still runs chains
            return False
        assert rows is not None
        first, second = chains
        assert first is not None
        assert second is not None
        return _alike(rows[[0, 1, 3]], first) and _alike(rows[[0, 2]], second)

    def _kind(self) -> str:
        return f"{self.model.config.model_type} ({type(self.model).__name__})"


def transformers_target(
    directory: Path, name: str, dtype: str, device: str, max_model_len: int | None, slots: int, why: str
) -> Runner:
    """A target over a directory with ``config.json`` and safetensors.

    Args:
        directory: of the model.
        name: for messages and ``TargetInfo``.
        dtype: ``bfloat16``, ``float32`` or ``float16``.
        device: ``cpu`` or ``cuda``.
        max_model_len: tokens of context; by default the model's own, at most 8192.
        slots: requests that can be open at once.
        why: reason for this runner, for ``TargetInfo.runner``.

    Raises:
        ModelError: ``transformers`` cannot load it.
        CannotRollBack: its layers cannot forget a rejected draft.
        InputError: ``max_model_len`` is more than the model has.
    """
    model = _load(directory, name, dtype, device)
    config = model.config.get_text_config(decoder=True)
    own = getattr(config, "max_position_embeddings", None) or DEFAULT_CONTEXT
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    limit = own if takes_positions else own - MAX_NODES - 1  # a tree may not reach beyond a table of positions
    context = min(limit, DEFAULT_CONTEXT) if max_model_len is None else max_model_len
    if not 1 <= context <= limit:
        raise InputError(f"max_model_len {context} is not between 1 and {limit}, the context of this model")
    forward = TransformersForward(model, slots, own)
    tied = model.get_input_embeddings().weight is getattr(model.get_output_embeddings(), "weight", None)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    embedding = model.get_input_embeddings().weight
    info = TargetInfo(
        name=name,
        family=config.model_type,
        runner=f"{forward.name} ({why})",
        dtype=dtype,
        vocab_size=forward.vocab_size,
        context=context,
        hidden_size=config.hidden_size,
        layers=config.num_hidden_layers,
        parameters=sum(p.numel() for p in model.parameters()),
        weight_bytes=weights - (0 if tied else embedding.numel() * embedding.element_size()),
        trees=forward.trees,
        exact=False,
    )
    return Runner(forward, info, slots)


def _load(directory: Path, name: str, dtype: str, device: str) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        with _quiet():
            model = AutoModelForCausalLM.from_pretrained(
                str(directory),
                dtype=getattr(torch, dtype),
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
            )
    except Exception as error:  # the library raises many kinds, some bare
        raise ModelError(f"transformers cannot load {name}: {first_line(error)}") from None
    return model.to(device).eval()


def _refuse_recurrent(model: Any, cache_argument: str) -> None:
    kinds = set(getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ())
    other = sorted(kinds - _ATTENTION)
    if not other and getattr(model, "_is_stateful", False):
        other = ["recurrent"]
    if other:
        family = model.config.model_type
        raise CannotRollBack(f"{family} has {other[0]} layers, whose state cannot forget a rejected draft")
    if not cache_argument:
        raise CannotRollBack(f"{type(model).__name__} takes no key-value cache, so nothing can be rolled back")


def _has_windows(config: Any) -> bool:
    text = config.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None)
    if kinds is not None:
        return set(kinds) != {"full_attention"}
    return bool(getattr(text, "sliding_window", None))


def _chain(slot: int, length: int, tokens: Sequence[int]) -> Segment:
    rows = np.arange(len(tokens), dtype=np.int32)
    return Segment(slot, length, np.asarray(tokens, np.int32), rows - 1, rows)


def _alike(a: FloatArray, b: FloatArray) -> bool:
    """Equal up to rounding, bf16's included: a wrong mask or position moves logits by about their spread."""
    return bool(np.abs(a - b).max() < 0.1 * b.std())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's log lines, progress bars and warnings; they are not about what the user asked."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
