"""Whether the server lives, whether it takes requests, what it is, and what it did."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import JSONResponse, PlainTextResponse, Response

import augury
from augury.engine.service import Service
from augury.server.faults import Fault
from augury.server.metrics import Metrics
from augury.server.settings import Settings
from augury.server.tracing import Tap

STALLED_S = 120.0
"""Seconds of one turn of the loop after which the engine counts as stuck."""


def router(service: Service, settings: Settings, metrics: Metrics | None = None) -> APIRouter:
    """The routes.

    Args:
        service: whose state is shown.
        settings: of the server.
        metrics: what ``/metrics`` shows; without, there is no such route.
    """
    routes = APIRouter()

    @routes.get("/health", response_class=Response)
    async def health() -> Response:
        """Liveness: 200 and nothing else, or 503 with what is wrong."""
        if why := trouble(service):
            raise unavailable(why)
        return Response()

    @routes.get("/ready")
    async def ready() -> Response:
        """Readiness: whether a new request would be taken, a full queue aside."""
        if why := trouble(service):
            raise unavailable(why)
        return JSONResponse({"status": "ready", "model": settings.names[0]})

    @routes.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": augury.__version__})

    if metrics is not None:

        @routes.get("/metrics", response_class=PlainTextResponse)
        async def exposition() -> Response:
            return Response(metrics.exposition(service), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    return routes


def loaded(service: Service, tap: Tap, metrics: Metrics | None) -> dict[str, Any]:
    """How busy a server is: now, over the last seconds, and since it began."""
    found: dict[str, Any] = {
        "at": tap.teller.now,
        "running": service.running,
        "waiting": service.waiting,
        "slots": service.engine.slots,
        "kv_used": service.cache_usage,
        "recent": tap.recent.figures(),
    }
    if metrics is not None:
        totals = metrics.totals
        found["totals"] = {
            "steps": totals.steps,
            "drafts": totals.drafts,
            "drafted": totals.drafted,
            "accepted": totals.accepted,
            "prompt_tokens": totals.prompt_tokens,
            "cached_tokens": totals.cached_tokens,
            "generation_tokens": totals.generation_tokens,
            "requests": dict(totals.finished),
            "refused": dict(totals.refused),
        }
    return found


def trouble(service: Service) -> str | None:
    """Why a server takes no requests, or None."""
    if service.fault is not None:
        return service.fault
    if service.stopping:
        return "the server is stopping"
    if service.stalled > STALLED_S:
        return f"the engine has not come back from a step for {service.stalled:.0f} s"
    return None


def unavailable(message: str, seconds: int = 5) -> Fault:
    """An answer that asks to come again in some seconds."""
    headers = {"Retry-After": str(seconds)}
    return Fault(503, message, type="overloaded_error", code="server_overloaded", headers=headers)
