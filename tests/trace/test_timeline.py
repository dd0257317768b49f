"""Timelines: every rule of Perfetto's importer, and what is where."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from traced import check_chrome, header, told, traces

from augury.conformance.toys import ToyTarget, oracle
from augury.engine.engine import Engine
from augury.record import Proposal, RequestRecord, StepRecord
from augury.trace import events
from augury.trace.timeline import document, timeline
from augury.tree import DraftTree, Path


def step(began, *, ms=(1.0, 10.0, 0.25, 0.5, 0.25), rows=2, requests=1, proposals=(), emitted=(7, 9)):
    tree = DraftTree.of([7], [-1], [0.5])
    return StepRecord(
        3, 1, tree, Path((0,), 9), emitted, proposals, None, rows, *ms, began=began, plain_ms=9.0, requests=requests
    )


def request(began, *steps, prefill_ms=4.0):
    return RequestRecord(4, ("suffix", "eagle"), 0, prefill_ms, list(steps), "length", began=began)


def slices(rows):
    """(process, track) -> its slices as (name, begin, end)."""
    names = {(row["pid"], row["tid"]): row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    processes = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    found = {(processes[pid], name): [] for (pid, _), name in names.items()}
    for row in rows:
        if row["ph"] == "X":
            where = processes[row["pid"]], names[row["pid"], row["tid"]]
            found[where].append((row["name"], row["ts"], row["ts"] + row["dur"]))
    return found


def counts(rows, name):
    return [(row["ts"], row["args"]) for row in rows if row["ph"] == "C" and row["name"] == name]


@given(traces())
def test_what_perfetto_wants(rows):
    check_chrome(timeline(rows))


@given(traces(pairs=True))
def test_what_perfetto_wants_of_pairs(rows):
    _, processes, tracks = check_chrome(timeline(rows))
    assert not rows or {pid for pid, _ in tracks} == set(processes)


@given(traces())
def test_the_whole_file_is_json(rows):
    whole = json.loads("".join(document(header(), rows)))
    assert whole["traceEvents"] == timeline(rows)
    assert whole["otherData"]["model"] == "toy"


def test_one_request_by_hand():
    offers = (Proposal("suffix", 3, 0.25), Proposal("eagle", 1, 0.5), Proposal("self", 0, 0.0, None, "not worth it"))
    rows = timeline(told(1, request(0.010, step(0.015, proposals=offers), step(0.0275))))
    assert slices(rows) == {
        ("requests", "request 1 drafted"): [
            ("request 1 drafted", 10_000, 39_500),
            ("prompt", 11_000, 15_000),
            ("step, 2 tokens", 15_000, 27_000),
            ("draft", 15_000, 16_000),
            ("verify", 16_000, 26_000),
            ("accept", 26_000, 26_250),
            ("commit", 26_250, 26_750),
            ("rest", 26_750, 27_000),
            ("step, 2 tokens", 27_500, 39_500),
            ("draft", 27_500, 28_500),
            ("verify", 28_500, 38_500),
            ("accept", 38_500, 38_750),
            ("commit", 38_750, 39_250),
            ("rest", 39_250, 39_500),
        ],
        ("engine", "verifier"): [("forward", 16_000, 26_000), ("forward", 28_500, 38_500)],
        ("engine", "drafter suffix"): [("propose", 15_000, 15_250)],
        ("engine", "drafter eagle"): [("propose", 15_250, 15_750)],
    }
    assert counts(rows, "batch") == [(16_000, {"rows": 2}), (28_500, {"rows": 2}), (38_500, {"rows": 0})]
    assert counts(rows, "acceptance") == [(16_000, {"length": 2.0}), (28_500, {"length": 2.0})]
    first = next(row for row in rows if row["ph"] == "X" and row["name"].startswith("step"))
    assert first["args"] == {
        "n": 0, "position": 3, "rows": 2, "requests": 1, "own": "bonus", "saved_ms": 6.0, "drafted": 1, "accepted": 1,
    }  # fmt: skip


def test_requests_that_share_a_step_share_its_forward():
    shared = [step(0.015, rows=4, requests=2), step(0.015, rows=4, requests=2, emitted=(7,))]
    rows = timeline([*told(1, request(0.010, shared[0])), *told(2, request(0.011, shared[1]))])
    assert slices(rows)["engine", "verifier"] == [("forward", 16_000, 26_000)]
    assert counts(rows, "acceptance") == [(16_000, {"length": 2.0})]
    ends = [(row["ph"], row["id"], row["ts"]) for row in rows if row["ph"] in "sf"]
    assert sorted(ends, key=lambda end: (end[1], end[0] == "f")) == [
        ("s", 1, 16_000), ("f", 1, 16_000), ("s", 2, 16_000), ("f", 2, 16_000),
    ]  # fmt: skip


def test_the_plain_run_of_a_pair_lies_above_the_drafted_one_and_both_begin_together():
    one = [
        *told(1, request(1.0, step(1.005)), label="drafted", pair="qa-1"),
        *told(2, request(0.5, step(0.505), step(0.520)), label="plain", pair="qa-1"),
        *told(3, request(2.0, step(2.005)), label="plain", pair="qa-2"),
    ]
    rows = timeline(one)
    found = slices(rows)
    assert list(found)[:2] == [("qa-1", "plain"), ("qa-1", "drafted")]
    assert [found["qa-1", run][0][1] for run in ("plain", "drafted")] == [500_000, 500_000]
    assert found["qa-1", "drafted: verifier"] == [("forward", 506_000, 516_000)]
    assert found["qa-2", "plain"][0][1] == 2_000_000
    order = {row["pid"]: row["args"]["sort_index"] for row in rows if row["name"] == "process_sort_index"}
    assert order == {1: 1, 2: 2}
    check_chrome(rows)


def test_pairs_beside_other_requests_keep_their_times():
    rows = timeline(
        [
            *told(1, request(1.0, step(1.005)), label="drafted", pair="race"),
            *told(2, request(1.2, step(1.205))),
            *told(3, request(1.4, step(1.405)), label="plain", pair="race"),
        ]
    )
    tracks = [track for process, track in slices(rows) if process == "requests"]
    assert tracks == ["request 3 plain race", "request 1 drafted race", "request 2 drafted"]
    assert slices(rows)["requests", "request 3 plain race"][0][1] == 1_400_000


def test_the_load_is_counted():
    rows = timeline([events.load(5.0, 2, 1, 0.5), events.load(1.0, 1, 0, 0.25)])
    assert counts(rows, "queue") == [(1000, {"running": 1, "waiting": 0}), (5000, {"running": 2, "waiting": 1})]
    assert counts(rows, "cache") == [(1000, {"used": 0.25}), (5000, {"used": 0.5})]


def test_one_request_alone():
    two = [*told(1, request(1.0, step(1.005))), *told(2, request(1.2, step(1.205))), events.load(1.0, 1, 0, 0.1)]
    rows = timeline(two, only=2)
    assert [track for process, track in slices(rows) if process == "requests"] == ["request 2 drafted"]
    assert counts(rows, "queue") == []


def test_a_request_that_has_not_ended_or_begun_before():
    whole = told(1, request(1.0, step(1.005), step(1.020)))
    rows = timeline(whole[2:-1])
    (found,) = (row for process, row in slices(rows).items() if process == ("requests", "request 1"))
    assert found[0] == ("request 1, not ended", 1_020_000, 1_032_000)


def test_what_began_before_the_clock_moves_all():
    rows = timeline(told(1, request(-0.010, step(-0.005))))
    assert slices(rows)["requests", "request 1 drafted"][0][1] == 0


def test_steps_of_an_engine_nest(tmp_path):
    target = ToyTarget(5, seed=3)
    with Engine(target, [("oracle", oracle([1, 0, 1] * 20, 2, 5))], slots=3) as engine:
        results = engine.generate_all([[0, 2, 1], [1, 2], [2, 2, 2]], max_tokens=12)
    rows = [row for id, one in enumerate(results, 1) for row in told_of(id, one.record)]
    names, _, tracks = check_chrome(timeline(rows))
    assert names["step"] == sum(len(one.record.steps) for one in results)
    assert names["forward"] < names["step"]
    assert {"verifier", "drafter oracle"} <= set(tracks.values())


def told_of(id, record, zero=0.0, label="drafted", pair=None):
    from augury.sampling import Sampling

    yield events.begin(
        id, record, at=1e3 * (record.began - zero), label=label, rule="coupled", sampling=Sampling(),
        drafters=record.drafters, pair=pair,
    )  # fmt: skip
    for n, one in enumerate(record.steps):
        yield events.step(id, n, one, zero, None)
    last = record.steps[-1]
    yield events.end(id, record, 1e3 * (last.began - zero) + last.ms, text=False)


@pytest.mark.real
def test_a_traced_run_of_the_embedded_model(engine):
    prompt = engine.render("Count from one to ten, twice.")
    rows = []
    for id, draft in enumerate((False, True), 1):
        engine.close()
        record = engine.generate(prompt, max_tokens=24, draft=draft).record
        rows += told_of(id, record, label="drafted" if draft else "plain", pair="count")
    drawn = timeline(rows)
    names, processes, tracks = check_chrome(drawn)
    assert list(processes.values()) == ["count"]
    assert [*tracks.values()][:2] == ["plain", "drafted"]
    assert names["forward"] == names["step"] == sum(row["kind"] == "step" for row in rows)
    # Clocks are read one behind the other: nothing had to be moved to make room.
    for name, began, _ in slices(drawn)["count", "plain"]:
        if name.startswith("step"):
            assert began in {round(1e3 * row["at"]) for row in rows if row["kind"] == "step" and row["id"] == 1}
