"""Where drafting is cheap: a target of a billion weights, with the answers of a small one.

``python -m augury.bench.large`` answers our own prompts with the embedded model, and notes what it said and what it
would have guessed in 4 bits. Then it measures plain against drafted decoding on a target of the shape of Llama 3.2 1B,
whose weights are random and whose answers are those notes; ``replayed.py`` says what of it is real. The vocabulary is
that of the embedded model, so that its tokens fit. Each prompt is answered plainly and in two ways drafted, in turn:

- ``auto``: copying, and the large target in 4 bits, whose guesses cost what they cost at its size and are right where
  the small one's were; what the small one usually says is read along;
- copying, and the embedded model as a draft model that guesses in 4 bits: nothing of it is replayed, but it guesses its
  own words, so it is right more often than a draft model is that must guess a stranger's.

No speed-up of these tables is that of a model that anybody has: one of this size is guessed as often as its own answers
can be, not as often as those of the small one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from augury.api import AUTO, automatic
from augury.bench.document import Run, document
from augury.bench.forward import floor
from augury.bench.paired import WARM_UP_TOKENS, Pair, arms, question
from augury.bench.prompts import Prompt, own, read, select
from augury.bench.ratios import median
from augury.bench.replayed import Recorded, Replayed, recorded
from augury.bench.report import by_kind, notes
from augury.drafters import check, make, split
from augury.engine.costs import profile
from augury.engine.engine import Engine
from augury.errors import AuguryError, InputError, ModelError
from augury.models.config import BlockConfig
from augury.models.families import block_config
from augury.models.native import NativeForward, native_available
from augury.models.runner import Runner, capacity
from augury.models.target import Target, TargetInfo
from augury.models.weights import shapes
from augury.sampling import Sampling
from augury.tree import IntArray

LLAMA_1B: Mapping[str, Any] = MappingProxyType({
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu",
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
})  # fmt: skip
"""Llama 3.2 1B without its vocabulary and the scaling of its rotation, which long contexts alone need."""

CONTEXT = 2048
_SHOWN = 16  # rows of the longest forward whose time is printed
_SPREAD = 0.02  # standard deviation of weights, as models are initialised with


class RandomWeights(Mapping[str, torch.Tensor]):
    """Weights of a config: norms of ones, all others cut from the same noise, which a forward does not notice, as every
    linear is packed into memory of its own.
    """

    def __init__(self, config: BlockConfig) -> None:
        self.shapes = shapes(config)
        most = max(int(np.prod(shape)) for shape in self.shapes.values())
        self._noise = torch.empty(most).normal_(0.0, _SPREAD, generator=torch.Generator().manual_seed(0))
        self._noise = self._noise.to(torch.bfloat16)

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        return torch.ones(shape) if name.endswith("_norm") else self._noise[: int(np.prod(shape))].view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def shaped(shape: Mapping[str, Any], vocab_size: int, name: str, threads: int | None = None) -> Target:
    """A target of random weights under the compiled forward.

    Args:
        shape: a Hugging Face config without ``vocab_size``.
        vocab_size: of the model whose tokens it is to read.
        name: for the reader.
        threads: see ``NativeForward``.

    Raises:
        ModelError: the compiled forward cannot run here.
    """
    if why := native_available():
        raise ModelError(f"forwards of a large shape are measured with the compiled forward, which cannot run: {why}")
    config = block_config({**shape, "vocab_size": vocab_size}, CONTEXT)
    weights = RandomWeights(config)
    forward = NativeForward(config, weights, 1, capacity(config.context), threads=threads)
    count = sum(int(np.prod(one)) for one in weights.shapes.values())
    info = TargetInfo(
        name=name, family=config.family, runner="", dtype="bfloat16", vocab_size=vocab_size, context=config.context,
        hidden_size=config.hidden_size, layers=config.layers, parameters=count, weight_bytes=forward.weight_bytes,
        trees=True, exact=True,
    )  # fmt: skip
    return Runner(forward, info, 1)


def record(engine: Engine, prompt: str | IntArray, max_tokens: int) -> Recorded:
    """What a real engine answers, greedily, and what its target in 4 bits would have guessed of it."""
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode(prompt, start=True) if isinstance(prompt, str) else prompt
    engine.close()
    answer = engine.generate(ids, max_tokens=max_tokens, draft=False).tokens
    engine.close()
    return recorded(engine.target, ids, answer)


def warm_up(engine: Engine, prompts: Sequence[Prompt]) -> Recorded:
    """What ``paired.arms`` begins with: guesses that are never right would teach the loop not to ask for any."""
    return record(engine, question(engine, prompts[0])[::-1], WARM_UP_TOKENS)


def measure(
    real: Engine, target: Replayed, ways: Sequence[str], prompts: Sequence[Prompt], *, max_tokens: int, rounds: int
) -> Iterator[list[Pair]]:
    """For each prompt a pair of a plain and a drafted answer for each way, by the loop with measured costs.

    Args:
        real: whose tokenizer, template and end tokens the answers have.
        target: with records of all prompts and of ``warm_up``, and a free slot.
        ways: lists of drafters as for ``augury.load``; a head that was trained for the real target cannot be made.
        prompts: at least one.
        max_tokens: of each answer at most, those of the records.
        rounds: how often each prompt is answered each way.
    """
    listed = [[name for one in split(way) for name in (automatic(target) if one == AUTO else [one])] for way in ways]
    names = _names(dict.fromkeys(spec for way in listed for spec in way))
    meter = profile(target)
    made = [
        (name, make(spec, target=target, tokenizer=real.tokenizer, vocab_size=target.info.vocab_size, slots=1,
                    target_threads=None, costs=lambda: meter.costs))
        for spec, name in names.items()
    ]  # fmt: skip
    with Engine(
        target, made, tokenizer=real.tokenizer, template=real.template, eos_ids=real.eos_ids, meter=meter
    ) as engine:
        arms_of = [tuple(names[spec] for spec in way) for way in listed]
        yield from arms(engine, prompts, Sampling(), arms_of, max_tokens=max_tokens, rounds=rounds, warm=True)


def _names(specs: Iterable[str]) -> dict[str, str]:
    """Drafters as a table has room for them: without their options where that says which."""
    short = {spec: spec.partition(":")[0] for spec in specs}
    return {spec: name if list(short.values()).count(name) == 1 else spec for spec, name in short.items()}


def as_recorded(pairs: Sequence[Pair], records: Mapping[str, Recorded]) -> int:
    """How many of the pairs have the recorded tokens, plain and drafted."""
    return sum(pair.plain.tokens == records[pair.prompt.id].answer == pair.drafted.tokens for pair in pairs)


def times(target: Replayed) -> list[str]:
    """What forwards of some rows took in the run, medians in milliseconds, a line each kind."""
    lines = []
    for name, found in (("verify", target.verify_ms), ("guess in fewer bits", target.guess_ms)):
        each = [f"{rows}: {median(found[rows]):.1f}" for rows in sorted(found) if rows <= _SHOWN]
        lines.append(f"ms of a {name} by rows: {', '.join(each)}" if each else f"no {name}")
    return lines


def main(arguments: Sequence[str] | None = None, shape: Mapping[str, Any] = LLAMA_1B) -> int:
    """Print the table. Exit code 1: an answer is not the recorded one."""
    parser = argparse.ArgumentParser(
        prog="python -m augury.bench.large",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="whose answers are replayed")
    parser.add_argument("--drafters", action="append", help="a way in place of these two; repeatable")
    parser.add_argument("--file", type=Path, help="prompts, as for augury bench; the project's own without it")
    parser.add_argument("--kinds", default="", help="comma list of kinds")
    parser.add_argument("--limit", type=int, default=1, help="prompts of each kind")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all that was measured, which augury bench --from shows")
    given = parser.parse_args(arguments)
    try:
        return _run(given, shape)
    except AuguryError as error:
        print(f"augury: {error}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace, shape: Mapping[str, Any]) -> int:
    from rich.console import Console

    import augury

    for name in ("limit", "max_tokens", "rounds"):
        if getattr(given, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} is {getattr(given, name)}; it must be 1 or more")
    ways = given.drafters or [AUTO, f"suffix,prediction,grammar,model:{given.model},bits=4"]
    for spec in (spec for way in ways for spec in split(way) if spec != AUTO):
        check(spec)  # before minutes are spent
    kinds = [kind for kind in given.kinds.split(",") if kind]
    prompts = select(own() if given.file is None else read(given.file), kinds, given.limit)
    real = augury.load(given.model, drafters="none", max_num_seqs=1, measure=False, runner="native")
    records: dict[str, Recorded] = {}
    for prompt in prompts:
        one = records[prompt.id] = record(real, question(real, prompt), given.max_tokens)
        print(f"recorded {prompt.id}: {len(one.answer)} tokens, {one.right:.0%} guessed in 4 bits", file=sys.stderr)
    name = f"a Llama of {shape['num_hidden_layers']} x {shape['hidden_size']}"
    large = shaped(shape, real.target.info.vocab_size, name)
    assert isinstance(large, Runner)
    assert isinstance(large.forward, NativeForward)
    target = Replayed(large, [*records.values(), warm_up(real, prompts)], real.target.info.digest)
    found: list[list[Pair]] = [[] for _ in ways]
    for pairs in measure(real, target, ways, prompts, max_tokens=given.max_tokens, rounds=given.rounds):
        for of_way, pair in zip(found, pairs, strict=True):
            of_way.append(pair)
        print(f"{pairs[0].prompt.id}: {', '.join(f'{pair.speedup:.2f}' for pair in pairs)}", file=sys.stderr)
    runs = [Run(way, 0.0, pairs) for way, pairs in zip(ways, found, strict=True)]
    info, answered = target.info, [pair for pairs in found for pair in pairs]
    print(
        f"{info.name}, {info.parameters / 1e9:.2f} G random weights, {info.runner}; the answers are those of "
        f"{real.target.info.name}, replayed"
    )
    for run in runs:
        Console().print(by_kind(run.drafters, run.summary))
        print("\n".join(notes(run.summary)) + "\n")
    kept = as_recorded(answered, records)
    said = [
        f"{kept} of {len(answered)} pairs have the recorded tokens",
        f"guesses in 4 bits of the recorded answers: {np.mean([one.right for one in records.values()]):.0%} right",
        *times(target),
        floor(info.weight_bytes, large.forward.threads, digits=1),
    ]
    print("\n".join(said))
    if given.json:
        kept_file = document({**vars(given)}, info, runs)
        kept_file["replayed"] = {"model": real.target.info.name, "as_recorded": kept, "notes": said}
        given.json.write_text(json.dumps(kept_file, indent=1, default=str) + "\n", "utf-8")
    return 0 if kept == len(answered) else 1


if __name__ == "__main__":
    sys.exit(main())
