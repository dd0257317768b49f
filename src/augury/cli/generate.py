"""``augury generate``: one prompt, one answer, and nothing but the answer on stdout."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

from typer import Option

from augury.cli.flags import Asking, Belonging, Ending, Expecting, Guessing, Law, Loading, Shaping
from augury.cli.ribbon import Pen, Ribbon
from augury.cli.terminal import note
from augury.cli.tracing import Tracing
from augury.errors import InputError
from augury.trace.explain import legible
from augury.trace.figures import figures, line

if TYPE_CHECKING:
    from augury.engine.engine import Tokenizer
    from augury.engine.request import Chunk, TokenLogprob

_IMPOSSIBLE = -9999.0  # how OpenAI's interface writes the logarithm of zero: JSON has no infinities


def generate(
    asking: Asking,
    loading: Loading,
    guessing: Guessing,
    expecting: Expecting,
    belonging: Belonging,
    law: Law,
    shaping: Shaping,
    ending: Ending,
    tracing: Tracing,
    show_drafts: Annotated[
        bool, Option("--show-drafts", help="Mark what each drafter guessed.", rich_help_panel="Output")
    ] = False,
    logprobs: Annotated[
        int | None,
        Option(
            help="Log-probabilities of the tokens and of N alternatives: on stderr, or in the JSON.",
            show_default=False,
            rich_help_panel="Output",
        ),
    ] = None,
    stats: Annotated[bool, Option(help="A line of statistics on stderr.", rich_help_panel="Output")] = True,
    as_json: Annotated[
        bool, Option("--json", help="One JSON object instead of the text.", rich_help_panel="Output")
    ] = False,
) -> None:
    """Answer one prompt. Only the answer goes to stdout, as it comes."""
    asking.check()
    ending.check(law)
    belonging.check()
    tracing.check()
    drafters = expecting.drafters(guessing)
    if as_json and show_drafts:
        raise InputError("--json names the drafter of every token by itself; leave out --show-drafts")
    form = shaping.source()
    if form is not None and ending.ignore_eos and not law.stop_token_ids:
        raise InputError("with a grammar the answer needs an end token to end with; leave out --ignore-eos")
    text = asking.text()
    prediction = expecting.text()
    engine = loading.engine(drafters, guessing.acceptance)
    prompt = asking.ids(engine, text)
    sampling = law.sampling(engine)
    assert engine.tokenizer is not None
    with tracing.opened(engine, "generate") as trace:
        sampling = trace.seeded(sampling)
        stream = engine.stream(
            prompt,
            replace(sampling, grammar=None if form is None else engine.grammar(*form)),
            max_tokens=ending.max_tokens,
            stop=ending.stop,
            ignore_eos=ending.ignore_eos,
            prediction=prediction,
            logprobs=logprobs,
            cache_salt=belonging.cache_salt,
        )
        stream = trace.follow(stream, engine, prompt, sampling)
        if as_json:
            _print_json(list(stream), engine.tokenizer)
            return
        pen = Pen(sys.stdout, [name for name, _ in engine.parts.drafters])
        ribbon = Ribbon(engine.tokenizer.incremental(prompt.tolist()))
        entries: list[TokenLogprob] = []
        try:
            for chunk in stream:
                pen.write(ribbon.pieces(chunk) if show_drafts else [(chunk.text, None)])
                entries += chunk.logprobs
        finally:
            print(flush=True)
    if show_drafts:
        note(pen.legend())
    for entry in entries:
        note(_logprob_line(entry, engine.tokenizer))
    if stats:
        note(line(chunk.record))


def _print_json(chunks: list[Chunk], tokenizer: Tokenizer) -> None:
    record = chunks[-1].record
    answer = {
        "text": "".join(c.text for c in chunks),
        "ids": [t for c in chunks for t in c.tokens],
        "drafters": [s for c in chunks for s in c.sources],
        "finish_reason": record.finish,
        "stop": record.stop,
        "logprobs": [_logprob_json(entry, tokenizer) for c in chunks for entry in c.logprobs] or None,
        "statistics": asdict(figures(record)),
    }
    print(json.dumps(answer, ensure_ascii=False, allow_nan=False))


def _logprob_json(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, object]:
    def one(token: int, logprob: float) -> dict[str, object]:
        text = tokenizer.token_bytes(token).decode(errors="replace")
        return {"id": token, "token": text, "logprob": max(logprob, _IMPOSSIBLE)}

    return {**one(entry.token, entry.logprob), "top": [one(*pair) for pair in entry.top]}


def _logprob_line(entry: TokenLogprob, tokenizer: Tokenizer) -> str:
    def one(token: int, logprob: float) -> str:
        return f"{legible(tokenizer.token_bytes(token))} {logprob:.4f}"

    return "  ".join(
        [one(entry.token, entry.logprob), *(["|"] if entry.top else []), *(one(*pair) for pair in entry.top)]
    )
