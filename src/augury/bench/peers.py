"""Ours beside its peers: the same weights, the same prompts, greedy, one machine, answers in turn.

    make peers                                    # makes the environments of the others first
    python -m augury.bench.peers --environments .peers

Each other engine runs in a process of its own, with the Python of its environment; one that is not installed, does not
start or fails is left out and named, and the others go on. How they are set is in ``others``, and why in
docs/peers.md. The clock is the same for all: from the first piece of the answer to the last, over the tokens in
between, so that the prompt counts for nobody. A peer's rounding may choose other words; its time a token is comparable
all the same, and how many answers were equal is shown.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from typer import Option

from augury.bench.exported import bf16_gguf, file_type, gguf_path, transformers_model
from augury.bench.prompts import own, read, select
from augury.bench.ratios import median
from augury.bench.report import commit, machine, table, versions
from augury.bench.runners import Ours, Peer, PeerFailed, Setup, running
from augury.bench.standings import Standing, compare, standings, usable
from augury.errors import MissingPackage, UnknownName
from augury.tree import DraftTree

if TYPE_CHECKING:
    from rich.console import Console

    from augury.models.target import Target

FORWARD_CONTEXT = 256
FORWARD_ROWS = (1, 8, 16)
FORWARD_REPEATS = 30

CONTEXT_STEP, CONTEXT_SPARE = 256, 64
"""Engines that are told how much context they need are told a multiple of the first, the second left for guesses."""


@dataclass(frozen=True)
class Left:
    """A peer that was left out, and why."""

    peer: str
    reason: str


ENGINES = ("transformers", "vllm", "openvino", "llamacpp")
"""The other engines, by the names of their files in ``workers``."""

NEVER = (
    Left("transformers, assisted generation", "needs a smaller model of the same tokenizer, and none is at hand"),
    Left("transformers, early exit", "needs a model trained for it"),
)
"""Ways to speculate that the others have and that cannot be run with this model."""


def others(model: Path, gguf: Path | None, scratch: Path, threads: int, context: int) -> list[Setup]:
    """How the other engines are run: their defaults, and to guess, what their own documentation shows.

    Args:
        model: a Hugging Face directory.
        gguf: the file of the same model, or None if there is none; then llama.cpp is left out.
        scratch: where ``bf16.gguf`` lies, and converted models may be written.
        threads: of each.
        context: tokens of prompt and answer at most.
    """
    base = {"model": str(model), "threads": threads}
    setups = [
        Setup("transformers", "transformers", "eager", options=base),
        Setup(
            "transformers + prompt lookup", "transformers", "prompt_lookup_num_tokens=5", options=base | {"lookup": 5}
        ),
    ]
    for name, settings, speculation in (
        ("vLLM", "", None),
        (
            "vLLM + n-gram", "num_speculative_tokens=5, prompt_lookup_max=4",
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
        ),
        (
            "vLLM + suffix decoding", "num_speculative_tokens=32, suffix_decoding_max_cached_requests=0",
            {"method": "suffix", "num_speculative_tokens": 32, "suffix_decoding_max_cached_requests": 0},
        ),
    ):  # fmt: skip
        options = base | {"context": context, "speculation": speculation}
        setups.append(Setup(name, "vllm", settings, options=options))
    for int8 in (False, True):
        name, settings = ("OpenVINO, int8 weights", "load_in_8bit") if int8 else ("OpenVINO", "")
        options = base | {"converted": str(scratch / f"openvino-{'int8' if int8 else 'bf16'}"), "int8": int8}
        guess = ", ".join(filter(None, [settings, "num_assistant_tokens=5", "max_ngram_size=3"]))
        setups += [
            Setup(name, "openvino", settings, not int8, options),
            Setup(f"{name} + prompt lookup", "openvino", guess, not int8, options | {"lookup": 5, "ngram": 3}),
        ]
    if gguf is not None:
        for name, file, same in (
            ("llama.cpp", scratch / "bf16.gguf", True), (f"llama.cpp, {file_type(gguf)} file", gguf, False),
        ):  # fmt: skip
            options = {"model": str(file), "threads": threads, "context": context}
            settings = f"{'BF16' if same else file_type(gguf)} GGUF"
            setups += [
                Setup(name, "llamacpp", settings, same, options),
                Setup(
                    f"{name} + prompt lookup", "llamacpp", f"{settings}, num_pred_tokens=2", same,
                    options | {"lookup": 2},
                ),
            ]  # fmt: skip
    return setups


def python_of(engine: str, environments: Path) -> Path:
    """The Python that runs an engine.

    Raises:
        PeerFailed: it has none.
    """
    if engine == "transformers":
        return Path(sys.executable)
    python = environments / engine / "bin" / "python"
    if not python.exists():
        raise PeerFailed(f"not installed: there is no {python}; make {environments / engine / 'ready'}")
    return python


@contextmanager
def started(
    setups: Sequence[Setup], environments: Path, threads: int, progress: Callable[[str], None]
) -> Iterator[tuple[list[Peer], list[Left]]]:
    """Those of the peers that start, and those that do not; the processes end with the context."""
    with ExitStack() as stack:
        found: list[Peer] = []
        left = []
        for setup in setups:
            progress(setup.name)
            try:
                found.append(stack.enter_context(running(setup, python_of(setup.engine, environments), threads)))
            except PeerFailed as failure:
                left.append(Left(setup.name, str(failure)))
        yield found, left


def forwards(target: Target, model: Any, seed: int = 0) -> dict[str, dict[int, float]]:
    """Median milliseconds of a forward by rows, behind 256 tokens, ours and transformers' in turn."""
    import torch
    from transformers import DynamicCache

    rng = np.random.default_rng(seed)
    vocab = target.info.vocab_size
    context = rng.integers(0, vocab, FORWARD_CONTEXT, dtype=np.int32)
    trees = {
        m: DraftTree.chain(rng.integers(0, vocab, m - 1, dtype=np.int32), np.ones(m - 1, np.float32))
        for m in FORWARD_ROWS
    }
    slot = target.open()
    target.prefill(slot, context)
    with torch.inference_mode():
        past = DynamicCache(config=model.config)
        takes = inspect.signature(model.forward).parameters
        options = {"cache" if "cache" in takes else "past_key_values": past, "use_cache": True}
        model(torch.from_numpy(context.astype(np.int64))[None], **options)

        def theirs(rows: int) -> None:
            ids = torch.from_numpy(np.concatenate([[1], trees[rows].tokens]).astype(np.int64))[None]
            model(ids, **options)
            past.crop(-rows)

        runs: Mapping[str, Callable[[int], object]] = {
            "augury": lambda rows: target.verify([slot], [1], [trees[rows]]),
            "transformers": theirs,
        }
        times: dict[str, dict[int, list[float]]] = {name: {m: [] for m in FORWARD_ROWS} for name in runs}
        for turn in range(FORWARD_REPEATS + 2):
            for name, forward in runs.items():
                for rows in FORWARD_ROWS:
                    forward(rows)  # what the other left in the processor's caches is not how decoding runs
                    begin = time.perf_counter()
                    forward(rows)
                    if turn >= 2:  # the first ones warm up
                        times[name][rows].append(1e3 * (time.perf_counter() - begin))
    target.release(slot)
    return {name: {m: median(ms) for m, ms in by_rows.items()} for name, by_rows in times.items()}


# ---- the command ----------------------------------------------------------------------------------------


def main(
    model: Annotated[str, Option(help="Embedded name, GGUF file of the Llama family, or directory.")] = "smollm2-135m",
    drafters: Annotated[str | None, Option(help="Of the drafted answers.", show_default="the default")] = None,
    file: Annotated[Path | None, Option(help="Prompts, as `augury bench` takes them.")] = None,
    kinds: Annotated[str, Option(help="Comma list.", show_default="all")] = "",
    limit: Annotated[int, Option(help="Prompts of each kind.", min=1)] = 1,
    max_tokens: Annotated[int, Option(help="Tokens of each answer at most.", min=2)] = 96,
    rounds: Annotated[int, Option(help="How often each peer answers each prompt.", min=1)] = 2,
    threads: Annotated[int, Option(help="CPU threads of every peer.", min=1)] = 2,
    engines: Annotated[str, Option(help="Comma list of other engines.", show_default="all")] = "",
    environments: Annotated[Path, Option(help="Where the other engines are installed.")] = Path(".peers"),
    json_out: Annotated[Path | None, Option("--json", help="Write everything measured to a file.")] = None,
) -> None:
    """Compare milliseconds a token with other ways to run the same model."""
    from rich.console import Console

    from augury.api import AUTO, load

    asked = _named(engines)
    if importlib.util.find_spec("transformers") is None:
        raise MissingPackage("the comparison", "transformers", "pip install 'augury[hf]'")
    import torch

    torch.set_num_threads(threads)
    console = Console(highlight=False)
    names = [k.strip() for k in kinds.split(",") if k.strip()]
    chosen = select(read(file) if file else own(), names, limit)
    engine = load(model, drafters=drafters or AUTO, threads=threads, max_num_seqs=1)
    prompts = [np.asarray(engine.render(p.text)) for p in chosen]
    longest = max(len(prompt) for prompt in prompts)
    context = CONTEXT_STEP * math.ceil((longest + max_tokens + CONTEXT_SPARE) / CONTEXT_STEP)
    with tempfile.TemporaryDirectory() as directory, console.status("writing the weights") as status:
        scratch = Path(directory)
        by_rows, gguf = _weights(model, engine.target, scratch)
        wanted = [s for s in others(scratch / "model", gguf, scratch, threads, context) if s.engine in asked]
        left = [Left(name, "not asked for") for name in ENGINES if name not in asked]
        if gguf is None and "llamacpp" in asked:
            left.append(Left("llama.cpp", "needs a GGUF file, and the model is a directory"))
        with started(wanted, environments, threads, lambda name: status.update(f"starting {name}")) as (found, absent):
            peers: list[Peer] = [Ours(engine, draft=False), Ours(engine, draft=True), *found]
            total, done = rounds * len(prompts) * len(peers), itertools.count(1)
            answers, failed = compare(
                peers, prompts, engine.eos_ids, max_tokens=max_tokens, rounds=rounds,
                progress=lambda: status.update(f"{next(done)} of {total} answers"),
            )  # fmt: skip
    left += [*absent, *(Left(peers[n].setup.name, reason) for n, reason in failed.items()), *NEVER]
    there = [n for n in range(len(peers)) if n not in failed]
    kept = [answers[n] for n in there]
    rows = standings([peers[n] for n in there], [p.kind for p in chosen], kept)
    used = len(usable(kept))
    _print(console, rows, by_rows, left, f"{used} of {len(prompts)} prompts, greedy, {threads} threads")
    if json_out:
        arguments = {
            "model": model, "drafters": [name for name, _ in engine.parts.drafters],
            "file": str(file) if file else None, "kinds": names, "limit": limit, "max_tokens": max_tokens,
            "rounds": rounds, "threads": threads, "engines": asked,
        }  # fmt: skip
        measured = {
            "arguments": arguments, "target": asdict(engine.target.info), "machine": machine(),
            "versions": versions(), "commit": commit(), "prompts": [{"id": p.id, "kind": p.kind} for p in chosen],
            "standings": [asdict(row) for row in rows], "left_out": [asdict(one) for one in left],
            "forwards": by_rows,
            "answers": [[[asdict(a) for a in by_round] for by_round in by_prompt] for by_prompt in kept],
        }  # fmt: skip
        json_out.write_text(json.dumps(measured, indent=1), "utf-8")


def _weights(model: str, target: Target, scratch: Path) -> tuple[dict[str, dict[int, float]], Path | None]:
    """Write the model for the others, and time forwards of transformers' while it is here; where its GGUF file lies."""
    theirs = transformers_model(model)
    theirs.save_pretrained(scratch / "model")
    gguf = gguf_path(model, scratch)
    if gguf is not None:
        bf16_gguf(gguf, scratch / "bf16.gguf")
    return forwards(target, theirs), gguf


def _named(engines: str) -> list[str]:
    """The engines of a comma list, all for an empty one.

    Raises:
        UnknownName: there is no such engine.
    """
    names = [name.strip() for name in engines.split(",") if name.strip()]
    for name in names:
        if name not in ENGINES:
            raise UnknownName("engine", name, ENGINES)
    return names or list(ENGINES)


def _print(
    console: Console,
    rows: Sequence[Standing],
    by_rows: Mapping[str, Mapping[int, float]],
    left: Sequence[Left],
    title: str,
) -> None:
    """The table of answers, who is not in it, and the table of forwards."""
    comparable = [row for row in rows if row.setup.same_weights and row.setup.engine != "augury"]
    columns = [
        "peer", "ms a token", "tokens/s", f"to {rows[0].setup.name}", "to the best peer", "same tokens",
        "versions and settings",
    ]  # fmt: skip
    cells = []
    for same, heading in ((True, "the same bf16 weights"), (False, "other precision")):
        group = [row for row in rows if row.setup.same_weights == same]
        if group:
            cells += [[heading, *[""] * (len(columns) - 1)], *map(_cells, group)]
    console.print(table(title, columns, cells))
    if comparable:
        best = min(comparable, key=lambda row: row.token_ms)
        console.print(f"the best peer, of those with the same weights, is {best.setup.name}")
    for one in left:
        console.print(f"left out: {one.peer}: {one.reason}", markup=False)
    columns = ["runner", *(f"{m} rows" for m in FORWARD_ROWS)]
    cells = [[name, *(f"{ms[m]:.2f}" for m in FORWARD_ROWS)] for name, ms in by_rows.items()]
    console.print(table(f"one forward behind {FORWARD_CONTEXT} tokens, milliseconds", columns, cells))


def _cells(row: Standing) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in row.versions.items())
    return [
        row.setup.name, f"{row.token_ms:.2f}", f"{1e3 / row.token_ms:.1f}", f"{row.speed:.2f}",
        "" if row.to_best is None else f"{row.to_best:.2f}", f"{row.equal}/{row.answers}",
        f"{packages}{'; ' if row.setup.settings else ''}{row.setup.settings}",
    ]  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
