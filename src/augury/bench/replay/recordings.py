"""Recorded conversations: what was asked and what was answered, as token ids.

A line of JSON Lines is a conversation in one of three forms; what else it holds is passed over:

- ``messages``: a list of ``role`` and ``content``; every assistant message is an answer to all that stands before it.
- ``prompt`` with ``completion``, ``response`` or ``answer``: two texts.
- ``prompt_ids`` with ``answer_ids``: token ids, as a model read and wrote them.

``user`` says whose it is, and ``prediction`` (text, or OpenAI's object) what the caller expected the answers to be.

A trace that holds prompts (``--trace FILE --trace-text``) is read as well: each of its requests is a conversation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.drafters.drafter import tenant_of
from augury.errors import InputError, first_line
from augury.trace.log import TraceFile
from augury.trace.records import requests
from augury.tree import IntArray

if TYPE_CHECKING:
    from augury.models.load import Wording

MAX_LINE = 16 << 20
"""Bytes of a line."""

MAX_TOKENS = 1 << 17
"""Tokens of a prompt and its answer together; longer ones are left out."""

MAX_IDS = 1 << 20
"""Token ids lie below where no tokenizer says how many there are; the largest vocabularies have 2**18."""

_USUAL_IDS = 1 << 18
_ANSWERS = ("completion", "response", "answer")
_UNBEGUN = "begun before the trace"
_EMPTY, _UNASKED, _LONG = "empty", "nothing before them", f"longer than {MAX_TOKENS} tokens with their prompt"


@dataclass(frozen=True)
class Recording:
    """One answer.

    Attributes:
        line: where its conversation stands in the file; the first is 1. Of a trace: the number of the request.
        prompt: i32[m], m >= 1.
        answer: i32[n], n >= 1.
        ended: whether the last token of the answer is one that ends it; if not, a limit did.
        user: whose it is; empty where nothing is said.
        prediction: i32[k], what the caller expected, or None.
    """

    line: int
    prompt: IntArray
    answer: IntArray
    ended: bool
    user: str = ""
    prediction: IntArray | None = None


@dataclass(frozen=True)
class Log:
    """What a file holds.

    Attributes:
        recordings: its answers in their order; at least one.
        conversations: lines that were read.
        left_out: answers that are not replayed: why -> how many.
        vocab_size: V, above every id.
    """

    recordings: Sequence[Recording]
    conversations: int
    left_out: Mapping[str, int]
    vocab_size: int


def read(
    path: Path,
    wording: Wording | None = None,
    *,
    raw: bool = False,
    limit: int | None = None,
    max_tokens: int | None = None,
) -> Log:
    """Read a file; all of it is held in memory as ids.

    Args:
        path: JSON Lines; empty lines are passed over.
        wording: of the model that answered; lines of texts need it.
        raw: a prompt is taken as it stands, without the chat template.
        limit: conversations that are read; all when None.
        max_tokens: an answer is cut there.

    Raises:
        InputError: the file cannot be read, a line is not understood, or nothing is left to replay.
    """
    vocab = wording.tokenizer.vocab_size if wording else MAX_IDS
    ends = frozenset(wording.eos_ids(vocab) if wording else ())
    recordings: list[Recording] = []
    left_out: Counter[str] = Counter()
    conversations = 0
    found = _traced(path, vocab, left_out) if _is_trace(path) else _logged(path, wording, raw, vocab)
    for conversation in islice(found, limit):
        for one in conversation:
            if why := _unfit(one.prompt, one.answer):
                left_out[why] += 1
                continue
            cut = one.answer[:max_tokens]
            # An end token in the middle did not end this answer, so the last one did not either.
            ended = int(cut[-1]) in ends and ends.isdisjoint(cut[:-1].tolist())
            ended = ended or (one.ended and len(cut) == len(one.answer))
            recordings.append(replace(one, answer=cut, ended=ended))
        conversations += 1
    if not recordings:
        why = "; ".join(f"{count} {what}" for what, count in left_out.items()) or "no conversation has one"
        raise InputError(f"{path.name} has no answer to replay: {why}")
    if wording is None:
        vocab = max(_USUAL_IDS, 1 + max(int(ids.max()) for r in recordings for ids in (r.prompt, r.answer)))
    return Log(recordings, conversations, dict(left_out), vocab)


def _logged(path: Path, wording: Wording | None, raw: bool, vocab: int) -> Iterator[list[Recording]]:
    """The answers of each line."""
    for number, line in _lines(path):
        try:
            row = _object(line)
            user, prediction = _user(row), _prediction(row, wording)
            found = [
                Recording(number, prompt, answer, False, user, prediction)
                for prompt, answer in _answers(row, wording, raw, vocab)
            ]
        except InputError as error:
            raise InputError(f"{path.name} line {number}: {error}") from None
        yield found


def _is_trace(path: Path) -> bool:
    """Whether the first line is a trace's."""
    _, line = next(_lines(path), (1, b""))
    try:
        return "augury_trace" in _object(line)
    except InputError:
        return False


def _traced(path: Path, vocab: int, left_out: Counter[str]) -> Iterator[list[Recording]]:
    """The answer of each request of a trace."""
    found = TraceFile(path)
    if not found.header["text"]:
        raise InputError(f"{path.name} is a trace without prompts; write it with --trace-text to replay it")
    for one in requests(found.header, found):
        begin, record = one.begin or {}, one.record
        if "prompt" not in begin:
            left_out[_UNBEGUN] += 1
            yield []
            continue
        answer = [token for step in record.steps for token in step.emitted]
        ids = {"prompt": begin["prompt"], "answer": answer}
        prompt, said = (_ids(ids, key, vocab) for key in ids)
        yield [Recording(one.id, prompt, said, record.finish == "stop" and answer[-1:] == [record.stop])]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every line that is not empty."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise InputError(f"{path.name} line {number} is longer than {MAX_LINE >> 20} MiB; split it")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is not JSON: {first_line(error)}") from None
    if not isinstance(row, dict):
        raise InputError(f"it is a JSON {type(row).__name__}; an object is expected")
    return row


def _answers(
    row: Mapping[str, Any], wording: Wording | None, raw: bool, vocab: int
) -> Iterator[tuple[IntArray, IntArray]]:
    """(prompt, answer) of every answer of a conversation, as ids."""
    if "prompt_ids" in row or "answer_ids" in row:
        yield _ids(row, "prompt_ids", vocab), _ids(row, "answer_ids", vocab)
    elif "messages" in row:
        yield from _dialogue(row["messages"], _needed(wording))
    elif "prompt" in row:
        key = next((key for key in _ANSWERS if key in row), None)
        if key is None:
            raise InputError(f'"prompt" has no answer: one of {", ".join(_ANSWERS)} is missing')
        if not isinstance(row["prompt"], str) or not isinstance(row[key], str):
            raise InputError(f'"prompt" and "{key}" must be texts; a list of messages belongs under "messages"')
        yield _asked(row["prompt"], _needed(wording), raw), _needed(wording).tokenizer.encode(row[key], special=False)
    else:
        raise InputError(f'"messages" is missing, or "prompt" with one of {", ".join(_ANSWERS)}, or ids of both')


def _needed(wording: Wording | None) -> Wording:
    if wording is None:
        raise InputError(
            "it is text; name the model whose tokenizer reads it: --tokenizer with an embedded name, a directory, "
            "a .gguf file or a tokenizer.json"
        )
    return wording


def _dialogue(messages: object, wording: Wording) -> Iterator[tuple[IntArray, IntArray]]:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InputError('"messages" must be a list of objects with role and content')
    for place, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        text = _content(place, message)
        before = messages[:place]
        if not before:
            prompt = np.empty(0, np.int32)
        elif wording.template is not None:
            prompt = wording.template.encode(wording.tokenizer, before)
        else:
            turns = "\n".join(_content(i, turn) for i, turn in enumerate(before)) + "\n"
            prompt = wording.tokenizer.encode(turns, special=False, start=True)
        yield prompt, wording.tokenizer.encode(text, special=False)


def _content(place: int, message: Mapping[str, Any]) -> str:
    """A message's text; empty where it has none, such as that of a call of tools."""
    content = message.get("content")
    if content is None:
        return ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in parts):
        raise InputError(f"messages[{place}] has content that is no text")
    return "".join(part["text"] for part in parts)


def _asked(text: str, wording: Wording, raw: bool) -> IntArray:
    """What the engine is asked with a prompt."""
    if raw or wording.template is None:
        return wording.tokenizer.encode(text, start=True)
    return wording.template.encode(wording.tokenizer, [{"role": "user", "content": text}])


def _ids(row: Mapping[str, Any], key: str, vocab: int) -> IntArray:
    found = row.get(key)
    if not isinstance(found, list) or any(type(token) is not int for token in found):
        raise InputError(f'"{key}" is missing or no list of token ids')
    wrong = next((token for token in found if not 0 <= token < vocab), None)
    if wrong is not None:
        raise InputError(f'"{key}" has token id {wrong}; valid ids are 0..{vocab - 1}')
    return np.asarray(found, np.int32)


def _user(row: Mapping[str, Any]) -> str:
    user = row.get("user")
    if user is not None and (isinstance(user, bool) or not isinstance(user, str | int)):
        raise InputError('"user" must be a text or a number')
    name = "" if user is None else str(user)
    tenant_of(name)  # refuses what is too long
    return name


def _prediction(row: Mapping[str, Any], wording: Wording | None) -> IntArray | None:
    found = row.get("prediction")
    text = found.get("content") if isinstance(found, dict) else found
    if text is None:
        return None
    if not isinstance(text, str):
        raise InputError('"prediction" must be a text, or an object with the text as content')
    return _needed(wording).tokenizer.encode(text)


def _unfit(prompt: IntArray, answer: IntArray) -> str | None:
    """Why an answer is not replayed, or None."""
    if not len(answer):
        return _EMPTY
    if not len(prompt):
        return _UNASKED
    return _LONG if len(prompt) + len(answer) > MAX_TOKENS else None
