"""``augury serve``: the engine behind HTTP, as OpenAI's interface speaks."""

from __future__ import annotations

import importlib.util
import ipaddress
import logging
import os
import re
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, get_args

import typer
from typer import Argument, Option

import augury
from augury.api import AUTO
from augury.cli.configuration import configured
from augury.cli.flags import Guessing, Running
from augury.cli.terminal import check_output, note
from augury.drafters import split
from augury.errors import InputError, MissingPackage, UnknownName

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.server.settings import Settings
    from augury.server.speculative import Speculation
    from augury.server.tracing import Tap

_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_MOST_BYTES = 1 << 50
_BYTES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Listening:
    """Where the server listens, and under which name it serves the model."""

    host: Annotated[str, Option(help="Address to listen on.", rich_help_panel="Server")] = "127.0.0.1"
    port: Annotated[int, Option(help="Port; 0 is any free one.", rich_help_panel="Server")] = 8000
    served_model_name: Annotated[
        list[str],
        Option(
            metavar="NAME",
            help="Name of the model in requests; repeatable, answers show the first.",
            show_default="the model's",
            rich_help_panel="Server",
        ),
    ] = field(default_factory=list)
    shutdown_timeout: Annotated[
        float, Option(help="Seconds that answers have to end after SIGTERM.", rich_help_panel="Server")
    ] = 30.0
    metrics_compat: Annotated[
        str, Option(help="vllm or none: whether /metrics has vLLM's names beside ours.", rich_help_panel="Server")
    ] = "vllm"
    otlp_traces_endpoint: Annotated[
        str | None,
        Option(metavar="URL", help="Send a trace of every request there.", show_default="none",
               rich_help_panel="Server"),
    ] = None  # fmt: skip
    config: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Read flags from a YAML or JSON file; those given here come first.",
            show_default="none",
            is_eager=True,
            callback=configured,
            rich_help_panel="Server",
        ),
    ] = None

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True)
class Admitting:
    """Who may ask, and how much."""

    api_key: Annotated[
        list[str],
        Option(
            metavar="KEY",
            envvar="AUGURY_API_KEY",
            help="Asked for on every route but /health; repeatable. In the environment others cannot read it.",
            show_default="none",
            rich_help_panel="Access and limits",
        ),
    ] = field(default_factory=list)
    allowed_hosts: Annotated[
        list[str],
        Option(
            metavar="HOST",
            help="Host headers that are answered, *.example.com for all below; repeatable.",
            show_default="this machine's on a loopback address, else any",
            rich_help_panel="Access and limits",
        ),
    ] = field(default_factory=list)
    max_num_seqs: Annotated[int, Option(help="Requests that run at once.", rich_help_panel="Access and limits")] = 4
    max_num_queued_reqs: Annotated[
        int, Option(help="Requests that may wait beside them.", rich_help_panel="Access and limits")
    ] = 64
    max_num_queued_tokens: Annotated[
        int, Option(help="Tokens of the prompts that may wait.", rich_help_panel="Access and limits")
    ] = 131_072
    kv_cache_memory_bytes: Annotated[
        str | None,
        Option(
            metavar="BYTES",
            help="For the target's caches, as in 2G; fewer requests run at once where they do not fit.",
            show_default="no limit",
            rich_help_panel="Access and limits",
        ),
    ] = None
    request_timeout: Annotated[
        float,
        Option(help="Seconds of a request, waiting and running; 0 is no limit.", rich_help_panel="Access and limits"),
    ] = 600.0
    max_requests_per_key: Annotated[
        int, Option(help="Answers of one key at once; 0 is no limit.", rich_help_panel="Access and limits")
    ] = 0
    requests_per_minute: Annotated[
        int, Option(help="Answers of one key; 0 is no limit.", rich_help_panel="Access and limits")
    ] = 0
    allow_priority: Annotated[
        bool,
        Option("--allow-priority", help="Requests may say which of them come first.",
               rich_help_panel="Access and limits"),
    ] = False  # fmt: skip
    default_max_tokens: Annotated[
        int | None,
        Option(
            help="Tokens of an answer whose request says nothing.",
            show_default="what the context holds; of completions 16",
            rich_help_panel="Access and limits",
        ),
    ] = None
    max_tokens_limit: Annotated[
        int | None,
        Option(
            help="Tokens of an answer that a request may ask for.",
            show_default="what the context holds",
            rich_help_panel="Access and limits",
        ),
    ] = None
    max_body_bytes: Annotated[
        int, Option(help="Of a request's body.", rich_help_panel="Access and limits")
    ] = 8 << 20  # fmt: skip
    max_total_body_bytes: Annotated[
        int, Option(help="Of the bodies of all open requests.", rich_help_panel="Access and limits")
    ] = 256 << 20  # fmt: skip

    def check(self) -> None:
        """Refuse what is no limit."""
        for name, least in (
            ("max_num_seqs", 1), ("max_num_queued_reqs", 0), ("max_num_queued_tokens", 0), ("request_timeout", 0),
            ("max_requests_per_key", 0), ("requests_per_minute", 0), ("max_body_bytes", 1),
            ("max_total_body_bytes", self.max_body_bytes),
        ):  # fmt: skip
            _at_least(name, getattr(self, name), least)
        for name in ("default_max_tokens", "max_tokens_limit"):
            if (given := getattr(self, name)) is not None:
                _at_least(name, given, 1)
        if None not in (self.default_max_tokens, self.max_tokens_limit):
            assert self.default_max_tokens is not None
            assert self.max_tokens_limit is not None
            if self.default_max_tokens > self.max_tokens_limit:
                raise InputError(
                    f"--default-max-tokens is {self.default_max_tokens}, above --max-tokens-limit "
                    f"{self.max_tokens_limit}; give the same or less"
                )
        _keys("--api-key", self.api_key)
        if self.kv_cache_memory_bytes is not None:
            _bytes("kv_cache_memory_bytes", self.kv_cache_memory_bytes)

    def slots(self, model: str, running: Running) -> int:
        """Requests that run at once within the memory for caches."""
        if self.kv_cache_memory_bytes is None:
            return self.max_num_seqs
        budget = _bytes("kv_cache_memory_bytes", self.kv_cache_memory_bytes)
        from augury.models.load import cache_bytes

        one = cache_bytes(model, dtype=running.dtype, max_model_len=running.max_model_len)
        if budget < one:
            raise InputError(
                f"--kv-cache-memory-bytes is {budget}, and one request's cache takes {one}; "
                "allow more, or a shorter context with --max-model-len"
            )
        if budget // one < self.max_num_seqs:
            note(f"augury: caches for {budget // one} of {self.max_num_seqs} requests fit into {budget} bytes")
        return min(self.max_num_seqs, budget // one)


@dataclass(frozen=True)
class Streaming:
    """What answers look like on the wire."""

    stream_mode: Annotated[
        str,
        Option(help="fast, smooth or private: what the times and sizes of events tell.", rich_help_panel="Streaming"),
    ] = "fast"
    stream_interval: Annotated[int, Option(help="Tokens of an event at least.", rich_help_panel="Streaming")] = 1
    sse_keep_alive_interval: Annotated[
        float, Option(help="Seconds between comments in a silent stream; 0 is none.", rich_help_panel="Streaming")
    ] = 15.0
    enable_force_include_usage: Annotated[
        bool, Option("--enable-force-include-usage", help="Usage in every stream.", rich_help_panel="Streaming")
    ] = False
    per_request_spec_decode_metrics: Annotated[
        str, Option(help="none, summary or detailed: drafting in every answer.", rich_help_panel="Streaming")
    ] = "none"

    def check(self) -> None:
        """Refuse what is none of the choices."""
        from augury.server.settings import Amount, StreamMode

        _one_of("stream_mode", self.stream_mode, get_args(StreamMode))
        _one_of("per_request_spec_decode_metrics", self.per_request_spec_decode_metrics, get_args(Amount))
        _at_least("stream_interval", self.stream_interval, 1)
        _at_least("sse_keep_alive_interval", self.sse_keep_alive_interval, 0)


@dataclass(frozen=True)
class Showing:
    """What can be seen of drafting, and by whom."""

    page: Annotated[
        bool | None,
        Option(
            "--page/--no-page",
            help="Serve the page at /.",
            show_default="on a loopback address",
            rich_help_panel="Page and trace",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write every step into a file, too.", show_default="none",
               rich_help_panel="Page and trace"),
    ] = None  # fmt: skip
    trace_bytes: Annotated[
        str,
        Option(
            metavar="BYTES",
            help="Of the steps that are kept for the page, and of the file; 0 keeps none.",
            rich_help_panel="Page and trace",
        ),
    ] = "64M"
    trace_text: Annotated[
        bool, Option("--trace-text", help="Keep prompts and texts, too.", rich_help_panel="Page and trace")
    ] = False
    trace_key: Annotated[
        list[str],
        Option(
            metavar="KEY",
            envvar="AUGURY_TRACE_KEY",
            help="Opens /trace, which other keys then do not; repeatable.",
            show_default="none",
            rich_help_panel="Page and trace",
        ),
    ] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Bytes of ring and file; 0 where nothing is traced."""
        return 0 if self.trace_bytes == "0" else _bytes("trace_bytes", self.trace_bytes)

    def check(self, stream_mode: str) -> None:
        """Refuse what contradicts itself."""
        from augury.trace.ring import LEAST

        if 0 < self.room < LEAST:
            raise InputError(f"--trace-bytes is {self.trace_bytes}; it must be 0, or {LEAST} or more")
        _keys("--trace-key", self.trace_key)
        given = {"--trace": self.trace is not None, "--trace-text": self.trace_text, "--trace-key": self.trace_key}
        for flag in (name for name, there in given.items() if there):
            if not self.room:
                raise InputError(f"--trace-bytes 0 and {flag} exclude each other; leave one of them out")
            if stream_mode == "private":
                raise InputError(
                    f"--stream-mode private and {flag} exclude each other: a trace tells what users were told; "
                    "leave one of them out"
                )
        check_output("--trace", self.trace)


@dataclass(frozen=True)
class Drafting:
    """Other ways to say who drafts."""

    speculative_config: Annotated[
        str | None,
        Option(metavar="JSON", help="Drafters and rule in vLLM's words.", show_default="none",
               rich_help_panel="Drafting"),
    ] = None  # fmt: skip
    draft_model: Annotated[
        str | None,
        Option("--draft-model", "-md", help="A smaller model that drafts beside --drafters.", show_default="none",
               rich_help_panel="Drafting"),
    ] = None  # fmt: skip
    num_draft_tokens: Annotated[
        int | None,
        Option(help="Draft tokens in a row at most.", show_default="what pays", rich_help_panel="Drafting"),
    ] = None

    def speculation(self, guessing: Guessing) -> Speculation:
        """Who drafts, how far, and the rule; refuses what contradicts itself."""
        from augury.drafters import check
        from augury.drafters.drafter import Rule
        from augury.server.speculative import Speculation, parse, speculation
        from augury.tree import MAX_NODES

        _one_of("acceptance", guessing.acceptance, get_args(Rule))
        if self.num_draft_tokens is not None and not 1 <= self.num_draft_tokens <= MAX_NODES:
            raise InputError(f"--num-draft-tokens is {self.num_draft_tokens}; it must be from 1 to {MAX_NODES}")
        for before, spec in pairwise(["", *split(guessing.drafters)]):
            if spec not in ("none", AUTO):
                check(spec, before)
        if self.speculative_config is None:
            drafters = guessing.drafters
            if self.draft_model is not None:
                depth = "" if self.num_draft_tokens is None else f",depth={self.num_draft_tokens}"
                own = f"model:{self.draft_model}{depth}"
                drafters = own if drafters == "none" else f"{drafters},{own}"
            return Speculation(drafters, guessing.acceptance, self.num_draft_tokens)  # type: ignore[arg-type] # checked
        for name, given in (("drafters", guessing.drafters != AUTO), ("draft-model", self.draft_model is not None),
                            ("num-draft-tokens", self.num_draft_tokens is not None)):  # fmt: skip
            if given:
                raise InputError(f"--speculative-config and --{name} exclude each other; give one of them")
        found = speculation(parse(self.speculative_config))
        if found.acceptance not in (None, guessing.acceptance) and guessing.acceptance != "coupled":
            raise InputError(
                f"--acceptance is {guessing.acceptance}, and rejection_sample_method asks for {found.acceptance}; "
                "leave one of them out"
            )
        return replace(found, acceptance=found.acceptance or guessing.acceptance)  # type: ignore[arg-type] # checked


def serve(
    running: Running,
    guessing: Guessing,
    drafting: Drafting,
    listening: Listening,
    admitting: Admitting,
    streaming: Streaming,
    showing: Showing,
    model: Annotated[str, Argument(help="Embedded name, directory or GGUF file.")] = "smollm2-135m",
    model_option: Annotated[str | None, Option("--model", hidden=True)] = None,
) -> None:
    """Serve a model over HTTP: chat, completions, responses, metrics."""
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingPackage("augury serve", package, "pip install 'augury[server]'")
    if model_option is not None:
        raise InputError(f"the model is an argument: augury serve {model_option}")
    admitting.check()
    streaming.check()
    showing.check(streaming.stream_mode)
    _at_least("shutdown_timeout", listening.shutdown_timeout, 0)
    _one_of("metrics_compat", listening.metrics_compat, ("vllm", "none"))
    asked = drafting.speculation(guessing)
    if streaming.stream_mode == "private" and any(spec.split(":")[0] == "memory" for spec in split(asked.drafters)):
        raise InputError(
            "--stream-mode private and the drafter memory exclude each other: it keeps what users were told; "
            "leave one of them out"
        )
    settings = _settings(listening, admitting, streaming, showing)

    from augury.models.load import check_model
    from augury.server.running import listen
    from augury.server.settings import hides_traces

    if showing.trace_text and showing.trace is None and (why := hides_traces(settings)):
        raise InputError(f"--trace-text has no effect: no trace is shown, as {why}; give that, or --trace FILE")
    check_model(model)
    port = listen(listening.host, listening.port)
    if not (listening.local or settings.api_keys):
        note(f"augury: {listening.host} can be reached from other machines and no --api-key is set: anybody may ask")
    signal.signal(signal.SIGTERM, _give_up)  # as the first process of a container it would not end otherwise
    _log()

    from augury.engine.service import Room, Service, Watch
    from augury.server.asking import prepare
    from augury.server.log import Log
    from augury.server.metrics import Metrics
    from augury.server.running import Front
    from augury.server.telemetry import Both, Continued, Spans, provider
    from augury.server.tracing import Recorder

    front = Front(port)
    tracers = provider(listening.otlp_traces_endpoint, os.environ)
    slots = admitting.slots(model, running)
    engine = running.load(model, asked.drafters, asked.acceptance or "coupled", True, slots, asked.deepest)
    prepare(engine)
    settings = replace(settings, names=tuple(listening.served_model_name) or (engine.target.info.name,))

    from augury.server.app import create_app

    metrics = Metrics(settings.names[0], settings.metrics_compat_vllm)
    watch: Watch = metrics if tracers is None else Both(metrics, Spans(settings.names[0], tracers))
    tap = _tap(engine, settings, showing, metrics.unwritten)
    watch = watch if tap is None else Both(watch, tap)
    service = Service(engine, Room(admitting.max_num_queued_reqs, admitting.max_num_queued_tokens), watch)
    app = create_app(service, settings, metrics, tap)
    front.open(app if tracers is None else Continued(app))
    _introduce(engine, settings, front.address, tap, showing)
    with ExitStack() as stack:
        if tap is not None:
            stack.enter_context(Recorder(tap, service, showing.trace, showing.room, metrics.unwritten))
        code = front.run(service, listening.shutdown_timeout, Log(metrics, service).tick, note)
    raise typer.Exit(code)


def _tap(engine: Engine, settings: Settings, showing: Showing, unwritten: Callable[[int], None]) -> Tap | None:
    """What keeps the steps, where somebody may see them or they go into a file."""
    from augury.server.settings import hides_traces
    from augury.server.tracing import Tap, Teller
    from augury.trace.ring import Ring

    if not showing.room or (showing.trace is None and hides_traces(settings)):
        return None
    return Tap(Teller(engine, name=settings.names[0]), Ring(showing.room), showing.trace_text, unwritten)


def _settings(listening: Listening, admitting: Admitting, streaming: Streaming, showing: Showing) -> Settings:
    """What the flags say to who answers."""
    from augury.server.settings import LOOPBACK, Settings

    hosts = tuple(host for given in admitting.allowed_hosts for host in given.split(",") if host)
    figures = streaming.per_request_spec_decode_metrics
    return Settings(
        api_keys=tuple(admitting.api_key),
        hosts=hosts or ((*LOOPBACK, listening.host) if listening.local else ()),
        max_body=admitting.max_body_bytes,
        max_bodies=admitting.max_total_body_bytes,
        allow_priority=admitting.allow_priority,
        request_seconds=admitting.request_timeout or None,
        keep_alive_seconds=streaming.sse_keep_alive_interval,
        stream_mode=streaming.stream_mode,  # type: ignore[arg-type] # checked
        stream_interval=streaming.stream_interval,
        figures=figures,  # type: ignore[arg-type] # checked
        # How far guesses came tells what an answer is like: strangers get it when the operator says so.
        figures_on_request=figures != "none" or (listening.local and streaming.stream_mode != "private"),
        force_usage=streaming.enable_force_include_usage,
        requests_at_once=admitting.max_requests_per_key,
        requests_per_minute=admitting.requests_per_minute,
        metrics_compat_vllm=listening.metrics_compat == "vllm",
        default_max_tokens=admitting.default_max_tokens,
        max_tokens_limit=admitting.max_tokens_limit,
        page=listening.local if showing.page is None else showing.page,
        trace_keys=tuple(showing.trace_key),
        local=listening.local,
    )


def _introduce(engine: Engine, settings: Settings, address: str, tap: Tap | None, showing: Showing) -> None:
    """Say what is served, with what, and where, on stderr."""
    info = engine.target.info
    names = [name for name, _ in engine.parts.drafters]
    also = f", as {', '.join(settings.names)}" if settings.names != (info.name,) else ""
    keys = len(settings.api_keys)
    rows = {
        "model": f"{info.name}{also}",
        "runner": info.runner,
        "drafters": ", ".join(names) or "none: plain decoding",
        "acceptance": engine.acceptance,
        "at once": f"{engine.slots} of {info.context} tokens each",
        "keys": f"{keys} API key{'s' if keys > 1 else ''}" if keys else "none needed",
        "address": f"{address}/v1",
    }
    if settings.page:
        rows["page"] = f"{address}/"
    if tap is not None:
        from augury.server.settings import hides_traces

        kept = ["in memory"] if not hides_traces(settings) else []
        kept += [] if showing.trace is None else [f"in {showing.trace}"]
        rows["trace"] = (
            f"{' and '.join(kept)}, {showing.trace_bytes} bytes, {'with' if showing.trace_text else 'no'} texts"
        )
    note(f"augury {augury.__version__} is ready")
    for name, value in rows.items():
        note(f"  {name:<12}{value}")


def _log() -> None:
    """Log lines of the server to stderr, of others only what is wrong."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("augury").setLevel(logging.INFO)


def _give_up(number: int, _: FrameType | None) -> NoReturn:
    """SIGTERM while a model loads."""
    raise SystemExit(128 + number)


def _keys(flag: str, keys: list[str]) -> None:
    """Refuse keys that no request can show."""
    if any(not key for key in keys):
        raise InputError(f"{flag} is empty; leave it out to ask for none")
    if any(key != key.strip() for key in keys):
        raise InputError(f"{flag} begins or ends with white space, which headers do not carry; leave it out")


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least or value == float("inf"):
        raise InputError(f"--{name.replace('_', '-')} is {value}; it must be {least} or more")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UnknownName(f"--{name.replace('_', '-')}", value, choices)


def _bytes(name: str, text: str) -> int:
    """A number of bytes, as in 2G (1024 to the third) or 2g (1000 to the third)."""
    digits, unit = (text[:-1], _BYTES[text[-1]]) if text[-1:] in _BYTES else (text, 1)
    if not _NUMBER.fullmatch(digits) or (value := float(digits) * unit) < 1:
        raise InputError(f"--{name.replace('_', '-')} is {text!r}; give a number, as in 2000000000 or 2G")
    if value > _MOST_BYTES:
        raise InputError(f"--{name.replace('_', '-')} is {text!r}; at most 1024T can be given")
    return int(value)
