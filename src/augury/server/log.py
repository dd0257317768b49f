"""One line an interval, in vLLM's wording, while there is something to say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from augury.engine.service import Service
from augury.server.metrics import Metrics

INTERVAL_S = 10.0

LOG = logging.getLogger("augury.server")


class Log:
    """Says what happened since it last did.

    Args:
        metrics: where it is counted.
        service: who runs and waits.
        clock: seconds.
    """

    def __init__(self, metrics: Metrics, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._service, self._clock = metrics, service, clock
        self._at, self._before = clock(), metrics.totals

    def tick(self) -> None:
        """Write the line if an interval is over and something happened in it."""
        seconds = self._clock() - self._at
        if seconds < INTERVAL_S:
            return
        if text := self.line():
            LOG.info(text)

    def line(self) -> str | None:
        """What happened since the last call, or None when nothing did."""
        now, before, after = self._clock(), self._before, self._metrics.totals
        seconds = max(now - self._at, 1e-9)
        self._at, self._before = now, after
        running, waiting = self._service.running, self._service.waiting
        prompt = after.prompt_tokens - before.prompt_tokens
        tokens = after.generation_tokens - before.generation_tokens
        refused = after.refused.total() - before.refused.total()
        if not (prompt or tokens or refused or running or waiting):
            return None
        parts = [
            f"Avg prompt throughput: {prompt / seconds:.1f} tokens/s",
            f"Avg generation throughput: {tokens / seconds:.1f} tokens/s",
            f"Running: {running} reqs",
            f"Waiting: {waiting} reqs",
            f"KV cache usage: {self._service.cache_usage:.1%}",
        ]
        if prompt:
            parts.append(f"Prefix cache hit rate: {(after.cached_tokens - before.cached_tokens) / prompt:.1%}")
        if refused:
            parts.append(f"Refused: {refused} reqs")
        drafts, drafted = after.drafts - before.drafts, after.drafted - before.drafted
        if drafts:
            accepted = after.accepted - before.accepted
            earlier = [*before.positions, *[0] * len(after.positions)]
            rates = ((n - m) / drafts for n, m in zip(after.positions, earlier, strict=False))
            parts += [
                f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}",
                f"Accepted throughput: {accepted / seconds:.2f} tokens/s",
                f"Drafted throughput: {drafted / seconds:.2f} tokens/s",
                f"Accepted: {accepted} tokens",
                f"Drafted: {drafted} tokens",
                f"Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in rates if rate) or '0.000'}",
                f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%",
            ]
        return ", ".join(parts)
