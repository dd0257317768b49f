"""From what a body asks to requests of the engine: checked, rendered, tokenised, all of it in a worker's thread."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from augury.engine.engine import Engine, Options, Tokenizer
from augury.engine.request import Request
from augury.errors import ContextTooLong, InputError, UnknownName, shown
from augury.models.template import ROLES
from augury.sampling import Grammar, Sampling
from augury.server.faults import Fault, fault_of, refused, sanitised, unsupported
from augury.server.reading import DEEPEST, is_deep
from augury.server.schema import Asking, Messages
from augury.server.settings import Amount, Settings
from augury.tree import IntArray

SWITCHES = ("enable_thinking", "thinking")
"""Variables of a template that a request may set, to true or false."""

MOST_TOKENS = 1 << 17
"""Of all the texts of one request, or as many as the context holds: to cut so many takes a second."""

MOST_VALUES = 1 << 15
"""Of a conversation and its tools, or as many as the context holds tokens."""

MOST_BANNED = 4096
"""Token ids of all bad words together."""

_SEEDS = 1 << 64
_SHRINKS = 4
"""So many bytes of a text become one at most when it is written in normal form."""


@dataclass(frozen=True)
class Source:
    """A grammar as it was asked for.

    Attributes:
        kind: of ``Engine.grammar``.
        text: its source.
        param: the field of the request that holds it.
    """

    kind: str
    text: object
    param: str


@dataclass(frozen=True)
class Asked:
    """What one HTTP request wants of the engine.

    Attributes:
        requests: one for every choice, in the order of their indices.
        priority: lower ones run earlier.
        prediction: i32[m], what the answer was expected to be, or None.
        stops: token ids that end an answer because the request says so.
        figures: statistics of drafting that the answer carries.
        explicit: whether the request asked for them by itself.
        traced: whether the answer carries its steps.
    """

    requests: tuple[Request, ...]
    priority: int
    prediction: IntArray | None
    stops: frozenset[int]
    figures: Amount
    explicit: bool
    traced: bool = False


def check_model(name: str | None, settings: Settings) -> None:
    """Refuse a model that is not served. A request without a name means the one that is."""
    if name is not None and name not in settings.names:
        names = ", ".join(settings.names)
        raise Fault(
            404, f"there is no model {shown(name)}; this server has {names}", code="model_not_found", param="model"
        )


def may_trace(settings: Settings) -> bool:
    """Whether a request may ask for its steps: they tell more than figures do."""
    return settings.figures_on_request and settings.stream_mode != "private"


def check_count(settings: Settings, prompts: int, n: int) -> None:
    """Refuse more answers than one request is given, before anything is read for them."""
    if n * prompts > settings.choices:
        raise refused(
            "n", f"{prompts} prompts with n = {n} are {n * prompts} answers; at most {settings.choices} are given"
        )


def tenant(key: str, salt: str | None) -> str:
    """The ``cache_salt`` of the engine: two keys share nothing, whatever salt they give.

    Args:
        key: digest of the key that was shown, empty where none is asked for.
        salt: that the request gives.
    """
    if not key:
        return salt or ""
    return hashlib.sha256(f"{key} {salt or ''}".encode()).hexdigest()


def asked(
    engine: Engine,
    settings: Settings,
    body: Asking,
    prompts: Sequence[IntArray],
    *,
    key: str,
    n: int = 1,
    default_tokens: int | None = None,
    logprobs: int | None = None,
    grammar: Source | None = None,
) -> Asked:
    """Requests of the engine: ``n`` for every prompt. ``default_tokens``: where neither request nor operator says it.

    Raises:
        Fault: a value cannot be honoured; names it.
    """
    drafting = body.speculative
    wanted: Amount = settings.figures
    explicit = drafting is not None and drafting.figures not in (None, False)
    if explicit and not settings.figures_on_request:
        raise unsupported("speculative.figures", "the operator of this server has switched it off")
    traced = drafting is not None and drafting.trace not in (None, False)
    if traced and not may_trace(settings):
        private = settings.stream_mode == "private"
        why = "the streams of this server are private" if private else "the operator of this server has switched it off"
        raise unsupported("speculative.trace", why)
    if explicit and drafting is not None and wanted != "detailed":
        wanted = "detailed" if drafting.figures == "detailed" else "summary"
    expected = None if body.prediction is None else _expected(engine, body.prediction.text())
    options: Options = {
        "stop": body.stop or (),
        "include_stop": bool(body.include_stop_str_in_output),
        "ignore_eos": bool(body.ignore_eos),
        "prediction": expected,
        "logprobs": logprobs,
        # In private streams nothing that others asked, or he himself asked before, may show in an answer's time.
        "cache_salt": secrets.token_hex() if settings.stream_mode == "private" else tenant(key, body.cache_salt),
    }
    if drafting is not None:
        options["draft"] = drafting.enabled is not False
        options["drafters"] = drafting.drafters
        options["draft_tokens"] = drafting.draft_tokens
        options["acceptance"] = drafting.acceptance
        options["explain"] = drafting.trace is True
    most = _most(body, settings, default_tokens)
    fields = type(body).model_fields
    try:
        law = _law(engine, body, grammar)
        requests = []
        for prompt in prompts:
            room = max(engine.target.info.context - len(prompt), 1)
            options["max_tokens"] = room if most is None else min(most, room)
            for index in range(n):
                seed = None if law.seed is None else (law.seed + index) % _SEEDS
                one = law if seed is None or not index else replace(law, seed=seed)
                requests.append(engine.request(prompt, one, **options))
    except UnknownName as error:
        more = ". The server loads those of --drafters when it starts"
        raise refused("speculative.drafters", f"{error}{more}") from None
    except InputError as error:
        raise fault_of(error, fields) from None
    stops = frozenset(body.stop_token_ids or ())
    return Asked(tuple(requests), priority_of(body, settings), expected, stops, wanted, explicit, traced)


def _most(body: Asking, settings: Settings, default: int | None) -> int | None:
    """Tokens of an answer at most; None where the context is the only limit."""
    limit = settings.max_tokens_limit
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        given: int | None = getattr(body, name, None)
        if given is not None:
            if limit is not None and given > limit:
                raise refused(name, f"{name} is {given}; an answer of this server has at most {limit} tokens")
            return given
    said = [one for one in (settings.default_max_tokens or default, limit) if one is not None]
    return min(said, default=None)


def prepare(engine: Engine) -> None:
    """Make now what the first requests would wait for: twins of the tokenizer, and the length of its longest token."""
    if engine.tokenizer is None:
        return
    longest(engine)
    control = next(iter(engine.tokenizer.special.values()), "")
    engine.tokenizer.encode("a", special=False)
    if engine.template is not None:
        engine.template.encode(engine.tokenizer, [{"role": "user", "content": control}])


def priority_of(body: Asking, settings: Settings) -> int:
    """How urgent a request says that it is, where that is its to say."""
    if body.priority and not settings.allow_priority:
        raise unsupported("priority", "the operator of this server has not allowed it with --allow-priority")
    return body.priority or 0


def _law(engine: Engine, body: Asking, grammar: Source | None) -> Sampling:
    """How tokens are drawn; OpenAI's default is the model's own law, temperature 1."""
    given: dict[str, Any] = {"temperature": 1.0}
    for name in (
        "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "min_tokens", "stop_token_ids", "seed",
    ):  # fmt: skip
        if (value := getattr(body, name)) is not None:
            given[name] = value
    if body.logit_bias:
        given["logit_bias"] = {_id(token): bias for token, bias in body.logit_bias.items()}
    if body.bad_words:
        given["bad_words"] = _banned(engine, body.bad_words)
    if source := grammar or constraint(body):
        given["grammar"] = _compiled(engine, source)
    return Sampling(**given)


def _id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 11 and str(int(text)) == text):
        raise refused(
            "logit_bias", f"logit_bias has the key {shown(text)}; keys are token ids, written without zeros before"
        )
    return int(text)


def _banned(engine: Engine, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Ids of the sequences that spell any of the words."""
    found: list[tuple[int, ...]] = []
    count = 0
    for word in words:
        found += (new := _spelt(engine, word))
        count += sum(map(len, new))
        if count > MOST_BANNED:
            raise refused(
                "bad_words",
                f"bad_words are more than {MOST_BANNED} token ids, which is the limit; give fewer or shorter ones",
            )
    return tuple(found)


def _spelt(engine: Engine, word: str) -> list[tuple[int, ...]]:
    """Ids of a word at the beginning of a text and behind a space."""
    if not word.strip():
        raise refused("bad_words", "bad_words has an empty text; give each at least one character")
    tokenizer = tokenizer_of(engine)
    return list({tuple(tokenizer.encode(form, special=False).tolist()) for form in (word, f" {word.lstrip()}")})


# ---- grammars ----------------------------------------------------------------------------------------------

_GUIDED = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "lark", "json_object": "json_object"}
"""vLLM's names -> the engine's."""


def constraint(body: Asking) -> Source | None:
    """The one grammar that a body asks for, if any.

    Raises:
        Fault: there are two, or one of no known kind.
    """
    found: dict[str, Source] = {}
    if body.response_format is not None and (source := response_format(body.response_format, "response_format")):
        found["response_format"] = source
    for name in ("json", "regex", "choice", "grammar"):
        if (value := getattr(body, f"guided_{name}")) is not None:
            found[f"guided_{name}"] = Source(_GUIDED[name], value, f"guided_{name}")
    for name, value in (body.structured_outputs or {}).items():
        if value is None or (name == "json_object" and value is False):
            continue
        if name not in _GUIDED:
            valid = ", ".join(_GUIDED)
            raise unsupported(f"structured_outputs.{name[:60]}", f"it may have one of {valid}")
        text = None if name == "json_object" and value is True else value
        found[f"structured_outputs.{name}"] = Source(_GUIDED[name], text, f"structured_outputs.{name}")
    if len(found) > 1:
        names = " and ".join(found)
        raise refused([*found][-1], f"{names} each give a grammar; an answer follows one")
    return next(iter(found.values()), None)


def response_format(wanted: Mapping[str, Any], where: str) -> Source | None:
    """The grammar of a ``response_format``, or of the ``text.format`` of a response, which is flat."""
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Source("json_object", None, where)
    if kind != "json_schema":
        raise refused(f"{where}.type", f"{where}.type is {shown(kind)}; it may be text, json_object, json_schema")
    inner = wanted.get("json_schema", wanted if where != "response_format" else None)
    if not isinstance(inner, Mapping):
        raise refused(f"{where}.json_schema", f"{where}.json_schema is {shown(inner)}; give {{name, schema}}")
    name = inner.get("name")
    if not is_name(name):
        raise refused(
            f"{where}.json_schema.name", f"the schema's name is {shown(name)}; it may have 1 to 64 of A-Z a-z 0-9 _ -"
        )
    schema = inner.get("schema")
    if not isinstance(schema, Mapping):
        raise refused(f"{where}.json_schema.schema", f"the schema is {shown(schema)}; give an object")
    return Source("json_schema", schema, where)


def is_name(value: object) -> bool:
    """Whether something may name a schema or a function."""
    return (
        isinstance(value, str)
        and 1 <= len(value) <= 64
        and all(c.isascii() and (c.isalnum() or c in "_-") for c in value)
    )


def _compiled(engine: Engine, source: Source) -> Grammar:
    try:
        return engine.grammar(source.kind, source.text)
    except InputError as error:
        code = "invalid_json_schema" if source.kind == "json_schema" else "invalid_value"
        raise refused(source.param, sanitised(str(error)), code) from None


# ---- text to ids -------------------------------------------------------------------------------------------


def tokenizer_of(engine: Engine) -> Tokenizer:
    """The tokenizer that a server cannot do without."""
    if engine.tokenizer is None:
        raise refused(None, "this model has no tokenizer, so the server knows token ids only")
    return engine.tokenizer


def conversation(
    engine: Engine, body: Messages, tools: Sequence[Mapping[str, Any]] | None, what: str = "messages"
) -> IntArray:
    """Ids of a conversation as the model reads it; ``what`` field of the request it is in.

    Raises:
        Fault: a message is of no known shape, there is far too much, or the template refuses it.
    """
    if engine.template is None:
        raise refused("messages", "this model has no chat template; ask /v1/completions with a prompt")
    if not body.messages:
        raise refused("messages", "messages is empty; give at least one {role, content}")
    messages = [message_of(i, m) for i, m in enumerate(body.messages)]
    _check_values(engine, what, [messages, [*(tools or ())]])
    continues = bool(body.continue_final_message)
    opens = body.add_generation_prompt if body.add_generation_prompt is not None else not continues
    if continues and opens:
        raise refused(
            "continue_final_message", "continue_final_message and add_generation_prompt contradict each other"
        )
    if continues and messages[-1]["role"] != "assistant":
        role = messages[-1]["role"]
        raise refused("continue_final_message", f"the last message is of the {role}; only the assistant's is continued")
    if tools and not engine.template.reads("tools"):
        raise unsupported("tools", "the chat template of this model does not know them")
    calling = next((i for i, m in enumerate(messages) if m.get("tool_calls")), None)
    if calling is not None and not engine.template.reads("tool_calls"):
        where = f"messages[{calling}].tool_calls" if what == "messages" else what
        raise unsupported(where, "the chat template of this model leaves out what an assistant called")
    switches = _switches(engine, body.chat_template_kwargs or {})
    try:
        return engine.template.encode(
            tokenizer_of(engine), messages, opens, tools=tools, switches=switches, continues=continues,
            limit=engine.target.info.context,
        )  # fmt: skip
    except ContextTooLong as error:
        raise fault_of(error, (what,)) from None
    except InputError as error:
        raise refused("messages", sanitised(str(error))) from None


def _check_values(engine: Engine, what: str, level: list[Any]) -> None:
    """Refuse more than can fit the context: templates, and who looks for control tokens, take a while for each."""
    most, count, characters = max(MOST_VALUES, engine.target.info.context), 0, 0
    while level:
        inside: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inside += [*one, *one.values()]
            elif isinstance(one, list):
                inside += one
            elif isinstance(one, str):
                characters += len(one)
        level = inside
        count += len(level)
        if count > most:
            raise refused(what, f"{what} and tools hold more than {most} names and values, which is the limit")
    check_size(engine, what, characters)


def _switches(engine: Engine, given: Mapping[str, object]) -> dict[str, bool]:
    switches: dict[str, bool] = {}
    for name, value in given.items():
        where = f"chat_template_kwargs.{name[:60]}"
        known = [s for s in SWITCHES if engine.template is not None and engine.template.reads(s)]
        if name not in known:
            valid = ", ".join(known) or "none with this model's template"
            raise refused(where, f"chat_template_kwargs has {shown(name)}; a request may set {valid}")
        if not isinstance(value, bool):
            raise refused(where, f"{where} is {shown(value)}; it may be true or false")
        switches[name] = value
    return switches


def message_of(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its content in one piece and the arguments of its calls as objects, as templates read them."""
    where = f"messages[{index}]"
    role = message.get("role")
    if role not in ROLES:
        said = "is missing" if role is None else f"is {shown(role)}"
        raise refused(f"{where}.role", f"{where}.role {said}; valid roles: {', '.join(ROLES)}")
    made = {**message, "content": _content(where, message)}
    if (calls := message.get("tool_calls")) is not None:
        if not isinstance(calls, list):
            raise refused(f"{where}.tool_calls", f"{where}.tool_calls is {shown(calls)}; give a list")
        made["tool_calls"] = [_call(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(calls)]
    return {name: value for name, value in made.items() if value is not None}


def _content(where: str, message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message["role"] == "assistant" and message.get("tool_calls"):
        return ""
    if not isinstance(content, list):
        said = "is missing" if content is None else f"is {shown(content)}"
        raise refused(f"{where}.content", f"{where}.content {said}; give text, or a list of {{type: text, text}}")
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            at = f"{where}.content[{i}]"
            raise refused(at, f"{at} is of type {shown(kind)}; only {{type: text, text}} is understood")
    return "".join(part["text"] for part in content)


def _call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refused(where, f"{where} must be {{id, type: function, function: {{name, arguments}}}}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise refused(where, f"{where}.function.arguments is text that is not JSON") from None
        if is_deep(arguments):
            raise refused(
                where, f"{where}.function.arguments holds more than {DEEPEST} lists and objects in each other"
            )
    return {**call, "function": {**function, "arguments": arguments}}


def prompts_of(engine: Engine, settings: Settings, prompt: object, n: int, special: bool) -> list[IntArray]:
    """Ids of the prompts of a completion: a text, token ids, or a list of either; ``n`` answers are wanted of each."""
    many: list[Any] = prompt if isinstance(prompt, list) else [prompt]
    if many and _is_id(many[0]):
        many = [many]
    check_count(settings, len(many), n)
    if many and all(isinstance(one, str) for one in many):
        return _encoded(engine, many, special)
    if many and all(isinstance(one, list) and one for one in many):
        return [_ids(engine, one) for one in many]
    raise _no_prompt(prompt)


def _no_prompt(prompt: object) -> Fault:
    return refused("prompt", f"prompt is {shown(prompt)}; give a text, token ids, or a list of either")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(engine: Engine, ids: Sequence[int]) -> IntArray:
    context, vocab = engine.target.info.context, engine.target.info.vocab_size
    if len(ids) > context:
        raise fault_of(ContextTooLong(len(ids), context))
    for id in ids:
        if not _is_id(id):
            raise _no_prompt(ids)
        if not 0 <= id < vocab:
            raise refused("prompt", f"the prompt has token id {shown(id)}; valid ids are 0..{vocab - 1}")
    return np.asarray(ids, np.int32)


def _encoded(engine: Engine, texts: Sequence[str], special: bool) -> list[IntArray]:
    most = most_tokens(engine)
    check_size(engine, "prompt", sum(map(len, texts)), most)
    found: list[IntArray] = []
    for text in texts:
        found.append(ids_of(engine, "prompt", text, start=special))
        if sum(map(len, found)) > most:
            message = f"the prompts have more than {most} tokens together, which is the limit; send fewer at a time"
            raise Fault(400, message, code="context_length_exceeded", param="prompt")
    return found


def _expected(engine: Engine, text: str) -> IntArray:
    """Ids of a prediction; control tokens in it are cut into ordinary ones."""
    if not text:
        raise refused("prediction", "the prediction is empty; leave it out")
    return ids_of(engine, "prediction", text, special=False)


def most_tokens(engine: Engine) -> int:
    """That the texts of one request may have together."""
    return max(MOST_TOKENS, engine.target.info.context)


def ids_of(
    engine: Engine, what: str, text: str, *, special: bool = True, start: bool = False, limit: int | None = None
) -> IntArray:
    """Ids of a text, of which there may be few more than the limit.

    Args:
        engine: whose tokens.
        what: the field of the request that holds the text.
        text: any.
        special: see ``Tokenizer.encode``.
        start: the same.
        limit: tokens that there is room for; the context where nothing is said.

    Raises:
        Fault: there are far more, and it was not read to its end.
    """
    limit = engine.target.info.context if limit is None else limit
    check_size(engine, what, len(text), limit)
    try:
        return tokenizer_of(engine).encode(text, special=special, start=start, limit=limit)
    except ContextTooLong as error:
        message = f"the {what} has at least {error.prompt} tokens, and there is room for {limit}; shorten it"
        raise Fault(400, message, code="context_length_exceeded", param=what) from None


def check_size(engine: Engine, what: str, characters: int, tokens: int | None = None) -> None:
    """Refuse a text that is more than so many tokens (the context) however it is cut, before it is cut."""
    tokens = engine.target.info.context if tokens is None else tokens
    if characters > _SHRINKS * longest(engine) * tokens:
        message = f"{what} has {characters} characters; there is room for {tokens} tokens, which hold far fewer"
        raise Fault(400, message, code="context_length_exceeded", param=what)


_LONGEST: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()


def longest(engine: Engine) -> int:
    """Bytes of the longest token."""
    if engine not in _LONGEST:
        tokenizer = tokenizer_of(engine)
        _LONGEST[engine] = max(len(tokenizer.token_bytes(id)) for id in range(engine.target.info.vocab_size))
    return _LONGEST[engine]
