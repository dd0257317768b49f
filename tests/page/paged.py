"""A server with the page, what a browser complained of, and made traces in files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import augury
from augury.engine.service import Service
from augury.server.app import create_app
from augury.server.metrics import Metrics
from augury.server.running import Front, listen
from augury.server.settings import Settings
from augury.server.telemetry import Both
from augury.server.tracing import Tap, Teller
from augury.trace.ring import Ring

NAME = "smollm2-135m"


class Server:
    """A server that can be stopped, and started again at the same place. One engine is behind all of them."""

    def __init__(self, engine) -> None:
        self._engine, self.port = engine, 0
        self._stop = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self, **settings) -> None:
        made = Settings(**{"names": (NAME,), "page": True, "hosts": ("127.0.0.1",), **settings})
        metrics = Metrics(made.names[0])
        tap = Tap(Teller(self._engine, name=made.names[0]), Ring(8 << 20), text=True)
        service = Service(self._engine, watch=Both(metrics, tap))
        front = Front(listen("127.0.0.1", self.port))
        front.open(create_app(service, made, metrics, tap))
        self.port = front.port

        def stop() -> None:
            service.stop(0.0)
            front.close()

        self._stop = stop

    def stop(self) -> None:
        self._stop()
        self._stop = lambda: None


class Visit:
    """A page that is looked at, and what its browser complained of."""

    def __init__(self, page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.pardoned: list[str] = []
        self.others: tuple[str, ...] = ()  # sites that it may ask
        page.on("console", lambda one: self.errors.append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.context.on("request", lambda request: self.asked.append(request.url))

    def check(self, origin: str) -> None:
        """Nothing was complained of but what is pardoned, and nobody else was asked."""
        told = [one for one in self.errors if not any(re.search(known, one) for known in self.pardoned)]
        assert not told, told
        assert [url for url in self.asked if not url.startswith((origin, "blob:", "data:", *self.others))] == []
        assert self.asked


@contextmanager
def shown(path: Path) -> Iterator[str]:
    """``augury trace FILE --open``: the address of the page over a file."""
    command = [sys.executable, "-m", "augury", "trace", str(path), "--open", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = ""
            for line in process.stderr:
                said += line
                if found := re.search(r"http://[0-9.:]+/", line):
                    yield found[0]
                    break
            else:
                raise AssertionError(said)
        finally:
            process.terminate()
            process.stderr.read()


def step(n: int, at: float, position: int, **other) -> dict:
    """A step of a trace, in which nothing was guessed unless something else is said."""
    return {
        "kind": "step", "id": 1, "n": n, "at": at, "position": position, "root": 0, "tokens": [], "parents": [],
        "source": [], "survival": [], "p": [], "q": {}, "path": [], "next": 1, "own": "plain", "emitted": [1],
        "proposals": [], "reason": "no drafter had a guess", "rows": 1, "requests": 1, "draft_ms": 0.25,
        "verify_ms": 10.0, "accept_ms": 0.25, "commit_ms": 0.25, "rest_ms": 0.25, "plain_ms": 12.0,
        "saved_ms": 1.0, "coins": None, "texts": {"0": "a", "1": " b"}, **other,
    }  # fmt: skip


def written(path: Path, steps, *, rule: str = "coupled", temperature: float = 0.0, **names) -> Path:
    """A trace file of one request."""
    drafters = names.get("drafters", ["suffix", "model"])
    begin = {
        "kind": "begin", "id": 1, "at": 0.0, "label": names.get("label", "drafted"), "prompt_tokens": 3,
        "cached_tokens": 0, "prefill_ms": 5.0, "drafters": drafters, "rule": rule,
        "sampling": {"temperature": temperature}, "prompt": [1, 2, 3], "prompt_text": names.get("prompt", "a b c"),
    }  # fmt: skip
    header = {
        "augury_trace": 1, "version": augury.__version__, "model": names.get("model", "made"), "runner": "none",
        "drafters": drafters, "text": True, "unix": 1764526000.0, "source": "bench",
    }  # fmt: skip
    with path.open("w") as file:
        count = tokens = 0
        for event in (header, begin):
            file.write(json.dumps(event) + "\n")
        for one in steps:
            file.write(json.dumps(one) + "\n")
            count, tokens = count + 1, tokens + len(one["emitted"])
        end = {"kind": "end", "id": 1, "at": 1e9, "finish": "stop", "stop": None, "tokens": tokens, "steps": count}
        file.write(json.dumps({**end, "error": None}) + "\n")
    return path
