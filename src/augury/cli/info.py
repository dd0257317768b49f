"""``augury info``: what there is on this machine, and what a model runs like on it."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from typer import Option

import augury
from augury.cli.flags import Running
from augury.cli.terminal import check_output, progress
from augury.drafters import DRAFTERS
from augury.errors import InputError

if TYPE_CHECKING:
    from augury.engine.costs import Meter
    from augury.engine.engine import Engine
    from augury.engine.tables import CostTable

_SERVED = 96  # plain steps behind which a meter has forgotten all but a hundredth of how it began
_CPU_FLAGS = ("avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 65)
_RULES = {
    "coupled": "seed and position alone fix each draw: the same seed gives the same text, drafted or not",
    "rejection": "min(1, p/q): the same law of the text, more accepted tokens at high temperature; chains and trees",
    "block": "min(1, p/q) over whole chains: the same law, a little more accepted still; chains only",
}

Section = Mapping[str, object]


def info(
    running: Running,
    model: Annotated[
        str | None, Option(help="Load this model and measure it.", show_default="none", rich_help_panel="Model")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="One JSON object.")] = False,
    costs: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write what its steps cost, for `augury replay`.", rich_help_panel="Model"),
    ] = None,
) -> None:
    """Show the machine, the models, the drafters and the rules; with --model also what it runs like."""
    if costs is not None and model is None:
        raise InputError("--costs needs --model: without one nothing is measured")
    check_output("--costs", costs)
    if model is None and (given := [name for name, value in asdict(running).items() if value is not None]):
        raise InputError(f"--{given[0].replace('_', '-')} needs --model: without one nothing is loaded")
    found: dict[str, Section] = {
        "augury": {"version": augury.__version__},
        "machine": _machine(),
        "models": _models(),
        "drafters": {
            name: spec.doc + (f" (needs {spec.needs})" if spec.needs else "") for name, spec in DRAFTERS.items()
        },
        "rules": _RULES,
    }
    if model is not None:
        found |= _measured(running, model, costs)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    for title, section in found.items():
        print(title)
        for name, value in section.items():
            shown = (" ".join(str(v) for v in value) or "none") if isinstance(value, list) else value
            print(f"  {name.replace('_', ' '):<14}  {shown}")


def _machine() -> Section:
    import torch

    from augury.models.machine import processor, usable_cores
    from augury.models.native import chosen_lanes, default_threads, native_available

    cpu = processor()
    missing = native_available()
    threads = "" if missing else f", {default_threads()} threads by default"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": cpu.name,
        "cores": f"{usable_cores()} of {os.cpu_count()} usable{threads}",
        "cpu_flags": [flag for flag in _CPU_FLAGS if flag in cpu.flags],
        "native": f"available, {chosen_lanes()}" if missing is None else f"not available: {missing}",
        "torch": torch.__version__,
        "gpus": gpus,
    }


def _models() -> Section:
    from augury.models.load import EMBEDDED

    return {
        name: "installed" if all(map(importlib.util.find_spec, (package for package, _ in one.parts)))
        else f"pip install {one.install}"
        for name, one in EMBEDDED.items()
    }  # fmt: skip


def _measured(running: Running, model: str, out: Path | None) -> dict[str, Section]:
    """What a model is, and the milliseconds of its forwards, which are written to a file if one is named."""
    from augury.engine.costs import profile

    engine = running.load(model, "none", "coupled", measure=False)
    with progress() as told:
        meter = profile(engine.target, progress=(lambda share: told("measuring costs", share)) if told else None)
    costs = meter.costs
    if out is not None:
        table = _table(engine, meter, running.threads)
        table.write(out)
        costs = table.costs
    verify = {f"{rows} rows": f"{costs.verify[rows]:.2f} ms" for rows in _ROWS if rows < len(costs.verify)}
    context = engine.target.info.context
    useful = {f"useful at {n}": f"{costs.useful_nodes(n)} nodes" for n in (128, 1024, 4096) if n < context}
    plain = float(costs.step(np.asarray([1]), np.asarray([0.0]))[0])
    return {
        "model": {**asdict(engine.target.info), "chat_template": engine.template is not None},
        "costs": {
            **verify,
            "context": f"{costs.attend:.3f} ms more for each row and thousand tokens",
            "plain decoding": f"{1e3 / plain:.1f} tokens/s at short context",
            **useful,
        },
    }


def _table(engine: Engine, meter: Meter, threads: int | None) -> CostTable:
    """What steps cost as profiled, and what surrounds their forwards, which only serving tells.

    Serving moves the times of the rows it serves, here those of one row alone: the profile compares like with like.
    """
    from augury.bench.report import machine, versions
    from augury.engine.engine import Engine
    from augury.engine.kept import measured_on
    from augury.engine.tables import CostTable

    info = engine.target.info
    profiled, count = meter.costs, min(_SERVED, info.context // 2)
    with Engine(engine.target, meter=meter) as plain:
        plain.generate([token % info.vocab_size for token in range(count)], max_tokens=count)
    of = {**measured_on(info, threads), "system": machine()["system"], "augury": versions()["augury"]}
    return CostTable(replace(profiled, rest=meter.costs.rest), of)
