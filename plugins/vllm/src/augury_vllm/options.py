"""What is set under ``augury`` in vLLM's ``--additional-config``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import inf
from typing import Any, Literal

from augury.errors import InputError, UnknownName, shown
from augury.integrations.alongside import Given, Measured, Prices
from augury.integrations.specs import listed

MOST_DRAFTERS = 32
"""As many as ``counts.py`` has room for."""

ROW, KNEE = 0.001, 256
"""Of a GPU: a row costs next to nothing until multiplying takes as long as reading the weights. Until then it adds its
logits, a few MB to write and to read again, to some GB of weights; the context is read once for all rows of a text."""

MOST_KNEE = 4096
"""Prices are a table of four times as many rows. The fastest processors have their knee at some hundreds."""

CPU_ROW = 0.05
"""Of a CPU, until its own steps have told more: they differ much."""


_KEY = "augury"
_ALIKE = 0.7  # from which on a name is a slip of it


@dataclass(frozen=True)
class Options:
    """What guesses, and at what prices.

    Attributes:
        drafters: specs, as ``augury generate --drafters`` takes them.
        prices: whether the time of the engine's steps decides what is worth guessing, or ``row`` and ``knee`` alone:
            then equal calls get equal guesses, on any machine.
        row: what a row beyond the first costs, in plain steps; of measured prices only where they begin.
        knee: rows from which on multiplying takes longer than reading the weights; likewise.
    """

    drafters: tuple[str, ...] = ("suffix",)
    prices: Literal["given", "measured"] = "given"
    row: float = ROW
    knee: int = KNEE

    @staticmethod
    def of(additional: object, device: str = "cuda") -> Options:
        """Read them.

        Args:
            additional: vLLM's ``additional_config``.
            device: kind of the target's, on which the defaults of ``prices`` and ``row`` depend: a CPU is measured.

        Raises:
            InputError: a key or value that there is none of; one line.
        """
        additional = additional if isinstance(additional, Mapping) else {}
        given = additional.get(_KEY, {})
        if not isinstance(given, Mapping):
            raise InputError(f'augury is {shown(given)}; give an object, such as {{"drafters": "suffix"}}')
        known = [field.name for field in fields(Options)]
        _check_meant(additional, known)
        for key in given:
            if key not in known:
                raise UnknownName("option of augury", str(key), known)
        slow = device == "cpu"
        options = Options(
            drafters=_drafters(given.get("drafters", "suffix")),
            prices=given.get("prices", "measured" if slow else "given"),
            row=_number("row", given.get("row", CPU_ROW if slow else ROW)),
            knee=_whole("knee", given.get("knee", KNEE)),
        )
        if options.prices not in ("given", "measured"):
            raise InputError(f"augury: prices is {shown(options.prices)}; it must be given or measured")
        if not 1 <= options.knee <= MOST_KNEE:
            raise InputError(f"augury: knee is {shown(options.knee)}; it must be from 1 to {MOST_KNEE} rows")
        Given(options.row, options.knee)  # says what is out of range
        return options

    def table(self) -> Prices:
        """The prices."""
        return Measured(self.row, self.knee) if self.prices == "measured" else Given(self.row, self.knee)


def _check_meant(additional: Mapping[Any, Any], known: Sequence[str]) -> None:
    """Refuse what was meant for us and nobody would heed; what else is there may be of other plug-ins.

    Raises:
        InputError: an option of ours beside ``augury``, or a slip of that name.
    """
    for key in map(str, additional):
        slip = _KEY not in additional and get_close_matches(key.lower(), [_KEY], cutoff=_ALIKE)
        if key in known or slip:
            inside = json.dumps({key: additional[key]}, default=str) if key in known else "{...}"
            raise InputError(f'additional_config has {key!r}; write {{"{_KEY}": {inside}}}')


def _drafters(given: object) -> tuple[str, ...]:
    """Specs of a comma list, or of a list."""
    specs = listed(given, "augury: drafters")
    if len(specs) > MOST_DRAFTERS:
        raise InputError(f"augury: {len(specs)} drafters; there may be up to {MOST_DRAFTERS}")
    if twice := [spec for i, spec in enumerate(specs) if spec in specs[:i]]:
        raise InputError(f"augury: drafter {twice[0]} is named twice")
    return specs


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"augury: {name} is {shown(value)}; it must be a number")
    try:
        return float(value)
    except OverflowError:  # a whole number may have any number of digits
        return inf


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"augury: {name} is {shown(value)}; it must be a whole number")
    return value
