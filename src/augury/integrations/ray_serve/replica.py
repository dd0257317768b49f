"""One engine behind the app of ``augury serve``, in a process of Ray's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray import serve
from starlette.types import Message, Scope

import augury
from augury.engine.service import Room, Service
from augury.integrations.ray_serve.wire import Wanted, taken
from augury.server.app import create_app
from augury.server.asking import prepare
from augury.server.metrics import Metrics
from augury.server.settings import Settings
from augury.server.status import trouble


class Replica:
    """A deployment of Ray Serve; Ray counts it as ready when it is made.

    Args:
        model: as ``augury.load`` takes it.
        load: its other arguments.
        settings: of the server; without names it goes by the model's own.
        keys: digests of the API keys.
        room: of the queue.
    """

    def __init__(
        self, model: str, load: Mapping[str, Any], settings: Settings, keys: Sequence[str], room: Room
    ) -> None:
        engine = augury.load(model, **load)
        prepare(engine)
        settings = replace(settings, names=settings.names or (engine.target.info.name,))
        metrics = Metrics(settings.names[0], settings.metrics_compat_vllm)
        self._service = Service(engine, room, metrics)
        self._app = create_app(self._service, settings, metrics, keys=keys)
        self._name = serve.get_replica_context().replica_id.unique_id

    async def answer(self, wanted: Wanted, scope: Scope, body: bytes) -> AsyncGenerator[Message, None]:
        """What the app says to a request, message by message. Who stops listening cancels it.

        Args:
            wanted: read by the router.
            scope: see ``wire.packed``.
            body: all of it.
        """
        yield taken(self._name)
        came: asyncio.Queue[Message | None] = asyncio.Queue()
        body_left, gone = [body], asyncio.Event()

        async def receive() -> Message:
            if body_left:
                return {"type": "http.request", "body": body_left.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def work() -> None:
            try:
                await self._app(scope, receive, came.put)
            finally:
                came.put_nowait(None)

        working = asyncio.create_task(work())
        try:
            while (message := await came.get()) is not None:
                yield message
            await working
        finally:
            gone.set()
            working.cancel()

    def check_health(self) -> None:
        """Called by Ray, which replaces a replica that raises several times in a row."""
        if why := trouble(self._service):
            raise RuntimeError(why)

    def __del__(self) -> None:
        """Called by Ray when all answers have ended, or their time was over."""
        if hasattr(self, "_service"):
            self._service.stop()
