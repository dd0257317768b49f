"""What the shape of encrypted streams gives away: ``python -m augury.bench.serving.leak http://127.0.0.1:8000``.

Somebody on the way sees no text, only when portions pass and how large they are. Here he has seen ``--runs`` answers to
each of fifty known questions and is shown one more: which question was it? Two small classifiers try, nearest
neighbours of the stream's outline and a naive Bayes over the sizes and pauses of its portions (as in 2411.01076), and
the better one counts. Guessing is right in one of fifty. What the server's mode costs is told beside it: the time until
all text is there, and until the stream ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from augury.bench.prompts import own
from augury.bench.ratios import median
from augury.bench.serving.client import Heard, ask, checked, connected, question
from augury.errors import AuguryError

if TYPE_CHECKING:
    import httpx2

QUESTIONS = 50
_OUTLINE = 48  # portions of which place and time are features of their own
_NEAREST = 3
_BINS = 24

Traffic = npt.NDArray[np.float64]
"""f64[n, 2]: seconds since the request, and bytes, of each portion."""


@dataclass(frozen=True)
class Leak:
    """How much was given away.

    Attributes:
        streams: that were seen.
        questions: they may have answered.
        neighbours, bayes: shares of streams whose question each classifier named.
        chance: of naming it blindly.
        portions: median number of a stream.
        bytes: median of a stream.
        text_s: median seconds until its last text.
        end_s: median seconds until its end.
    """

    streams: int
    questions: int
    neighbours: float
    bayes: float
    chance: float
    portions: float
    bytes: float
    text_s: float
    end_s: float

    @property
    def times_chance(self) -> float:
        """How much better than blind the better classifier is."""
        return max(self.neighbours, self.bayes) / self.chance


def outline(traffic: Traffic) -> npt.NDArray[np.float64]:
    """A stream as numbers: how much, how long, and bytes and time by its first portions."""
    begin = np.zeros((_OUTLINE, 2))
    begin[: len(traffic)] = traffic[:_OUTLINE]
    whole = [len(traffic), traffic[:, 1].sum(), traffic[-1, 0], traffic[0, 0]]
    return np.concatenate([whole, np.log1p(begin[:, 1]), np.cumsum(begin[:, 1]), begin[:, 0]])


def neighbours(streams: Sequence[Traffic], labels: npt.NDArray[np.int64], runs: npt.NDArray[np.int64]) -> float:
    """Share of streams named rightly by the nearest outlines of all other runs."""
    features = np.stack([outline(one) for one in streams])
    features = (features - features.mean(0)) / (features.std(0) + 1e-9)
    features[:, :4] *= 3.0  # the whole counts for more than one portion of many
    distance = np.abs(features[:, None] - features[None]).sum(-1)
    right = 0
    for i, run in enumerate(runs):
        known = np.flatnonzero(runs != run)
        near = known[np.argsort(distance[i, known], kind="stable")[:_NEAREST]]
        names, counts = np.unique(labels[near], return_counts=True)
        best = names[counts == counts.max()]
        right += labels[near[0]] == labels[i] if len(best) > 1 else best[0] == labels[i]
    return float(right / len(streams))


def bayes(streams: Sequence[Traffic], labels: npt.NDArray[np.int64], runs: npt.NDArray[np.int64]) -> float:
    """Share named rightly from how often sizes and pauses of each magnitude occur, and from the totals."""
    sizes = [np.histogram(one[:, 1], _edges(streams, 1))[0] for one in streams]
    pauses = [np.histogram(np.diff(one[:, 0], prepend=0.0), _edges(streams, 0))[0] for one in streams]
    counts = np.concatenate([np.stack(sizes), np.stack(pauses)], 1).astype(np.float64)
    totals = np.log(np.array([[len(s), s[:, 1].sum(), s[-1, 0]] for s in streams]))
    names = np.unique(labels)
    right = 0
    for i, run in enumerate(runs):
        scores = []
        for name in names:
            own = (labels == name) & (runs != run)
            shares = counts[own].sum(0) + 0.3
            likely = float(counts[i] @ np.log(shares / shares.sum()))
            spread = totals[own].std(0) + 0.01 + 0.1 * totals.std(0)
            away = (totals[i] - totals[own].mean(0)) / spread
            scores.append(likely - float((0.5 * away**2 + np.log(spread)).sum()))
        right += names[int(np.argmax(scores))] == labels[i]
    return float(right / len(streams))


def _edges(streams: Sequence[Traffic], column: int) -> npt.NDArray[np.float64]:
    values = np.concatenate([s[:, 1] if column else np.diff(s[:, 0], prepend=0.0) for s in streams])
    return np.unique(np.quantile(values, np.linspace(0.0, 1.0, _BINS + 1)) + np.linspace(-1e-9, 1e-9, _BINS + 1))


async def watch(
    url: str, key: str | None, runs: int, at_once: int, max_tokens: int, temperature: float
) -> list[list[Heard]]:
    """``runs`` answers to each question, all questions of a run in a row."""
    asked = own()[:QUESTIONS]
    found: list[list[Heard]] = []
    async with connected(url, key, at_once) as client:
        for run in range(runs):
            order = np.random.default_rng(run).permutation(len(asked)).tolist()
            heard: dict[int, Heard] = {}

            async def caller(waiting: list[int], heard: dict[int, Heard], run: int) -> None:
                while waiting:
                    i = waiting.pop()
                    heard[i] = await _one(client, asked[i].text, max_tokens, temperature, run)

            await asyncio.gather(*(caller(order, heard, run) for _ in range(at_once)))
            found.append([heard[i] for i in range(len(asked))])
            print(f"run {run + 1} of {runs}", file=sys.stderr)
    return found


async def _one(client: httpx2.AsyncClient, text: str, max_tokens: int, temperature: float, seed: int) -> Heard:
    body = question(text, max_tokens, temperature=temperature, **({"seed": seed} if temperature else {}))
    return checked(await ask(client, body))


def judge(found: Sequence[Sequence[Heard]]) -> Leak:
    """What the portions tell, and what they cost."""
    flat = [(i, run, one) for run, answers in enumerate(found) for i, one in enumerate(answers)]
    labels, runs = (np.array([entry[k] for entry in flat]) for k in (0, 1))
    streams = [np.array(one.portions, np.float64) for _, _, one in flat]
    return Leak(
        streams=len(flat),
        questions=len(found[0]),
        neighbours=neighbours(streams, labels, runs),
        bayes=bayes(streams, labels, runs),
        chance=1.0 / len(found[0]),
        portions=median([float(len(s)) for s in streams]),
        bytes=median([float(s[:, 1].sum()) for s in streams]),
        text_s=median([one.last_s or 0.0 for _, _, one in flat]),
        end_s=median([one.wall_s for _, _, one in flat]),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is given away."""
    parser = argparse.ArgumentParser(prog="python -m augury.bench.serving.leak", description=__doc__)
    parser.add_argument("url", help="as in http://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--runs", type=int, default=5, help="answers to each question, at least 3")
    parser.add_argument("--at-once", type=int, default=1, help="streams at the same time")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if given.runs < 3:
        parser.error(f"--runs is {given.runs}; it must be 3 or more")
    try:
        leak = judge(
            asyncio.run(watch(given.url, given.api_key, given.runs, given.at_once, given.max_tokens, given.temperature))
        )
    except AuguryError as error:
        print(f"augury: {error}", file=sys.stderr)
        return 2
    print(
        f"{leak.streams} streams, {leak.questions} questions: neighbours name {100 * leak.neighbours:.1f} %, "
        f"bayes {100 * leak.bayes:.1f} %, blind {100 * leak.chance:.1f} %: {leak.times_chance:.1f} times chance\n"
        f"a stream: {leak.portions:.0f} portions, {leak.bytes:.0f} bytes, all text after {leak.text_s:.2f} s, "
        f"end after {leak.end_s:.2f} s"
    )
    if given.json:
        given.json.write_text(json.dumps(asdict(leak), indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
