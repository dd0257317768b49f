"""The kit passes what is right, fails what proves nothing, and notices every fault it is there for."""

from __future__ import annotations

import numpy as np
import pytest

from augury.conformance.kit import check_drafter, check_target
from augury.conformance.toys import Empty, Script, TopK, ToyTarget, itself, noisy
from augury.conformance.wrong import WRONG
from augury.drafters import DRAFTERS, make
from augury.drafters.drafter import Drafter
from augury.sampling import Sampling
from augury.tree import DraftTree


def model(target):
    return ToyTarget(target.info.vocab_size, seed=2)


@pytest.mark.parametrize(
    "make_one",
    [
        lambda target: TopK(model(target), 3, 2),
        lambda target: noisy(model(target), depth=2),
        lambda target: itself(target, Sampling(temperature=1.0), depth=2),
    ],
    ids=["tree", "sampled", "itself"],
)
def test_right_drafters_pass(make_one):
    report = check_drafter(make_one, samples=2000)
    assert report.passed, str(report)


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_of_the_registry_passes(name):
    if DRAFTERS[name].needs and name not in ("prediction", "memory", "grammar"):
        pytest.skip(f"{name} needs {DRAFTERS[name].needs}")
    report = check_drafter(lambda target: make(name, target=target), name=name)
    assert report.passed, str(report)


@pytest.mark.parametrize("trees", [True, False])
def test_toy_targets_pass(trees):
    report = check_target(lambda: ToyTarget(5, trees=trees, slots=3))
    assert report.passed, str(report)
    assert ("rows of a tree" in str(report)) == trees


def test_a_drafter_that_never_guesses_proves_nothing():
    report = check_drafter(lambda target: Empty(), name="silent")
    assert set(report.failed) == {
        "something was drafted", "something was drafted under rejection", "something was drafted under block",
    }  # fmt: skip
    assert str(report).startswith("silent: FAILED\n")


def test_a_drafter_that_breaks_its_contract_is_named():
    class Outside(Drafter):
        def propose(self, view, limit):
            return DraftTree.chain([99], [0.5])

    report = check_drafter(lambda target: Outside(), rules=("coupled",))
    assert "contract" in report.failed
    assert "proposed token 99, the vocabulary ends at 4" in str(report)
    assert "same tokens as plain decoding" not in report.failed, "it costs its own step only"


def test_a_drafter_that_looks_at_what_it_drew_is_noticed_even_where_branches_cannot_be_run():
    class Own(Drafter):
        """Uses its noise in a way of its own, so that only counting is left."""

        def propose(self, view, limit):
            law = [0.8, 0.19, 0.01]
            wait = [float(w) for w in view.noise.exponential(view.length, 3)]
            token = min(range(3), key=lambda i: wait[i] / law[i])
            if token == 1:
                return DraftTree.empty()
            padded = np.zeros(vocab[0], np.float32)
            padded[:3] = law
            return DraftTree.chain([token], [0.5], laws={0: padded})

    vocab = [3]

    def make_one(target):
        vocab[0] = target.info.vocab_size
        return Own()

    report = check_drafter(make_one, rules=("rejection",), samples=3000)
    assert any("not possible, so counted below" in c.detail for c in report.checks)
    assert any("counted" in name for name in report.failed), str(report)


def test_a_script_that_is_right_by_luck_and_wrong_else_passes():
    trees = [DraftTree.chain([0, 1, 2], [0.5, 0.4, 0.3]), DraftTree.empty(), DraftTree.of([1, 0], [-1, -1], [0.5, 0.5])]
    report = check_drafter(lambda target: Script(trees))
    assert report.passed, str(report)


@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_decoder_is_caught(name):
    wrong = WRONG[name]
    report = wrong.check()
    assert any(wrong.noticed in check for check in report.failed), str(report)


@pytest.mark.parametrize("name", WRONG)
def test_and_only_for_what_is_wrong(name):
    report = WRONG[name].right()
    assert report.passed, str(report)
