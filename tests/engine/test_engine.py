"""The engine on toys whose every answer is known: faults seen in the field, each by name."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from augury.budget import Costs
from augury.conformance.toys import Empty, Half, Script, TopK, ToyTarget, liar, noisy, oracle
from augury.drafters.drafter import Drafter
from augury.engine.engine import Engine
from augury.errors import ContextTooLong, InputError, UnknownName
from augury.sampling import Sampling
from augury.tree import MAX_NODES, DraftTree

V = 5
PROMPT = [1, 2, 3, 1]


def engine(drafters=(), target=None, **options):
    return Engine(
        target or ToyTarget(V), [(type(d).__name__.lower() + str(i), d) for i, d in enumerate(drafters)], **options
    )


def plain(max_tokens=24, sampling=None, prompt=PROMPT, target=None, **options):
    return engine(target=target).generate(prompt, sampling, max_tokens=max_tokens, **options)


ANSWER = plain(64).tokens


@pytest.mark.parametrize("limit", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("make", [oracle, liar, lambda a, k, v: Half(a, k, range(k + 1), v)])
def test_max_tokens_is_exact_whatever_is_accepted(limit, make):
    result = engine([make(ANSWER, 4, V)]).generate(PROMPT, max_tokens=limit)
    assert (result.tokens, result.finish_reason) == (ANSWER[:limit], "length")
    assert result.record.completion_tokens == limit


def test_first_draft_token_is_checked_like_the_others():
    wrong = (ANSWER[0] + 1) % V
    for length in range(1, 5):
        result = engine([Script([DraftTree.chain([wrong] * length, [0.9] * length)])]).generate(PROMPT, max_tokens=1)
        assert result.tokens == ANSWER[:1]


def test_steps_rates_and_sources_by_hand():
    right_wrong = [ANSWER[0], (ANSWER[1] + 1) % V, ANSWER[2], ANSWER[3]]
    result = engine([Script([DraftTree.chain(right_wrong, [0.5] * 4), DraftTree.empty()])]).generate(
        PROMPT, max_tokens=9
    )
    first, second = result.record.steps[:2]
    assert (first.drafted, first.accepted, first.emitted) == (4, 1, ANSWER[:2])
    assert first.sources == (0, -1)
    assert (second.drafted, second.accepted, second.reason) == (0, 0, "no drafter had a guess")
    assert sum(result.record.histogram) == len(result.record.steps)


def test_acceptance_of_a_liar_is_zero_and_it_costs_no_token():
    result = engine([liar(ANSWER, 4, V)]).generate(PROMPT, max_tokens=24)
    assert result.tokens == ANSWER[:24]
    assert (result.record.accepted, len(result.record.steps)) == (0, 24)


def test_oracle_is_accepted_whole():
    result = engine([oracle(ANSWER, 4, V)]).generate(PROMPT, max_tokens=25)
    assert result.tokens == ANSWER[:25]
    assert [s.accepted for s in result.record.steps] == [4] * 5


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_greedy_is_the_same_under_every_rule(rule):
    model = ToyTarget(V, seed=3)
    for drafter in (TopK(model, 2, 3), noisy(model), Half(ANSWER, 4, range(5), V)):
        assert engine([drafter], acceptance=rule).generate(PROMPT, max_tokens=24).tokens == ANSWER[:24]


def test_end_token_at_every_place_of_an_accepted_path():
    for end in set(ANSWER[:8]):
        cut = ANSWER.index(end) + 1
        for depth in range(1, 9):
            result = engine([oracle(ANSWER, depth, V)], eos_ids=[end]).generate(PROMPT, max_tokens=64, logprobs=2)
            assert (result.tokens, result.finish_reason, result.record.stop) == (ANSWER[:cut], "stop", end)
            assert len(result.logprobs) == cut
            ignored = engine([oracle(ANSWER, depth, V)], eos_ids=[end]).generate(PROMPT, max_tokens=9, ignore_eos=True)
            assert ignored.tokens == ANSWER[:9]


def test_next_turn_finds_the_whole_previous_answer_in_the_cache():
    end = ANSWER[5]
    one = engine([oracle(ANSWER, 8, V)], eos_ids=[end])
    first = one.generate(PROMPT, max_tokens=64)
    turn = [*PROMPT, *first.tokens, 2, 3]
    second = one.generate(turn, max_tokens=8)
    assert second.record.cached_tokens >= len(PROMPT) + len(first.tokens) - 1
    assert second.tokens == plain(8, prompt=turn, target=ToyTarget(V)).tokens[:8] or end in second.tokens
    assert second.tokens == engine(eos_ids=[end]).generate(turn, max_tokens=8).tokens


def test_context_limit_counts_the_draft_in():
    target = ToyTarget(V, context=12)
    long = [1, 2, 3, 1, 2, 3, 1, 2, 3]
    whole = plain(64, prompt=long, target=ToyTarget(V, context=12))
    assert (len(whole.tokens), whole.finish_reason) == (3, "length")
    result = engine([TopK(target, 1, 8)], target=target).generate(long, max_tokens=64)
    assert (result.tokens, result.finish_reason) == (whole.tokens, "length")
    with pytest.raises(ContextTooLong, match=r"12 tokens.*holds 12.*shorten the prompt by 1"):
        engine(target=target).generate([1] * 12)


def test_all_temperatures_in_one_batch():
    samplings = [Sampling(), Sampling(temperature=1e-9), Sampling(temperature=0.8, seed=1), Sampling(temperature=1.5)]
    target = ToyTarget(V)
    results = engine([TopK(target)], target=target, slots=4).generate_all([PROMPT] * 4, samplings, max_tokens=20)
    assert results[0].tokens == results[1].tokens == ANSWER[:20]
    assert results[2].tokens == plain(20, samplings[2]).tokens
    assert all(r.record.drafted >= r.record.accepted >= 0 for r in results)


def test_ragged_batch_equals_solo_and_more_prompts_than_slots_wait():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, V, n).tolist() for n in (1, 3, 17, 40, 2, 9, 5)]
    samplings = [Sampling(temperature=t, seed=i) for i, t in enumerate((0, 1, 0.7, 0, 1.3, 1, 0))]
    target = ToyTarget(V, slots=3)
    together = engine([TopK(target), noisy(ToyTarget(V, seed=9))], target=target, slots=3)
    for result, prompt, sampling in zip(
        together.generate_all(prompts, samplings, max_tokens=12), prompts, samplings, strict=True
    ):
        assert result.tokens == plain(12, sampling, prompt).tokens


def test_seeds_matter_and_no_seed_is_fresh():
    flat = engine(target=ToyTarget(V, spread=0.0))
    run = lambda seed: flat.generate(PROMPT, Sampling(temperature=1.5, seed=seed), max_tokens=8).tokens  # noqa: E731
    assert len({run(s) for s in range(20)}) > 15
    assert len({run(None) for _ in range(20)}) > 15
    assert run(7) == run(7)


@pytest.mark.parametrize("drafter", [lambda: oracle(ANSWER, 3, V), lambda: Half(ANSWER, 3, range(4), V), Empty])
def test_logprobs_are_the_targets_at_every_token(drafter):
    with_drafts = engine([drafter()]).generate(PROMPT, max_tokens=12, logprobs=3)
    without = plain(12, logprobs=3)
    assert with_drafts.logprobs == without.logprobs
    assert (with_drafts.record.drafted > 0) == (drafter is not Empty), "asking for them does not switch drafting off"
    assert [entry.token for entry in with_drafts.logprobs] == list(with_drafts.tokens)
    for entry, _ in zip(with_drafts.logprobs, range(12), strict=True):
        assert len(entry.top) == 3
        assert entry.logprob < 0
        assert entry.top[0] == (entry.token, entry.logprob)


@pytest.mark.parametrize(("asked", "given"), [(None, None), (0, 0), (1, 1), (V, V), (20, V)])
def test_as_many_alternatives_as_were_asked_for_and_there_are(asked, given):
    result = engine([oracle(ANSWER, 3, V)]).generate(PROMPT, max_tokens=8, logprobs=asked)
    assert [len(entry.top) for entry in result.logprobs] == ([] if asked is None else [given] * 8)
    if given == V:
        assert all(sum(np.exp(value) for _, value in entry.top) == pytest.approx(1.0) for entry in result.logprobs)


class Faulty(Drafter):
    def __init__(self, how):
        self.how = how

    def propose(self, view, limit):
        return self.how(view, limit)


def _raise(view, limit):
    raise RuntimeError("out of ideas")


BAD = {
    "raises": (_raise, "out of ideas"),
    "returns none": (lambda v, n: None, "NoneType"),
    "beyond the vocabulary": (lambda v, n: DraftTree.chain([V], [0.5]), f"token {V}"),
    "placeholder ids": (lambda v, n: DraftTree.chain([-1], [0.5]), "negative"),
    "a cycle": (lambda v, n: DraftTree.of([1, 2], [1, 0], [0.5, 0.5]), "parent"),
    "too long": (lambda v, n: DraftTree.chain([1] * (n + 1), [0.5] * (n + 1)), "nodes"),
    "impossible law": (
        lambda v, n: DraftTree.chain([1], [0.5], laws={0: np.eye(V, dtype=np.float32)[2]}),
        "could not have drawn",
    ),
    "scores for a law": (
        lambda v, n: DraftTree.chain([1], [0.5], laws={0: np.arange(V, dtype=np.float32)}),
        "it sums to 10",
    ),
    "logarithms for a law": (
        lambda v, n: DraftTree.chain([1], [0.5], laws={0: np.log(np.full(V, 1 / V, np.float32))}),
        "could not have drawn",
    ),
    "a law of another vocabulary": (
        lambda v, n: DraftTree.chain([1], [0.5], laws={0: np.full(V + 1, 1 / (V + 1), np.float32)}),
        "could not have drawn",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_faulty_drafter_costs_its_own_step_only(kind):
    how, words = BAD[kind]
    result = engine([Faulty(how), oracle(ANSWER, 3, V)]).generate(PROMPT, max_tokens=24)
    assert result.tokens == ANSWER[:24]
    assert result.record.accepted > 0, "the other drafter goes on"
    faults = [p.fault for s in result.record.steps for p in s.proposals if p.fault]
    assert sum(not f.startswith("left out") for f in faults) == 3, "after three it is left out of the request"
    assert all(words in f for f in faults)
    alone = engine([Faulty(how)]).generate(PROMPT, max_tokens=6)
    assert alone.tokens == ANSWER[:6]
    assert alone.record.acceptance_rate is None, "nothing was drafted, so there is no rate"
    assert "left out" in alone.record.steps[-2].reason


def test_a_stalling_drafter_is_left_out(monkeypatch):
    monkeypatch.setattr("augury.engine.drafting.STALL_MS", 5.0)

    def slow(view, limit):
        time.sleep(0.02)
        return DraftTree.chain([1], [0.5])

    result = engine([Faulty(slow)]).generate(PROMPT, max_tokens=8)
    assert result.tokens == ANSWER[:8]
    assert sum(s.drafted for s in result.record.steps) == 0
    assert sum(p.ms > 5.0 for s in result.record.steps for p in s.proposals) == 3


@pytest.mark.parametrize("call", ["open", "observe", "close"])
def test_a_drafter_that_raises_elsewhere_is_confined(call):
    class Raises(Empty):
        pass

    setattr(Raises, call, _raise if call != "close" else (lambda self, view: 1 / 0))
    if call != "close":
        setattr(Raises, call, lambda self, *a: 1 / 0)
    assert engine([Raises(), oracle(ANSWER, 2, V)]).generate(PROMPT, max_tokens=9).tokens == ANSWER[:9]


def test_switching_drafting_off_stops_every_drafter():
    target = ToyTarget(V)
    result = engine([TopK(target), oracle(ANSWER, 2, V)], target=target).generate(PROMPT, max_tokens=8, draft=False)
    assert result.record.drafted == 0
    assert {s.reason for s in result.record.steps} == {"drafting is off for this request"}
    assert all(s.proposals == () for s in result.record.steps)


class Table:
    """A cost table that stands still."""

    def __init__(self, costs):
        self.costs = costs

    def served(self, *figures):
        pass


def test_the_table_bounds_every_proposal():
    limits = []

    def note(view, limit):
        limits.append(limit)
        return DraftTree.empty()

    stair = Costs(np.array([0.0] + [10.0] * 4 + [1000.0] * 61), 0.0, 0.0)
    engine([Faulty(note)], meter=Table(stair)).generate(PROMPT, max_tokens=9)
    assert set(limits) == {3}
    engine([Faulty(note)]).generate(PROMPT, max_tokens=9)
    assert max(limits) == MAX_NODES


def test_guesses_that_do_not_pay_are_not_verified_and_the_record_says_so():
    steep = Costs(np.arange(66.0), 0.0, 0.0)
    hopeless = engine([liar(ANSWER, 4, V)], meter=Table(steep)).generate(PROMPT, max_tokens=8)
    assert hopeless.tokens == ANSWER[:8]
    assert hopeless.record.drafted == 0


def test_cancelled_streams_leave_nothing_behind():
    target = ToyTarget(V, slots=8)
    one = engine([TopK(target)], target=target, slots=8)
    rng = np.random.default_rng(1)
    for _ in range(25):
        streams = [one.stream(PROMPT, Sampling(temperature=1, seed=i), max_tokens=20) for i in range(8)]
        for stream in streams:
            for _ in range(int(rng.integers(1, 4))):
                next(stream, None)
        for i in rng.permutation(8):
            streams[i].close()
        assert one._slots.free == 8
        assert not one._running
        assert not one._waiting
    assert one.generate(PROMPT, max_tokens=20).tokens == ANSWER[:20]


def test_interleaved_streams_equal_solo_runs():
    target = ToyTarget(V)
    one = engine([TopK(target)], target=target, slots=2)
    samplings = [Sampling(temperature=1, seed=s) for s in range(5)]
    streams = [one.stream(PROMPT, s, max_tokens=15) for s in samplings]
    tokens = [[] for _ in streams]
    live = list(range(5))
    while live:
        for i in list(live):
            chunk = next(streams[i], None)
            if chunk is None:
                live.remove(i)
            else:
                tokens[i] += chunk.tokens
    for got, sampling in zip(tokens, samplings, strict=True):
        assert tuple(got) == plain(15, sampling).tokens


def test_threads_share_one_engine():
    target = ToyTarget(V)
    one = engine([TopK(target)], target=target, slots=3)
    found = {}

    def work(seed):
        found[seed] = one.generate(PROMPT, Sampling(temperature=1, seed=seed), max_tokens=15).tokens

    threads = [threading.Thread(target=work, args=(s,)) for s in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {s: plain(15, Sampling(temperature=1, seed=s)).tokens for s in range(8)}


def test_slots_free_and_committed_lengths_add_up_at_rest():
    target = ToyTarget(V, slots=4)
    one = engine([Half(ANSWER, 4, range(5), V)], target=target, slots=4)
    one.generate_all([PROMPT, [1], [2, 2]], max_tokens=9)
    for slot, tokens in one._slots._idle.items():
        assert target.length(slot) == len(tokens)
    one.close()
    assert len(target._cells) == 0


def test_a_target_that_fails_ends_its_requests_and_not_the_engine():
    target = ToyTarget(V)
    one = engine(target=target)
    whole = target.verify
    calls = []

    def broken(*args):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("device lost")
        return whole(*args)

    target.verify = broken
    with pytest.raises(RuntimeError, match="device lost"):
        one.generate(PROMPT, max_tokens=8)
    assert one.generate(PROMPT, max_tokens=8).tokens == ANSWER[:8]


def test_a_row_without_a_law_ends_its_own_request_only():
    target = ToyTarget(V, slots=2)
    one = engine(target=target, slots=2)

    def poison(history, logits):
        return np.full_like(logits, np.nan) if len(history) > 6 else logits

    class Poison:
        __call__ = staticmethod(poison)

        def snapshot(self):
            return None

        def restore(self, state):
            pass

    good = one.stream(PROMPT, max_tokens=12)
    first = next(good)
    with pytest.raises(Exception, match=r"NaN|nan"):
        one.generate(PROMPT, Sampling(processors=(Poison(),)), max_tokens=12)
    rest = [t for chunk in good for t in chunk.tokens]
    assert (*first.tokens, *rest) == ANSWER[:12]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda e: e.generate([]), InputError, "prompt is empty"),
        (lambda e: e.generate("text"), InputError, "no tokenizer"),
        (lambda e: e.generate([V]), InputError, rf"token id {V}; valid ids are 0\.\.{V - 1}"),
        (lambda e: e.generate([-1]), InputError, "token id -1"),
        (lambda e: e.generate([[1]]), InputError, "flat list"),
        (lambda e: e.generate([0.5]), InputError, "flat list"),
        (lambda e: e.generate([1], max_tokens=-1), InputError, "max_tokens is -1"),
        (lambda e: e.generate([1], max_tokens=1.5), InputError, r"max_tokens is 1\.5"),
        (lambda e: e.generate([1], logprobs=21), InputError, "logprobs is 21"),
        (lambda e: e.generate([1], stop="x"), InputError, "stop strings need a tokenizer"),
        (lambda e: e.generate_all([[1]], [Sampling()] * 2), InputError, "2 samplings were given for 1"),
        (lambda e: e.generate_all([[1]], predictions=[None] * 2), InputError, "2 predictions were given for 1"),
        (lambda e: e.generate_all([[1]], predictions=[None], prediction=[2]), InputError, "give one of them"),
        (lambda e: e.render("hi"), InputError, "no chat template"),
        (lambda e: e.stream([1], max_tokens=-1), InputError, "max_tokens is -1"),
        (lambda e: Engine(ToyTarget(), acceptance="typical"), UnknownName, "Valid: block, coupled, rejection"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(call, error, words):
    one = engine()
    with pytest.raises(error, match=words) as caught:
        call(one)
    assert "\n" not in str(caught.value)
    assert one.generate(PROMPT, max_tokens=4).tokens == ANSWER[:4]
