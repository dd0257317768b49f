"""The log line, the routes of state, and spans: what others than Prometheus see."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest

from augury.engine.service import Ending, Service
from augury.errors import MissingPackage
from augury.server import log, status, telemetry
from augury.server.faults import Fault
from augury.server.metrics import Metrics
from augury.server.settings import Settings
from augury.trace.figures import figures


def run_one(engine, watch, prompt="1 2 3 1 2 3 1 2 3 1 2", **options):
    ended = threading.Event()
    with Service(engine, watch=watch) as service:
        request = engine.request(prompt, max_tokens=16, ignore_eos=True, **options)
        ticket = service.submit(request, lambda item: ended.set() if isinstance(item, Ending) else None)
        assert ended.wait(60)
        return ticket, service


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_the_line_says_what_happened_in_vllms_words(engine, caplog):
    metrics, clock = Metrics("m"), Clock()
    idle = Service(engine)
    try:
        said = log.Log(metrics, idle, clock)
        ticket, _ = run_one(engine, metrics)
        with caplog.at_level(logging.INFO, "augury.server"):
            said.tick()
            assert not caplog.records  # the interval is not over
            clock.now += 10.0
            said.tick()
            said.tick()
            clock.now += 60.0
            said.tick()  # nothing happened
        (record,) = caplog.records
        f = figures(ticket.request.record)
        drafts = sum(f.acceptance_histogram) - sum(f.undrafted.values())
        line = record.getMessage()
        for part in (
            f"Avg prompt throughput: {f.prompt_tokens / 10:.1f} tokens/s",
            "Avg generation throughput: 1.6 tokens/s",
            "Running: 0 reqs",
            "Waiting: 0 reqs",
            "KV cache usage: 0.0%",
            f"SpecDecoding metrics: Mean acceptance length: {1 + f.accepted / drafts:.2f}",
            f"Accepted throughput: {f.accepted / 10:.2f} tokens/s",
            f"Drafted throughput: {f.drafted / 10:.2f} tokens/s",
            f"Accepted: {f.accepted} tokens",
            f"Drafted: {f.drafted} tokens",
            f"Avg Draft acceptance rate: {100 * f.accepted / f.drafted:.1f}%",
        ):
            assert part in line
        rates = line.partition("Per-position acceptance rate: ")[2].partition(", Avg")[0].split(", ")
        assert sum(map(float, rates)) == pytest.approx(f.accepted / drafts, abs=0.01)
        assert "\n" not in line
    finally:
        idle.stop()


def service_in(fault=None, stopping=False, stalled=0.0):
    return SimpleNamespace(fault=fault, stopping=stopping, stalled=stalled)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({}, None),
        ({"fault": "the engine's thread ended: MemoryError"}, "MemoryError"),
        ({"stopping": True}, "stopping"),
        ({"stalled": 1.0}, None),
        ({"stalled": status.STALLED_S + 1}, "not come back from a step"),
    ],
)
def test_health_and_readiness_follow_the_service(state, said):
    import asyncio

    routes = {r.path: r.endpoint for r in status.router(service_in(**state), Settings(names=("m",))).routes}
    assert set(routes) == {"/health", "/ready", "/version"}
    for path in ("/health", "/ready"):
        if said is None:
            assert asyncio.run(routes[path]()).status_code == 200
            continue
        with pytest.raises(Fault, match=said) as caught:
            asyncio.run(routes[path]())
        assert caught.value.status == 503
        assert caught.value.headers["Retry-After"] == "5"
    assert asyncio.run(status.router(service_in(), Settings()).routes[0].endpoint()).body == b""


@pytest.fixture
def spans():
    """(provider, exporter) of the SDK, in memory."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = sdk.TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def test_a_request_is_a_span_with_its_phases_inside_the_callers_trace(engine, spans):
    provider, exporter = spans
    metrics = Metrics("m")
    with provider.get_tracer("caller").start_as_current_span("caller") as caller:
        ticket, _ = run_one(engine, telemetry.Both(metrics, telemetry.Spans("m", provider)))
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert set(found) == {"caller", "chat m", "queue", "prefill", "decode"}
    span, f = found["chat m"], figures(ticket.request.record)
    assert span.parent.span_id == caller.get_span_context().span_id
    assert span.attributes["gen_ai.usage.input_tokens"] == f.prompt_tokens
    assert span.attributes["gen_ai.usage.output_tokens"] == f.completion_tokens == 16
    assert span.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert span.attributes["augury.accepted_tokens"] == f.accepted
    assert span.end_time - span.start_time == pytest.approx(1e9 * (ticket.ended - ticket.arrived), abs=5e6)
    for phase in ("queue", "prefill", "decode"):
        assert found[phase].parent.span_id == span.context.span_id
        assert span.start_time - 5e6 <= found[phase].start_time <= found[phase].end_time <= span.end_time + 5e6
    assert metrics.totals.generation_tokens == 16  # both were told


def test_a_request_that_fails_is_a_span_with_its_error(engine, spans):
    provider, exporter = spans
    ended = threading.Event()
    with Service(engine, watch=telemetry.Spans("m", provider)) as service:
        request = engine.request("x", max_tokens=300, ignore_eos=True)
        service.submit(request, lambda item: ended.set() if isinstance(item, Ending) else None, seconds=0.0)
        assert ended.wait(60)
    span = next(s for s in exporter.get_finished_spans() if s.name == "chat m")
    assert span.attributes["error.type"] == "TooLate"
    assert not span.status.is_ok


def test_spans_say_what_was_asked_for_and_how_it_ended(engine, spans):
    from served import serving

    provider, exporter = spans
    with Service(engine, watch=telemetry.Spans("m", provider)) as service, serving(service, Settings()) as server:
        assert server.chat({"max_tokens": 2}).status == 200
        assert server.ask("POST", "/v1/completions", {"prompt": "One, two,", "max_tokens": 2}).status == 200
        assert server.ask("POST", "/v1/responses", {"input": "Hi", "max_output_tokens": 16}).status == 200
        ended = threading.Event()
        service.submit(engine.request("x", max_tokens=0), lambda _: ended.set())
        assert ended.wait(60)
    found = [span for span in exporter.get_finished_spans() if span.name.endswith(" m")]
    assert [span.name for span in found] == ["chat m", "text_completion m", "chat m", "chat m"]
    assert [span.name.split()[0] for span in found] == [s.attributes["gen_ai.operation.name"] for s in found]
    nothing = found[-1].attributes
    assert (nothing["gen_ai.usage.output_tokens"], nothing["gen_ai.response.finish_reasons"]) == (0, ("length",))


def test_a_traceparent_header_is_followed(spans):
    import asyncio

    from opentelemetry import trace

    seen = []

    async def app(scope, receive, send):
        seen.append(trace.get_current_span().get_span_context().trace_id)

    scope = {"type": "http", "headers": [(b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]}
    asyncio.run(telemetry.Continued(app)(scope, None, None))
    asyncio.run(telemetry.Continued(app)({"type": "http", "headers": []}, None, None))
    assert seen == [0x0AF7651916CD43DD8448EB211C80319C, 0]


def test_spans_are_made_only_where_they_are_wanted(monkeypatch):
    from opentelemetry import trace

    assert telemetry.provider(None, {}) is None
    assert telemetry.provider("http://localhost:1", {"OTEL_SDK_DISABLED": "true"}) is None
    named = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1"}
    assert telemetry.provider(None, {**named, "OTEL_TRACES_EXPORTER": "none"}) is None
    monkeypatch.setattr(telemetry.importlib.util, "find_spec", lambda name: None)
    assert telemetry.provider(None, {}) is None
    with pytest.raises(MissingPackage, match="pip install 'augury\\[otel\\]'"):
        telemetry.provider(None, named)
    monkeypatch.undo()
    own = object()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: own)
    assert telemetry.provider(None, {}) is own
