"""What stands in front of every route: who asks, from where, how much, and under which number.

It is plain ASGI: nothing of a request is read before it is known to be welcome, and no route can be forgotten.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
import uuid
from collections.abc import Callable, Sequence
from hmac import compare_digest
from urllib.parse import urlsplit

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from augury.errors import Stopping
from augury.server.faults import Fault, fault_of
from augury.server.limits import Bodies
from augury.server.pages import PLACE
from augury.server.settings import Settings

KEY = "augury.key"
"""Place in an ASGI scope of the digest of the key that was shown, empty where none is asked for."""

REQUEST_ID = "augury.request_id"
"""Place in an ASGI scope of the request's number."""

OPEN = "/health"
"""The route for everybody."""

HEAD = "augury.head"
"""Place in an ASGI scope of whether only the head of the answer is asked for."""

TRACE = "/trace"
"""Before the routes that show what others asked."""

_PATIENCE_SECONDS, _LINGER_SECONDS = 0.02, 1.0
_LOOK_SECONDS = 0.25  # between two looks at whether the server stops, while a body is waited for
_ID = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")
_CLOSE = {"Connection": "close"}
_LOG = logging.getLogger("augury.server")


def asker(request: Request) -> str:
    """Who asks, as limits count: the digest of a key, or without keys an address."""
    key: str = request.scope[KEY]
    return key or (request.client.host if request.client else "")


def digests(keys: Sequence[str]) -> list[str]:
    """What is kept of keys, which are secrets."""
    return [_digest(key.encode()) for key in keys]


class Guard:
    """ASGI middleware; see the module's text.

    Args:
        app: that stands behind it.
        settings: of the server; its keys are not looked at.
        keys: digests of those that open every route but ``/trace``; none asks for no key.
        bodies: how much of the server's memory they have.
        trace_keys: digests of those that open ``/trace``; none asks for what other routes ask for.
        stopping: whether nothing is taken any more.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        keys: Sequence[str],
        bodies: Bodies,
        trace_keys: Sequence[str] = (),
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._settings, self._digests, self._bodies = settings, keys, bodies
        self._trace_digests, self._stopping = trace_keys, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        given = _one(headers, b"x-request-id").decode("latin-1")
        scope[REQUEST_ID] = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope[KEY] = ""
        if scope["method"] == "HEAD":  # as GET does it; the server that sends it leaves the body out
            scope = {**scope, "method": "GET", HEAD: True}
        started = False

        async def numbered(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", scope[REQUEST_ID].encode())]
            await send(message)

        length = _one(headers, b"content-length")
        whole = length in (b"", b"0") and b"transfer-encoding" not in headers
        body = Body(receive, self._settings, self._bodies, whole, self._stopping)
        try:
            self._check(scope, headers)
            await self._app(scope, body, numbered)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # the server closes, and this body did not come, or this answer is not read
            if not started:
                stopping = Stopping("the server has stopped before the request was answered; ask again")
                await _refuse(fault_of(stopping), body, False, numbered)
        except Exception as error:
            fault = fault_of(error)
            if fault.status == 500:
                _LOG.exception("request %s failed", scope[REQUEST_ID])
            if started:
                raise
            await _refuse(fault, body, b"expect" not in headers, numbered)
        finally:
            body.give()

    def _check(self, scope: Scope, headers: dict[bytes, list[bytes]]) -> None:
        if scope["path"] != OPEN:
            self._check_host(headers)
            self._check_key(scope, headers)
        lengths = headers.get(b"content-length", [])
        if len(lengths) > 1 or (lengths and b"transfer-encoding" in headers):
            raise Fault(400, "the request says its length in two ways", code="invalid_length", headers=_CLOSE)
        if lengths and (not lengths[0].isdigit() or int(lengths[0]) > self._settings.max_body):
            raise _too_large(self._settings.max_body)

    def _check_host(self, headers: dict[bytes, list[bytes]]) -> None:
        """A page of another site that a browser shows, or a name that was bound to this address, asks nothing here."""
        host = _one(headers, b"host").decode("latin-1").lower()
        if not _allowed(host, self._settings.hosts):
            raise Fault(
                400, "this server does not go by that Host; its operator says which it has", code="invalid_host"
            )
        for origin in headers.get(b"origin", []):
            if _site(origin.decode("latin-1")) != host:
                raise Fault(403, "pages of other sites may not ask this server", code="invalid_origin")

    def _check_key(self, scope: Scope, headers: dict[bytes, list[bytes]]) -> None:
        path: str = scope["path"]
        if self._settings.page and (path == "/" or path.startswith(PLACE)):
            return  # the page itself is no secret
        traced = path == TRACE or path.startswith(f"{TRACE}/")
        asked = self._trace_digests if traced else ()
        if not (self._digests or asked):
            return
        scheme, _, key = _one(headers, b"authorization").partition(b" ")
        if scheme.lower() != b"bearer":
            key = _one(headers, b"x-api-key")
        shown = _digest(key.strip())
        known, traces = _among(shown, self._digests), _among(shown, asked)
        if asked and known and not traces:
            raise Fault(
                403,
                "this key does not open the trace, which shows what others asked; its operator set --trace-key",
                type="permission_error",
                code="trace_key_needed",
            )
        if not (traces if asked else known):
            wrong = "no API key was given" if not key.strip() else "the API key is not one of this server's"
            raise Fault(
                401,
                f"{wrong}; send one as Authorization: Bearer, or as X-Api-Key",
                type="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        scope[KEY] = shown


class Body:
    """``receive`` that counts what comes, and how long it takes to, and does not wait for it while the server stops."""

    def __init__(
        self, receive: Receive, settings: Settings, bodies: Bodies, whole: bool, stopping: Callable[[], bool]
    ) -> None:
        self._receive, self._settings, self._bodies, self.stopping = receive, settings, bodies, stopping
        self._size, self._held, self.whole = 0, 0, whole
        self._deadline = time.monotonic() + settings.body_seconds

    def give(self) -> None:
        """What came is not held any more."""
        self._bodies.give(self._held)
        self._held = 0

    async def drain(self, seconds: float) -> None:
        """Throw away what comes for so long, or until it is whole."""
        with anyio.move_on_after(seconds):
            while not self.whole:
                message = await self._receive()
                self.whole = message["type"] != "http.request" or not message.get("more_body", False)

    async def __call__(self) -> Message:
        """The next part of it."""
        if self.whole:
            return await self._receive()  # what comes now is that the client has gone
        message = await self._next()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
            if self._size > self._settings.max_body:
                raise _too_large(self._settings.max_body)
            self._bodies.take(self._size - self._held)
            self._held = self._size
        return message

    async def _next(self) -> Message:
        """What comes next, in time."""
        while True:
            if self.stopping():
                raise Stopping("the server is stopping, and the request has not come whole; ask again")
            left = self._deadline - time.monotonic()
            with anyio.move_on_after(min(left, _LOOK_SECONDS)):
                return await self._receive()
            if left <= _LOOK_SECONDS:
                seconds = self._settings.body_seconds
                raise Fault(
                    408,
                    f"the body took more than {seconds:g} seconds to come",
                    type="timeout_error",
                    code="request_timeout",
                )


async def _refuse(fault: Fault, body: Body, lingers: bool, send: Send) -> None:
    """Answer. What is left of a body is not waited for: the connection closes behind the answer, though not before a
    client that is still writing had a moment to finish, as it reads only then.
    """
    if lingers:
        await body.drain(_PATIENCE_SECONDS)  # a small one is there already, and the connection can stay
    response = fault.response()
    fields = response.raw_headers
    if not body.whole:
        fields = [*(field for field in fields if field[0] != b"connection"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": response.status_code, "headers": fields})
    await send({"type": "http.response.body", "body": response.body, "more_body": not body.whole})
    if not body.whole:
        if lingers and not body.stopping():
            await body.drain(_LINGER_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _too_large(limit: int) -> Fault:
    return Fault(413, f"the body is larger than {limit} bytes, which is the limit", code="request_too_large")


def _headers(scope: Scope) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name, []).append(value)
    return found


def _one(headers: dict[bytes, list[bytes]], name: bytes) -> bytes:
    return headers.get(name, [b""])[0]


def _site(origin: str) -> str:
    """The host and port of an origin; none where it is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _among(shown: str, digests: Sequence[str]) -> bool:
    """Whether a digest is one of these; all are compared, so that the time tells nothing."""
    known = False
    for digest in digests:
        known |= compare_digest(digest, shown)
    return known


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _allowed(host: str, hosts: Sequence[str]) -> bool:
    """Whether a Host header names one of the hosts; the port is not looked at."""
    name = re.sub(r":\d*$", "", host).strip("[]")
    return not hosts or any(
        name.endswith(one[1:].lower()) if one.startswith("*.") else name == one.lower().strip("[]") for one in hosts
    )
