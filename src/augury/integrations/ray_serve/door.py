"""What stands between Ray's proxy and the replicas: it has no model, and refuses, finds and asks again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from augury.integrations.ray_serve.affinity import conversation
from augury.integrations.ray_serve.answering import Passing, Spoilt, broken
from augury.integrations.ray_serve.exposition import merged
from augury.integrations.ray_serve.wire import TAKEN, Wanted, packed
from augury.server.answers import while_connected
from augury.server.faults import Fault
from augury.server.guard import KEY, OPEN, REQUEST_ID, TRACE, Guard
from augury.server.limits import Bodies
from augury.server.reading import aside
from augury.server.running import MOST_REQUESTS
from augury.server.settings import Settings
from augury.server.status import unavailable

TRIES = 3
"""Replicas that are asked for one answer at most."""

TAKEN_SECONDS = 30.0
"""In which a replica must have taken a request: as long as one is being started, and no longer."""

_METRICS_SECONDS = 5.0
_SILENT = 3  # replicas that may not tell their metrics in it
_LOG = logging.getLogger("ray.serve")  # the logger whose lines Ray keeps


class Door:
    """A deployment of Ray Serve, the ingress of the application.

    Args:
        replicas: handle of the deployment that answers.
        settings: of the server; it holds no keys.
        keys: digests of them.
    """

    def __init__(self, replicas: DeploymentHandle, settings: Settings, keys: Sequence[str]) -> None:
        self._replicas = replicas.options(stream=True)
        self._open = 0
        bodies = Bodies(settings.max_bodies, lambda _: None)
        self._app = Guard(self._route, settings=settings, keys=keys, bodies=bodies)

    async def __call__(self, request: Request) -> Response:
        """One request of Ray's proxy."""
        return _Handed(self)

    async def enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The door as an ASGI app."""

        async def unnumbered(message: Message) -> None:
            if message["type"] == "http.response.start":  # Ray's proxy says the number, too
                fields = [field for field in message["headers"] if field[0] != b"x-request-id"]
                message = {**message, "headers": fields}
            await send(message)

        prefix = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"]
        if prefix and path.startswith(f"{prefix}/"):
            path = path[len(prefix) :]
        self._open += 1
        try:
            await self._app({**scope, "path": path, "root_path": ""}, receive, unnumbered)
        finally:
            self._open -= 1

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path == OPEN and scope["method"] == "GET":
            await Response()(scope, receive, send)  # the door lives; replicas that do not are replaced by Ray
            return
        if self._open > MOST_REQUESTS:
            raise unavailable(f"{MOST_REQUESTS} requests are open, which is the limit; ask again later", 1)
        if path == TRACE or path.startswith(f"{TRACE}/"):
            raise Fault(
                404,
                "no trace is shown where several replicas answer, each of which knows its own steps alone; a request "
                'with "trace": true gets those of its answer where the operator allows figures',
                code="trace_off",
            )
        if path == "/metrics" and scope["method"] == "GET":
            await while_connected(receive, lambda: self._metrics(scope, receive, send))
            return
        body = await Request(scope, receive).body()
        key = await aside(lambda: conversation(scope[KEY], body)) if body else scope[REQUEST_ID]
        passing = Passing(send, path.endswith("/responses"))
        await while_connected(receive, lambda: self._answer(key, packed(scope, path, scope[REQUEST_ID]), body, passing))

    async def _answer(self, key: str, scope: dict[str, Any], body: bytes, passing: Passing) -> None:
        """The answer of one replica, or of the next where that ends, or cannot answer, before it said anything."""
        avoid: list[str] = []
        fault = broken()
        for attempt in range(TRIES):
            replica = ""
            try:
                async with self._asked(Wanted(key, tuple(avoid)), scope, body) as (replica, messages):
                    last = attempt == TRIES - 1 or replica in avoid
                    async for message in messages:
                        if passing.busy(message) and not last:
                            break
                        await passing.take(message, replica)
                    else:
                        if passing.ended:
                            return
            except Spoilt:
                break
            except Fault as untaken:  # a stream that began must be ended all the same
                fault = untaken
                break
            except RayTaskError:
                _LOG.error("replica %s met an error of its own", replica)
                fault = Fault(500, "the replica met an error of its own; its log says which", type="server_error",
                              code="internal_error", headers={"x-should-retry": "false"})  # fmt: skip
                break
            except RayError as error:
                said = "in the middle of" if passing.said else "before"
                _LOG.warning("replica %s ended %s an answer: %s", replica or "asked", said, type(error).__name__)
            if passing.said:
                break
            passing.again()
            avoid.append(replica)
        if not await passing.fail(fault):
            raise fault

    @asynccontextmanager
    async def _asked(
        self, wanted: Wanted, scope: dict[str, Any], body: bytes
    ) -> AsyncIterator[tuple[str, AsyncIterator[Message]]]:
        """The replica that took a request, and what it says; it is cancelled behind the block.

        Raises:
            Fault: none took it.
            RayError: the replica has ended, or failed.
        """
        answer = self._replicas.answer.remote(wanted, scope, body)
        try:
            try:
                first = await asyncio.wait_for(anext(answer), TAKEN_SECONDS)
            except (TimeoutError, BackPressureError, DeploymentUnavailableError):
                raise unavailable("no replica is ready to answer; ask again in a moment") from None
            assert first["type"] == TAKEN
            yield first["replica"], answer
        finally:
            answer.cancel()

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Those of all replicas, each asked in its turn until one was asked before."""
        texts: dict[str, str] = {}
        silent, turn = 0, 0
        while silent < _SILENT:
            try:
                async with asyncio.timeout(_METRICS_SECONDS):
                    replica, text = await self._read(turn, packed(scope, "/metrics", scope[REQUEST_ID]))
            except (RayError, TimeoutError, Fault):
                silent += 1
            else:
                if replica in texts:
                    break
                texts[replica] = text
            turn += 1
        if not texts:
            raise unavailable("no replica tells its metrics; ask again in a moment")
        response = Response(await aside(lambda: merged(texts)), media_type="text/plain; version=0.0.4; charset=utf-8")
        await response(scope, receive, send)

    async def _read(self, turn: int, scope: dict[str, Any]) -> tuple[str, str]:
        """A replica, and the body of its answer.

        Raises:
            Fault: it gave none, as one that has too many requests does.
        """
        async with self._asked(Wanted("", turn=turn), scope, b"") as (replica, messages):
            came = [message async for message in messages]
        if came[0]["status"] != 200:
            raise unavailable("a replica does not tell its metrics; ask again in a moment")
        return replica, b"".join([message.get("body", b"") for message in came]).decode()


class _Handed(Response):
    """Hands the request back to the door, past what Ray makes of values that deployments return."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._door.enter(scope, receive, send)
