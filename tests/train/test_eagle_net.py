"""What is learnt is what runs: the head in training against the head on board, step by step."""

from __future__ import annotations

import numpy as np
import torch
from test_ride import HD, HEADS, KV, TAPS, WIDTH, F, made_head
from test_taps import TOKENS, VOCAB, runner

from augury.models.heads import Head, HeadConfig
from augury.train.eagle import EagleNet
from augury.train.learning import Batch, hits, logits, loss

IDS = np.sort(np.random.default_rng(2).permutation(VOCAB)[:23]).astype(np.int32)
T, STEPS = 30, 4


def on_board():
    """A net, the same head on a target, and a conversation of the target's."""
    target = runner("torch")
    features = target.tap(TAPS)
    slot = target.open()
    target.prefill(slot, TOKENS[: T + 2])
    forward = target.forward
    config = made_head().config
    torch.manual_seed(1)
    net = EagleNet(config, forward.embed.float(), forward.words(IDS).float(), forward.final_norm)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
            parameter.copy_(parameter.bfloat16().float())
    ride = target.attach(Head(config, net.tensors(), IDS))
    hidden = torch.from_numpy(features(slot, 0, T))
    tokens = torch.from_numpy(TOKENS[: T + 2].astype(np.int64))
    laws = torch.randn(1, T, WIDTH, generator=torch.Generator().manual_seed(3))
    every = torch.ones(1, T)
    return net, ride, slot, Batch(tokens[None], hidden[None], laws, every, every.bool())


def test_every_step_of_training_is_a_step_of_drafting():
    net, ride, slot, batch = on_board()
    with torch.no_grad():
        found = [logits(net, normed)[0].numpy() for normed in net(batch, STEPS)]
    given, tokens = batch.features[0].numpy(), TOKENS[: T + 2]
    whole, left = (x.copy() for x in ride(slot, 0, tokens[1 : T + 1], given, True, T))
    assert np.abs(found[0] - whole).max() < 1e-3
    for start in (0, 7, T - STEPS):
        ride(slot, 0, tokens[1 : start + 2], given[: start + 1], True, 1)
        feature = left[start : start + 1]
        for step in range(1, STEPS):
            row = start + step
            scores, feature = (x.copy() for x in ride(slot, row, tokens[row + 1 : row + 2], feature, False, 1))
            assert np.abs(found[step][row] - scores[0]).max() < 1e-3


def test_hits_are_what_a_chain_would_have_guessed():
    net, ride, slot, batch = on_board()
    ids = torch.from_numpy(IDS.astype(np.int64))
    # The text becomes what the head guesses behind rows 3 and 12, twice each, so that there are hits at all.
    given = batch.features[0].numpy()
    for start in (3, 12):
        for step in range(2):
            tokens = batch.tokens[0].numpy().astype(np.int32)
            ride(slot, 0, tokens[1 : start + 2], given[: start + 1], True, 1)
            scores, feature = ride(slot, start, tokens[start + 1 : start + 2], given[start : start + 1], True, 1)
            for i in range(step):
                row = start + 1 + i
                scores, feature = ride(slot, row, tokens[row + 1 : row + 2], feature.copy(), False, 1)
            batch.tokens[0, start + step + 2] = ids[int(scores[-1].argmax())]
    right, chains = hits(net, batch, ids, STEPS)
    assert right[0, 3, :2].all()
    assert right[0, 12, :2].all()
    assert chains[0].tolist() == [True] * (T - STEPS + 1) + [False] * (STEPS - 1)
    for start in range(T - STEPS + 1):
        tokens = batch.tokens[0].numpy().astype(np.int32)
        scores, feature = ride(slot, 0, tokens[1 : start + 2], given[: start + 1], True, 1)
        for i in range(STEPS):
            hit = IDS[int(scores[-1].argmax())] == tokens[start + 2 + i]
            assert bool(right[0, start, i]) == hit
            if not hit:
                assert not right[0, start, i:].any()
                break
            row = start + 1 + i
            scores, feature = ride(slot, row, tokens[row + 1 : row + 2], feature[-1:].copy(), False, 1)


def test_it_learns_a_law_it_can_know():
    """Half a minute of nothing but overfitting: the loss falls to the entropy of the laws."""
    net, _, _, batch = on_board()
    optimiser = torch.optim.AdamW(net.parameters(), lr=5e-3)
    with torch.no_grad():
        law = logits(net, batch.laws).softmax(-1)
        entropy = float(-(law * law.log()).sum(-1).mean())
    first = loss(net, batch, 3).item()
    for _ in range(150):
        optimiser.zero_grad()
        value = loss(net, batch, 3)
        value.backward()
        optimiser.step()
    assert value.item() - entropy < 0.2 * (first - entropy)


def test_padding_and_rows_whose_law_is_not_known_teach_nothing():
    net, _, _, batch = on_board()
    batch.weight[0, 20:] = 0.0
    before = loss(net, batch, 3).item()
    batch.tokens[0, 22:] = 1
    batch.features[0, 20:] = 9.0
    batch.laws[0, 20:] = -5.0
    assert loss(net, batch, 3).item() == before


def test_a_target_whose_logits_are_capped_teaches_the_capped_law():
    net, _, _, batch = on_board()
    plain = loss(net, batch, 1).item()
    net.softcap = 0.5
    with torch.no_grad():
        law = (0.5 * torch.tanh(logits(net, batch.laws) / 0.5)).softmax(-1)
        guessed = logits(net, net(batch, 1)[0]).log_softmax(-1)
    assert abs(loss(net, batch, 1).item() + (law * guessed).sum(-1).mean().item()) < 1e-5
    assert loss(net, batch, 1).item() != plain


def test_the_shape_is_that_of_the_file():
    net, *_ = on_board()
    head = made_head()
    assert {name: tuple(t.shape) for name, t in net.tensors().items()} == {
        name: tuple(t.shape) for name, t in head.weights.items()
    }
    assert isinstance(head.config, HeadConfig)
    assert (HEADS * HD, KV * HD, F) == (64, 32, 80)
