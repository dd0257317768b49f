"""``POST /v1/completions``: a text, or token ids, and what comes behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from augury.engine.engine import Tokenizer
from augury.engine.request import Chunk, TokenLogprob
from augury.server.answering import Desk
from augury.server.answers import Whole
from augury.server.asking import asked, check_model, prompts_of, tokenizer_of
from augury.server.faults import Fault, unsupported
from augury.server.schema import CompletionBody, described
from augury.server.told import IMPOSSIBLE, Told, spelt, stop_reason

DEFAULT_TOKENS = 16
"""Of an answer where nothing is said, as at OpenAI."""


class Completion:
    """How completions are written; see ``answers.Form``."""

    def __init__(self, desk: Desk, body: CompletionBody, key: str) -> None:
        engine, settings = desk.service.engine, desk.settings
        check_model(body.model, settings)
        if body.echo and body.logprobs is not None:
            raise unsupported("logprobs", "with echo they would be the prompt's too, which are not computed")
        n = body.n or 1
        prompts = prompts_of(engine, settings, body.prompt, n, body.add_special_tokens is not False)
        self.asked = asked(
            engine, settings, body, prompts, key=key, n=n,
            default_tokens=DEFAULT_TOKENS, logprobs=body.logprobs,
        )  # fmt: skip
        self._tokenizer = tokenizer_of(engine)
        self._prompts = [prompt.tolist() for prompt in prompts for _ in range(n)]
        self._echo, self._ids, self._logprobs = body.echo, body.return_token_ids, body.logprobs is not None
        self._offsets = [0] * len(self._prompts)
        self._untold = set(range(len(self._prompts)))  # choices whose prompt's ids were not given yet
        kinds = ("text_completion", "text_completion")
        self._told = Told(engine, settings, self.asked, "cmpl", kinds, body.stream_options, n, desk.teller)

    def _echoed(self, index: int) -> str:
        if not self._echo:
            return ""
        reader = self._tokenizer.incremental()
        return reader.push(self._prompts[index]) + reader.flush()

    def whole(self, answers: Sequence[Whole]) -> dict[str, Any]:
        """See ``Form.whole``."""
        return self._told.whole(
            [
                self._choice(i, self._echoed(i) + one.text, one.tokens, one.logprobs, one.finish)
                for i, one in enumerate(answers)
            ]
        )

    def _choice(
        self, index: int, text: str, tokens: Sequence[int], entries: Sequence[TokenLogprob], finish: str | None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
        if self._logprobs:
            choice["logprobs"], self._offsets[index] = logprobs(self._tokenizer, entries, self._offsets[index])
        if finish is not None:
            choice["stop_reason"] = stop_reason(self.asked, index)
        if self._ids:
            choice["token_ids"] = list(tokens)
            if index in self._untold:
                self._untold.discard(index)
                choice["prompt_token_ids"] = self._prompts[index]
        return choice

    def begin(self) -> list[bytes]:
        """See ``Form.begin``."""
        texts = [self._echoed(index) for index in range(len(self._prompts))] if self._echo else []
        return [self._told.frame(self._choice(i, text, (), (), None)) for i, text in enumerate(texts) if text]

    def piece(self, index: int, chunk: Chunk) -> list[bytes]:
        """See ``Form.piece``."""
        advances = self._told.advances(chunk)
        silent = not chunk.text and chunk.finish_reason is None and not advances
        if silent and not ((self._logprobs or self._ids) and chunk.tokens):
            return []
        choice = self._choice(index, chunk.text, chunk.tokens, chunk.logprobs, chunk.finish_reason)
        return [self._told.frame(choice, **self._told.steps(index, chunk))]

    def end(self) -> list[bytes]:
        """See ``Form.end``."""
        return self._told.end()

    def failed(self, fault: Fault) -> list[bytes]:
        """See ``Form.failed``."""
        return self._told.failed(fault)


def logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob], offset: int) -> tuple[dict[str, Any], int]:
    """Log-probabilities as completions have them, and the offset of what follows."""
    tokens, values, tops, offsets = [], [], [], []
    for entry in entries:
        text, _ = spelt(tokenizer, entry.token)
        top: dict[str, float] = {}
        for id, value in ((entry.token, entry.logprob), *entry.top):
            top.setdefault(spelt(tokenizer, id)[0], max(value, IMPOSSIBLE))  # ids that are no text alone look alike
        tokens.append(text)
        values.append(max(entry.logprob, IMPOSSIBLE))
        tops.append(top)
        offsets.append(offset)
        offset += len(text)
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}, offset


def router(desk: Desk) -> APIRouter:
    """The route."""
    routes = APIRouter()

    @routes.post("/completions", openapi_extra=described(CompletionBody))
    async def completions(request: Request) -> Response:
        return await desk.answer(request, CompletionBody, lambda body, key: Completion(desk, body, key))

    return routes
