"""A trained head as drafter: lossless, in step with its target whatever is rolled back, refused where it is foreign."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from augury.api import load
from augury.conformance.identity import examine, watched
from augury.conformance.kit import check_drafter
from augury.conformance.toys import ToyTarget
from augury.drafters import make
from augury.drafters.eagle import Eagle
from augury.drafters.shipped import SHIPPED
from augury.engine.engine import Engine
from augury.errors import InputError, ModelError
from augury.models.heads import Head, HeadConfig, read_head, shapes, write_head
from augury.models.native import native_available
from augury.models.runner import Runner
from augury.sampling import Sampling

V = 5
RULES = ("coupled", "rejection", "block")


class Ridden(ToyTarget):
    """A toy whose head is another toy, or the toy itself, over a cache as a head has it; it checks what it is fed.

    A hidden state is (token, position); a feature that the head leaves is the number of the text up to its row.
    """

    def __init__(self, *args, seed_of_head=None, ids=tuple(range(V)), **options):
        super().__init__(*args, **options)
        self.says = self if seed_of_head is None else ToyTarget(V, seed=seed_of_head)
        self.ids = list(ids)
        self.fed = 0
        self._heads: dict[int, list[int]] = {}
        self._numbers: dict[tuple[int, ...], float] = {}

    def tap(self, layers):
        def features(slot, begin, end):
            assert 0 <= begin <= end <= self._lengths[slot]
            tokens = [cell.token for cell in self._cells[slot][begin:end]]
            return np.array([[t, p] for t, p in zip(tokens, range(begin, end), strict=True)], np.float32)

        return features

    def number(self, text):
        return self._numbers.setdefault(tuple(text), float(len(self._numbers)))

    def attach(self, head):
        def ride(slot, length, tokens, given, fuse, logits, parents=None):
            rows = self._heads.setdefault(slot, [])
            assert length < len(rows) or length == max(len(rows) - 1, 0) or not rows, "a row was left out"
            if not length:
                assert fuse
                rows[:] = [int(given[0, 0])]
            del rows[length + 1 :]
            chain = np.arange(-1, len(tokens) - 1)
            parents = chain if parents is None else parents
            texts = []
            for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
                texts.append([*(rows if parent < 0 else texts[parent]), token])
            if fuse:
                assert given[:, 1].tolist() == list(range(length, length + len(tokens)))
                assert given[:, 0].tolist() == [rows[length], *tokens[:-1].tolist()]
            else:
                assert given[:, 0].tolist() == [self.number(text[:-1]) for text in texts]
            if np.array_equal(parents, chain):
                rows.extend(tokens.tolist())
            self.fed += len(tokens)
            laws = [self.says.row(text)[self.ids] for text in texts]
            return np.array(laws[len(laws) - logits :]), np.array([[self.number(text)] for text in texts], np.float32)

        return ride


@pytest.fixture
def head(tmp_path):
    return made(tmp_path / "head")


def made(directory, vocab=V, size=V, **changes):
    config = HeadConfig(**{
        "kind": "eagle", "hidden_size": 64, "intermediate_size": 32, "heads": 1, "kv_heads": 1, "head_dim": 64,
        "norm_eps": 1e-5, "rope_theta": 1e4, "taps": (0, 1, 2), "vocab_size": vocab, "target": "toy",
        "target_digest": "",
    } | changes)  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    kept = ("d2t", "t2d", "lm_head.weight", "embed_tokens.weight")
    weights = {
        name: (torch.randn(shape, generator=draw) * shape[-1] ** -0.5).bfloat16() + (1.0 if len(shape) == 1 else 0.0)
        for name, (shape, _) in shapes(config, size).items()
        if name not in kept
    }
    ids = np.sort(np.random.default_rng(0).permutation(vocab)[:size]).astype(np.int32)
    write_head(directory, Head(config, weights, ids))
    return directory


# ---- on toys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(("width", "rules"), [(2, RULES[:1]), (1, RULES[1:])], ids=["tree", "drawn chain"])
def test_the_kit_passes(tmp_path, width, rules, beam, monkeypatch):
    """The kit's own toys, with a head that is another toy."""
    monkeypatch.setattr(ToyTarget, "tap", Ridden.tap)
    monkeypatch.setattr(ToyTarget, "attach", lambda self, found: ridden(self))

    def eagle(target):
        size = target.info.vocab_size
        return Eagle(str(made(tmp_path / str(size), size, size)), depth=3, width=width, beam=beam, target=target)

    report = check_drafter(eagle, rules=rules, samples=2000)
    assert report.passed, str(report)


def ridden(target):
    other = Ridden(target.info.vocab_size, seed_of_head=9, ids=range(target.info.vocab_size))
    other.says = ToyTarget(target.info.vocab_size, seed=9)
    return other.attach(None)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_head_that_knows_some_tokens_guesses_these_alone(tmp_path, rule, temperature):
    """Under every rule; what it says of a token is what it says with all of them at hand, and no other is drafted."""
    few = made(tmp_path / "few", V, 3)
    ids = read_head(few).draft_ids
    target = Ridden(V, seed=3, ids=ids)
    sampling = Sampling(temperature=temperature, seed=5)
    with Engine(target, on_toy(few, target, depth=3, width=3), acceptance=rule) as engine:
        found = engine.generate([1, 2, 3, 1], sampling, max_tokens=60)
    trees = [step.tree for step in found.record.steps]
    assert {int(t) for tree in trees for t in tree.tokens} == set(ids.tolist())
    assert found.record.accepted > 10
    if rule == "coupled" or not temperature:
        plain = Engine(ToyTarget(V, seed=3), acceptance=rule).generate([1, 2, 3, 1], sampling, max_tokens=60)
        assert found.tokens == plain.tokens


def on_toy(head, target, **options):
    return [("eagle", Eagle(str(head), target=target, **options))]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_head_that_knows_the_target_is_always_right(head, temperature):
    """Then every row is where it belongs, at every step."""
    target = Ridden(V, seed=3)
    sampling = Sampling(temperature=temperature, seed=5)
    plain = Engine(ToyTarget(V, seed=3)).generate([1, 2, 3, 1], sampling, max_tokens=60).tokens
    with Engine(target, on_toy(head, target, depth=4, width=1)) as engine:
        found = engine.generate([1, 2, 3, 1], sampling, max_tokens=60)
    assert found.tokens == plain
    assert found.record.accepted == found.record.drafted > 30


@pytest.mark.parametrize("beam", [1, 2, 8])
def test_after_wrong_guesses_it_reads_what_came_instead(head, beam):
    """What the toy asserts of its rows holds at every step, behind refusals too."""

    class Mostly:
        """The target with another toy mixed in."""

        @staticmethod
        def row(tokens):
            return ToyTarget(V, seed=3).row(tokens) + 0.6 * ToyTarget(V, seed=9).row(tokens)

    target = Ridden(V, seed=3)
    target.says = Mostly
    plain = Engine(ToyTarget(V, seed=3)).generate([1, 2, 3, 1], max_tokens=80).tokens
    with Engine(target, on_toy(head, target, depth=3, width=3, beam=beam)) as engine:
        found = engine.generate([1, 2, 3, 1], max_tokens=80)
    assert found.tokens == plain
    assert found.record.accepted > 20
    assert sum(step.accepted < 3 for step in found.record.steps) > 2
    assert not any(p.fault for step in found.record.steps for p in step.proposals)


def test_a_tree_has_the_likeliest_nodes_wherever_they_hang(head):
    """Against a search of all paths; what is offered of 9 nodes is what has the greatest survival of all."""
    target = Ridden(V, seed=3)
    eagle = Eagle(str(head), depth=3, width=V, beam=8, nodes=9, target=target)
    with Engine(target, [("eagle", eagle)]) as engine:
        found = engine.generate([1, 2, 3, 1], max_tokens=4)
    step = found.record.steps[0]

    def grown(text, above, depth):
        logits = target.row(text).astype(np.float64)
        law = np.exp(logits - logits.max())
        law /= law.sum()
        for token in range(V):
            yield above * law[token], [*text, token]
            if depth > 1:
                yield from grown([*text, token], above * law[token], depth - 1)

    wanted = sorted(grown([1, 2, 3, 1], 1.0, 3), key=lambda x: -x[0])[:9]
    offered = {tuple(step.tree.tokens[step.tree.path(i)].tolist()) for i in range(len(step.tree))}
    assert offered == {tuple(text[4:]) for _, text in wanted}
    assert max(step.tree.depths) > 1


def test_requests_in_their_slots_and_a_conversation_that_goes_on(head):
    target = Ridden(V, seed=3, slots=3)
    prompts = [[1, 2, 0], [2, 2, 4, 4], [3, 0]]
    plain = [Engine(ToyTarget(V, seed=3)).generate(p, max_tokens=30).tokens for p in prompts]
    with Engine(target, on_toy(head, target, depth=4, width=1), slots=3) as engine:
        together = engine.generate_all(prompts, max_tokens=30)
        assert [r.tokens for r in together] == plain
        assert all(r.record.accepted == r.record.drafted > 10 for r in together)
        before = target.fed
        longer = engine.generate([*prompts[1], *plain[1], 2], max_tokens=10)
        assert longer.record.cached_tokens > 30
        assert target.fed - before < 30, "what the slot's cache held was read again"
    assert longer.record.accepted == longer.record.drafted > 5


def test_behind_a_single_token_nothing_is_guessed_and_then_it_is(head):
    target = Ridden(V, seed=3)
    with Engine(target, on_toy(head, target, width=1)) as engine:
        found = engine.generate([2], max_tokens=20)
    assert found.tokens == Engine(ToyTarget(V, seed=3)).generate([2], max_tokens=20).tokens
    assert not found.record.steps[0].tree
    assert found.record.accepted == found.record.drafted > 10
    assert not any(p.fault for step in found.record.steps for p in step.proposals)


def test_a_request_that_it_did_not_see_in_a_slot_is_read_as_a_whole(head):
    """Another request used the slot without it; hidden states of all tokens are in the target's cache."""
    target = Ridden(V, seed=3)
    with Engine(target, on_toy(head, target, depth=4, width=1)) as engine:
        engine.generate([1, 2, 3], max_tokens=10)
        plain = engine.generate([3, 1, 4, 1], max_tokens=12, draft=False).tokens
        found = engine.generate([3, 1, 4, 1, *plain], max_tokens=12)
    assert found.record.cached_tokens >= 12
    assert found.record.accepted == found.record.drafted > 5


# ---- who may ride --------------------------------------------------------------------------------------------------


def test_what_cannot_ride_says_why(head, tmp_path):
    with pytest.raises(InputError, match=r"drafter eagle: no head is shipped for toy.*augury train eagle toy of 5"):
        make("eagle", target=Ridden(V))
    with pytest.raises(InputError, match=r"no draft head can ride on toy"):
        make(f"eagle:{head}", target=ToyTarget(V))
    with pytest.raises(ModelError, match=r"no config\.json"):
        make(f"eagle:{tmp_path}", target=Ridden(V))


# ---- on the real model ---------------------------------------------------------------------------------------------


real = pytest.mark.real
native = pytest.mark.skipif(native_available() is not None, reason=f"native forward: {native_available()}")
ASKED = "Tell me about a lighthouse keeper and his dog."


@pytest.fixture(scope="module")
def loaded():
    return load("smollm2-135m", drafters="none", max_model_len=512, measure=False)


@pytest.fixture(scope="module")
def random_head(loaded, tmp_path_factory):
    info = loaded.target.info
    return made(
        tmp_path_factory.mktemp("heads") / "random", vocab=info.vocab_size, size=2048, hidden_size=info.hidden_size,
        heads=9, kv_heads=3, taps=(2, 15, 29), target=info.name, target_digest=info.digest,
    )  # fmt: skip


@real
@native
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)], ids=["greedy", "drawn"])
def test_bits_are_the_plain_ones_even_behind_a_head_that_knows_nothing(loaded, random_head, sampling):
    eagle = make(f"eagle:{random_head}", target=loaded.target)
    engine = Engine(
        loaded.target, [("eagle", eagle)], tokenizer=loaded.tokenizer, template=loaded.template, eos_ids=loaded.eos_ids
    )
    with watched(engine) as one:
        verdict, _, drafted = examine(one, one.render(ASKED), sampling, max_tokens=32)
    assert verdict.kind == "identical bits", verdict
    assert drafted.drafted > 20


@real
@native
def test_a_head_for_other_weights_is_refused(loaded, random_head, tmp_path):
    info = loaded.target.info
    other = made(
        tmp_path / "other", vocab=info.vocab_size, size=64, hidden_size=info.hidden_size, heads=9, kv_heads=3,
        taps=(2, 15, 29), target="another", target_digest="0" * 32,
    )  # fmt: skip
    with pytest.raises(
        ModelError, match=r"the head trained for 'another' does not fit this target smollm2-135m"
    ) as one:
        make(f"eagle:{other}", target=loaded.target)
    assert "\n" not in str(one.value)
    assert isinstance(loaded.target, Runner)


@real
@native
@pytest.mark.skipif(not (SHIPPED / "smollm2-135m" / "eagle").is_dir(), reason="no head is shipped")
def test_the_shipped_head_guesses_prose(loaded):
    eagle = make("eagle", target=loaded.target)
    with Engine(
        loaded.target, [("eagle", eagle)], tokenizer=loaded.tokenizer, template=loaded.template, eos_ids=loaded.eos_ids
    ) as engine:
        found = engine.generate(engine.render(ASKED), max_tokens=96)
    assert len(found.tokens) / len(found.record.steps) > 1.5


def test_a_head_uses_nothing_of_what_another_tenant_left_in_a_slot(head):
    """Whoever is answered sooner would know what the other had asked."""
    target = Ridden(V, seed=3)
    prompt = [1, 2, 3, 1, 2, 0, 4]
    with Engine(target, on_toy(head, target, depth=4, width=1)) as one:
        fed = []
        for salt in ("a", "b", "b"):
            before = target.fed
            one.generate(prompt, max_tokens=2, cache_salt=salt)
            fed.append(target.fed - before)
    assert fed[0] == fed[1] > fed[2]
