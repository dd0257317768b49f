"""Answers of several engines to the same prompts, and what they come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from augury.bench.ratios import geometric_mean, median
from augury.bench.runners import Peer, PeerFailed, Setup, Timed
from augury.errors import InputError
from augury.tree import IntArray

REST_SECONDS = 0.3
"""Pause before an answer: threads of our own process spin for up to 0.2 seconds after their last work."""

Answers = Sequence[Sequence[Timed]]
"""Of one peer, by prompt and round."""


@dataclass(frozen=True)
class Standing:
    """One peer over all prompts.

    Attributes:
        setup: how it was run.
        versions: of the packages that answered.
        token_ms: geometric mean over kinds of ``by_kind``.
        by_kind: of each kind of prompt, the geometric mean over its prompts of the median over rounds.
        speed: how many times as fast as the first peer.
        to_best: how many times as fast as the fastest other engine with the same weights; None without one.
        equal: answers with the tokens of the first peer's first answer.
        answers: how many.
    """

    setup: Setup
    versions: Mapping[str, str]
    token_ms: float
    by_kind: Mapping[str, float]
    speed: float
    to_best: float | None
    equal: int
    answers: int


def compare(
    peers: Sequence[Peer],
    prompts: Sequence[IntArray],
    eos: Sequence[int],
    *,
    max_tokens: int,
    rounds: int,
    progress: Callable[[], None] | None = None,
) -> tuple[list[list[list[Timed]]], dict[int, str]]:
    """Answers by peer, prompt and round, and why which peers failed; those are asked no more.

    Peers take turns at every prompt; who begins moves on by one. The id that ends an answer is taken off: some engines
    hand it on, some do not.
    """
    failed: dict[int, str] = {}

    def ask(index: int, prompt: IntArray, limit: int) -> list[Timed]:
        if index in failed:
            return []
        try:
            answer = peers[index].answer(prompt, limit, eos)
        except PeerFailed as failure:
            failed[index] = str(failure)
            return []
        ends = bool(answer.tokens) and answer.tokens[-1] in eos
        return [replace(answer, tokens=answer.tokens[:-1]) if ends else answer]

    for index in range(len(peers)):
        ask(index, prompts[0], 16)
    answers: list[list[list[Timed]]] = [[[] for _ in prompts] for _ in peers]
    for turn in range(rounds):
        for number, prompt in enumerate(prompts):
            for place in range(len(peers)):
                index = (place + number + turn) % len(peers)
                time.sleep(REST_SECONDS)
                answers[index][number] += ask(index, prompt, max_tokens)
                if progress:
                    progress()
    return answers, failed


def usable(answers: Sequence[Answers]) -> list[int]:
    """Prompts that say something of time: those that every peer answers in two pieces or more, at least once."""
    return [n for n in range(len(answers[0])) if all(_typical(of_peer[n]) is not None for of_peer in answers)]


def standings(peers: Sequence[Peer], kinds: Sequence[str], answers: Sequence[Answers]) -> list[Standing]:
    """What the answers come to, in the order of the peers.

    Args:
        peers: ours first, plain.
        kinds: of the prompts.
        answers: of each peer.

    Raises:
        InputError: no prompt is usable.
    """
    numbers = usable(answers)
    if not numbers:
        raise InputError("no prompt was answered in two pieces or more by all peers; allow more tokens")
    by_kind = [_by_kind(kinds, numbers, of_peer) for of_peer in answers]
    token_ms = [geometric_mean(list(ms.values())) for ms in by_kind]
    best = min(
        (ms for peer, ms in zip(peers, token_ms, strict=True) if peer.setup.same_weights and not _ours(peer)),
        default=None,
    )
    rows = []
    for peer, kind_ms, ms, of_peer in zip(peers, by_kind, token_ms, answers, strict=True):
        every = [(n, answer) for n, rounds in enumerate(of_peer) for answer in rounds]
        rows.append(
            Standing(
                setup=peer.setup,
                versions=peer.versions,
                token_ms=ms,
                by_kind=kind_ms,
                speed=token_ms[0] / ms,
                to_best=best / ms if best else None,
                equal=sum(answer.tokens == answers[0][n][0].tokens for n, answer in every),
                answers=len(every),
            )
        )
    return rows


def _ours(peer: Peer) -> bool:
    return peer.setup.engine == "augury"


def _by_kind(kinds: Sequence[str], numbers: Sequence[int], answers: Answers) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for n in numbers:
        times.setdefault(kinds[n], []).append(_typical(answers[n]) or 0.0)
    return {kind: geometric_mean(ms) for kind, ms in times.items()}


def _typical(rounds: Sequence[Timed]) -> float | None:
    times = [t for answer in rounds if (t := answer.token_ms) is not None]
    return median(times) if times else None
