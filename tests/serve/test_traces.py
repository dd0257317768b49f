"""``/trace``: who may read it, in what portions, live and folded; and that a reader holds nobody."""

from __future__ import annotations

import json
import re
import socket
import threading
import time

import anyio
import pytest
from fastapi import FastAPI
from served import NAME, serving

from augury.record import RequestRecord
from augury.sampling import Sampling
from augury.server import faults, traces
from augury.server.guard import Guard
from augury.server.limits import Bodies
from augury.server.running import Front, listen
from augury.server.settings import Settings
from augury.server.traces import MOST_BYTES, MOST_EVENTS, MOST_READERS, Reading, held, portion
from augury.server.tracing import Tap
from augury.trace import events
from augury.trace.figures import figures
from augury.trace.log import TraceFile
from augury.trace.ring import LEAST, Ring

SECRET = "the password is swordfish"
ASKED = {"messages": [{"role": "user", "content": f"Repeat: {SECRET}, {SECRET}"}], "max_tokens": 16, "temperature": 0}


def asked(server, *headers, **more):
    """One answer; gives the number of its request."""
    answer = server.ask("POST", "/v1/chat/completions", {**ASKED, "speculative": {"trace": "steps"}, **more}, *headers)
    assert answer.status == 200, answer.body
    assert server.at_rest()
    return answer.json["trace"]["begin"]["id"]


# ---- who may ------------------------------------------------------------------------------------------------------

KEYS = {"api_keys": ("key-one", "key-two")}


@pytest.mark.parametrize(
    ("settings", "key", "status", "code"),
    [
        ({}, None, 200, None),
        ({"trace_keys": ("look",)}, None, 401, "invalid_api_key"),
        ({"trace_keys": ("look",)}, "look", 200, None),
        (KEYS, None, 401, "invalid_api_key"),
        (KEYS, "key-one", 404, "trace_off"),
        ({**KEYS, "trace_keys": ("look",)}, None, 401, "invalid_api_key"),
        ({**KEYS, "trace_keys": ("look",)}, "wrong", 401, "invalid_api_key"),
        ({**KEYS, "trace_keys": ("look",)}, "key-one", 403, "trace_key_needed"),
        ({**KEYS, "trace_keys": ("look",)}, "look", 200, None),
        ({**KEYS, "trace_keys": ("look", "key-two")}, "key-two", 200, None),
        ({"local": False}, None, 404, "trace_off"),
        ({"local": False, "trace_keys": ("look",)}, "look", 200, None),
        ({"local": False, "trace_keys": ("look",)}, None, 401, "invalid_api_key"),
        ({"stream_mode": "private"}, None, 404, "trace_off"),
        ({"stream_mode": "private", "trace_keys": ("look",)}, "look", 404, "trace_off"),
    ],
)
def test_who_may_read_it(watched, settings, key, status, code):
    headers = () if key is None else (f"Authorization: Bearer {key}",)
    with serving(watched.service, Settings(names=(NAME,), **settings), tap=watched.spelt) as server:
        for path in ("header", "events", "requests", "requests/1?from=0", "reliability", "load", "trace.jsonl"):
            answer = server.ask("GET", f"/trace/{path}", None, *headers)
            assert answer.status == status or (status == 200 and answer.status == 404 and "/1" in path), path
            if status != 200:
                assert answer.error["code"] == code
                assert answer.headers["content-type"] == "application/json"


def test_why_there_is_none_is_said(watched, service):
    reasons = {
        "it asks for API keys, and its operator set no --trace-key": KEYS,
        "other machines reach it, and its operator set no --trace-key": {"local": False},
        "its streams are private": {"stream_mode": "private"},
    }
    for why, settings in reasons.items():
        with serving(watched.service, Settings(names=(NAME,), **settings), tap=watched.tap) as server:
            answer = server.ask("GET", "/trace/requests", None, "X-Api-Key: key-one")
            assert answer.error["message"] == f"this server shows no trace: {why}"
    with serving(service, Settings(names=(NAME,))) as server:
        assert server.ask("GET", "/trace").error["message"].endswith("nothing is traced")


def test_what_others_asked_is_seen_with_the_trace_key_alone(watched):
    settings = Settings(names=(NAME,), trace_keys=("look",), **KEYS)
    with serving(watched.service, settings, tap=watched.spelt) as server:
        id = asked(server, "X-Api-Key: key-one")
        for path in ("events", "requests", f"requests/{id}", "trace.jsonl", f"timeline.json?id={id}", "live"):
            for header in ((), ("X-Api-Key: key-two",), ("X-Api-Key: key-one",)):
                answer = server.ask("GET", f"/trace/{path}", None, *header)
                assert answer.status in (401, 403)
                assert SECRET.encode() not in answer.body
        shown = server.ask("GET", f"/trace/requests/{id}", None, "X-Api-Key: look")
        assert SECRET in shown.json["begin"]["prompt_text"]
        # And the key that shows it opens nothing else.
        assert server.ask("GET", "/v1/models", None, "X-Api-Key: look").status == 401
        assert server.chat({}, "X-Api-Key: look").status == 401


def test_no_text_is_kept_unless_it_is_asked_for(traced):
    id = asked(traced)
    for path in ("trace.jsonl", f"requests/{id}", f"timeline.json?id={id}", "events?limit=1000"):
        body = traced.ask("GET", f"/trace/{path}").body
        assert SECRET.encode() not in body
        assert b'"texts"' not in body


def test_pages_of_other_sites_read_nothing(traced):
    assert traced.ask("GET", "/trace/events", None, "Origin: http://evil.example").status == 403
    with serving(traced.service, Settings(names=(NAME,), hosts=("127.0.0.1",))) as server:
        assert server.ask("GET", "/trace/header", None, "Host: evil.example").status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/trace/header", "/trace/live", "/trace/trace.jsonl", "/health", "/metrics", "/v1/models", "/ready", "/version",
        "/openapi.json",
    ],
)  # fmt: skip
def test_the_head_of_what_get_gets(watched, path):
    from augury.server.metrics import Metrics

    with serving(watched.service, Settings(names=(NAME,)), Metrics(NAME), tap=watched.tap) as server:
        answer = server.ask("HEAD", path)
        assert (answer.status, answer.body) == (200, b"")
        if path != "/trace/live":
            whole = server.ask("GET", path)
            assert answer.headers.get("content-type") == whole.headers.get("content-type")
            assert [*answer.headers] == [*whole.headers] or path == "/metrics"


# ---- in portions --------------------------------------------------------------------------------------------------


def test_events_are_read_on_by_their_numbers(traced):
    id = asked(traced)
    found, after = [], 0
    while (part := traced.ask("GET", f"/trace/events?after={after}&limit=7").json)["events"]:
        assert len(part["events"]) <= 7
        assert part["lost"] == 0
        assert part["next"] == after + len(part["events"])
        found += part["events"]
        after = part["next"]
    head = traced.ask("GET", "/trace/header").json
    assert (head["first"], head["live"], head["augury_trace"]) == (1, True, 1)
    assert len(found) == after <= head["last"]
    assert [e["kind"] for e in found if e.get("id") == id][:2] == ["begin", "step"]


def test_requests_are_listed_newest_first_and_read_step_by_step(traced):
    first, second = asked(traced), asked(traced)
    listed = traced.ask("GET", "/trace/requests?limit=2").json["requests"]
    assert [one["id"] for one in listed] == [second, first]
    whole = traced.ask("GET", f"/trace/requests/{first}").json
    count = whole["of"]
    assert [step["n"] for step in whole["steps"]] == [*range(count)]
    assert (whole["begin"]["id"], whole["end"]["steps"]) == (first, count)
    assert whole["end"]["tokens"] == listed[1]["tokens"] == sum(len(step["emitted"]) for step in whole["steps"])
    part = traced.ask("GET", f"/trace/requests/{first}?from=1&to=3").json
    assert part["steps"] == whole["steps"][1:3]
    assert (part["from"], part["to"], part["of"], part["lost"]) == (1, 3, count, 0)
    assert traced.ask("GET", f"/trace/requests/{first}?from={count}").json["steps"] == []
    for odd in ("from=999999999", "from=3&to=1", "from=0&to=0"):
        assert traced.ask("GET", f"/trace/requests/{first}?{odd}").json["steps"] == []
    assert traced.ask("GET", f"/trace/requests/{first}?to=999999999").json["to"] == count


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("events?limit=0", 400, "limit"), ("events?limit=1001", 400, "limit"), ("events?after=-1", 400, "after"),
        ("events?after=1e3", 400, "after"), ("requests?limit=501", 400, "limit"), ("requests/x", 400, "id"),
        ("requests/-1", 400, "id"), ("requests/1?from=-5", 400, "from"), ("requests/1?to=x", 400, "to"),
        ("requests/987654321", 404, None), ("timeline.json?limit=20001", 400, "limit"),
        ("timeline.json?id=987654321", 404, None), (f"requests/{(1 << 53) - 1}", 404, None),
        (f"requests/{1 << 53}", 400, "id"), (f"timeline.json?id={1 << 53}", 400, "id"), 
        ("nothing", 404, None), ("", 404, None), (f"events?after={'9' * 5000}", 400, "after"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(traced, path, status, param):
    error = (answer := traced.ask("GET", f"/trace/{path}")).error
    assert (answer.status, error["param"]) == (status, param)
    assert len(answer.body) < 600


def step_of(n, k=3, size=0):
    """A line of some step; with so many bytes more."""
    return {
        "kind": "step", "id": 1, "n": n, "at": 10.0 * n, "position": n, "root": 1, "tokens": [5] * k,
        "parents": [*range(-1, k - 1)], "source": [0] * k, "survival": [0.5] * k, "p": None, "q": {}, "path": [0],
        "next": 9, "own": "correction", "emitted": [5, 9], "proposals": [], "reason": None, "rows": k + 1,
        "requests": 1,
        "draft_ms": 1.0, "verify_ms": 5.0, "accept_ms": 0.1, "commit_ms": 0.1, "rest_ms": 0.3, "plain_ms": 5.0,
        "saved_ms": 3.5, "coins": None, "texts": {"1": "x" * size},
    }  # fmt: skip


class Kept:
    """A store of a ring, without a model."""

    grows = True

    def __init__(self, room=1 << 20):
        self.ring = Ring(room)
        self.header = events.header(model="m", runner="r", drafters=["suffix"], source="serve", text=False, zero=0.0)

    first = property(lambda self: self.ring.first)
    last = property(lambda self: self.ring.last)

    def since(self, after, limit):
        return self.ring.since(after, limit)

    def begin(self, id=1):
        record = RequestRecord(7, ["suffix"])
        begun = events.begin(
            id, record, at=0.0, label="drafted", rule="coupled", sampling=Sampling(), drafters=["suffix"]
        )
        self.ring.put(begun)


class Shown:
    """A server of a store alone."""

    def __init__(self, store, stopping=lambda: False, send_buffer=0, keep_alive_seconds=0.2):
        app = FastAPI()
        app.include_router(traces.router(Reading(store), stopping=stopping, keep_alive_seconds=keep_alive_seconds))
        faults.install(app)
        app.add_middleware(Guard, settings=Settings(), keys=(), bodies=Bodies(1 << 20, lambda _: None))
        listening = listen("127.0.0.1", 0)
        if send_buffer:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.front = Front(listening)
        self.front.open(app)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.front.close()

    def get(self, path, *headers):
        """A socket on which an answer comes."""
        made = socket.create_connection(("127.0.0.1", self.front.port), timeout=20)
        made.sendall("\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode())
        return made


def heard(connection, wanted, seconds=10.0):
    """Frames of a live stream, until one holds some bytes."""
    data, end = b"", time.monotonic() + seconds
    while wanted not in data and time.monotonic() < end:
        data += connection.recv(1 << 16)
    assert wanted in data, data[-300:]
    return data


def ids(data):
    return [int(line[4:]) for line in data.decode().split("\n") if line.startswith("id: ")]


def test_a_portion_has_its_bytes():
    store = Kept(64 << 20)
    for n in range(20):
        store.ring.put(step_of(n, size=1 << 20))
    part = portion(store, 0, 1000)
    assert sum(map(len, part.lines)) <= MOST_BYTES
    assert part.next == len(part.lines) > 0
    store.ring.put(step_of(0, size=2 * MOST_BYTES))
    assert len(portion(store, 20, 5).lines) == 1  # one alone comes whatever its size
    found = Reading(store)
    store.begin()
    for n in range(20):
        store.ring.put(step_of(n, size=1 << 20))
    page = json.loads(found.request(1, 0, None))
    assert 0 < page["to"] == len(page["steps"]) < page["of"] == 20


def test_what_the_ring_has_dropped_is_told():
    store = Kept(LEAST)
    store.begin()
    reading = Reading(store)
    for n in range(30):
        store.ring.put(step_of(n, size=1000))
    assert reading.requests(5)["requests"][0]["steps"] == 30
    for n in range(30, 60):
        store.ring.put(step_of(n, size=1000))
    page = json.loads(reading.request(1, 0, None))
    assert page["begin"] is None  # it is gone
    assert page["lost"] == page["of"] - len(page["steps"]) > 0
    assert (page["to"], page["end"]) == (60, None)
    assert page["steps"][-1]["n"] == 59
    late = Reading(store)  # who comes only now
    (one,) = late.requests(5)["requests"]
    known = json.loads(late.request(1, 0, None))
    assert (one["id"], one["label"], one["steps"]) == (1, None, 60)
    assert one["lost"] == 60 - len(known["steps"])
    assert known == page
    assert json.loads(late.request(1, 58, 59))["steps"][0]["n"] == 58
    for n in range(200):
        store.ring.put({**step_of(n, size=1000), "id": 2})
    assert [one["id"] for one in reading.requests(5)["requests"]] == [2]
    lost = Reading(store).figures()
    assert lost["lost"] == store.first - 1


def test_steps_keep_their_numbers_behind_a_gap():
    store = Kept(LEAST)
    store.begin()
    for n in range(10):
        store.ring.put(step_of(n))
    reading = Reading(store)
    reading.catch_up()
    for n in range(10, 200):  # while nobody looks the ring runs over
        store.ring.put(step_of(n, size=1000))
    whole = json.loads(reading.request(1, 0, None))
    held = [step["n"] for step in whole["steps"]]
    assert held == [*range(held[0], 200)]
    assert held[0] > 10
    assert (whole["to"], whole["of"], whole["lost"]) == (200, 200, held[0])
    (one,) = reading.requests(5)["requests"]
    assert (one["steps"], one["lost"], one["tokens"]) == (200, held[0] - 10, 2 * (10 + len(held)))
    assert one["acceptance_length"] == 2.0
    part = json.loads(reading.request(1, 198, 199))
    assert ([step["n"] for step in part["steps"]], part["to"], part["lost"]) == ([198], 199, 0)
    assert json.loads(reading.request(1, 20, 30))["lost"] == 10


def test_what_a_gap_leaves_out_at_the_end_is_counted():
    store = Kept()
    store.begin()
    for n in (0, 1, 2**31 - 2):
        store.ring.put(step_of(n))
    record = RequestRecord(7, ["suffix"], finish="length")
    store.ring.put({**events.end(1, record, 9.0, text=False), "steps": 2**31 - 1})
    reading = Reading(store)
    (one,) = reading.requests(5)["requests"]
    assert (one["steps"], one["lost"]) == (2**31 - 1, 2**31 - 4)
    part = json.loads(reading.request(1, 1, None))
    assert ([step["n"] for step in part["steps"]], part["to"], part["lost"]) == ([1, 2**31 - 2], 2**31 - 1, 2**31 - 4)


def test_more_steps_than_one_answer_holds_are_asked_on():
    store = Kept(4 << 20)
    store.begin()
    for n in range(0, 4 * MOST_EVENTS, 2):
        store.ring.put(step_of(n))
    reading, found, start = Reading(store), [], 0
    while start < (part := json.loads(reading.request(1, start, None)))["of"]:
        assert len(part["steps"]) <= MOST_EVENTS
        assert part["lost"] == part["to"] - start - len(part["steps"])
        found += [step["n"] for step in part["steps"]]
        start = part["to"]
    assert found == [*range(0, 4 * MOST_EVENTS, 2)]


def test_an_event_that_no_ring_holds_is_lost_and_no_more():
    store = Kept(LEAST)
    store.begin()
    store.ring.put(step_of(0, size=LEAST))
    reading = Reading(store)
    assert reading.requests(5)["behind"] == 0
    assert reading.figures()["lost"] == 2
    store.ring.put(step_of(1))
    assert reading.requests(5)["requests"][0]["steps"] == 2


def test_what_is_odd_is_passed_over():
    store = Kept()
    store.begin()
    for odd in (
        {"kind": "step", "id": 1},
        {"kind": []},
        {"no": 1},
        {"kind": "step", "id": 1, "path": 3},
        {"kind": "new"},
    ):
        store.ring.put(odd)
    store.ring.put(step_of(0))
    found = Reading(store).requests(5)
    assert found["requests"][0]["steps"] == 1
    assert found["odd"] >= 3


def test_the_whole_is_a_trace_file(traced, tmp_path):
    id = asked(traced)
    answer = traced.ask("GET", "/trace/trace.jsonl")
    assert answer.headers["content-disposition"] == 'attachment; filename="trace.jsonl"'
    path = tmp_path / "got.jsonl"
    path.write_bytes(answer.body)
    assert any(event.get("id") == id and event["kind"] == "end" for event in TraceFile(path))


def test_the_whole_ends_where_it_was_when_it_began():
    store = Kept()
    store.begin()
    parts = held(store)
    next(parts)
    store.ring.put(step_of(0))
    assert b"".join(parts).count(b"\n") <= 2


# ---- live ---------------------------------------------------------------------------------------------------------


def test_live_goes_on_where_the_reader_was():
    store = Kept()
    for n in range(5):
        store.ring.put(step_of(n))
    with Shown(store) as shown:
        with shown.get("/trace/live?after=2") as reader:
            data = heard(reader, b"\nid: 5")
            assert b"text/event-stream" in data
            assert b'event: header\ndata: {"augury_trace":1' in data
            assert ids(data) == [3, 4, 5]
            store.ring.put(step_of(5))
            assert ids(heard(reader, b"\nid: 6")) == [6]
            heard(reader, b": keep-alive\n\n")
        with shown.get("/trace/live?after=1", "Last-Event-ID: 4") as reader:
            assert ids(heard(reader, b"\nid: 6")) == [5, 6]
        with shown.get("/trace/live?after=3", "Last-Event-ID: nonsense") as reader:
            assert ids(heard(reader, b"\nid: 6")) == [4, 5, 6]
        with shown.get("/trace/live", "Last-Event-ID: 4000") as reader:  # of a server before this one
            assert ids(heard(reader, b"\nid: 6")) == [1, 2, 3, 4, 5, 6]


def test_a_reader_who_comes_late_is_told_what_he_missed():
    store = Kept(LEAST)
    for n in range(200):
        store.ring.put(step_of(n, size=1000))
    with Shown(store) as shown, shown.get("/trace/live?after=3") as reader:
        data = heard(reader, b"id: 200")
        assert f'event: lost\ndata: {{"lost":{store.first - 4}}}'.encode() in data
        assert ids(data)[0] == store.first


def test_readers_are_counted():
    with Shown(Kept()) as shown:
        readers = [shown.get("/trace/live") for _ in range(MOST_READERS)]
        for reader in readers:
            heard(reader, b"event: header")
        with shown.get("/trace/live", "Connection: close") as late:
            data = heard(late, b"which is the limit")
            assert b"503" in data[:20]
            assert b"retry-after: 5" in data
        readers.pop().close()
        end = time.monotonic() + 5
        while time.monotonic() < end:
            with shown.get("/trace/live") as late:
                if b" 200 " in late.recv(64):
                    break
            time.sleep(0.05)
        else:
            pytest.fail("no room came")
        for reader in readers:
            reader.close()


def test_who_does_not_read_holds_nobody(watched):
    """Nor the engine, nor other readers; what he missed he is told."""
    settings = Settings(names=(NAME,), keep_alive_seconds=0.2)
    ring = Ring(LEAST)
    tap = Tap(watched.tap.teller, ring)
    for n in range(60):
        ring.put(step_of(n, size=800))
    with serving(watched.service, settings, send_buffer=4096, tap=tap) as server:
        alone = took(server)
        with server.connect() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.sendall(server.head("GET", "/trace/live"))
            beside = 0.0
            for n in range(5):
                beside = max(beside, took(server))
                for more in range(600):
                    ring.put(step_of(600 * n + more, size=800))
            assert beside < 5 * alone + 1.0
            with server.connect() as reader:
                reader.sendall(server.head("GET", f"/trace/live?after={tap.last - 1}"))
                heard(reader, f"id: {tap.last}".encode())
            data = heard(lazy, f"id: {tap.last}\n".encode())
    found = ids(data)
    lost = sum(json.loads(line)["lost"] for line in re.findall(r'data: (\{"lost".*\})', data.decode()))
    assert lost > 2000
    assert len(found) + lost == tap.last


def took(server):
    """Seconds of an answer."""
    began = time.monotonic()
    asked(server)
    return time.monotonic() - began


def test_live_ends_when_the_server_stops():
    stopping = threading.Event()
    with Shown(Kept(), stopping=stopping.is_set) as shown, shown.get("/trace/live") as reader:
        heard(reader, b"event: header")
        stopping.set()
        end, data = time.monotonic() + 2, b""
        while part := reader.recv(1 << 16):
            data += part
            if data.endswith(b"0\r\n\r\n"):
                break
        assert time.monotonic() < end


def test_live_tells_the_last_events_when_the_server_stops():
    store, stopping = Kept(), threading.Event()
    frames = traces.Live(store, 0, 0.0, stopping.is_set, lambda: None)._frames()

    async def told():
        await anext(frames)
        store.ring.put(step_of(0))
        data = await anext(frames)
        for n in range(1, 600):
            store.ring.put(step_of(n))
        stopping.set()
        return data + b"".join([frame async for frame in frames])

    assert ids(anyio.run(told)) == [*range(1, 601)]


# ---- folded and drawn ---------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_records(watched):
    with serving(watched.service, Settings(names=(NAME,)), tap=watched.tap) as server:
        id = asked(server)
        (one,) = [one for one in server.ask("GET", "/trace/requests?limit=1").json["requests"] if one["id"] == id]
        whole = server.ask("GET", "/v1/models").status
    assert whole == 200
    lines = [json.loads(line) for line in watched.tap.since(0, 1 << 20).lines]
    steps = [event for event in lines if event["kind"] == "step" and event["id"] == id]
    assert one["accepted"] == sum(min(len(s["path"]), len(s["emitted"])) for s in steps)
    assert one["acceptance_length"] == 1 + one["accepted"] / one["steps"]


def test_the_fold_of_a_record_has_the_figures_of_the_record(watched):
    service, came = watched.service, threading.Event()
    request = service.engine.request([1, 2, 3, 1, 2, 3, 1, 2], max_tokens=40, ignore_eos=True)
    service.submit(request, lambda item: came.set() if hasattr(item, "error") else None)
    assert came.wait(30)
    store = Kept()
    teller = watched.tap.teller
    store.ring.put(teller.begin(request, False))
    for n, step in enumerate(request.record.steps):
        store.ring.put(teller.step(request, n, step, False))
    store.ring.put(teller.end(request, False))
    found, wanted = Reading(store).figures(), figures(request.record)
    assert (found["steps"], found["tokens"]) == (wanted.steps, wanted.completion_tokens)
    assert (found["drafted"], found["accepted"]) == (wanted.drafted, wanted.accepted)
    assert found["mean_acceptance_length"] == wanted.mean_acceptance_length
    assert found["acceptance_histogram"] == wanted.acceptance_histogram
    assert found["undrafted"] == wanted.undrafted
    assert found["ms"]["verify"] == pytest.approx(wanted.verify_ms, abs=0.001 * wanted.steps)
    for drafter in wanted.drafters:
        own = found["drafters"][drafter.name]
        assert (own["proposed"], own["drafted"], own["accepted"]) == (
            drafter.proposed, drafter.drafted, drafter.accepted,
        )  # fmt: skip


def test_the_load_is_what_metrics_knows(watched):
    from augury.server.metrics import Metrics

    metrics = Metrics(NAME)
    with serving(watched.service, Settings(names=(NAME,)), metrics, tap=watched.tap) as server:
        asked(server)
        found = server.ask("GET", "/trace/load").json
    assert (found["running"], found["waiting"], found["slots"]) == (0, 0, 2)
    assert found["recent"]["tokens"] >= 16
    assert found["recent"]["tokens_per_second"] == found["recent"]["tokens"] / found["recent"]["window_s"]
    assert found["totals"]["generation_tokens"] == metrics.totals.generation_tokens


def test_a_timeline_is_of_one_request_or_of_the_newest_events(traced):
    id = asked(traced)
    one = traced.ask("GET", f"/trace/timeline.json?id={id}").json
    assert {e["args"]["name"] for e in one["traceEvents"] if e["name"] == "thread_name"} >= {"verifier"}
    few = traced.ask("GET", "/trace/timeline.json?limit=2").json
    assert 0 < len(few["traceEvents"]) < len(one["traceEvents"])


def test_who_asks_while_much_is_unread_is_told_to_come_again(monkeypatch):
    monkeypatch.setattr(traces, "_PATIENCE_S", -1.0)
    store = Kept()
    store.begin()
    reading = Reading(store)
    assert reading.requests(5)["behind"] == 1
    with pytest.raises(faults.Fault) as refused:
        reading.request(1, 0, None)
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
    assert reading.figures()["behind"] == 1
    monkeypatch.setattr(traces, "_PATIENCE_S", 2.0)
    assert json.loads(reading.request(1, 0, None))["begin"]["id"] == 1


def test_the_trace_is_described(traced):
    paths = traced.ask("GET", "/openapi.json").json["paths"]
    assert {"/trace/events", "/trace/requests/{id}", "/trace/reliability"} <= {*paths}
    names = [one["name"] for one in paths["/trace/requests/{id}"]["get"]["parameters"]]
    assert names == ["id", "from", "to"]
