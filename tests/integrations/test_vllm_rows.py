"""The plug-in for vLLM, without vLLM: rows that move, are preempted and come back, and what is guessed for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from augury_vllm import AuguryProposer
from augury_vllm.counts import Told, named
from augury_vllm.overhead import config
from augury_vllm.replay import Answer, play
from augury_vllm.rows import PARKED_CALLS

from augury.conformance.kit import check_drafter
from augury.drafters.drafter import Drafter
from augury.integrations.alongside import Alongside
from augury.tree import DraftTree

V, CONTEXT = 50, 256
SAID = Path(__file__).parent.parent / "drafters" / "answers.json"


def proposer(tokens=5, vocab_size=V, context=CONTEXT, rows=16, ranks=1, rank=0, **augury):
    return AuguryProposer(config(tokens, vocab_size, context, rows, augury, ranks=ranks, rank=rank))


def table(*texts, context=CONTEXT):
    """Lengths and tokens of rows; what lies behind a text is left from others."""
    tokens = np.full((max(len(texts), 1) + 2, context), -7, np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    return np.array([*map(len, texts), 0, 0], np.int32), tokens


def told(guesser, *rows):
    """A call for rows of (text, new tokens at its end)."""
    lengths, tokens = table(*(text for text, _ in rows), context=guesser._beside._info.context)
    return guesser.propose([list(text[len(text) - new :]) for text, new in rows], lengths, tokens)


@pytest.fixture
def opened(monkeypatch):
    """Prompts of all texts that are opened, and how many are closed."""
    found = {"opened": [], "closed": 0}
    real_open, real_close = Alongside.open, Alongside.close

    def spy_open(self, prompt, **more):
        found["opened"].append(prompt.tolist())
        return real_open(self, prompt, **more)

    def spy_close(self, text):
        found["closed"] += 1
        real_close(self, text)

    monkeypatch.setattr(Alongside, "open", spy_open)
    monkeypatch.setattr(Alongside, "close", spy_close)
    return found


def real():
    """Answers of the embedded model, each asked for twice."""
    pairs = json.loads(SAID.read_text())
    return [Answer(prompt, answer) for question in pairs for prompt, answer in question]


def test_guesses_what_was_said_before():
    assert told(proposer(), ([5, 6, 7, 8, 9, 5, 6, 7], 1)) == [[8, 9, 5, 6, 7]]


def test_answers_come_sooner_whatever_happens_to_the_rows(opened):
    answers = real()
    quiet = play(guess(proposer(vocab_size=49152)), answers, rows=8, context=CONTEXT)
    assert len(opened["opened"]) == len(answers)
    opened["opened"].clear()
    wild = play(guess(proposer(vocab_size=49152)), answers, rows=8, context=CONTEXT, disturb=0)
    assert quiet.tokens == wild.tokens == sum(len(one.answer) for one in answers)
    assert quiet.accepted > 0.1 * quiet.tokens
    assert wild.accepted > 0.85 * quiet.accepted
    # Who stays away for longer than texts are kept is indexed anew, and nobody else.
    late = sum(gap > PARKED_CALLS + 1 for gap in wild.gaps)
    assert len(opened["opened"]) == len(answers) + late
    assert 0 < late < sum(gap > 1 for gap in wild.gaps)


def guess(made):
    return lambda sampled, lengths, tokens, names: made.propose(sampled, lengths, tokens)


def test_a_prompt_that_is_not_computed_to_its_end_is_not_guessed_for(opened):
    made = proposer()
    lengths, tokens = table([5, 6, 7, 5, 6], [1, 2, 3, 1, 2])
    assert made.propose([[], [2]], lengths, tokens)[0] == []
    assert opened["opened"] == [[1, 2, 3, 1]]
    assert made.propose([], lengths, tokens) == []


def test_rows_change_places_and_keep_their_texts(opened):
    made, rng = proposer(rows=8), np.random.default_rng(1)
    texts = [[10 * i + j % 4 for j in range(9)] for i in range(5)]
    told(made, *((text, 1) for text in texts))
    for _ in range(12):
        for text in texts:
            text.append(text[-4])
        order = rng.permutation(5).tolist()
        chains = told(made, *((texts[i], 1) for i in order))
        assert all(chain[0] == texts[i][-4] for i, chain in zip(order, chains, strict=True))
    assert len(opened["opened"]) == 5
    assert opened["closed"] == 0


def test_who_is_preempted_goes_on_where_it_was(opened):
    made = proposer()
    one, other = [1, 2, 3, 1, 2], [7, 8, 9, 7, 8]
    told(made, (one, 1), (other, 1))
    for _ in range(10):
        other = [*other, other[-3]]
        told(made, (other, 1))
    # Its prompt, with what was answered so far, is computed again, in parts.
    lengths, tokens = table([*other, other[-3]], [*one, 3])
    assert made.propose([[other[-3]], []], lengths, tokens)[1] == []
    other = [*other, other[-3]]
    lengths, tokens = table([*one, 3], [*other, other[-3]])
    assert made.propose([[3], [other[-3]]], lengths, tokens)[0][:2] == [1, 2]
    assert len(opened["opened"]) == 2


def test_texts_without_a_row_are_kept_for_a_while_and_not_too_many(opened):
    made = proposer(rows=1)
    for start in range(40):
        text = [start, start + 1, start + 2]
        told(made, (text, 1))
    assert len(opened["opened"]) == 40
    assert len(made._rows) == 40 - opened["closed"] <= 17
    for new in range(PARKED_CALLS):
        text = [*text, new]
        told(made, (text, 1))
    assert len(made._rows) == 1
    assert opened["closed"] == 39
    made._rows.close()
    assert opened["closed"] == 40


@pytest.mark.parametrize("last", [[49], [39, 49, 7], [49, 1, 2, 3, 4, 5]])
def test_an_answer_that_ended_as_answers_end_is_closed_at_once(last, opened):
    """vLLM cuts what stands behind the end; the step that brought it, as it was guessed, tells of more."""
    set_up = config(5, V, CONTEXT, 16, {"drafters": "memory"})
    set_up.model_config.hf_config.eos_token_id = [0, 49]
    made = AuguryProposer(set_up)
    told(made, ([1, 2, *range(10, 40)], 30))
    told(made, ([1, 2, *range(10, 40), *last], len(last)))
    (chain,) = told(made, ([3, 4, 5, 10, 11, 12], 3))  # another request, in the same row
    assert opened["closed"] == 1
    assert chain[:2] == [13, 14], "what was answered is not remembered"


def test_what_was_told_to_nobody_meanwhile_is_read_from_the_row(opened):
    made = proposer(tokens=3)
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    told(made, (text, 1))
    text = [*text, 3, 4, 5]  # near the end of somebody's context nobody is asked for some steps
    assert told(made, (text, 1))[0][:1] == [6]
    assert len(opened["opened"]) == 1


def test_the_next_turn_of_a_conversation_is_a_text_of_its_own(opened):
    made = proposer(tokens=3)
    text = [1, 2, 3, 4, 5, 6]
    told(made, (text, 1))
    told(made, ([*text, *range(20, 40)], 1))
    assert opened["opened"] == [[1, 2, 3, 4, 5], [*text, *range(20, 39)]]


def test_a_short_next_turn_behind_an_answer_that_ended_is_a_text_of_its_own(opened):
    """Few enough tokens for a step that nobody was told of; but nothing comes of an answer behind its end."""
    set_up = config(5, V, CONTEXT, 16, {"drafters": "memory"})
    set_up.model_config.hf_config.eos_token_id = 49
    made = AuguryProposer(set_up)
    first = [1, 2, *range(10, 30), 49]
    told(made, (first[:-1], 20))
    told(made, (first, 1))
    told(made, ([*first, 3, 4, 5, 6], 1))
    assert opened["opened"] == [[1, 2], [*first, 3, 4, 5]]
    assert opened["closed"] == 1, "the first answer is not remembered yet"


def test_an_end_in_the_prompt_ends_no_answer(opened):
    """As of earlier turns, which stands close before the answer's first token."""
    set_up = config(5, V, CONTEXT, 16, {})
    set_up.model_config.hf_config.eos_token_id = 49
    made = AuguryProposer(set_up)
    one, other = [1, 2, 49, 3], [7, 8, 49, 9]
    told(made, (one, 1), (other, 1))
    told(made, ([*other, 7], 1))  # and the first one is preempted
    told(made, ([*one, 4], 1), ([*other, 7, 8], 1))
    assert len(opened["opened"]) == 2


def test_an_answer_that_goes_on_behind_an_end_is_the_same_text(opened):
    """As with ``ignore_eos``."""
    set_up = config(5, V, CONTEXT, 16, {})
    set_up.model_config.hf_config.eos_token_id = 49
    made = AuguryProposer(set_up)
    text = [1, 2, 3]
    for new in (49, 4, 49, 49, 5):
        text = [*text, new]
        told(made, (text, 1))
    told(made, ([*text, 49, 6], 2))
    assert len(opened["opened"]) == 1


def test_a_limit_that_no_chain_reaches_does_not_join_two_turns(opened):
    made = proposer(tokens=100_000)
    text = [1, 2, 3, 4, 1, 2]
    (chain,) = told(made, (text, 1))
    assert 0 < len(chain) <= 64
    told(made, ([*text, *[7] * 140], 1))
    assert opened["opened"] == [text[:-1], [*text, *[7] * 139]]


def test_equal_prompts_are_different_texts(opened):
    made = proposer()
    told(made, ([1, 2, 3, 1], 1), ([1, 2, 3, 2], 1))
    told(made, ([1, 2, 3, 2, 3], 1), ([1, 2, 3, 1, 2], 1))  # and change places
    assert len(opened["opened"]) == 2
    assert sorted(t.tokens.tolist() for t in made._rows._rows) == [[1, 2, 3, 1, 2], [1, 2, 3, 2, 3]]


@pytest.mark.parametrize("bad", [-1, -100, V, 2**31 - 1])
def test_ids_outside_the_vocabulary_are_left_alone(bad, opened):
    made = proposer()
    good = [1, 2, 3, 1, 2]
    assert told(made, ([1, bad, 3, 1, 3], 1), (good, 1))[0] == []  # in a prompt
    assert told(made, ([1, bad, 3, 1, 3, 1], 1), ([*good, bad], 1)) == [[], []]  # and sampled
    assert told(made, ([1, bad, 3, 1, 3, 1], 1), ([*good, bad, 1], 1)) == [[], []]
    assert told(made, ([5, 6, 5], 1))[0][:1] == [6]
    assert opened["opened"] == [good[:-1], [5, 6]]


def test_no_guess_is_unknown_too_long_or_beyond_the_context():
    made, rng = proposer(tokens=4, context=40), np.random.default_rng(2)
    text = rng.integers(0, 3, 20).tolist()
    found = 0
    while len(text) < 40:
        (chain,) = told(made, (text, 1))
        found += len(chain)
        assert len(chain) <= min(4, 40 - len(text) - 1)
        assert all(0 <= token < V for token in chain)
        text = [*text, int(rng.integers(0, 3))]
    assert told(made, (text, 1)) == [[]]
    assert found


def test_what_a_long_answer_leaves_behind_does_not_grow():
    made = proposer(context=4096)
    text = [1, 2, 3, 1]
    for _ in range(600):
        text.append(text[-3])
        told(made, (text, 1))
    (one,) = made._rows._rows
    assert len(one.record.steps) <= 1


def test_what_is_counted_is_what_vllm_verified():
    """Which cuts guesses where a step has no room for their rows: then the tokens that come agree with them, too."""
    made = AuguryProposer(config(5, V, CONTEXT, 16, {}, instance="verified"))
    counted = Told(named("verified", 0))
    text = [5, 6, 7, 8, 9, 5, 6, 7]
    assert told(made, (text, 1)) == [[8, 9, 5, 6, 7]]
    for new, drafted, accepted in (([8], 0, 0), ([9, 5, 6], 2, 2), ([7, 1], 5, 1), ([3], 0, 0)):
        text = [*text, *new]
        (chain,) = told(made, (text, len(new)))
        assert [sum(found) for found in counted.take()] == [drafted, accepted], new
    assert chain == []
    counted.close()


def test_a_drafter_that_fails_is_said_once(tmp_path, monkeypatch, caplog):
    (tmp_path / "failing_in_vllm.py").write_text(
        "from augury.drafters.drafter import Drafter\n"
        "class Failing(Drafter):\n"
        "    def propose(self, view, limit):\n"
        "        raise RuntimeError('out of ideas')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = proposer(drafters="failing_in_vllm:Failing,suffix")
    text = [1, 2, 3, 1]
    for _ in range(6):
        text.append(text[-3])
        assert told(made, (text, 1))[0]
    assert [r.getMessage() for r in caplog.records if "out of ideas" in r.getMessage()] == [
        "augury: drafter failing_in_vllm:Failing: RuntimeError: out of ideas (said once)"
    ]


# ---- ranks and replicas ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "guessing"), [(1, 0), (2, 2)])
def test_one_rank_guesses_and_the_others_keep_silent(stages, guessing, opened):
    """Whose answers vLLM takes is the first of the last pipeline stage; only there anything is loaded."""
    for rank in range(2 * stages):
        set_up = config(5, V, CONTEXT, 16, {"drafters": "suffix"}, ranks=2 * stages, rank=rank, instance=f"r{rank}")
        set_up.parallel_config.pipeline_parallel_size = stages
        made = AuguryProposer(set_up)
        lengths, tokens = table([5, 6, 7, 8, 9, 5, 6, 7], [1, 2, 3])
        chains = made.propose([[7], []], lengths, tokens)
        assert chains == ([[8, 9, 5, 6, 7], []] if rank == guessing else [[], []])
    assert len(opened["opened"]) == 1


REPLICA = """
import json, random, sys, time
from pathlib import Path
from augury_vllm import AuguryProposer
from augury_vllm.overhead import config
from augury_vllm.replay import Answer, play

slow = sys.argv[2] == "slow"
pairs = json.loads(Path(sys.argv[3]).read_text())
answers = [Answer(prompt, answer) for question in pairs for prompt, answer in question]
proposer = AuguryProposer(config(
    5, 49152, 256, 8, {"drafters": ["suffix", "ngram", "memory"]}, instance=sys.argv[1]))
if slow:  # a clock that leaps, which is what a process sees that shares its cores
    real, leap = time.perf_counter, [0.0]
    def clock():
        leap[0] += random.random() * 3.0
        return real() + leap[0]
    time.perf_counter = clock

def guess(sampled, lengths, tokens, names):
    if slow and random.random() < 0.02:
        time.sleep(0.02)
    return proposer.propose(sampled, lengths, tokens)

figures = play(guess, answers, rows=8, context=256, disturb=3, keep=True)
print(json.dumps({"guesses": figures.guesses, "accepted": figures.accepted, "hash": hash("a")}))
"""


def test_at_given_prices_two_replicas_guess_the_same():
    replicas = []
    for seed, speed in [("1", "fast"), ("2", "slow")]:
        path = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, "-c", REPLICA, speed, speed, str(SAID)]
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        replicas.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    first, second = (json.loads(one.communicate(timeout=120)[0]) for one in replicas)
    assert first["hash"] != second["hash"]
    assert first["guesses"] == second["guesses"]
    assert first["accepted"] == second["accepted"] > 400


# ---- the kit ---------------------------------------------------------------------------------------------------


class InRows(Drafter):
    """The proposer as a drafter of ours: shown rows as vLLM shows them, shuffled, and only behind a first token."""

    def __init__(self, target):
        info = target.info
        self._proposer = proposer(4, info.vocab_size, info.context)
        self._views, self._told, self._chains = {}, {}, {}
        self._rng = np.random.default_rng(0)

    def open(self, view):
        self._views[view.id], self._told[view.id] = view, view.length

    def propose(self, view, limit):
        if view.length > self._told[view.id]:
            going = [v for v in self._views.values() if v.length > self._told[v.id]]
            going = [going[i] for i in self._rng.permutation(len(going))]
            lengths, tokens = table(*(v.tokens.tolist() for v in going), context=self._proposer._beside._info.context)
            sampled = [v.tokens[self._told[v.id] :].tolist() for v in going]
            chains = self._proposer.propose(sampled, lengths, tokens)
            for one, chain in zip(going, chains, strict=True):
                self._told[one.id], self._chains[one.id] = one.length, chain
        chain = self._chains.get(view.id, [])[: min(limit, view.room)]
        return DraftTree.chain(chain, 0.9 ** np.arange(1, len(chain) + 1)) if chain else DraftTree.empty()

    def close(self, view):
        for kept in (self._views, self._told, self._chains):
            kept.pop(view.id, None)


def test_it_passes_the_conformance_kit():
    report = check_drafter(InRows, name="augury_vllm", samples=2000)
    assert report.passed, str(report)


# ---- imports ---------------------------------------------------------------------------------------------------

FRESH = """
import sys
import numpy as np
import augury_vllm
from augury_vllm.overhead import config
proposer = augury_vllm.AuguryProposer(config(5, 50, 64, 4, {"drafters": "suffix,ngram,memory"}))
tokens = np.zeros((4, 64), np.int32)
tokens[0, :8] = [5, 6, 7, 8, 9, 5, 6, 7]
assert proposer.propose([[7]], np.array([8], np.int32), tokens) == [[8, 9, 5, 6, 7]]
heavy = {"torch", "transformers", "tokenizers", "fastapi", "uvicorn", "pydantic", "starlette", "llguidance", "gguf",
         "minijinja", "typer", "rich", "vllm", "prometheus_client", "augury.server", "augury.api"}
print(sorted(heavy & set(sys.modules)))
"""


def test_importing_and_guessing_loads_nothing_heavy():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", FRESH], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
