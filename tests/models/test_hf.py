"""Models through transformers: right rows, right rollbacks, and what cannot forget is refused at load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import VOCAB

from augury.errors import CannotRollBack, InputError, ModelError
from augury.models.hf import TransformersForward
from augury.models.load import load_target
from augury.models.runner import Runner
from augury.tree import DraftTree
from augury.tree import Path as Accepted

SMALL = {"vocab_size": VOCAB, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None}
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {  # HF family, switches, whether it takes trees
    "gpt2": ("gpt2", SMALL | {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 128}, True),
    "gpt_neox": ("gpt_neox", SMALL | {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
                                      "intermediate_size": 80, "max_position_embeddings": 128}, True),
    "bloom": ("bloom", SMALL | {"hidden_size": 48, "n_layer": 2, "n_head": 4}, False),
    "mistral": ("mistral", SMALL | {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
                                    "num_key_value_heads": 2, "intermediate_size": 80, "sliding_window": 12,
                                    "max_position_embeddings": 128}, False),
    "gemma2": ("gemma2", SMALL | {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
                                  "num_key_value_heads": 2, "intermediate_size": 80, "sliding_window": 12,
                                  "max_position_embeddings": 128}, False),
}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 256, 60).astype(np.int32)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, made_model: Any) -> tuple[str, Path]:
    family, changes, _ = MODELS[request.param]
    return request.param, made_model(family, plain=True, **changes)


@pytest.fixture(scope="module")
def target(model: tuple[str, Path]) -> Runner:
    loaded = load_target(model[1], dtype="float32", runner="transformers", max_num_seqs=3).target
    assert isinstance(loaded, Runner)
    return loaded


@pytest.fixture
def slot(target: Runner) -> Any:
    slot = target.open()
    yield slot
    target.release(slot)


def close(rows: Any, wanted: Any) -> None:
    np.testing.assert_allclose(rows, wanted, atol=1e-4, rtol=1e-4)


def test_what_it_is(model: tuple[str, Path], target: Runner) -> None:
    name, _ = model
    family, _, trees = MODELS[name]
    assert target.info.family == family
    assert target.info.trees is trees
    assert not target.info.exact
    assert target.info.runner == "transformers float32 cpu (as asked)"
    assert target.info.vocab_size == VOCAB
    assert target.info.weight_bytes <= target.info.parameters * 4


def test_rows_are_those_of_the_whole_text(model: Any, target: Runner, slot: int, reference: Any) -> None:
    wanted = reference(model[1])(TOKENS)
    target.prefill(slot, TOKENS[:13])
    target.prefill(slot, TOKENS[13:30])
    rows = target.verify([slot], [int(TOKENS[30])], [DraftTree.chain(TOKENS[31:], [0.5] * 29)])
    close(rows.logits[0], wanted[30:])
    assert rows.hidden is not None
    assert rows.hidden[0].shape == (30, 48)


def test_rejected_tokens_are_forgotten(model: Any, target: Runner, slot: int, reference: Any) -> None:
    target.prefill(slot, TOKENS[:20])
    target.verify([slot], [5], [DraftTree.chain([1, 2, 3, 4], [0.5] * 4)])
    target.commit([slot], [Accepted((0, 1), 9)])
    row = target.verify([slot], [9], [DraftTree.empty()]).logits[0][0]
    close(row, reference(model[1])([*TOKENS[:20], 5, 1, 2, 9])[-1])
    target.truncate(slot, 7)
    row = target.verify([slot], [3], [DraftTree.empty()]).logits[0][0]
    close(row, reference(model[1])([*TOKENS[:7], 3])[-1])


def test_requests_do_not_mix(model: Any, target: Runner, reference: Any) -> None:
    slots = [target.open(), target.open()]
    for slot, n in zip(slots, (9, 25), strict=True):
        target.prefill(slot, TOKENS[:n])
    rows = target.verify(slots, [1, 2], [DraftTree.chain([3], [0.5]), DraftTree.empty()]).logits
    close(rows[0], reference(model[1])([*TOKENS[:9], 1, 3])[-2:])
    close(rows[1], reference(model[1])([*TOKENS[:25], 2])[-1:])
    for slot in slots:
        target.release(slot)
    fresh = target.open()
    assert all(kept.shape[0] == 0 for kept in target.snapshot(fresh))
    target.release(fresh)


def test_trees(model: Any, target: Runner, slot: int, reference: Any) -> None:
    target.prefill(slot, TOKENS[:20])
    tree = DraftTree.of([5, 9, 5, 7, 1], [-1, -1, 0, 0, 1], [0.5] * 5)
    if not target.info.trees:
        with pytest.raises(InputError, match="verifies chains only"):
            target.verify([slot], [8], [tree])
        return
    rows = target.verify([slot], [8], [tree]).logits[0]
    for row in range(6):
        close(rows[row], reference(model[1])([*TOKENS[:20], 8, *tree.tokens[tree.path(row - 1)]])[-1])
    target.commit([slot], [Accepted((1, 4), 3)])
    after = target.verify([slot], [3], [DraftTree.empty()]).logits[0][0]
    close(after, reference(model[1])([*TOKENS[:20], 8, 9, 1, 3])[-1])
    fresh = target.open()
    target.prefill(fresh, np.asarray([*TOKENS[:20], 8, 9, 1], np.int32))
    for kept, new in zip(target.snapshot(slot), target.snapshot(fresh), strict=True):
        assert kept.shape[0] == 23
        close(kept, new)
    target.release(fresh)


def test_drafts_reach_beyond_the_last_position(model: Any, target: Runner, slot: int) -> None:
    context = target.info.context
    if context > 1000:
        context = 100  # a model without a table of positions has no edge
    target.prefill(slot, np.resize(TOKENS, context - 1))
    rows = target.verify([slot], [1], [DraftTree.chain(np.resize(TOKENS, 64), [0.5] * 64)]).logits[0]
    assert np.isfinite(rows[0]).all()


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, "mamba has .* layers"),
        ("lfm2", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "intermediate_size": 64, "layer_types": ["conv", "full_attention"]}, "lfm2 has conv layers"),
    ],
)  # fmt: skip
def test_what_cannot_forget_is_refused(made_model: Any, family: str, changes: dict[str, Any], named: str) -> None:
    path = made_model(family, plain=True, **SMALL | changes)
    with pytest.raises(CannotRollBack, match=named):
        load_target(path, dtype="float32")


class Leaky(torch.nn.Module):
    """A model with a cache that is cut in vain: it also remembers the sum of all tokens it ever saw."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.config, self.dtype, self.device = inner, inner.config, inner.dtype, inner.device
        self.seen = 0.0

    def forward(self, input_ids: Any, cache: Any = None, position_ids: Any = None, **rest: Any) -> Any:
        out = self.inner(input_ids=input_ids, cache=cache, position_ids=position_ids, **rest)
        self.seen += float(input_ids.sum())
        out.logits = out.logits + torch.sin(torch.arange(VOCAB) * self.seen) * out.logits.std()
        return out


def test_a_hidden_state_is_found_out(made_model: Any) -> None:
    from transformers import AutoModelForCausalLM

    family, changes, _ = MODELS["gpt2"]
    inner = AutoModelForCausalLM.from_pretrained(made_model(family, plain=True, **changes)).eval()
    assert TransformersForward(inner, 1, 128).trees
    with pytest.raises(CannotRollBack, match=r"gpt2 \(Leaky\) does not forget"):
        TransformersForward(Leaky(inner), 1, 128)


def test_families_beyond_the_block_come_here_by_themselves(made_model: Any) -> None:
    family, changes, _ = MODELS["gpt2"]
    info = load_target(made_model(family, plain=True, **changes)).target.info
    assert info.runner.startswith("transformers bfloat16 cpu (model_type 'gpt2' is not run by the block")
    with pytest.raises(ModelError, match=r"runner torch cannot run .* 'gpt2'"):
        load_target(made_model(family, plain=True, **changes), runner="torch")


def test_code_beside_the_weights_is_not_run(made_model: Any, tmp_path: Path) -> None:
    family, changes, _ = MODELS["gpt2"]
    for file in made_model(family, plain=True, **changes).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "strange", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ModelError, match="transformers cannot load") as refused:
        load_target(tmp_path)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


def test_context(made_model: Any) -> None:
    family, changes, _ = MODELS["gpt2"]
    path = made_model(family, plain=True, **changes)
    assert load_target(path, max_model_len=20).target.info.context == 20
    with pytest.raises(InputError, match="between 1 and 128"):
        load_target(path, max_model_len=129)
