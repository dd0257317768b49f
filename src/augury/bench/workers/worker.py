"""The process of one engine: run by path, in the engine's own Python.

    python -I worker.py ENGINE OPTIONS

ENGINE names the file beside this one whose ``start`` takes OPTIONS, a JSON object, and gives a function that answers
and the versions of what does. One JSON line is printed when the engine is ready, ``{"versions": {package: version}}``.
Then one request a line is read, ``{"prompt": [ids], "max_tokens": n, "eos": [ids]}``, and answered with
``{"stamps": [[milliseconds, tokens so far], ...], "tokens": [ids]}``. In place of either line there may be
``{"error": why}``; after one in place of the first the process ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

Emit = Callable[[Sequence[int]], None]
"""Takes the next tokens of an answer, when they come."""

Answer = Callable[[list[int], int, list[int], Emit], None]
"""Answers prompt ids greedily, with so many tokens at most, up to and with one of the ids that end an answer."""


def main(engine: str, options: Mapping[str, Any]) -> int:
    """Start the engine, and answer until the input ends."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is no answer

    def say(message: Mapping[str, Any]) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    try:
        answer, packages = _start(engine)(options)
        versions = {package: version(package) for package in packages}
    except Exception as error:
        say({"error": _said(error)})
        return 1
    say({"versions": versions})
    for line in sys.stdin:
        try:
            say(_answered(answer, json.loads(line)))
        except Exception as error:
            say({"error": _said(error)})
    return 0


def _answered(answer: Answer, asked: Mapping[str, Any]) -> dict[str, Any]:
    tokens: list[int] = []
    stamps: list[tuple[float, int]] = []

    def emit(piece: Sequence[int]) -> None:
        tokens.extend(int(token) for token in piece)
        stamps.append((1e3 * time.perf_counter(), len(tokens)))

    answer(asked["prompt"], asked["max_tokens"], asked["eos"], emit)
    return {"stamps": stamps, "tokens": tokens}


def _start(engine: str) -> Callable[[Mapping[str, Any]], tuple[Answer, Sequence[str]]]:
    """``start`` of an engine's file; loaded by path, since its name is that of the package it runs."""
    spec = importlib.util.spec_from_file_location(f"worker_{engine}", Path(__file__).with_name(f"{engine}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    start: Callable[[Mapping[str, Any]], tuple[Answer, Sequence[str]]] = module.start
    return start


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
