"""A cost table as JSON: written where a target runs, read where its steps are only reckoned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from augury.budget import Costs
from augury.errors import InputError, first_line, shown

VERSION = 1
"""Of the JSON form; another one is not read."""

MAX_ROWS = 4096
"""Rows of the longest table that is read."""

MAX_MS = 1e9
"""The longest time that is read, in milliseconds."""


@dataclass(frozen=True)
class CostTable:
    """Costs, and what they were measured on.

    Attributes:
        costs: the times.
        measured_on: model, runner, machine and what else decides them, in words and numbers.
    """

    costs: Costs
    measured_on: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """As JSON takes it; ``verify_ms[r]`` is the time of a forward over r rows."""
        return {
            "version": VERSION,
            "measured_on": dict(self.measured_on),
            "verify_ms": self.costs.verify.tolist(),
            "attend_ms": self.costs.attend,
            "rest_ms": self.costs.rest,
        }

    @staticmethod
    def of(document: object) -> CostTable:
        """Read ``document`` again.

        Raises:
            InputError: it is of another version, or no cost table; says which entry is wrong.
        """
        if not isinstance(document, dict) or "version" not in document:
            raise InputError("it is no cost table: an object with version and verify_ms is expected")
        if document["version"] != VERSION:
            raise InputError(f"it is a cost table of version {shown(document['version'])}; this augury reads {VERSION}")
        verify = document.get("verify_ms")
        if not isinstance(verify, list) or not 3 <= len(verify) <= MAX_ROWS + 1:
            raise InputError(f"verify_ms must be a list of 3 to {MAX_ROWS + 1} times, for 0, 1, 2... rows")
        times = [_time(f"verify_ms[{rows}]", ms) for rows, ms in enumerate(verify)]
        if times[0] != 0.0 or times[1] <= 0.0 or any(a > b for a, b in pairwise(times)):
            raise InputError("verify_ms must begin with 0, then be above 0, and never fall")
        measured_on = document.get("measured_on", {})
        if not isinstance(measured_on, dict):
            raise InputError(f"measured_on is {shown(measured_on)}; it must be an object")
        attend, rest = (_time(name, document.get(name)) for name in ("attend_ms", "rest_ms"))
        return CostTable(Costs(np.asarray(times, np.float64), attend, rest), measured_on)

    @staticmethod
    def read(path: Path) -> CostTable:
        """From a file.

        Raises:
            InputError: it cannot be read, or is no cost table.
        """
        try:
            return CostTable.of(json.loads(path.read_bytes()))
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
        except InputError as error:
            raise InputError(f"{path.name}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path.name} is not JSON: {first_line(error)}") from None

    def write(self, path: Path) -> None:
        """To a file, whatever is there."""
        path.write_text(json.dumps(self.document(), indent=1) + "\n", "utf-8")


def _time(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= MAX_MS:
        raise InputError(f"{name} is {shown(value)}; it must be a number of milliseconds in 0..{MAX_MS:.0f}")
    return float(value)
