"""What comes with the package: a directory for each target, in it one for each kind of head, and a file of phrases."""

from __future__ import annotations

import json
from pathlib import Path

from augury.drafters.phrases import FILE, Table, read_table
from augury.errors import InputError
from augury.models.target import TargetInfo

SHIPPED = Path(__file__).parent.parent / "heads"


def shipped(kind: str, info: TargetInfo) -> Path:
    """Where the head of a kind lies that was trained for a target with these very weights.

    Raises:
        InputError: there is none.
    """
    for directory in _heads(info):
        if directory.name == kind:
            return directory
    raise InputError(
        f"drafter {kind}: no head is shipped for {info.name}; train one (augury train {kind} {info.name} --out DIR) "
        f"and give it as {kind}:DIR/{kind}"
    )


def fitting(info: TargetInfo) -> list[str]:
    """Kinds of the heads that are shipped for a target with these very weights, if heads can ride on it."""
    return [directory.name for directory in _heads(info)] if info.taps else []


def shipped_phrases(info: TargetInfo) -> Table | None:
    """The phrases of a target with these very weights, if any are shipped.

    Raises:
        ModelError: they are damaged.
    """
    for path in sorted(SHIPPED.glob(f"*/{FILE}")) if info.digest else []:
        if (table := read_table(path)).digest == info.digest:
            return table
    return None


def _heads(info: TargetInfo) -> list[Path]:
    """Directories of heads, found by the weights and not by the name: a user's own copy has another."""
    if not info.digest:
        return []
    configs = sorted(SHIPPED.glob("*/*/config.json"))
    return [path.parent for path in configs if _digest(path) == info.digest]


def _digest(config: Path) -> str:
    return str(json.loads(config.read_text("utf-8"))["augury"]["target_digest"])
