"""Chat templates: a conversation as the text the model was trained to read.

Templates come with models and are Jinja programs, so they run in minijinja: no access to Python, no other
files, a bounded amount of work, a bounded text. Strings are counted as work by their size, which bounds the memory
they take. Not bounded is a list that a template multiplies, ``[1] * 10**9``, and hands to ``tojson``,
``strftime_now`` or ``raise_exception``: minijinja makes it whole for Python and counts nothing. Messages are user
input and are checked first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import minijinja

from augury.errors import InputError, ModelError, first_line, shown
from augury.models.tokenizer import Tokenizer
from augury.tree import IntArray

FUEL = 2_000_000
"""Work of one rendering: an instruction is 1, and so are 32 to 64 bytes of a new string, which may therefore be
128 MB in all. A long conversation takes some ten thousand."""

MAX_TEXT = 16 << 20
"""Characters of one rendered conversation."""

MAX_SOURCE = 256 << 10
"""Characters of a template; long ones have 15,000."""

MAX_OPERATORS = 5_000
"""Operators and tags of a template, counted generously; long ones have 2,000. minijinja bounds how deep things lie in
each other, but not chains such as ``not not not x``, and its compiler calls itself once for each link: on a stack of
8 MB some 7,000 links of the dearest kind, ``elif``, end the process."""

_OPERATOR = re.compile(r"[-+*/~.|(\[]|%(?!\})|(?:not|or|and|if|elif|else|in|is)(?!\w)")
"""Also what only ends like a word: of ``0xaor 1`` the lexer makes a number and an ``or``."""

MAX_INDENT = 16
"""Spaces of one level of JSON; templates take 2 or 4."""

MAX_DEPTH = 64
"""Lists and mappings inside each other in a message; the arguments of a tool call take a few."""

ROLES = ("system", "developer", "user", "assistant", "tool")

Message = Mapping[str, object]


class ChatTemplate:
    """One chat template.

    Args:
        source: Jinja text.
        name: of the model, for messages.
        variables: texts of special tokens (``bos_token``, ``eos_token``, ...) that templates refer to.

    Raises:
        ModelError: the template does not parse, or is larger than any that is honest.
    """

    def __init__(self, source: str, name: str, variables: Mapping[str, str] | None = None) -> None:
        _check_size(source, name)
        self.source = source
        self.name = name
        self._variables = dict(variables or {})
        self._environment = minijinja.Environment(
            trim_blocks=True, lstrip_blocks=True, pycompat=True, fuel=FUEL, auto_escape_callback=lambda _: False
        )
        self._environment.add_filter("tojson", _to_json)
        self._environment.add_global("raise_exception", _raise)
        self._environment.add_global("strftime_now", lambda form: datetime.now().strftime(form))
        # transformers marks the parts to train on; marks print nothing
        body = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", _unmarked, source)
        try:
            self._environment.add_template("chat", body)
        except minijinja.TemplateError as error:
            raise ModelError(f"the chat template of {name} does not parse: {first_line(error)}") from None

    def reads(self, name: str) -> bool:
        """Whether the template looks at a variable of that name, as far as its text tells."""
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        switches: Mapping[str, bool] | None = None,
        continues: bool = False,
        limit: int | None = None,
    ) -> IntArray:
        """Ids of a conversation, i32[m]: control tokens are those the template wrote, never a user's text.

        Args:
            tokenizer: of the model.
            messages: each a ``role`` and a ``content`` (text, or a list of text parts), and what else the
                template knows, such as ``tool_calls``.
            add_generation_prompt: end with the opening of the assistant's answer.
            tools: that the model may call, as the template lists them.
            switches: further variables of the template.
            continues: end with the content of the last message, for the model to write on.
            limit: tokens that there is room for; see ``Tokenizer.encode``.

        Raises:
            InputError: messages of a wrong shape, or refused by the template itself; says why.
            ContextTooLong: there is not nearly enough room.
        """

        def render(guard: Callable[[str], str]) -> str:
            checked = [_checked(i, m) for i, m in enumerate(_listed(messages))]
            context = {
                **self._variables,
                **(switches or {}),
                "tools": None if tools is None else _guarded("tools", tools, guard),
                "messages": [_guarded(f"messages[{i}]", m, guard) for i, m in enumerate(checked)],
                "add_generation_prompt": add_generation_prompt,
            }
            text = self._render(context)
            return self._cut(text, guard, checked[-1]["content"]) if continues else text

        return tokenizer.encode_guarded(render, limit)

    def _cut(self, text: str, guard: Callable[[str], str], last: str) -> str:
        """The conversation up to the end of its last message's content, which templates may strip."""
        for content in (last, last.strip()):
            found = text.rfind(guard(content))
            if content and found >= 0:
                return text[: found + len(guard(content))]
        raise InputError(f"the chat template of {self.name} does not show the last message, which is to be continued")

    def _render(self, context: Mapping[str, object]) -> str:
        try:
            text = self._environment.render_template("chat", **context)
        except Exception as error:  # minijinja's own, or what a filter raised for a template's wrong use of it
            if "fuel" in str(error).lower():
                raise InputError(
                    f"the chat template of {self.name} needs more than {FUEL} units of work for these messages"
                ) from None
            raise InputError(f"the chat template of {self.name} refuses these messages: {first_line(error)}") from None
        if len(text) > MAX_TEXT:
            raise InputError(f"the rendered conversation has {len(text)} characters, at most {MAX_TEXT} are allowed")
        return text


def _check_size(source: str, name: str) -> None:
    """Refuse what could end the process while it is compiled."""
    if len(source) > MAX_SOURCE:
        raise ModelError(f"the chat template of {name} has {len(source)} characters, at most {MAX_SOURCE} are allowed")
    operators = len(_OPERATOR.findall(source))
    if operators > MAX_OPERATORS:
        raise ModelError(f"the chat template of {name} has {operators} operators, at most {MAX_OPERATORS} are allowed")


def _raise(message: object) -> None:
    """What templates call to refuse a conversation."""
    raise ValueError(str(message))


def _unmarked(found: re.Match[str]) -> str:
    """A comment with the same trimming of spaces on both sides."""
    return f"{{#{'-' if found[0].startswith('{%-') else ''} {'-' if found[0].endswith('-%}') else ''}#}}"


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As ``transformers`` writes it: minijinja's own would escape <, > and & for HTML."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= MAX_INDENT):
        raise ValueError(f"tojson is given the indent {shown(indent)}; it must lie in 0..{MAX_INDENT}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _listed(messages: Sequence[Message]) -> Sequence[Message]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InputError(f"messages must be a list of {{role, content}}, got {type(messages).__name__}")
    if not messages:
        raise InputError("messages is empty; give at least one {role, content}")
    return messages


def _checked(index: int, message: Message) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InputError(f"{where} must be a mapping with role and content, got {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        raise InputError(f"{where} has role {str(role)[:40]!r}; valid roles: {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        content = "".join(_part(where, part) for part in content)
    elif content is None and role == "assistant" and message.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise InputError(f"{where} has content of type {type(content).__name__}; give text")
    return {**message, "content": content}


def _part(where: str, part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise InputError(f"{where} has a content part of type {str(kind)[:40]!r}; only text is understood")


def _guarded(where: str, value: Any, guard: Callable[[str], str], depth: int = 0) -> Any:
    """The value with every string in it guarded. Only JSON's types pass: a template can call Python objects."""
    if depth > MAX_DEPTH:
        raise InputError(f"{where} holds lists and mappings more than {MAX_DEPTH} deep; give a flatter message")
    if isinstance(value, str):
        return guard(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {guard(str(k)): _guarded(where, v, guard, depth + 1) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_guarded(where, v, guard, depth + 1) for v in value]
    raise InputError(f"{where} holds a {type(value).__name__}; text, numbers, lists and mappings are understood")
