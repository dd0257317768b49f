"""The target made cheaper as its own drafter: lossless, rarely wrong, and without a trace in the cache."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest

import augury
from augury.api import load
from augury.conformance.identity import examine, watched
from augury.conformance.kit import check_drafter
from augury.conformance.toys import ToyTarget
from augury.drafters import make
from augury.drafters.itself import Itself
from augury.drafters.layers import choose_layers
from augury.drafters.spine import COUPLED, GREEDY
from augury.engine.engine import Engine
from augury.errors import InputError, UnknownName
from augury.models.native import native_available
from augury.models.runner import Runner
from augury.models.target import Target
from augury.sampling import Sampling
from augury.tree import DraftTree

RULES = ("coupled", "rejection", "block")
ASKED = "Tell me about a lighthouse keeper and his dog."

native = pytest.mark.skipif(native_available() is not None, reason=f"native forward: {native_available()}")


# ---- the law, on toys ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "rules"), [(2, RULES[:1]), (1, RULES[1:])], ids=["tree", "drawn chain"])
def test_the_kit_passes(width, rules):
    report = check_drafter(
        lambda target: Itself("int8", depth=3, width=width, target=target), rules=rules, samples=2000
    )
    assert report.passed, str(report)


@pytest.mark.parametrize(("temperature", "kind"), [(0.0, GREEDY), (1.0, COUPLED)])
def test_how_far_a_guess_leads_is_what_it_is_judged_by(temperature, kind):
    """Two tokens that are alike, and many that are not: however little the likeliest is believed, it leads by that."""
    seen = []

    class Watched(Itself):
        def _ranked(self, kind, best, law, lead):
            choices = super()._ranked(kind, best, law, lead)
            seen.append((choices[0].kind, choices[0].raw, lead, float(law[best[0]])))
            return choices

    target = ToyTarget(5, seed=3)
    drafter = Watched("int8", depth=4, target=target)
    with Engine(target, [("self", drafter)]) as engine:
        engine.generate([1, 2], Sampling(temperature=temperature, seed=1), max_tokens=20)
    assert seen
    assert all(found == kind and raw == pytest.approx(lead) and raw >= 0.5 for found, raw, lead, _ in seen)
    assert any(held < 0.45 for _, _, _, held in seen)  # what it is believed alone would say less


def test_several_requests_guess_in_their_own_slots():
    target = ToyTarget(5, seed=3)
    prompts = [[1, 2], [2, 2, 4], [3]]
    with Engine(target) as engine:
        plain = [engine.generate(p, max_tokens=30).tokens for p in prompts]
    with Engine(target, [("self", Itself("int8", depth=4, target=target))], slots=3) as engine:
        together = engine.generate_all(prompts, max_tokens=30)
    assert [r.tokens for r in together] == plain
    assert sum(r.record.accepted for r in together) > 30


def test_a_guess_in_the_wrong_row_would_be_noticed():
    """The same toy with guesses written one row too early, over a committed one."""

    class Clobbers(ToyTarget):
        def shorten(self, bits, layers):
            guess = super().shorten(bits, layers)
            return lambda slot, ahead, tokens: guess(slot, ahead - 1, tokens)

    def answer(kind):
        with Engine(kind(5, seed=3)) as engine:
            plain = engine.generate([1, 2, 3], max_tokens=30).tokens
        target = kind(5, seed=3)
        with Engine(target, [("self", Itself("int8", depth=4, target=target))]) as engine:
            return engine.generate([1, 2, 3], max_tokens=30).tokens == plain

    assert answer(ToyTarget)
    assert not answer(Clobbers)


# ---- what it can be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"weights": "int3"}, UnknownName, "int3"),
        ({"layers": 31}, InputError, "has 1"),
        ({"layers": -1}, InputError, "0 is all"),
        ({"weights": "bf16"}, InputError, "is the target"),
        ({"depth": 0}, InputError, "depth is 0"),
        ({"depth": 65}, InputError, "depth is 65"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options, error, says):
    with pytest.raises(error, match=says):
        Itself(**options, target=ToyTarget())


def test_a_target_that_cannot_be_made_cheaper_says_so():
    rigid = ToyTarget()
    rigid.info = replace(rigid.info, short=())
    with pytest.raises(InputError, match="numpy has no weights in int4; use runner native or torch"):
        Itself(target=rigid)
    with pytest.raises(InputError, match="cannot be made cheaper under numpy"):
        Target.shorten(rigid, 4, [0])


def test_a_spec_names_weights_first_and_layers_by_name():
    target = ToyTarget()
    drafter = make("self:int8,depth=3", target=target, vocab_size=4)
    assert isinstance(drafter, Itself)
    assert (drafter.depth, drafter.layers) == (3, (0,))


# ---- the real model ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engines():
    """One loaded target, an engine for every drafter."""
    base = load(drafters="none", max_model_len=1024, measure=False)

    def engine(spec, rule="coupled"):
        base.close()
        drafter = make(spec, target=base.target, tokenizer=base.tokenizer, vocab_size=base.target.info.vocab_size)
        return Engine(
            base.target, [("self", drafter)], acceptance=rule, tokenizer=base.tokenizer, template=base.template,
            eos_ids=base.eos_ids,
        )  # fmt: skip

    yield engine
    base.close()


@native
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("spec", ["self:int4", "self:int8,width=2", "self:bf16,layers=29", "self:int4,layers=28"])
def test_answers_are_the_plain_ones_bit_for_bit(engines, spec, sampling):
    with watched(engines(spec)) as engine:
        verdict, plain, drafted = examine(engine, engine.render(ASKED), sampling, max_tokens=40)
    assert verdict.kind == "identical bits", verdict
    assert len(plain.tokens) == 40
    assert drafted.accepted >= (30 if "layers" not in spec else 12)


@native
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3)], ids=["greedy", "sampled"])
def test_what_is_shipped_of_the_targets_phrases_saves_forwards_and_changes_nothing(engines, sampling):
    def drafted(spec):
        forwards = 0
        with engines(spec) as engine:
            drafter = engine.parts.drafters[0][1]
            guess = drafter._guess

            def counted(*given):
                nonlocal forwards
                forwards += 1
                return guess(*given)

            drafter._guess = counted
            record = (result := engine.generate(engine.render(ASKED), sampling, max_tokens=48)).record
        trees = [(s.tree.tokens.tolist(), s.tree.parents.tolist(), s.tree.survival.tolist()) for s in record.steps]
        return result.tokens, trees, forwards

    tokens, trees, forwards = drafted("self:phrases=none")
    with_phrases = drafted("self")
    assert with_phrases[0] == tokens
    assert with_phrases[1] == trees
    assert with_phrases[2] < 0.95 * forwards


@native
@pytest.mark.parametrize("rule", RULES[1:])
def test_drawn_guesses_are_mostly_accepted(engines, rule):
    with engines("self:int8", rule) as engine:
        record = engine.generate(
            engine.render(ASKED), Sampling(temperature=1.0, top_p=0.9, seed=1), max_tokens=48, ignore_eos=True
        ).record
    assert record.drafted > 30
    assert record.accepted > 0.6 * record.drafted  # one refused guess ends a chain of eight


@native
def test_the_cache_holds_what_a_fresh_prefill_would(engines):
    with engines("self:int4,depth=6") as engine:
        target = engine.target
        stream = engine.stream(engine.render(ASKED), Sampling(temperature=1.0, seed=5), max_tokens=48)
        for _ in range(6):
            next(stream)
        (request,) = engine._running
        committed = request.tokens[: target.length(request.slot)].copy()
        held = target.snapshot(request.slot)
        fresh = target.open()
        target.prefill(fresh, committed)
        for mine, theirs in zip(held, target.snapshot(fresh), strict=True):
            assert np.array_equal(mine, theirs)
        target.release(fresh)
        stream.close()
    assert len(committed) > 40


@native
def test_an_answer_may_fill_the_context_to_its_last_token():
    with augury.load(drafters="self:int4", max_model_len=64, measure=False) as engine:
        for length in range(43, 53, 2):  # so that the last proposals begin at every distance from the end
            prompt = [int(t) for t in np.random.default_rng(length).integers(300, 40000, length)]
            drafted = engine.generate(prompt, max_tokens=200, ignore_eos=True)
            plain = engine.generate(prompt, max_tokens=200, ignore_eos=True, draft=False)
            assert drafted.tokens == plain.tokens
            assert len(prompt) + len(drafted.tokens) == 64
            assert not any(p.fault for s in drafted.record.steps for p in s.proposals)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 6])
def test_nothing_is_guessed_that_could_not_be_emitted(max_tokens):
    target = ToyTarget(5, seed=3)
    places = []

    class Counting(Itself):
        def row(self, view, path):
            places.append(len(path))
            return super().row(view, path)

    with Engine(target, [("self", Counting("int8", depth=8, target=target))]) as engine:
        result = engine.generate([1, 2, 3], max_tokens=max_tokens)
    assert len(result.tokens) == max_tokens
    assert max(places, default=-1) < max_tokens - 1


@native
def test_an_interrupt_within_a_guess_leaves_the_target_as_it_is(engines):
    """Ctrl-C may come behind any line and any call."""
    with engines("self:int4") as engine:
        target = engine.target
        guess, slot = target.shorten(4, range(0, 30, 2)), target.open()
        root, tree = np.array([7], np.int32), DraftTree.chain([8, 9], [0.5, 0.4])
        expected = target.verify([slot], [7], [tree]).logits[0].copy()
        moments = 0
        for moment in itertools.count():
            events = itertools.count()

            def interrupt(frame, event, arg, moment=moment, events=events):
                if "augury" in frame.f_code.co_filename and next(events) == moment:
                    raise KeyboardInterrupt
                return interrupt

            sys.settrace(interrupt)
            try:
                guess(slot, 0, root)
                break
            except KeyboardInterrupt:
                moments += 1
            finally:
                sys.settrace(None)
            assert np.array_equal(target.verify([slot], [7], [tree]).logits[0], expected)
        assert moments > 30
        target.release(slot)


@native
def test_guesses_out_of_place_are_refused(engines):
    with engines("self:int4") as engine:
        target = engine.target
        assert isinstance(target, Runner)
        guess, slot = target.shorten(4, range(30)), target.open()
        one = np.array([1], np.int32)
        for ahead in (-1, 65):
            with pytest.raises(InputError, match="no room to guess"):
                guess(slot, ahead, one)
        with pytest.raises(InputError, match=r"place 1 of slot \d cannot be guessed before place 0"):
            guess(slot, 1, one)
        guess(slot, 0, one)
        guess(slot, 1, one)
        with pytest.raises(InputError, match="before place 2"):
            guess(slot, 3, one)
        with pytest.raises(InputError, match="16 rows at a time, got 17"):
            guess(slot, 0, np.ones(17, np.int32))
        for layers in ([], [1, 0], [30], [-1, 2]):
            with pytest.raises(InputError, match="ascending numbers of 0 to 29"):
                target.shorten(16, layers)
        with pytest.raises(InputError, match="no weights of 5 bits; it has 16, 8, 4"):
            target.shorten(5, range(30))
        target.release(slot)


@native
def test_it_is_there_by_default_where_the_target_can_be_had_in_fewer_bits():
    cheap = ["suffix", "prediction", "grammar"]  # a head that is shipped for it, where it cannot
    for runner, names in (("native", [*cheap, "self"]), ("torch", [*cheap, "eagle"])):
        with augury.load(runner=runner, max_model_len=64, measure=False) as engine:
            assert [name for name, _ in engine.parts.drafters] == names
    with augury.load(drafters="auto,ngram", max_model_len=64, measure=False) as engine:
        assert [name for name, _ in engine.parts.drafters] == [*cheap, "self", "ngram"]
    with pytest.raises(InputError, match="no weights in int4; it has bf16, with layers=K"):
        augury.load(runner="torch", drafters="self", max_model_len=64, measure=False)


# ---- which layers --------------------------------------------------------------------------------------------------


def test_layers_that_do_nothing_are_the_ones_left_out():
    """Of six random layers two add nothing to the residual stream."""
    import torch
    from tiny import random_block

    from augury.models.block import TorchForward
    from augury.models.runner import capacity
    from augury.models.target import TargetInfo

    config, weights = random_block(num_hidden_layers=6)
    for idle in (1, 4):
        for name in ("o", "down"):
            weights[f"layers.{idle}.{name}"].zero_()
    forward = TorchForward(config, weights, 1, capacity(config.context), "cpu", torch.float32)
    info = TargetInfo(
        "tiny", "llama", "", "float32", config.vocab_size, config.context, config.hidden_size, 6, 0, 0, True, False
    )
    target = Runner(forward, info, 1)
    assert choose_layers(target, 4) == (0, 2, 3, 5)
    with pytest.raises(InputError, match="load with max_model_len=16 or more"):
        choose_layers(ToyTarget(context=8), 1)
    assert target.open() == 0  # its slot is free again
