"""vLLM plain, with our drafters, and with its own: the same prompts, in turn, on one machine.

    python -m augury_vllm.compare DIRECTORY [--file PROMPTS] [--at-once 1,8] [--json ANSWERS]

Every engine runs in a process of its own, and all are there from the beginning; each group of prompts is answered by
one after the other. Answers are greedy and of one length, so that all do the same work. The acceptance length is
vLLM's own: 1 + accepted tokens / drafts, of the steps that had a draft; beside it stand the tokens of a step, those
without a draft included, which is what a reader waits for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from augury.bench.prompts import Prompt, own, read, select
from augury.bench.ratios import median
from augury.models.load import load_wording
from augury_vllm.engine import COUNTS, Answered, Engine

TOKENS = 5
"""``num_speculative_tokens`` of all who are not told otherwise."""


@dataclass
class Run:
    """What one engine did.

    Attributes:
        ms: of each group.
        tokens: of each answer, in the order of prompts.
        counts: of ``COUNTS``, in all groups.
    """

    ms: list[float] = field(default_factory=list)
    tokens: list[Sequence[int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def add(self, answered: Answered, before: Mapping[str, int]) -> None:
        """Add a group; ``before`` are the engine's counts until then."""
        self.ms.append(answered.ms)
        self.tokens += answered.tokens
        for name in COUNTS:
            self.counts[name] += answered.counts[name] - before[name]

    @property
    def acceptance_length(self) -> float | None:
        """As vLLM's metrics have it; None where nothing was drafted."""
        drafts = self.counts["drafts"]
        return 1.0 + self.counts["accepted_tokens"] / drafts if drafts else None

    @property
    def tokens_per_step(self) -> float:
        """Of one request; the first token of each answer comes with its prompt."""
        later = sum(len(tokens) - 1 for tokens in self.tokens)
        return later / (later - self.counts["accepted_tokens"])


def speculations(drafters: str, augury: Mapping[str, Any], tokens: int) -> dict[str, dict[str, Any]]:
    """Arguments of ``vllm.LLM`` by the name of the way to speculate."""
    ours = {"method": "custom_class", "model": "augury_vllm.AuguryProposer", "num_speculative_tokens": tokens}
    lookup = {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    suffix = {"method": "suffix", "num_speculative_tokens": tokens}
    return {
        "plain": {},
        **{
            f"augury, {prices}": {
                "speculative_config": ours,
                "additional_config": {"augury": {"drafters": drafters, **augury, "prices": prices}},
            }
            for prices in ("given", "measured")
        },
        "vLLM ngram": {"speculative_config": lookup},
        "vLLM suffix": {"speculative_config": suffix | {"suffix_decoding_max_cached_requests": 0}},
        "vLLM suffix, cached": {"speculative_config": suffix},
    }  # fmt: skip


def prompts_of(model: str, chosen: Sequence[Prompt], longest: int) -> dict[str, list[int]]:
    """Token ids by the prompt's id, as the model's chat template writes them; longer ones are left out."""
    wording = load_wording(model)
    assert wording.template is not None
    ids = {
        p.id: wording.template.encode(wording.tokenizer, [{"role": "user", "content": p.text}]).tolist()
        for p in chosen
    }  # fmt: skip
    return {name: tokens for name, tokens in ids.items() if len(tokens) <= longest}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Compare ways to speculate in vLLM.")
    parser.add_argument("model", help="a directory, such as augury_vllm.model writes")
    parser.add_argument("--file", type=Path, help="prompts, as augury bench takes them (default: our own)")
    parser.add_argument("--limit", type=int, help="prompts of each kind")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--at-once", default="1,8", help="requests at once, a comma list")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="num_speculative_tokens")
    parser.add_argument("--drafters", default="suffix")
    parser.add_argument("--augury", type=json.loads, default={}, help="further options of augury, as JSON")
    parser.add_argument("--only", default="", help="a comma list of rows, besides plain")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compile", action="store_true", help="let vLLM compile the model, which takes minutes")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--json", type=Path, help="where prompts and answers go")
    given = parser.parse_args()
    chosen = select(read(given.file) if given.file else own(), (), given.limit)
    prompts = prompts_of(given.model, chosen, given.context - given.max_tokens - 1)
    sizes = [int(size) for size in given.at_once.split(",")]
    base = {
        "model": given.model, "dtype": given.dtype, "max_model_len": given.context, "max_num_seqs": max(sizes),
        "enable_prefix_caching": False, "skip_tokenizer_init": True, "seed": 0,
        "enforce_eager": not given.compile,
    }  # fmt: skip
    ways = speculations(given.drafters, given.augury, given.tokens)
    only = [name.strip() for name in given.only.split(",") if name.strip()]
    ways = {name: way for name, way in ways.items() if not only or name == "plain" or name in only}
    engines = {name: Engine(base | way) for name, way in ways.items()}
    try:
        texts = list(prompts.values())
        for engine in engines.values():
            engine.answer(texts[: max(sizes)], given.max_tokens)  # caches are filled, and what is compiled late
        print(f"{len(prompts)} prompts, {given.max_tokens} tokens each, {given.dtype}, num_speculative_tokens "
              f"{given.tokens}, drafters {given.drafters}, augury {given.augury}")  # fmt: skip
        kept = {}
        for size in sizes:
            kept[size] = _in_turn(engines, texts, size, given.max_tokens)
            _print(kept[size], size)
    finally:
        for engine in engines.values():
            engine.close()
    if given.json:
        plain = kept[sizes[0]]["plain"]
        rows = [
            {"id": name, "prompt": ids, "answer": list(answer)}
            for (name, ids), answer in zip(prompts.items(), plain.tokens, strict=True)
        ]
        given.json.write_text(json.dumps(rows), "utf-8")


def _in_turn(
    engines: Mapping[str, Engine], texts: Sequence[Sequence[int]], size: int, max_tokens: int
) -> dict[str, Run]:
    """Let each engine answer each group of prompts, another one first every time."""
    runs = {name: Run() for name in engines}
    known = {name: engine.answer(texts[:1], 1).counts for name, engine in engines.items()}
    names = list(engines)
    for turn, start in enumerate(range(0, len(texts), size)):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            answered = engines[name].answer(texts[start : start + size], max_tokens)
            runs[name].add(answered, known[name])
            known[name] = answered.counts
    return runs


def _print(runs: Mapping[str, Run], size: int) -> None:
    plain = runs["plain"]
    print(f"\n{size} at once")
    print(f"{'':24s} {'ms a token':>10s} {'speed-up':>9s} {'of groups':>9s} {'accept len':>10s} {'tok/step':>8s} "
          f"{'drafted':>8s} {'accepted':>8s} {'same':>9s}")  # fmt: skip
    for name, run in runs.items():
        tokens = sum(map(len, run.tokens))
        equal = sum(list(a) == list(b) for a, b in zip(run.tokens, plain.tokens, strict=True))
        ratio = median([a / b for a, b in zip(plain.ms, run.ms, strict=True)])
        length = run.acceptance_length
        print(
            f"{name:24s} {sum(run.ms) / tokens:10.2f} {sum(plain.ms) / sum(run.ms):9.2f} {ratio:9.2f} "
            f"{'' if length is None else f'{length:.2f}':>10s} {run.tokens_per_step:8.2f} "
            f"{run.counts['draft_tokens']:8d} {run.counts['accepted_tokens']:8d} {f'{equal}/{len(run.tokens)}':>9s}",
            flush=True,
        )


if __name__ == "__main__":
    main()
