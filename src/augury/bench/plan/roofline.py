"""What a forward takes on hardware that is known by a few figures only: a roofline.

A forward of ``rows`` rows for ``batch`` requests that hold ``context`` tokens each has two parts, one after the other,
and each waits for the slower of memory and arithmetic (Williams et al. 2009, "Roofline")::

    weights    max(weight bytes / bandwidth,                2 parameters rows / rate)
    attention  max(kv bytes of a token batch context / bandwidth,   4 width rows context / rate)

and a fixed overhead on top. Weights are read once for all rows, and a request's keys and values once for all rows of
the request, as good tree attention does. ``width`` is layers x heads x head dimension: a row meets each position of its
context in two products, with the key and with the value.

It is the least such hardware can take. What is left out makes a real forward slower: activations, norms, sampling,
communication between devices, kernels that reach less than the peak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PRECISIONS: Mapping[str, float] = MappingProxyType({"bf16": 2.0, "fp8": 1.0, "int8": 8.5 / 8, "int4": 4.5 / 8})
"""Bytes of a weight. Of ``int8`` and ``int4`` 32 weights share a 16-bit scale, as in GGUF's Q8_0 and Q4_0; they are
unpacked and multiplied in 16 bits. ``fp8`` is multiplied as it is where the hardware has a rate for it."""


@dataclass(frozen=True)
class Hardware:
    """What bounds a forward.

    Attributes:
        name: for the reader.
        bandwidth: of its memory, GB/s (1e9 bytes).
        flops: TFLOP/s of dense 16-bit products summed in 32 bits; a multiply-add is two.
        flops8: the same of 8-bit floating point, or None where that is no faster.
        memory: GB it holds (1e9 bytes), or None when not known.
        overhead: milliseconds of each forward that neither memory nor arithmetic explain, such as launches.
    """

    name: str
    bandwidth: float
    flops: float
    flops8: float | None = None
    memory: float | None = None
    overhead: float = 0.0

    def rate(self, precision: str) -> float:
        """TFLOP/s of products with weights of a precision."""
        return self.flops8 if precision == "fp8" and self.flops8 is not None else self.flops


@dataclass(frozen=True)
class Shape:
    """What a forward of a dense model reads and multiplies.

    Attributes:
        name: for the reader.
        parameters: weights that every row is multiplied with.
        precision: of the weights, a key of ``PRECISIONS``.
        layers: of the model.
        kv_bytes: keys and values of one token of context, in bytes.
        width: layers x heads x head dimension.
    """

    name: str
    parameters: float
    precision: str
    layers: int
    kv_bytes: float
    width: float

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that a forward reads."""
        return self.parameters * PRECISIONS[self.precision]


@dataclass(frozen=True)
class Forward:
    """Milliseconds of a forward, by what it waits for.

    Attributes:
        memory: of the parts that memory bounds.
        compute: of the parts that arithmetic bounds.
        overhead: the rest.
    """

    memory: float
    compute: float
    overhead: float

    @property
    def ms(self) -> float:
        """Of the whole forward."""
        return self.memory + self.compute + self.overhead

    @property
    def bound(self) -> str:
        """What it waits for most."""
        waits = {"memory": self.memory, "compute": self.compute, "overhead": self.overhead}
        return max(waits, key=lambda name: waits[name])


def forward(hardware: Hardware, shape: Shape, rows: int, batch: int, context: float) -> Forward:
    """A forward of ``rows`` rows in all for ``batch`` requests that hold ``context`` tokens each."""
    read = 1e-6 * shape.weight_bytes / hardware.bandwidth
    multiply = 1e-9 * 2.0 * shape.parameters * rows / hardware.rate(shape.precision)
    look = 1e-6 * shape.kv_bytes * batch * context / hardware.bandwidth
    attend = 1e-9 * 4.0 * shape.width * rows * context / hardware.flops
    parts = ((read, multiply), (look, attend))
    return Forward(
        memory=sum(m for m, c in parts if m >= c), compute=sum(c for m, c in parts if c > m), overhead=hardware.overhead
    )


def free_rows(hardware: Hardware, shape: Shape) -> int:
    """The most rows whose products take no longer than reading the weights: up to there more rows are free."""
    return math.floor(500.0 * PRECISIONS[shape.precision] * hardware.rate(shape.precision) / hardware.bandwidth)


def held(shape: Shape, batch: int, context: float) -> float:
    """GB (1e9 bytes) of a model's weights and of what it keeps of the requests."""
    return 1e-9 * (shape.weight_bytes + shape.kv_bytes * batch * context)
