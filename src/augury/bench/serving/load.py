"""Throughput of a running server by the number of streams, plain and drafted in turn:
``python -m augury.bench.serving.load http://127.0.0.1:8000``.

So many callers ask one question after the other, each as soon as it has its answer. Every wave is answered plainly (by
the request's own switch) and drafted, twice each, in the order A B B A; nothing is shared between waves: every request
is a tenant of its own. All answers must be those that one caller alone is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from augury.bench.prompts import Prompt, own
from augury.bench.ratios import geometric_mean, median
from augury.bench.serving.client import Heard, ask, checked, connected, question
from augury.errors import AuguryError

if TYPE_CHECKING:
    import httpx2

ORDER = (False, True, True, False)
"""Whether a wave is drafted."""


@dataclass(frozen=True)
class Wave:
    """What so many streams brought.

    Attributes:
        streams: callers at the same time.
        drafted: whether the server was to draft.
        tokens: of all answers.
        seconds: until the last one ended.
        first_ms: median time to the first text.
        token_ms: median over answers of the time a token takes behind the first text.
        different: answers that were not those of one caller alone.
    """

    streams: int
    drafted: bool
    tokens: int
    seconds: float
    first_ms: float
    token_ms: float
    different: int

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


async def measure(
    url: str, key: str | None, levels: Sequence[int], each: int, max_tokens: int, kinds: Sequence[str] = ()
) -> list[Wave]:
    """All waves: for every level ``each`` questions a stream."""
    asked = [p for p in own() if not kinds or p.kind in kinds]
    random.Random(0).shuffle(asked)
    waves = []
    async with connected(url, key, max(levels)) as client:
        alone: dict[str, str] = {}
        for prompt in asked[: max(levels) * each]:
            alone[prompt.id] = (await _one(client, prompt, max_tokens, False)).text
        for level in levels:
            group = [asked[i % len(asked)] for i in range(level * each)]
            for drafted in ORDER:
                waves.append(await _wave(client, group, level, drafted, max_tokens, alone))
                _tell(waves[-1])
    return waves


async def _one(client: httpx2.AsyncClient, prompt: Prompt, max_tokens: int, drafted: bool) -> Heard:
    more: dict[str, Any] = {"cache_salt": secrets.token_hex(), "speculative": {"enabled": drafted}}
    if drafted and prompt.prediction is not None:
        more["prediction"] = {"type": "content", "content": prompt.prediction}
    return checked(await ask(client, question(prompt.text, max_tokens, **more)))


async def _wave(
    client: httpx2.AsyncClient,
    group: Sequence[Prompt],
    level: int,
    drafted: bool,
    max_tokens: int,
    alone: dict[str, str],
) -> Wave:
    waiting = list(group)[::-1]
    heard: list[tuple[Prompt, Heard]] = []

    async def caller() -> None:
        while waiting:
            prompt = waiting.pop()
            heard.append((prompt, await _one(client, prompt, max_tokens, drafted)))

    begin = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(level)))
    seconds = time.perf_counter() - begin
    paces = [1e3 * (h.wall_s - (h.first_s or 0.0)) / max(h.tokens - 1, 1) for _, h in heard]
    return Wave(
        streams=level,
        drafted=drafted,
        tokens=sum(h.tokens for _, h in heard),
        seconds=seconds,
        first_ms=1e3 * median([h.first_s or h.wall_s for _, h in heard]),
        token_ms=median(paces),
        different=sum(h.text != alone[p.id] for p, h in heard),
    )


def _tell(wave: Wave) -> None:
    how = "drafted" if wave.drafted else "plain"
    print(f"{wave.streams} streams, {how}: {wave.rate:.1f} tokens/s", file=sys.stderr)


def table(waves: Sequence[Wave]) -> Table:
    """A row for each number of streams."""
    shown = Table("streams", "plain tok/s", "drafted tok/s", "speed-up", "first text ms", "ms a token", "same text")
    for level in dict.fromkeys(wave.streams for wave in waves):
        plain, drafted = ([w for w in waves if w.streams == level and w.drafted == way] for way in (False, True))
        speedup = geometric_mean([d.rate / p.rate for d, p in zip(drafted, plain, strict=True)])
        firsts, paces = (
            f"{median([getattr(w, name) for w in plain]):.0f} / {median([getattr(w, name) for w in drafted]):.0f}"
            for name in ("first_ms", "token_ms")
        )
        different = sum(w.different for w in (*plain, *drafted))
        rates = [f"{median([w.rate for w in ways]):.1f}" for ways in (plain, drafted)]
        shown.add_row(str(level), *rates, f"{speedup:.2f}", firsts, paces, "all" if not different else f"-{different}")
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where an answer was not that of one caller alone."""
    parser = argparse.ArgumentParser(prog="python -m augury.bench.serving.load", description=__doc__)
    parser.add_argument("url", help="as in http://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--levels", default="1,2,4,8,16", help="streams at the same time")
    parser.add_argument("--each", type=int, default=2, help="questions of every stream")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--kinds", default="", help="of our prompts; all when nothing is said")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    levels = [int(n) for n in given.levels.split(",")]
    kinds = [kind for kind in given.kinds.split(",") if kind]
    try:
        waves = asyncio.run(measure(given.url, given.api_key, levels, given.each, given.max_tokens, kinds))
    except AuguryError as error:
        print(f"augury: {error}", file=sys.stderr)
        return 2
    Console().print(table(waves))
    if given.json:
        given.json.write_text(json.dumps([asdict(w) for w in waves], indent=1) + "\n", "utf-8")
    return 1 if any(wave.different for wave in waves) else 0


if __name__ == "__main__":
    sys.exit(main())
