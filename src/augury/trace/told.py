"""Makes the events of requests: the same for a server, for a file that a verb writes, and for a page."""

from __future__ import annotations

import time
from collections.abc import Iterable

from augury.record import RequestRecord, StepRecord
from augury.sampling import Sampling
from augury.trace import events
from augury.trace.events import Event
from augury.trace.explain import Bytes


class Teller:
    """Makes events, all on one clock.

    Args:
        zero: see ``events.header``.
        token: the bytes of a token; None where text is not wanted.
    """

    def __init__(self, zero: float, token: Bytes | None = None) -> None:
        self.zero, self._token = zero, token
        self._piece = None if token is None else events.pieces(token)

    @property
    def now(self) -> float:
        """Milliseconds on the clock of all events."""
        return self._at(time.perf_counter())

    def begin(
        self,
        id: int,
        record: RequestRecord,
        prompt: Iterable[int],
        *,
        label: str,
        rule: str,
        sampling: Sampling,
        pair: str | None = None,
    ) -> Event:
        """See ``events.begin``: it began when it was given a slot, and its prompt is told where text is wanted."""
        ids, spelt = None, None
        if self._token is not None:
            ids = [int(token) for token in prompt]
            spelt = b"".join(map(self._token, ids)).decode(errors="replace")
        return events.begin(
            id,
            record,
            at=self._at(record.began) if record.began else self.now,
            label=label,
            rule=rule,
            sampling=sampling,
            drafters=record.drafters,
            prompt=ids,
            prompt_text=spelt,
            pair=pair,
        )

    def step(self, id: int, n: int, step: StepRecord) -> Event:
        """See ``events.step``."""
        return events.step(id, n, step, self.zero, self._piece)

    def end(self, id: int, record: RequestRecord, error: Exception | None = None, *, included: bool = False) -> Event:
        """See ``events.end``: a whole answer has ended with its last step."""
        last = record.steps[-1] if record.steps and record.finish in ("stop", "length") else None
        at = self.now if last is None else self._at(last.began) + last.ms
        said = None if error is None else type(error).__name__
        return events.end(id, record, at, text=self._token is not None, error=said, included=included)

    def _at(self, seconds: float) -> float:
        return 1e3 * (seconds - self.zero)
