"""What each drafter brought, as Prometheus series of the names that our own server gives them, beside vLLM's.

vLLM loads this in the processes that serve; those that guess are others, see ``counts.py``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from prometheus_client import Counter
from vllm.v1.metrics.loggers import StatLoggerBase

from augury.drafters import DRAFTERS
from augury.errors import AuguryError, first_line
from augury_vllm.counts import Told, named
from augury_vllm.fit import METHOD
from augury_vllm.options import Options

CLASS = "augury_vllm."
"""How the ``model`` of a speculative configuration that names our proposer begins."""

_LABELS = ("model_name", "engine", "drafter")
_DRAFTED = Counter("augury:drafter_draft_tokens", "Draft tokens that were verified, by drafter.", _LABELS)
_ACCEPTED = Counter("augury:drafter_accepted_tokens", "Draft tokens that were accepted, by drafter.", _LABELS)
_RETRY_SECONDS = 1.0
_LOG = logging.getLogger("vllm.augury")


class DrafterSeries(StatLoggerBase):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Counters by drafter of one engine.

    Args:
        vllm_config: its ``VllmConfig``.
        engine_index: which engine of it.
    """

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._told: Told | None = None
        self._next = 0.0
        self._instance, self._engine = str(vllm_config.instance_id), engine_index
        speculation = vllm_config.speculative_config
        ours = speculation is not None and speculation.method == METHOD and str(speculation.model).startswith(CLASS)
        self._series: list[tuple[Any, Any]] = []
        if not ours:
            return
        drafters = Options.of(getattr(vllm_config, "additional_config", {})).drafters
        model = vllm_config.model_config.served_model_name
        for name in labels(drafters):
            shown = (str(model), str(engine_index), name)
            self._series.append((_DRAFTED.labels(*shown), _ACCEPTED.labels(*shown)))

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Add what was counted since the last call."""
        if not self._series or (told := self._open()) is None or (taken := told.take()) is None:
            return
        for (drafted, accepted), more, right in zip(self._series, *taken, strict=False):
            if more:
                drafted.inc(more)
            if right:
                accepted.inc(right)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def _open(self) -> Told | None:
        """The counts, as soon as the process that guesses is there."""
        if self._told is None and (now := time.monotonic()) >= self._next:
            self._next = now + _RETRY_SECONDS
            try:
                self._told = Told(named(self._instance, self._engine))
            except FileNotFoundError:
                pass
            except (OSError, AuguryError) as error:
                _LOG.warning("augury: what each drafter brings is not shown: %s", first_line(error))
                self._series = []
        return self._told


def labels(drafters: Sequence[str]) -> list[str]:
    """Names of drafters for all to see: options, such as the path of an index, stay out; equal names are numbered."""
    names: list[str] = []
    for spec in drafters:
        first, _, rest = spec.partition(":")
        name = first if first in DRAFTERS else rest.partition(":")[0]
        same = sum(known.partition("#")[0] == name for known in names)
        names.append(f"{name}#{same + 1}" if same else name)
    return names
