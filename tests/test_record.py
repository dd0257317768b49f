"""Figures by hand count."""

from __future__ import annotations

from dataclasses import replace

from augury.record import RequestRecord, StepRecord
from augury.tree import DraftTree, Path


def record(tree, nodes, emitted):
    return StepRecord(5, 1, tree, Path(nodes, 9), emitted, (), None, len(tree) + 1, 1.0, 6.0, 1.0, 0.5, 1.5)


def test_rejected_tail_and_bonus_are_not_accepted_tokens():
    # Proposed right, wrong, right, right: one accepted, four drafted, two emitted.
    chain = DraftTree.chain([1, 2, 3, 4], [0.9] * 4)
    step = record(chain, (0,), (1, 9))
    assert (step.accepted, step.drafted, len(step.emitted), step.sources) == (1, 4, 2, (0, -1))


def test_what_a_stop_cut_off_is_not_accepted():
    chain = DraftTree.chain([1, 2, 3, 4], [0.9] * 4)
    step = record(chain, (0, 1, 2, 3), (1, 2))
    assert (step.accepted, step.sources) == (2, (0, 0))


def test_request_figures():
    chain = DraftTree.chain([1, 2, 3, 4], [0.9] * 4)
    whole = RequestRecord(7, ("a",))
    assert (whole.acceptance_length, whole.acceptance_rate, whole.histogram) == (None, None, [])
    whole.steps += [
        record(chain, (0,), (1, 9)),
        record(DraftTree.empty(), (), (9,)),
        record(chain, (0, 1, 2, 3), (1, 2, 3, 4, 9)),
    ]
    assert whole.completion_tokens == 8
    assert (whole.drafted, whole.accepted) == (8, 5)
    assert whole.acceptance_length == 1 + 5 / 3
    assert whole.acceptance_rate == 5 / 8
    assert whole.histogram == [1, 1, 0, 0, 1]
    assert sum(whole.histogram) == len(whole.steps)
    assert whole.decode_ms == 30.0
    assert whole.tokens_per_second == 1000 * 8 / 30


def test_nothing_drafted_has_no_rate():
    plain = RequestRecord(3, ())
    plain.steps.append(record(DraftTree.empty(), (), (9,)))
    assert plain.acceptance_rate is None
    assert plain.acceptance_length == 1.0


def test_what_a_step_saved_is_plain_time_of_its_tokens_less_its_own():
    step = record(DraftTree.chain([3, 4], [0.5, 0.5]), (0, 1), (3, 4, 9))
    assert step.ms == 10.0
    assert step.saved_ms is None
    assert replace(step, plain_ms=4.0).saved_ms == 2.0
    assert replace(step, plain_ms=3.0).saved_ms == -1.0
