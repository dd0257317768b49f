"""A draft model: in step with the request, honest about its law, and refused when it numbers tokens otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tokenizers

from augury.conformance.kit import SAMPLINGS, check_drafter
from augury.conformance.toys import SameLaw, ToyTarget
from augury.drafters import make
from augury.drafters.follower import Follower
from augury.drafters.model import Led
from augury.drafters.vocabulary import shared_ids
from augury.engine.engine import Engine
from augury.errors import DrafterError, InputError
from augury.models.native import native_available
from augury.models.tokenizer import Tokenizer
from augury.sampling import Sampling
from augury.tree import DraftTree, Path

V = 5
PROMPT = [1, 2, 3, 1]
RULES = ("coupled", "rejection", "block")


def led(size=V, seed=2, draft=None, **options):
    """A drafter over ``size`` tokens led by a toy."""
    draft = draft or ToyTarget(size, seed)
    return Led(draft, np.arange(size) < draft.info.vocab_size, 4, **options)


# ---- lossless, and as good as p and q allow ------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "rules"), [(3, RULES[:1]), (1, RULES[1:])], ids=["tree", "drawn chain"])
def test_the_kit_passes(width, rules):
    report = check_drafter(lambda target: led(target.info.vocab_size, depth=2, width=width), rules=rules, samples=2000)
    assert report.passed, str(report)


@pytest.mark.parametrize(("width", "rules"), [(3, RULES[:1]), (1, RULES[1:])], ids=["tree", "drawn chain"])
def test_the_kit_passes_in_fewer_bits(width, rules):
    report = check_drafter(
        lambda target: led(target.info.vocab_size, depth=3, width=width, bits=8), rules=rules, samples=2000
    )
    assert report.passed, str(report)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [k for k in SAMPLINGS if k != "processor"])
def test_the_target_as_its_own_drafter_is_always_right(rule, kind):
    """Whatever the parameters: the drafter's law goes through the request's own pipeline."""
    drafter = led(draft=ToyTarget(V, seed=7), depth=4, width=1)
    with Engine(ToyTarget(V, seed=7), [("self", drafter)], acceptance=rule) as engine:
        record = engine.generate(PROMPT, SAMPLINGS[kind], max_tokens=41).record
    assert record.drafted == record.accepted > (3 if kind == "grammar" else 30)


def match(p, q):
    """Probability that two exponential races with shared waits have one winner."""
    return sum(1.0 / np.maximum(p / p[x], q / q[x]).sum() for x in range(len(p)))


@pytest.mark.parametrize(
    ("rule", "expected"), [("coupled", match), ("rejection", lambda p, q: np.minimum(p, q).sum())], ids=RULES[:2]
)
def test_measured_acceptance_is_that_of_p_and_q(rule, expected):
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.25, 0.25, 0.4, 0.1])
    drafter = Led(SameLaw(q), np.ones(4, np.bool_), 4, depth=1, width=1)
    with Engine(SameLaw(p), [("q", drafter)], acceptance=rule) as engine:
        records = [
            engine.generate([0], Sampling(temperature=1.0, seed=s), max_tokens=200, ignore_eos=True).record
            for s in range(20)
        ]
    drafted, accepted = sum(r.drafted for r in records), sum(r.accepted for r in records)
    chance = expected(p, q)
    assert abs(accepted / drafted - chance) < 3.5 * np.sqrt(chance * (1 - chance) / drafted)


# ---- the cache -----------------------------------------------------------------------------------------------------


def test_a_follower_holds_what_a_fresh_prefill_would():
    follower, fresh = Follower(ToyTarget(V, seed=3), 2), ToyTarget(V, seed=3)
    dice = np.random.default_rng(0)
    tokens = dice.integers(0, V, 5).astype(np.int32)
    for _ in range(30):  # goes on, or is corrected some tokens back
        kept = len(tokens) - int(dice.integers(0, min(4, len(tokens) - 1)))
        tokens = np.concatenate([tokens[:kept], dice.integers(0, V, int(dice.integers(1, 5)))]).astype(np.int32)
        row = follower.after(7, tokens)
        assert np.array_equal(row, fresh.row(tokens.tolist()))
        slot = fresh.open()
        fresh.prefill(slot, tokens)
        held = follower._held[7][0]
        for mine, theirs in zip(follower.target.snapshot(held), fresh.snapshot(slot), strict=True):
            assert np.array_equal(mine, theirs)
        fresh.release(slot)


@pytest.mark.parametrize("bits", [8, 4])
def test_guesses_in_fewer_bits_leave_no_trace_in_the_cache(bits):
    follower, fresh = Follower(ToyTarget(V, seed=3), 2, bits), ToyTarget(V, seed=3)
    dice = np.random.default_rng(0)
    tokens = dice.integers(0, V, 5).astype(np.int32)
    for _ in range(20):
        assert np.array_equal(follower.after(7, tokens), fresh.row(tokens.tolist()))
        guesses = dice.integers(0, V, int(dice.integers(0, 5))).astype(np.int32)
        for depth in range(1, len(guesses) + 1):
            ahead = [*tokens.tolist(), *guesses[:depth].tolist()]
            assert not np.array_equal(follower.after(7, tokens, guesses[:depth]), fresh.row(ahead))
        slot = fresh.open()
        fresh.prefill(slot, tokens)
        for mine, theirs in zip(follower.target.snapshot(follower._held[7][0]), fresh.snapshot(slot), strict=True):
            assert np.array_equal(mine, theirs)
        fresh.release(slot)
        accepted = guesses[: int(dice.integers(0, len(guesses) + 1))]
        tokens = np.concatenate([tokens, accepted, dice.integers(0, V, 1)]).astype(np.int32)


def test_a_follower_that_failed_half_way_goes_on_rightly():
    class Failing(ToyTarget):
        fail = False

        def verify(self, slots, roots, trees):
            if self.fail:
                raise RuntimeError("no memory")
            return super().verify(slots, roots, trees)

    target = Failing(V, seed=3)
    follower = Follower(target, 1)
    tokens = np.array([1, 2, 3, 4], np.int32)
    follower.after(1, tokens)
    target.fail = True
    with pytest.raises(RuntimeError):
        follower.after(1, np.array([1, 2, 4, 4, 1], np.int32))
    target.fail = False
    assert np.array_equal(follower.after(1, tokens), target.row(tokens.tolist()))


def test_slots_come_back_and_serve_the_next_request_that_begins_alike():
    drafter = led()
    with Engine(ToyTarget(V), [("model", drafter)], slots=2) as engine:
        for _ in range(10):
            engine.generate_all([PROMPT, [*PROMPT, 4], [*PROMPT, 2]], max_tokens=12)
    assert not drafter._follower._held
    assert not drafter._memory


def test_a_draft_model_with_a_shorter_context_stops_there_and_says_so():
    drafter = led(draft=ToyTarget(V, seed=0, context=16), depth=4)
    with Engine(ToyTarget(V), [("model", drafter)]) as engine, Engine(ToyTarget(V)) as plain:
        result = engine.generate(PROMPT, max_tokens=60)
        assert result.tokens == plain.generate(PROMPT, max_tokens=60).tokens
    last = result.record.steps[-3].proposals[0]
    assert "the draft model's context of 16 tokens is full" in last.fault
    assert last.nodes == 0
    assert result.record.accepted >= 8


def test_a_prompt_longer_than_the_draft_models_context_is_answered_all_the_same():
    drafter = led(draft=ToyTarget(V, seed=0, context=16))
    prompt = (PROMPT * 10)[:30]
    with Engine(ToyTarget(V), [("model", drafter)]) as engine, Engine(ToyTarget(V)) as plain:
        result = engine.generate(prompt, max_tokens=20)
        assert result.tokens == plain.generate(prompt, max_tokens=20).tokens
    assert result.record.drafted == 0
    assert result.record.acceptance_rate is None


# ---- vocabularies --------------------------------------------------------------------------------------------------


def test_ids_that_the_draft_model_lacks_are_never_drafted_and_still_come():
    report = check_drafter(
        lambda target: led(target.info.vocab_size, draft=ToyTarget(3, 2), depth=1), rules=RULES[:2], samples=2000
    )
    assert report.passed, str(report)
    with Engine(ToyTarget(V), [("model", led(draft=ToyTarget(3, 2)))]) as engine:
        result = engine.generate(PROMPT, Sampling(temperature=1.5, seed=1), max_tokens=100, ignore_eos=True)
    assert max(result.tokens) > 2
    assert all(step.tree.tokens.max() < 3 for step in result.record.steps if len(step.tree))


def tokenizer(words):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({w: i for i, w in enumerate(words)}, []))
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(backend)


WORDS = [f"w{i}" for i in range(300)]


def test_padded_vocabularies_share_what_both_have():
    both = shared_ids(tokenizer(WORDS), tokenizer(WORDS), 320, 304)
    assert both.tolist() == [True] * 304 + [False] * 16
    assert shared_ids(None, None, 4, 6).all()


def test_a_few_ids_that_differ_are_left_out():
    other = [*WORDS[:139], "other", *WORDS[140:]]
    assert np.flatnonzero(~shared_ids(tokenizer(WORDS), tokenizer(other), 300, 300)).tolist() == [139]


def test_another_tokenizer_is_refused_with_the_first_ids_that_differ():
    other = [WORDS[1], WORDS[0], *WORDS[:1:-1]]
    with pytest.raises(InputError, match=r"ids differ, first 0 \(b'w0' and b'w1'\), 1 .*foreign:MODEL"):
        shared_ids(tokenizer(WORDS), tokenizer(other), 300, 300)


@pytest.mark.parametrize("options", [{"depth": 0}, {"width": 0}])
def test_sizes_below_one_are_refused(options):
    with pytest.raises(InputError, match="must be 1 to 64"):
        led(**options)


def test_bits_that_a_draft_model_does_not_have_are_refused():
    with pytest.raises(InputError, match=r"bits is 5; a draft model under numpy has 16, 8, 4$"):
        led(bits=5)
    rigid = ToyTarget(V)
    for short, says in (((16,), "has 16, and under native 8 and 4 too$"), ((), "has 16, and under native")):
        rigid.info = replace(rigid.info, short=short)
        with pytest.raises(InputError, match=f"bits is 4; a draft model under numpy {says}") as caught:
            led(draft=rigid, bits=4)
        assert "\n" not in str(caught.value)
        assert led(draft=rigid, bits=16)


def test_a_context_is_filled_to_its_last_token_in_fewer_bits():
    with Engine(ToyTarget(V), [("model", led(draft=ToyTarget(V, seed=0, context=16), depth=6, bits=8))]) as engine:
        record = engine.generate(PROMPT, max_tokens=60, ignore_eos=True).record
    faults = [p.fault for step in record.steps for p in step.proposals if p.fault]
    assert faults
    assert all("the draft model's context of 16 tokens is full" in fault for fault in faults)
    assert record.accepted >= 8


# ---- the real model ------------------------------------------------------------------------------------------------

native = pytest.mark.skipif(native_available() is not None, reason=f"native forward: {native_available()}")
ASKED = "Tell me about a lighthouse keeper and his dog."


def real(loaded, spec):
    return make(spec, tokenizer=loaded.tokenizer, vocab_size=loaded.target.info.vocab_size, slots=1)


@native
@pytest.mark.real
@pytest.mark.parametrize("spec", ["model:smollm2-135m,context=512,bits=4", "foreign:smollm2-135m,context=512,bits=8"])
def test_a_real_model_in_fewer_bits_is_mostly_right_and_changes_no_text(loaded, spec):
    drafter, prompt = real(loaded, spec), loaded.render(ASKED)
    with Engine(loaded.target, [("it", drafter)], eos_ids=loaded.eos_ids) as engine:
        for sampling in (Sampling(), Sampling(temperature=1.0, seed=3)):
            plain = engine.generate(prompt, sampling, max_tokens=24, draft=False)
            drafted = engine.generate(prompt, sampling, max_tokens=24)
            assert drafted.tokens == plain.tokens
            assert drafted.record.accepted >= 14
            assert not any(p.fault for s in drafted.record.steps for p in s.proposals)


@native
@pytest.mark.real
def test_refused_guesses_of_a_real_model_leave_its_own_law_bit_for_bit(loaded):
    follower = real(loaded, "model:smollm2-135m,context=256,bits=4")._follower
    tokens = loaded.render(ASKED)
    guesses = tokens[5:9]
    first = follower.after(1, tokens).copy()
    for depth in range(1, 5):
        assert not np.array_equal(follower.after(1, tokens, guesses[:depth]), first)
    for accepted in (guesses[:0], guesses[:2]):
        went = np.concatenate([tokens, accepted, [300]]).astype(np.int32)
        row = follower.after(1, went).copy()
        slot = loaded.target.open()  # a fresh model of the same weights
        loaded.target.prefill(slot, went[:-1])
        expected = loaded.target.verify([slot], [300], [DraftTree.empty()]).logits[0][0].copy()
        loaded.target.commit([slot], [Path((), 0)])
        for mine, theirs in zip(
            follower.target.snapshot(follower._held[1][0]), loaded.target.snapshot(slot), strict=True
        ):
            assert np.array_equal(mine, theirs)
        loaded.target.release(slot)
        assert np.array_equal(row, expected)


@pytest.mark.real
def test_a_real_runner_without_fewer_bits_says_so(loaded):
    with pytest.raises(InputError, match=r"bits is 4; .* under torch float32 cpu.* has 16, and under native"):
        real(loaded, "model:smollm2-135m,context=64,dtype=float32,bits=4")


def test_a_full_context_is_named():
    with pytest.raises(DrafterError, match="context of 8 tokens is full"):
        Follower(ToyTarget(V, context=8), 1).after(0, np.zeros(9, np.int32))
