"""Which replica had a conversation before: its key, and the order in which replicas are asked for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from augury.server.asking import tenant
from augury.server.faults import Fault
from augury.server.reading import parsed

BEGINNING = 256
"""Characters, or tokens, of a prompt without turns that tell conversations apart."""

_INSTRUCTIONS = ("system", "developer")


def conversation(key: str, body: bytes) -> str:
    """The key of a conversation, the same for all its turns: who asks, and how it begins.

    What is in front of all conversations, as instructions are, tells none apart; the first turn behind it does.

    Args:
        key: digest of the API key that was shown, empty where none is asked for.
        body: of the request, whatever it is.

    Returns:
        A digest; nothing can be read from it.
    """
    try:
        asked = parsed(body)
    except Fault:  # the replica says what is wrong with it
        asked = {}
    salt = asked.get("cache_salt")
    begins = [tenant(key, salt if isinstance(salt, str) else None), *_beginning(asked)]
    return hashlib.sha256(json.dumps(begins).encode()).hexdigest()


def ranked(key: str, names: Iterable[str]) -> list[str]:
    """Names in the order in which they are asked for a key (rendezvous hashing).

    Where a name comes or goes, the order of the others stays: only the keys that had it first move.
    """
    return sorted(names, key=lambda name: hashlib.sha256(f"{key} {name}".encode()).digest(), reverse=True)


def _beginning(asked: Mapping[str, Any]) -> list[Any]:
    """Instructions and first turn of chat and responses, or how a prompt begins."""
    turns = asked.get("messages", asked.get("input"))
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    if isinstance(turns, list):
        begins: list[Any] = [_said("system", asked["instructions"])] if asked.get("instructions") else []
        for turn in turns:
            role = turn.get("role") if isinstance(turn, dict) else None
            begins.append(_said(role, turn.get("content") if isinstance(turn, dict) else None))
            if role not in _INSTRUCTIONS:
                break
        return begins
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]  # of several, the first
    return [prompt[:BEGINNING]] if isinstance(prompt, (str, list)) else []


def _said(role: object, content: object) -> list[Any]:
    """One turn; a text and a list that holds it alone are the same."""
    if isinstance(content, list):
        content = "".join(str(part.get("text")) for part in content if isinstance(part, dict))
    return ["system" if role in _INSTRUCTIONS else role, content if isinstance(content, str) else None]
