"""What goes wrong, as a client sees it: one object for every status, one line, nothing of ours and little of theirs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from augury.errors import AuguryError, ContextTooLong, InputError, TooLate, Unavailable, shown

LONGEST_MESSAGE = 400
"""Characters."""

LONGEST_PARAM = 100

RETRY_SECONDS = 1

_PATH = re.compile(r"(?<![\w<])(?:[A-Za-z]:)?[\\/](?:[\w.@+-]+[\\/])+[\w.@+-]*")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_NAMED = re.compile(r"(?:the |a (?:token id of |sequence of )?)?([a-z_]+)")


class Fault(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP.
        message: one line; is made short.
        type: of the error, see ``TYPES``.
        code: what a program can tell it by.
        param: which field of the request is meant; is made short.
        headers: beside the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type, self.code = status, type, code
        self.message = _short(message, LONGEST_MESSAGE)
        self.param = None if param is None else _short(param, LONGEST_PARAM)
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> Response:
        """The whole answer."""
        return Response(dumped(self.body), self.status, self.headers, "application/json")


def refused(param: str | None, message: str, code: str = "invalid_value") -> Fault:
    """A value of the request that cannot be honoured."""
    return Fault(400, message, code=code, param=param)


def unsupported(param: str, why: str) -> Fault:
    """A field that OpenAI or a peer knows, and we do not do: silence would be a wrong answer."""
    return Fault(400, f"{param} is not supported here: {why}", code="unsupported_parameter", param=param)


def dumped(value: object) -> bytes:
    """JSON as it is sent."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def sanitised(message: str) -> str:
    """A message without paths of this machine and addresses of its memory."""
    return _ADDRESS.sub("(address)", _PATH.sub("(path)", message))


def _short(text: str, most: int) -> str:
    """In one line that is not long, of characters that can be sent."""
    line = " ".join(text.split()).encode("utf-8", "replace").decode()
    return line if len(line) <= most else f"{line[: most - 3]}..."


def fault_of(error: Exception, fields: Collection[str] = ()) -> Fault:
    """What a client is told of an error.

    Args:
        error: any.
        fields: of the request; the one that a message begins with is its ``param``.
    """
    retry, said = {"Retry-After": str(RETRY_SECONDS)}, sanitised(str(error)) if isinstance(error, AuguryError) else ""
    match error:
        case Fault():
            return error
        case ContextTooLong():
            param = "messages" if "messages" in fields else "input" if "input" in fields else "prompt"
            return Fault(400, error.told, code="context_length_exceeded", param=param)
        case InputError():
            return Fault(400, said, code="invalid_value", param=_param(said, fields))
        case TooLate():
            return Fault(504, said, type="timeout_error", code="timeout")
        case Unavailable():
            return Fault(503, said, type="overloaded_error", code="server_overloaded", headers=retry)
        case AuguryError():
            return _broken(said)
        case _:
            return _broken("the server met an error of its own; its log says which")


def _broken(message: str) -> Fault:
    """Asked again, it would break again: a client must not retry by itself."""
    return Fault(500, message, type="server_error", code="internal_error", headers={"x-should-retry": "false"})


def _param(message: str, fields: Collection[str]) -> str | None:
    found = _NAMED.match(message)
    name = found[1] if found else ""
    if name == "prompt" and "messages" in fields:
        name = "messages"
    return name if name in fields else None


ROUTES = (
    "/v1/chat/completions, /v1/completions, /v1/responses, /v1/models, /tokenize, /detokenize, /health, /metrics, "
    "/trace/*"
)
"""What a server has, for those who ask for something else."""

_NAMES = {name: {"type": ["string", "null"]} for name in ("message", "type", "param", "code")}
DESCRIBED: dict[int | str, dict[str, Any]] = {
    status: {
        "description": "An error",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": {"type": "object", "required": [*_NAMES], "properties": _NAMES}},
                }
            }
        },
    }
    for status in ("4XX", "5XX")
}
"""What OpenAPI says of every route's errors."""


def install(app: FastAPI, routes: str = ROUTES) -> None:
    """Hand the framework's own refusals to who answers errors, ``guard.py``.

    Args:
        app: whose they are.
        routes: that it has, in words.
    """
    words = {
        404: (f"this server has no such route; it has {routes}", "not_found"),
        405: ("this route does not know that method", "method_not_allowed"),
    }

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message, code = words.get(error.status_code, (str(error.detail), None))
        headers = {**(error.headers or {})}
        if allowed := headers.get("Allow"):
            known = [one.strip() for one in allowed.split(",")]
            known += ["HEAD"] if "GET" in known and "HEAD" not in known else []
            headers["Allow"] = ", ".join(known)
            message += f"; it knows {headers['Allow']}"
        raise Fault(error.status_code, message, code=code, headers=headers) from None

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:])[:200]
        said = first["msg"].replace("Input should", "it should", 1)
        raise refused(name or None, f"{name} is {shown(first.get('input'))}; {said}") from None

    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
