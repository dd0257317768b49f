"""What comes with the package: a directory for each target, in it one for each kind of head, and a file of phrases."""

from __future__ import annotations

import json
from pathlib import Path

from augury.drafters.phrases import FILE, Table, read_table
from augury.errors import InputError
from augury.models.target import TargetInfo

SHIPPED = Path(__file__).parent.parent / "heads"


def shipped(kind: str, target: str) -> Path:
    """Where the head of a kind lies.

    Raises:
        InputError: there is none.
    """
    directory = SHIPPED / target / kind
    if not directory.is_dir():
        raise InputError(
            f"drafter {kind}: no head is shipped for {target}; train one (augury train {kind} {target} --out DIR) "
            f"and give it as {kind}:DIR/{kind}"
        )
    return directory


def fitting(info: TargetInfo) -> list[str]:
    """Kinds of the heads that are shipped for a target with these very weights, if heads can ride on it."""
    if not info.taps or not info.digest:
        return []
    configs = sorted((SHIPPED / info.name).glob("*/config.json"))
    return [path.parent.name for path in configs if _digest(path) == info.digest]


def shipped_phrases(info: TargetInfo) -> Table | None:
    """The phrases of a target with these very weights, if any are shipped.

    Raises:
        ModelError: they are damaged.
    """
    path = SHIPPED / info.name / FILE
    if not info.digest or not path.is_file():
        return None
    table = read_table(path)
    return table if table.digest == info.digest else None


def _digest(config: Path) -> str:
    return str(json.loads(config.read_text("utf-8"))["augury"]["target_digest"])
