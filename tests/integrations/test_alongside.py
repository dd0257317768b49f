"""Drafters beside somebody else's loop: what they guess, what they learn of it, and what they cost."""

import numpy as np
import pytest

from augury.errors import InputError, UnknownName
from augury.integrations.alongside import Alongside, Came, Given, Measured

V = 50


def said(tokens):
    return np.asarray(tokens, np.int32)


def beside(drafters=("suffix",), prices=None, context=512):
    return Alongside(drafters, vocab_size=V, context=context, prices=prices or Given())


def told(alongside, prompt, answer, deepest=8, take=None):
    """Another engine's loop, whose target says ``answer``: gives the text, and how many steps it took."""
    text = alongside.open(said(prompt))
    (guess,) = alongside.step([Came(text, ())], deepest)
    at = steps = 0
    while at < len(answer):
        right = 0
        for token in guess[: len(answer) - at - 1]:
            if token != answer[at + right]:
                break
            right += 1
        came = answer[at : at + right + 1] if take is None else answer[at : at + take]
        (guess,) = alongside.step([Came(text, came)], deepest)
        at, steps = at + len(came), steps + 1
    return text, steps


def test_guesses_what_was_said_before():
    alongside = beside()
    text = alongside.open(said([5, 6, 7, 8, 9, 5, 6, 7]))
    (chain,) = alongside.step([Came(text, ())], 4)
    assert chain[:2] == (8, 9)
    assert 2 <= len(chain) <= 4


def test_no_guess_is_offered_that_a_chain_has_no_place_for():
    alongside = beside()
    text = alongside.open(said([1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]))
    alongside.step([Came(text, ())], 8)
    assert text.offer.tree.is_chain
    assert text.offer.proposals[0].nodes == len(text.offer.tree) > 1


def test_takes_fewer_steps_than_tokens_and_keeps_records():
    prompt, answer = [*range(20)], [*range(3, 20), *range(3, 20)]
    text, steps = told(beside(), prompt, answer)
    assert text.tokens.tolist() == prompt + answer
    assert steps < len(answer) / 2
    assert text.record.completion_tokens == len(answer)
    assert text.record.accepted == len(answer) - steps
    assert sum(text.record.histogram) == steps


def test_several_texts_share_rows_and_keep_their_own_state():
    alongside = beside()
    texts = [alongside.open(said(p)) for p in ([1, 2, 3, 1, 2], [7, 8, 9, 7, 8], [20, 21, 22])]
    chains = alongside.step([Came(t, ()) for t in texts], 3)
    assert [c[:1] for c in chains] == [(3,), (9,), ()]
    # One leaves, the others change places, another comes.
    new = alongside.open(said([30, 31, 30]))
    chains = alongside.step([Came(texts[1], [9]), Came(new, ()), Came(texts[0], [3])], 3)
    assert [c[:1] for c in chains] == [(7,), (31,), (1,)]


def test_guesses_that_were_cut_before_they_were_verified_are_no_misses():
    prompt, answer = [*range(20)], [*range(3, 20)] * 3
    cut, _ = told(beside(), prompt, answer, take=1)
    assert cut.record.drafted == cut.record.accepted > 0


def test_wrong_guesses_end_the_guessing():
    rng = np.random.default_rng(0)
    text, steps = told(beside(), rng.integers(0, V, 60).tolist(), rng.integers(0, V, 300).tolist())
    last = text.record.steps[-100:]
    assert steps > 280
    assert sum(s.drafted for s in last) < 40


def test_the_same_texts_give_the_same_guesses_whatever_the_clock_says(monkeypatch):
    import time

    prompt, answer = [*range(30)], [*range(5, 25), *range(2, 22), *range(7, 27)]

    def guesses():
        text, _ = told(beside(("suffix", "ngram")), prompt, answer)
        return [s.tree.tokens.tolist() for s in text.record.steps]

    before = guesses()
    real, ticks = time.perf_counter, iter(range(10**9))
    monkeypatch.setattr(time, "perf_counter", lambda: real() + 0.01 * next(ticks))
    assert guesses() == before


def test_measured_prices_begin_with_plain_steps_and_follow_the_clock(monkeypatch):
    import time

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    prices = Measured()
    alongside = beside(prices=prices)
    text = alongside.open(said([1, 2, 3, 4] * 6))
    chains, answer = [], [1, 2, 3, 4] * 300
    (chain,) = alongside.step([Came(text, ())], 8)
    at = 0
    while at < len(answer) - 10:
        chains.append(chain)
        now[0] += 0.010 * (1 + len(chain))  # every row costs a whole step: never worth it
        right = next((i for i, t in enumerate(chain) if t != answer[at + i]), len(chain))
        came = answer[at : at + right + 1]
        (chain,) = alongside.step([Came(text, came)], 8)
        at += len(came)
    assert [len(c) for c in chains[:3]] == [0, 0, 0]
    assert max(map(len, chains)) > 0, "nothing was ever tried"
    assert sum(map(len, chains[-30:])) <= 3
    assert prices.costs is not None
    assert prices.costs.verify[1] == pytest.approx(10.0, rel=0.2)


def test_time_of_steps_that_did_other_work_teaches_nothing(monkeypatch):
    import time

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    prices = Measured()
    alongside = beside(prices=prices)
    text = alongside.open(said([1, 2, 3]))
    alongside.step([Came(text, ())])
    for token in range(4, 24):
        now[0] += 0.010 if token % 2 else 5.0
        alongside.step([Came(text, [token])], timed=token % 2 == 1)
    assert prices.costs is not None
    assert prices.costs.verify[1] == pytest.approx(10.0, rel=0.1)


def test_what_is_remembered_stays_with_its_tenant():
    alongside = beside(("memory",))
    answer = [*range(10, 40)]
    for salt in ("alice", "bob"):
        text = alongside.open(said([1, 2, 3]), cache_salt=salt)
        (chain,) = alongside.step([Came(text, ())], 4)
        assert chain == ()
        for token in answer:
            alongside.step([Came(text, [token])], 4)
        alongside.close(text)
    text = alongside.open(said([1, 2, 3]), cache_salt="alice")
    alongside.step([Came(text, ())], 4)
    (chain,) = alongside.step([Came(text, [10, 11, 12])], 4)
    assert chain[:2] == (13, 14)
    stranger = alongside.open(said([1, 2, 3]), cache_salt="carol")
    alongside.step([Came(stranger, ())], 4)
    assert alongside.step([Came(stranger, [10, 11, 12])], 4) == [()]


def test_a_prediction_is_followed():
    alongside = beside(("prediction",))
    text = alongside.open(said([1, 2]), prediction=said([9, 8, 7, 6, 5]))
    (chain,) = alongside.step([Came(text, ())], 4)
    assert chain[:2] == (9, 8)


@pytest.mark.parametrize("spec", ["eagle", "self", "grammar", "recycle", "lookahead"])
def test_drafters_that_need_our_target_are_refused(spec):
    with pytest.raises(InputError, match=f"{spec} has no part in another engine: .*those that have: .*suffix"):
        beside((spec,))


def test_unknown_names_are_refused():
    with pytest.raises(UnknownName, match="suffix"):
        beside(("sufix",))


@pytest.mark.parametrize(("bad", "says"), [({"row": -0.1}, "row is -0.1"), ({"knee": 0}, "knee is 0")])
def test_prices_out_of_range_are_refused(bad, says):
    with pytest.raises(InputError, match=says):
        Given(**bad)


def test_a_text_without_tokens_is_refused():
    with pytest.raises(InputError, match="at least one token"):
        beside().open(said([]))


def test_the_context_is_never_passed():
    alongside = beside(context=12)
    text = alongside.open(said([1, 2, 3, 1, 2, 3, 1, 2]))
    (chain,) = alongside.step([Came(text, ())], 8)
    assert len(chain) <= 12 - 8 - 1
    alongside.step([Came(text, [3, 1, 2, 3])], 8)
    assert alongside.step([Came(text, ())], 8) == [()]


def test_a_drafter_that_raises_costs_its_own_step_only(tmp_path, monkeypatch):
    (tmp_path / "broken_beside.py").write_text(
        "from augury.drafters.drafter import Drafter\n"
        "class Broken(Drafter):\n"
        "    def propose(self, view, limit):\n"
        "        raise RuntimeError('no')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text, _ = told(beside(("broken_beside:Broken", "suffix")), [*range(20)], [*range(3, 20)])
    assert text.record.accepted > 0
    assert "no" in text.record.steps[0].proposals[0].fault


def test_a_drafter_with_a_cache_for_each_text_guesses_for_as_many_as_it_has_slots(loaded):
    """And says why it does not for one more, as long as none is closed."""
    prompt = np.asarray(loaded.render("Count to twenty."), np.int32)
    common = {"vocab_size": loaded.target.info.vocab_size, "context": 512, "tokenizer": loaded.tokenizer}
    for slots in (1, 2):
        alongside = Alongside(["model:smollm2-135m,threads=1"], prices=Given(0.0), slots=slots, **common)
        texts = [alongside.open(prompt), alongside.open(prompt)]
        chains = alongside.step([Came(text, ()) for text in texts], 3)
        assert [len(chain) > 0 for chain in chains] == [True, slots == 2]
        faults = [str(text.request.benched.get(0, "")) for text in texts]
        assert faults[0] == ""
        assert ("all 1 slots are taken" in faults[1]) == (slots == 1)
        alongside.close(texts[0])
        third = alongside.open(prompt)
        assert len(alongside.step([Came(third, ())], 3)[0]) > 0


def test_two_batches_at_once_mix_no_times_and_learn_all_the_same(monkeypatch):
    import time

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    prices = Measured()
    alongside = beside(prices=prices)
    texts = [alongside.open(said([1, 2, 3, 4] * 6)), alongside.open(said([11, 12, 13, 14] * 6))]
    for text in texts:
        alongside.step([Came(text, ())])
        now[0] += 0.006
    for turn in range(12):  # each takes 12 ms, and the other one steps in the middle
        for i, text in enumerate(texts):
            alongside.step([Came(text, [10 * i + turn % 4 + 1])])
            now[0] += 0.006
    assert prices.costs is not None, "who always steps together never drafts"
    assert prices.costs.verify[1] == pytest.approx(12.0)
    assert [step.verify_ms for text in texts for step in text.record.steps] == [pytest.approx(12.0)] * 24
    assert any(step.drafted for step in texts[0].record.steps)
    # One alone goes on: now its time tells.
    for turn in range(12, 60):
        now[0] += 0.004
        alongside.step([Came(texts[0], [turn % 4 + 1])], 0)
    assert prices.costs.verify[1] == pytest.approx(4.0, rel=0.3)
