"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from augury.engine.engine import Tokenizer
from augury.engine.request import Chunk, TokenLogprob
from augury.record import FinishReason
from augury.server.answering import Desk
from augury.server.answers import Whole
from augury.server.asking import asked, check_count, check_model, constraint, conversation, tokenizer_of
from augury.server.faults import Fault, refused
from augury.server.schema import ChatBody, described
from augury.server.told import IMPOSSIBLE, Told, spelt, stop_reason
from augury.server.tools import Call, Found, Reader, read, tools_of


class Chat:
    """How chat answers are written; see ``answers.Form``."""

    def __init__(self, desk: Desk, body: ChatBody, key: str) -> None:
        engine, settings = desk.service.engine, desk.settings
        check_model(body.model, settings)
        if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
            raise refused("max_tokens", "max_tokens and max_completion_tokens differ; give one of them")
        if body.top_logprobs is not None and not body.logprobs and body.top_logprobs:
            raise refused("top_logprobs", "top_logprobs needs logprobs to be true")
        n = body.n or 1
        check_count(settings, 1, n)
        self._tools = tools_of(body.tools, body.tool_choice, body.parallel_tool_calls)
        if self._tools.offered and constraint(body):
            raise refused(
                "response_format", "an answer follows one grammar; leave out response_format, or tool_choice: none"
            )
        prompt = conversation(engine, body, self._tools.listed)
        self.asked = asked(
            engine, settings, body, [prompt], key=key, n=n,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None, grammar=self._tools.grammar,
        )  # fmt: skip
        self._readers = [Reader(self._tools) for _ in range(n)]
        self._tokenizer = tokenizer_of(engine)
        self._ids = prompt.tolist() if body.return_token_ids else None
        self._logprobs = bool(body.logprobs)
        kinds = ("chat.completion", "chat.completion.chunk")
        self._told = Told(engine, settings, self.asked, "chatcmpl", kinds, body.stream_options, n, desk.teller)

    def whole(self, answers: Sequence[Whole]) -> dict[str, Any]:
        """See ``Form.whole``."""
        choices = []
        for index, one in enumerate(answers):
            text, calls = read(self._tools, one.text)
            message: dict[str, Any] = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
            if calls:
                message["tool_calls"] = [call.json() for call in calls]
            choice = {
                "index": index,
                "message": message,
                "logprobs": chat_logprobs(self._tokenizer, one.logprobs) if self._logprobs else None,
                "finish_reason": finish(one.finish, calls),
                "stop_reason": stop_reason(self.asked, index),
            }
            choices.append(choice if self._ids is None else {**choice, "token_ids": list(one.tokens)})
        return self._told.whole(choices, **({} if self._ids is None else {"prompt_token_ids": self._ids}))

    def begin(self) -> list[bytes]:
        """See ``Form.begin``."""
        more = {} if self._ids is None else {"prompt_token_ids": self._ids}
        delta = {"role": "assistant", "content": ""}
        return [self._frame(index, delta, None, None, **more) for index in range(len(self.asked.requests))]

    def piece(self, index: int, chunk: Chunk) -> list[bytes]:
        """See ``Form.piece``."""
        reader, advances = self._readers[index], self._told.advances(chunk)
        found = reader.push(chunk.text) + (reader.end() if chunk.finish_reason is not None else [])
        deltas = [self._delta(reader, one) for one in found]
        if not deltas and (advances or ((self._logprobs or self._ids is not None) and chunk.tokens)):
            deltas = [{"content": ""}]
        # What is of the step, not of its text, rides on its first frame, and the end on the last.
        told = self._told.steps(index, chunk) if deltas or chunk.finish_reason is not None else {}
        end = {"end": told.pop("end")} if "end" in told else {}
        frames = [
            self._frame(index, delta, None if i else chunk, None, **({} if i else told))
            for i, delta in enumerate(deltas)
        ]
        if chunk.finish_reason is not None:
            frames.append(self._frame(index, {}, None, finish(chunk.finish_reason, reader.calls), **end))
        return frames

    @staticmethod
    def _delta(reader: Reader, one: Found) -> dict[str, Any]:
        if isinstance(one, str):
            return {"content": one}
        return {"tool_calls": [{"index": reader.calls.index(one), **one.json()}]}

    def _frame(self, index: int, delta: dict[str, Any], chunk: Chunk | None, ending: str | None, **more: Any) -> bytes:
        known = chat_logprobs(self._tokenizer, chunk.logprobs) if chunk is not None and self._logprobs else None
        choice = {"index": index, "delta": delta, "logprobs": known, "finish_reason": ending}
        if ending is not None:
            choice["stop_reason"] = stop_reason(self.asked, index)
        if self._ids is not None and chunk is not None:
            choice["token_ids"] = list(chunk.tokens)
        return self._told.frame(choice, **more)

    def end(self) -> list[bytes]:
        """See ``Form.end``."""
        return self._told.end()

    def failed(self, fault: Fault) -> list[bytes]:
        """See ``Form.failed``."""
        return self._told.failed(fault)


def finish(finished: FinishReason, calls: Sequence[Call]) -> str:
    """Why an answer ended, in OpenAI's words."""
    return "tool_calls" if calls and finished == "stop" else finished


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities as chat answers have them: one entry a token, whatever step brought it."""

    def one(id: int, logprob: float) -> dict[str, Any]:
        text, data = spelt(tokenizer, id)
        return {"token": text, "logprob": max(logprob, IMPOSSIBLE), "bytes": data}

    content = [{**one(e.token, e.logprob), "top_logprobs": [one(*pair) for pair in e.top]} for e in entries]
    return {"content": content, "refusal": None}


def router(desk: Desk) -> APIRouter:
    """The route."""
    routes = APIRouter()
    form: Callable[[ChatBody, str], Chat] = lambda body, key: Chat(desk, body, key)  # noqa: E731

    @routes.post("/chat/completions", openapi_extra=described(ChatBody))
    async def chat(request: Request) -> Response:
        return await desk.answer(request, ChatBody, form)

    return routes
