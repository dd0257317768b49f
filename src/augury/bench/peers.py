"""Ours beside its peers: the same weights, the same prompts, greedy, one machine, answers in turn.

    python -m augury.bench.peers --openvino-python PATH

Peers are ``transformers`` in bf16, alone and with prompt lookup, and OpenVINO in bf16, alone and with prompt
lookup, the latter two in a Python of their own that has openvino-genai and optimum-intel. The clock is the
same for all: from the first piece of the answer to the last, over the tokens in between, so that the prompt
counts for nobody. A peer's rounding may choose other words; its time a token is comparable all the same, and
how many answers were equal is shown.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import json
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

from augury.bench.prompts import own, read, select
from augury.bench.ratios import geometric_mean, median
from augury.bench.report import commit, machine, table, versions
from augury.bench.runners import Ours, Peer, Timed, Transformers, converted, openvino, transformers_model
from augury.errors import InputError, MissingPackage
from augury.tree import DraftTree, IntArray

if TYPE_CHECKING:
    from rich.console import Console

    from augury.engine.engine import Engine
    from augury.models.target import Target

FORWARD_CONTEXT = 256
FORWARD_ROWS = (1, 8, 16)
FORWARD_REPEATS = 30

REST_SECONDS = 0.3
"""Pause before an answer: threads of the peer before spin for up to 0.2 seconds after their last work."""


@dataclass(frozen=True)
class Standing:
    """One peer over all prompts.

    Attributes:
        peer: its name.
        token_ms: median over prompts of the median over rounds.
        speed: how many times as fast as the first peer: geometric mean of the prompts' ratios.
        equal: answers with the tokens of the first peer's first answer.
        answers: how many.
    """

    peer: str
    token_ms: float
    speed: float
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
) -> list[list[list[Timed]]]:
    """Answers by peer, prompt and round. Peers take turns at every prompt; who begins moves on by one."""
    for peer in peers:
        peer.answer(prompts[0], 16, eos)
    answers: list[list[list[Timed]]] = [[[] for _ in prompts] for _ in peers]
    for turn in range(rounds):
        for number, prompt in enumerate(prompts):
            for place in range(len(peers)):
                index = (place + number + turn) % len(peers)
                time.sleep(REST_SECONDS)
                answers[index][number].append(peers[index].answer(prompt, max_tokens, eos))
                if progress:
                    progress()
    return answers


def standings(names: Sequence[str], answers: Sequence[Sequence[Sequence[Timed]]]) -> list[Standing]:
    """What the answers come to; a prompt that some peer answers in one piece says nothing of time and is left out."""
    times = [[_typical(rounds) for rounds in by_prompt] for by_prompt in answers]
    usable = [n for n in range(len(answers[0])) if all(by_prompt[n] is not None for by_prompt in times)]
    if not usable:
        raise InputError("no prompt was answered in two pieces or more by all peers; allow more tokens")
    rows = []
    for name, by_prompt, by_time in zip(names, answers, times, strict=True):
        ratios = [(times[0][n] or 0.0) / (by_time[n] or 0.0) for n in usable]
        every = [(n, answer) for n, rounds in enumerate(by_prompt) for answer in rounds]
        rows.append(
            Standing(
                peer=name,
                token_ms=median([by_time[n] or 0.0 for n in usable]),
                speed=geometric_mean(ratios),
                equal=sum(answer.tokens == answers[0][n][0].tokens for n, answer in every),
                answers=len(every),
            )
        )
    return rows


def _typical(rounds: Sequence[Timed]) -> float | None:
    times = [t for answer in rounds if (t := answer.token_ms) is not None]
    return median(times) if times else None


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
            "transformers bf16": theirs,
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
    openvino_python: Annotated[Path | None, Option(help="A Python with openvino-genai and optimum-intel.")] = None,
    json_out: Annotated[Path | None, Option("--json", help="Write everything measured to a file.")] = None,
) -> None:
    """Compare milliseconds a token with other ways to run the same model."""
    from rich.console import Console

    from augury.api import AUTO, load

    if importlib.util.find_spec("transformers") is None:
        raise MissingPackage("the comparison", "transformers", "pip install 'augury[hf]'")
    import torch

    torch.set_num_threads(threads)
    console = Console(highlight=False)
    names = [k.strip() for k in kinds.split(",") if k.strip()]
    chosen = select(read(file) if file else own(), names, limit)
    engine = load(model, drafters=drafters or AUTO, threads=threads, max_num_seqs=1)
    theirs = transformers_model(model)
    by_rows = forwards(engine.target, theirs)
    prompts = [np.asarray(engine.render(p.text)) for p in chosen]
    if openvino_python is None:
        console.print("OpenVINO is left out: no --openvino-python was given")
    with _peers(engine, theirs, openvino_python, threads) as peers, console.status("measuring") as status:
        total, done = rounds * len(prompts) * len(peers), itertools.count(1)
        answers = compare(
            peers, prompts, engine.eos_ids, max_tokens=max_tokens, rounds=rounds,
            progress=lambda: status.update(f"{next(done)} of {total} answers"),
        )  # fmt: skip
        found = standings([p.name for p in peers], answers)
    _print(console, found, by_rows, f"{len(prompts)} prompts, greedy, {threads} threads")
    if json_out:
        arguments = {
            "model": model, "drafters": [name for name, _ in engine.parts.drafters],
            "file": str(file) if file else None, "kinds": names, "limit": limit, "max_tokens": max_tokens,
            "rounds": rounds, "threads": threads,
        }  # fmt: skip
        measured = {
            "arguments": arguments, "target": asdict(engine.target.info), "machine": machine(),
            "versions": versions(), "commit": commit(), "prompts": [p.id for p in chosen],
            "standings": [asdict(s) for s in found], "forwards": by_rows,
            "answers": [[[asdict(a) for a in by_round] for by_round in by_prompt] for by_prompt in answers],
        }  # fmt: skip
        json_out.write_text(json.dumps(measured, indent=1), "utf-8")


@contextmanager
def _peers(engine: Engine, theirs: Any, openvino_python: Path | None, threads: int) -> Iterator[list[Peer]]:
    """All that are compared, ours first; OpenVINO's processes end with the context."""
    peers: list[Peer] = [
        Ours(engine, draft=False),
        Ours(engine, draft=True),
        Transformers(theirs, lookup=False),
        Transformers(theirs, lookup=True),
    ]
    with ExitStack() as stack:
        if openvino_python is not None:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            directory = converted(openvino_python, theirs, scratch)
            for lookup in (False, True):
                peers.append(stack.enter_context(openvino(openvino_python, directory, threads, lookup)))
        yield peers


def _print(console: Console, found: Sequence[Standing], by_rows: Mapping[str, Mapping[int, float]], title: str) -> None:
    """The table of answers and that of forwards."""
    columns = ["peer", "ms a token", f"speed ({found[0].peer} = 1)", "same tokens"]
    cells = [[s.peer, f"{s.token_ms:.2f}", f"{s.speed:.2f}", f"{s.equal}/{s.answers}"] for s in found]
    console.print(table(title, columns, cells))
    columns = ["runner", *(f"{m} rows" for m in FORWARD_ROWS)]
    cells = [[name, *(f"{ms[m]:.2f}" for m in FORWARD_ROWS)] for name, ms in by_rows.items()]
    console.print(table(f"one forward behind {FORWARD_CONTEXT} tokens, milliseconds", columns, cells))


if __name__ == "__main__":
    typer.run(main)
