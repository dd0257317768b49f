"""The border to the terminal: progress, errors of one line, exit codes, quiet ends of pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from augury.errors import AuguryError, InputError
from augury.trace.aside import aside

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

_OUTPUTS = {
    "trace": "--trace", "html": "--html", "json_out": "--json", "perfetto": "--perfetto", "parquet": "--parquet",
}  # fmt: skip
"""Parameters of verbs that name what is written, and their flags."""

_MODELS = ("model", "draft_model")
"""Parameters that may name a file without being paths."""

_REMEMBERED = 3600.0
"""Seconds of answers that the time left is estimated from: of rich's own 30, one long answer leaves no estimate."""

_WIDE = 1000  # columns at most of a table that is not printed to a terminal: as wide as it is


def guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb, with the ends a user may meet: an error in one line, Ctrl-C, a closed pipe."""

    @wraps(verb)
    def run(**given: Any) -> None:
        try:
            _check_apart(given)
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


def named(text: str) -> str:
    r"""A name on one line: controls, ends of lines and what turns the direction of writing stand as ``\u{202E}``."""
    return "".join(c if c.isprintable() else f"\\u{{{ord(c):X}}}" for c in text)


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
    if str(path) == "-":
        raise InputError(f"{flag} - is no name of a file; give one, or /dev/stdout to write into a pipe")
    if not path.parent.is_dir():
        raise InputError(f"{flag} {path}: there is no directory {path.parent}")
    if path.is_dir():
        raise InputError(f"{flag} {path} is a directory; give a file in it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{flag} {path} may not be written; give a file that may")


def _check_apart(given: Mapping[str, Any]) -> None:
    """Refuse outputs of a verb that are its inputs, or one another: what is written would end what is there."""
    outputs = {name: path for name in _OUTPUTS if isinstance(path := given.get(name), Path)}
    files = [given.get(name) for name in given.keys() - outputs.keys() - {*_MODELS}]
    read = [one for value in files for one in (value if isinstance(value, list) else [value]) if isinstance(one, Path)]
    read += [Path(given[name]) for name in _MODELS if given.get(name)]
    for name, path in outputs.items():
        for other in read:
            if _same(path, other):
                raise InputError(
                    f"{_OUTPUTS[name]} {path} would overwrite {other}, which this command reads; give another file"
                )
    for (name, path), (second, other) in combinations(outputs.items(), 2):
        if _same(path, other):
            raise InputError(f"{_OUTPUTS[name]} and {_OUTPUTS[second]} would both write {other}; give two files")


def _same(path: Path, other: Path) -> bool:
    """Whether both are one file, there or not; what is no file, as a pipe, takes what comes from anybody."""
    try:
        return (path.is_file() and path.samefile(other)) if path.exists() else path.resolve() == other.resolve()
    except (OSError, ValueError, RuntimeError):  # nothing is there, and no name can be made of it
        return False


def write(path: Path, text: str, what: str) -> None:
    """Write a file whole or not at all; what is no file, as a pipe, as it comes.

    Args:
        path: of the file.
        text: that is in it.
        what: it is, for an error.

    Raises:
        AuguryError: it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # of the name as given: that of a pipe behind it leads nowhere
            path.write_text(text, "utf-8")
            return
        with aside(path.resolve()) as (part,):
            part.write_text(text, "utf-8")
    except BrokenPipeError:
        raise
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
