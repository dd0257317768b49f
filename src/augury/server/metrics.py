"""Prometheus series: what all requests together took and gave, folded from their records.

Every figure is kept once, under one lock, and shown under our prefix and, unless switched off, under vLLM's:
dashboards, balancers and ``vllm bench serve`` read those names. A scrape sees one moment: never more tokens accepted
than drafted. vLLM counts as a *draft* a step of a request in which something was drafted.
"""

from __future__ import annotations

import copy
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from augury.engine.request import Chunk
from augury.engine.service import Service, Ticket
from augury.errors import Stopping, TooLate
from augury.record import StepRecord

OWN, VLLM = "augury", "vllm"
"""Prefixes."""

FINISHED = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
"""vLLM's words for how a request ended."""

REFUSED = ("queue", "stopping", "limit", "bodies")
ERRORS = ("deadline", "stopping", "other")

_WAIT = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_SIZE = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5)
_LENGTH = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0)


@dataclass
class Histogram:
    """How many values lay at or below each bound and above the one before; the last count has no bound."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """(bound, values at or below it), as Prometheus has them."""
        names = [*map(repr, self.bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


@dataclass
class Drafted:
    """What one drafter did in all requests."""

    proposed: int = 0
    drafted: int = 0
    accepted: int = 0
    ms: float = 0.0
    faults: int = 0


@dataclass
class Totals:
    """Everything that is counted.

    Attributes:
        steps: of all requests; a forward of several requests is a step of each.
        drafts: steps in which something was drafted.
        positions: index i: drafts of which at least i + 1 tokens were accepted.
        prompt_tokens: of requests that got past their prompt.
        cached_tokens: of these, found in a cache.
        finished: requests by how they ended, in vLLM's words.
        refused: requests that were not taken, by why.
        errors: requests that ended in an error, by which.
        unwritten: events that are missing in the trace, or in its file.
    """

    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    positions: list[int] = field(default_factory=lambda: [0])
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FINISHED.values(), 0)))
    refused: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REFUSED, 0)))
    errors: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(ERRORS, 0)))
    unwritten: int = 0
    drafters: dict[str, Drafted] = field(default_factory=dict)
    first_token: Histogram = field(default_factory=lambda: Histogram(_FIRST))
    between_chunks: Histogram = field(default_factory=lambda: Histogram(_TOKEN))
    per_token: Histogram = field(default_factory=lambda: Histogram(_TOKEN))
    whole: Histogram = field(default_factory=lambda: Histogram(_WAIT))
    queued: Histogram = field(default_factory=lambda: Histogram(_WAIT))
    prompt_size: Histogram = field(default_factory=lambda: Histogram(_SIZE))
    answer_size: Histogram = field(default_factory=lambda: Histogram(_SIZE))
    acceptance_length: Histogram = field(default_factory=lambda: Histogram(_LENGTH))

    def step(self, step: StepRecord, names: Sequence[str]) -> None:
        """Add a step of a request; ``names``: of its drafters."""
        accepted = step.accepted
        self.steps += 1
        self.generation_tokens += len(step.emitted)
        if step.drafted:
            self.drafts += 1
            self.drafted += step.drafted
            self.accepted += accepted
            self.positions += [0] * (accepted - len(self.positions))
            for position in range(accepted):
                self.positions[position] += 1
        for offer in step.proposals:
            of = self.drafters.setdefault(offer.drafter, Drafted())
            of.proposed += offer.nodes
            of.ms += offer.ms
            of.faults += offer.fault is not None
        for source in step.tree.source.tolist():
            self.drafters.setdefault(names[source], Drafted()).drafted += 1
        for source in step.sources:
            if source >= 0:
                self.drafters.setdefault(names[source], Drafted()).accepted += 1


class Metrics:
    """Watches a service, and shows what it saw; see the module's text. Safe in any thread.

    Args:
        model_name: under which the model is served.
        vllm: whether to show vLLM's names too.
    """

    def __init__(self, model_name: str, vllm: bool = True) -> None:
        self._model_name = model_name
        self._vllm = vllm
        self._totals = Totals()
        self._lock = threading.Lock()

    def refused(self, reason: str) -> None:
        """See ``Watch``."""
        with self._lock:
            self._totals.refused[reason] += 1

    def brought(self, ticket: Ticket, chunk: Chunk, ms: float) -> None:
        """See ``Watch``."""
        if chunk.step is None:
            return
        with self._lock:
            totals, record = self._totals, chunk.record
            totals.step(chunk.step, record.drafters)
            if chunk.step is record.steps[0]:
                totals.prompt_tokens += record.prompt_tokens
                totals.cached_tokens += record.cached_tokens
                totals.first_token.add((ticket.first or ticket.arrived) - ticket.arrived)
            else:
                totals.between_chunks.add(1e-3 * ms)

    def left(self, ticket: Ticket) -> None:
        """See ``Watch``."""
        ending, record = ticket.ending, ticket.request.record
        if ending is None or ticket.ended is None:
            return
        with self._lock:
            totals, tokens = self._totals, record.completion_tokens
            totals.finished[FINISHED[ending.finish]] += 1
            if ending.finish == "error":
                totals.errors[_kind(ending.error)] += 1
            if ticket.admitted is not None:
                totals.queued.add(ticket.admitted - ticket.arrived)
            totals.whole.add(ticket.ended - ticket.arrived)
            totals.prompt_size.add(record.prompt_tokens)
            totals.answer_size.add(tokens)
            if tokens > 1 and ticket.first is not None and ticket.last is not None:
                totals.per_token.add((ticket.last - ticket.first) / (tokens - 1))
            if record.acceptance_length is not None:
                totals.acceptance_length.add(record.acceptance_length)

    def unwritten(self, events: int) -> None:
        """So many events are missing in the trace, or in its file."""
        with self._lock:
            self._totals.unwritten += events

    @property
    def totals(self) -> Totals:
        """All counts at one moment; a copy."""
        with self._lock:
            return copy.deepcopy(self._totals)

    def exposition(self, service: Service) -> bytes:
        """The text of ``/metrics``, format 0.0.4."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Moment(self.totals, service, self._model_name, self._vllm))
        ProcessCollector(registry=registry)
        return generate_latest(registry)


def _kind(error: Exception | None) -> str:
    return "deadline" if isinstance(error, TooLate) else "stopping" if isinstance(error, Stopping) else "other"


class _Moment(Collector):
    """The series of one scrape."""

    def __init__(self, totals: Totals, service: Service, model_name: str, vllm: bool) -> None:
        self._totals, self._service, self._vllm = totals, service, vllm
        self._model = {"model_name": model_name}

    def collect(self) -> Iterator[Metric]:
        yield from self._both(OWN, self._model)
        yield from self._own(self._model)
        if self._vllm:
            yield from self._both(VLLM, {**self._model, "engine": "0"})

    def _both(self, prefix: str, labels: Mapping[str, str]) -> Iterator[Metric]:
        """What vLLM shows too, in its words."""
        t, service = self._totals, self._service
        made = _Made(prefix, labels)
        yield made.gauge("num_requests_running", "Requests that have a slot.", service.running)
        yield made.gauge("num_requests_waiting", "Requests that wait for a slot.", service.waiting)
        yield made.gauge("kv_cache_usage_perc", "Share of the cache that running requests take, 0 to 1.",
                         service.cache_usage)  # fmt: skip
        yield made.counter("spec_decode_num_drafts", "Steps of requests in which something was drafted.", t.drafts)
        yield made.counter("spec_decode_num_draft_tokens", "Draft tokens that were verified.", t.drafted)
        yield made.counter("spec_decode_num_accepted_tokens", "Draft tokens that were accepted.", t.accepted)
        yield made.counters("spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by place in the draft.",
                            "position", {str(i): n for i, n in enumerate(t.positions)})  # fmt: skip
        yield made.counter("prompt_tokens", "Tokens of prompts.", t.prompt_tokens)
        yield made.counter("prompt_tokens_cached", "Tokens of prompts that were found in a cache.", t.cached_tokens)
        yield made.counter("prefix_cache_queries", "Tokens of prompts looked up in the caches.", t.prompt_tokens)
        yield made.counter("prefix_cache_hits", "Tokens of prompts found in the caches.", t.cached_tokens)
        yield made.counter("generation_tokens", "Tokens of answers.", t.generation_tokens)
        yield made.counters("request_success", "Requests that have ended, by how.", "finished_reason", t.finished)
        # vLLM's front end refuses, so there the series names no engine.
        front = _Made(prefix, {"model_name": labels["model_name"]})
        yield front.counters("admission_rejections", "Requests that were not taken, by why.", "reason", t.refused)
        for name, doc, values in (
            ("time_to_first_token_seconds", "From arrival to the first tokens.", t.first_token),
            ("inter_token_latency_seconds", "Between two chunks of an answer.", t.between_chunks),
            ("request_time_per_output_token_seconds", "Of an answer, behind its first token.", t.per_token),
            ("e2e_request_latency_seconds", "From arrival to the end.", t.whole),
            ("request_queue_time_seconds", "From arrival to a slot.", t.queued),
            ("request_prompt_tokens", "Tokens of a prompt.", t.prompt_size),
            ("request_generation_tokens", "Tokens of an answer.", t.answer_size),
        ):
            yield made.histogram(name, doc, values)

    def _own(self, labels: Mapping[str, str]) -> Iterator[Metric]:
        """What vLLM has no name for."""
        t, made = self._totals, _Made(OWN, labels)
        yield made.counter("steps", "Steps of requests, with and without drafts.", t.steps)
        yield made.counters("request_errors", "Requests that ended in an error, by which.", "reason", t.errors)
        yield made.histogram("request_acceptance_length", "1 + accepted / steps of a request.", t.acceptance_length)
        yield made.gauge("engine_turn_seconds", "Since the turn of the loop began that goes on; 0 between turns.",
                         self._service.stalled)  # fmt: skip
        yield made.counter("trace_events_unwritten", "Events that are missing in the trace or its file.", t.unwritten)
        names = [name for name, _ in self._service.engine.parts.drafters]
        known = {name: t.drafters.get(name, Drafted()) for name in dict.fromkeys([*names, *t.drafters])}
        for name, doc, values in (
            ("drafter_proposed_tokens", "Draft tokens a drafter offered.", {n: d.proposed for n, d in known.items()}),
            ("drafter_draft_tokens", "Of these, verified.", {n: d.drafted for n, d in known.items()}),
            ("drafter_accepted_tokens", "Of these, accepted.", {n: d.accepted for n, d in known.items()}),
            ("drafter_faults", "Steps without it because it failed.", {n: d.faults for n, d in known.items()}),
        ):
            yield made.counters(name, doc, "drafter", values)
        spent = {n: 1e-3 * d.ms for n, d in known.items()}
        yield made.counters("drafter_seconds", "Seconds a drafter took to propose.", "drafter", spent)


@dataclass(frozen=True)
class _Made:
    """Makes families of one prefix and the labels that all have."""

    prefix: str
    labels: Mapping[str, str]

    def gauge(self, name: str, doc: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{self.prefix}:{name}", doc, labels=[*self.labels])
        family.add_metric([*self.labels.values()], value)
        return family

    def counter(self, name: str, doc: str, value: float) -> Metric:
        family = CounterMetricFamily(f"{self.prefix}:{name}", doc, labels=[*self.labels])
        family.add_metric([*self.labels.values()], value)
        return family

    def counters(self, name: str, doc: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"{self.prefix}:{name}", doc, labels=[*self.labels, label])
        for of, value in values.items():
            family.add_metric([*self.labels.values(), of], value)
        return family

    def histogram(self, name: str, doc: str, values: Histogram) -> Metric:
        family = HistogramMetricFamily(f"{self.prefix}:{name}", doc, labels=[*self.labels])
        family.add_metric([*self.labels.values()], values.buckets, values.total)
        return family
