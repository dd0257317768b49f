"""An index that changes while it is used: seen at the next request, never by half, and let go."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import shutil
import weakref
from pathlib import Path

import pytest
from corpus import Letters, built, written
from replay import grow, view_of

from augury.datastore import live
from augury.datastore.change import add, remove
from augury.datastore.index import MANIFEST, Index, seal
from augury.datastore.live import Live
from augury.drafters.retrieval import Retrieval
from augury.errors import InputError

TEXTS = ["the cat sat on the mat", "the dog sat on the log"]


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Every request looks."""
    monkeypatch.setattr(live, "EVERY_S", 0.0)


@pytest.fixture
def place(tmp_path):
    built(tmp_path / "it", TEXTS)
    return tmp_path / "it"


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.WARNING, "augury")
    return lambda: [record.getMessage() for record in caplog.records]


def ids(text):
    return Letters().encode(text).tolist()


def guessed(drafter, text, number=1):
    """What is guessed behind a text, along the likeliest branch."""
    view = view_of(ids(text), number=number)
    drafter.open(view)
    found = said(drafter, view)
    drafter.close(view)
    return found


def said(drafter, view):
    tree = drafter.propose(view, 12)
    path, at = [], -1
    while children := [n for n in range(len(tree)) if tree.parents[n] == at]:
        at = children[0]
        path.append(chr(tree.tokens[at]))
    return "".join(path)


def test_what_is_added_is_guessed_by_the_next_request_and_one_that_runs_keeps_its_state(place):
    drafter = Retrieval(index=str(place))
    running = view_of(ids("WHOLLY OTH"), number=7)
    drafter.open(running)
    assert said(drafter, running) == ""
    add(place, written(place.parent / "more", ["WHOLLY OTHER WORDS"]), Letters())
    assert guessed(drafter, "WHOLLY OTH").startswith("ER WOR")
    drafter.observe(running, None)
    grow(running, ids("E"))
    assert said(drafter, running) == ""


def test_what_is_removed_is_gone_from_memory_with_the_last_request_that_used_it(place):
    drafter = Retrieval(index=str(place))
    running = view_of(ids("the dog s"), number=7)
    drafter.open(running)
    old = weakref.ref(drafter._live._index)
    files = {piece.file for piece in old().manifest.segments}
    remove(place, [place.parent / "it-files" / "0001.txt"])
    assert not guessed(drafter, "the dog s").startswith("at on the l")
    assert said(drafter, running).startswith("at on the l")
    assert mapped(files)
    drafter.close(running)
    assert old() is None, "without the garbage collector"
    assert not mapped(files)
    gc.collect()


def mapped(files):
    maps = Path("/proc/self/maps").read_text()
    return any(name in maps for name in files)


def test_an_index_is_looked_at_once_in_a_while(place, monkeypatch):
    clock, looked = [0.0], []
    monkeypatch.setattr(live, "EVERY_S", 1.0)
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    it = Live(place, None, looked.append)
    found = live.seal
    monkeypatch.setattr(live, "seal", lambda at: looked.append(at) or found(at))
    old = it.now()
    built(place, ["something else"])
    for clock[0] in (0.5, 0.99):
        assert it.now() is old
    assert not looked
    clock[0] = 1.0
    new = it.now()
    assert new is not old
    assert it.now() is new
    clock[0] = 2.5
    assert it.now() is new
    assert len(looked) == 2


def test_an_index_that_did_not_change_is_not_opened_again(place, monkeypatch):
    it = Live(place, None, print)
    monkeypatch.setattr(live, "Index", None)
    for _ in range(3):
        it.now()


def gone(place):
    shutil.rmtree(place)


def damaged(place):
    (place / MANIFEST).write_bytes(b"{}\n" + b"0" * 64 + b"\n")


def without_a_segment(place):
    built(place, ["something else"])
    next(place.glob("*.segment")).unlink()


def of_another_tokenizer(place):
    built(place, ["something else"], Letters(name="stranger"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (gone, "there is no index at"),
        (damaged, "is damaged: its checksum is wrong"),
        (without_a_segment, "is missing; build it again"),
        (of_another_tokenizer, "holds tokens of letters (tokenizer stranger), and the tokenizer here is letters"),
    ],
)
@pytest.mark.parametrize("tokenizer", [Letters(), None])
def test_what_cannot_be_used_leaves_the_old_one_in_use_and_is_said_once(place, spoil, says, tokenizer, logged):
    drafter = Retrieval(index=str(place), tokenizer=tokenizer)
    spoil(place)
    for _ in range(3):
        assert guessed(drafter, "the cat s").startswith("at on the m")
    (line,) = logged()
    assert line.startswith(f"augury: retrieval {place}: ")
    assert says in line
    assert line.endswith("; the index is used on as it was")
    built(place, ["the cat spoke again"])
    assert guessed(drafter, "the cat s").startswith("poke")
    spoil(place)
    guessed(drafter, "the cat s")
    assert len(logged()) == 2, "what came again is said again"


def test_a_seal_is_another_for_every_state(place):
    seals = {seal(place)}
    for number in range(5):
        built(place, [f"text {number}"])
        seals.add(seal(place))
    assert len(seals) == 6
    assert seal(place / "nowhere") == b""
    assert all(len(one) == 65 for one in seals)


def _change(place, rounds):
    for number in range(rounds):
        add(place, written(place.parent / "more", [f"round {number} of a text that changes"]), Letters())
        remove(place, [place.parent / "more"])
        built(place, [*TEXTS, f"the end {number}"])


def test_an_engine_sees_every_state_whole_while_another_process_changes_it(place):
    """Half a state would be a missing file, a wrong length, or text that no state has."""
    drafter, states = Retrieval(index=str(place)), set()
    writer = multiprocessing.get_context("spawn").Process(target=_change, args=(place, 6))
    writer.start()
    number = 0
    while writer.is_alive():
        number += 1
        assert guessed(drafter, "the cat s", number).startswith("at on the m")
        index = drafter._live.now()
        states.add(tuple(piece.file for piece in index.manifest.segments))
        assert all(len(s.values) == s.layout.values for s in index.segments)
    writer.join()
    assert writer.exitcode == 0
    assert len(states) > 3
    assert guessed(drafter, "the end", 0).startswith(" 5")
    assert drafter._live._index.manifest == Index(place).manifest
    assert len(os.listdir(place)) == 2 + len(drafter._live._index.segments)


def test_no_index_at_the_start_is_an_error(tmp_path):
    with pytest.raises(InputError, match="there is no index at"):
        Live(tmp_path / "nowhere", None, print)
