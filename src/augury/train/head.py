"""From a target to a head on disk: collect, split, fit, write. A directory holds it all and can be gone on with.

``DIR/data`` has the collected text, which heads of all kinds learn from, ``DIR/KIND-state.safetensors`` what fitting
learnt so far, ``DIR/KIND`` the head itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from augury.errors import InputError
from augury.models.forward import Rides
from augury.models.heads import Head, HeadConfig, write_head
from augury.models.kinds import Kind, check_steps
from augury.models.load import Loaded
from augury.models.runner import Runner
from augury.train.eagle import EagleNet
from augury.train.fit import HELD_OUT, Fit, Recipe, Told, batch_of, is_greedy, read, vocabulary
from augury.train.invent import LONGEST
from augury.train.learning import HeadNet
from augury.train.medusa import MedusaNet
from augury.train.shards import Conversation, Origin, Shard, existing
from augury.tree import IntArray


def default_taps(layers: int) -> tuple[int, int, int]:
    """Layers whose input a head reads: low, middle and the last (EAGLE-3, section 3.1; the last knows most)."""
    if layers < 4:
        raise InputError(f"a target of {layers} layers has no three to read hidden states from; it needs 4 or more")
    return min(2, layers // 2 - 1), layers // 2, layers - 1


def head_config(loaded: Loaded, eps: float, kind: Kind, taps: Sequence[int], inner: int, steps: int) -> HeadConfig:
    """Shape of a head for a target: attention heads of 64, as many as fill its width; ``eps`` is of its norms."""
    info = loaded.target.info
    head_dim = 64
    heads = max(1, round(info.hidden_size / head_dim))
    return HeadConfig(
        kind=kind,
        hidden_size=info.hidden_size,
        intermediate_size=inner,
        heads=heads,
        kv_heads=next(n for n in (3, 2, 1) if heads % n == 0),
        head_dim=head_dim,
        norm_eps=eps,
        rope_theta=1e5,
        taps=tuple(taps),
        vocab_size=info.vocab_size,
        target=info.name,
        target_digest=info.digest,
        guesses=1 if kind == "eagle" else steps,
        mask_token=next(iter(loaded.eos_ids), 0) if kind == "block" else 0,
    )


def fit_head(
    loaded: Loaded,
    directory: Path,
    *,
    kind: Kind,
    taps: Sequence[int],
    recipe: Recipe,
    drafted: int,
    inner: int,
    seed: int,
    shards: int | None = None,
    device: str = "cpu",
) -> Iterator[Told]:
    """Fit a head to the shards in ``directory/data`` and write it after every pass.

    Args:
        loaded: the target; its weights are read, it computes nothing.
        directory: with data.
        kind: of the head.
        taps: as the data were collected.
        recipe: of fitting; a head that guesses all places at once guesses ``recipe.steps``.
        drafted: tokens that the head can guess.
        inner: width of its MLP.
        seed: of the data, and of where learning begins.
        shards: those numbered below it are learnt from; all when None.
        device: that fits.

    Raises:
        InputError: nothing can ride on this target, or the data are of something else.
    """
    check_steps(kind, recipe.steps)
    info = loaded.target.info
    forward = loaded.target.forward if isinstance(loaded.target, Runner) else None
    if not isinstance(forward, Rides):
        raise InputError(f"no draft head can ride on {info.name} under {info.runner}")
    origin = Origin.of(info, (*taps, info.layers), seed)
    found = existing(directory / "data").items()
    talks = read([Shard(path, origin) for n, path in found if shards is None or n < shards], LONGEST)
    config = head_config(loaded, forward.config.norm_eps, kind, taps, inner, recipe.steps)
    held_out, learnt = _split(talks, forward, config.norm_eps)
    ids = vocabulary(
        learnt, info.vocab_size, min(drafted, info.vocab_size), loaded.eos_ids, [*loaded.tokenizer.special]
    )
    on = torch.device(device)
    torch.manual_seed(seed)
    made = MedusaNet if kind == "medusa" else EagleNet
    net: HeadNet = made(config, forward.embed.float(), forward.words(ids).float(), forward.final_norm).to(on)
    net.embed, net.words, net.softcap = net.embed.to(on), net.words.to(on), forward.config.logit_softcap
    batches = [batch_of([talk], forward.final_norm, config.norm_eps, on) for talk in held_out]
    fit = Fit(net, learnt, batches, ids, forward.final_norm, recipe, directory / f"{kind}-state.safetensors")
    if fit.done >= recipe.whole:
        _write(directory, net, ids)
    for told in fit.run():
        if told.measured is not None:
            _write(directory, net, ids)
        yield told


def fits_on(loaded: Loaded) -> str:
    """Where a head is fitted: where its target runs."""
    return "cuda" if " cuda" in loaded.target.info.runner else "cpu"


def _write(directory: Path, net: HeadNet, ids: IntArray) -> None:
    write_head(directory / net.config.kind, Head(net.config, net.tensors(), ids))


def _split(talks: Sequence[Conversation], forward: Rides, eps: float) -> tuple[list[Conversation], list[Conversation]]:
    """(Greedy conversations to measure on, the others): the last that were collected."""
    words = forward.words(np.arange(len(forward.embed), dtype=np.int32)).float()
    held: list[int] = []
    for i in range(len(talks) - 1, max(len(talks) * 3 // 4, 0), -1):
        if len(held) == HELD_OUT:
            break
        if is_greedy(talks[i], words, forward.final_norm, eps):
            held.append(i)
    # A prompt that was asked twice has one greedy answer: none of its conversations is learnt from.
    asked = {talks[i].tokens[: talks[i].prompt_length].tobytes() for i in held}
    learnt = [talk for talk in talks if talk.tokens[: talk.prompt_length].tobytes() not in asked]
    return [talks[i] for i in held], learnt
