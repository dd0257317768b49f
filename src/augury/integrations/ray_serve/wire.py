"""What passes between the door and a replica: plain values, and messages of ASGI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.types import Message, Scope

TAKEN = "augury.taken"
"""Type of the first message of every answer: it names the replica, before anything is computed."""


@dataclass(frozen=True)
class Wanted:
    """Who shall answer.

    Attributes:
        key: of the conversation, see ``affinity``.
        avoid: replicas that were asked before, and could not.
        turn: where all replicas are asked in turn, the number of the one that is meant.
    """

    key: str
    avoid: tuple[str, ...] = ()
    turn: int | None = None


def taken(replica: str) -> Message:
    """The first message of an answer."""
    return {"type": TAKEN, "replica": replica}


def packed(scope: Scope, path: str, request_id: str) -> dict[str, Any]:
    """A request's scope without what cannot leave the process.

    Args:
        scope: as it came.
        path: below the application's own prefix.
        request_id: under which it is known here.
    """
    headers = [(name, value) for name, value in scope["headers"] if name != b"x-request-id"]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": scope.get("http_version", "1.1"),
        "method": scope["method"],
        "scheme": scope.get("scheme", "http"),
        "path": path,
        "raw_path": path.encode(),
        "query_string": scope.get("query_string", b""),
        "root_path": "",
        "headers": [*headers, (b"x-request-id", request_id.encode())],
        "client": None if scope.get("client") is None else tuple(scope["client"]),
        "server": None,
    }
