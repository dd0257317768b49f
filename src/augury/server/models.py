"""``GET /v1/models``: what is served, under which names."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

import augury
from augury.engine.engine import Engine
from augury.server.answering import Desk
from augury.server.asking import check_model, may_trace
from augury.tree import MAX_NODES


def fingerprint(engine: Engine) -> str:
    """What decides the tokens of a seed: the weights, how they are run, and this program."""
    info = engine.target.info
    parts = (info.digest, info.dtype, info.runner, engine.acceptance, augury.__version__)
    return f"fp_{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:12]}"


def router(desk: Desk) -> APIRouter:
    """The routes."""
    routes, began = APIRouter(), int(time.time())
    engine, settings = desk.service.engine, desk.settings
    info, deepest = engine.target.info, engine.parts.deepest
    drafting = {
        "drafters": [name for name, _ in engine.parts.drafters],
        "acceptance": engine.acceptance,
        "draft_tokens": deepest if deepest < MAX_NODES else None,
        "trace": may_trace(settings),
    }

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": began,
            "owned_by": "augury",
            "root": info.name,
            "max_model_len": info.context,
            "speculative": drafting,
        }

    @routes.get("/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [card(name) for name in settings.names]})

    @routes.get("/models/{model:path}")
    async def model(model: str) -> Response:
        check_model(model, settings)
        return JSONResponse(card(model))

    return routes
