"""Heads that guess all places at once, as drafters: lossless, fed as they were trained, the likeliest combinations."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from test_eagle import ASKED, RULES, Ridden, V, made, native, real

from augury.api import load
from augury.conformance.identity import examine, watched
from augury.conformance.kit import check_drafter
from augury.conformance.toys import ToyTarget
from augury.drafters import make
from augury.drafters.block import Block
from augury.drafters.medusa import Medusa
from augury.engine.engine import Engine
from augury.errors import InputError, ModelError
from augury.models.heads import read_head
from augury.models.kinds import KINDS
from augury.sampling import Sampling
from augury.tree import MAX_NODES

DRAFTERS = {"block": Block, "medusa": Medusa}
MASK, PLACES = 2, 3
PROMPT = [1, 2, 3, 1]


@pytest.fixture(params=DRAFTERS)
def kind(request):
    return request.param


class Guessed(ToyTarget):
    """A toy on which a head of places rides, whatever law that has of each; it checks what the head is fed.

    A hidden state is (token, position).
    """

    def __init__(self, *args, law=None, **options):
        super().__init__(*args, **options)
        self.law = law or partial(another, ToyTarget(self.info.vocab_size, seed=9))
        self.fed = 0
        self.asked = []

    tap = Ridden.tap

    def attach(self, head):
        rider = block_rider if head.config.kind == "block" else medusa_rider
        return rider(self, head, self.law)


def another(toy, text, place):
    """What a toy says of the token ``place`` places behind the next one, whatever stands between."""
    return toy.row([*text, *[0] * place])


def foreseen(target, text, place):
    """Logits of the target itself, behind what it would say greedily."""
    for _ in range(place):
        text = [*text, int(target.row(text).argmax())]
    return target.row(text)


def block_rider(target, head, law):
    """Rows of the text over a cache as a head has it, then masks, which nothing stands behind."""
    cached = {}
    mask = head.weights["mask.weight"].float().numpy()

    def ride(slot, length, tokens, given, fuse, logits, parents=None):
        assert parents is None
        rows = cached.setdefault(slot, [])
        assert length <= len(rows), "a row was left out"
        first = target._cells[slot][0].token
        rows[length:] = tokens.tolist()
        if fuse:
            known = [cell.token for cell in target._cells[slot][: target._lengths[slot]]]
            places = range(length, length + len(tokens))
            assert given.tolist() == [[known[p], p] for p in places]
            assert tokens.tolist()[:-1] == known[length + 1 : length + len(tokens)]
            laws = [law([first, *rows[: p + 1]], 0) for p in places][len(tokens) - logits :]
            target.asked.extend([1] * logits)
        else:
            assert tokens.tolist() == [head.config.mask_token] * logits
            assert np.array_equal(given, np.tile(mask, (logits, 1)))
            laws = [law([first, *rows[:length]], 1 + i) for i in range(logits)]
            target.asked[-1] += logits
        target.fed += len(tokens)
        return np.array(laws), np.empty((len(tokens), 1), np.float32)

    return ride


def medusa_rider(target, head, law):
    """One row: the hidden state at the text's last but one token, and the last token."""

    def ride(slot, length, tokens, given, fuse, logits, parents=None):
        assert (fuse, parents, len(tokens), length) == (True, None, 1, target._lengths[slot] - 1)
        known = [cell.token for cell in target._cells[slot][: length + 1]]
        assert given.tolist() == [[known[-1], length]]
        target.fed += 1
        target.asked.append(logits)
        laws = [law([*known, int(tokens[0])], i) for i in range(head.config.guesses)]
        return np.array(laws)[:logits], np.empty((0, 1), np.float32)

    return ride


def head(directory, kind, size=V, **changes):
    return str(
        made(directory / f"{kind} {size}", size, size, kind=kind, **{"guesses": PLACES, "mask_token": MASK} | changes)
    )


@pytest.fixture
def on_toy(tmp_path, kind):
    """``on_toy(target, **options)``: the drafter of a kind with a head of three places."""

    def attached(target, **options):
        return [(kind, DRAFTERS[kind](head(tmp_path, kind), target=target, **options))]

    return attached


def plainly(prompt, *args, **options):
    return Engine(ToyTarget(V, seed=3)).generate(prompt, *args, **options).tokens


def no_fault(found):
    return not any(p.fault for step in found.record.steps for p in step.proposals)


# ---- on toys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "rules"), [(2, RULES[:1]), (1, RULES[1:])], ids=["tree", "drawn chain"])
def test_the_kit_passes(tmp_path, monkeypatch, kind, width, rules):
    """The kit's own toys, with a head that has laws of another toy."""
    monkeypatch.setattr(ToyTarget, "tap", Ridden.tap)
    monkeypatch.setattr(ToyTarget, "attach", lambda self, found: ridden(self, found))

    def drafter(target):
        return DRAFTERS[kind](head(tmp_path, kind, target.info.vocab_size), width=width, target=target)

    report = check_drafter(drafter, rules=rules, samples=2000)
    assert report.passed, str(report)


def ridden(target, found):
    target.law, target.fed, target.asked = partial(another, ToyTarget(target.info.vocab_size, seed=9)), 0, []
    return Guessed.attach(target, found)


@pytest.mark.parametrize("width", [1, 3])
def test_a_head_that_foresees_the_target_is_always_right(on_toy, width):
    """Then every place is where it belongs, at every step, behind whatever masks were left in the head's cache."""
    target = Guessed(V, seed=3, law=partial(foreseen, ToyTarget(V, seed=3)))
    with Engine(target, on_toy(target, width=width)) as engine:
        found = engine.generate(PROMPT, max_tokens=60)
    assert found.tokens == plainly(PROMPT, max_tokens=60)
    assert no_fault(found)
    assert {step.accepted for step in found.record.steps[:-1]} == {PLACES}
    assert width > 1 or found.record.accepted == found.record.drafted


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=5)], ids=["greedy", "drawn"])
def test_after_wrong_guesses_it_reads_what_came_instead(on_toy, sampling):
    """What the toy asserts of its rows holds at every step, and the tokens are the plain ones."""

    right, wrong = ToyTarget(V, seed=3), ToyTarget(V, seed=9)

    def mostly(text, place):
        return foreseen(right, text, place) + 0.6 * another(wrong, text, place)

    target = Guessed(V, seed=3, law=mostly)
    with Engine(target, on_toy(target, width=3)) as engine:
        found = engine.generate(PROMPT, sampling, max_tokens=80)
    assert found.tokens == plainly(PROMPT, sampling, max_tokens=80)
    assert no_fault(found)
    assert {step.accepted for step in found.record.steps} >= {0, 1, PLACES}


@pytest.mark.parametrize("nodes", [4, 9, 23])
def test_a_tree_has_the_likeliest_combinations(on_toy, nodes):
    """Against a search of all of them; a combination is as likely as the product of its places."""
    target = Guessed(V, seed=3)
    with Engine(target, on_toy(target, width=V, nodes=nodes)) as engine:
        step = engine.generate(PROMPT, max_tokens=5).record.steps[0]
    logits = np.array([target.law(PROMPT, place) for place in range(PLACES)], np.float64)
    laws = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    every = {
        path: np.prod([laws[place, token] for place, token in enumerate(path)])
        for depth in range(1, PLACES + 1)
        for path in itertools.product(range(V), repeat=depth)
    }
    wanted = sorted(every, key=every.__getitem__, reverse=True)[:nodes]
    offered = [tuple(step.tree.tokens[step.tree.path(i)].tolist()) for i in range(len(step.tree))]
    assert sorted(offered) == sorted(wanted)
    assert nodes < 9 or max(step.tree.depths) == PLACES


def test_requests_in_their_slots_and_a_conversation_that_goes_on(on_toy):
    target = Guessed(V, seed=3, slots=3, law=partial(foreseen, ToyTarget(V, seed=3)))
    prompts = [[1, 2, 0], [2, 2, 4, 4], [3, 0]]
    plain = [plainly(prompt, max_tokens=30) for prompt in prompts]
    with Engine(target, on_toy(target, width=1), slots=3) as engine:
        together = engine.generate_all(prompts, max_tokens=30)
        assert [one.tokens for one in together] == plain
        assert all(one.record.accepted == one.record.drafted > 10 for one in together)
        before = target.fed
        longer = engine.generate([*prompts[1], *plain[1], 2], max_tokens=10)
        assert longer.record.cached_tokens > 30
        assert target.fed - before < 30, "what the slot's cache held was read again"
    assert longer.record.accepted == longer.record.drafted > 5


def test_a_request_that_it_did_not_see_in_a_slot_is_read_as_a_whole(on_toy):
    target = Guessed(V, seed=3, law=partial(foreseen, ToyTarget(V, seed=3)))
    with Engine(target, on_toy(target, width=1)) as engine:
        engine.generate([1, 2, 3], max_tokens=10)
        plain = engine.generate([3, 1, 4, 1], max_tokens=12, draft=False).tokens
        found = engine.generate([3, 1, 4, 1, *plain], max_tokens=12)
    assert found.record.cached_tokens >= 12
    assert found.record.accepted == found.record.drafted > 5


def test_behind_a_single_token_nothing_is_guessed_and_then_it_is(on_toy):
    target = Guessed(V, seed=3, law=partial(foreseen, ToyTarget(V, seed=3)))
    with Engine(target, on_toy(target, width=1)) as engine:
        found = engine.generate([2], max_tokens=20)
    assert found.tokens == plainly([2], max_tokens=20)
    assert not found.record.steps[0].tree
    assert found.record.accepted == found.record.drafted > 10
    assert no_fault(found)


@pytest.mark.parametrize(("depth", "deepest"), [(0, 3), (1, 1), (2, 2), (3, 3), (8, 3)])
def test_depth_is_what_it_is_given_and_never_more_than_the_head_has(on_toy, depth, deepest):
    target = Guessed(V, seed=3)
    with Engine(target, on_toy(target, depth=depth)) as engine:
        found = engine.generate(PROMPT, max_tokens=20)
    assert found.tokens == plainly(PROMPT, max_tokens=20)
    assert max(max(step.tree.depths) for step in found.record.steps if step.tree) == deepest
    assert max(target.asked) == deepest


def test_at_the_end_of_an_answer_fewer_places_are_asked_for(on_toy):
    """A token of the answer comes from the target itself; a place behind the last one could not be emitted."""
    target = Guessed(V, seed=3, law=partial(foreseen, ToyTarget(V, seed=3)))
    with Engine(target, on_toy(target, width=1)) as engine:
        found = engine.generate(PROMPT, max_tokens=PLACES + 3)
    assert [len(step.tree) for step in found.record.steps] == target.asked == [PLACES, 1]


def test_tokens_that_the_head_cannot_guess_are_not_offered(tmp_path, kind):
    directory = made(tmp_path / "few", V, 3, kind=kind, guesses=PLACES, mask_token=MASK)
    ids = read_head(directory).draft_ids.tolist()
    toy = ToyTarget(V, seed=9)
    target = Guessed(V, seed=3, law=lambda text, place: another(toy, text, place)[ids])
    with Engine(target, [(kind, DRAFTERS[kind](str(directory), target=target))]) as engine:
        found = engine.generate(PROMPT, max_tokens=40)
    assert found.tokens == plainly(PROMPT, max_tokens=40)
    assert no_fault(found)
    assert set(np.concatenate([step.tree.tokens for step in found.record.steps]).tolist()) == set(ids)


# ---- who may ride --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "other"), [*itertools.permutations(KINDS, 2)])
def test_a_head_of_another_kind_names_its_drafter(tmp_path, kind, other):
    changes = {"guesses": 1, "mask_token": 0} if other == "eagle" else {}
    directory = head(tmp_path, other, **changes)
    with pytest.raises(ModelError) as one:
        make(f"{kind}:{directory}", target=Guessed(V))
    assert str(one.value) == f"drafter {kind}: the head in {directory} is of kind {other}; use {other}:{directory}"


def test_what_cannot_ride_says_why(tmp_path, kind):
    with pytest.raises(InputError, match=rf"drafter {kind}: no head is shipped for toy.*augury train {kind} toy of 5"):
        make(kind, target=Guessed(V))
    directory = head(tmp_path, kind)
    with pytest.raises(InputError, match="no draft head can ride on toy"):
        make(f"{kind}:{directory}", target=ToyTarget(V))
    for depth in (-1, MAX_NODES + 1):
        with pytest.raises(InputError, match=f"depth is {depth}; it must be 1 to {MAX_NODES}"):
            make(f"{kind}:{directory},depth={depth}", target=Guessed(V))


# ---- on the real model ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded():
    return load("smollm2-135m", drafters="none", max_model_len=512, measure=False)


@real
@native
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)], ids=["greedy", "drawn"])
def test_bits_are_the_plain_ones_even_behind_a_head_that_knows_nothing(loaded, tmp_path, kind, sampling):
    info = loaded.target.info
    directory = made(
        tmp_path / "random", vocab=info.vocab_size, size=2048, hidden_size=info.hidden_size, heads=9, kv_heads=3,
        taps=(2, 15, 29), target=info.name, target_digest=info.digest, kind=kind, guesses=4, mask_token=2,
    )  # fmt: skip
    drafter = make(f"{kind}:{directory}", target=loaded.target)
    engine = Engine(
        loaded.target, [(kind, drafter)], tokenizer=loaded.tokenizer, template=loaded.template, eos_ids=loaded.eos_ids
    )
    with watched(engine) as one:
        verdict, _, drafted = examine(one, one.render(ASKED), sampling, max_tokens=24)
    assert verdict.kind == "identical bits", verdict
    assert drafted.drafted > 20
    assert drafted.accepted < drafted.drafted
