"""From the arguments of a user to an application of Ray Serve, with every mistake told before a process is started."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, get_args

from augury.drafters import check, split
from augury.drafters.drafter import Rule
from augury.engine.service import Room
from augury.errors import InputError, MissingPackage, UnknownName, shown
from augury.server.settings import LOOPBACK, Amount, Settings, StreamMode

if TYPE_CHECKING:
    from ray.serve import Application

KEYS = "AUGURY_API_KEY"
"""Variable of the environment that ``build`` takes API keys from, separated by spaces."""

_APART: Mapping[str, str] = {
    "page": "the page shows the steps of one engine; start augury serve for it",
    "trace_keys": "each engine knows its own steps alone, and none is shown; leave them out",
    "requests_at_once": "each engine would count for itself; limit keys in front of the application",
    "requests_per_minute": "each engine would count for itself; limit keys in front of the application",
}
"""What settings have and several engines cannot honour, and why."""

_INSTALL = "pip install 'augury[server]' 'ray[serve]>=2.60'"
_DOOR_SECONDS = 3600.0  # an old door stays for the streams of old replicas, and it is they who end those in time
_SURGE_PERCENT = 20  # rounded up to one where there are fewer than five
_SPARE = 32
"""Requests that a replica takes beside those of its queue: for lists of models, metrics, refusals."""


def application(
    model: str | os.PathLike[str] = "smollm2-135m",
    *,
    replicas: int = 2,
    threads: int = 1,
    gpus: float = 0.0,
    doors: int = 1,
    drain_seconds: float = 60.0,
    surge: bool = True,
    settings: Settings | None = None,
    room: Room | None = None,
    **load: Any,
) -> Application:
    """An application for ``serve.run``, or for a file that ``serve run`` reads.

    Args:
        model: an embedded name, or a path that every node has.
        replicas: engines.
        threads: of each engine; Ray reserves as many CPUs.
        gpus: that Ray reserves for each engine.
        doors: processes before them; one is enough until its core is busy.
        drain_seconds: that answers have to end where their replica is replaced or taken away.
        surge: whether a new replica starts before an old one ends, where the application is deployed again. It takes
            room for one more; without that room nothing is replaced, so say False there.
        settings: of the server. Where nothing is said it goes by the model's name and asks for no key. Without
            ``api_keys`` and ``hosts`` it answers requests to this machine's own names alone; ``("*",)`` is any.
        room: of each engine's queue.
        load: other arguments of ``augury.load``: ``drafters``, ``max_model_len``, ``max_num_seqs``, ...

    Raises:
        InputError: an argument cannot be honoured.
        ModelError: there is no such model; ``ray`` is not installed.
    """
    for name, value in (("replicas", replicas), ("threads", threads), ("doors", doors)):
        _check_whole(name, value)
    for name, number in (("gpus", gpus), ("drain_seconds", drain_seconds)):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < float("inf"):
            raise InputError(f"{name} is {shown(number)}; it must be a number, 0 or more")
    if not isinstance(model, (str, os.PathLike)):
        raise InputError(f"model is {shown(model)}; give an embedded name, or a path that every node has")
    model = os.fspath(model)
    for name, given, kind in (("settings", settings, Settings), ("room", room, Room)):
        if given is not None and not isinstance(given, kind):
            raise InputError(f"{name} is {shown(given)}; give a {kind.__name__}(...), or leave it out")
    load = _loading(load)
    settings = _guarded(settings or Settings(names=(), local=False, figures_on_request=False))
    _check(settings, load)
    if os.sep not in model:
        from augury.models.load import check_model

        check_model(model)

    for package in ("ray", "fastapi", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackage("augury.integrations.ray_serve", package, _INSTALL)

    from ray import serve
    from ray.serve.config import RequestRouterConfig

    if "max_surge_percent" not in inspect.signature(serve.deployment).parameters:
        raise MissingPackage("augury.integrations.ray_serve", "ray in version 2.60 or newer", _INSTALL)

    from augury.integrations.ray_serve.door import Door
    from augury.integrations.ray_serve.replica import Replica
    from augury.integrations.ray_serve.routing import ByConversation
    from augury.server.guard import digests
    from augury.server.running import MOST_REQUESTS

    room, slots = room or Room(), load["max_num_seqs"]
    engines = serve.deployment(
        Replica,
        name="replica",
        num_replicas=replicas,
        max_surge_percent=_SURGE_PERCENT if surge else 0,
        max_ongoing_requests=slots + room.requests + _SPARE,
        graceful_shutdown_timeout_s=drain_seconds,
        health_check_period_s=5.0,
        health_check_timeout_s=30.0,
        ray_actor_options={"num_cpus": threads, "num_gpus": gpus},
        request_router_config=RequestRouterConfig(
            request_router_class=ByConversation, request_router_kwargs={"slots": slots}
        ),
    )
    door = serve.deployment(
        Door,
        name="door",
        num_replicas=doors,
        max_surge_percent=_SURGE_PERCENT,
        max_ongoing_requests=MOST_REQUESTS + _SPARE,
        graceful_shutdown_timeout_s=_DOOR_SECONDS,
        ray_actor_options={"num_cpus": 0},  # it finds a place where replicas have all CPUs
    )
    keys, settings = digests(settings.api_keys), replace(settings, api_keys=())  # no key itself gets into Ray's store
    return door.bind(engines.bind(model, {**load, "threads": threads}, settings, keys, room), settings, keys)


def build(args: dict[str, str]) -> Application:
    """``application`` of words, as in ``serve run augury.integrations.ray_serve:build model=smollm2-135m replicas=2``.

    API keys come from the environment, ``AUGURY_API_KEY``: words of a command are seen by others. With keys every Host
    is answered unless ``hosts`` names some; without, this machine's own names, unless it does; ``hosts=*`` is any.

    Args:
        args: name and value; see ``ARGUMENTS``.

    Raises:
        InputError: an argument is none of these, or cannot be honoured.
    """
    if unknown := next((name for name in args if name not in ARGUMENTS), None):
        raise UnknownName("argument", unknown, ARGUMENTS)
    given = {name: _value(name, value) for name, value in args.items()}
    keys = tuple(os.environ.get(KEYS, "").split())
    said = {field.name: given.pop(field.name) for field in fields(Settings) if field.name in given}
    settings = Settings(
        **{"names": (), **said},
        api_keys=keys,
        local=False,
        figures_on_request=said.get("figures", "none") != "none",
    )
    return application(settings=settings, **given)


def _guarded(settings: Settings) -> Settings:
    """The same with ``hosts`` as the server takes them, where () is any.

    Where no key is asked for, the page of a stranger can have its own name lead here and ask as the user does. So any
    Host must be asked for.
    """
    if "*" in settings.hosts:
        return replace(settings, hosts=())
    return settings if settings.hosts or settings.api_keys else replace(settings, hosts=LOOPBACK)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _yes(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


ARGUMENTS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("model", "drafters", "acceptance", "dtype", "device", "runner", "stream_mode", "figures"), str),
    **dict.fromkeys(("replicas", "threads", "doors", "max_model_len", "max_num_seqs", "draft_tokens"), int),
    **dict.fromkeys(("max_body", "max_bodies", "default_max_tokens", "max_tokens_limit"), int),
    **dict.fromkeys(("gpus", "drain_seconds", "request_seconds", "keep_alive_seconds"), float),
    **dict.fromkeys(("names", "hosts"), _words),
    "surge": _yes,
}
"""Arguments of ``build``: those of ``application``, of ``augury.load`` and of ``Settings``, and how each is read."""


def _value(name: str, text: object) -> Any:
    """An argument as it is meant; in a config file of Ray's it may be a number, or a list, already."""
    if text is None:
        raise InputError(f"{name} has no value; give one, or leave it out")
    try:
        return ARGUMENTS[name](",".join(map(str, text)) if isinstance(text, list) else str(text))
    except KeyError:
        raise InputError(f"{name} is {text!r}; give true or false") from None
    except ValueError:
        kind = "a whole number" if ARGUMENTS[name] is int else "a number"
        raise InputError(f"{name} is {text!r}; give {kind}, as in {name}=2") from None


def _loading(load: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``augury.load``, known ones alone, with what the router must know."""
    from augury.api import load as loader
    from augury.engine.engine import deepest
    from augury.models.load import DTYPES, RUNNERS

    known = [name for name in inspect.signature(loader).parameters if name not in ("model", "threads", "progress")]
    if unknown := next((name for name in load if name not in known), None):
        raise UnknownName("argument", unknown, [*known, *inspect.signature(application).parameters])
    slots = load.get("max_num_seqs", 4)
    _check_whole("max_num_seqs", slots)
    if load.get("max_model_len") is not None:
        _check_whole("max_model_len", load["max_model_len"])
    deepest(load.get("draft_tokens"))
    for name, choices in (("acceptance", get_args(Rule)), ("dtype", DTYPES), ("runner", RUNNERS)):
        if (said := load.get(name)) is not None and said not in choices:
            raise UnknownName(name, str(said), choices)
    drafters = load.get("drafters", "auto")
    for name in split(drafters) if isinstance(drafters, str) else ():
        if name not in ("none", "auto"):
            check(name, "")
    return {**load, "max_num_seqs": slots}


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {shown(value)}; it must be a whole number, 1 or more")


def _check(settings: Settings, load: Mapping[str, Any]) -> None:
    """Refuse what has no meaning here, or contradicts itself."""
    for name, why in _APART.items():
        if getattr(settings, name):
            raise InputError(f"{name} is {getattr(settings, name)!r}, which replicas cannot honour: {why}")
    for name, choices in (("stream_mode", get_args(StreamMode)), ("figures", get_args(Amount))):
        if getattr(settings, name) not in choices:
            raise UnknownName(name, getattr(settings, name), choices)
    drafters = load.get("drafters", "")
    names = [name.split(":")[0] for name in split(drafters)] if isinstance(drafters, str) else []
    if settings.stream_mode == "private" and "memory" in names:
        raise InputError(
            "stream_mode private and the drafter memory exclude each other: it keeps what users were told; "
            "leave one of them out"
        )
