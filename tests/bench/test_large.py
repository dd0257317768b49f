"""A large shape with the answers of a small model: what is replayed, and what the command says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from augury.bench import large
from augury.bench.document import read
from augury.bench.large import LLAMA_1B, RandomWeights, as_recorded, main, measure, record, shaped, warm_up
from augury.bench.paired import WARM_UP_TOKENS
from augury.bench.prompts import Prompt
from augury.bench.replayed import DEEPEST, Recorded, Replayed, recorded
from augury.drafters.itself import Itself
from augury.engine.costs import Meter
from augury.engine.engine import Engine
from augury.models.families import block_config
from augury.models.native import native_available
from augury.models.weights import shapes
from augury.tree import DraftTree, Path

needs_native = pytest.mark.skipif(native_available() is not None, reason="the compiled forward cannot run here")

TINY = {
    **LLAMA_1B, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
VOCAB = 97
PROMPT, ANSWER = [5, 6, 7], [11, 12, 13, 14, 15]


class _Slow(Meter):
    """Costs of a target for which every drafter is cheap, whatever the forwards of a tiny one take."""

    def served(self, rows, read, verify_ms, rest_ms):
        pass


def noted(wrong=()):
    """A record whose guesses are right but at the places in ``wrong``."""
    guesses = np.repeat(np.array(ANSWER, np.int32)[:, None], DEEPEST, 1)
    guesses[list(wrong)] += 50
    return Recorded(len(PROMPT), np.array(PROMPT + ANSWER, np.int32), guesses, np.full(guesses.shape, 0.9))


@pytest.fixture
def target():
    return Replayed(shaped(TINY, VOCAB, "tiny", threads=1), [noted(wrong=[2])])


def test_the_shape_has_a_billion_weights():
    config = block_config({**LLAMA_1B, "vocab_size": 128256}, 2048)
    # The model card of Llama 3.2 1B says 1.23 billion.
    assert sum(int(np.prod(shape)) for shape in shapes(config).values()) == 1_235_814_400


def test_norms_of_random_weights_are_ones_and_all_else_is_noise():
    weights = RandomWeights(block_config({**TINY, "vocab_size": VOCAB}, 128))
    assert weights["layers.1.mlp_norm"].tolist() == [1.0] * 64
    assert weights["embed"].shape == (VOCAB, 64)
    assert float(weights["embed"].float().std()) == pytest.approx(0.02, rel=0.1)


@needs_native
def test_the_recorded_token_is_the_likeliest_along_the_record_and_nowhere_else(target):
    slot = target.open()
    target.prefill(slot, np.array(PROMPT[:-1], np.int32))
    # root 7 -> 11 -> 12 -> 99?, and a wrong first guess beside 11
    tree = DraftTree.of([11, 40, 12, 41], [-1, -1, 0, 1], np.ones(4, np.float32))
    (logits,) = target.verify([slot], [7], [tree]).logits
    likeliest = logits.argmax(1).tolist()
    assert [likeliest[0], likeliest[1], likeliest[3]] == [11, 12, 13]
    assert logits[2].max() < 100.0
    assert logits[4].max() < 100.0
    target.commit([slot], [Path((0, 2), 13)])
    assert target.length(slot) == 5
    assert target.record(slot) is not None
    (logits,) = target.verify([slot], [13], [DraftTree.empty()]).logits
    assert logits[0].argmax() == 14


@needs_native
def test_text_that_no_record_begins_with_is_the_targets_own(target):
    slot = target.open()
    target.prefill(slot, np.array([9, 9, 9], np.int32))
    assert target.record(slot) is None
    (logits,) = target.verify([slot], [7], [DraftTree.empty()]).logits
    assert logits[0].max() < 100.0
    target.release(slot)
    slot = target.open()
    target.prefill(slot, np.array(PROMPT[:-1], np.int32))
    (logits,) = target.verify([slot], [8], [DraftTree.empty()]).logits  # another root than the prompt's
    assert logits[0].max() < 100.0


@needs_native
def test_guesses_are_those_recorded_with_their_chance(target):
    slot = target.open()
    target.prefill(slot, np.array(PROMPT[:-1], np.int32))
    guess = target.shorten(4, range(2))
    rows = guess(slot, 0, np.array([7, 11, 12], np.int32))
    assert rows.argmax(1).tolist() == [11, 12, 63]
    law = np.exp(rows[0] - rows[0].max())
    assert law.max() / law.sum() == pytest.approx(0.9, rel=1e-4)
    assert [*target.guess_ms] == [3]


@needs_native
def test_a_rolled_back_slot_is_found_again(target):
    slot = target.open()
    target.prefill(slot, np.array([*PROMPT, 11, 12], np.int32))
    assert target.record(slot) is not None
    target.truncate(slot, 2)
    assert target.record(slot) is not None
    target.truncate(slot, 1)
    assert target.record(slot) is None


@needs_native
def test_drafted_steps_accept_up_to_the_first_wrong_guess(target):
    engine = Engine(target, [("self", Itself(target=target))])
    plain, drafted = (engine.generate(PROMPT, max_tokens=5, draft=draft) for draft in (False, True))
    assert [*plain.tokens] == [*drafted.tokens] == ANSWER
    assert [len(step.emitted) for step in plain.record.steps] == [1] * 5
    # The third guess is wrong, so the first step emits three; of the two places left the second is beyond the limit.
    assert [len(step.emitted) for step in drafted.record.steps] == [3, 2]


@pytest.mark.real
@needs_native
def test_a_replay_accepts_what_the_real_target_accepts():
    """On the real target itself the replay must go as the real run does, step by step."""
    import augury

    engine = augury.load("smollm2-135m", drafters="none", max_num_seqs=1, measure=False, max_model_len=512)
    prompt = engine.render("Name three rivers of Europe.")
    answer = engine.generate(prompt, max_tokens=32, draft=False).tokens
    engine.close()
    record = recorded(engine.target, prompt, answer)
    assert record.right > 0.5
    assert 0.5 <= record.leads.min() < record.leads.max() <= 1.0
    steps = []
    for target in (engine.target, Replayed(engine.target, [record])):
        with Engine(target, [("self", Itself(target=target))], eos_ids=engine.eos_ids) as one:
            result = one.generate(prompt, max_tokens=32)
            assert result.tokens == answer
            steps.append([step.emitted for step in result.record.steps])
    assert steps[0] == steps[1]
    assert len(steps[0]) < len(answer)


@pytest.mark.real
@needs_native
def test_a_large_shape_says_what_the_small_model_said(monkeypatch):
    import augury

    monkeypatch.setattr(large, "profile", lambda target: _Slow((1, 65), np.array([100.0, 120.0]), 0.0))

    real = augury.load("smollm2-135m", drafters="none", max_num_seqs=1, measure=False, max_model_len=512)
    prompts = [Prompt("a", "qa", "Count from one to ten."), Prompt("b", "math", "What is 2 + 2?")]
    records = {prompt.id: record(real, real.render(prompt.text), 16) for prompt in prompts}
    kept = [*records.values(), warm_up(real, prompts)]
    target = Replayed(shaped(TINY, real.target.info.vocab_size, "tiny", threads=1), kept)
    ways = ["auto", "suffix,model:smollm2-135m,bits=4"]
    found = [*measure(real, target, ways, prompts, max_tokens=16, rounds=1)]
    pairs = [pair for pairs in found for pair in pairs]
    assert [pair.prompt.id for pair in pairs] == ["a", "a", "b", "b"]
    assert as_recorded(pairs, records) == 4
    assert all(pair.same for pair in pairs)
    assert len(kept[-1].answer) == WARM_UP_TOKENS
    asked = [{one.name for one in pair.drafted.figures.drafters if one.proposed} for pair in pairs]
    assert "self" in asked[0]
    assert "self" not in asked[1]
    assert "model" in asked[1]
    assert "model" not in asked[0]
    swapped = {"a": records["b"], "b": records["a"]}
    assert as_recorded(pairs, swapped) == 0


@pytest.mark.real
@needs_native
def test_the_command_prints_a_table_and_keeps_a_document(tmp_path, capsys):
    kept = tmp_path / "large.json"
    arguments = ["--kinds", "qa", "--limit", "1", "--max-tokens", "12", "--json", str(kept)]
    assert main(arguments, TINY) == 0
    out = capsys.readouterr().out
    assert "the answers are those of smollm2-135m, replayed" in out
    assert "2 of 2 pairs have the recorded tokens" in out
    assert "ms of a verify by rows: 1: " in out
    assert "floor: " in out
    drafters = [run["drafters"] for run in read(kept)["runs"]]
    assert drafters == ["auto", "suffix,prediction,grammar,model:smollm2-135m,bits=4"]
    assert json.loads(kept.read_text())["replayed"]["as_recorded"] == 2


def test_an_unknown_kind_is_named_before_anything_is_loaded(nothing_loaded, capsys):
    assert main(["--kinds", "verse"]) == 2
    assert "verse" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-tokens", "0"], "--max-tokens is 0; it must be 1 or more"),
        (["--drafters", "auto,sufix"], "suffix"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(nothing_loaded, capsys, arguments, said):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
