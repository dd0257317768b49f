"""What may be asked, as the routes understand it.

A field that nobody knows is accepted and has no effect. A field that OpenAI or a peer knows and that is not done here
is refused by name, unless it is given the value that asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, WrapValidator
from pydantic.json_schema import models_json_schema

from augury.server.faults import refused, unsupported

MOST = (1 << 31) - 1
MAX_STOPS = 4
LONGEST_SALT = 1024
MAX_STOP_IDS = 128
MAX_BIASES = 1024
MAX_BAD_WORDS = 1024
LONGEST_BAD_WORD = 128
"""Characters."""

Unmet = Mapping[str, tuple[str, tuple[object, ...]]]
"""Field -> why it is not done, and the values that ask for nothing beside null."""

_ANYWHERE: Unmet = {
    "store": ("answers are not stored", (False,)),
    "service_tier": ("there is one tier", ("auto", "default")),
    "moderation": ("nothing is moderated", ()),
    "prompt_cache_retention": ("caches live as long as there is room", ("in_memory", "in-memory")),
    "prompt_cache_options": ("caches live as long as there is room", ({},)),
    "use_beam_search": ("answers are drawn, not searched", (False,)),
    "length_penalty": ("it belongs to beam search", (1, 0)),
    "prompt_logprobs": ("log-probabilities are of the answer", (False,)),
    "truncate_prompt_tokens": ("a prompt that is too long is refused", ()),
    "allowed_token_ids": ("use a grammar, or logit_bias", ([],)),
    "logits_processors": ("no code is taken from requests", ([],)),
    "return_tokens_as_token_ids": ("ask for return_token_ids", (False,)),
    "detokenize": ("answers are text; ask for return_token_ids beside it", (True,)),
    "skip_special_tokens": ("the text of an answer shows no control tokens; ask for return_token_ids", (True,)),
    "prompt_embeds": ("no tensors are taken from requests", ()),
    "mirostat": ("it is not lossless", (0,)),
    "dry_multiplier": ("see repetition_penalty", (0,)),
    "xtc_probability": ("see min_p and typical_p", (0,)),
    "dynatemp_range": ("temperature is one number", (0,)),
    "top_n_sigma": ("see min_p", (-1, 0)),
    "top_a": ("see min_p", (0,)),
    "tfs": ("see typical_p", (1,)),
    "kv_transfer_params": ("the cache is this server's own", ()),
    "grammar": ("give structured_outputs with grammar, in Lark", ("",)),
    "ebnf": ("give structured_outputs with grammar, in Lark", ("",)),
    "json_schema": ("give response_format or structured_outputs", ()),
    "regex": ("give structured_outputs with regex", ("",)),
    "json": ("give response_format or structured_outputs", ()),
}

CHAT_UNMET: Unmet = {
    **_ANYWHERE,
    "audio": ("answers are text", ()),
    "modalities": ("answers are text", (["text"],)),
    "functions": ("give tools", ([],)),
    "function_call": ("give tool_choice", ("none",)),
    "web_search_options": ("nothing is searched", ()),
    "reasoning_effort": ("the model does not reason by itself", ("none",)),
    "verbosity": ("ask for it in a message", ("medium",)),
    "metadata": ("answers are not stored", ({},)),
    "chat_template": ("no template is taken from requests; the model's own is used", ()),
    "documents": ("put them in a message", ([],)),
    "mm_processor_kwargs": ("messages are text", ({},)),
    "echo": ("it belongs to completions", (False,)),
    "add_special_tokens": ("the template writes them", (False,)),
    "best_of": ("answers are not compared; ask for n", (1,)),
    "suffix": ("the model writes at the end only", ("",)),
    "max_output_tokens": ("give max_completion_tokens", ()),
}

COMPLETIONS_UNMET: Unmet = {
    **_ANYWHERE,
    "max_completion_tokens": ("give max_tokens", ()),
    "max_output_tokens": ("give max_tokens", ()),
    "suffix": ("the model writes at the end only", ("",)),
    "best_of": ("answers are not compared; ask for n", (1,)),
}

RESPONSES_UNMET: Unmet = {
    **_ANYWHERE,
    "max_tokens": ("give max_output_tokens", ()),
    "max_completion_tokens": ("give max_output_tokens", ()),
    "background": ("answers are not stored", (False,)),
    "background_options": ("answers are not stored", ({},)),
    "previous_response_id": ("answers are not stored; send the conversation as input", ()),
    "conversation": ("conversations are not stored; send it as input", ()),
    "context_management": ("send what shall be read as input", ([],)),
    "include": ("there is nothing more to include", ([], ["reasoning.encrypted_content"])),
    "prompt": ("prompts are not stored; send it as input", ()),
    "reasoning": ("the model does not reason by itself", ({}, {"effort": "none"}, {"effort": None})),
    "truncation": ("an input that is too long is refused", ("disabled",)),
    "max_tool_calls": ("no tools are built in", ()),
    "access_programs": ("there are none", ({}, [])),
    "image": ("answers are text", ()),
    "top_logprobs": ("ask /v1/chat/completions for logprobs", (0,)),
    "n": ("one answer is given", (1,)),
}


def _listed(value: object) -> object:
    """One text stands for a list of one."""
    return [value] if isinstance(value, str) else value


def _every(value: object) -> object:
    """For all tokens vLLM writes -1."""
    return 0 if value == -1 and not isinstance(value, float) else value


def _few(value: object) -> object:
    """The library counts what is in a mapping when it has checked all of it."""
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise ValueError(f"it has {len(value)} entries, and may have at most {MAX_BIASES}")
    return value


def _switch(value: object, check: Callable[[object], object]) -> object:
    """The library names one of several types alone."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError('it must be true, false or "steps"') from None


Item = TypeVar("Item")

Many = Annotated[list[Item], Field(fail_fast=True)]
"""Checked up to the first error: to tell a million takes half a minute."""

Count = Annotated[int, Field(ge=1)]
Texts = Annotated[Many[str], BeforeValidator(_listed)]
Ids = Many[Annotated[int, Field(ge=0, le=MOST)]]
BadWords = Annotated[
    Many[Annotated[str, Field(max_length=LONGEST_BAD_WORD)]],
    Field(max_length=MAX_BAD_WORDS),
    BeforeValidator(_listed),
]


class Shape(BaseModel):
    """Of a body: exact types, as ``"5"`` is no number; what is unknown has no effect."""

    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)
    unmet: ClassVar[Unmet] = {}

    @classmethod
    def check_unmet(cls, value: Mapping[str, Any]) -> None:
        """Refuse what is known and not done.

        Raises:
            Fault: names the first such field.
        """
        refuse_unmet(value, cls.unmet)


def refuse_unmet(value: Mapping[str, Any], unmet: Unmet, where: str = "") -> None:
    """See ``Shape.check_unmet``; ``where`` the fields are, as in ``text.``."""
    for name, given in value.items():
        why, harmless = unmet.get(name, ("", (given,)))
        if given is not None and not any(_same(given, one) for one in harmless):
            raise unsupported(f"{where}{name}", why)


def _same(given: object, harmless: object) -> bool:
    """Whether JSON values are equal; true is not 1."""
    return given == harmless and isinstance(given, bool) == isinstance(harmless, bool)


class StreamOptions(Shape):
    """What a stream tells beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Prediction(Shape):
    """What the answer is expected to be."""

    type: Literal["content"]
    content: Any

    def text(self) -> str:
        """The expected text.

        Raises:
            Fault: the content is neither text nor a list of text parts.
        """
        if isinstance(self.content, str):
            return self.content
        if not isinstance(self.content, list):
            raise refused("prediction.content", "prediction.content must be a text, or a list of {type: text, text}")
        texts = []
        for index, part in enumerate(self.content):
            text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
            if not isinstance(text, str):
                where = f"prediction.content[{index}]"
                raise refused(where, f"{where} must be {{type: text, text}}")
            texts.append(text)
        return "".join(texts)


class Speculative(Shape):
    """How one request is drafted; nothing here changes the law of its answer."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool | None = None
    drafters: Many[str] | None = None
    draft_tokens: Annotated[int, Field(ge=0, le=MOST)] | None = None
    acceptance: Literal["coupled", "rejection", "block"] | None = None
    figures: bool | Literal["summary", "detailed"] | None = None
    trace: Annotated[bool | Literal["steps"] | None, WrapValidator(_switch)] = None


class Asking(Shape):
    """What chat, completions and responses have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, BeforeValidator(_every)] | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_BIASES), BeforeValidator(_few)] | None = None
    seed: int | None = None
    stop: Annotated[Texts, Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[Ids, Field(max_length=MAX_STOP_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    bad_words: BadWords | None = None
    ignore_eos: bool | None = None
    prediction: Prediction | None = None
    speculative: Speculative | None = None
    priority: Annotated[int, Field(ge=-MOST, le=MOST)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=LONGEST_SALT)] | None = None
    user: str | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: Many[str] | None = None
    guided_grammar: str | None = None
    return_token_ids: bool | None = None


Prompts = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                    "minItems": 1,
                },
            ]
        }
    ),
]
"""A text, token ids, or several of either. ``asking.prompts_of`` reads it."""

Items = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}),
]
"""A text, or a conversation. ``responses.py`` reads it."""


class Messages(Shape):
    """A conversation, and how it is written for the model."""

    messages: Annotated[Many[dict[str, Any]], Field(json_schema_extra={"minItems": 1})]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Many[dict[str, Any]] | None = None


class ChatBody(Messages, Asking):
    """``POST /v1/chat/completions``."""

    unmet = CHAT_UNMET

    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


class CompletionBody(Asking):
    """``POST /v1/completions``."""

    unmet = COMPLETIONS_UNMET

    prompt: Prompts
    max_tokens: Count | None = None
    n: Count | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None


class ResponseBody(Asking):
    """``POST /v1/responses``."""

    unmet = RESPONSES_UNMET

    input: Items
    instructions: str | None = None
    max_output_tokens: Count | None = None
    text: dict[str, Any] | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None

    @classmethod
    def check_unmet(cls, value: Mapping[str, Any]) -> None:
        """See ``Shape.check_unmet``."""
        super().check_unmet(value)
        if isinstance(text := value.get("text"), Mapping):
            refuse_unmet(text, {"verbosity": CHAT_UNMET["verbosity"]}, "text.")


class TokenizeBody(Shape):
    """``POST /tokenize``: a text as vLLM or as llama-server writes it, or a conversation."""

    unmet = {"chat_template": CHAT_UNMET["chat_template"]}

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Many[dict[str, Any]] | None = None
    tools: Many[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Shape):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: Ids


REQUESTS: tuple[type[Shape], ...] = (ChatBody, CompletionBody, ResponseBody, TokenizeBody, DetokenizeBody)
_PLACE = "#/components/schemas/{model}"


def described(shape: type[Shape]) -> dict[str, Any]:
    """What OpenAPI says of a route whose body is read by ``reading.py``."""
    schema = {"$ref": _PLACE.format(model=shape.__name__)}
    found: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    if issubclass(shape, Asking):
        found["responses"] = {"200": {"content": {"text/event-stream": {}}}}
    return found


def definitions() -> dict[str, Any]:
    """The schemas that ``described`` refers to."""
    _, made = models_json_schema([(shape, "validation") for shape in REQUESTS], ref_template=_PLACE)
    found: dict[str, Any] = made["$defs"]
    return found
