"""What drafters may do to a step: hardly anything, and whatever they did is in its record."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from augury.budget import Costs
from augury.conformance.toys import Empty, Script, ToyTarget, noisy, oracle
from augury.drafters.drafter import Drafter
from augury.engine.engine import Engine
from augury.sampling import Sampling
from augury.trace.figures import figures
from augury.tree import DraftTree

V = 5
PROMPT = [1, 2, 3, 1]


class Table:
    """A cost table that stands still."""

    def __init__(self, verify):
        self.costs = Costs(np.asarray(verify, float), 0.0, 0.0)

    def served(self, *figures):
        pass


def engine(drafters=(), **options):
    return Engine(ToyTarget(V), [(f"d{i}", d) for i, d in enumerate(drafters)], **options)


def answer(drafters=(), max_tokens=24, prompt=PROMPT, sampling=None, meter=None, **options):
    with engine(drafters, meter=meter) as one:
        return one.generate(prompt, sampling, max_tokens=max_tokens, **options)


ANSWER = answer(max_tokens=64).tokens


class Says(Drafter):
    """Proposes what a function gives."""

    def __init__(self, tree):
        self.tree = tree

    def propose(self, view, limit):
        return self.tree()


def flat(*values, kind=np.int32):
    return np.asarray(values, kind)


SURVIVAL = {
    "a child above its parent by rounding": [0.5, 0.5 + 5e-7],
    "a root's child above one by rounding": [1.0 + 5e-7, 0.5],
    "both": [1.0 + 9e-7, 1.0 + 9e-7 + 9e-7],
}


@pytest.mark.parametrize("survival", SURVIVAL.values(), ids=SURVIVAL)
def test_survival_that_grows_by_rounding_is_cut_and_the_guess_is_used(survival):
    tree = DraftTree.chain(ANSWER[:2], survival)
    cheap = Table(np.concatenate([[0.0], np.linspace(10.0, 10.5, 65)]))
    record = answer([Says(lambda: tree)], 3, meter=cheap).record
    assert [p.fault for p in record.steps[0].proposals] == [None]
    assert record.steps[0].accepted == 2
    verified = record.steps[0].tree.survival
    assert 1.0 >= verified[0] >= verified[1]


def test_no_child_is_verified_without_its_parent():
    """Of two nodes the surer is verified first, and rounding must not make that the child."""
    tree = DraftTree.chain(ANSWER[:2], [0.25, np.float32(0.25) + np.float32(9e-7)])
    dear = Table([0.0, 10.0, 11.0, 13.0, *[1000.0] * 62])  # one such node is worth its row, two are not
    result = answer([Says(lambda: tree)], meter=dear)
    assert result.tokens == ANSWER[:24]
    assert result.record.steps[0].drafted == 1


ARRAYS = {
    "tokens in two dimensions": (lambda: (flat([1]), flat(-1), flat(0.5, kind=np.float32)), "tokens"),
    "parents in two dimensions": (lambda: (flat(1, 2), flat(-1, 0), flat([0.5], [0.4], kind=np.float32)), "survival"),
    "real tokens": (lambda: (flat(1.0, kind=float), flat(-1), flat(0.5, kind=np.float32)), "tokens"),
    "real parents": (lambda: (flat(1), flat(-1.0, kind=float), flat(0.5, kind=np.float32)), "parents"),
    "a list of survival": (lambda: (flat(1), flat(-1), [0.5]), "survival"),
    "tokens that do not fit": (lambda: (flat(2**32 + 1, kind=np.int64), flat(-1), flat(0.5, kind=np.float32)), "token"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_another_kind_cost_their_own_proposal_only(kind):
    make, words = ARRAYS[kind]
    bad = Says(lambda: DraftTree(*make(), np.zeros(len(make()[0]), np.uint8)))
    result = answer([bad, oracle(ANSWER, 3, V)])
    assert result.tokens == ANSWER[:24]
    assert result.record.accepted > 0
    assert words in result.record.steps[0].proposals[0].fault


def test_wider_whole_numbers_are_taken():
    wide = Says(lambda: DraftTree(*(flat(*v, kind=k) for v, k in (
        (ANSWER[:2], np.int64), ((-1, 0), np.int64), ((0.9, 0.8), np.float64), ((7, 7), np.uint8),
    ))))  # fmt: skip
    step = answer([Empty(), wide], 3).record.steps[0]
    assert (step.accepted, step.sources) == (2, (1, 1, -1))
    assert step.tree.tokens.dtype == np.int32


class Scribbler(Drafter):
    """Tries to write to everything it is shown."""

    reads_prediction = True

    def __init__(self):
        self.written = []

    def _write(self, what, array):
        try:
            array[...] = 0
        except ValueError:
            return
        self.written.append(what)

    def propose(self, view, limit):
        self._write("tokens", view.tokens)
        self._write("prediction", view.prediction)
        self.tree = DraftTree.chain(ANSWER[:2], [0.9, 0.9])
        return self.tree

    def observe(self, view, seen):
        for name in ("emitted", "logits", "hidden"):
            self._write(name, getattr(seen, name))
        for name in ("tokens", "parents", "survival", "source"):
            self._write(f"tree.{name}", getattr(seen.tree, name))
            getattr(self.tree, name)[...] = 0  # its own arrays are its own


def test_drafters_cannot_write_to_what_they_are_shown():
    drafter = Scribbler()
    with engine([drafter]) as one:
        result = one.generate(PROMPT, max_tokens=70, prediction=[1, 2])  # longer than the first buffer
    assert result.tokens[:64] == ANSWER
    assert drafter.written == []
    assert result.record.steps[0].tree.tokens.tolist() == list(ANSWER[:2])


def breaks(*calls):
    """A drafter that has no guess and raises in some of its calls."""

    class Breaks(Empty):
        pass

    for call in calls:
        setattr(Breaks, call, lambda self, *a: 1 / 0)
    return Breaks()


def test_a_drafter_that_cannot_begin_is_reported_as_left_out():
    record = answer([breaks("open"), oracle(ANSWER, 3, V)]).record
    asked = [s for s in record.steps if s.proposals]
    assert len(asked) >= 6
    assert {s.proposals[0].fault for s in asked} == {"left out: ZeroDivisionError: division by zero"}
    assert figures(record).drafters[0].faults == len(asked)


def test_a_drafter_that_cannot_observe_is_reported_when_it_is_left_out():
    record = answer([breaks("observe"), oracle(ANSWER, 1, V)]).record
    faults = [s.proposals[0].fault for s in record.steps[:4]]
    assert faults == [None] * 3 + ["left out: ZeroDivisionError: division by zero"]


def test_a_step_without_a_guess_says_why():
    right = oracle(ANSWER, 4, V)
    steep = Table([0.0, 10.0, *np.arange(1e3, 65e3, 1e3)])

    def reasons(*drafters, **options):
        return [s.reason for s in answer(drafters, **options).record.steps]

    assert reasons(max_tokens=1) == ["no drafter is loaded"]
    assert reasons(right, draft=False, max_tokens=1) == ["drafting is off for this request"]
    assert reasons(right, max_tokens=6) == [None, "there is room for one more token only"]
    assert reasons(right, max_tokens=2, meter=steep)[0] == "not even a sure guess would be worth its row"
    assert reasons(Empty(), max_tokens=2)[0] == "no drafter had a guess"
    broken = breaks("propose")
    assert reasons(broken, max_tokens=2)[0] == "d0: ZeroDivisionError: division by zero"
    assert reasons(broken, Empty(), max_tokens=2)[0] == "no drafter had a guess"
    assert (
        reasons(broken, breaks("open"), max_tokens=9)[3:5]
        == ["d0: left out: ZeroDivisionError: division by zero; d1: left out: ZeroDivisionError: division by zero"] * 2
    )


def test_guesses_that_do_not_pay_are_the_reason_only_where_there_were_some():
    """A last row that is nearly free lets drafters be asked; a hopeless guess is not worth even that."""
    table = Table([0.0, 10.0, 11.0, *np.arange(12.0, 75.0)])
    hopeless = Script([DraftTree.chain([0], [1e-6])])
    assert answer([hopeless], 2, meter=table).record.steps[0].reason == "the guesses were not worth their rows"


class Counts(Empty):
    """Counts the calls that frame a request."""

    def __init__(self):
        self.calls = []

    def open(self, view):
        self.calls.append("open")

    def close(self, view):
        self.calls.append("close")


def test_only_what_was_opened_is_closed():
    drafter = Counts()
    with engine([drafter]) as one:
        one.generate(PROMPT, max_tokens=3, draft=False)
        assert drafter.calls == []
        stream = one.stream(PROMPT, max_tokens=3)
        stream.close()
        prefill = one.target.prefill
        one.target.prefill = lambda *a: 1 / 0
        with pytest.raises(ZeroDivisionError):
            one.generate([2, 2, 2], max_tokens=3)
        assert drafter.calls == []
        one.target.prefill = prefill
        one.generate(PROMPT, max_tokens=3)
        assert drafter.calls == ["open", "close"]


def test_a_drafter_that_fails_to_open_is_still_closed():
    drafter = Counts()
    drafter.open = lambda view: 1 / 0
    answer([drafter])
    assert drafter.calls == ["close"]


def test_records_keep_what_was_drawn_and_not_the_laws():
    result = answer([noisy(ToyTarget(V, seed=2), width=2, depth=2)], sampling=Sampling(temperature=1.0, seed=3))
    some = [step for step in result.record.steps if len(step.tree)]
    assert len(some) > 3
    for step in some:
        assert not step.tree.laws
        assert sorted(step.sampled) == list(range(step.drafted))
        assert all(isinstance(q, float) and 0.0 < q <= 1.0 for q in step.sampled.values())


def test_what_a_drafter_does_to_what_it_sees_changes_no_token():
    class Spoils(Drafter):
        def propose(self, view, limit):
            torch.from_numpy(view.tokens).zero_()
            view._length[0] = 2
            return DraftTree.empty()

    with pytest.warns(UserWarning, match="not writable"):
        assert answer([Spoils()]).tokens == ANSWER[:24]


@pytest.mark.parametrize("call", ["open", "propose", "observe", "close"])
def test_an_error_that_cannot_be_shown_is_a_fault_like_others(call):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def fail(*_):
        raise Mute

    drafter = Empty()
    setattr(drafter, call, fail)
    assert answer([drafter]).tokens == ANSWER[:24]
