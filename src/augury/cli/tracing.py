"""The trace file that a verb writes beside what it does."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from augury.cli.terminal import check_output
from augury.errors import InputError
from augury.trace import events
from augury.trace.log import TraceWriter
from augury.trace.told import Teller

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.engine.request import Chunk
    from augury.record import FinishReason, RequestRecord
    from augury.sampling import Sampling
    from augury.tree import IntArray


@dataclass(frozen=True)
class Tracing:
    """Where every step is written to."""

    trace: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write every step to a file for `augury trace`.", rich_help_panel="Output"),
    ] = None
    trace_text: Annotated[
        bool,
        Option("--trace-text", help="With the prompt, and what tokens spell.", rich_help_panel="Output"),
    ] = False

    def check(self) -> None:
        """Refuse what cannot be written, before anything is loaded."""
        if self.trace_text and self.trace is None:
            raise InputError("--trace-text says what a trace holds, and there is none; give --trace FILE")
        check_output("--trace", self.trace)

    @contextmanager
    def opened(self, engine: Engine, source: str) -> Generator[Trace, None, None]:
        """The file, open; without a name all that is done with it has no effect."""
        trace = Trace(self.trace, engine, source, self.trace_text)
        try:
            yield trace
        finally:
            trace.close()


class Trace:
    """Writes requests of engines to one file.

    Args:
        path: of the file; None writes nothing.
        engine: that answers.
        source: the verb.
        text: whether prompts, and what tokens spell, are in it.
    """

    def __init__(self, path: Path | None, engine: Engine, source: str, text: bool) -> None:
        self._zero, self._text, self._number = time.perf_counter(), text, 0
        self._file: TraceWriter | None = None
        self._followed: Generator[Chunk, None, None] | None = None
        if path is not None:
            info = engine.target.info
            head = events.header(
                model=info.name,
                runner=info.runner,
                drafters=[name for name, _ in engine.parts.drafters],
                source=source,
                text=text,
                zero=self._zero,
            )
            self._file = TraceWriter(path, head)

    def seeded(self, sampling: Sampling) -> Sampling:
        """The sampling of an answer, with a seed where it draws: the file says which."""
        if self._file is None or sampling.temperature == 0.0 or sampling.seed is not None:
            return sampling
        return replace(sampling, seed=secrets.randbits(63))

    def close(self) -> None:
        """End the answer that is followed, if somebody left it, and close the file."""
        try:
            if self._followed is not None:
                self._followed.close()
        finally:
            if self._file is not None:
                self._file.close()

    def follow(
        self,
        stream: Generator[Chunk, None, None],
        engine: Engine,
        prompt: IntArray,
        sampling: Sampling,
        label: str = "",
    ) -> Generator[Chunk, None, None]:
        """The chunks of an answer, each when its step is written. Closing it closes the stream; one is open at a time.

        Args:
            stream: of the engine.
            engine: that answers.
            prompt: i32[m], what it was asked.
            sampling: of the answer.
            label: of the run; ``plain`` or ``drafted`` where nothing is said.
        """
        if self._file is None:
            return stream
        self._followed = self._follow(stream, engine, prompt, sampling, label)
        return self._followed

    def _follow(
        self,
        stream: Generator[Chunk, None, None],
        engine: Engine,
        prompt: IntArray,
        sampling: Sampling,
        label: str,
    ) -> Generator[Chunk, None, None]:
        told: _Told | None = None
        error: Exception | None = None
        finish: FinishReason | None = None
        try:
            for chunk in stream:
                if told is None:
                    name = label or ("drafted" if chunk.record.drafters else "plain")
                    told = self._begun(chunk.record, engine, prompt, sampling, name)
                told.on()
                yield chunk
        except Exception as raised:
            error = raised
            raise
        except KeyboardInterrupt:
            finish = "cancelled"  # for the engine a step that was cut short has failed
            raise
        finally:
            stream.close()
            if told is not None:
                told.end(error, finish)

    def add(
        self, record: RequestRecord, engine: Engine, prompt: str | IntArray, sampling: Sampling, label: str, pair: str
    ) -> None:
        """A whole answer; see ``events.begin``."""
        if self._file is not None:
            told = self._begun(record, engine, prompt, sampling, label, pair)
            told.on()
            told.end()

    def _begun(
        self,
        record: RequestRecord,
        engine: Engine,
        prompt: str | IntArray,
        sampling: Sampling,
        label: str,
        pair: str | None = None,
    ) -> _Told:
        """A request whose beginning is written."""
        assert self._file is not None
        self._number += 1
        tokenizer = engine.tokenizer if self._text else None
        teller = Teller(self._zero, None if tokenizer is None else tokenizer.token_bytes)
        ids: Iterable[int] = ()
        if not isinstance(prompt, str):
            ids = prompt
        elif tokenizer is not None:
            ids = tokenizer.encode(prompt, start=True)
        begin = teller.begin(
            self._number, record, ids, label=label, rule=engine.acceptance, sampling=sampling, pair=pair
        )
        self._file.put(begin)
        return _Told(self._file, self._number, record, teller)


class _Told:
    """A request that is being written."""

    def __init__(self, file: TraceWriter, number: int, record: RequestRecord, teller: Teller) -> None:
        self._file, self._number, self._record, self._teller = file, number, record, teller
        self._count = 0

    def on(self) -> None:
        """Write the steps that have come."""
        for step in self._record.steps[self._count :]:
            self._file.put(self._teller.step(self._number, self._count, step))
            self._count += 1

    def end(self, error: Exception | None = None, finish: FinishReason | None = None) -> None:
        """Write the rest; ``finish`` says how it ended where the record does not."""
        self.on()
        end = self._teller.end(self._number, self._record, error)
        self._file.put(end if finish is None else {**end, "finish": finish})
