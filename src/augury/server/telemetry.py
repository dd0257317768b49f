"""OpenTelemetry spans of requests, where OpenTelemetry is set up; nothing is imported or done where it is not.

A request is one span, made when it has ended, with ``gen_ai.*`` attributes (semantic conventions, status Development)
and our own for drafting. Its children are the phases: queue, prefill, decode. Steps are sums in attributes, not spans.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from augury.engine.request import Chunk
from augury.engine.service import Ticket, Watch
from augury.errors import MissingPackage
from augury.trace.figures import figures

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider
    from starlette.types import ASGIApp, Receive, Scope, Send

OPERATION: ContextVar[str] = ContextVar("augury.operation", default="chat")
"""What is asked for, in the words of ``gen_ai.operation.name``; is read of the context in which a request came."""

_COMMAND = "pip install 'augury[otel]'"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def provider(endpoint: str | None, environ: Mapping[str, str]) -> TracerProvider | None:
    """Where spans go: to an endpoint that is given or that the environment names, or where somebody set up already.

    Args:
        endpoint: of a collector that takes OTLP over HTTP, as ``http://localhost:4318/v1/traces``.
        environ: may hold ``OTEL_*``, which the SDK reads.

    Raises:
        MissingPackage: an endpoint is named, and the packages that send to it are not there.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    wanted = environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none"
    named = endpoint or next((environ[name] for name in _ENDPOINTS if wanted and environ.get(name)), None)
    if importlib.util.find_spec("opentelemetry") is None:
        if named is None:
            return None
        raise MissingPackage("sending traces", "opentelemetry-sdk", _COMMAND)
    from opentelemetry import trace

    found = trace.get_tracer_provider()
    if type(found).__name__ != "ProxyTracerProvider":  # the API has no better way to ask whether one was set up
        return found
    if named is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingPackage("sending traces", "opentelemetry-exporter-otlp-proto-http", _COMMAND) from None
    made = TracerProvider(resource=Resource.create({"service.name": environ.get("OTEL_SERVICE_NAME", "augury")}))
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(made)
    return made


class Spans:
    """Watches a service, and makes a span of every request that has ended.

    Args:
        model_name: under which the model is served.
        provider: of tracers.
    """

    def __init__(self, model_name: str, provider: TracerProvider) -> None:
        self._model_name = model_name
        self._tracer = provider.get_tracer("augury")

    def refused(self, reason: str) -> None:
        """See ``Watch``."""

    def brought(self, ticket: Ticket, chunk: Chunk, ms: float) -> None:
        """See ``Watch``."""

    def left(self, ticket: Ticket) -> None:
        """See ``Watch``."""
        from opentelemetry import context, trace

        if ticket.ended is None or ticket.ending is None:
            return
        parent = ticket.context.run(context.get_current)
        span = self._tracer.start_span(
            f"{_operation(ticket)} {self._model_name}",
            parent,
            trace.SpanKind.INTERNAL,
            self._attributes(ticket),
            start_time=_since_epoch(ticket.arrived),
        )
        if ticket.ending.error is not None:
            name = type(ticket.ending.error).__name__
            span.set_attribute("error.type", name)
            span.set_status(trace.StatusCode.ERROR, name)
        inside = trace.set_span_in_context(span, parent)
        self._phase("queue", inside, ticket.arrived, ticket.admitted or ticket.ended)
        if ticket.admitted is not None:
            computed = min(ticket.admitted + 1e-3 * ticket.request.record.prefill_ms, ticket.ended)
            self._phase("prefill", inside, ticket.admitted, computed)
            if ticket.last is not None:
                self._phase("decode", inside, computed, ticket.last)
        span.end(_since_epoch(ticket.ended))

    def _phase(self, name: str, inside: Any, begin: float, end: float) -> None:
        span: Span = self._tracer.start_span(name, inside, start_time=_since_epoch(begin))
        span.end(_since_epoch(end))

    def _attributes(self, ticket: Ticket) -> dict[str, str | int | float | Sequence[str]]:
        f = figures(ticket.request.record)
        found: dict[str, str | int | float | Sequence[str] | None] = {
            "gen_ai.operation.name": _operation(ticket),
            "gen_ai.provider.name": "augury",
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
            "gen_ai.usage.input_tokens": f.prompt_tokens,
            "gen_ai.usage.output_tokens": f.completion_tokens,
            "gen_ai.response.finish_reasons": [f.finish_reason or "error"],
            "gen_ai.server.time_to_first_token": None if ticket.first is None else ticket.first - ticket.arrived,
            "augury.cached_tokens": f.cached_tokens,
            "augury.steps": f.steps,
            "augury.draft_tokens": f.drafted,
            "augury.accepted_tokens": f.accepted,
            "augury.mean_acceptance_length": f.mean_acceptance_length,
            "augury.draft_ms": f.draft_ms,
            "augury.verify_ms": f.verify_ms,
            **{f"augury.drafter.{d.name}.accepted_tokens": d.accepted for d in f.drafters},
        }
        return {name: value for name, value in found.items() if value is not None}


class Both:
    """Tells two who watch."""

    def __init__(self, first: Watch, second: Watch) -> None:
        self._all = (first, second)

    def refused(self, reason: str) -> None:
        """See ``Watch``."""
        for one in self._all:
            one.refused(reason)

    def brought(self, ticket: Ticket, chunk: Chunk, ms: float) -> None:
        """See ``Watch``."""
        for one in self._all:
            one.brought(ticket, chunk, ms)

    def left(self, ticket: Ticket) -> None:
        """See ``Watch``."""
        for one in self._all:
            one.left(ticket)


class Continued:
    """ASGI middleware: what a request does belongs to the trace that its ``traceparent`` header names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app inside the caller's trace, unless somebody saw to that already."""
        from opentelemetry import context, propagate, trace

        if scope["type"] != "http" or trace.get_current_span().get_span_context().is_valid:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        token = context.attach(propagate.extract(headers))
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)


def _operation(ticket: Ticket) -> str:
    return ticket.context.run(OPERATION.get)


def _since_epoch(monotonic: float) -> int:
    """Nanoseconds since 1970 of a moment of ``time.monotonic``."""
    return time.time_ns() + int(1e9 * (monotonic - time.monotonic()))
