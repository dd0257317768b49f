"""Records as events, and back."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traced import WORDS, header, requests, steps, told, traces, word

import augury
from augury.conformance.toys import ToyTarget, noisy
from augury.engine.engine import Engine
from augury.noise import Noise, Stream
from augury.record import RequestRecord, StepRecord
from augury.sampling import Sampling
from augury.trace import events, records
from augury.trace.explain import legible
from augury.trace.figures import figures
from augury.trace.log import Check
from augury.tree import DraftTree, Path


@given(steps())
def test_a_step_comes_back_as_it_was_written(step):
    event = events.step(3, 1, step, 0.0, None)
    again = json.loads(events.encode(event))
    assert again == event
    back = events.step(3, 1, records.step(event), 0.0, None)
    for key in ("saved_ms", "at"):  # computed from what is rounded
        assert back.pop(key) == pytest.approx(event.pop(key), abs=0.08)
    assert back == event


@given(requests())
def test_figures_of_a_trace_are_those_of_the_record(record):
    (one,) = records.requests(header(), told(1, record))
    found, kept = asdict(figures(one.record)), asdict(figures(record))
    # Times are rounded, and what is divided by them may be anything.
    times = []
    for figure in (found, kept):
        figure.pop("tokens_per_second")
        own = [figure.pop(name) for name in ("prefill_ms", "decode_ms", "draft_ms", "verify_ms", "rest_ms")]
        times.append([*own, *(one.pop("ms") for one in figure["drafters"])])
    assert times[0] == pytest.approx(times[1], abs=0.03)
    assert found == kept


@given(traces())
def test_what_is_written_is_what_readers_take(rows):
    check = Check(header())
    for row in rows:
        assert check(json.loads(events.encode(row))) == row


def test_a_step_by_hand():
    tree = DraftTree.of([7, 8, 9], [-1, 0, 0], [0.9, 0.81, 1 / 3])
    step = StepRecord(
        30, 504, tree, Path((0, 2), 99), (7, 9, 99), (), None, 4, 1.0, 10.0, 0.25, 0.125, 0.5, (0.5, float("nan"), 0.1),
        {1: 0.25}, 2.5, 9.0, 2,
    )  # fmt: skip
    event = events.step(7, 3, step, 2.0, events.pieces(word))
    assert event == {
        "kind": "step", "id": 7, "n": 3, "at": 500.0, "position": 30, "root": 504, "tokens": [7, 8, 9],
        "parents": [-1, 0, 0], "source": [0, 0, 0], "survival": [0.9, 0.81, 0.3333], "p": [0.5, None, 0.1],
        "q": {"1": 0.25}, "path": [0, 2], "next": 99, "own": "bonus", "emitted": [7, 9, 99], "proposals": [],
        "reason": None, "rows": 4, "requests": 2, "draft_ms": 1.0, "verify_ms": 10.0, "accept_ms": 0.25,
        "commit_ms": 0.125, "rest_ms": 0.5, "plain_ms": 9.0, "saved_ms": 15.125, "coins": None,
        "texts": {"504": "‹E4›", "99": " the", "7": "<script>", "8": "\\u{1B}[31m", "9": "‹E4›"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "emitted", "own"),
    [((), (5,), "correction"), ((0,), (7, 5), "correction"), ((1,), (8, 5), "bonus"), ((0,), (7,), None)],
)
def test_what_the_own_token_is(nodes, emitted, own):
    tree = DraftTree.of([7, 8, 9], [-1, -1, 0], [0.9, 0.8, 0.7])
    step = StepRecord(3, 1, tree, Path(nodes, 5), emitted, (), None, 4, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert events.step(1, 0, step, 0.0, None)["own"] == own


def test_a_plain_step_has_a_plain_token():
    step = StepRecord(3, 1, DraftTree.empty(), Path((), 5), (5,), (), "nothing", 1, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert events.step(1, 0, step, 0.0, None)["own"] == "plain"


@given(st.lists(st.sampled_from([one for one in WORDS if "‹".encode() not in one])))
def test_spelling_can_be_read_again(words):
    raw = b"".join(words)
    assert records.spelt(legible(raw)[1:-1]) == raw
    assert b"".join(records.spelt(legible(one)[1:-1]) for one in words) == raw


@given(st.binary(max_size=12))
def test_any_bytes_come_back(raw):
    if "‹".encode() not in raw:
        assert records.spelt(legible(raw)[1:-1]) == raw


def test_characters_of_several_tokens_are_whole_in_the_answer():
    record = RequestRecord(3, ())
    tokens = (0, 4, 5, 3)  # two of them are parts of one character
    for token in tokens:
        record.steps.append(
            StepRecord(3, 1, DraftTree.empty(), Path((), token), (token,), (), None, 1, 1.0, 1.0, 1.0, 1.0, 1.0)
        )
    (one,) = records.requests(header(True), told(1, record, text=True))
    assert one.answer == b" the\xe4\xbb\x8a".decode() + "天"
    (one,) = records.requests(header(), told(1, record))
    assert one.answer is None
    assert one.token(17) == b"<17>"


def test_the_end_token_is_no_part_of_the_answer():
    record = RequestRecord(3, (), finish="stop", stop=0)
    for token in (3, 0):
        record.steps.append(
            StepRecord(3, 1, DraftTree.empty(), Path((), token), (token,), (), None, 1, 1.0, 1.0, 1.0, 1.0, 1.0)
        )
    (one,) = records.requests(header(True), told(1, record, text=True))
    assert one.answer == "天"


def test_what_the_sampling_holds_of_the_prompt_is_not_told():
    sampling = Sampling(temperature=0.7, bad_words=((5, 6), (7,)), logit_bias={3: -1.0}, seed=9, stop_token_ids=(4,))
    (begin, *_) = told(1, RequestRecord(3, ()), sampling=sampling)
    assert begin["sampling"] == {"temperature": 0.7, "bad_words": 2, "logit_bias": 1, "seed": 9, "stop_token_ids": 1}
    assert "prompt" not in begin


@pytest.mark.parametrize("stop", ["the password is", 17, None])
def test_a_stop_string_is_told_with_text_alone(stop):
    record = RequestRecord(3, (), finish="stop", stop=stop)
    (end,) = (event for event in told(1, record) if event["kind"] == "end")
    assert end["stop"] == (True if isinstance(stop, str) else stop)
    (one,) = records.requests(header(), [end])
    assert one.record.stop == (None if isinstance(stop, str) else stop)
    assert events.end(1, record, 0.0, text=True)["stop"] == stop


def test_half_a_surrogate_pair_does_not_stop_the_writer():
    record = RequestRecord(3, (), finish="stop", stop="a\ud800b")
    assert json.loads(events.encode(events.end(1, record, 1.0, text=True)))["stop"] == "a?b"


def test_the_header_says_when_its_clock_began():
    zero = time.perf_counter() - 100.0
    made = header(zero=zero)
    assert made["unix"] == pytest.approx(time.time() - 100.0, abs=1.0)
    assert (made["augury_trace"], made["version"]) == (1, augury.__version__)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_verdict_can_be_followed_from_its_coins(rule):
    """Of a chain of sampled nodes: by rejection the coin times q lies below p exactly where a node was accepted."""
    target, model = ToyTarget(5, seed=3), ToyTarget(5, seed=4)
    with Engine(target, [("noisy", noisy(model, depth=3))], acceptance=rule) as engine:
        result = engine.generate([0, 2, 1], Sampling(temperature=1.0, seed=7), max_tokens=40, explain=True)
        silent = engine.generate([0, 2, 1], Sampling(temperature=1.0, seed=7), max_tokens=40)
    assert [s.emitted for s in silent.record.steps] == [s.emitted for s in result.record.steps]
    assert all(s.coins is None for s in silent.record.steps)
    fell = set()
    for step in result.record.steps:
        assert step.coins is not None
        assert len(step.coins) == len(step.tree)
        for node, coin in enumerate(step.coins):
            if rule == "block":
                assert coin == Noise(7, Stream.ACCEPT).uniform(step.position + 1, node + 1)
                continue
            tried = node <= len(step.path.nodes)
            assert (coin is not None) == tried
            if coin is not None:
                assert (coin * step.sampled[node] < step.probabilities[node]) == (node in step.path.nodes)
                fell.add(node in step.path.nodes)
    assert rule == "block" or fell == {True, False}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=1)])
def test_a_coupled_verdict_has_no_coins(sampling):
    with Engine(ToyTarget(5, seed=3), [("noisy", noisy(ToyTarget(5, seed=4), depth=2))]) as engine:
        record = engine.generate([0, 2, 1], sampling, max_tokens=6, explain=True).record
    assert all(step.coins is None for step in record.steps)
    assert any(step.probabilities for step in record.steps)


def test_siblings_are_tried_up_to_the_accepted_one():
    from augury.accept import RULES

    tree = DraftTree.of([1, 2, 3, 4], [-1, -1, -1, 1], [0.5, 0.4, 0.3, 0.2])
    noise = Noise(5, Stream.ACCEPT)
    assert RULES["rejection"].coins(tree, Path((1,), 9), noise, 20) == (
        noise.uniform(20, 0), noise.uniform(20, 1), None, noise.uniform(21, 0),
    )  # fmt: skip
    assert RULES["coupled"].coins is None


def test_encoding_numbers_of_arrays():
    """Nothing of numpy is left in an event: JSON does not know it."""
    step = StepRecord(
        3, 1, DraftTree.of([5], [-1], [np.float32(0.1)]), Path((0,), 5), (5, 5), (), None, 2, 1.0, 1.0, 1.0, 1.0, 1.0
    )
    assert b'"survival":[0.1]' in events.encode(events.step(1, 0, step, 0.0, None))
