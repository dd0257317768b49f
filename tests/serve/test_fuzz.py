"""Bodies made up from the server's own description of itself: each is answered, or refused in the error object."""

from __future__ import annotations

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import NAME, serving

from augury.server.app import create_app
from augury.server.settings import Settings

SETTINGS = Settings(names=(NAME,), request_seconds=0.3, choices=4)
PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/tokenize": {"prompt": "Hi"},
    "/v1/detokenize": {"tokens": [1, 2]},
}
"""Of every route a body that is right, into which fields are put that may not be."""


@pytest.fixture(scope="module")
def hasty(service):
    """A server that gives every answer up soon."""
    with serving(service, SETTINGS) as made:
        yield made


@pytest.fixture(scope="module")
def described(service):
    """What may be asked, by what the server says."""
    return schemathesis.openapi.from_dict(create_app(service, SETTINGS).openapi())


@pytest.mark.parametrize("path", PATHS)
@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_whatever_is_asked_is_answered_or_refused(hasty, described, path, data):
    body = data.draw(described[path]["POST"].as_strategy()).body
    if isinstance(body, dict) and data.draw(st.integers(0, 7)):
        names = [name for name in body if name != "model"]
        kept = data.draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if names else []
        body = {**PATHS[path], **{name: body[name] for name in kept}}
    answer = hasty.ask("POST", path, json.dumps(body).encode() if isinstance(body, dict | list | str) else b"null")
    assert answer.status in (200, 400, 404, 504), answer.body
    if answer.status != 200:
        assert answer.error["message"]
        assert len(answer.body) < 1500
    assert hasty.at_rest()
