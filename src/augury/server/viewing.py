"""``augury trace FILE --open``: the page over a trace file, for this machine alone and without a model.

The file is gone through once and each line checked. What is kept are the places of its lines, some twenty bytes for
each; what the page asks for is read from the file again.
"""

from __future__ import annotations

import json
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
from augury.errors import InputError, first_line
from augury.server import faults, pages, traces
from augury.server.guard import OPEN, Guard
from augury.server.limits import Bodies
from augury.server.running import Front, listen
from augury.server.settings import LOOPBACK, Settings
from augury.server.traces import MOST_BYTES, Reading
from augury.trace.events import Event
from augury.trace.log import MAX_LINE, Check, TraceFile
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
        self.header: Event = TraceFile(path).header
        self.torn: str | None = None
        """What of it is left out at its end, told in words."""
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
        check, number, place = Check(self.header), 0, 0
        try:
            while line := self._file.readline(MAX_LINE + 1):
                begun, place = place, place + len(line)
                number += 1
                if len(line) > MAX_LINE:
                    raise InputError(f"it is longer than {MAX_LINE >> 20} MiB, and no event is")
                if not line.strip():
                    continue
                if not self._places:  # the header
                    self._places.append(place)
                    continue
                try:
                    event = _event(line)
                    check(event)
                except InputError:
                    if line.endswith(b"\n"):
                        raise
                    self.torn = f"the last line, {number}, was cut off after {len(line)} bytes and is left out"
                    return
                self._places[-1] = begun  # behind empty lines
                self._places.append(place)
                yield self.last, event
        except InputError as error:
            raise InputError(f"{self._path.name} line {number}: {error}") from None
        except OSError as error:
            raise InputError(f"cannot read {self._path}: {error.strerror}") from None

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
        """See ``Store``; of long lines there are fewer than were asked for."""
        after = min(max(after, 0), self.last)
        upto = min(after + max(limit, 0), self.last)
        while upto > after + 1 and self._places[upto] - self._places[after] > MOST_BYTES:
            upto -= max((upto - after) // 2, 1)
        if upto == after:
            return Part((), after, 0)
        with self._lock:
            self._file.seek(self._places[after])
            raw = self._file.read(self._places[upto] - self._places[after])
        lines = tuple(line.strip() for line in raw.splitlines() if line.strip())
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


def _event(line: bytes) -> Event:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is not JSON: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise InputError(f"it is a JSON {type(found).__name__}; an object is expected")
    return found
