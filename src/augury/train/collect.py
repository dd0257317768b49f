"""Training text for draft heads: what the target itself says, with the hidden states it had while it said it.

A shard is made in two runs of the engine, each as many conversations at a time as there are slots: the target invents
the users' turns, then answers them. While the answers run, a drafter that guesses nothing reads the hidden states of
each as it ends, when they are still in the target's cache.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from augury.drafters.drafter import Drafter, View
from augury.engine.engine import Engine
from augury.errors import AuguryError, InputError, ModelError
from augury.models.load import Loaded, Progress
from augury.models.target import Features
from augury.train.invent import TURN_TOKENS, Inventor, Opening, check_prompts
from augury.train.shards import Conversation, Origin, Shard, existing, write_shard
from augury.tree import DraftTree, IntArray

_LEAST_ROOM = 2
"""Tokens an answer must have room for: with fewer no drafter is asked, or told of a slot."""


@dataclass(frozen=True)
class Made:
    """A shard that was made.

    Attributes:
        number: of the shard.
        path: of its file.
        conversations: in it; those whose user's turn came to nothing are left out.
        tokens: in it, prompts and answers.
        answer_tokens: of the answers alone.
        seconds: it took, writing included.
    """

    number: int
    path: Path
    conversations: int
    tokens: int
    answer_tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens a second."""
        return self.answer_tokens / self.seconds


class Collector(Drafter):
    """Guesses nothing; of every answer that ends it keeps the hidden states.

    Args:
        features: of the target, from ``Target.tap``.
        hidden_size: d, of each layer of them.
        told: called with the number of answers that have ended.
    """

    def __init__(self, features: Features, hidden_size: int, told: Callable[[int], None]) -> None:
        self._features = features
        self._hidden_size = hidden_size
        self._told = told
        self.kept: dict[bytes, Tensor] = {}
        """bf16[m, taps, d] by the m tokens of prompt and answer, i32, as bytes; the last row is zeros."""
        self.error: Exception | None = None
        """The first thing that went wrong: the engine goes on without a drafter that fails."""

    def propose(self, view: View, limit: int) -> DraftTree:
        """Nothing."""
        return DraftTree.empty()

    def close(self, view: View) -> None:
        """Keep what the cache still holds. The last token was never computed."""
        if view.length <= view.prompt_length:
            return
        try:
            found = torch.from_numpy(self._features(view.slot, 0, view.length - 1))
            rows = found.view(view.length - 1, -1, self._hidden_size).bfloat16()
            self.kept[view.tokens.tobytes()] = torch.cat([rows, torch.zeros_like(rows[:1])])
            self._told(len(self.kept))
        except BaseException as error:
            self._told = lambda _ended: None  # an interrupt closes the other answers too, and is not to meet another
            if isinstance(error, Exception):
                self.error = self.error or error
            raise


def collect(
    loaded: Loaded,
    directory: Path,
    *,
    shards: int,
    taps: Sequence[int],
    conversations: int = 64,
    batch: int = 32,
    seed: int = 0,
    answer_tokens: int = 256,
    prompts: Sequence[str] = (),
    share: float = 1.0,
    progress: Progress | None = None,
) -> Iterator[Made]:
    """Make the shards 0..``shards`` - 1 that a directory lacks, one after another, and tell of each.

    The same arguments give the same shards, in one go or in several: each begins with an empty cache. (Python's own
    library is read too, and a chat template may write the date.) Stop between shards, or within one: it is then made
    anew.

    Args:
        loaded: the target, with ``batch`` free slots; all its slots should be idle.
        directory: where shards are, or will be.
        shards: that there are to be in all.
        taps: layers whose input a head reads, ascending, 0..layers - 1. The residual stream behind the last layer is
            kept too.
        conversations: of one shard; those whose user's turn comes to nothing are left out.
        batch: conversations that run together.
        seed: of everything that is drawn.
        answer_tokens: of an answer at most.
        prompts: what users asked; the target answers, and invents the other users' turns.
        share: of the conversations that begin with one of ``prompts``, 0 to 1.
        progress: called with what is being done and the share of the shard that is done.

    Raises:
        InputError: an argument that cannot be honoured, the target keeps no hidden states, the directory cannot be
            written to, or it holds shards of something else. Nothing was made.
        ModelError: a shard there is damaged; or, while one is made, the target invents nothing that can be answered.
    """
    info = loaded.target.info
    for name, value, least in (
        ("shards", shards, 0), ("conversations", conversations, 1), ("batch", batch, 1),
        ("answer_tokens", answer_tokens, _LEAST_ROOM),
    ):  # fmt: skip
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name} is {value!r}; it must be a whole number, {least} or more")
    check_prompts(prompts, share)
    if any(not 0 <= layer < info.layers for layer in taps):
        raise InputError(f"taps are {list(taps)}; a head reads layers 0 to {info.layers - 1} of {info.name}")
    asked = f"{conversations} conversations of up to {answer_tokens} answer tokens"
    if prompts:
        digest = hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:12]
        asked += f" and a share of {share:g} of {len(prompts)} prompts ({digest})"
    origin = Origin.of(info, (*taps, info.layers), seed, asked)
    found = existing(directory)
    for path in found.values():
        Shard(path, origin)  # refused now or never

    @lru_cache(maxsize=256)
    def answers(number: int) -> list[IntArray]:
        return [a.copy() for a in Shard(existing(directory)[number], origin).answers]

    inventor = Inventor(loaded, seed, answers, prompts, share)
    features = loaded.target.tap(origin.taps)
    say = progress or (lambda _what, _share: None)

    def made() -> Iterator[Made]:
        for number in range(shards):
            if number in found:
                continue
            clock = time.perf_counter()
            openings = [inventor.opening(number, index, conversations) for index in range(conversations)]
            kept = _conversations(loaded, inventor, features, openings, batch, answer_tokens, say)
            if not kept:
                raise ModelError(
                    f"{info.name} invented no user's turn that can be answered in {conversations} tries of shard "
                    f"{number}; give it prompts, or a larger context than {info.context}"
                )
            path = write_shard(directory, origin, number, kept)
            yield Made(
                number=number,
                path=path,
                conversations=len(kept),
                tokens=sum(len(c.tokens) for c in kept),
                answer_tokens=sum(len(c.answer) for c in kept),
                seconds=time.perf_counter() - clock,
            )

    return made()


def _conversations(
    loaded: Loaded,
    inventor: Inventor,
    features: Features,
    openings: Sequence[Opening],
    batch: int,
    answer_tokens: int,
    say: Progress,
) -> list[Conversation]:
    """The conversations of a shard."""
    asked: list[tuple[IntArray, Opening]] = []
    collector = Collector(
        features, loaded.target.info.hidden_size, lambda ended: say("answering", min(ended / len(asked), 1.0))
    )
    # An engine for each shard: its slots begin empty, so that nothing of an earlier shard is found in them.
    with Engine(
        loaded.target,
        [("collect", collector)],
        tokenizer=loaded.tokenizer,
        template=loaded.template,
        eos_ids=loaded.eos_ids,
        slots=batch,
    ) as engine:
        say("inventing prompts", 0.0)
        asked += _invent(engine, inventor, openings)
        return _answer(engine, collector, asked, answer_tokens)


def _invent(engine: Engine, inventor: Inventor, openings: Sequence[Opening]) -> list[tuple[IntArray, Opening]]:
    """The prompts of a shard's answers with their openings; no prompt twice."""
    longest = engine.target.info.context - _LEAST_ROOM
    openings = [opening for opening in openings if len(opening.prompt) <= longest]
    open_ones = [opening for opening in openings if opening.invents]
    turns = engine.generate_all(
        [opening.prompt for opening in open_ones],
        [opening.turn for opening in open_ones],
        max_tokens=TURN_TOKENS,
        draft=False,
    )
    written = iter(turns)
    asked: dict[bytes, tuple[IntArray, Opening]] = {}
    for opening in openings:
        invented = next(written).tokens if opening.invents else ()
        prompt = opening.asked(invented, inventor.is_control)
        if prompt is not None and len(prompt) <= longest:
            asked.setdefault(prompt.tobytes(), (prompt, opening))
    return list(asked.values())


def _answer(
    engine: Engine, collector: Collector, asked: Sequence[tuple[IntArray, Opening]], answer_tokens: int
) -> list[Conversation]:
    """The target's answers with their hidden states, in the order asked."""
    # Last first: the turns invented last are still in the slots, and need not be computed again.
    results = engine.generate_all(
        [prompt for prompt, _ in asked[::-1]],
        [opening.answer for _, opening in asked[::-1]],
        max_tokens=answer_tokens,
    )[::-1]
    if collector.error is not None:
        raise collector.error
    kept = []
    for (prompt, _), result in zip(asked, results, strict=True):
        tokens = np.concatenate([prompt, np.asarray(result.tokens, np.int32)])
        hidden = collector.kept.get(tokens.tobytes())
        if hidden is None:
            raise AuguryError("an answer ended without its hidden states having been read")
        kept.append(Conversation(tokens, len(prompt), hidden))
    return kept
