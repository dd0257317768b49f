"""The command line. One file a verb; a verb is added by its name in ``VERBS``."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

import augury
from augury.cli import index, memory
from augury.cli.flags import spread
from augury.cli.terminal import INTERRUPTED, guarded

VERBS = (
    "generate", "chat", "serve", "explain", "trace", "check", "info", "drafters", "bench", "plan", "replay", "train",
)  # fmt: skip

app = typer.Typer(
    name="augury",
    help="Lossless speculative decoding: the same tokens, sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _verb in VERBS:
    app.command(_verb)(guarded(spread(getattr(importlib.import_module(f"augury.cli.{_verb}"), _verb))))
app.add_typer(index.app)
app.add_typer(memory.app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"augury {augury.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not end the answer.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.path.append("")  # drafters of one's own are looked for here too, behind all that is installed
    try:
        app(prog_name="augury")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
