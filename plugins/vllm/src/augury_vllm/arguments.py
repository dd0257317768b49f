"""Arguments of the commands, each mistake in one line."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from augury.errors import shown


def whole(least: int = 1) -> Callable[[str], int]:
    """Reads a whole number that has a least value."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ArgumentTypeError(f"{shown(text)} is no whole number, {least} or more")
        return value

    return read


def sizes(text: str) -> list[int]:
    """Reads a comma list of whole numbers."""
    return [whole()(one) for one in text.split(",")]


def options(text: str) -> dict[str, Any]:
    """Reads an object of JSON."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"""{shown(text)} is no object of JSON, such as '{{"row": 0.05}}'""")
    return found
