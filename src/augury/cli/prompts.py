"""Where prompts come from: a text, stdin, a file; and how they are put to the engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from augury.errors import InputError

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.tree import IntArray


def read(path: Path | None) -> str:
    """A UTF-8 text from a file, or from stdin for None; the end of its last line is not part of it."""
    name = "stdin" if path is None else str(path)
    try:
        raw = sys.stdin.buffer.read() if path is None else path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None
    try:
        return raw.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text: byte 0x{raw[error.start]:02x} at {error.start}; convert it first"
        ) from None


def conversation(engine: Engine, text: str, system: str | None = None) -> IntArray:
    """Ids of one user message under the chat template, behind the system prompt if there is one."""
    if engine.template is None:
        raise InputError(f"{engine.target.info.name} has no chat template; use --raw")
    turns = [{"role": "system", "content": system}] if system is not None else []
    return engine.render([*turns, {"role": "user", "content": text}])


def dialogues(path: Path) -> list[list[str]]:
    """User turns of every dialogue in a file: a line of text, or of JSON with ``prompt`` or ``turns``.

    Every line is one dialogue; empty lines are passed over. JSON is expected when the file's name ends in
    ``.jsonl`` or ``.json``, else every line is a prompt as it stands.
    """
    lines = [(n, line) for n, line in enumerate(read(path).splitlines(), 1) if line.strip()]
    if path.suffix not in (".jsonl", ".json"):
        return [[line] for _, line in lines]
    return [_turns(f"{path} line {n}", line) for n, line in lines]


def _turns(where: str, line: str) -> list[str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not JSON: {error.msg}") from None
    found = (row.get("turns") or row.get("prompt")) if isinstance(row, dict) else None
    turns = [found] if isinstance(found, str) else found
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) for t in turns):
        raise InputError(f'{where} has neither "prompt" (text) nor "turns" (a list of texts)')
    return turns
