"""``augury memory``: what the drafter ``memory`` keeps in a directory, and how it is deleted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from augury.cli.flags import Belonging, spread
from augury.cli.terminal import guarded
from augury.datastore import answers
from augury.drafters.drafter import tenant_of
from augury.errors import InputError

app = typer.Typer(
    name="memory",
    help="Answers that the drafter memory keeps, by user.",
    no_args_is_help=True,
)

Where = Annotated[Path, Argument(help="The directory of --drafters memory:DIRECTORY.", show_default=False)]


def show(path: Where) -> None:
    """List the users of a directory, the one who asked last first. Secrets are not kept, only digests of them."""
    found = answers.entries(path)
    for entry in found:
        who = "the local user" if entry.tenant == tenant_of("") else f"user {entry.tenant[:12]}"
        print(
            f"{who}: {entry.answers} answers, {entry.tokens} tokens, {entry.bytes / 1e6:.2f} MB, "
            f"used {time.strftime('%Y-%m-%d %H:%M', time.localtime(entry.used))}"
        )
        for text in entry.notes:
            print(f"  {text}")
    print(f"{len(found)} in {path}")


def forget(
    context: typer.Context,
    path: Where,
    belonging: Belonging,
    everyone: Annotated[bool, Option("--all", help="Forget every user, whatever AUGURY_CACHE_SALT says.")] = False,
) -> None:
    """Delete what is kept of a user, of the local one when none is named. Running processes forget it too."""
    given = context.get_parameter_source("cache_salt")
    if everyone and given is not None and given.name == "COMMANDLINE":
        raise InputError("--all forgets every user, so --cache-salt has no place; leave one of them out")
    freed = answers.forget(path, None if everyone else tenant_of(belonging.cache_salt))
    print(f"forgot {freed} bytes" if freed else "nothing was kept")


for _name, _verb in (("list", show), ("forget", forget)):
    app.command(_name)(guarded(spread(_verb)))
