"""A request's body: strict JSON, then the shape that a route wants. Both in a worker's thread, never in the loop's.

Python's own reader takes NaN, infinite numbers and keys that occur twice; who sends those meant something else than
what would be read, so they are refused, with the place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import anyio.to_thread
from pydantic import ValidationError
from starlette.requests import Request

from augury.errors import shown
from augury.server.faults import LONGEST_PARAM, Fault, refused
from augury.server.schema import Shape

Made = TypeVar("Made")
Wanted = TypeVar("Wanted", bound=Shape)

THREADS = 4
"""That read, check and tokenise at a time: the engine needs the cores too."""

DEEPEST = 64
"""Lists and objects in each other; schemas of functions take some ten."""

MOST_BRACKETS = 1 << 18
"""Of lists, objects and what texts hold: while lists are read no other thread runs, a second for a million."""

_SOUGHT = 1 << 18
"""Characters in which the place of an oddity is looked for."""

_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]|NaN|-?Infinity|-?\d++(?:\.\d++)?(?:[eE][-+]?\d++)?')
"""What a string begins belongs to it even where its end is missing: no character is looked at twice."""

_HOLDERS = (dict, list)
_COLON = re.compile(r"[ \t\r\n]*+:")
_UNFIT = re.compile("[\x00\ud800-\udfff]")


class _Odd(ValueError):
    """What Python's reader would take; the message says what it is."""


async def aside(work: Callable[[], Made]) -> Made:
    """Do what takes its time in a worker's thread."""
    limiter = anyio.to_thread.current_default_thread_limiter()  # of this loop
    limiter.total_tokens = THREADS
    return await anyio.to_thread.run_sync(work, limiter=limiter)


async def read(request: Request, shape: type[Wanted]) -> Wanted:
    """The body as the route wants it.

    Raises:
        Fault: it is of another content type, no JSON, or of another shape.
    """
    _check_type(request)
    raw = await request.body()
    return await aside(lambda: shaped(parsed(raw), shape))


def _check_type(request: Request) -> None:
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    charset = rest.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise Fault(415, "the body must be application/json in UTF-8", code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Fault(415, "the body must not be compressed", code="unsupported_media_type")


def parsed(raw: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        Fault: it is none; says where.
    """
    if raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise _bad("begins with a byte order mark, at byte 0; leave it out")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _bad(f"is not UTF-8 at byte {error.start}") from None
    brackets = raw.count(b"[") + raw.count(b"{")
    if brackets > MOST_BRACKETS:
        raise _bad(f"holds more than {MOST_BRACKETS} opening brackets, which is the limit")
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_odd, parse_float=_float, parse_int=_int)
    except json.JSONDecodeError as error:
        raise _bad(f"is not JSON: {error.msg.lower()}, at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None
    except _Odd as odd:
        raise _bad(f"{odd}{_place(text[:_SOUGHT], str(odd))}") from None
    if not isinstance(value, dict):
        raise _bad("must be a JSON object")
    if brackets > DEEPEST and is_deep(value):
        raise _too_deep()
    if "\\u" in text:
        _check_text(value, ())
    return value


def is_deep(value: object) -> bool:
    """Whether JSON has more than ``DEEPEST`` lists and objects in each other: who walks it calls itself so often."""
    level = [value]
    for _ in range(DEEPEST):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, _HOLDERS))
        level = [inner for values in inside for inner in values if isinstance(inner, _HOLDERS)]
        if not level:
            return False
    return True


def _too_deep() -> Fault:
    return _bad(f"holds more than {DEEPEST} lists and objects in each other, which is too deep")


def _bad(message: str) -> Fault:
    return Fault(400, f"the body {message}", code="invalid_json")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        known: set[str] = set()
        twice = next(key for key, _ in pairs if key in known or known.add(key))  # type: ignore[func-returns-value]
        raise _Odd(_twice(shown(twice)))
    return made


def _odd(text: str) -> NoReturn:
    raise _Odd(_no_json(text))


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _Odd(_TOO_LARGE)
    return number


def _int(text: str) -> int:
    if len(text) > 40:
        raise _Odd(_TOO_LARGE)
    return int(text)


_TOO_LARGE = "holds a number that is too large"


def _twice(key: str) -> str:
    return f"has the key {key} twice in one object"


def _no_json(token: str) -> str:
    return f"holds {token}, which is not JSON"


def _place(text: str, oddity: str) -> str:
    """Where the reader met an oddity, if it is seen in so much of the text."""
    keys: list[set[str] | None] = []
    for found in _TOKEN.finditer(text):
        token, said = found[0], ""
        if token in "{[":
            keys.append(set() if token == "{" else None)
        elif token in "}]":
            keys and keys.pop()
        elif token[0] == '"':
            inner = keys[-1] if keys else None
            if inner is not None and _COLON.match(text, found.end()):
                said = _twice(shown(token[1:-1])) if token in inner else ""
                inner.add(token)
        elif token[0] in "NI-" and not token[-1].isdigit():
            said = _no_json(token)
        elif len(token) > 40 or float(token) in (float("inf"), float("-inf")):
            said = _TOO_LARGE
        if said == oddity:
            line = text.count("\n", 0, found.start())
            return f", at line {line + 1} column {found.start() - text.rfind(chr(10), 0, found.start())}"
    return ""


def _check_text(value: Any, place: tuple[int | str, ...]) -> None:
    """Refuse text that no tokenizer reads: half characters, which broken UTF-16 leaves, and NUL."""
    if isinstance(value, str):
        if found := _UNFIT.search(value):
            what = "a NUL" if found[0] == "\x00" else f"half a character, U+{ord(found[0]):04X},"
            where = _name(place)
            raise refused(where, f"{where} holds {what} at {found.start()}; leave it out")
    elif isinstance(value, dict):
        for key, inner in value.items():
            if _UNFIT.search(key):
                where = _name(place)
                raise refused(where or None, f"a key of {where or 'the body'} holds NUL or half a character")
            _check_text(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_text(inner, (*place, index))


def shaped(value: dict[str, Any], shape: type[Wanted]) -> Wanted:
    """An object in the shape of a route.

    Raises:
        Fault: a field is wrong, or known and not done here; names it.
    """
    shape.check_unmet(value)
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        first = errors[0]
        name = _name(first["loc"])
        if first["type"] == "missing":
            message = f"{name} is missing"
        elif first["type"] == "extra_forbidden":
            message = f"there is no field {name}"
        elif first["type"] in ("dict_type", "model_type"):
            message = f"{name} is {shown(first['input'])}; it should be an object"
        else:
            said = first["msg"].removeprefix("Value error, ").replace("Input should", "it should", 1)
            message = f"{name} is {shown(first['input'])}; {said}"
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise refused(name, message + more) from None


def _name(place: Sequence[int | str]) -> str:
    """``messages[0].content`` of the parts that pydantic gives."""
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    return name if len(name) <= LONGEST_PARAM else f"{name[: LONGEST_PARAM - 3]}..."
