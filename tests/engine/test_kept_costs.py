"""Profiles that are kept: used again where they still hold, made anew where they do not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from augury.engine import costs as measuring
from augury.engine import kept
from augury.engine.kept import kept_profile
from augury.engine.tables import CostTable
from augury.models.machine import Processor
from augury.models.target import Rows, Target, TargetInfo
from augury.tree import MAX_NODES


class Timed(Target):
    """Forwards that take what a function of their rows says, by a clock that only they move."""

    def __init__(self, ms, **about):
        self.ms, self.now, self.forwards, self.held = ms, 0.0, 0, 0
        known = {
            "name": "timed", "family": "toy", "runner": "toy", "dtype": "float32", "vocab_size": 7, "context": 1024,
            "hidden_size": 1, "layers": 1, "parameters": 1, "weight_bytes": 4, "trees": True, "exact": True,
            "digest": "weights",
        }  # fmt: skip
        self.info = TargetInfo(**(known | about))

    def open(self):
        self.held = 0
        return 0

    def release(self, slot):
        pass

    def length(self, slot):
        return 1

    def truncate(self, slot, length):
        pass

    def copy(self, source, slot, length):
        raise AssertionError("nothing is shared here")

    def prefill(self, slot, tokens):
        self.held += len(tokens)

    def verify(self, slots, roots, trees):
        self.forwards += 1
        self.now += self.ms(len(trees[0]) + 1, self.held) / 1e3
        return Rows([np.zeros((len(trees[0]) + 1, 7), np.float32)])

    def commit(self, slots, paths):
        pass


def flat(rows, context=0):
    return 10.0 + 0.01 * rows + 0.5 * rows * context / 1e3


def steep(rows, context=0):
    return 2.0 + 1.0 * rows


def far(rows, context=0):
    """As ``flat`` for few rows alone."""
    return flat(rows, context) + max(0, rows - 30)


def long(rows, context=0):
    """As ``flat`` at short context alone."""
    return flat(rows, context) + 3.0 * rows * context / 1e3


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Profile a target, from the same folder every time."""

    def loaded(target, threads=2, folder=tmp_path):
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: target.now)
        return kept_profile(target, threads, folder=folder)

    return loaded


def test_a_second_load_takes_the_kept_table_after_a_few_forwards(load):
    first, second = Timed(flat), Timed(flat)
    made, again = load(first), load(second)
    assert again.costs.verify == pytest.approx(made.costs.verify)
    assert len(again.costs.verify) == MAX_NODES + 2
    assert second.forwards < first.forwards / 3


@pytest.mark.parametrize("by", [0.4, 1.0, 2.5])
def test_a_machine_that_is_slower_as_a_whole_has_the_table_at_its_pace(load, by):
    load(Timed(steep))
    other = Timed(lambda rows, context: by * steep(rows))
    assert load(other).costs.verify[1:] == pytest.approx([by * steep(r) for r in range(1, MAX_NODES + 2)], rel=0.02)
    assert other.forwards < 20


def test_a_table_of_another_shape_is_made_anew_and_kept(load):
    load(Timed(flat))
    other, again = Timed(steep), Timed(steep)
    assert load(other).costs.verify[40] == pytest.approx(steep(40), rel=0.02)
    assert other.forwards > 40
    assert load(again).costs.verify[40] == pytest.approx(steep(40), rel=0.02)
    assert again.forwards < 20


@pytest.mark.parametrize("before", [far, long])
def test_a_table_from_a_bad_moment_is_not_kept_for_ever(load, before):
    load(Timed(before))
    assert load(Timed(flat)).costs.verify[MAX_NODES + 1] == pytest.approx(flat(MAX_NODES + 1), rel=0.05)
    assert load(Timed(flat)).costs.attend == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    "change", [{"digest": "others"}, {"runner": "toy 2"}, {"dtype": "bfloat16"}, {"context": 512}, {"weight_bytes": 8}]
)
def test_what_decides_the_times_decides_the_file(load, change, tmp_path):
    load(Timed(flat))
    other = Timed(flat, **change)
    load(other)
    assert other.forwards > 40
    assert len([*tmp_path.iterdir()]) == 2


def test_threads_and_processor_decide_the_file_too(load, tmp_path, monkeypatch):
    load(Timed(flat), threads=2)
    load(Timed(flat), threads=None)
    monkeypatch.setattr(kept, "usable_cores", lambda: 99)
    load(Timed(flat), threads=2)
    monkeypatch.setattr(kept, "processor", lambda: Processor("another"))
    load(Timed(flat), threads=2)
    monkeypatch.setattr(kept, "_code", lambda: "later")
    load(Timed(flat), threads=2)
    assert len([*tmp_path.iterdir()]) == 5


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"version": 99}', "\0"])
def test_a_file_that_is_no_table_is_replaced(load, tmp_path, text):
    load(Timed(flat))
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    assert load(Timed(flat)).costs.verify[8] == pytest.approx(flat(8), rel=0.02)
    assert CostTable.read(path).measured_on["model"] == "timed"


def test_without_a_digest_or_a_folder_nothing_is_kept(load, tmp_path, monkeypatch):
    load(Timed(flat, digest=""))
    monkeypatch.setattr(kept, "own_folder", lambda: None)
    load(Timed(flat), folder=None)
    (tmp_path / "file").write_text("")
    load(Timed(flat), folder=tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_is_kept_says_what_it_was_measured_on(load, tmp_path):
    load(Timed(flat))
    (path,) = tmp_path.iterdir()
    about = json.loads(path.read_text())["measured_on"]
    assert about["weights"] == "weights"
    assert about["threads"] == 2
    assert about["cpu"]
