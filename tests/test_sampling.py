"""The law of the next token, step by step against transformers, and the noise it is drawn with."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from augury.errors import InputError, ModelError
from augury.noise import Noise, Stream, race
from augury.sampling import Sampler, Sampling, logprobs

NOISE = Noise(7, Stream.TARGET)
ROW = np.array([0.5, 2.0, -1.0, 1.5, 0.0], np.float32)


def sampler(sampling, prompt=(0,), vocab=5, eos=(), noise=NOISE):
    return Sampler(sampling, vocab, eos, np.asarray(prompt, np.int32), noise)


def softmax(x):
    w = np.exp(np.asarray(x, np.float64) - np.max(x))
    return w / w.sum()


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature is -1; it must be 0 or more; the nearest is 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": "1"}, "temperature is '1'"),
        ({"temperature": True}, "temperature is True"),
        ({"temperature": 10**400}, "temperature is 1000.*0[.]{3}; it must be 0 or more"),
        ({"temperature": 10**5000}, "temperature is a int that cannot be shown; it must be 0 or more"),
        ({"temperature": np.zeros((9, 9))}, "temperature is array.*; it must be 0 or more"),
        ({"logit_bias": {1: -(10**400)}}, "logit_bias of token 1 is -1000"),
        ({"seed": 10**5000}, "seed is a int that cannot be shown"),
        ({"temperature": None}, "temperature is None"),
        ({"top_k": -1}, r"top_k is -1; .*the nearest is 0 \(0 keeps all tokens\)"),
        ({"top_k": 1.5}, "top_k is 1.5; it must be a whole number"),
        ({"top_k": True}, "top_k is True"),
        ({"top_p": 0}, "top_p is 0; it must be above 0"),
        ({"top_p": 1.5}, "top_p is 1.5; it must be above 0 and at most 1; the nearest is 1"),
        ({"top_p": -0.5}, "top_p is -0.5; it must be above 0"),
        ({"min_p": 1.1}, "min_p is 1.1; it must lie in 0..1; the nearest is 1"),
        ({"typical_p": 0.0}, "typical_p is 0.0"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must lie in 0.01..100; the nearest is 0.01"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1; it must lie in -2..2"),
        ({"frequency_penalty": -math.inf}, "frequency_penalty is -inf"),
        ({"logit_bias": {1: 101}}, "logit_bias of token 1 is 101; it must lie in -100..100"),
        ({"logit_bias": {-1: 1}}, "a token id of logit_bias is -1"),
        ({"logit_bias": {"a": 1}}, "a token id of logit_bias is 'a'"),
        ({"logit_bias": [1]}, "logit_bias is a list"),
        ({"min_tokens": -3}, "min_tokens is -3"),
        ({"bad_words": ((),)}, "bad_words has an empty sequence"),
        ({"bad_words": "no"}, "bad_words is a str"),
        ({"bad_words": (3,)}, "a sequence of bad_words is 3"),
        ({"bad_words": ((-1,),)}, "a token id of a sequence of bad_words is -1"),
        ({"stop_token_ids": (1.5,)}, "a token id of stop_token_ids is 1.5"),
        ({"stop_token_ids": 4}, "stop_token_ids is 4; give a sequence"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"processors": (len,)}, "must be callable and have snapshot and restore"),
    ],
)
def test_bad_value_is_refused_in_one_line(options, words):
    with pytest.raises(InputError, match=words) as caught:
        Sampling(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"logit_bias": {5: 1}}, {"bad_words": ((0, 5),)}, {"stop_token_ids": (5,)}])
def test_id_outside_the_vocabulary_is_refused(options):
    with pytest.raises(InputError, match=r"has token id 5; valid ids are 0..4"):
        sampler(Sampling(**options))


def test_values_are_taken_as_plain_numbers():
    s = Sampling(temperature=np.float32(0.5), top_k=np.int64(3), stop_token_ids=np.array([1, 2]), bad_words=[[1, 2]])
    assert (s.temperature, s.top_k, s.stop_token_ids, s.bad_words) == (0.5, 3, (1, 2), ((1, 2),))
    assert replace(s, seed=-1).seed == -1


# ---- noise ----------------------------------------------------------------------------------------------------------


def test_noise_depends_on_its_name_and_not_on_the_order_of_calls():
    a = NOISE.exponential(9, 6)
    NOISE.uniform(9, 0)
    NOISE.exponential(8, 3)
    assert np.array_equal(a, Noise(7, 0).exponential(9, 6))
    assert np.array_equal(a[:4], NOISE.exponential(9, 4)), "a smaller vocabulary gets the beginning"


def test_noise_of_other_names_is_other_noise():
    others = [Noise(8, 0), Noise(7, 1), Noise(7, 2), Noise(-7, 0), Noise(7, 0).salted(1), Noise(7, 0).salted(2)]
    arrays_ = [n.exponential(9, 4).tobytes() for n in [NOISE, *others]] + [NOISE.exponential(10, 4).tobytes()]
    assert len(set(arrays_)) == len(arrays_)
    values = [n.uniform(p, i) for n in [NOISE, *others] for p in range(3) for i in range(3)]
    assert len(set(values)) == len(values)


def test_noise_has_its_distribution_and_no_correlation():
    waits = np.array([NOISE.exponential(p, 3) for p in range(4000)])
    assert stats.kstest(waits.ravel(), "expon").pvalue > 1e-3
    uniform = np.array([[NOISE.uniform(p, i) for i in range(2)] for p in range(3000)])
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 1e-3
    assert uniform.min() > 0.0
    assert uniform.max() < 1.0
    together = np.column_stack([waits[:3000], waits[1:3001, 0], uniform])
    correlation = np.corrcoef(together.T) - np.eye(6)
    assert np.abs(correlation).max() < 5 / math.sqrt(3000)


def test_draw_follows_the_law():
    s = sampler(Sampling(temperature=0.8, top_k=4))
    law = s.law(ROW, [])
    counts = np.zeros(5)
    for seed in range(8000):
        counts[sampler(Sampling(temperature=0.8, top_k=4), noise=Noise(seed, 0)).draw(ROW, [])] += 1
    assert counts[law == 0.0].sum() == 0
    assert stats.chisquare(counts[law > 0], 8000 * law[law > 0]).pvalue > 1e-3


def test_draw_depends_on_seed_and_position_alone():
    """The same position reached by a path or by commits gives the same token."""
    for seed in range(50):
        noise = Noise(seed, 0)
        a, b = (sampler(Sampling(temperature=2.0), prompt=(0, 1), noise=noise) for _ in range(2))
        b.advance([3, 3])
        assert a.draw(ROW, [3, 3]) == b.draw(ROW, []) == race(a.law(ROW, [1, 2]), noise.exponential(4, 5))


def test_seeds_change_the_answer():
    draws = {tuple(sampler(Sampling(temperature=1.5), noise=Noise(s, 0)).draw(ROW, [0] * k) for k in range(5))
             for s in range(20)}  # fmt: skip
    assert len(draws) > 15


# ---- the law, step by step ------------------------------------------------------------------------------------------


@st.composite
def rows(draw, vocab=12):
    """Logits with ties now and then."""
    values = st.floats(-8, 8, width=32) | st.sampled_from([0.0, 1.0])
    return draw(arrays(np.float32, vocab, elements=values))


def hf_law(row, history, options):
    """The law by transformers' own processors, f64 where it lets us."""
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as hf

    scores = torch.from_numpy(row.copy())[None]
    ids = torch.tensor([list(history)])
    if options.get("repetition_penalty", 1.0) != 1.0:
        scores = hf.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"])(ids, scores)
    scores = hf.TemperatureLogitsWarper(options["temperature"])(ids, scores.double())
    if options.get("top_k"):
        scores = hf.TopKLogitsWarper(options["top_k"])(ids, scores)
    for name, warper in (("top_p", hf.TopPLogitsWarper), ("min_p", hf.MinPLogitsWarper)):
        if name in options:
            scores = warper(options[name])(ids, scores)
    if "typical_p" in options:
        scores = hf.TypicalLogitsWarper(options["typical_p"])(ids, scores)
    return torch.softmax(scores[0], -1).numpy()


@settings(deadline=None, max_examples=300, derandomize=True)  # their rounding differs from ours at cuts
@given(
    rows(),
    st.floats(0.2, 3.0),
    st.fixed_dictionaries(
        {},
        optional={
            "top_k": st.integers(1, 11),
            "top_p": st.floats(0.05, 0.99),
            "min_p": st.floats(0.01, 0.9),
            "typical_p": st.floats(0.05, 0.99),
            "repetition_penalty": st.floats(0.5, 2.0),
        },
    ),
)
def test_law_equals_that_of_transformers(row, temperature, options):
    row = row + np.arange(12, dtype=np.float32) * np.float32(1e-3)  # it cuts ties in an order of its own
    options = {"temperature": temperature} | options
    theirs = hf_law(row, [3, 5, 5], options)
    ours = sampler(Sampling(**options), prompt=(3,), vocab=12).law(row, [5, 5])
    assert ours.dtype == np.float64
    assert ours.sum() == pytest.approx(1.0, abs=1e-12)
    if not np.array_equal(ours > 0, theirs > 0):
        # One token at the very edge of a cut may fall on the other side by their rounding.
        edge = [
            sampler(Sampling(**options | {k: v}), prompt=(3,), vocab=12).law(row, [5, 5]) > 0
            for name in ("top_p", "min_p", "typical_p")
            if name in options
            for k, v in [(name, options[name] * (1 + 1e-5)), (name, options[name] * (1 - 1e-5))]
        ]
        assert any(np.array_equal(e, theirs > 0) for e in edge), (ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_each_filter_by_hand():
    row = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))
    law = lambda **o: sampler(Sampling(temperature=1.0, **o)).law(row, []).round(4).tolist()  # noqa: E731
    assert law() == [0.1, 0.4, 0.05, 0.3, 0.15]
    assert law(top_k=2) == [0, 0.5714, 0, 0.4286, 0]
    assert law(top_k=9) == law()
    assert law(top_p=0.7) == [0, 0.5714, 0, 0.4286, 0], "0.4 + 0.3 reach 0.7"
    assert law(top_p=0.72) == [0, 0.4706, 0, 0.3529, 0.1765]
    assert law(top_p=1e-9) == [0, 1, 0, 0, 0]
    assert law(min_p=0.3) == [0, 0.4706, 0, 0.3529, 0.1765]
    assert law(min_p=1.0) == [0, 1, 0, 0, 0]
    assert law(typical_p=0.2) == [0, 0, 0, 1, 0], "0.3 surprises most nearly as much as the law does on average"


def test_ties():
    flat = np.zeros(5, np.float32)
    law = lambda **o: np.flatnonzero(sampler(Sampling(temperature=1.0, **o)).law(flat, [])).tolist()  # noqa: E731
    assert law(top_k=2) == [0, 1, 2, 3, 4]
    assert law(top_p=0.4) == [0, 1]
    assert law(typical_p=0.4) == [0, 1, 2, 3, 4]
    assert sampler(Sampling()).draw(np.array([0, 2, 1, 2, 2], np.float32), []) == 1


def test_nucleus_of_a_wide_flat_law_needs_more_than_its_head():
    row = np.zeros(5000, np.float32)
    law = sampler(Sampling(temperature=1.0, top_p=0.5), vocab=5000).law(row, [])
    assert np.flatnonzero(law).tolist() == list(range(2500))


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-9, 1e-320])
def test_tiny_temperatures_are_greedy_without_overflow(temperature):
    s = sampler(Sampling(temperature=temperature))
    with np.errstate(all="raise", under="ignore", over="warn"):
        assert s.draw(ROW * 1000, []) == 1
        assert s.law(ROW * 1000, []).tolist() == [0, 1, 0, 0, 0]


def test_filters_do_not_touch_greedy():
    s = sampler(Sampling(top_k=1, top_p=0.1, typical_p=0.05, min_p=1.0))
    assert s.draw(np.array([1.0, 1.1, 1.0, 0.9, 1.0], np.float32), []) == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"top_k": 2},
        {"top_p": 0.7, "min_p": 0.05},
        {"repetition_penalty": 1.7, "frequency_penalty": 0.4, "logit_bias": {3: 1.5, 1: -2.0}},
        {"bad_words": ((0, 4), (3,)), "temperature": 0.0},
    ],
)
def test_a_guess_over_some_tokens_is_that_over_all_without_the_others(options):
    rng = np.random.default_rng(0)
    ids = np.array([0, 2, 3, 4, 7, 9], np.int32)
    s = sampler(Sampling(**{"temperature": 0.8} | options), prompt=(2, 3, 0), vocab=10)
    for path in ((), (4, 2)):
        narrow = rng.standard_normal(len(ids)).astype(np.float32)
        wide = np.full(10, -np.inf, np.float32)
        wide[ids] = narrow
        before = narrow.copy()
        whole = s.guess(wide, path)
        assert np.allclose(s.guess(narrow, path, ids), whole[ids], atol=1e-7)
        assert np.array_equal(narrow, before)
        assert not np.delete(whole, ids).any()


def test_row_is_not_changed():
    row = ROW.copy()
    s = sampler(
        Sampling(temperature=1.0, repetition_penalty=1.5, frequency_penalty=1.0, logit_bias={1: 5}, bad_words=((1,),))
    )
    s.draw(row, [1, 2])
    assert np.array_equal(row, ROW)


# ---- what was written so far ----------------------------------------------------------------------------------------


def test_last_token_is_counted_once_at_later_draft_positions():
    s = sampler(Sampling(temperature=1.0, frequency_penalty=0.7, presence_penalty=0.25), prompt=(4, 4))
    s.advance([1])
    for path, counts in [([], [0, 1, 0, 0, 0]), ([1], [0, 2, 0, 0, 0]), ([1, 3], [0, 2, 0, 1, 0])]:
        counts = np.array(counts)
        np.testing.assert_allclose(s.law(ROW, path), softmax(ROW - 0.7 * counts - 0.25 * (counts > 0)), atol=1e-6)
    np.testing.assert_allclose(
        s.law(ROW, []), softmax(ROW - [0, 0.95, 0, 0, 0]), atol=1e-6, err_msg="a path left a trace"
    )


def test_repetition_penalty_sees_prompt_answer_and_draft():
    s = sampler(Sampling(temperature=1.0, repetition_penalty=2.0), prompt=(0,))
    s.advance([2])
    np.testing.assert_allclose(s.law(ROW, [1]), softmax([0.25, 1.0, -2.0, 1.5, 0.0]), atol=1e-6)


def test_min_tokens_bans_ends_until_then():
    s = sampler(Sampling(temperature=1.0, min_tokens=3, stop_token_ids=(3,)), prompt=(0, 0), eos=(1,))
    s.advance([0])
    assert s.law(ROW, [2])[[1, 3]].tolist() == [0, 0]
    assert np.allclose(s.law(ROW, [2, 2]), softmax(ROW))
    assert s.draw(ROW, [2]) not in (1, 3)


def test_bad_words_across_prompt_answer_and_draft():
    s = sampler(Sampling(bad_words=((1, 2, 3), (4,))), prompt=(1,))
    row = np.array([0, 0, 0, 9, 10], np.float32)
    assert s.draw(row, []) == 3, "4 is banned alone, 3 is not"
    assert s.draw(row, [2]) == 0, "prompt 1, draft 2: 3 is banned"
    assert s.draw(row, [2, 2]) == 3
    s.advance([2])
    assert s.draw(row, []) == 0
    assert sampler(Sampling(bad_words=((0, 1, 2, 3),)), prompt=(2,)).draw(row, []) == 4, "the history is shorter"


@settings(max_examples=200)
@given(
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), max_size=8).map(tuple),
    history=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    path=st.lists(st.integers(0, 2), max_size=4),
)
def test_bad_words_are_banned_by_their_definition(words, history, path):
    text = (*history, *path)
    banned = {word[-1] for word in words if word[:-1] == text[len(text) - len(word) + 1 :]}
    law = sampler(Sampling(temperature=1.0, bad_words=words), prompt=history).law(ROW, path)
    assert {token for token in range(5) if law[token] == 0.0} == banned


def test_many_bad_words_cost_a_row_what_of_them_matches():
    words = tuple((i, (7 * i) % 1000, j) for i in range(1000) for j in range(50))
    s = sampler(Sampling(bad_words=words), prompt=(3, 21), vocab=1000)
    row = np.arange(1000, 0, -1).astype(np.float32)
    begin = time.perf_counter()
    assert [s.draw(row, []) for _ in range(100)] == [50] * 100
    assert time.perf_counter() - begin < 0.5


def test_history_grows_without_end():
    s = sampler(Sampling(bad_words=((1, 2, 3),)))
    row = np.array([1, 0, 0, 9, 0], np.float32)
    for _ in range(400):
        s.advance([])
        s.advance([4])
    assert s.draw(row, [0] * 300 + [1, 2]) == 0
    assert s.draw(row, []) == 3


def test_bias_decides():
    assert sampler(Sampling(logit_bias={1: -100})).draw(ROW, []) == 3
    s = sampler(Sampling(temperature=1.0, logit_bias={2: 100}))
    assert {s.draw(ROW, [0] * k) for k in range(50)} == {2}


class Alternate:
    """Bans the token it saw last time a row was asked; a state of its own, and a log of its calls."""

    def __init__(self):
        self.state = ()
        self.calls = []

    def __call__(self, history, logits):
        self.calls.append(tuple(history.tolist()))
        self.state = (*self.state, int(history[-1]))
        logits[self.state[-1]] = -np.inf
        logits += len(self.state) * np.arange(len(logits), dtype=np.float32) / 10
        return logits

    def snapshot(self):
        return self.state

    def restore(self, state):
        self.state = state


@settings(max_examples=150)
@given(
    rows(5), st.lists(st.integers(0, 4), max_size=4), st.lists(st.integers(0, 4), max_size=4), st.booleans(),
    st.sampled_from([0.0, 0.7, 1.3]), st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2), st.integers(0, 6),
)  # fmt: skip
def test_a_path_is_the_same_as_tokens_committed(
    row, answer, path, stateful, temperature, repetition, presence, frequency, least
):
    sampling = Sampling(
        temperature=temperature, repetition_penalty=repetition, presence_penalty=presence, min_tokens=least,
        frequency_penalty=frequency, bad_words=((0, 1), (2, 2, 3)), logit_bias={1: 0.5}, top_p=0.95,
        processors=(Alternate(),) if stateful else (),
    )  # fmt: skip
    drafted, plain = sampler(sampling, (0, 2), eos=(4,)), sampler(sampling, (0, 2), eos=(4,))
    for token in answer:
        for one in (drafted, plain):
            one.law(row, [])
            one.advance([token])
    for k in range(len(path) + 1):
        assert np.array_equal(drafted.law(row, path[:k]), plain.law(row, []))
        assert drafted.draw(row, path[:k]) == plain.draw(row, [])
        plain.advance(path[k : k + 1])
    drafted.advance([*path, 3])
    if path:
        plain.law(row, [])
    plain.advance([3])
    assert np.array_equal(drafted.law(row, []), plain.law(row, []))


# ---- processors -----------------------------------------------------------------------------------------------------


def test_processor_is_called_once_for_a_position_and_forgets_what_was_refused():
    one = Alternate()
    s = sampler(Sampling(temperature=1.0, processors=(one,)), prompt=(0,))
    for path in ([], [1], [1, 2], [1]):  # asked again by whoever explains the step
        s.law(ROW, path)
    s.draw(ROW, [1, 2])
    assert one.calls == [(0,), (0, 1), (0, 1, 2)]
    s.advance([1, 4])  # 2 was refused
    s.draw(ROW, [])
    assert one.calls[3:] == [(0, 1, 4)]
    assert s.law(ROW, [3])[3] == 0.0
    s.advance([3, 1])
    fresh = sampler(Sampling(temperature=1.0, processors=(Alternate(),)), prompt=(0,))
    for token in (1, 4, 3, 1):
        fresh.law(ROW, [])
        fresh.advance([token])
    assert np.array_equal(s.law(ROW, []), fresh.law(ROW, [])), "state as if every token had come alone"


def test_one_processor_serves_several_requests():
    shared = Alternate()
    sampling = Sampling(temperature=1.0, processors=(shared,))
    a, b = sampler(sampling, (0,)), sampler(sampling, (1,))
    alone = sampler(Sampling(temperature=1.0, processors=(Alternate(),)), (1,))
    for token in (2, 3):
        for one in (a, b, alone):
            one.law(ROW, [])
            one.advance([token])
    assert shared.state == ()
    assert np.array_equal(b.law(ROW, []), alone.law(ROW, []))
    assert not np.array_equal(sampler(sampling, (3,)).law(ROW, []), b.law(ROW, []))


def test_processor_sees_a_path_in_order():
    s = sampler(Sampling(processors=(Alternate(),)))
    with pytest.raises(ValueError, match="in order"):
        s.law(ROW, [1])
    s.law(ROW, [])
    with pytest.raises(ValueError, match="in order"):
        s.advance([1, 2])


def test_history_given_to_a_processor_cannot_be_changed_and_shapes_are_checked():
    class Writer(Alternate):
        def __call__(self, history, logits):
            history[0] = 1
            return logits

    class Cutter(Alternate):
        def __call__(self, history, logits):
            return logits[:3]

    with pytest.raises(ValueError, match="read-only"):
        sampler(Sampling(processors=(Writer(),))).draw(ROW, [])
    with pytest.raises(InputError, match=r"Cutter gave an array of shape \(3,\), not \(5,\)"):
        sampler(Sampling(processors=(Cutter(),))).draw(ROW, [])


# ---- rows without a law ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_is_an_error_that_names_the_bans(temperature):
    s = sampler(Sampling(temperature=temperature, bad_words=tuple((t,) for t in range(5))))
    with pytest.raises(InputError, match="every token is banned at position 2; lift a ban of bad_words"):
        s.draw(ROW, [0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.5, "frequency_penalty": 0.5}])
def test_damaged_rows_are_an_error(bad, temperature, options):
    row = ROW.copy()
    row[3] = bad
    s = sampler(Sampling(temperature=temperature, **options))
    for call in (s.draw, s.law):
        with pytest.raises(ModelError, match="no finite maximum"):
            call(row, [])
    with pytest.raises(ModelError):
        logprobs(row, 0, 1)
    with pytest.raises(ModelError):
        s.law(np.full(5, -np.inf, np.float32), [])


def test_minus_infinity_is_only_a_ban():
    row = np.array([-np.inf, 1.0, -np.inf, 0.0, -np.inf], np.float32)
    for options in ({}, {"top_k": 4}, {"top_p": 0.99}, {"typical_p": 0.9}, {"min_p": 0.1}):
        law = sampler(Sampling(temperature=1.0, **options)).law(row, [])
        assert np.isfinite(law).all()
        assert law[[0, 2, 4]].tolist() == [0, 0, 0]


@given(
    st.integers(0, 2**32),
    st.sampled_from([2, 300, 1500, 5000]),
    st.sampled_from([1e-300, 1e-6, 0.01, 0.7, 1.0, 1.5, 5.0, 100.0, 1e10, 1e300]),
    st.sampled_from([0.01, 1.0, 5.0, 50.0]),
    st.booleans(),
    st.booleans(),
)
def test_a_draw_without_filters_is_the_race_of_all(seed, size, temperature, spread, ties, bans):
    rng = np.random.default_rng(seed)
    row = (spread * rng.normal(size=size) + rng.choice([0.0, 100.0, -1000.0])).astype(np.float32)
    if ties:
        row = np.round(row, 1)
    if bans:
        row[rng.integers(1, size, size // 2)] = -np.inf
    noise = Noise(seed, Stream.TARGET)
    s = Sampler(Sampling(temperature=temperature), size, (), np.zeros(3, np.int32), noise)
    assert s.draw(row, [7, 7]) == race(s.law(row, [7, 7]), noise.exponential(5, size))


def test_noise_that_is_kept_cannot_be_spoilt():
    waits = Noise(3, Stream.TARGET).exponential(9, 20)
    with pytest.raises(ValueError, match="read-only"):
        waits[0] = 1.0
    assert np.array_equal(waits, Noise(3, Stream.TARGET).exponential(9, 20))
    assert np.array_equal(waits[:10], Noise(3, Stream.TARGET).exponential(9, 10))
    assert not np.array_equal(waits, Noise(3, Stream.DRAFT).exponential(9, 20))
    assert not np.array_equal(waits, Noise(3, Stream.TARGET, 1).exponential(9, 20))


# ---- log-probabilities ----------------------------------------------------------------------------------------------


@given(rows(), st.integers(0, 11), st.integers(0, 14))
def test_logprobs(row, token, top):
    value, best = logprobs(row, token, top)
    expected = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    assert value == pytest.approx(expected[token], abs=1e-9)
    order = sorted(range(12), key=lambda i: (-row[i], i))[:top]
    assert [i for i, _ in best] == order
    assert [v for _, v in best] == pytest.approx([expected[i] for i in order], abs=1e-9)
