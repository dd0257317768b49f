"""Fits a head to collected conversations: batches, optimiser, checkpoints, and what it would have accepted.

Everything is decided by the seed and the data, so a run that was stopped goes on where its last whole pass ended.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from augury.durable import replacing
from augury.errors import InputError, first_line
from augury.models.block import rms_norm
from augury.train.learning import Batch, HeadNet, hits, loss
from augury.train.shards import Conversation, Shard
from augury.tree import IntArray

GUESSES = 4
"""Of a chain, when acceptance is measured."""

HELD_OUT = 32
"""Greedy conversations at most that acceptance is measured on; they are not learnt from."""

_GREEDY = 0.93
"""Share of an answer's tokens that are the likeliest: rounding costs a greedy one up to 0.02; at temperature 0.7 it is
below 0.9."""


@dataclass(frozen=True)
class Recipe:
    """How a head is fitted.

    Attributes:
        single: passes over all conversations that teach an eagle its first guess alone, before the others. They take a
            third of the time, and what they teach is most of what there is to know.
        passes: the others, over all steps.
        rows: of one optimiser step at most, padding included.
        steps: of training-time test; of a head that guesses all places at once, its places.
        rate: greatest learning rate; it rises over the first 4 % of all steps and falls as a cosine to a tenth.
        seed: of the order of conversations.
    """

    single: int = 0
    passes: int = 4
    rows: int = 2048
    steps: int = 4
    rate: float = 1.5e-3
    seed: int = 0

    @property
    def whole(self) -> int:
        """Passes of both kinds."""
        return self.single + self.passes


@dataclass(frozen=True)
class Measured:
    """What a head would have accepted of greedy text that it did not learn from.

    Attributes:
        first: share of right first guesses.
        length: tokens of a step with a chain of ``GUESSES``, or of the places guessed at once, and the target's own.
        by_depth: share of right guesses at each depth, given all before it were right.
        chains: how many there were.
    """

    first: float
    length: float
    by_depth: tuple[float, ...]
    chains: int


@dataclass(frozen=True)
class Told:
    """How fitting goes.

    Attributes:
        done: passes behind, a fraction within one.
        loss: mean over the last optimiser steps.
        rows_per_second: rows learnt from, padding not counted.
        measured: after each whole pass.
    """

    done: float
    loss: float
    rows_per_second: float
    measured: Measured | None = None


def read(shards: Sequence[Shard], context: int) -> list[Conversation]:
    """All conversations, none longer than ``context`` tokens and none too short to learn from; mapped from disk."""
    found = []
    for shard in shards:
        for talk in shard:
            tokens = talk.tokens[:context]
            if len(tokens) > GUESSES + 2:
                found.append(Conversation(tokens, min(talk.prompt_length, len(tokens) - 1), talk.hidden[:context]))
    return found


def vocabulary(
    talks: Sequence[Conversation], vocab_size: int, size: int, always: Sequence[int], unlikely: Sequence[int] = ()
) -> IntArray:
    """I32[size] ids that a head may guess, ascending: ``always``, then the most frequent, then the smallest.

    Merge order is frequency order of a tokenizer's own text, which is wider than what was collected. ``unlikely`` ids
    (control tokens) come last, unless the text has them.
    """
    counts = np.zeros(vocab_size, np.float64)
    for talk in talks:
        counts += np.bincount(talk.tokens, minlength=vocab_size)
    silent = [id for id in unlikely if not counts[id]]
    counts -= np.arange(vocab_size) / vocab_size  # among equals the smaller id
    counts[silent] -= 1.0
    counts[list(always)] = np.inf
    return np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int32)


def batch_of(talks: Sequence[Conversation], final_norm: Tensor, eps: float, device: torch.device) -> Batch:
    """Conversations side by side; see ``Batch``. ``final_norm`` f32[d] is the target's."""
    longest = max(len(talk.tokens) for talk in talks)
    b, taps, d = len(talks), talks[0].hidden.shape[1] - 1, talks[0].hidden.shape[2]
    tokens = torch.zeros(b, longest, dtype=torch.long)
    hidden = torch.zeros(b, longest, taps + 1, d)
    weight = torch.zeros(b, longest - 2)
    answer = torch.zeros(b, longest - 2, dtype=torch.bool)
    for i, talk in enumerate(talks):
        n = len(talk.tokens)
        tokens[i, :n] = torch.from_numpy(talk.tokens.astype(np.int64))
        hidden[i, :n] = talk.hidden.float()
        weight[i, : n - 2] = talk.known[1 : n - 1].float()
        answer[i, max(talk.prompt_length - 2, 0) : n - 2] = True
    features = hidden[:, : longest - 2, :taps].reshape(b, longest - 2, taps * d)
    laws = rms_norm(hidden[:, 1 : longest - 1, taps], final_norm.cpu(), eps)
    return Batch(*(x.to(device) for x in (tokens, features, laws, weight, answer)))


def batches(talks: Sequence[Conversation], rows: int, order: random.Random) -> Iterator[list[Conversation]]:
    """Conversations of about one length together, so that little is padding, in random order."""
    places = list(range(len(talks)))
    order.shuffle(places)
    groups: list[list[int]] = []
    for begin in range(0, len(places), 256):
        near = sorted(places[begin : begin + 256], key=lambda i: len(talks[i].tokens))
        group: list[int] = []
        for i in near:
            if group and (len(group) + 1) * len(talks[i].tokens) > rows:
                groups.append(group)
                group = []
            group.append(i)
        groups.append(group)
    order.shuffle(groups)
    for group in groups:
        yield [talks[i] for i in group]


def is_greedy(talk: Conversation, head: Tensor, final_norm: Tensor, eps: float) -> bool:
    """Whether an answer's tokens are those that the target held likeliest; ``head`` is f[V, d]."""
    known = talk.known[:-1]
    known[: talk.prompt_length - 1] = False
    if not bool(known.any()):
        return False
    rows = rms_norm(talk.hidden[:-1, -1][known].float(), final_norm.cpu(), eps)
    likeliest = (rows.to(head) @ head.T).argmax(-1).cpu()
    said = torch.from_numpy(talk.tokens[1:].astype(np.int64))[known]
    return float((likeliest == said).float().mean()) >= _GREEDY


def measure(net: HeadNet, held_out: Sequence[Batch], ids: Tensor) -> Measured:
    """What the head would have accepted of the held-out text."""
    guesses = GUESSES if net.config.kind == "eagle" else min(GUESSES, net.config.guesses)
    reached, chains = torch.zeros(guesses, dtype=torch.double), 0
    for batch in held_out:
        right, count = hits(net, batch, ids, guesses)
        reached += right[count].sum(0).double().cpu()
        chains += int(count.sum())
    shares = [float(x) / max(chains, 1) for x in reached]
    given = [share / above if above else 0.0 for share, above in zip(shares, [1.0, *shares[:-1]], strict=True)]
    return Measured(shares[0], 1.0 + sum(shares), tuple(given), chains)


class Fit:
    """Fitting of one head, resumable after every pass.

    Args:
        net: as it begins, on its device.
        talks: to learn from.
        held_out: batches to measure on.
        ids: i32[v], the draft vocabulary.
        final_norm: f32[d], the target's.
        recipe: how.
        state: file that keeps what is learnt after each pass; one that is there is gone on from.

    Raises:
        InputError: the state is of another recipe or another head.
    """

    def __init__(
        self,
        net: HeadNet,
        talks: Sequence[Conversation],
        held_out: Sequence[Batch],
        ids: IntArray,
        final_norm: Tensor,
        recipe: Recipe,
        state: Path,
    ) -> None:
        if not talks:
            raise InputError("there is no conversation to learn from; collect more")
        self._net, self._talks, self._held_out, self._recipe, self._state = net, talks, held_out, recipe, state
        self._device = net.words.device
        self._ids = torch.from_numpy(ids.astype(np.int64)).to(self._device)
        self._norm = final_norm
        self._optimiser = torch.optim.AdamW(net.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01)
        self.done = self._resume()
        """Whole passes behind."""
        self._each = sum(1 for _ in batches(talks, recipe.rows, random.Random(f"{recipe.seed} 0")))

    def run(self) -> Iterator[Told]:
        """Learn; tells now and then how it goes, and after every pass what would be accepted."""
        # A CPU without bf16 products would emulate them, at a third of the speed of floats.
        cpu = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        half = self._device.type == "cuda" or cpu
        for number in range(self.done, self._recipe.whole):
            steps = 1 if number < self._recipe.single else self._recipe.steps
            order = random.Random(f"{self._recipe.seed} {number}")
            losses: list[float] = []
            rows, clock = 0, time.perf_counter()
            for place, group in enumerate(batches(self._talks, self._recipe.rows, order)):
                batch = batch_of(group, self._norm, self._net.config.norm_eps, self._device)
                if not bool((batch.weight[:, steps:] > 0).any()):
                    continue
                self._optimiser.param_groups[0]["lr"] = self._rate(number * self._each + place)
                with torch.autocast(self._device.type, torch.bfloat16, enabled=half):
                    found = loss(self._net, batch, steps)
                self._optimiser.zero_grad()
                found.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self._net.parameters(), 1.0)
                self._optimiser.step()
                losses.append(found.item())
                if not math.isfinite(losses[-1]):
                    raise InputError(
                        f"the loss is {losses[-1]}; begin anew with a smaller rate than {self._recipe.rate}"
                    )
                rows += int((batch.weight > 0).sum())
                if place % 10 == 9:
                    speed = rows / (time.perf_counter() - clock)
                    yield Told(number + (place + 1) / self._each, float(np.mean(losses[-10:])), speed)
            if not losses:
                raise InputError(
                    f"no conversation is longer than the {steps} steps of the recipe; "
                    "collect longer answers, or take fewer steps"
                )
            speed = rows / (time.perf_counter() - clock)
            self.done = number + 1
            self._save()
            measured = measure(self._net, self._held_out, self._ids)
            yield Told(float(self.done), float(np.mean(losses)), speed, measured)

    def _rate(self, step: int) -> float:
        whole = self._each * self._recipe.whole
        warm = max(1.0, 0.04 * whole)
        if step < warm:
            return self._recipe.rate * (step + 1) / warm
        return self._recipe.rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / whole))))

    def _about(self) -> str:
        shape = {k: v for k, v in asdict(self._net.config).items() if k != "target"}
        text = hashlib.sha256(self._ids.cpu().numpy().tobytes())
        for talk in self._talks:
            text.update(talk.tokens.tobytes())
        return json.dumps([asdict(self._recipe), shape, text.hexdigest()], sort_keys=True)

    def _save(self) -> None:
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._net.named_parameters():
            kept = self._optimiser.state[parameter]
            tensors |= {
                name: parameter.detach(), f"{name} mean": kept["exp_avg"], f"{name} square": kept["exp_avg_sq"],
                f"{name} step": kept["step"].reshape(1),
            }  # fmt: skip
        told = {"passes": str(self.done), "about": self._about()}
        with replacing(self._state) as beside:
            save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, beside, told)

    def _resume(self) -> int:
        if not self._state.exists():
            return 0
        try:
            return self._read_state()
        except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as damage:
            raise InputError(f"{self._state.name} is damaged ({first_line(damage)}); delete it to begin anew") from None

    def _read_state(self) -> int:
        with safe_open(self._state, framework="pt") as file:
            told = file.metadata() or {}
        if told.get("about") != self._about():
            name = self._state.name
            raise InputError(f"{name} was left by another recipe, head or data; give the same, or delete it")
        tensors = load_file(self._state)
        with torch.no_grad():
            for name, parameter in self._net.named_parameters():
                parameter.copy_(tensors[name])
                self._optimiser.state[parameter] = {
                    "exp_avg": tensors[f"{name} mean"].to(parameter.device),
                    "exp_avg_sq": tensors[f"{name} square"].to(parameter.device),
                    "step": tensors[f"{name} step"][0],
                }
        return int(told["passes"])
