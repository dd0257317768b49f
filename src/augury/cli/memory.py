"""``augury memory``: what the drafter ``memory`` keeps in a directory, how it is deleted, and shared by replicas."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from augury.cli.flags import Belonging, spread
from augury.cli.terminal import guarded, note
from augury.datastore import answers
from augury.drafters.drafter import tenant_of
from augury.drafters.memory import MB, TENANTS, file_bytes
from augury.errors import InputError

if TYPE_CHECKING:
    from augury.datastore.exchange import Swapped

app = typer.Typer(
    name="memory",
    help="Answers that the drafter memory keeps, by user.",
    no_args_is_help=True,
)

Mb = Annotated[int, Option(help="As the drafter's mb: megabytes of memory for a user.", min=1, max=4096)]
Url = Annotated[str, Argument(metavar="URL", help="As in s3://bucket/folder.", show_default=False)]
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
    """Delete what is kept of a user, of the local one when none is named. Running processes forget it too.

    Where answers are exchanged through an object store, push then: whoever pushes or pulls afterwards forgets it.
    """
    given = context.get_parameter_source("cache_salt")
    if everyone and given is not None and given.name == "COMMANDLINE":
        raise InputError("--all forgets every user, so --cache-salt has no place; leave one of them out")
    freed = answers.forget(path, None if everyone else tenant_of(belonging.cache_salt))
    print(f"forgot {freed} bytes" if freed else "nothing was kept")


def push(path: Where, url: Url, mb: Mb = MB) -> None:
    """Bring to an object store what a directory keeps, and who was forgotten in it. What others pushed stays."""
    from augury.datastore import exchange
    from augury.datastore.bucket import Bucket

    begin = time.perf_counter()
    _swapped("sent", exchange.push(path, Bucket(url), file_bytes(mb)), time.perf_counter() - begin)


def pull(
    path: Where,
    url: Url,
    mb: Mb = MB,
    tenants: Annotated[int, Option(help="As the drafter's tenants: users kept at most.", min=1, max=65536)] = TENANTS,
) -> None:
    """Take up in a directory what other replicas pushed, each user's for that user. Running processes use it at once.

    Whom somebody forgot is forgotten here. Call push and pull from time to time.
    """
    from augury.datastore import exchange
    from augury.datastore.bucket import Bucket

    begin = time.perf_counter()
    done = exchange.pull(path, Bucket(url), file_bytes(mb), tenants)
    _swapped("took up", done, time.perf_counter() - begin)


def _swapped(how: str, done: Swapped, seconds: float) -> None:
    for text in done.notes:
        note(f"augury: {text}")
    print(
        f"{how} {done.answers} answers of {done.tenants} users, forgot {done.forgotten} users, "
        f"{done.bytes / 1e6:.2f} MB in {seconds:.1f} s"
    )


for _name, _verb in (("list", show), ("forget", forget), ("push", push), ("pull", pull)):
    app.command(_name)(guarded(spread(_verb)))
