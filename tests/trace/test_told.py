"""Events of requests as whoever traces tells them."""

from __future__ import annotations

import pytest
from traced import word

from augury.record import RequestRecord, StepRecord
from augury.sampling import Sampling
from augury.trace.told import Teller
from augury.tree import DraftTree, Path


@pytest.fixture
def record():
    """A request of one step, which takes 14 ms from second 12 on."""
    step = StepRecord(3, 1, DraftTree.empty(), Path((), 5), (5,), (), None, 1, 1.0, 10.0, 1.0, 1.0, 1.0, began=12.0)
    return RequestRecord(3, ("suffix",), steps=[step], began=11.5)


def begun(teller, record):
    return teller.begin(7, record, [0, 4, 5], label="drafted", rule="coupled", sampling=Sampling())


def test_it_begins_with_its_slot_and_ends_with_its_last_step(record):
    teller = Teller(10.0)
    assert begun(teller, record)["at"] == 1500.0
    assert teller.step(7, 0, record.steps[0])["at"] == 2000.0
    record.finish = "length"
    assert teller.end(7, record)["at"] == 2014.0


def test_one_that_did_not_come_to_its_end_ends_now(record):
    teller = Teller(10.0)
    record.finish = "cancelled"
    before = teller.now
    told = teller.end(7, record, MemoryError("private"))
    assert before <= told["at"] <= teller.now
    assert told["error"] == "MemoryError"
    record.began = 0.0  # it never had a slot
    assert before <= begun(teller, record)["at"] <= teller.now


def test_text_is_there_where_tokens_can_be_spelt(record):
    record.finish, record.stop = "stop", "secret"
    teller = Teller(10.0, word)
    assert begun(teller, record)["prompt"] == [0, 4, 5]
    assert begun(teller, record)["prompt_text"] == b" the\xe4\xbb\x8a".decode()
    assert "texts" in teller.step(7, 0, record.steps[0])
    assert teller.end(7, record)["stop"] == "secret"
    silent = Teller(10.0)
    assert not {"prompt", "prompt_text"} & begun(silent, record).keys()
    assert "texts" not in silent.step(7, 0, record.steps[0])
    assert silent.end(7, record)["stop"] is True
