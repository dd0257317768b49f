"""What answers of chat and of completions have in common."""

from __future__ import annotations

import time
import uuid
from typing import Any

from augury.engine.engine import Engine, Tokenizer
from augury.engine.request import Chunk, Request
from augury.record import StepRecord
from augury.server.asking import Asked
from augury.server.faults import Fault
from augury.server.models import fingerprint
from augury.server.settings import Settings
from augury.server.stream import DONE, frame
from augury.server.tracing import Teller
from augury.server.usage import counted, figures, usage

IMPOSSIBLE = -9999.0
"""How OpenAI writes the logarithm of nothing: JSON has no infinities."""


class Told:
    """What every frame and body of an answer begins with, and how its usage is told.

    Args:
        engine: that answers.
        settings: of the server.
        wanted: what was asked.
        prefix: of the answer's number.
        kinds: of the object, in one piece and in frames.
        options: of the stream.
        n: answers of each prompt.
        teller: of steps, where the answer carries them.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        wanted: Asked,
        prefix: str,
        kinds: tuple[str, str],
        options: Any,
        n: int,
        teller: Teller,
    ) -> None:
        self._asked, self._kinds, self._n = wanted, kinds, n
        self._header = teller.header(text=True)
        self._traces = [Traced(teller, request) for request in wanted.requests] if wanted.traced else []
        self._base = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kinds[0],
            "created": int(time.time()),
            "model": settings.names[0],
            "system_fingerprint": fingerprint(engine),
        }
        continuous = bool(options and options.continuous_usage_stats)
        self._ends = bool(options and options.include_usage) or settings.force_usage or wanted.explicit
        self._continuous = continuous and self._ends
        self._padded = bool(options and options.include_obfuscation)
        self._count = 0

    def whole(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The body of an answer in one piece."""
        if self._traces:
            traces = [{"header": self._header, **traced.whole()} for traced in self._traces]
            more["trace"] = traces[0] if len(traces) == 1 else traces
        return {**self._base, "choices": choices, "usage": usage(self._asked, self._n), **figures(self._asked), **more}

    def steps(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """What the frame of a piece carries of its steps, where that is wanted; and of the end, if it is the last."""
        if not self._traces:
            return {}
        found = self._traces[index].upto(chunk.step)
        return found if chunk.finish_reason is None else {**found, **self._traces[index].end()}

    def frame(self, choice: dict[str, Any], **more: Any) -> bytes:
        """One choice's part of a frame."""
        value = {**self._base, "object": self._kinds[1], "choices": [choice], **more}
        if self._ends:
            value["usage"] = counted(self._asked, self._n, self._count) if self._continuous else None
        return frame(value, padded=self._padded)

    def advances(self, chunk: Chunk) -> bool:
        """Count a piece; whether a frame is wanted even where it has no text, for its usage or its steps."""
        self._count += len(chunk.tokens)
        return self._continuous or bool(self._traces)

    def end(self) -> list[bytes]:
        """The last frames of a stream."""
        if not self._ends:
            return [DONE]
        last = {"object": self._kinds[1], "choices": [], "usage": usage(self._asked, self._n), **figures(self._asked)}
        return [frame({**self._base, **last}), DONE]

    def failed(self, fault: Fault) -> list[bytes]:
        """The last frames of one that broke."""
        return [frame(fault.body), DONE]


class Traced:
    """The steps of one answer, as whoever asked for it gets to see them.

    Args:
        teller: of its events.
        request: that is answered.
    """

    def __init__(self, teller: Teller, request: Request) -> None:
        self._teller, self._request = teller, request
        self._told = 0

    def upto(self, last: StepRecord | None) -> dict[str, Any]:
        """Those that were not told yet, up to one: the engine's thread may be further already."""
        found: dict[str, Any] = {}
        if not self._told:
            found["begin"] = self._teller.begin(self._request, text=True)
        steps = found["steps"] = []
        while last is not None and self._told < len(self._request.record.steps):
            step = self._request.record.steps[self._told]
            steps.append(self._teller.step(self._request, self._told, step, text=True))
            self._told += 1
            if step is last:
                break
        return found

    def end(self) -> dict[str, Any]:
        """Its end."""
        return {"end": self._teller.end(self._request, text=True)}

    def whole(self) -> dict[str, Any]:
        """All of it, of an answer that has ended."""
        steps = self._request.record.steps
        return {**self.upto(steps[-1] if steps else None), **self.end()}


def stop_reason(wanted: Asked, index: int) -> str | int | None:
    """The stop string, or stop token of the request's own, that ended an answer, as vLLM tells it."""
    stop = wanted.requests[index].record.stop
    return stop if isinstance(stop, str) or stop in wanted.stops else None


def spelt(tokenizer: Tokenizer, id: int) -> tuple[str, list[int]]:
    """A token's text, as far as it is text by itself, and its bytes."""
    data = tokenizer.token_bytes(id)
    return data.decode(errors="replace"), list(data)
