"""The way of a request through the server: who asks, is there room, what is asked, and the answer as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from augury.engine.service import Service
from augury.errors import InputError
from augury.server.answers import Answer, Form, collected, while_connected
from augury.server.faults import dumped, refused
from augury.server.guard import KEY, asker
from augury.server.limits import Limits, Refused
from augury.server.pacing import veiled
from augury.server.reading import aside, read
from augury.server.schema import Asking, CompletionBody
from augury.server.settings import Settings
from augury.server.stream import Streamed
from augury.server.telemetry import OPERATION
from augury.server.tracing import Teller

Body = TypeVar("Body", bound=Asking)


class Desk:
    """Where requests come in.

    Args:
        service: that answers.
        settings: of the server.
        told: of what a limit refused.
        teller: of the steps of those who ask for them.
    """

    def __init__(self, service: Service, settings: Settings, told: Refused, teller: Teller) -> None:
        self.service, self.settings, self.teller = service, settings, teller
        self.limits = Limits(settings.requests_at_once, settings.requests_per_minute, told)

    async def answer(self, request: Request, shape: type[Body], form: Callable[[Body, str], Form]) -> Response:
        """One request from its body to its answer.

        Args:
            request: as it came.
            shape: of the body.
            form: makes requests of the engine from a body and the digest of a key; called in a worker's thread.

        Raises:
            Fault: it is refused.
            AuguryError: the same.
        """
        began = time.monotonic()
        key: str = request.scope[KEY]
        with ExitStack() as stack:
            count_more = stack.enter_context(self.limits.entered(asker(request)))
            self.service.check()
            body = await read(request, shape)
            made = await aside(lambda: form(body, key))
            count = len(made.asked.requests)
            count_more(count - 1)
            OPERATION.set("text_completion" if shape is CompletionBody else "chat")
            try:
                answer = Answer(self.service, made.asked, self.settings.request_seconds)
            except InputError as error:
                raise refused("n", str(error)) from None
            stack.callback(answer.cancel)
            if body.stream:
                return Streamed(answer, made, self.settings, stack.pop_all())
            answers = await while_connected(request.receive, lambda: collected(answer, count))
            said = await aside(lambda: dumped(made.whole(answers)))
            if self.settings.stream_mode == "private":
                said = await while_connected(request.receive, lambda: veiled(said, began))
        return Response(said, media_type="application/json")
