"""Engines that run the same model side by side: ours in this process, each other one in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import augury
from augury.errors import ModelError
from augury.tree import IntArray

if TYPE_CHECKING:
    from augury.engine.engine import Engine

WORKER = Path(__file__).parent / "workers" / "worker.py"

START_SECONDS, ANSWER_SECONDS = 1800.0, 600.0
"""A peer that needs longer is given up. Starting may include converting the model and compiling it."""

Stamps = Sequence[tuple[float, int]]
"""(milliseconds, tokens so far) for every piece of an answer."""


class PeerFailed(ModelError):
    """A peer did not start, or does not answer; says why."""


@dataclass(frozen=True)
class Timed:
    """One answer of one peer.

    Attributes:
        tokens: its ids.
        stamps: when which part of it came.
    """

    tokens: tuple[int, ...]
    stamps: Stamps

    @property
    def token_ms(self) -> float | None:
        """Milliseconds a token between the first piece and the last; None for an answer of one piece."""
        if not self.stamps:
            return None
        (begin, had), (end, have) = self.stamps[0], self.stamps[-1]
        return (end - begin) / (have - had) if have > had else None


@dataclass(frozen=True)
class Setup:
    """How a peer is run.

    Attributes:
        name: of the row in the table.
        engine: ``augury``, or the name of a file of ``workers``; another than transformers has an environment so named.
        settings: what was chosen for it, in its own words.
        same_weights: whether it computes with the weights of ours, value for value, in bf16.
        options: of its ``start``.
    """

    name: str
    engine: str
    settings: str
    same_weights: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


class Peer(Protocol):
    """Something that answers greedily.

    Attributes:
        setup: how it is run.
        versions: of the packages that answer.
    """

    setup: Setup
    versions: Mapping[str, str]

    def answer(self, prompt: IntArray, max_tokens: int, eos: Sequence[int]) -> Timed:
        """Answer i32[m] token ids.

        Raises:
            PeerFailed: it cannot.
        """
        ...


class Ours:
    """Augury itself, plain or drafted."""

    def __init__(self, engine: Engine, draft: bool) -> None:
        drafters = ", ".join(name for name, _ in engine.parts.drafters)
        settings = f"drafters {drafters}" if draft else "draft=False"
        self.setup = Setup(f"augury {'drafted' if draft else 'plain'}", "augury", settings)
        self.versions: Mapping[str, str] = {"augury": augury.__version__}
        self._engine = engine
        self._draft = draft

    def answer(self, prompt: IntArray, max_tokens: int, eos: Sequence[int]) -> Timed:
        """See ``Peer``; the engine has its own ``eos``."""
        self._engine.close()  # the cache of the answer before is not to help
        tokens: list[int] = []
        stamps = []
        for chunk in self._engine.stream(prompt, max_tokens=max_tokens, draft=self._draft):
            tokens += chunk.tokens
            stamps.append((1e3 * time.perf_counter(), len(tokens)))
        return Timed(tuple(tokens), stamps)


class Worker:
    """An engine in a process of its own; see ``workers/worker.py`` for what is said between the two.

    The process, with all that it started, is stopped between its turns: threads that spin while they wait, as those
    of some engines do, would take from who answers then.

    Raises:
        PeerFailed: it does not start; says why.
    """

    def __init__(self, setup: Setup, process: subprocess.Popen[str], log: IO[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.setup = setup
        self._process = process
        self._to: IO[str] = process.stdin
        self._from: IO[str] = process.stdout
        self._log = log
        versions = self._next(START_SECONDS).get("versions")
        if not isinstance(versions, dict):
            raise PeerFailed("it did not begin with its versions")
        self.versions: Mapping[str, str] = versions
        self._signal(signal.SIGSTOP)

    def answer(self, prompt: IntArray, max_tokens: int, eos: Sequence[int]) -> Timed:
        """See ``Peer``."""
        request = {"prompt": prompt.tolist(), "max_tokens": max_tokens, "eos": list(eos)}
        self._signal(signal.SIGCONT)
        try:
            self._to.write(json.dumps(request) + "\n")
            self._to.flush()
            got = self._next(ANSWER_SECONDS)
        except OSError:
            raise PeerFailed(f"its process ended: {self._last_words()}") from None
        finally:
            self._signal(signal.SIGSTOP)
        try:
            timed = Timed(tuple(got["tokens"]), [(float(ms), int(count)) for ms, count in got["stamps"]])
        except (KeyError, TypeError, ValueError):
            raise PeerFailed("what it sent is no answer") from None
        if not timed.stamps:
            raise PeerFailed("it answered without a token")
        return timed

    def _next(self, seconds: float) -> dict[str, Any]:
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._signal(signal.SIGKILL)

        timer = threading.Timer(seconds, give_up)
        timer.start()
        line = self._from.readline()
        timer.cancel()
        if late.is_set():
            raise PeerFailed(f"nothing came for {seconds:g} seconds")
        if not line:
            raise PeerFailed(f"its process ended: {self._last_words()}")
        try:
            got = json.loads(line)
        except ValueError:
            got = None
        if not isinstance(got, dict):
            raise PeerFailed(f"what it sent is no JSON object: {line.strip()[:80]!r}")
        if "error" in got:
            raise PeerFailed(str(got["error"]))
        return got

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        """The last line it wrote to stderr."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # what it says last may come after its output has ended
        self._log.seek(0)
        lines = self._log.read().split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


@contextmanager
def running(setup: Setup, python: Path, threads: int) -> Iterator[Worker]:
    """A peer whose process ends with the context, and all that it started with it.

    Raises:
        PeerFailed: it does not start; says why.
    """
    command = [str(python), "-I", str(WORKER), setup.engine, json.dumps(setup.options)]
    surroundings = os.environ | {"OMP_NUM_THREADS": str(threads)}
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=surroundings, start_new_session=True
            )
        except OSError as error:
            raise PeerFailed(f"{python} cannot be run: {error.strerror}") from None
        try:
            yield Worker(setup, process, log)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
