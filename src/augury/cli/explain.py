"""``augury explain``: an answer step by step, with who guessed what and what the target thought of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from augury.cli.flags import Asking, Ending, Expecting, Guessing, Law, Loading
from augury.cli.terminal import check_output, write
from augury.cli.tracing import Tracing

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.record import RequestRecord
    from augury.sampling import Sampling
    from augury.tree import IntArray


def explain(
    asking: Asking,
    loading: Loading,
    guessing: Guessing,
    expecting: Expecting,
    law: Law,
    ending: Ending,
    tracing: Tracing,
    html: Annotated[
        Path | None,
        Option("--html", help="Write a page of the answer to a file: every tree, and why.", rich_help_panel="Output"),
    ] = None,
) -> None:
    """Answer one prompt and show every step: the guesses as a tree, the target's verdict, the price."""
    from rich.console import Console

    from augury.trace.explain import step, summary

    asking.check()
    ending.check(law)
    tracing.check()
    check_output("--html", html)
    drafters = expecting.drafters(guessing)
    text, prediction = asking.text(), expecting.text()
    engine = loading.engine(drafters, guessing.acceptance)
    # A line of a tree is as long as it is: in a pipe or a file nothing is wrapped at an invented width.
    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    assert engine.tokenizer is not None
    token = engine.tokenizer.token_bytes
    prompt, sampling, count = asking.ids(engine, text), _seeded(law.sampling(engine)), 0
    with tracing.opened(engine, "explain") as trace:
        stream = engine.stream(
            prompt,
            sampling,
            max_tokens=ending.max_tokens,
            stop=ending.stop,
            ignore_eos=ending.ignore_eos,
            prediction=prediction,
            explain=True,
        )
        for chunk in trace.follow(stream, engine, prompt, sampling):
            if chunk.step is not None:
                count += 1
                console.print(step(count, chunk.step, chunk.record.drafters, token))
    console.print()
    console.print(summary(chunk.record))
    if html is not None:
        write(html, _page(engine, chunk.record, sampling, prompt), "the page")


def _seeded(sampling: Sampling) -> Sampling:
    """The sampling with a seed where it draws: the arithmetic of a draw begins with it."""
    import secrets

    if sampling.temperature == 0.0 or sampling.seed is not None:
        return sampling
    return replace(sampling, seed=secrets.randbits(63))


def _page(engine: Engine, record: RequestRecord, sampling: Sampling, prompt: IntArray) -> str:
    """The answer as a page; its clock begins with the request."""
    from augury.picture.answer import page
    from augury.trace import events
    from augury.trace.told import Teller

    assert engine.tokenizer is not None
    info, teller = engine.target.info, Teller(record.began, engine.tokenizer.token_bytes)
    header = events.header(
        model=info.name, runner=info.runner, drafters=record.drafters, source="explain", text=True, zero=teller.zero
    )
    label = "drafted" if record.drafters else "plain"
    begin = teller.begin(0, record, prompt, label=label, rule=engine.acceptance, sampling=sampling)
    return page(header, begin, [teller.step(0, n, step) for n, step in enumerate(record.steps)], record)
