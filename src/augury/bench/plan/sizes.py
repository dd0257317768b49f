"""A model's shape for the roofline: from its number of parameters, or from its files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from augury.bench.plan.roofline import PRECISIONS, Shape
from augury.errors import InputError, ModelError, UnknownName

_UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}
_FEWEST, _MOST = 1e5, 1e14
_KV_BYTES = 2.0  # of a number in the cache: bfloat16, whatever the weights are kept as


@dataclass(frozen=True)
class _Known:
    """One size of a family, as its published ``config.json`` says."""

    parameters: float
    layers: int
    kv_width: int  # key-value heads x head dimension
    width: int  # heads x head dimension


# Llama 3.2 1B and 3B, Llama 3.1 8B, 70B and 405B.
_LLAMA = (
    _Known(1.24e9, 16, 512, 2048),
    _Known(3.21e9, 28, 1024, 3072),
    _Known(8.03e9, 32, 1024, 4096),
    _Known(70.6e9, 80, 1024, 8192),
    _Known(406e9, 126, 1024, 16384),
)


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([MBT])", re.ASCII)


def is_amount(text: str) -> bool:
    """Whether it is written as a number of parameters."""
    return _AMOUNT.fullmatch(text.strip().upper()) is not None


def amount(text: str, what: str, hint: str = "") -> float:
    """A number of parameters, as in 70B, 0.3B or 135M.

    Args:
        text: as the user wrote it.
        what: the option it was given to, for the message.
        hint: what else may have been meant.

    Raises:
        InputError: it is none, or one that no model has.
    """
    found = _AMOUNT.fullmatch(text.strip().upper())
    if found is None:
        raise InputError(f"{what} {text!r} is not a number of parameters with its unit, as in 70B, 0.3B or 135M{hint}")
    parameters = float(found[1]) * _UNITS[found[2]]
    if not _FEWEST <= parameters <= _MOST:
        near = "0.1M" if parameters < _FEWEST else "100T"
        raise InputError(f"{what} {text} is outside 0.1M to 100T parameters; the nearest is {near}")
    return parameters


def of_size(name: str, parameters: float, precision: str) -> Shape:
    """A dense model of so many parameters, of the proportions of Llama 3; between its sizes on a logarithmic scale.

    Its keys and values are kept in 16 bits.
    """
    sizes = np.log([one.parameters for one in _LLAMA])

    def between(values: list[float]) -> float:
        return float(np.exp(np.interp(np.log(parameters), sizes, np.log(values))))

    return Shape(
        name, parameters, precision,
        layers=round(between([one.layers for one in _LLAMA])),
        kv_bytes=between([2.0 * _KV_BYTES * one.layers * one.kv_width for one in _LLAMA]),
        width=between([1.0 * one.layers * one.width for one in _LLAMA]),
    )  # fmt: skip


def head_of(target: Shape, name: str, parameters: float) -> Shape:
    """A head of so many parameters that rides on a target: one layer of the target's, in the target's precision."""
    kv_bytes, width = target.kv_bytes / target.layers, target.width / target.layers
    return Shape(name, parameters, target.precision, 1, kv_bytes, width)


def in_bits(target: Shape, name: str, precision: str) -> Shape:
    """The target with its weights in another precision, over its own cache."""
    return replace(target, name=name, precision=precision)


def name_of(model: str) -> str:
    """What a model is called: by its directory, by its GGUF file without the ending, else as it is written."""
    from augury.models.load import EMBEDDED

    path = Path(model)
    if model in EMBEDDED or not path.exists():
        return model
    return path.stem if path.suffix == ".gguf" else path.resolve().name


def of_model(model: str, precision: str) -> Shape:
    """The shape of a model whose files are here; only their headers are read.

    Windows of attention are not minded: every layer reads the whole context.

    Args:
        model: embedded name, directory or GGUF file.
        precision: to reckon with, whatever the files hold.

    Raises:
        UnknownName: there is no such model.
        ModelError: its files are missing or damaged, or it is of a family whose shape is not read.
    """
    from augury.models.families import NotABlock, block_config
    from augury.models.gguf_file import gguf_config
    from augury.models.load import EMBEDDED, json_object, open_gguf
    from augury.models.weights import shapes

    path = Path(model)
    try:
        if model in EMBEDDED or path.suffix == ".gguf":
            if model not in EMBEDDED and not path.is_file():
                raise ModelError(f"there is no file {model}")
            config = block_config(gguf_config(open_gguf(model)), 1)
        elif path.is_dir():
            config = block_config(json_object(path / "config.json", needed=True), 1)
        else:
            raise UnknownName("model", model, [*EMBEDDED, "a directory with safetensors", "a .gguf file"])
    except NotABlock as reason:
        raise ModelError(f"the shape of {path.name} is not read: {reason}; give its size, as in 70B") from None
    read = sum(float(np.prod(shape)) for name, shape in shapes(config).items() if name != "embed" or config.tied)
    return Shape(
        name_of(model), read, precision, config.layers,
        kv_bytes=2.0 * _KV_BYTES * config.layers * config.kv_heads * config.head_dim,
        width=float(config.layers * config.heads * config.head_dim),
    )  # fmt: skip


def precision(text: str, what: str) -> str:
    """A key of ``PRECISIONS``, or its bits: 16, 8 or 4.

    Raises:
        UnknownName: it is neither.
    """
    name = {"16": "bf16", "8": "int8", "4": "int4"}.get(text.strip(), text.strip().lower())
    if name not in PRECISIONS:
        raise UnknownName(f"precision of {what}", text, [*PRECISIONS, "16", "8", "4"])
    return name
