"""The page: a few static files, read once, with headers that let it load nothing from elsewhere and run nothing inline.

They hold no secrets and need no key; what they ask for does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from augury.picture.look import stylesheet
from augury.server.faults import Fault

FIRST = "index.html"

INK = "ink.css"
"""The part that all pictures take their colours from."""

PLACE = "/page/"
"""Before the names of its parts."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Of every answer with something that a browser shows."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
}
"""Of the files that are sent, by the ends of their names; others are not."""


@dataclass(frozen=True)
class Part:
    """One file; ``tag`` names what is in it."""

    body: bytes
    type: str
    tag: str


def parts() -> dict[str, Part]:
    """The page's files by their names below ``page``. What is not among them is not sent, however it is spelt."""
    found = dict(_parts(files("augury.server").joinpath("page"), ""))
    return {**found, INK: _part(stylesheet().encode(), INK)}


def _parts(place: Traversable, before: str) -> Iterator[tuple[str, Part]]:
    for one in place.iterdir() if place.is_dir() else ():
        name = f"{before}{one.name}"
        if one.is_dir():
            yield from _parts(one, f"{name}/")
        elif _end(name) in TYPES:
            yield name, _part(one.read_bytes(), name)


def _part(body: bytes, name: str) -> Part:
    return Part(body, TYPES[_end(name)], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _end(name: str) -> str:
    return f".{name.rpartition('.')[2]}"


def router() -> APIRouter:
    """The routes."""
    routes, found = APIRouter(include_in_schema=False), parts()

    def sent(request: Request, name: str) -> Response:
        part = found.get(name)
        if part is None:
            raise Fault(404, "the page has no such part", code="not_found")
        # It may be kept, and is asked for again: after an upgrade the parts must fit each other.
        headers = {**HEADERS, "ETag": part.tag, "Cache-Control": "no-cache"}
        if _known(request.headers.get("if-none-match", ""), part.tag):
            return Response(status_code=304, headers=headers)
        return Response(part.body, headers={**headers, "Content-Type": part.type})

    @routes.get("/")
    async def page(request: Request) -> Response:
        return sent(request, FIRST)

    @routes.get(PLACE + "{name:path}")
    async def part(request: Request, name: str) -> Response:
        return sent(request, name)

    return routes


def _known(field: str, tag: str) -> bool:
    """Whether an If-None-Match field names a tag, weakly or not (RFC 9110, 13.1.2)."""
    return field.strip() == "*" or tag in (one.strip().removeprefix("W/") for one in field.split(","))
