"""HTTP connections that are bounded in time and number, which uvicorn's are not.

uvicorn gives a connection a time only behind an answer, and takes that back with the next byte: one that brings
nothing, half a head, or reads nothing, would stay for ever.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

CONNECTION_SECONDS = 30.0
"""That a connection has for the whole head of a request, from its beginning and from its last answer on, and for
reading enough of what waits for it. Then it is cut; where it brings no head as it still reads an answer, it has as long
again."""

MOST_CONNECTIONS = 2048
"""At a time, and fewer where the process may not open as many files. For one more, who waits longest for a head is
cut: the new one itself where the others are all being answered."""

_OTHER_FILES = 640
"""That the process may need beside connections, those among them that came at once and are just being cut."""

_LOG = logging.getLogger("augury.server")


def protocol() -> type[asyncio.Protocol]:
    """What speaks to the connections of one server."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    most = most_connections()
    waiting: dict[Connection, None] = {}  # for a head, who waits longest first

    class Connection(H11Protocol):
        """One of them."""

        _timer: asyncio.TimerHandle | None = None
        _unread = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
            super().connection_made(transport)
            self._look()
            if len(self.connections) > most:
                next(iter(waiting))._cut()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._look()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            waiting.pop(self, None)
            self._rest()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Say what is no HTTP in the form of every other error."""
            self.transport.write(_NO_HTTP)
            self.transport.close()

        @property
        def _idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _look(self) -> None:
            """Begin or end the wait for what the other side has to do: to bring a head, or to read."""
            if self._idle:
                waiting.setdefault(self)
            else:
                waiting.pop(self, None)
            if not self._idle and not self.flow.write_paused:
                self._rest()
            elif self._timer is None:
                self._wait()

        def _rest(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _wait(self) -> None:
            self._unread = self.transport.get_write_buffer_size()
            self._timer = self.loop.call_later(CONNECTION_SECONDS, self._late)

        def _late(self) -> None:
            left = self.transport.get_write_buffer_size()
            if self._idle and left < self._unread:
                self._wait()
                return
            if left:
                _LOG.warning("a reader did not take what was sent in %g s; it is cut off", CONNECTION_SECONDS)
            self._cut()

        def _cut(self) -> None:
            waiting.pop(self, None)
            self._rest()
            self.transport.abort()  # to close would wait for the reader

    return Connection


def most_connections() -> int:
    """That may be open at a time."""
    try:
        import resource
    except ImportError:  # not on every system
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(files - _OTHER_FILES, files // 2))


def error_body(message: str, type: str, code: str) -> bytes:
    """The error object, of what no app answers."""
    return json.dumps({"error": {"message": message, "type": type, "param": None, "code": code}}).encode()


_BODY = error_body("this is no HTTP request", "invalid_request_error", "invalid_http")
_NO_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    + f"content-length: {len(_BODY)}\r\n\r\n".encode()
    + _BODY
)
