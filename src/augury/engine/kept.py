"""A profile that is kept: what a machine's forwards cost is measured once, and checked in a few of them afterwards.

The file is named by all that decides the times: the weights, what runs them, the machine, the threads. What changes
from hour to hour is how fast the whole machine is. So a kept table is tried at a few sizes, and where these are all off
by one factor, so is the table; where they are not, the machine is no longer what it was, and the table is made anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from augury.engine.costs import Meter, profile, timed
from augury.engine.tables import VERSION, CostTable
from augury.errors import InputError
from augury.models.machine import own_folder, processor, usable_cores
from augury.models.target import Target, TargetInfo

_TRIED = (1, 8, 24)
_APART = 1.15  # how far the factors of the sizes tried may lie apart


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
    path = folder / f"costs-{_key(target.info, threads)}.json" if folder and target.info.digest else None
    if path is not None and (table := _read(path)) is not None and (meter := _still(table, target)) is not None:
        if progress:
            progress(1.0)
        return meter
    meter = profile(target, progress=progress)
    if path is not None:
        _write(CostTable(meter.costs, {"model": target.info.name, **_about(target.info, threads)}), path)
    return meter


def _about(info: TargetInfo, threads: int | None) -> dict[str, object]:
    device = ""
    if "cuda" in info.runner:
        import torch

        device = torch.cuda.get_device_name()
    return {
        "weights": info.digest, "bytes": info.weight_bytes, "runner": info.runner, "dtype": info.dtype,
        "context": info.context, "threads": threads, "cpu": processor().name, "cores": usable_cores(), "device": device,
    }  # fmt: skip


def _key(info: TargetInfo, threads: int | None) -> str:
    text = json.dumps([VERSION, _about(info, threads)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _read(path: Path) -> CostTable | None:
    """None where there is none that can be read: it is made anew."""
    try:
        return CostTable.read(path)
    except InputError:
        return None


def _write(table: CostTable, path: Path) -> None:
    """Whole or not at all; a folder that cannot be written to keeps nothing."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        table.write(aside)
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink()


def _still(table: CostTable, target: Target) -> Meter | None:
    """The kept times, by as much longer or shorter as forwards take now; None where that is no one factor."""
    costs = table.costs
    sizes = [rows for rows in _TRIED if rows < min(len(costs.verify), target.info.context)]
    factors = [ms / float(costs.verify[rows]) for rows, ms in zip(sizes, timed(target, sizes), strict=True)]
    if max(factors) > _APART * min(factors):
        return None
    by = math.exp(sum(map(math.log, factors)) / len(factors))
    return Meter.of(replace(costs, verify=by * costs.verify, attend=by * costs.attend, rest=0.0))
