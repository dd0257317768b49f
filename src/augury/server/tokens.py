"""``POST /tokenize`` and ``/detokenize``, as vLLM and as llama-server ask."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from augury.engine.engine import Engine
from augury.server.answering import Desk
from augury.server.asking import check_model, conversation, tokenizer_of
from augury.server.chat import spelt
from augury.server.faults import dumped, refused
from augury.server.reading import aside, read
from augury.server.schema import DetokenizeBody, Messages, TokenizeBody, described
from augury.server.tools import tools_of


def tokenized(engine: Engine, body: TokenizeBody) -> dict[str, Any]:
    """Ids of what a body holds.

    Raises:
        Fault: it holds nothing, or several things.
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
        ids = tokenizer.encode(body.prompt, special=True, start=body.add_special_tokens is not False).tolist()
    else:
        assert body.content is not None
        special = body.parse_special is not False
        ids = tokenizer.encode(body.content, special=special, start=bool(body.add_special)).tolist()
        if body.with_pieces:
            return {"tokens": [{"id": id, "piece": _piece(tokenizer.token_bytes(id))} for id in ids]}
    found = {"count": len(ids), "max_model_len": engine.target.info.context, "tokens": ids}
    return {**found, "token_strs": [spelt(tokenizer, id)[0] for id in ids]} if body.return_token_strs else found


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def detokenized(engine: Engine, body: DetokenizeBody) -> dict[str, Any]:
    """The text of ids, control tokens included by name."""
    tokenizer, vocab = tokenizer_of(engine), engine.target.info.vocab_size
    for id in body.tokens:
        if id >= vocab:
            raise refused("tokens", f"tokens has id {id}; valid ids are 0..{vocab - 1}")
    text = b"".join(map(tokenizer.token_bytes, body.tokens)).decode(errors="replace")
    return {"prompt": text, "content": text}


def router(desk: Desk) -> APIRouter:
    """The routes."""
    routes = APIRouter()
    engine, settings = desk.service.engine, desk.settings

    @routes.post("/tokenize", openapi_extra=described(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        body = await read(request, TokenizeBody)
        check_model(body.model, settings)
        return Response(await aside(lambda: dumped(tokenized(engine, body))), media_type="application/json")

    @routes.post("/detokenize", openapi_extra=described(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        body = await read(request, DetokenizeBody)
        check_model(body.model, settings)
        return Response(await aside(lambda: dumped(detokenized(engine, body))), media_type="application/json")

    return routes
