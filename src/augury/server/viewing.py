"""``augury trace FILE --open``: the page over a trace file, for this machine alone and without a model.

The file is gone through once and each line checked. What is kept are the places of its lines, some thirty bytes for
each; what the page asks for is read from the file again.
"""

from __future__ import annotations

import sys
import threading
import webbrowser
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from fastapi import FastAPI
from starlette.responses import Response

import augury
from augury.errors import InputError
from augury.server import faults, pages, traces
from augury.server.guard import OPEN, Guard
from augury.server.limits import Bodies
from augury.server.running import Front, listen
from augury.server.settings import LOOPBACK, Settings
from augury.server.traces import MOST_BYTES, Reading
from augury.trace.events import Event, encode
from augury.trace.log import Check, TraceFile, parsed
from augury.trace.ring import Part

_MOST_BODY = 1 << 10
_LARGE = 8 << 20  # bytes of a file that takes a while
_ROUTES = "/, /page/*, /trace/*, /health"


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Filed:
    """The events of a file; see ``traces.Store``. ``read`` goes through it first.

    Args:
        path: of the file.

    Raises:
        InputError: it cannot be read, or is no trace.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._trace = TraceFile(path)
        self.header: Event = self._trace.header
        self._places = array("Q")  # of the events' lines, and of the end of the last
        self._lock = threading.Lock()
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Filed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read(self) -> Iterator[tuple[int, Event]]:
        """Its events by number.

        Raises:
            InputError: the file cannot be read, or a line is no event; says which.
        """
        for place, line, event in self._trace.places():
            self._places[-1:] = array("Q", (place, place + len(line)))  # behind empty lines
            yield self.last, event

    @property
    def torn(self) -> str | None:
        """What of it is left out at its end, told in words."""
        return self._trace.torn

    @property
    def first(self) -> int:
        """See ``Store``."""
        return 1

    @property
    def last(self) -> int:
        """See ``Store``."""
        return max(len(self._places) - 1, 0)

    @property
    def grows(self) -> bool:
        """See ``Store``."""
        return False

    def since(self, after: int, limit: int) -> Part:
        """See ``Store``; of long lines there are fewer than were asked for. Events are as ``Check`` leaves them."""
        after = min(max(after, 0), self.last)
        upto = min(after + max(limit, 0), self.last)
        while upto > after + 1 and self._places[upto] - self._places[after] > MOST_BYTES:
            upto -= max((upto - after) // 2, 1)
        if upto == after:
            return Part((), after, 0)
        with self._lock:
            self._file.seek(self._places[after])
            raw = self._file.read(self._places[upto] - self._places[after])
        try:
            lines = tuple(encode(Check.alone(parsed(line))) for line in raw.split(b"\n") if line.strip())
        except InputError:
            lines = ()
        if len(lines) != upto - after:  # somebody has written to the file since
            raise InputError(f"{self._path.name} has changed since it was opened; open it again")
        return Part(lines, upto, 0)


def create_app(reading: Reading) -> FastAPI:
    """The page, and the routes that it asks.

    Args:
        reading: of a file.
    """
    app = FastAPI(
        title="Augury", version=augury.__version__, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    app.include_router(pages.router())
    app.include_router(traces.router(reading))

    @app.get(OPEN)
    async def health() -> Response:
        """That it is still there."""
        return Response()

    faults.install(app, _ROUTES)
    settings = Settings(hosts=LOOPBACK, page=True, max_body=_MOST_BODY)
    app.add_middleware(Guard, settings=settings, keys=(), bodies=Bodies(64 * _MOST_BODY, lambda _: None))
    return app


def open_trace(path: Path, browser: bool = True, say: Callable[[str], None] = _on_stderr) -> int:
    """Serve the page over a file until Ctrl-C; gives the exit code.

    Args:
        path: of the file.
        browser: whether to open one.
        say: told what happens, in one line.

    Raises:
        InputError: the file cannot be read, or is no trace.
    """
    with Filed(path) as file:
        if path.stat().st_size > _LARGE:
            say(f"augury: reading {path.name}")
        reading = Reading(file)
        for number, event in file.read():
            reading.take(number, event)
        if file.torn:
            say(f"augury: {path.name}: {file.torn}")
        front = Front(listen(LOOPBACK[1], 0))
        try:
            front.open(create_app(reading))
            say(f"augury: {file.last} events of {path.name} at {front.address}/, until Ctrl-C")
            if browser and not webbrowser.open(f"{front.address}/"):
                say("augury: no browser was found; open the address in one")
            threading.Event().wait()
        except KeyboardInterrupt:
            return 0
        finally:
            front.close()
    return 0
