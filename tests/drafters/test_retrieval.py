"""The drafter that reads an index: what it guesses, how sure it says it is, and that it changes no token."""

from __future__ import annotations

import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest
from corpus import Letters, built
from hypothesis import given, settings
from hypothesis import strategies as st
from replay import grow, replay, view_of

from augury.conformance.kit import check_drafter
from augury.datastore.change import build
from augury.datastore.index import Index
from augury.drafters import make
from augury.drafters.retrieval import Retrieval
from augury.drafters.votes import WORTH
from augury.errors import InputError
from augury.tree import DraftTree

WORDS = "the a cat dog sat ran on under mat log tree and then it was seen by".split()
dice = np.random.default_rng(3)
TEXTS = [" ".join(dice.choice(WORDS, 60)) for _ in range(40)]


class Digits(Letters):
    """Every digit is the token of its value."""

    def encode(self, text, special=True):
        return np.array([int(c) for c in text], np.int32)


def ids(text):
    return Letters().encode(text).tolist()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "it"
    built(path, TEXTS)
    return path


def opened(place, text, **options):
    drafter, view = Retrieval(index=str(place), **options), view_of(text)
    drafter.open(view)
    return drafter, view


@settings(max_examples=50, deadline=None)
@given(number=st.integers(0, 39), begin=st.integers(0, 200), size=st.integers(1, 30), limit=st.integers(0, 40))
def test_every_path_stands_in_the_corpus_behind_the_longest_match(place, number, begin, size, limit):
    context = TEXTS[number][begin : begin + size]
    drafter, view = opened(place, ids(context))
    tree = drafter.propose(view, limit)
    assert len(tree) <= limit
    if len(context) >= 2 and limit:
        assert len(tree) or TEXTS[number].endswith(context)
    end = context[-2:]
    for node in range(len(tree)):
        path = "".join(chr(t) for t in tree.tokens[tree.path(node)])
        assert any(end + path in text for text in TEXTS)
    assert all(tree.survival >= WORTH)
    assert len({(int(p), int(t)) for p, t in zip(tree.parents, tree.tokens, strict=True)}) == len(tree)


def test_branches_weigh_what_was_counted(tmp_path):
    built(tmp_path / "it", ["which is it"] * 6 + ["which as it"] * 2)
    drafter, view = opened(tmp_path / "it", ids("which "))
    tree = drafter.propose(view, 20)
    assert [chr(tree.tokens[n]) for n in tree.children(-1)] == ["i", "a"]
    assert tree.survival[0] > tree.survival[tree.children(-1)[1]]
    assert ids("is it") in [tree.tokens[tree.path(n)].tolist() for n in range(len(tree))]


def test_a_text_of_the_corpus_is_copied_and_a_strange_one_is_not(place):
    emitted, _ = replay(Retrieval(index=str(place)), ids(TEXTS[0][:20]), ids(TEXTS[0][20:]), limit=16)
    assert len(emitted) < len(TEXTS[0][20:]) / 6
    strange = dice.integers(0, 97, 200).tolist()
    emitted, _ = replay(Retrieval(index=str(place)), [1, 2, 3], strange, limit=16)
    assert len(emitted) > 190


def test_long_copies_are_read_on_and_the_end_of_a_document_is_the_end(tmp_path):
    text = "".join(chr(32 + i) for i in dice.integers(0, 90, 500))
    built(tmp_path / "it", [text])
    emitted, _ = replay(Retrieval(index=str(tmp_path / "it")), ids(text[:10]), ids(text[10:]), limit=16)
    assert len(emitted) < 40
    drafter, view = opened(tmp_path / "it", ids(text))
    assert len(drafter.propose(view, 8)) == 0


def test_stated_survival_is_about_what_comes(place):
    answer = []
    for _ in range(60):
        text = TEXTS[int(dice.integers(0, 40))]
        start = int(dice.integers(0, 150))
        answer += ids(text[start : start + int(dice.integers(10, 60))])
        answer += dice.integers(0, 97, int(dice.integers(1, 6))).tolist()
    _, survived = replay(Retrieval(index=str(place)), ids("the cat"), answer, limit=8)
    stated, real = np.array(survived).T
    assert abs(stated.mean() - real.mean()) < 0.08
    assert real[stated > 0.6].mean() > real[stated < 0.3].mean() + 0.3


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_growth_in_any_pieces_gives_the_same_guesses(place, data):
    text = ids(data.draw(st.sampled_from(TEXTS))[:60] + data.draw(st.text("the cadog", max_size=20)))
    cut = data.draw(st.integers(1, len(text) - 1))
    one, pieces = opened(place, text[:cut])
    other, whole = opened(place, text[:cut])
    while pieces.length < len(text):
        size = data.draw(st.integers(1, 9))
        grow(pieces, text[pieces.length : pieces.length + size])
        one.observe(pieces, None)
    grow(whole, text[cut:])
    a, b = one.propose(pieces, 12), other.propose(whole, 12)
    assert a.tokens.tolist() == b.tokens.tolist()
    assert a.survival.tolist() == b.survival.tolist()


def test_what_is_learnt_does_not_depend_on_what_was_verified(place):
    drafter, other = Retrieval(index=str(place)), Retrieval(index=str(place))
    replay(drafter, ids(TEXTS[1][:9]), ids(TEXTS[2]), limit=8)
    replay(other, ids(TEXTS[1][:9]), ids(TEXTS[2]), limit=3, drafted=False)
    view = view_of(ids("the cat "))
    drafter.open(view)
    other.open(view)
    assert np.array_equal(drafter.propose(view, 8).survival, other.propose(view, 8).survival)


def test_requests_side_by_side_do_not_meet_and_nothing_is_left(place):
    drafter = Retrieval(index=str(place))
    views = [view_of(ids(TEXTS[i][:30]), number=i) for i in (0, 1)]
    for view in views:
        drafter.open(view)
    for view in reversed(views):
        alone, same = opened(place, view.tokens)
        assert drafter.propose(view, 8).tokens.tolist() == alone.propose(same, 8).tokens.tolist()
        drafter.close(view)
    assert not drafter._requests
    drafter.close(view_of([1]))  # one that was never opened


def test_an_index_that_is_replaced_is_used_to_the_end(tmp_path):
    built(tmp_path / "it", TEXTS)
    drafter, view = opened(tmp_path / "it", ids(TEXTS[0][:20]))
    built(tmp_path / "it", ["something else"])
    grow(view, ids(TEXTS[0][20:22]))
    drafter.observe(view, None)
    tree = drafter.propose(view, 6)
    assert "".join(map(chr, tree.tokens[tree.path(len(tree) - 1)])) in TEXTS[0][22:]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"voters": 0}, "voters is 0; it must be from 1 to 64"),
        ({"voters": 65}, "voters is 65"),
        ({"shortest": 0}, "shortest is 0; it must be from 1 to 16"),
        ({"shortest": 17}, "shortest is 17"),
        ({"index": "/nowhere/at/all"}, "there is no index at /nowhere/at/all; make one with: augury index build"),
        ({"index": "a b"}, "no name of an index"),
    ],
)
def test_what_cannot_be_made_says_why_in_one_line(place, options, says):
    with pytest.raises(InputError, match=says) as caught:
        Retrieval(**{"index": str(place), **options})
    assert "\n" not in str(caught.value)


def test_a_spec_names_the_index(place, monkeypatch, tmp_path):
    assert isinstance(make(f"retrieval:index={place},voters=8"), Retrieval)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(InputError, match="there is no index 'default'"):
        make("retrieval")
    built(tmp_path / "augury" / "index" / "default", TEXTS)
    assert isinstance(make("retrieval"), Retrieval)


def test_another_tokenizer_is_refused(place):
    assert isinstance(make(f"retrieval:{place}", tokenizer=Letters(), vocab_size=200), Retrieval)
    with pytest.raises(InputError, match="the tokenizer here is stranger"):
        make(f"retrieval:{place}", tokenizer=Letters(name="stranger"), vocab_size=200)


def test_the_conformance_kit_passes(tmp_path):
    # Only ids that every toy of the kit knows, the smallest of which has three.
    built(tmp_path / "it", ["".join(dice.choice(list("012"), 300)) for _ in range(4)], Digits(3))
    report = check_drafter(lambda target: make(f"retrieval:index={tmp_path / 'it'}", target=target), name="retrieval")
    assert report.passed, str(report)


def test_cost_of_a_step_hardly_grows_with_the_corpus(tmp_path):
    def cost(documents):
        texts = ["".join(map(chr, dice.integers(97, 101, 2000))) for _ in range(documents)]
        built(tmp_path / str(documents), texts)
        answer = ids("".join(map(chr, dice.integers(97, 101, 300))))
        drafter, view = opened(tmp_path / str(documents), answer[:100])
        times = []
        for token in answer[100:]:
            begin = time.perf_counter()
            assert isinstance(drafter.propose(view, 16), DraftTree)
            grow(view, [token])
            drafter.observe(view, None)
            times.append(time.perf_counter() - begin)
        return float(np.median(times))

    assert cost(200) < 5 * cost(2)


@pytest.mark.real
def test_a_file_of_the_standard_library_is_copied(tmp_path):
    from augury.models.load import load_wording

    tokenizer = load_wording("smollm2-135m").tokenizer
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = [library / name for name in ("dataclasses.py", "functools.py", "heapq.py", "queue.py")]
    build(tmp_path / "it", paths, tokenizer, "smollm2-135m")
    assert Index(tmp_path / "it").check() == []
    drafter = Retrieval(index=str(tmp_path / "it"), tokenizer=tokenizer)
    known = tokenizer.encode((library / "queue.py").read_text()[2000:5000]).tolist()
    emitted, _ = replay(drafter, known[:10], known[10:], limit=16)
    assert sum(emitted) / len(emitted) > 6
