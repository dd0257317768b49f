"""Prompts: our own, and those of files and of stdin.

Speculation pays by kind of text, so every prompt has one: copying from the prompt, code and JSON are
guessed well, free prose is not. The kinds follow Spec-Bench (https://arxiv.org/abs/2401.07851, section 4),
with four of our own; the sentences are all ours.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from augury.errors import InputError, UnknownName
from augury.texts import utf8

UNKNOWN_KIND = "text"
"""Kind of a prompt that does not say its own."""


@dataclass(frozen=True)
class Prompt:
    """A user message, and those that follow it in the same dialogue.

    Attributes:
        id: unique in its file.
        kind: what sort of text is asked for.
        text: the first message.
        prediction: what the answer is expected to be, or None.
        later: the further messages; the benchmark leaves them out.
    """

    id: str
    kind: str
    text: str
    prediction: str | None = None
    later: tuple[str, ...] = ()


def own() -> list[Prompt]:
    """The prompts that come with the package: three of each of seventeen kinds."""
    return parse(files("augury.bench").joinpath("prompts.jsonl").read_text("utf-8"), "prompts.jsonl", rows=True)


def read(path: Path) -> list[Prompt]:
    """Prompts of a file: JSON Lines when its name ends in ``.jsonl`` or ``.json``, else every line as it stands.

    A JSON row has ``prompt`` (text), or ``turns`` (the texts of a dialogue, as in Spec-Bench); it may have ``id``
    or ``question_id``, ``kind`` or ``category``, and ``prediction``. Empty lines are passed over.

    Raises:
        InputError: the file cannot be read, or a row has no prompt.
    """
    return parse(utf8(path), path.name, rows=path.suffix in (".jsonl", ".json"))


def parse(text: str, name: str, *, rows: bool) -> list[Prompt]:
    """Prompts of a text; ``rows`` says whether its lines are JSON. See ``read``."""
    # Not splitlines(): it also cuts at characters that stand inside texts, such as U+2028.
    lines = [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    found = [_row(f"{name} line {n}", n, line) if rows else Prompt(str(n), UNKNOWN_KIND, line) for n, line in lines]
    if not found:
        raise InputError(f"{name} has no prompts")
    twice = [one for one, count in Counter(p.id for p in found).items() if count > 1]
    if twice:
        raise InputError(f"{name} has {len(twice)} ids more than once, the first is {twice[0]!r}")
    return found


def select(prompts: Sequence[Prompt], kinds: Sequence[str] = (), limit: int | None = None) -> list[Prompt]:
    """Prompts of the named kinds (of all when none is named), the first ``limit`` of each."""
    known = list(dict.fromkeys(p.kind for p in prompts))
    for kind in kinds:
        if kind not in known:
            raise UnknownName("kind", kind, known)
    counted: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        counted[prompt.kind] += 1
        if (not kinds or prompt.kind in kinds) and (limit is None or counted[prompt.kind] <= limit):
            chosen.append(prompt)
    return chosen


def _row(where: str, number: int, line: str) -> Prompt:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {getattr(error, 'msg', error)}") from None
    if not isinstance(row, dict):
        raise InputError(f"{where} is a JSON {type(row).__name__}; an object with prompt or turns is expected")
    turns = row.get("turns") if row.get("prompt") is None else [row["prompt"]]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise InputError(f'{where} has neither "prompt" (text) nor "turns" (a list of texts)')
    prediction = row.get("prediction")
    if prediction is not None and not isinstance(prediction, str):
        raise InputError(f"{where} has a prediction that is not text")
    name = row.get("id", row.get("question_id", number))
    kind = row.get("kind", row.get("category", UNKNOWN_KIND))
    return Prompt(str(name), str(kind), turns[0], prediction, tuple(turns[1:]))
