"""Models the runner does not know, through transformers."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import VOCAB, byte_tokenizer, randomise

from augury.engine.engine import Engine
from augury.errors import CannotRollBack, InputError
from augury.models.load import load_target
from augury.sampling import Sampling
from augury.tree import DraftTree, Path

transformers = pytest.importorskip("transformers")


def saved(model, folder):
    randomise(model, 3)
    model.eval().save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=256, eos_token_id=257
    )
    return saved(transformers.GPT2LMHeadModel(config), tmp_path_factory.mktemp("gpt2"))


def test_another_family_goes_through_transformers_and_says_why(gpt2):
    info = load_target(gpt2, dtype="float32").target.info
    assert info.runner.startswith("transformers float32 cpu (")
    assert "gpt2" in info.runner
    assert (info.trees, info.exact, info.context) == (False, False, 128)


def test_chains_and_roll_back_equal_a_fresh_prefill(gpt2):
    target = load_target(gpt2, dtype="float32", max_num_seqs=2).target
    tokens = np.arange(40, dtype=np.int32) * 7 % 250
    slot = target.open()
    target.prefill(slot, tokens[:9])
    for path in (Path((0, 1), 5), Path((), 5), Path((0, 1, 2, 3), 5)):
        begin = target.length(slot)
        chain = DraftTree.chain(tokens[begin + 1 : begin + 5], [0.5] * 4)
        rows = target.verify([slot], [int(tokens[begin])], [chain]).logits[0]
        assert rows.shape == (5, VOCAB)
        target.commit([slot], [path])
    fresh = target.open()
    target.prefill(fresh, tokens[: target.length(slot)])
    for a, b in zip(target.snapshot(slot), target.snapshot(fresh), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    target.truncate(slot, 0)
    assert target.length(slot) == 0
    with pytest.raises(InputError, match="chains only"):
        target.verify([slot], [1], [DraftTree.of([1, 2], [-1, -1], [0.5, 0.4])])


def test_drafted_equals_plain(gpt2):
    from augury.drafters import make

    loaded = load_target(gpt2, dtype="float32")
    engine = Engine(loaded.target, [(n, make(n)) for n in ("suffix", "ngram")])
    prompt = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    for sampling in (Sampling(), Sampling(temperature=0.8, seed=4)):
        plain = engine.generate(prompt, sampling, max_tokens=60, draft=False)
        drafted = engine.generate(prompt, sampling, max_tokens=60)
        assert drafted.tokens == plain.tokens
        assert drafted.record.drafted > 0


def test_recurrent_models_are_refused_at_load(tmp_path):
    config = transformers.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=8)
    with pytest.raises(CannotRollBack, match="linear_attention"):
        load_target(saved(transformers.MambaForCausalLM(config), tmp_path))
