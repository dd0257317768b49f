"""What the operator of a server decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

StreamMode = Literal["fast", "smooth", "private"]
Amount = Literal["none", "summary", "detailed"]


LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of this machine that no other can take."""


@dataclass(frozen=True)
class Settings:
    """How a server behaves to those who ask it.

    Attributes:
        names: under which the model is served; the first is the one that answers show.
        api_keys: any of them opens every route but ``/health``; none asks for no key.
        hosts: that requests may name in their Host header, ``*.example.com`` for all below; () is any.
        max_body: bytes of a request's body.
        max_bodies: of the bodies of all requests that are open; at least ``max_body``.
        body_seconds: in which it must have come.
        request_seconds: after which an answer is given up, waiting or running.
        keep_alive_seconds: between two comments in a stream that brings nothing; 0 sends none.
        stream_mode: ``fast`` sends what a step brought when it brought it.
        stream_interval: tokens of a frame at least, but for the last one.
        figures: statistics of drafting that every answer carries.
        figures_on_request: whether a request may ask for them.
        force_usage: whether every stream ends with its usage.
        requests_at_once: answers of one key, or without keys of one address; 0 is any number.
        requests_per_minute: the same.
        allow_priority: whether a request may say how urgent it is, before or behind others.
        choices: answers of one request at most, over all its prompts.
        metrics_compat_vllm: whether /metrics shows vLLM's names too.
        default_max_tokens: of an answer whose request says nothing; None leaves it to the route.
        max_tokens_limit: that a request may ask for; None is the context.
        page: whether the page is served.
        trace_keys: any of them opens ``/trace``, which other keys then do not.
        local: whether only this machine reaches the server.
    """

    names: tuple[str, ...] = ("augury",)
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    hosts: tuple[str, ...] = ()
    max_body: int = 8 << 20
    max_bodies: int = 256 << 20
    body_seconds: float = 30.0
    request_seconds: float | None = 600.0
    keep_alive_seconds: float = 15.0
    stream_mode: StreamMode = "fast"
    stream_interval: int = 1
    figures: Amount = "none"
    figures_on_request: bool = True
    force_usage: bool = False
    requests_at_once: int = 0
    requests_per_minute: int = 0
    allow_priority: bool = False
    choices: int = 128
    metrics_compat_vllm: bool = True
    default_max_tokens: int | None = None
    max_tokens_limit: int | None = None
    page: bool = False
    trace_keys: tuple[str, ...] = field(default=(), repr=False)
    local: bool = True


def hides_traces(settings: Settings) -> str:
    """Why a server shows nobody what it traces; empty where it does."""
    if settings.stream_mode == "private":
        return "its streams are private"
    if settings.trace_keys:
        return ""
    if settings.api_keys:
        return "it asks for API keys, and its operator set no --trace-key"
    return "" if settings.local else "other machines reach it, and its operator set no --trace-key"
