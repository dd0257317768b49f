"""``POST /tokenize`` and ``/detokenize``, as vLLM and as llama-server ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from augury.engine.engine import Engine
from augury.server.answering import Desk
from augury.server.asking import check_model, conversation, ids_of, most_tokens, tokenizer_of
from augury.server.faults import Fault, dumped, refused
from augury.server.guard import asker
from augury.server.reading import aside, read
from augury.server.schema import DetokenizeBody, Messages, TokenizeBody, described
from augury.server.told import spelt
from augury.server.tools import tools_of

Wanted = TypeVar("Wanted", TokenizeBody, DetokenizeBody)

MOST_CHARACTERS = 1 << 20
"""Of a text; the dearest of that size take a second."""


def tokenized(engine: Engine, body: TokenizeBody) -> dict[str, Any]:
    """Ids of what a body holds.

    Raises:
        Fault: it holds nothing, several things, or too much.
    """
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise refused("prompt", f"give one of prompt, content and messages; there are {len(given)}")
    tokenizer = tokenizer_of(engine)
    if body.messages is not None:
        chat = Messages(
            messages=body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        ids = conversation(engine, chat, tools_of(body.tools, None, None).listed).tolist()
    elif body.prompt is not None:
        ids = _ids(engine, "prompt", body.prompt, True, body.add_special_tokens is not False)
    else:
        assert body.content is not None
        ids = _ids(engine, "content", body.content, body.parse_special is not False, bool(body.add_special))
        if body.with_pieces:
            return {"tokens": [{"id": id, "piece": _piece(tokenizer.token_bytes(id))} for id in ids]}
    found = {"count": len(ids), "max_model_len": engine.target.info.context, "tokens": ids}
    return {**found, "token_strs": [spelt(tokenizer, id)[0] for id in ids]} if body.return_token_strs else found


def _ids(engine: Engine, what: str, text: str, special: bool, start: bool) -> list[int]:
    if len(text) > MOST_CHARACTERS:
        raise _too_many(what, f"{len(text)} characters", MOST_CHARACTERS)
    limit = most_tokens(engine)
    ids: list[int] = ids_of(engine, what, text, special=special, start=start, limit=limit).tolist()
    if len(ids) > limit:
        raise _too_many(what, f"{len(ids)} tokens", limit)
    return ids


def _too_many(what: str, given: str, limit: int) -> Fault:
    return refused(what, f"{what} has {given}; at most {limit} are taken at a time")


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def detokenized(engine: Engine, body: DetokenizeBody) -> dict[str, Any]:
    """The text of ids, control tokens included by name."""
    tokenizer, vocab = tokenizer_of(engine), engine.target.info.vocab_size
    if len(body.tokens) > (limit := most_tokens(engine)):
        raise _too_many("tokens", f"{len(body.tokens)} ids", limit)
    for id in body.tokens:
        if id >= vocab:
            raise refused("tokens", f"tokens has id {id}; valid ids are 0..{vocab - 1}")
    text = b"".join(map(tokenizer.token_bytes, body.tokens)).decode(errors="replace")
    return {"prompt": text, "content": text}


def router(desk: Desk) -> APIRouter:
    """The routes."""
    routes = APIRouter()
    engine, settings = desk.service.engine, desk.settings

    async def told(request: Request, shape: type[Wanted], work: Callable[[Engine, Wanted], object]) -> Response:
        with desk.limits.entered(asker(request)):
            body = await read(request, shape)
            check_model(body.model, settings)
            said = await aside(lambda: dumped(work(engine, body)))
        return Response(said, media_type="application/json")

    @routes.post("/tokenize", openapi_extra=described(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        return await told(request, TokenizeBody, tokenized)

    @routes.post("/detokenize", openapi_extra=described(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        return await told(request, DetokenizeBody, detokenized)

    return routes
