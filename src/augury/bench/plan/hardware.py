"""Hardware by name, from what its makers publish, and the machine this runs on, measured.

Rates are of dense products, without the factor two that data sheets give for structured sparsity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from augury.bench.plan.roofline import Hardware
from augury.errors import InputError, UnknownName

_ALL = (
    # NVIDIA's data sheets: H100, H200, DGX B200 (an eighth of the system), A100, A10, L4, L40S.
    Hardware("H100", 3350, 989, 1979, 80),  # SXM
    Hardware("H100-PCIe", 2000, 756, 1513, 80),
    Hardware("H200", 4800, 989, 1979, 141),
    Hardware("B200", 8000, 2250, 4500, 180),
    Hardware("A100-80G", 2039, 312, None, 80),  # SXM
    Hardware("A100-40G", 1555, 312, None, 40),
    Hardware("A10", 600, 125, None, 24),
    Hardware("L4", 300, 121, 242, 24),
    Hardware("L40S", 864, 362, 733, 48),
    # NVIDIA's architecture white papers "Ada" (appendix A) and "RTX Blackwell" (appendix A): sums in 32 bits.
    Hardware("RTX-4090", 1008, 165.2, 330.3, 24),
    Hardware("RTX-5090", 1792, 209.5, 419, 32),
    # AMD's data sheets of Instinct MI300X and MI325X.
    Hardware("MI300X", 5300, 1307.4, 2614.9, 192),
    Hardware("MI325X", 6000, 1307.4, 2614.9, 256),
    # Google Cloud, "TPU v5e".
    Hardware("TPU-v5e", 819, 197, None, 16),
    # Apple's announcement of M1 Max: 400 GB/s, 10.4 TFLOP/s in 32 bits. Of M3 Max, the one with 40 GPU cores, Apple
    # gives 400 GB/s and no rate: 40 cores x 128 multiply-adds x 1.4 GHz. Neither is faster in 16 bits.
    Hardware("M1-Max", 400, 10.4, None, 64),
    Hardware("M3-Max", 400, 14.3, None, 128),
    # Two channels of 8 bytes at 5600 or 3200 MT/s; eight cores with two AVX2 multiply-adds a cycle, at 4.5 or 4.0 GHz.
    Hardware("desktop-DDR5", 89.6, 1.15, None, 64),
    Hardware("desktop-DDR4", 51.2, 1.02, None, 32),
)

PRESETS: Mapping[str, Hardware] = MappingProxyType({one.name: one for one in _ALL})


def preset(name: str) -> Hardware:
    """Hardware by its name in ``PRESETS``, however its letters are written; A100 is the one with 80 GB.

    Raises:
        UnknownName: there is none of that name.
    """
    known = {_plain(key): one for key, one in PRESETS.items()} | {"a100": PRESETS["A100-80G"]}
    if _plain(name) not in known:
        raise UnknownName("hardware", name, PRESETS, "Or give --bandwidth and --flops")
    return known[_plain(name)]


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())


def here(threads: int | None = None) -> Hardware:
    """This machine's processor: what its cores read and multiply at best, measured in a few seconds.

    The rate is that of the multiply-adds in 32 bits that the compiled forward does, the bandwidth that of reading.

    Args:
        threads: by default as many as the compiled forward takes.

    Raises:
        InputError: the compiled forward, whose kernels measure, cannot run here.
    """
    from augury.models.machine import processor
    from augury.models.native import default_threads, floors, native_available

    if missing := native_available():
        raise InputError(f"--here measures with the compiled forward, and {missing}; give --bandwidth and --flops")
    bandwidth, multiply = floors(threads or default_threads())
    return Hardware(processor().name, bandwidth, 2e-3 * multiply)
