"""Augury: lossless speculative decoding. Drafters guess, the target checks all guesses in one forward pass.

>>> import augury
>>> engine = augury.load("smollm2-135m")
>>> engine.generate(engine.render("Name three primary colours.")).text
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augury.api import load
    from augury.drafters.drafter import Drafter, Observation, View
    from augury.engine.engine import Engine, Result
    from augury.engine.request import Chunk
    from augury.errors import AuguryError
    from augury.record import RequestRecord, StepRecord
    from augury.sampling import Sampling
    from augury.tree import DraftTree, Path

__version__ = "0.1.0"

_HOME = {
    "AuguryError": "augury.errors",
    "Chunk": "augury.engine.request",
    "DraftTree": "augury.tree",
    "Drafter": "augury.drafters.drafter",
    "Engine": "augury.engine.engine",
    "Observation": "augury.drafters.drafter",
    "Path": "augury.tree",
    "RequestRecord": "augury.record",
    "Result": "augury.engine.engine",
    "Sampling": "augury.sampling",
    "StepRecord": "augury.record",
    "View": "augury.drafters.drafter",
    "load": "augury.api",
}

__all__ = [
    "AuguryError",
    "Chunk",
    "DraftTree",
    "Drafter",
    "Engine",
    "Observation",
    "Path",
    "RequestRecord",
    "Result",
    "Sampling",
    "StepRecord",
    "View",
    "load",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that importing the package costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'augury' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
