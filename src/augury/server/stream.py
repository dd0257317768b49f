"""Server-sent events: frames, errors behind a 200, readers who are gone."""

from __future__ import annotations

import logging
import secrets
from contextlib import ExitStack, aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from augury.server.answers import Answer, Form, while_connected
from augury.server.faults import Fault, dumped, fault_of
from augury.server.pacing import MODES, Frames
from augury.server.settings import Settings

DONE = b"data: [DONE]\n\n"
_GRAIN = 64
_LOG = logging.getLogger("augury.server")


def frame(value: dict[str, Any], event: str | None = None, padded: bool = False) -> bytes:
    """One event.

    Args:
        value: its data.
        event: its name, where the route's events have one.
        padded: fill it up to a multiple of some bytes, so that its size tells little of the text.
    """
    if padded:
        bare = len(dumped({**value, "obfuscation": ""}))
        value = {**value, "obfuscation": secrets.token_urlsafe(_GRAIN)[: -bare % _GRAIN]}
    name = b"" if event is None else b"event: " + event.encode() + b"\n"
    return name + b"data: " + dumped(value) + b"\n\n"


class Streamed(Response):
    """An answer in frames. Its status is 200 once the first piece is there, or the first comment is due: what fails
    before is told by its own status.

    Args:
        answer: to read.
        form: how it is written.
        settings: of the server.
        stack: closed when the stream has ended, however.
    """

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, form: Form, settings: Settings, stack: ExitStack) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        frames = Frames(form, settings.stream_interval, _told)
        self._portions = MODES[settings.stream_mode](answer, frames, settings)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await while_connected(receive, lambda: self._send(send))
        finally:
            self._stack.close()

    async def _send(self, send: Send) -> None:
        async with aclosing(self._portions):
            first = await anext(self._portions)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for portion in self._portions:
                await send({"type": "http.response.body", "body": portion, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _told(error: Exception) -> Fault:
    """What a client is told of an error behind a 200; one of ours goes to the log as well."""
    fault = fault_of(error)
    if fault.status == 500:
        _LOG.error("an answer broke off", exc_info=error)
    return fault
