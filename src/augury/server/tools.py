"""Functions that a model may call: how they are shown to it, and how its calls are found in what it writes.

Calls are found in the text as Hermes and Qwen were taught to write them, ``<tool_call>{"name", "arguments"}
</tool_call>``, and as bare JSON that is the whole answer. Where a call is required the answer follows a grammar of such
JSON, with which it cannot be anything else.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from augury.errors import UnknownName, shown
from augury.server.asking import Source, is_name
from augury.server.faults import refused

MAX_TOOLS = 128
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Tools:
    """What a request may call.

    Attributes:
        listed: what the template shows the model; None shows nothing.
        names: of the functions.
        grammar: of an answer that must call, or whose calls must keep to their schemas; else None.
        several: whether an answer may hold more than one call.
        bare: whether JSON without tags is a call.
    """

    listed: tuple[Mapping[str, Any], ...] | None = None
    names: frozenset[str] = frozenset()
    grammar: Source | None = None
    several: bool = True
    bare: bool = True

    @property
    def offered(self) -> bool:
        """Whether calls are looked for in an answer."""
        return bool(self.names)


def tools_of(given: Sequence[Mapping[str, Any]] | None, choice: object, parallel: bool | None) -> Tools:
    """What a body says about tools.

    Raises:
        Fault: a tool or the choice is of no known shape.
    """
    given = given or ()
    if len(given) > MAX_TOOLS:
        raise refused("tools", f"{len(given)} tools were given; at most {MAX_TOOLS} are allowed")
    functions = [_function(index, tool) for index, tool in enumerate(given)]
    names = [function["name"] for function in functions]
    if len(set(names)) < len(names):
        raise refused("tools", "two tools have one name")
    mode, named = _choice(choice, names)
    if mode == "none" or not functions:
        return Tools()
    several = parallel is not False and named is None
    forced = [f for f in functions if named in (None, f["name"])] if mode == "required" else []
    grammar = None
    if forced:
        grammar = Source("json_schema", _schema(forced, several), "tools")
    elif any(f.get("strict") for f in functions):
        grammar = Source("lark", _lark(functions, several), "tools")
    return Tools(
        tuple({"type": "function", "function": f} for f in functions),
        frozenset(f["name"] for f in forced or functions),
        grammar,
        several,
        bare=bool(forced) or grammar is None,
    )


def _function(index: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    where = f"tools[{index}]"
    if tool.get("type") != "function":
        raise refused(f"{where}.type", f"{where}.type is {shown(tool.get('type'))}; only function is understood")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise refused(f"{where}.function", f"{where}.function is {shown(function)}; give {{name, parameters}}")
    if not is_name(function.get("name")):
        name = shown(function.get("name"))
        raise refused(
            f"{where}.function.name", f"{where}.function.name is {name}; it may have 1 to 64 of A-Z a-z 0-9 _ -"
        )
    if not isinstance(function.get("parameters") or {}, dict):
        raise refused(f"{where}.function.parameters", f"{where}.function.parameters must be a JSON schema")
    return function


def _choice(choice: object, names: Sequence[str]) -> tuple[str, str | None]:
    """(auto, none or required; the function that must be called)."""
    if choice is None:
        return "auto", None
    if choice in ("none", "auto", "required"):
        if choice == "required" and not names:
            raise refused("tool_choice", "tool_choice is required, and there are no tools")
        return str(choice), None
    inner = choice.get("function", choice) if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        message = (
            f"tool_choice is {shown(choice)}; it may be none, auto, required, or {{type: function, function: {{name}}}}"
        )
        raise refused("tool_choice", message)
    if name not in names:
        raise refused("tool_choice", str(UnknownName("tool", name[:64], names)))
    return "required", name


def _lark(functions: Sequence[Mapping[str, Any]], several: bool) -> str:
    """Of any text, and calls in it that keep to their schemas."""
    return f"""
start: call{"*" if several else "?"} TEXT
call: lead "\\n" json "\\n{_CLOSE}"
lead[lazy]: /(?s:.*){_OPEN}/
json: %json {json.dumps(_schema(functions, several=False))}
TEXT: /(?s:.*)/ & ~/(?s:.*){_OPEN}(?s:.*)/
"""


def _schema(functions: Sequence[Mapping[str, Any]], several: bool) -> dict[str, Any]:
    """Of one call, or of a list of calls; references inside the functions' schemas go on pointing into them."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": f["name"]}, "arguments": {"$ref": f"#/$defs/{f['name']}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for f in functions
    ]
    one = calls[0] if len(calls) == 1 else {"anyOf": calls}
    defs = {f["name"]: _moved(f.get("parameters") or {"type": "object"}, f"#/$defs/{f['name']}") for f in functions}
    return {**({"type": "array", "items": one, "minItems": 1} if several else one), "$defs": defs}


def _moved(schema: Any, place: str) -> Any:
    """A schema whose root is now at a place of another."""
    if isinstance(schema, dict):
        return {
            key: place + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, place)
            for key, value in schema.items()
        }
    return [_moved(inner, place) for inner in schema] if isinstance(schema, list) else schema


# ---- what the model wrote ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call of a function; its arguments are JSON text."""

    id: str
    name: str
    arguments: str

    def json(self) -> dict[str, Any]:
        """As a message of the assistant holds it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


Found = str | Call


class Reader:
    """Tells text from calls in one answer, as it comes. Text that may be the beginning of a call is held back."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._held = ""
        self._began = self._bare = False
        self.calls: list[Call] = []

    def push(self, text: str) -> list[Found]:
        """What is certain now."""
        if not self._tools.offered:
            return [text] if text else []
        self._held += text
        if not self._began:
            start = self._held.lstrip()
            if not start:
                return []
            self._began, self._bare = True, self._tools.bare and start[0] in "{["
        return [] if self._bare else self._tagged()

    def end(self) -> list[Found]:
        """The rest of it."""
        rest, self._held = self._held, ""
        if self._bare and (calls := self._parsed(rest)):
            return self._kept(calls)
        if not self._bare and rest.startswith(_OPEN) and (calls := self._parsed(rest.removeprefix(_OPEN))):
            return self._kept(calls)  # the closing tag was an end token, or cut off by one
        return self._text(rest)

    def _tagged(self) -> list[Found]:
        found: list[Found] = []
        while True:
            before, tag, behind = self._held.partition(_OPEN)
            if not tag:
                keep = next(
                    (n for n in range(min(len(_OPEN) - 1, len(before)), 0, -1) if _OPEN.startswith(before[-n:])), 0
                )
                self._held = before[len(before) - keep :]
                return [*found, *self._text(before[: len(before) - keep])]
            found += self._text(before)
            inner, tag, after = behind.partition(_CLOSE)
            if not tag:
                self._held = _OPEN + behind
                return found
            calls = self._parsed(inner)
            found += self._kept(calls) if calls else self._text(f"{_OPEN}{inner}{_CLOSE}")
            self._held = after

    def _text(self, text: str) -> list[Found]:
        """Text between calls, where it is more than their spacing."""
        return [text] if text.strip() or (text and not self.calls) else []

    def _kept(self, calls: Sequence[Call]) -> list[Found]:
        room = len(calls) if self._tools.several else max(1 - len(self.calls), 0)
        self.calls += calls[:room]
        return [*calls[:room]]

    def _parsed(self, text: str) -> list[Call]:
        """Calls that a text consists of; none where something else is in it."""
        values: list[Any] = []
        decoder = json.JSONDecoder()
        text = text.strip()
        try:
            while text:
                value, end = decoder.raw_decode(text)
                values += value if isinstance(value, list) else [value]
                text = text[end:].lstrip(" \t\r\n,;")
            calls = [self._call(value) for value in values]
        except (ValueError, RecursionError):
            return []
        return [call for call in calls if call is not None] if None not in calls else []

    def _call(self, value: object) -> Call | None:
        if not isinstance(value, dict) or value.get("name") not in self._tools.names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if not isinstance(arguments, dict):
            return None
        return Call(f"call_{uuid.uuid4().hex[:24]}", value["name"], json.dumps(arguments, ensure_ascii=False))


def read(tools: Tools, text: str) -> tuple[str, list[Call]]:
    """The text and the calls of a whole answer."""
    reader = Reader(tools)
    found = [*reader.push(text), *reader.end()]
    return "".join(one for one in found if isinstance(one, str)), reader.calls
