"""From a port to a server that listens, says why it does not answer yet, answers, and stops in good order.

The port is taken before a model is loaded: one that is in use is known at once, and whoever asks while the model loads
is told so. SIGTERM or SIGINT begins the end: nothing new is taken (503, ``/ready`` too), answers that run may end, the
others end with an error when the time is over, and the process exits. A second signal exits at once.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from augury.errors import InputError
from augury.server import connecting
from augury.server.connecting import error_body

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp, Receive, Scope, Send

    from augury.engine.service import Service

HEADER_BYTES = 65_536
"""Of one request's line and headers at most."""

FLUSH_SECONDS = 5
"""That readers have to take the last events of their streams."""

MOST_REQUESTS = 1024
"""Open HTTP requests, whatever they ask for; the engine's own queue is shorter."""

FAILED = 1
"""Exit code when the engine's thread has ended: a supervisor starts the server again."""

_POLL_S = 0.2
_BACKLOG = 128
_ALWAYS = ("/health", "/ready", "/metrics")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; 0 is any free port.

    Raises:
        InputError: the port is in use, or may not be had; the host is none of this machine.
    """
    if not 0 <= port <= 65_535:
        raise InputError(f"--port is {port}; it must be from 0 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InputError(f"--host {host}: {error.strerror}") from None
    family, _, _, _, address = found[0]
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(_BACKLOG)
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} of {host} is in use; choose another one with --port") from None
        raise InputError(f"port {port} of {host} cannot be had: {error.strerror}") from None
    return taken


class Front:
    """An HTTP server in a thread of its own, from before there is an app until after there is none.

    Args:
        listening: see ``listen``.
    """

    def __init__(self, listening: socket.socket) -> None:
        import uvicorn

        class Server(uvicorn.Server):
            """Leaves signals to the main thread."""

            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http=connecting.protocol(),
            backlog=_BACKLOG,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(connecting.CONNECTION_SECONDS),
            timeout_graceful_shutdown=FLUSH_SECONDS,
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        self._inner: ASGIApp | None = None
        self._open = 0
        self._server: uvicorn.Server = Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, name="augury http", daemon=True
        )
        host, self.port = listening.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread.start()

    def open(self, app: ASGIApp) -> None:
        """Answer with this app from now on."""
        self._inner = app

    def run(self, service: Service, seconds: float, tick: Callable[[], None], say: Callable[[str], None]) -> int:
        """Wait for a signal, or the engine's end; then stop. To be called in the main thread.

        Args:
            service: that answers.
            seconds: that answers have to end once a signal has come.
            tick: called several times a second.
            say: told what happens, in one line.

        Returns:
            The exit code.
        """
        signals: list[int] = []

        def came(number: int, _: FrameType | None) -> None:
            if signals:
                os._exit(128 + number)
            signals.append(number)

        before = {number: signal.signal(number, came) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not signals and service.fault is None and self._thread.is_alive():
                time.sleep(_POLL_S)
                tick()
            broken = None if signals else service.fault or "the HTTP server's thread ended"
            if broken is None:
                left = service.running + service.waiting
                say(f"stopping: {left} requests have {seconds:g} s to end; once more stops at once")
            else:
                say(f"stopping: {broken}")
            ended = service.stop(seconds if broken is None else 0.0)
            self.close()
            if not ended:
                say("the engine did not come back from a step; exiting without it")
                os._exit(FAILED)
            return 0 if broken is None else FAILED
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Close the port, and connections when they have sent what they have to send."""
        self._server.should_exit = True
        self._thread.join(2 * FLUSH_SECONDS)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app, or a word on why it does not answer."""
        if scope["type"] != "http":
            return
        if self._inner is None:
            await _refuse(send, "the model is being loaded; ask again in a moment", 5)
        elif self._open >= MOST_REQUESTS and scope["path"] not in _ALWAYS:
            await _refuse(send, f"{self._open} requests are open, which is the limit; ask again later", 1)
        else:
            self._open += 1
            try:
                await self._inner(scope, receive, send)
            finally:
                self._open -= 1


async def _refuse(send: Send, message: str, seconds: int) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"retry-after", str(seconds).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": error_body(message, "overloaded_error", "server_overloaded")})
