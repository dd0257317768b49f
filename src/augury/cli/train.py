"""``augury train``: a draft head for a target, or its phrases, from nothing but the target."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from augury.bench.prompts import read as read_prompts
from augury.cli.flags import Running
from augury.cli.terminal import note, progress
from augury.errors import InputError, UnknownName
from augury.models.kinds import KINDS, PHRASES, check_steps

if TYPE_CHECKING:
    from augury.models.target import TargetInfo


def train(
    running: Running,
    kind: Annotated[str, Argument(help=f"Of head: {', '.join(KINDS)}; or {PHRASES}, counted.", metavar="KIND")],
    target: Annotated[str, Argument(help="Embedded name, directory or GGUF file.")],
    out: Annotated[Path, Option(help="Directory for text, state and what is learnt; what is there is gone on with.")],
    prompts: Annotated[
        Path | None, Option(help="Prompts to answer beside those that the target invents: JSONL, or a line each.")
    ] = None,
    share: Annotated[float, Option(help="Of the conversations that begin with one of --prompts.")] = 0.5,
    shards: Annotated[int, Option(help="Files of text.", min=1, rich_help_panel="Text")] = 12,
    conversations: Annotated[int, Option(help="Of one file.", min=1, rich_help_panel="Text")] = 256,
    answer_tokens: Annotated[int, Option(help="Of an answer at most.", min=2, rich_help_panel="Text")] = 256,
    batch: Annotated[int, Option(help="Conversations that run together.", min=1, rich_help_panel="Text")] = 64,
    seed: Annotated[int, Option(help="Of text and head.", min=0, max=2**31 - 1, rich_help_panel="Text")] = 0,
    single: Annotated[
        int,
        Option(help="Passes that teach an eagle its first guess alone.", min=0, rich_help_panel="Head"),
    ] = 6,
    passes: Annotated[int, Option(help="Passes over all steps, after those.", min=1, rich_help_panel="Head")] = 1,
    steps: Annotated[
        int, Option(help="Of its own that an eagle learns on; places that others guess.", rich_help_panel="Head")
    ] = 3,
    rate: Annotated[float, Option(help="Greatest learning rate.", rich_help_panel="Head")] = 1.5e-3,
    drafted: Annotated[int, Option(help="Tokens it can guess.", min=16, rich_help_panel="Head")] = 8192,
    inner: Annotated[int, Option(help="Width of its MLP.", min=16, max=65536, rich_help_panel="Head")] = 1024,
) -> None:
    """Train a draft head on text that the target itself writes; then ``--drafters KIND:DIR/KIND`` uses it. Or count
    phrases in it, for ``--drafters self:phrases=DIR/phrases.safetensors``.

    May be stopped at any time: the same command goes on.
    """
    head = next((known for known in KINDS if known == kind), None)
    if head is not None:
        check_steps(head, steps)
    elif kind != PHRASES:
        raise UnknownName("kind of head", kind, (*KINDS, PHRASES))
    near = next(path for path in (out, *out.resolve().parents) if path.exists())
    if not near.is_dir() or not os.access(near, os.W_OK):
        raise InputError(f"--out {out}: {near} is no directory that can be written to; name another")
    if not 0.0 < rate < 1.0:
        raise InputError(f"rate is {rate}; it must lie between 0 and 1, such as 1.5e-3")
    from augury.models.load import load_target
    from augury.train.collect import collect
    from augury.train.fit import Recipe
    from augury.train.head import default_taps, fit_head, fits_on

    asked = [] if prompts is None else [prompt.text for prompt in read_prompts(prompts)]
    with progress() as told:
        loaded = load_target(
            target, dtype=running.dtype, device=running.device, threads=running.threads,
            max_model_len=running.max_model_len, max_num_seqs=batch, runner=running.runner, progress=told,
        )  # fmt: skip
        taps = default_taps(loaded.target.info.layers)
        made = collect(
            loaded, out / "data", shards=shards, taps=taps, conversations=conversations, batch=batch, seed=seed,
            answer_tokens=answer_tokens, prompts=asked, share=share, progress=told,
        )  # fmt: skip
        for one in made:
            note(
                f"shard {one.number + 1} of {shards}: {one.conversations} conversations, {one.answer_tokens} answer "
                f"tokens, {one.tokens_per_second:.0f} a second"
            )
    if head is None:
        _count(loaded.target.info, out, taps, seed, shards)
        return
    recipe = Recipe(single if kind == "eagle" else 0, passes, steps=steps, rate=rate, seed=seed)
    clock = time.perf_counter()
    with (out / f"{kind}-log.jsonl").open("a", encoding="utf-8") as log:
        for now in fit_head(
            loaded, out, kind=head, taps=taps, recipe=recipe, drafted=drafted, inner=inner, seed=seed,
            shards=shards, device=fits_on(loaded),
        ):  # fmt: skip
            line = (
                f"pass {now.done:.2f} of {recipe.whole}: loss {now.loss:.3f}, {now.rows_per_second:.0f} rows a second"
            )
            entry: dict[str, object] = {"pass": now.done, "loss": now.loss, "seconds": time.perf_counter() - clock}
            if now.measured is not None and not now.measured.chains:
                line += "; nothing was held out: too little greedy text"
            elif now.measured is not None:
                depths = " ".join(f"{share:.2f}" for share in now.measured.by_depth)
                line += f"; held out: tokens a step {now.measured.length:.3f}, right by depth {depths}"
                entry |= {"length": now.measured.length, "by_depth": now.measured.by_depth}
            note(line)
            log.write(json.dumps(entry) + "\n")
            log.flush()
    typer.echo(f"use it with: --drafters suffix,prediction,{kind}:{out / kind}")


def _count(info: TargetInfo, out: Path, taps: Sequence[int], seed: int, shards: int) -> None:
    """Count the phrases in the text and write them."""
    from augury.drafters.phrases import FILE, write_table
    from augury.train.phrases import count_phrases

    table = count_phrases(info, out / "data", taps, seed, shards)
    write_table(out / FILE, table)
    note(f"{len(table.keys)} phrases, {(out / FILE).stat().st_size} bytes")
    typer.echo(f"use them with: --drafters suffix,prediction,self:phrases={out / FILE}")
