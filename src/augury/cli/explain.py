"""``augury explain``: an answer step by step, with who guessed what and what the target thought of it."""

from __future__ import annotations

import sys

from augury.cli.flags import Asking, Ending, Expecting, Guessing, Law, Loading


def explain(
    asking: Asking, loading: Loading, guessing: Guessing, expecting: Expecting, law: Law, ending: Ending
) -> None:
    """Answer one prompt and show every step: the guesses as a tree, the target's verdict, the price."""
    from rich.console import Console

    from augury.trace.explain import step, summary

    asking.check()
    ending.check(law)
    drafters = expecting.drafters(guessing)
    text, prediction = asking.text(), expecting.text()
    engine = loading.engine(drafters, guessing.acceptance)
    # A line of a tree is as long as it is: in a pipe or a file nothing is wrapped at an invented width.
    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    assert engine.tokenizer is not None
    token = engine.tokenizer.token_bytes
    count = 0
    for chunk in engine.stream(
        asking.ids(engine, text),
        law.sampling(engine),
        max_tokens=ending.max_tokens,
        stop=ending.stop,
        ignore_eos=ending.ignore_eos,
        prediction=prediction,
        explain=True,
    ):
        if chunk.step is not None:
            count += 1
            console.print(step(count, chunk.step, chunk.record.drafters, token))
    console.print()
    console.print(summary(chunk.record))
