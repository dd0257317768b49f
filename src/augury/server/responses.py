"""``POST /v1/responses``: a thin way to say what chat says. Nothing is stored, so nothing can be referred to."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from augury.engine.engine import Engine
from augury.engine.request import Chunk
from augury.errors import shown
from augury.server.answering import Desk
from augury.server.answers import Whole
from augury.server.asking import asked, check_model, constraint, conversation, response_format
from augury.server.faults import Fault, refused, unsupported
from augury.server.schema import Messages, ResponseBody, described
from augury.server.settings import Settings
from augury.server.stream import DONE, frame
from augury.server.tools import Call, Found, Reader, tools_of
from augury.server.usage import figures, usage

MAX_METADATA = 16


class Written:
    """How responses are written; see ``answers.Form``."""

    def __init__(self, engine: Engine, settings: Settings, body: ResponseBody, key: str) -> None:
        check_model(body.model, settings)
        if body.speculative is not None and body.speculative.trace:
            raise unsupported("speculative.trace", "ask /v1/chat/completions for it")
        metadata = body.metadata or {}
        if len(metadata) > MAX_METADATA or not all(isinstance(v, str) and len(v) <= 512 for v in metadata.values()):
            raise refused("metadata", f"metadata may have {MAX_METADATA} texts of up to 512 characters")
        tools = tools_of(
            [_nested(i, t) for i, t in enumerate(body.tools or ())], body.tool_choice, body.parallel_tool_calls
        )
        wanted = (body.text or {}).get("format")
        if wanted is not None and not isinstance(wanted, Mapping):
            raise refused("text.format", f"text.format is {shown(wanted)}; give {{type}}")
        grammar = response_format(wanted, "text.format") if wanted is not None else None
        if (grammar or constraint(body)) and (tools.offered or (grammar and constraint(body))):
            raise refused("text.format", "an answer follows one grammar; leave out text.format, or tool_choice: none")
        prompt = conversation(engine, Messages(messages=_messages(body)), tools.listed, "input")
        self.asked = asked(
            engine, settings, body, [prompt], key=key, grammar=grammar or tools.grammar,
        )  # fmt: skip
        self._tools, self._reader = tools, Reader(tools)
        self._padded = bool(body.stream_options and body.stream_options.include_obfuscation)
        self._count = 0
        self._items: list[dict[str, Any]] = []
        self._text: dict[str, Any] | None = None  # the message that is being written
        self._base = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": settings.names[0],
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": metadata,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "user": body.user,
        }

    # ---- in one piece -----------------------------------------------------------------------------------

    def whole(self, answers: Sequence[Whole]) -> dict[str, Any]:
        """See ``Form.whole``."""
        (one,) = answers
        for found in [*self._reader.push(one.text), *self._reader.end()]:
            self._take(found)
        self._close_text(one.finish == "length")
        return self._ended(one.finish)

    def _take(self, found: Found) -> list[bytes]:
        """Put what was found into the items; gives the events of it."""
        if isinstance(found, Call):
            return [*self._close_text(False), *self._called(found)]
        events = []
        if self._text is None:
            self._text = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
            self._text |= {"status": "in_progress", "content": []}
            self._items.append(self._text)
            events.append(self._event("response.output_item.added", output_index=len(self._items) - 1, item=self._text))
            self._text["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
            events.append(self._event("response.content_part.added", **self._place(), part=self._text["content"][0]))
        self._text["content"][0]["text"] += found
        events.append(self._event("response.output_text.delta", **self._place(), delta=found, logprobs=[]))
        return events

    def _place(self) -> dict[str, Any]:
        assert self._text is not None
        return {"item_id": self._text["id"], "output_index": len(self._items) - 1, "content_index": 0}

    def _close_text(self, cut: bool) -> list[bytes]:
        """End the message that is being written, if one is."""
        if self._text is None:
            return []
        part = self._text["content"][0]
        events = [
            self._event("response.output_text.done", **self._place(), text=part["text"], logprobs=[]),
            self._event("response.content_part.done", **self._place(), part=part),
        ]
        self._text["status"] = "incomplete" if cut else "completed"
        index = len(self._items) - 1
        events.append(self._event("response.output_item.done", output_index=index, item=self._text))
        self._text = None
        return events

    def _called(self, call: Call) -> list[bytes]:
        item = {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "call_id": call.id, "name": call.name}
        self._items.append({**item, "arguments": call.arguments, "status": "completed"})
        index = len(self._items) - 1
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return [
            self._event("response.output_item.added", output_index=index, item=begun),
            self._event("response.function_call_arguments.delta", **place, delta=call.arguments),
            self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments),
            self._event("response.output_item.done", output_index=index, item=self._items[index]),
        ]

    def _ended(self, finish: str | None) -> dict[str, Any]:
        cut = finish == "length"
        told = usage(self.asked)
        details = {"cache_write_tokens": 0, **told["prompt_tokens_details"]}
        spent = {
            "input_tokens": told["prompt_tokens"],
            "input_tokens_details": details,
            "output_tokens": told["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0, **told.get("completion_tokens_details", {})},
            "total_tokens": told["total_tokens"],
        }
        return {
            **self._base,
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._items,
            "usage": spent,
            **figures(self.asked),
        }

    # ---- in frames --------------------------------------------------------------------------------------

    def _event(self, kind: str, **data: Any) -> bytes:
        made = frame({"type": kind, "sequence_number": self._count, **data}, kind, self._padded and "delta" in data)
        self._count += 1
        return made

    def begin(self) -> list[bytes]:
        """See ``Form.begin``."""
        response = {**self._base, "status": "in_progress", "completed_at": None, "output": [], "usage": None}
        return [self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress")]

    def piece(self, index: int, chunk: Chunk) -> list[bytes]:
        """See ``Form.piece``."""
        found = self._reader.push(chunk.text) + (self._reader.end() if chunk.finish_reason is not None else [])
        events = [event for one in found for event in self._take(one)]
        if chunk.finish_reason is None:
            return events
        events += self._close_text(chunk.finish_reason == "length")
        ended = self._ended(chunk.finish_reason)
        return [*events, self._event(f"response.{ended['status']}", response=ended)]

    def end(self) -> list[bytes]:
        """See ``Form.end``."""
        return [DONE]

    def failed(self, fault: Fault) -> list[bytes]:
        """See ``Form.failed``."""
        error = {"code": fault.code or fault.type, "message": fault.message}
        response = {**self._base, "status": "failed", "completed_at": None, "output": self._items, "usage": None}
        return [
            self._event("error", **error, param=fault.param),
            self._event("response.failed", response={**response, "error": {**error, "code": "server_error"}}),
            DONE,
        ]


def _nested(index: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool of a response, which is flat, as chat has it."""
    if tool.get("type") != "function":
        where = f"tools[{index}].type"
        raise refused(
            where, f"{where} is {shown(tool.get('type'))}; only function is understood, no tools are built in"
        )
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _messages(body: ResponseBody) -> list[dict[str, Any]]:
    """A response's instructions and input as messages."""
    messages = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    if not isinstance(body.input, list) or not body.input:
        raise refused("input", f"input is {shown(body.input)}; give a text, or a list of items")
    for index, item in enumerate(body.input):
        _add(messages, f"input[{index}]", item)
    return messages


def _add(messages: list[dict[str, Any]], where: str, item: object) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else type(item).__name__
    if not isinstance(item, dict) or kind not in ("message", "function_call", "function_call_output"):
        known = "message, function_call, function_call_output"
        raise refused(where, f"{where} is of type {shown(kind)}; understood are {known}")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": _content(where, item.get("content"))})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        if not (messages and "tool_calls" in messages[-1]):
            messages.append({"role": "assistant", "content": "", "tool_calls": []})
        messages[-1]["tool_calls"].append(call)
    else:
        output = _content(where, item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})


def _content(where: str, content: object) -> object:
    """Text parts under chat's name; what is no text is left for chat to refuse."""
    if not isinstance(content, list):
        return content
    parts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in ("input_text", "output_text", "text"):
            at = f"{where}.content[{index}]"
            raise refused(at, f"{at} is of type {shown(kind)}; only text is understood")
        parts.append({"type": "text", "text": part.get("text")})
    return parts


def router(desk: Desk) -> APIRouter:
    """The route."""
    routes = APIRouter()
    engine, settings = desk.service.engine, desk.settings

    @routes.post("/responses", openapi_extra=described(ResponseBody))
    async def responses(request: Request) -> Response:
        return await desk.answer(request, ResponseBody, lambda body, key: Written(engine, settings, body, key))

    return routes
