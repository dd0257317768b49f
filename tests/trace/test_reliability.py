"""The fold of a trace: what it says of drafters, added up by hand."""

from __future__ import annotations

import math

import pytest

from augury.record import PHASES
from augury.trace.reliability import MOST_SPANS, Reliability


def fold(events, drafters=()):
    made = Reliability(drafters)
    for event in events:
        made.add(event)
    return made


def begin(id=1, label="drafted", drafters=("suffix", "self")):
    return {"kind": "begin", "id": id, "label": label, "drafters": [*drafters]}


def offer(drafter, nodes, ms, unasked=None, fault=None):
    return {"drafter": drafter, "nodes": nodes, "ms": ms, "unasked": unasked, "fault": fault}


def step(id=1, source=(), survival=(), path=(), emitted=1, own="plain", **more):
    event = {
        "kind": "step", "id": id, "at": 0.0, "path": [*path], "emitted": [0] * emitted, "source": [*source],
        "survival": [*survival], "own": own, "proposals": [], "reason": None, "rows": len(source) + 1, "requests": 1,
        "draft_ms": 1.0, "verify_ms": 10.0, "accept_ms": 0.5, "commit_ms": 0.5, "rest_ms": 1.0, "plain_ms": 10.0,
        "saved_ms": None,
    }  # fmt: skip
    event |= more
    if event["saved_ms"] == "told":
        ms = sum(event[f"{phase}_ms"] for phase in PHASES)
        event["saved_ms"] = emitted * event["plain_ms"] - ms
    return event


def test_nothing_gives_nothing():
    found = Reliability().figures()
    assert (found["steps"], found["mean_acceptance_length"], found["draft_acceptance_rate"]) == (0, None, None)
    assert (found["acceptance_histogram"], found["drafters"], found["over_time"], found["time_shares"]) == (
        [],
        {},
        [],
        {},
    )
    assert (found["saved_ms"], found["rows"]) == (None, None)


def test_each_drafter_is_judged_by_its_own_nodes():
    found = fold([
        begin(),
        # suffix guesses two in a row, self one beside them; the first of suffix and self's child of it are kept.
        step(source=[0, 0, 1], survival=[0.8, 0.4, 0.35], path=[0, 2], emitted=3, own="bonus"),
        step(source=[0, 1], survival=[0.9, 0.05], path=[], emitted=1, own="correction"),
        step(reason="no drafter had a guess"),
    ]).figures()  # fmt: skip
    suffix, itself = found["drafters"]["suffix"], found["drafters"]["self"]
    assert (suffix["drafted"], suffix["accepted"], suffix["verified"]) == (3, 1, 2)
    assert (suffix["hit_rate"], suffix["acceptance_rate"], suffix["runs"]) == (0.5, 1 / 3, [1, 1])
    assert (itself["drafted"], itself["accepted"], itself["hit_rate"], itself["runs"]) == (2, 1, 0.5, [1, 1])
    assert (found["drafted"], found["accepted"], found["tokens"], found["steps"]) == (5, 2, 5, 3)
    assert found["mean_acceptance_length"] == 1 + 2 / 3
    assert found["acceptance_histogram"] == [2, 0, 1]
    assert found["undrafted"] == {"no drafter had a guess": 1}


def test_calibration_compares_what_was_stated_with_what_came():
    found = fold([
        begin(),
        *[step(source=[0], survival=[0.75], path=[0] if n < 3 else [], emitted=1, own="bonus") for n in range(4)],
        step(source=[0, 0], survival=[1.0, 0.2], path=[], own="correction"),
    ]).figures()["drafters"]["suffix"]  # fmt: skip
    assert found["calibration"] == [
        {"nodes": 1, "stated": 0.2, "accepted": 0.0},
        {"nodes": 4, "stated": 0.75, "accepted": 0.75},
        {"nodes": 1, "stated": 1.0, "accepted": 0.0},
    ]
    assert found["calibration_error"] == pytest.approx((0.2 + 1.0) / 6)


def test_what_a_stop_cut_off_was_right_but_brought_nothing():
    found = fold([begin(), step(source=[0, 0], survival=[0.8, 0.7], path=[0, 1], emitted=1, own=None)]).figures()
    assert (found["accepted"], found["drafters"]["suffix"]["accepted"]) == (1, 1)
    assert [one["accepted"] for one in found["drafters"]["suffix"]["calibration"]] == [1.0, 1.0]


def test_what_is_saved_is_shared_out_and_nothing_is_lost():
    events = [
        begin(),
        step(
            source=[0, 0, 1], survival=[0.9, 0.8, 0.1], path=[0, 1], emitted=3, own="correction", saved_ms="told",
            proposals=[offer("suffix", 2, 0.1), offer("self", 1, 0.7)],
        ),
        step(
            source=[1], survival=[0.5], emitted=1, own="correction", saved_ms="told",
            proposals=[offer("self", 1, 0.9)],
        ),
        step(source=[0, 0], survival=[0.9, 0.8], path=[0, 1], emitted=2, own=None, saved_ms="told"),
        step(source=[0, 0], survival=[0.9, 0.8], path=[0, 1], emitted=1, own=None, saved_ms="told"),
    ]  # fmt: skip
    found = fold(events).figures()
    shared = sum(of["saved_ms"] for of in found["drafters"].values())
    assert shared == pytest.approx(found["saved_ms"]) == pytest.approx(sum(e["saved_ms"] for e in events[1:]))
    # The first step alone: two tokens of suffix, a third of the wider step for each node, each its own proposal.
    first = fold(events[:2]).figures()["drafters"]
    wider = (13.0 - 10.0 - 0.8) / 3
    assert first["suffix"]["saved_ms"] == pytest.approx(20.0 - 0.1 - 2 * wider)
    assert first["self"]["saved_ms"] == pytest.approx(-0.7 - wider)
    assert fold([begin(), step(source=[0], survival=[0.5])]).figures()["drafters"]["suffix"]["saved_ms"] is None


def test_what_a_shared_step_saves_is_saved_once():
    shared = [
        step(
            id, source=[0], survival=[0.9], path=[0], emitted=2, own="bonus", requests=4, rows=8, plain_ms=12.0,
            draft_ms=2.0, verify_ms=15.0, accept_ms=1.0, commit_ms=1.0, rest_ms=1.0, saved_ms="told",
            proposals=[offer("suffix", 1, 0.1 * id)],
        )
        for id in range(1, 5)
    ]  # fmt: skip
    found = fold([*map(begin, range(1, 5)), *shared]).figures()
    assert found["saved_ms"] == pytest.approx(4.0)  # four plain steps of two rounds, 24 ms, in 20
    assert found["drafters"]["suffix"]["saved_ms"] == pytest.approx(4.0)


def test_offers_are_counted_whatever_came_of_them():
    found = fold([
        begin(),
        step(proposals=[offer("suffix", 4, 0.2), offer("self", 0, 0.0, unasked="it does not pay")]),
        step(proposals=[offer("suffix", 0, 0.1), offer("self", 0, 0.3, fault="it raised")]),
    ]).figures()["drafters"]  # fmt: skip
    suffix, itself = found["suffix"], found["self"]
    assert (suffix["asked"], suffix["offered"], suffix["proposed"]) == (2, 1, 4)
    assert suffix["ms"] == pytest.approx(0.3)
    assert (itself["asked"], itself["faults"], itself["unasked"]) == (1, 1, {"it does not pay": 1})


def test_time_that_is_shared_counts_once():
    steps = [step(id, requests=2, rows=6) for id in (1, 2)]
    found = fold([begin(1), begin(2), *steps]).figures()
    assert found["ms"] == {"draft": 1.0, "verify": 10.0, "accept": 0.5, "commit": 0.5, "rest": 1.0}
    assert sum(found["time_shares"].values()) == pytest.approx(1.0)
    assert found["rows"] == 6.0
    # But each waits for all of it.
    assert found["over_time"][0]["tokens_per_second"] == {"drafted": pytest.approx(1e3 / 13)}


def test_speed_is_told_apart_by_label_and_time():
    found = fold([
        begin(1, "plain"), begin(2),
        *[step(1, at=100.0 * n) for n in range(20)],
        *[step(2, at=5e3 + 100.0 * n, source=[0], survival=[0.9], path=[0], emitted=2, own="bonus") for n in range(5)],
    ])  # fmt: skip
    spans = found.figures()["over_time"]
    assert [(span["at"], span["steps"]) for span in spans] == [(0.0, 10), (1000.0, 10), (5000.0, 5)]
    assert spans[0]["tokens"] == {"plain": 10}
    assert spans[2]["acceptance_length"] == 2.0
    assert spans[2]["tokens_per_second"]["drafted"] == pytest.approx(2 * spans[0]["tokens_per_second"]["plain"])


@pytest.mark.parametrize("seconds", [100, 1000, 100_000])
def test_spans_grow_and_their_number_does_not(seconds):
    found = Reliability()
    found.add(begin())
    for n in range(400):
        found.add(step(at=1e3 * seconds * n / 400))
    told = found.figures()
    assert len(told["over_time"]) <= MOST_SPANS
    assert sum(span["steps"] for span in told["over_time"]) == 400
    assert told["span_ms"] * MOST_SPANS >= 1e3 * seconds * 399 / 400


@pytest.mark.parametrize("at", [-5.0, 1e300, math.inf])
def test_moments_beyond_all_sense_end(at):
    assert fold([begin(), step(at=at), step(at=1.0)]).figures()["steps"] == 2


def test_without_its_beginning_a_step_goes_by_the_header():
    found = fold([step(7, source=[1], survival=[0.5])], ["suffix", "self"]).figures()
    assert found["drafters"]["self"]["drafted"] == 1
    assert found["over_time"][0]["tokens"] == {"": 1}


def test_what_is_kept_does_not_grow_with_the_trace():
    found = Reliability()
    for id in range(10_000):
        found.add(begin(id, f"label {id}", [f"drafter {id}"]))
        found.add(step(id, source=[0], survival=[0.5], reason=f"reason {id}"))
    told = found.figures()
    assert len(told["drafters"]) <= 65
    assert len(told["undrafted"]) <= 65
    assert len(told["over_time"][0]["tokens"]) <= 17
    assert sum(of["drafted"] for of in told["drafters"].values()) == 10_000
    assert len(found._open) <= 4096


def test_kinds_it_does_not_know_are_passed_over():
    assert fold([{"kind": "load"}, {"kind": "new"}, {}, {"kind": "end", "id": 5}]).figures()["steps"] == 0
