"""A draft head on a model: against plain torch written from the paper's picture, and in pieces as in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_taps import CONTEXT, KINDS, TOKENS, VOCAB, WIDTH, runner

from augury.errors import ModelError
from augury.models.heads import Head, HeadConfig
from augury.models.target import Rider
from augury.tree import FloatArray

TAPS, SMALL, F, HEADS, KV, HD = (0, 1, 2), 23, 80, 4, 2, 16
IDS = np.sort(np.random.default_rng(2).permutation(VOCAB)[:SMALL]).astype(np.int32)


def made_head(seed: int = 0, **changes: Any) -> Head:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=draw) * shape[-1] ** -0.5 * 1.3).bfloat16()

    def norm() -> torch.Tensor:
        return (1 + 0.3 * torch.randn(WIDTH, generator=draw)).bfloat16()

    d = WIDTH
    weights = {
        "fc.weight": normal(d, 3 * d),
        "layers.0.input_layernorm.weight": norm(),
        "layers.0.hidden_norm.weight": norm(),
        "layers.0.self_attn.q_proj.weight": normal(HEADS * HD, 2 * d),
        "layers.0.self_attn.k_proj.weight": normal(KV * HD, 2 * d),
        "layers.0.self_attn.v_proj.weight": normal(KV * HD, 2 * d),
        "layers.0.self_attn.o_proj.weight": normal(d, HEADS * HD),
        "layers.0.post_attention_layernorm.weight": norm(),
        "layers.0.mlp.gate_proj.weight": normal(F, d),
        "layers.0.mlp.up_proj.weight": normal(F, d),
        "layers.0.mlp.down_proj.weight": normal(d, F),
        "norm.weight": norm(),
    }
    config = {
        "kind": "eagle", "hidden_size": d, "intermediate_size": F, "heads": HEADS, "kv_heads": KV, "head_dim": HD,
        "norm_eps": 1e-5, "rope_theta": 1e4, "taps": TAPS, "vocab_size": VOCAB, "target": "tiny", "target_digest": "",
    }  # fmt: skip
    return Head(HeadConfig(**config | changes), weights, IDS)


def plain(head: Head, embed: torch.Tensor, words: torch.Tensor, tokens: Any, given: FloatArray) -> Any:
    """(logits, features) of a chain from position 0 of which the first rows are fused, in double precision."""
    w = {name: tensor.double() for name, tensor in head.weights.items()}

    def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight

    def turned(x: torch.Tensor) -> torch.Tensor:
        angle = torch.arange(len(x)).double()[:, None] * 1e4 ** (-torch.arange(0, HD, 2).double() / HD)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., : HD // 2], x[..., HD // 2 :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    x = torch.from_numpy(given).double() @ w["fc.weight"].T
    e = embed[torch.from_numpy(tokens).long()].double()
    both = torch.cat([rms(e, w["layers.0.input_layernorm.weight"]), rms(x, w["layers.0.hidden_norm.weight"])], -1)
    q, k, v = ((both @ w[f"layers.0.self_attn.{n}_proj.weight"].T).reshape(len(x), -1, HD) for n in "qkv")
    q, k = turned(q), turned(k).repeat_interleave(HEADS // KV, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * HD**-0.5
    scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf).softmax(-1)
    out = torch.einsum("hij,jhd->ihd", scores, v.repeat_interleave(HEADS // KV, 1)).reshape(len(x), -1)
    x = x + out @ w["layers.0.self_attn.o_proj.weight"].T
    y = rms(x, w["layers.0.post_attention_layernorm.weight"])
    gate, up = y @ w["layers.0.mlp.gate_proj.weight"].T, y @ w["layers.0.mlp.up_proj.weight"].T
    x = x + (torch.nn.functional.silu(gate) * up) @ w["layers.0.mlp.down_proj.weight"].T
    return rms(x, w["norm.weight"]) @ words.double().T, x


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_is_what_the_paper_draws(kind: str, tied: bool) -> None:
    target, head = runner(kind, tie_word_embeddings=tied), made_head()
    features, ride = target.tap(TAPS), target.attach(head)
    slot = target.open()
    target.prefill(slot, TOKENS[:20])
    given = features(slot, 0, 20)
    logits, left = ride(slot, 0, TOKENS[1:21], given, True, 20)
    forward = target.forward
    expected, state = plain(head, forward.embed, forward.words(IDS), TOKENS[1:21], given)
    assert logits.shape == (20, SMALL)
    for found, wanted in ((logits, expected), (left, state)):
        assert np.abs(found - wanted.numpy()).max() < 0.04 * np.abs(wanted.numpy()).max()


def test_words_are_the_rows_that_the_target_itself_multiplies(kind: str) -> None:
    target = runner(kind, tie_word_embeddings=False)
    features = target.tap([3])
    slot = target.open()
    row = target.verify([slot], [3], [target_empty()]).logits[0][0].copy()
    target.commit([slot], [path_empty()])
    from tiny import random_block

    config, weights = random_block(max_position_embeddings=CONTEXT, tie_word_embeddings=False)
    last = torch.from_numpy(features(slot, 0, 1)).reshape(-1)
    normed = last * torch.rsqrt(last.pow(2).mean() + config.norm_eps) * weights["final_norm"]
    found = (target.forward.words(IDS).float() @ normed).numpy()
    assert np.abs(found - row[IDS]).max() < 0.03 * np.abs(row).max()


def aboard(kind: str, n: int) -> tuple[int, FloatArray, Rider]:
    """A slot that holds n tokens, their hidden states, and a head on its target."""
    target = runner(kind)
    features, ride = target.tap(TAPS), target.attach(made_head())
    slot = target.open()
    target.prefill(slot, TOKENS[:n])
    return slot, features(slot, 0, n), ride


def test_in_pieces_and_after_going_back_a_head_says_the_same(kind: str) -> None:
    slot, given, ride = aboard(kind, 20)
    whole, left = (x.copy() for x in ride(slot, 0, TOKENS[1:21], given, True, 20))
    ride(slot, 0, TOKENS[1:9], given[:8], True, 0)
    ride(slot, 8, TOKENS[1:4], given[:3], True, 3)  # forgotten
    ride(slot, 8, TOKENS[9:10], left[7:8].copy(), False, 1)  # a guess, forgotten too
    logits, features_left = ride(slot, 8, TOKENS[9:21], given[8:], True, 12)
    close = np.array_equal if kind == "native" else (lambda a, b: np.allclose(a, b, atol=1e-3, rtol=1e-3))
    assert close(logits, whole[8:])
    assert close(features_left, left[8:])


def test_a_forest_is_so_many_chains(kind: str) -> None:
    """Two trees of guesses behind one cache: every row is what it is in a chain, and logits come of the last rows."""
    slot, given, ride = aboard(kind, 9)
    _, left = (x.copy() for x in ride(slot, 0, TOKENS[1:10], given, True, 1))
    parents = np.array([-1, 0, -1, 2, 0, 3], np.int32)
    tokens = TOKENS[10:16].copy()
    fed = np.random.default_rng(0).standard_normal((6, WIDTH)).astype(np.float32)
    fed[parents < 0] = left[-1]
    logits, found = (x.copy() for x in ride(slot, 9, tokens, fed, False, 2, parents))
    assert logits.shape == (2, SMALL)
    close = np.array_equal if kind == "native" else (lambda a, b: np.allclose(a, b, atol=1e-3, rtol=1e-3))
    for row in range(6):
        path = [row]
        while parents[path[0]] >= 0:
            path.insert(0, int(parents[path[0]]))
        alone, own = ride(slot, 9, tokens[path], fed[path], False, 1)
        assert close(own[-1], found[row])
        assert row < 4 or close(alone[0], logits[row - 4])


def test_its_own_feature_takes_the_place_of_the_fused_one(kind: str) -> None:
    """Row 1 fed with what row 0 left differs from row 1 fed with the target's hidden states, and repeats itself."""
    slot, given, ride = aboard(kind, 6)
    _, left = (x.copy() for x in ride(slot, 0, TOKENS[1:6], given[:5], True, 5))
    alone = ride(slot, 5, TOKENS[6:7], left[4:5], False, 1)[0].copy()
    fused = ride(slot, 5, TOKENS[6:7], given[5:6], True, 1)[0].copy()
    again = ride(slot, 5, TOKENS[6:7], left[4:5], False, 1)[0].copy()
    assert np.array_equal(alone, again)
    assert np.abs(alone - fused).max() > 0.1


def test_the_target_says_the_same_with_a_head_on_board(kind: str) -> None:
    rows = []
    for on_board in (False, True):
        target = runner(kind)
        slot = target.open()
        target.prefill(slot, TOKENS[:9])
        if on_board:
            target.attach(made_head())(slot, 0, TOKENS[:3], np.ones((3, 3 * WIDTH), np.float32), True, True)
        rows.append(target.verify([slot], [5], [target_empty()]).logits[0].tobytes())
    assert rows[0] == rows[1]


def test_a_head_of_another_target_is_refused(kind: str) -> None:
    target = runner(kind)
    target.info = type(target.info)(**{**vars(target.info), "digest": "a" * 32})
    target.attach(made_head(target_digest="a" * 32))
    with pytest.raises(ModelError, match="the head trained for 'tiny' does not fit this target tiny"):
        target.attach(made_head(target_digest="b" * 32))


def target_empty() -> Any:
    from augury.tree import DraftTree

    return DraftTree.empty()


def path_empty() -> Any:
    from augury.tree import Path

    return Path((), 0)
