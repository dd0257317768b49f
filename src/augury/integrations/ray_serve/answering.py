"""An answer on its way from a replica to the client: what was sent on, and how it ends if the replica does."""

from __future__ import annotations

from starlette.types import Message, Send

from augury.server.faults import Fault
from augury.server.stream import DONE, frame

BROKEN = "the replica that answered has ended before the answer was whole; ask again"


class Spoilt(Exception):
    """What a replica says does not continue what another one began to say."""


class Passing:
    """Sends on what a replica says. Nothing leaves before the first part of the body is there, so that an answer in one
    piece comes whole from one replica; of a stream that brought comments alone another one can go on with the rest.

    Args:
        send: to the client.
        responses: whether the route is that of responses, whose events have names.
    """

    def __init__(self, send: Send, responses: bool) -> None:
        self._send, self._responses = send, responses
        self._held: Message | None = None
        self._stream = False
        self._whole_lines = True
        self._events = 0
        self.started = False
        """Whether the client has the status."""
        self.said = False
        """Whether the client has a part of the answer: then no other replica can give it."""
        self.ended = False
        """Whether it has all of it."""

    def busy(self, message: Message) -> bool:
        """Whether a replica says that it cannot answer now, and another one might."""
        return message["type"] == "http.response.start" and message["status"] == 503 and not self.started

    async def take(self, message: Message, replica: str) -> None:
        """Send on a message, now or with the next.

        Raises:
            Spoilt: it cannot be.
        """
        if message["type"] == "http.response.start":
            fields = [(name, value) for name, value in message["headers"] if name != b"x-request-id"]
            stream = (b"content-type", b"text/event-stream") in [(n, v.partition(b";")[0]) for n, v in fields]
            if self.started and not (stream and message["status"] == 200):
                raise Spoilt
            self._stream = stream
            self._held = {**message, "headers": [*fields, (b"augury-replica", replica.encode())]}
            return
        if self._held is not None and not self.started:
            self.started = True
            await self._send(self._held)
        self._held = None
        part: bytes = message.get("body", b"")
        if part:
            self.said = self.said or not (self._stream and _comments(part))
            self._whole_lines = part.endswith(b"\n")
            self._events += part.count(b"\nevent: ") + part.startswith(b"event: ")
        self.ended = not message.get("more_body", False)
        await self._send(message)

    def again(self) -> None:
        """Another replica will answer."""
        self._held = None

    async def fail(self, fault: Fault) -> bool:
        """End a stream that broke with an error event; tells whether it could be."""
        if not (self._stream and self.started):
            return False
        if self._responses:
            error = {"code": fault.code, "message": fault.message, "param": None}
            event = frame({"type": "error", "sequence_number": self._events, **error}, "error")
        else:
            event = frame(fault.body)
        body = (b"" if self._whole_lines else b"\n\n") + event + DONE
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self.ended = True
        return True


def broken() -> Fault:
    """What the client is told when a replica ends in the middle of an answer."""
    return Fault(503, BROKEN, type="overloaded_error", code="replica_ended", headers={"Retry-After": "1"})


def _comments(part: bytes) -> bool:
    return all(line.startswith(b":") for line in part.split(b"\n") if line)
