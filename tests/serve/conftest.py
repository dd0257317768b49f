"""A real server on a real model: one engine for all tests, and as many servers before it as there are settings."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from served import NAME, Served, serving

import augury
from augury.engine.service import Service
from augury.server.settings import Settings


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
