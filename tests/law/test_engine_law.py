"""The engine's answers follow the target's law exactly, whoever drafts and whatever is asked."""

from __future__ import annotations

import numpy as np
import pytest

import augury.engine.engine as engine_module
from augury.conformance.kit import SLANTED
from augury.conformance.law import bound, distance, empirical, engine_law, swapped, true_law
from augury.conformance.toys import (
    Drift,
    Empty,
    Half,
    SameLaw,
    Sampled,
    Script,
    TopK,
    ToyTarget,
    itself,
    liar,
    noisy,
    oracle,
)
from augury.conformance.wrong import Unsalted
from augury.engine.engine import Engine
from augury.noise import Noise
from augury.sampling import Sampling
from augury.tree import DraftTree

V = 3
PROMPT = (0, 2, 1)
TARGET = ToyTarget(V, seed=3)
MODEL = ToyTarget(V, seed=4)

SAMPLINGS = {
    "temperature": Sampling(temperature=1.0),
    "cold": Sampling(temperature=0.4),
    "filters": Sampling(temperature=1.2, top_k=2, top_p=0.9, min_p=0.05),
    "typical": Sampling(temperature=1.0, typical_p=0.6),
    "penalties": Sampling(
        temperature=0.9, repetition_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.7, logit_bias={1: 0.5}
    ),
    "ends": Sampling(temperature=1.0, min_tokens=1, stop_token_ids=(1,)),
    "bans": Sampling(temperature=1.0, bad_words=((0, 0), (2,))),
    "processor": Sampling(temperature=0.8, frequency_penalty=0.3, processors=(Drift(),)),
}

TREE = DraftTree.of([0, 1, 1, 2, 0, 1], [-1, -1, 0, 0, 1, 1], [0.5, 0.4, 0.3, 0.2, 0.1, 0.1])

DRAFTERS = {
    "nobody": list,
    "empty": lambda: [Empty()],
    "right": lambda: [oracle([1, 0, 1], 2, V)],
    "wrong": lambda: [liar([1, 0, 1], 2, V)],
    "half": lambda: [Half([1, 0, 1], 2, (1, 0, 2), V)],
    "tree": lambda: [TopK(MODEL, 2, 2)],
    "script": lambda: [Script([TREE, DraftTree.empty()])],
    "sampled": lambda: [noisy(MODEL, depth=2)],
    "siblings": lambda: [noisy(MODEL, width=2, depth=1)],
    "all siblings": lambda: [noisy(MODEL, width=3, depth=1)],
    "both kinds": lambda: [noisy(MODEL, depth=1), TopK(ToyTarget(V, seed=5), 1, 2)],
    "two models": lambda: [noisy(MODEL, depth=1), noisy(ToyTarget(V, seed=5), depth=1)],
}


def engine(drafters, rule="rejection", target=TARGET, **options):
    return Engine(target, [(f"d{i}", d) for i, d in enumerate(drafters)], acceptance=rule, **options)


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize("who", DRAFTERS)
def test_ratio_rules_leave_the_law_alone(who, kind, rule):
    sampling = SAMPLINGS[kind]
    law = engine_law(lambda: engine(DRAFTERS[who](), rule, eos_ids=(2,)), PROMPT, sampling, 3)
    assert distance(law, true_law(TARGET, PROMPT, sampling, 3, (2,))) < 1e-6


@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize("who", ["nobody", "right", "tree", "script"])
def test_coupled_rule_draws_from_the_law(who, kind):
    """Each position is drawn once, drafted or not, so its branches can be run as well."""
    law = engine_law(lambda: engine(DRAFTERS[who](), "coupled", eos_ids=(2,)), PROMPT, SAMPLINGS[kind], 3)
    assert distance(law, true_law(TARGET, PROMPT, SAMPLINGS[kind], 3, (2,))) < 1e-6


@pytest.mark.parametrize("kind", ["temperature", "filters", "penalties"])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_target_as_its_own_drafter_is_never_refused(kind, rule):
    sampling = SAMPLINGS[kind]
    drafters = [itself(TARGET, sampling, depth=2)]
    law = engine_law(lambda: engine(drafters, rule), PROMPT, sampling, 3)
    assert distance(law, true_law(TARGET, PROMPT, sampling, 3)) < 1e-6
    with engine(drafters, rule) as one:
        for seed in range(30):
            record = one.generate(PROMPT, Sampling(**(vars(sampling) | {"seed": seed})), max_tokens=30).record
            assert record.accepted == record.drafted > 0


@pytest.mark.parametrize("who", [w for w in DRAFTERS if w not in ("nobody", "empty")])
def test_what_is_measured_here_was_drafted_kept_and_refused(who):
    """A law that nobody tried to change proves nothing."""
    with engine(DRAFTERS[who]()) as one:
        records = [one.generate(PROMPT, Sampling(temperature=1.0, seed=s), max_tokens=3).record for s in range(60)]
    drafted, accepted = sum(r.drafted for r in records), sum(r.accepted for r in records)
    assert 0 < accepted < drafted


@pytest.mark.parametrize("drafts", ["chain", "siblings", "itself", "tree"])
@pytest.mark.parametrize("kind", SAMPLINGS)
def test_same_seed_same_tokens_under_the_coupled_rule(drafts, kind):
    target, model = ToyTarget(5, seed=6), ToyTarget(5, seed=7)
    drafter = {
        "chain": noisy(model, depth=4),
        "siblings": noisy(model, width=2, depth=3),
        "itself": itself(target, Sampling(temperature=1.0), depth=4),
        "tree": TopK(model, 3, 2),
    }[drafts]
    accepted = 0
    with engine([drafter], "coupled", target) as one:
        for seed in range(12):
            sampling = Sampling(**(vars(SAMPLINGS[kind]) | {"seed": seed}))
            plain = one.generate((1, 2, 3), sampling, max_tokens=40, draft=False)
            it = one.generate((1, 2, 3), sampling, max_tokens=40)
            assert it.tokens == plain.tokens
            accepted += it.record.accepted
    assert accepted > 0


def test_coupled_drafts_match_as_often_as_promised():
    """With the target's own noise a draft from q equals the target's draw with at least (1 - TV) / (1 + TV)."""
    target = SameLaw((0.35, 0.4, 0.25))
    q = np.array([0.5, 0.2, 0.3])
    apart = 0.5 * float(np.abs(np.array([0.35, 0.4, 0.25]) - q).sum())
    with engine([Sampled(lambda view, path: q, depth=1)], "coupled", target) as one:
        records = [one.generate((0,), Sampling(temperature=1.0, seed=s), max_tokens=40).record for s in range(60)]
    drafted, accepted = sum(r.drafted for r in records), sum(r.accepted for r in records)
    assert accepted / drafted > (1 - apart) / (1 + apart) - 3 * 0.5 / drafted**0.5
    assert accepted / drafted > float(np.minimum(target_law(target), q).sum()) - 0.1


def target_law(target):
    return np.exp(target.row((0,)).astype(np.float64))


def test_measured_acceptance_is_what_p_and_q_allow():
    q = np.array([0.8, 0.19, 0.01])
    with engine([Sampled(lambda view, path: q, depth=1)], "rejection", SameLaw(SLANTED)) as one:
        records = [one.generate((0,), Sampling(temperature=1.0, seed=s), max_tokens=60).record for s in range(60)]
    drafted, accepted = sum(r.drafted for r in records), sum(r.accepted for r in records)
    assert drafted > 2000
    assert accepted / drafted == pytest.approx(float(np.minimum(SLANTED, q).sum()), abs=0.03)


Q = np.array([0.8, 0.19, 0.01])


def counted(drafters, rule, samples=10_000):
    """How far the counted law is from the truth, and how far chance could have brought it."""
    target = SameLaw(SLANTED)
    truth = true_law(target, (0,), SAMPLINGS["temperature"], 2)
    with engine(drafters, rule, target) as one:
        return distance(empirical(one, (0,), SAMPLINGS["temperature"], 2, samples), truth), bound(truth, samples)


def test_a_step_does_not_draft_with_noise_that_an_earlier_one_has_judged():
    apart, most = counted([Sampled(lambda view, path: Q, depth=2)], "block")
    assert apart < most


def test_two_drafters_do_not_draw_alike():
    some = [Sampled(lambda view, path: Q, depth=1) for _ in range(2)]
    apart, most = counted(some, "rejection")
    assert apart < most
    with swapped(engine_module, "Noise", Unsalted):
        apart, most = counted(some, "rejection")
    assert apart > most, "were their noise the same, this count would tell"


def test_different_requests_and_no_seed_get_different_noise():
    with engine([], "coupled", ToyTarget(5, seed=1, spread=0.3)) as one:
        free = {one.generate((0,), Sampling(temperature=1.5), max_tokens=12).tokens for _ in range(20)}
        seeded = {one.generate((0,), Sampling(temperature=1.5, seed=s), max_tokens=12).tokens for s in range(20)}
        again = {one.generate((0,), Sampling(temperature=1.5, seed=7), max_tokens=12).tokens for _ in range(5)}
    assert len(free) > 15
    assert len(seeded) > 15
    assert len(again) == 1
    assert Noise(7, 0) == Noise(7, 0)
