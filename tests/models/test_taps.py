"""Hidden states that are kept beside keys and values: of the same tokens the same, however they were committed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import random_block

from augury.errors import InputError
from augury.models.block import TorchForward
from augury.models.native import NativeForward, native_available
from augury.models.runner import Runner, capacity
from augury.models.target import Features, TargetInfo
from augury.tree import DraftTree, IntArray, Path

CONTEXT, VOCAB, WIDTH, LAYERS = 96, 97, 48, 3
TOKENS = np.random.default_rng(5).integers(0, VOCAB, 40).astype(np.int32)
KINDS = ["torch", *(["native"] if native_available() is None else [])]


def runner(kind: str, **changes: Any) -> Runner:
    config, weights = random_block(**{"max_position_embeddings": CONTEXT} | changes)
    rows = capacity(CONTEXT)
    forward = (
        NativeForward(config, weights, 2, rows, threads=2)
        if kind == "native"
        else TorchForward(config, weights, 2, rows, dtype=torch.float32)
    )
    return Runner(forward, TargetInfo("tiny", "", "", "bfloat16", VOCAB, CONTEXT, WIDTH, LAYERS, 0, 0, True, False), 2)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def known(target: Runner, features: Features, tokens: IntArray) -> Any:
    """Hidden states of tokens verified one by one."""
    slot = target.open()
    for token in tokens:
        target.verify([slot], [int(token)], [DraftTree.empty()])
        target.commit([slot], [Path((), 0)])
    found = features(slot, 0, len(tokens))
    target.release(slot)
    return found


def test_the_stream_in_front_of_the_first_layer_is_the_embedding_and_behind_the_last_makes_the_logits(
    kind: str,
) -> None:
    config, weights = random_block(max_position_embeddings=CONTEXT)
    target = runner(kind)
    features = target.tap([0, LAYERS])
    slot = target.open()
    rows = target.verify([slot], [int(TOKENS[0])], [DraftTree.chain(TOKENS[1:9], [0.5] * 8)])
    logits = rows.logits[0].copy()
    target.commit([slot], [Path(tuple(range(8)), 0)])
    found = features(slot, 0, 9).reshape(9, 2, WIDTH)
    assert found.dtype == np.float32
    embed = weights["embed"][torch.from_numpy(TOKENS[:9]).long()].bfloat16().float().numpy()
    assert np.array_equal(found[:, 0], embed)
    last = torch.from_numpy(found[:, 1])
    normed = last * torch.rsqrt(last.pow(2).mean(-1, keepdim=True) + config.norm_eps) * weights["final_norm"]
    head = weights["embed" if config.tied else "head"].bfloat16().float()
    assert np.abs((normed @ head.T).numpy() - logits).max() < 0.05 * np.abs(logits).max()


def test_a_prompt_a_chain_and_a_tree_leave_the_same(kind: str) -> None:
    target = runner(kind)
    features = target.tap([1, 2, LAYERS])
    alone = known(target, features, TOKENS[:30])
    slot = target.open()
    target.prefill(slot, TOKENS[:20])
    wrong = (TOKENS[21:24] + 1) % VOCAB
    tree = DraftTree.of(
        [*wrong.tolist(), *TOKENS[21:26].tolist()], [-1, 0, 1, -1, 3, 4, 5, 6], [0.5] * 8
    )  # the accepted rows lie behind refused ones, and are moved
    target.verify([slot], [int(TOKENS[20])], [tree])
    target.commit([slot], [Path((3, 4, 5, 6, 7), 0)])
    found = features(slot, 0, 26).reshape(26, 3, WIDTH)
    alone = alone.reshape(30, 3, WIDTH)
    close = np.array_equal if kind == "native" else (lambda a, b: np.allclose(a, b, atol=0.05, rtol=0.02))
    assert close(found, alone[:26])
    target.truncate(slot, 22)
    assert np.array_equal(features(slot, 0, 22), found[:22].reshape(22, -1))
    with pytest.raises(InputError, match="slot 0 holds 22 tokens, there are no hidden states of 0 to 23"):
        features(slot, 0, 23)
    target.verify([slot], [int(TOKENS[22])], [DraftTree.chain(TOKENS[23:26], [0.5] * 3)])
    target.commit([slot], [Path((0, 1, 2), 0)])
    assert close(features(slot, 0, 26).reshape(26, 3, WIDTH), alone[:26])


def test_slots_do_not_see_each_other(kind: str) -> None:
    target = runner(kind)
    features = target.tap([2])
    slots = target.open(), target.open()
    for slot, tokens in zip(slots, (TOKENS[:12], TOKENS[12:24]), strict=True):
        target.prefill(slot, tokens)
    target.verify(slots, [1, 2], [DraftTree.chain([3], [0.5]), DraftTree.empty()])
    target.commit(slots, [Path((0,), 0), Path((), 0)])
    both = [features(slot, 0, target.length(slot)) for slot in slots]
    for slot in slots:
        target.release(slot)
    for found, tokens in zip(both, ([*TOKENS[:12], 1, 3], [*TOKENS[12:24], 2]), strict=True):
        again = known(target, features, np.array(tokens, np.int32))
        assert np.array_equal(found, again) if kind == "native" else np.allclose(found, again, atol=0.05, rtol=0.02)


def test_kept_hidden_states_change_no_logit(kind: str) -> None:
    found = []
    for taps in (False, True):
        target = runner(kind)
        if taps:
            target.tap([0, 1, 2, 3])
        slot = target.open()
        target.prefill(slot, TOKENS[:17])
        found.append(target.verify([slot], [5], [DraftTree.chain([6, 7], [0.5, 0.5])]).logits[0].tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("layers", [[], [-1], [2, 1], [1, 1], [4]])
def test_what_are_no_layers_is_refused(kind: str, layers: list[int]) -> None:
    with pytest.raises(InputError, match=r"taps are .*; they must be ascending numbers of 0 to 3"):
        runner(kind).tap(layers)


def test_several_may_tap_layers_of_their_own(kind: str) -> None:
    target = runner(kind)
    one, other, same = target.tap([1, 3]), target.tap([0, 1]), target.tap((3,))
    found = known(target, one, TOKENS[:6]), known(target, other, TOKENS[:6]), known(target, same, TOKENS[:6])
    fresh = runner(kind)
    every = known(fresh, fresh.tap([0, 1, 3]), TOKENS[:6]).reshape(6, 3, WIDTH)
    for features, places in zip(found, ([1, 2], [0, 1], [2]), strict=True):
        assert np.array_equal(features, every[:, places].reshape(6, -1))


@pytest.mark.skipif("native" not in KINDS, reason="no native forward here")
def test_a_cheaper_forward_keeps_nothing() -> None:
    target = runner("native")
    features = target.tap([1])
    guess = target.shorten(4, range(LAYERS))
    slot = target.open()
    target.prefill(slot, TOKENS[:8])
    before = features(slot, 0, 8)
    guess(slot, 0, np.array([3], np.int32))
    assert np.array_equal(features(slot, 0, 8), before)
    assert not target.forward._tapped[slot, 8:].any()
