"""What is learnt is what runs, for heads that guess all places at once: the net in training against the drafter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_ride import IDS, SMALL, TAPS, made_head
from test_taps import TOKENS, WIDTH, runner

from augury.drafters.ahead import Ahead
from augury.drafters.block import Block
from augury.drafters.medusa import Medusa
from augury.models.heads import Head, shapes, write_head
from augury.models.target import Target
from augury.train.eagle import EagleNet
from augury.train.learning import Batch, HeadNet, logits, loss
from augury.train.medusa import MedusaNet

T, PLACES, MASK = 30, 4, 7
NETS: dict[str, type[EagleNet | MedusaNet]] = {"block": EagleNet, "medusa": MedusaNet}


@pytest.fixture(params=NETS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(kind: str) -> tuple[HeadNet, Target, int, Batch]:
    """A net, a target, a slot that holds a conversation of its own, and that as a batch."""
    target = runner("torch")
    features = target.tap(TAPS)
    slot = target.open()
    target.prefill(slot, TOKENS[: T + 2])
    forward: Any = target.forward
    torch.manual_seed(1)
    config = replace(made_head().config, kind=kind, guesses=PLACES, mask_token=MASK)
    net = NETS[kind](config, forward.embed.float(), forward.words(IDS).float(), forward.final_norm)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
            parameter.copy_(parameter.bfloat16().float())
    hidden = torch.from_numpy(features(slot, 0, T))
    tokens = torch.from_numpy(TOKENS[: T + 2].astype(np.int64))
    laws = torch.randn(1, T, WIDTH, generator=torch.Generator().manual_seed(3))
    known = torch.ones(1, T)
    return net, target, slot, Batch(tokens[None], hidden[None], laws, known, known.bool())


def drafter(net: HeadNet, target: Target, directory: Path) -> Ahead:
    write_head(directory, Head(net.config, net.tensors(), IDS))
    return (Block if net.config.kind == "block" else Medusa)(str(directory), target=target)


def test_every_step_of_training_is_a_place_of_drafting(kind: str, tmp_path: Path) -> None:
    """Behind long texts and short ones, in any order, of fewer places too."""
    net, target, slot, batch = made(kind)
    ahead = drafter(net, target, tmp_path / kind).ahead
    with torch.no_grad():
        found = torch.stack([logits(net, normed)[0] for normed in net(batch, PLACES)]).numpy()
    for start, places in ((7, PLACES), (T - PLACES, PLACES), (0, PLACES), (12, 2), (3, 1), (13, PLACES)):
        text: Any = SimpleNamespace(slot=slot, tenant="", length=start + 2, tokens=TOKENS[: start + 2])
        drafted = ahead(text, places)
        assert drafted.shape == (places, SMALL)
        learnt = np.array([found[step, start + step] for step in range(places)])
        assert np.abs(learnt - drafted).max() < 1e-3
        apart = [np.abs(a - b).max() for i, a in enumerate(learnt) for b in learnt[:i]]
        assert all(x > 0.02 for x in apart), "places that say the same would hide that one stands for another"


def test_what_is_learnt_is_what_the_file_asks_for(kind: str) -> None:
    net, *_ = made(kind)
    others = {"d2t", "t2d", "lm_head.weight", "embed_tokens.weight"}
    asked = {name: shape for name, (shape, _) in shapes(net.config, SMALL).items() if name not in others}
    tensors = net.tensors()
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == asked
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    learnt = sum(parameter.numel() for parameter in net.parameters())
    assert sum(tensor.numel() for tensor in tensors.values()) == learnt


def test_padding_and_rows_whose_law_is_not_known_teach_nothing(kind: str) -> None:
    net, _, _, batch = made(kind)
    before = loss(net, batch, PLACES).item()
    batch.weight[0, 20:] = 0.0
    short = loss(net, batch, PLACES).item()
    assert short != before
    batch.tokens[0, 22:] = 1
    batch.features[0, 20:] = 9.0
    batch.laws[0, 20:] = -5.0
    assert loss(net, batch, PLACES).item() == short


def test_every_part_of_it_learns(kind: str) -> None:
    net, _, _, batch = made(kind)
    loss(net, batch, PLACES).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in net.parameters())
