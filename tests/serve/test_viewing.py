"""A trace file under the page: the same answers as of a server, of any size, and nothing of a file that is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from served import Served

from augury.errors import InputError
from augury.record import Proposal, RequestRecord, StepRecord
from augury.sampling import Sampling
from augury.server.running import Front, listen
from augury.server.traces import MOST_BYTES, Reading
from augury.server.viewing import Filed, create_app
from augury.trace import events
from augury.trace.log import TraceFile
from augury.tree import DraftTree, Path

HEADER = events.header(model="m", runner="r", drafters=["suffix", "self"], source="serve", text=False, zero=0.0)


def lines(requests=3, steps=5):
    """A trace of requests that follow each other."""
    yield events.encode(HEADER)
    at = 0.0
    for id in range(1, requests + 1):
        record = RequestRecord(30, ["suffix", "self"], 4, 20.0)
        yield events.encode(
            events.begin(
                id, record, at=at, label="drafted", rule="coupled", sampling=Sampling(), drafters=record.drafters
            )
        )
        for n in range(steps):
            k = n % 4
            tree = DraftTree(
                np.arange(k, dtype=np.int32), np.arange(-1, k - 1, dtype=np.int32),
                np.full(k, 0.5, np.float32), np.zeros(k, np.uint8),
            )  # fmt: skip
            step = StepRecord(
                30 + n, 7, tree, Path((0,) if k else (), 9), (0, 9) if k else (9,), (Proposal("suffix", k, 0.1),),
                None if k else "no drafter had a guess", k + 1, 0.2, 12.0, 0.1, 0.1, 0.4, plain_ms=12.0,
                began=1e-3 * at,
            )  # fmt: skip
            record.steps.append(step)
            yield events.encode(events.step(id, n, step, 0.0, None))
            at += 13.0
        record.finish = "length"
        yield events.encode(events.end(id, record, at, text=False))
        yield events.encode(events.load(at, 1, 0, 0.25))


def written(path, parts=None):
    path.write_bytes(b"\n".join(lines() if parts is None else parts) + b"\n")
    return path


def read(path):
    with ExitStack() as stack:
        file = stack.enter_context(Filed(path))
        reading = Reading(file)
        for number, event in file.read():
            reading.take(number, event)
        stack.pop_all()
    return file, reading


@contextmanager
def viewing(path):
    file, reading = read(path)
    front = Front(listen("127.0.0.1", 0))
    front.open(create_app(reading))
    try:
        yield Served(None, None, front)
    finally:
        front.close()
        file.close()


def test_it_answers_what_a_server_answers(tmp_path):
    path = written(tmp_path / "t.jsonl")
    wanted = [*TraceFile(path)]
    with viewing(path) as server:
        head = server.ask("GET", "/trace/header").json
        assert head == {**HEADER, "first": 1, "last": len(wanted), "live": False}
        part = server.ask("GET", "/trace/events?after=3&limit=4").json
        assert part == {"events": wanted[3:7], "next": 7, "lost": 0}
        listed = server.ask("GET", "/trace/requests?limit=2").json["requests"]
        assert [(one["id"], one["steps"], one["tokens"], one["finish"]) for one in listed] == [
            (3, 5, 8, "length"), (2, 5, 8, "length"),
        ]  # fmt: skip
        one = server.ask("GET", "/trace/requests/2?from=1&to=3").json
        own = [event for event in wanted if event.get("id") == 2]
        assert (one["begin"], one["steps"], one["end"], one["of"]) == (own[0], own[2:4], own[-1], 5)
        assert server.ask("GET", "/trace/reliability").json["steps"] == 15
        assert server.ask("GET", "/trace/timeline.json?id=1").json["traceEvents"]
        assert server.ask("GET", "/trace/trace.jsonl").body == path.read_bytes()
        live = server.ask("GET", "/trace/live")
        assert (live.status, live.body) == (204, b"")


def test_it_is_the_page_without_a_model(tmp_path):
    with viewing(written(tmp_path / "t.jsonl")) as server:
        assert server.ask("GET", "/").headers["content-type"] == "text/html; charset=utf-8"
        assert server.ask("GET", "/health").status == 200
        assert server.ask("HEAD", "/trace/requests").status == 200
        for path in ("/v1/models", "/trace/load", "/metrics", "/docs", "/openapi.json"):
            assert server.ask("GET", path).status == 404
        assert server.ask("POST", "/trace/header", b"x" * 2000).status == 413


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", ""])
def test_other_names_of_this_machine_are_no_way_in(tmp_path, host):
    with viewing(written(tmp_path / "t.jsonl")) as server:
        assert server.ask("GET", "/trace/events", None, f"Host: {host}").status == 400
        assert server.ask("GET", "/trace/events", None, "Origin: http://evil.example").status == 403


def test_empty_lines_and_line_ends_of_elsewhere_are_no_events(tmp_path):
    parts = [*lines()]
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\r\n".join([parts[0], b"", parts[1], b"  ", *parts[2:], b"", b""]))
    file, reading = read(path)
    with file:
        assert file.last == len(parts) - 1
        found = [json.loads(line) for number in range(file.last) for line in file.since(number, 1).lines]
        assert found == [json.loads(line) for line in parts[1:]]
        assert file.since(0, 3).lines == tuple(parts[1:4])
        assert reading.requests(9)["held"] == 3


def test_it_shows_what_the_reader_of_files_reads(tmp_path):
    """White space of JSON anywhere in a line, keys that are not known, and of these values that are no JSON."""
    head, begin, step, *_ = lines()
    path = written(tmp_path / "t.jsonl", [head, begin.replace(b",", b",\r", 3), step[:-1] + b',"note":"<b>"}'])
    file, _ = read(path)
    with file:
        assert [json.loads(line) for line in file.since(0, 9).lines] == [*TraceFile(path)]
        assert b"note" not in file.since(1, 1).lines[0]
    for line in (step[:-1] + b',"note":NaN}', step.replace(b'"rows":1', b'"rows":Infinity')):
        with pytest.raises(InputError, match="line 3: it is not JSON"):
            read(written(tmp_path / "t.jsonl", [head, begin, line]))


def test_a_file_without_events_has_none(tmp_path):
    file, reading = read(written(tmp_path / "t.jsonl", [events.encode(HEADER)]))
    with file:
        assert (file.first, file.last, file.since(0, 9).lines) == (1, 0, ())
        assert reading.requests(9)["held"] == 0


def test_a_torn_end_is_left_out(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n".join(lines())[:-10])
    file, _ = read(path)
    with file:
        assert file.last == len([*lines()]) - 2
        assert "was cut off" in file.torn
        assert file.since(file.last - 1, 5).lines == ([*lines()][-2],)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda parts: [], "it is empty"),
        (lambda parts: parts[1:], "it has no version"),
        (lambda parts: [parts[0].replace(b'"augury_trace":1', b'"augury_trace":2'), *parts[1:]], "version 2"),
        (lambda parts: [*parts[:2], b"{", *parts[2:]], "line 3: it is not JSON"),
        (lambda parts: [*parts[:2], b"[]", *parts[2:]], "line 3: it is a JSON list"),
        (lambda parts: [*parts[:2], b'{"kind":"odd"}', *parts[2:]], 'line 3: "kind" is'),
        (lambda parts: [*parts[:2], parts[2].replace(b'"path":', b'"path":[9],"x":'), *parts[3:]], "line 3: "),
        (lambda parts: [*parts[:2], b"[" * 100_000, *parts[2:]], "line 3: it is not JSON"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, spoil, said):
    path = written(tmp_path / "t.jsonl", spoil([*lines()]))
    with pytest.raises(InputError) as refused:
        read(path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_changes_is_noticed(tmp_path):
    path = written(tmp_path / "t.jsonl")
    with viewing(path) as server:
        os.truncate(path, 600)
        answer = server.ask("GET", "/trace/events?after=5")
        assert (answer.status, "has changed" in answer.error["message"]) == (400, True)


def test_long_lines_come_a_few_at_a_time(tmp_path):
    parts = [*lines(1, 1)]
    load = events.encode(events.load(1.0, 1, 0, 0.5))[:-1]
    long = load + b',"note":"' + b"x" * (MOST_BYTES // 3) + b'"}'
    path = written(tmp_path / "t.jsonl", [*parts, *[long] * 9])
    file, _ = read(path)
    with file:
        found, after = 0, 0
        while (part := file.since(after, 1000)).lines:
            assert sum(map(len, part.lines)) <= MOST_BYTES
            found, after = found + len(part.lines), part.next
        assert found == file.last == len(parts) + 8


def test_a_large_file_is_not_held_in_memory(tmp_path):
    path = written(tmp_path / "t.jsonl", lines(40, 200))
    tracemalloc.start()
    file, reading = read(path)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    with file:
        assert file.last == 40 * 203
        assert kept < path.stat().st_size // 8
        page = json.loads(reading.request(40, 190, None))
        assert [step["n"] for step in page["steps"]] == [*range(190, 200)]


def test_the_command_serves_until_ctrl_c(tmp_path):
    path = written(tmp_path / "t.jsonl")
    command = [sys.executable, "-m", "augury", "trace", str(path), "--open", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        line = running.stderr.readline()
        assert line.startswith("augury: 24 events of t.jsonl at http://127.0.0.1:")
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0


@pytest.mark.real
def test_the_page_shows_of_a_bench_what_its_document_says(tmp_path):
    """One run, twice written: as a document of figures, and as a trace that the page folds by itself."""
    trace, document = tmp_path / "t.jsonl", tmp_path / "d.json"
    command = [sys.executable, "-m", "augury", "bench", "--limit", "1", "--kinds", "qa,translation"]
    options = ["--max-tokens", "24", "--rounds", "1", "--drafters", "suffix,prediction"]
    ran = subprocess.run(
        [*command, *options, "--trace", str(trace), "--json", str(document)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    (run,) = json.loads(document.read_text("utf-8"))["runs"]
    told = [
        (way, f["completion_tokens"], f["steps"], f["drafted"], f["accepted"], f["tokens_per_second"], f["decode_ms"])
        for pair in run["pairs"]
        for way in ("plain", "drafted")
        for f in [pair[way]["figures"]]
    ]
    with viewing(trace) as server:
        shown = server.ask("GET", "/trace/requests?limit=9").json["requests"]
    keys = ("label", "tokens", "steps", "drafted", "accepted", "tokens_per_second", "ms")
    ways = [tuple(one[key] for key in keys) for one in shown]
    assert len(ways) == len(told) == 4
    for found, wanted in zip(sorted(ways), sorted(told), strict=True):
        assert found[:5] == wanted[:5]
        assert found[5:] == pytest.approx(wanted[5:], rel=1e-3)  # a trace has times to a thousandth of a millisecond
