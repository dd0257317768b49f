"""The border to the terminal: progress, errors of one line, exit codes, quiet ends of pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from augury.errors import AuguryError, InputError

if TYPE_CHECKING:
    from rich.table import Table

    from augury.bench.paired import Progress as Answered
    from augury.models.load import Progress

DIFFERS = 1
"""Exit code when an answer that should be the plain one is not."""

REFUSED = 2
"""Exit code when something asked for cannot be honoured."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it: 128 + SIGINT."""

PIPE_CLOSED = 141
"""Exit code when the reader of stdout has gone: 128 + SIGPIPE."""

_REMEMBERED = 3600.0
"""Seconds of answers that the time left is estimated from: of rich's own 30, one long answer leaves no estimate."""

_WIDE = 1000  # columns at most of a table that is not printed to a terminal: as wide as it is


def guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb, with the ends a user may meet: an error in one line, Ctrl-C, a closed pipe."""

    @wraps(verb)
    def run(**given: Any) -> None:
        try:
            verb(**given)
            sys.stdout.flush()
        except AuguryError as error:
            note(f"augury: {' '.join(str(error).split())}")
            raise typer.Exit(REFUSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # What is still buffered would fail again when the interpreter flushes it on its way out.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except OSError as error:  # a full disk, most of all
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            where = f"{error.filename}: " if error.filename else ""
            note(f"augury: {where}{error.strerror or error}")
            raise typer.Exit(REFUSED) from None

    return run


def note(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress() -> Iterator[Progress | None]:
    """A bar on stderr while something is loaded; nothing when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    bar = Bar(TextColumn("{task.description}"), BarColumn(), console=Console(stderr=True), transient=True)
    with bar:
        task = bar.add_task("loading", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def check_output(flag: str, path: Path | None) -> None:
    """Refuse a file that cannot be written, before an hour is spent on what is to be in it."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise InputError(f"{flag} {path}: there is no directory {path.parent}")
    if path.is_dir():
        raise InputError(f"{flag} {path} is a directory; give a file in it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{flag} {path} may not be written; give a file that may")


def write(path: Path, text: str, what: str) -> None:
    """Write a file whole or not at all; what is no file, as a pipe, as it comes.

    Args:
        path: of the file.
        text: that is in it.
        what: it is, for an error.

    Raises:
        AuguryError: it cannot be written.
    """
    whole = path.resolve()
    part = whole.with_name(f"{whole.name}.part")
    try:
        if whole.exists() and not whole.is_file():
            whole.write_text(text, "utf-8")
            return
        try:
            part.write_text(text, "utf-8")
            os.replace(part, whole)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise AuguryError(f"{what} cannot be written to {path}: {error.strerror}") from None


@contextmanager
def answering(what: str, answers: int) -> Iterator[Answered | None]:
    """A bar with the time left while prompts are answered, on stderr; nothing when that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, speed_estimate_period=_REMEMBERED) as bar:
        task = bar.add_task(what, total=answers)
        yield lambda prompt: bar.update(task, advance=1, description=f"{what}: {prompt.kind}")


def show(table: Table, markdown: bool) -> None:
    """Print a table, or the same as Markdown."""
    from rich.console import Console

    from augury.bench.report import markdown as as_markdown

    print(flush=True)
    if markdown:
        print(as_markdown(table), end="\n\n", flush=True)
    else:
        Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False).print(table)
