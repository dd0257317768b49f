"""The app: routes, and what stands before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import FastAPI

import augury
from augury.engine.service import Service
from augury.server import chat, completions, faults, models, pages, responses, schema, status, tokens, traces
from augury.server.answering import Desk
from augury.server.guard import Guard, digests
from augury.server.limits import Bodies, Refused
from augury.server.metrics import Metrics
from augury.server.settings import Settings, hides_traces
from augury.server.status import loaded
from augury.server.tracing import Tap, Teller


def create_app(
    service: Service,
    settings: Settings,
    metrics: Metrics | None = None,
    tap: Tap | None = None,
    keys: Sequence[str] = (),
) -> FastAPI:
    """OpenAI's interface to an engine.

    Args:
        service: that answers; who made it stops it.
        settings: of the server.
        metrics: that ``/metrics`` shows.
        tap: what ``/trace`` shows; it watches the service.
        keys: digests of API keys beside those of the settings, where the keys themselves are not to be had.
    """
    app = FastAPI(
        title="Augury",
        version=augury.__version__,
        summary="Lossless speculative decoding behind OpenAI's interface.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    hidden = "nothing is traced" if tap is None else hides_traces(settings)
    keys, trace_keys = [*digests(settings.api_keys), *keys], () if hidden else digests(settings.trace_keys)
    settings = replace(settings, api_keys=(), trace_keys=())  # the app holds no key
    told: Refused = (lambda _: None) if metrics is None else metrics.refused
    desk = Desk(service, settings, told, Teller(service.engine, name=settings.names[0]) if tap is None else tap.teller)
    for prefix in ("/v1", ""):
        for room in (chat, completions, responses, models, tokens):
            routes = room.router(desk)
            app.include_router(routes, prefix=prefix, include_in_schema=bool(prefix), responses=faults.DESCRIBED)
    app.include_router(status.router(service, settings, metrics), responses=faults.DESCRIBED)
    if settings.page:
        app.include_router(pages.router())
    if tap is None or hidden:
        app.include_router(traces.nowhere(hidden))
    else:
        shown = traces.router(
            traces.Reading(tap), load=lambda: loaded(service, tap, metrics), stopping=lambda: service.stopping,
            keep_alive_seconds=settings.keep_alive_seconds,
        )  # fmt: skip
        app.include_router(shown, responses=faults.DESCRIBED)
    faults.install(app)
    app.add_middleware(
        Guard, settings=settings, keys=keys, bodies=Bodies(settings.max_bodies, told), trace_keys=trace_keys,
        stopping=lambda: service.stopping,
    )  # fmt: skip
    bare = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            bare()["components"] = {"schemas": schema.definitions()}
        return bare()

    app.openapi = openapi  # type: ignore[method-assign]
    return app
