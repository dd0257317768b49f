"""vLLM plain, with its own proposers, and with our drafters: the same prompts, on one machine.

    python -m augury_vllm.compare DIRECTORY [--file PROMPTS] [--at-once 1,16] [--results FILE]

Engines run one after the other, each in a process of its own, and the table so far is printed as each ends. With
``--results`` what an engine did is kept, and not done again: so a long comparison can be run in parts, some engines at
a time, and the last part prints the whole table. Answers are greedy and of one length, so that all do the same work.
The acceptance length is vLLM's own: 1 + accepted tokens / drafts, of the steps that had a draft; beside it stand the
tokens of a step, those without a draft included, which is what a reader waits for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from augury.bench.prompts import Prompt, own, read, select
from augury.durable import replacing
from augury.errors import InputError, UnknownName, shown
from augury.models.load import load_wording
from augury_vllm.arguments import options, sizes, whole
from augury_vllm.engine import COUNTS, Answered, Engine
from augury_vllm.options import ROW, Options

TOKENS = 5
"""``num_speculative_tokens`` of all who are not told otherwise."""

PLAIN = "plain"


@dataclass
class Run:
    """What one engine did with so many prompts at once.

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

    @property
    def ms_per_token(self) -> float:
        """Of all answers; their prompts included."""
        return sum(self.ms) / sum(map(len, self.tokens))


def speculations(drafters: str, augury: Mapping[str, Any], tokens: int) -> dict[str, dict[str, Any]]:
    """Arguments of ``vllm.LLM`` by the name of the way to speculate; given prices are those of a GPU."""
    ours = {"method": "custom_class", "model": "augury_vllm.AuguryProposer", "num_speculative_tokens": tokens}
    lookup = {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    suffix = {"method": "suffix", "num_speculative_tokens": tokens}
    return {
        PLAIN: {},
        "vllm-ngram": {"speculative_config": lookup},
        "vllm-suffix": {"speculative_config": suffix | {"suffix_decoding_max_cached_requests": 0}},
        "vllm-suffix-cached": {"speculative_config": suffix},
        **{
            f"augury-{prices}": {
                "speculative_config": ours,
                "additional_config": {"augury": {"drafters": drafters, **row, **augury, "prices": prices}},
            }
            for prices, row in (("given", {"row": ROW}), ("measured", {}))
        },
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


class Results:
    """What engines did: ``runs[size][name]``, kept in a file if one is given.

    Args:
        file: where it is kept, or None; what is there already is read.
        same: what must be equal of all that one file keeps.

    Raises:
        InputError: the file is of another comparison.
    """

    def __init__(self, file: Path | None, same: Mapping[str, Any]) -> None:
        self._file, self._same = file, dict(same)
        self.runs: dict[int, dict[str, Run]] = {}
        if file is None or not file.exists():
            return
        try:
            kept = json.loads(file.read_text("utf-8"))
            known = {name: kept["same"][name] for name in self._same}
            self.runs = {int(s): {name: Run(**run) for name, run in by.items()} for s, by in kept["runs"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{file} holds no results of augury_vllm.compare") from None
        for name, value in self._same.items():
            if known[name] != value:
                raise InputError(
                    f"{file} was made with {name} {shown(known[name])}, not {shown(value)}; give that, or another file"
                )

    def lacks(self, name: str, sizes: Sequence[int]) -> list[int]:
        """The sizes that an engine has still to run with."""
        return [size for size in sizes if name not in self.runs.get(size, {})]

    def add(self, size: int, name: str, run: Run) -> None:
        """Add what an engine did with ``size`` prompts at once."""
        self.runs.setdefault(size, {})[name] = run
        if self._file is not None:
            runs = {size: {name: asdict(run) for name, run in by.items()} for size, by in self.runs.items()}
            with replacing(self._file) as beside:
                beside.write_text(json.dumps({"same": self._same, "runs": runs}), "utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Compare ways to speculate in vLLM.")
    parser.add_argument("model", help="a directory, such as augury_vllm.model writes")
    parser.add_argument("--file", type=Path, help="prompts, as augury bench takes them (default: our own)")
    parser.add_argument("--limit", type=whole(), help="prompts of each kind")
    parser.add_argument("--max-tokens", type=whole(2), default=64, help="of an answer; the first comes with the prompt")
    parser.add_argument("--at-once", type=sizes, default="1,16", help="requests at once, a comma list")
    parser.add_argument("--tokens", type=whole(), default=TOKENS, help="num_speculative_tokens")
    parser.add_argument("--drafters", default="suffix")
    parser.add_argument("--augury", type=options, default={}, help="further options of augury, as JSON")
    parser.add_argument("--only", default="", help=f"a comma list of {', '.join(speculations('', {}, 0))}")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true", help="let vLLM compile the model, which takes minutes")
    parser.add_argument("--context", type=whole(), default=2048)
    parser.add_argument("--results", type=Path, help="a JSON file that keeps what engines did, for the next run too")
    parser.add_argument("--json", type=Path, help="where prompts and plain answers go, for augury_vllm.overhead")
    given = parser.parse_args()
    try:
        _compare(given)
    except (InputError, RuntimeError) as error:
        parser.error(str(error))


def _compare(given: argparse.Namespace) -> None:
    Options.of({"augury": {"drafters": given.drafters, **given.augury}})  # its mistakes, before any engine starts
    chosen = select(read(given.file) if given.file else own(), (), given.limit)
    prompts = prompts_of(given.model, chosen, given.context - given.max_tokens - 1)
    if not prompts:
        raise InputError(f"no prompt and {given.max_tokens} tokens fit --context {given.context}; raise it")
    ways = speculations(given.drafters, given.augury, given.tokens)
    names = [name.strip() for name in given.only.split(",") if name.strip()] or list(ways)
    for name in names:
        if name not in ways:
            raise UnknownName("engine", name, list(ways))
    same = {
        "model": str(given.model), "prompts": list(prompts.values()), "max_tokens": given.max_tokens,
        "dtype": given.dtype, "num_speculative_tokens": given.tokens, "drafters": given.drafters,
        "augury": given.augury, "context": given.context, "compile": given.compile,
    }  # fmt: skip
    results = Results(given.results, same)
    base = {
        "model": given.model, "dtype": given.dtype, "max_model_len": given.context, "max_num_seqs": max(given.at_once),
        "enable_prefix_caching": False, "skip_tokenizer_init": True, "seed": 0,
        "enforce_eager": not given.compile,
    }  # fmt: skip
    print(f"{len(prompts)} prompts, {given.max_tokens} tokens each, {given.dtype}, num_speculative_tokens "
          f"{given.tokens}, drafters {given.drafters}, augury {given.augury}", flush=True)  # fmt: skip
    texts, printed = list(prompts.values()), False
    for name in names:
        if left := results.lacks(name, given.at_once):
            _run(name, base | ways[name], texts, left, given.max_tokens, results)
            _print(results, given.at_once, list(ways))
            printed = True
    if not printed:
        _print(results, given.at_once, list(ways))
    if given.json:
        plain = results.runs.get(given.at_once[0], {}).get(PLAIN)
        if plain is None:
            raise InputError(f"--json wants plain answers, and --only names {given.only}; name {PLAIN} too")
        rows = [
            {"id": name, "prompt": ids, "answer": list(answer)}
            for (name, ids), answer in zip(prompts.items(), plain.tokens, strict=True)
        ]
        given.json.write_text(json.dumps(rows), "utf-8")


def _run(
    name: str,
    options: Mapping[str, Any],
    texts: Sequence[Sequence[int]],
    sizes: Sequence[int],
    max_tokens: int,
    results: Results,
) -> None:
    """Let one engine answer all prompts, so many at once."""
    _progress(f"{name}: starting")
    engine = Engine(options)
    try:
        known = engine.answer(texts[: max(sizes)], 8).counts  # caches are filled, and what is compiled late
        for size in sizes:
            run = Run()
            for start in range(0, len(texts), size):
                answered = engine.answer(texts[start : start + size], max_tokens)
                run.add(answered, known)
                known = answered.counts
                _progress(
                    f"{name}: {size} at once, {len(run.tokens)} of {len(texts)} prompts, {sum(run.ms) / 1e3:.1f} s"
                )
            results.add(size, name, run)
    finally:
        engine.close()


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(results: Results, sizes: Sequence[int], names: Sequence[str]) -> None:
    """The table so far."""
    print(f"\n{'at once':>7s} {'':18s} {'tok/step':>8s} {'ms a token':>10s} {'speed-up':>8s} {'accept len':>10s} "
          f"{'drafted':>8s} {'accepted':>8s} {'same text':>9s}")  # fmt: skip
    for size in sizes:
        runs = results.runs.get(size, {})
        plain = runs.get(PLAIN)
        for name in [name for name in names if name in runs]:
            run, length = runs[name], runs[name].acceptance_length
            faster, same = "", ""
            if plain is not None:
                equal = sum(list(a) == list(b) for a, b in zip(run.tokens, plain.tokens, strict=True))
                faster, same = f"{plain.ms_per_token / run.ms_per_token:.2f}", f"{equal}/{len(run.tokens)}"
            print(f"{size:7d} {name:18s} {run.tokens_per_step:8.2f} {run.ms_per_token:10.2f} {faster:>8s} "
                  f"{'' if length is None else f'{length:.2f}':>10s} {run.counts['draft_tokens']:8d} "
                  f"{run.counts['accepted_tokens']:8d} {same:>9s}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
