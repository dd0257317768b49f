"""Who may ask, from where, and under which number."""

from __future__ import annotations

import gc
from hmac import compare_digest
from types import ModuleType

import openai
import pytest

from augury.server import guard
from augury.server.app import create_app
from augury.server.asking import tenant
from augury.server.settings import Settings

ONE, TWO = "Authorization: Bearer key-one", "Authorization: Bearer key-two"


@pytest.mark.parametrize(
    "path", ["/v1/models", "/metrics", "/version", "/ready", "/openapi.json", "/nowhere", "/v1/completions"]
)
@pytest.mark.parametrize(
    "header",
    [None, "Authorization: Bearer key-three", "Authorization: Basic key-one", "Authorization: Bearer", "X-Api-Key: "],
)
def test_without_a_key_no_route_answers(secured, path, header):
    answer = secured.ask("GET", path, None, *([header] if header else []))
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert (answer.error["type"], answer.error["code"]) == ("authentication_error", "invalid_api_key")
    assert "key-three" not in answer.error["message"]


@pytest.mark.parametrize("header", [ONE, TWO, "authorization: bearer key-one", "X-Api-Key: key-two"])
def test_any_key_opens(secured, header):
    assert secured.ask("GET", "/v1/models", None, header).status == 200


def test_health_is_for_everybody(secured):
    answer = secured.ask("GET", "/health", None, "Host: anything")
    assert (answer.status, answer.body) == (200, b"")


def test_openais_client_shows_its_key(secured):
    with secured.client("key-two") as client:
        assert client.models.list().data
    with secured.client("wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.request_id


def test_all_keys_are_compared_each_time(secured, monkeypatch):
    compared = []
    monkeypatch.setattr(guard, "compare_digest", lambda a, b: compared.append((a, b)) or compare_digest(a, b))
    for header in (ONE, TWO, "X-Api-Key: no"):
        compared.clear()
        secured.ask("GET", "/version", None, header)
        assert len(compared) == 2
        assert all(len(a) == len(b) == 64 for a, b in compared)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:8000", 200),
        ("a.test", 200),
        ("A.TEST:1", 200),
        ("evil.example", 400),
        ("test", 400),
        ("", 400),
    ],
)
def test_only_names_that_are_ours(secured, host, status):
    answer = secured.ask("GET", "/v1/models", None, ONE, f"Host: {host}")
    assert answer.status == status
    if status == 400:
        assert answer.error["code"] == "invalid_host"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
        ("http://127.0.0.1:{port}", 200),
        ("https://127.0.0.1:{port}", 200),
    ],
)
def test_pages_of_other_sites_may_not_ask(server, origin, status):
    answer = server.ask("GET", "/v1/models", None, f"Origin: {origin.format(port=server.port)}")
    assert answer.status == status
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("given", ["abc-123", "a" * 128])
def test_a_requests_number_comes_back(server, given):
    for path in ("/v1/models", "/nowhere", "/health"):
        assert server.ask("GET", path, None, f"X-Request-Id: {given}").headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "a" * 129, "<script>", "\xe9"])
def test_a_strange_number_is_replaced(server, given):
    assert len(server.ask("GET", "/v1/models", None, f"X-Request-Id: {given}").headers["x-request-id"]) == 32


def test_two_keys_never_share_a_tenant():
    names = {tenant(key, salt) for key in ("", "k1", "k2") for salt in (None, "s", "t")}
    assert len(names) == 9
    assert tenant("", None) == ""
    assert all(len(name) <= 1024 for name in names)


def test_what_one_key_asked_is_not_in_the_cache_of_another(secured):
    long = {
        "messages": [{"role": "user", "content": "A rather long question about nothing much. " * 4}],
        "max_tokens": 2,
    }

    def cached(*headers, **more):
        return secured.chat({**long, **more}, *headers).json["usage"]["prompt_tokens_details"]["cached_tokens"]

    cached(ONE)
    assert cached(ONE) > 20
    assert cached(TWO) == 0
    assert cached(ONE, cache_salt="other") == 0


def test_keys_are_not_kept_nor_shown(service):
    key = f"a-secret-{len(__name__)}-key"  # made here, so that no code holds it
    settings = Settings(api_keys=(key,))
    assert key not in repr(settings)
    app = create_app(service, settings)
    app.build_middleware_stack()
    seen: set[int] = set()
    objects: list[object] = [app]
    while objects:
        one = objects.pop()
        kind = type(one)  # not isinstance: libraries hold objects that warn when they are asked what they are
        if id(one) in seen or issubclass(kind, type | ModuleType):
            continue
        seen.add(id(one))
        assert one is not settings
        assert not (issubclass(kind, str | bytes) and key in str(one))
        objects += gc.get_referents(one)
    assert len(seen) > 1000
