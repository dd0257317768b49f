"""A real server on a real model: one engine for all tests, and as many servers before it as there are settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import openai
import pytest
from served import NAME, Served, serving

import augury
from augury.engine.service import Service
from augury.server.settings import Settings
from augury.server.telemetry import Both
from augury.server.tracing import Tap, Teller
from augury.trace.ring import Ring


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """An engine with two drafters that copy, in a thread of its own."""
    engine = augury.load(NAME, drafters="suffix,prediction", max_model_len=1024, measure=False)
    with Service(engine) as made:
        yield made


@pytest.fixture(scope="session")
def server(service) -> Iterator[Served]:
    """A server as it is when nothing is said."""
    with serving(service, Settings(names=(NAME, "other/name"))) as made:
        yield made


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of it."""
    with server.client() as made:
        yield made


@pytest.fixture
def secured(service) -> Iterator[Served]:
    """A server with keys, limits, an allowed host, a small body, and figures in every answer."""
    settings = Settings(
        names=(NAME,), api_keys=("key-one", "key-two"), hosts=("127.0.0.1", "*.test"), max_body=4096, body_seconds=0.5,
        keep_alive_seconds=0.05, figures="summary", requests_at_once=2,
    )  # fmt: skip
    with serving(service, settings) as made:
        yield made


@dataclass
class Watched:
    """A service whose steps are kept, two requests at a time, with texts and without."""

    service: Service
    tap: Tap
    spelt: Tap


@pytest.fixture(scope="session")
def watched() -> Iterator[Watched]:
    """An engine of its own, for what happens in it is told."""
    engine = augury.load(NAME, drafters="suffix,prediction", max_model_len=512, max_num_seqs=2, measure=False)
    teller = Teller(engine)
    tap, spelt = Tap(teller, Ring(8 << 20)), Tap(teller, Ring(8 << 20), text=True)
    with Service(engine, watch=Both(tap, spelt)) as made:
        yield Watched(made, tap, spelt)


@pytest.fixture(scope="session")
def traced(watched) -> Iterator[Served]:
    """A server before it that shows them, without texts, to everybody."""
    with serving(watched.service, Settings(names=(NAME,), page=True, keep_alive_seconds=0.3), tap=watched.tap) as made:
        yield made
