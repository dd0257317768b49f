"""A profile that is kept: what a machine's forwards cost is measured once, and checked in a few of them afterwards.

The file is named by what decides the times: the weights, the code that runs them, the machine, the threads. What
changes from hour to hour is how fast the whole machine is. So a kept table is tried at a few sizes and some context,
and where these are all off by one factor, so is the table; where they are not, the machine is no longer what it was, or
was not itself when the table was made, and the table is made anew.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from augury import models
from augury.budget import Costs
from augury.durable import replacing
from augury.engine.costs import Meter, profile, timed
from augury.engine.tables import VERSION, CostTable
from augury.errors import InputError
from augury.models.machine import own_folder, processor, usable_cores
from augury.models.target import Target, TargetInfo
from augury.tree import MAX_NODES

_TRIED = (1, 8, 24, MAX_NODES + 1)
_CONTEXT = 256  # tokens behind which they are tried
_APART = 1.2  # how far the factors of the sizes tried may lie apart


def kept_profile(
    target: Target,
    threads: int | None,
    *,
    folder: Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> Meter:
    """The meter of a target: from the table kept of it where that still holds, else profiled and kept.

    Args:
        target: with a free slot.
        threads: that it runs with; None for its own choice.
        folder: where tables are kept; the user's own cache folder by default. Without one every profile is made anew.
        progress: told the share done.
    """
    folder = folder or own_folder()
    about = _about(target.info, threads)
    path = folder / f"costs-{_key(about)}.json" if folder and target.info.digest else None
    if path is not None and (table := _read(path)) is not None and (meter := _still(table, target)) is not None:
        if progress:
            progress(1.0)
        return meter
    meter = profile(target, progress=progress)
    if path is not None:
        _write(CostTable(meter.costs, {**about, **measured_on(target.info, threads)}), path)
    return meter


def measured_on(info: TargetInfo, threads: int | None) -> dict[str, object]:
    """What every cost table says of where it was measured, for whoever reads it."""
    return {
        "model": info.name, "runner": info.runner, "dtype": info.dtype, "threads": threads or "all",
        "cpu": processor().name, "cores": usable_cores(),
    }  # fmt: skip


def _about(info: TargetInfo, threads: int | None) -> dict[str, object]:
    """What decides the times."""
    devices = []
    if "cuda" in info.runner:
        import torch

        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "weights": info.digest, "bytes": info.weight_bytes, "runner": info.runner, "dtype": info.dtype,
        "context": info.context, "threads": threads, "cpu": processor().name, "cores": usable_cores(),
        "devices": devices, "code": _code(),
    }  # fmt: skip


@functools.cache
def _code() -> str:
    """Of what computes a forward: its sources."""
    found = hashlib.sha256()
    for path in sorted(Path(models.__file__).parent.iterdir()):
        if path.suffix in (".py", ".c", ".h"):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _key(about: dict[str, object]) -> str:
    text = json.dumps([VERSION, about], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _read(path: Path) -> CostTable | None:
    """None where there is none that can be read: it is made anew."""
    try:
        return CostTable.read(path)
    except InputError:
        return None


def _write(table: CostTable, path: Path) -> None:
    """Whole or not at all; a folder that cannot be written to keeps nothing."""
    with suppress(OSError), replacing(path, f".{os.getpid()}") as beside:
        table.write(beside)


def _still(table: CostTable, target: Target) -> Meter | None:
    """The kept times, by as much longer or shorter as forwards take now; None where that is no one factor."""
    costs = table.costs
    context = min(_CONTEXT, target.info.context // 2)
    rows = np.array([r for r in _TRIED if r < len(costs.verify) and r <= target.info.context - context])
    factors = timed(target, rows.tolist(), context) / (costs.step(rows, rows * float(context)) - costs.rest)
    if factors.max() > _APART * factors.min():
        return None
    by = float(np.exp(np.log(factors).mean()))
    return Meter.of(Costs(by * costs.verify, by * costs.attend, 0.0))
