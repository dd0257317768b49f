"""``augury index``: texts of the user's own on disk, for the drafter ``retrieval``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from augury.cli.flags import spread
from augury.cli.terminal import guarded, note, progress
from augury.datastore.index import DEFAULT, Index, Manifest, home, locate, names
from augury.errors import InputError

if TYPE_CHECKING:
    from augury.datastore.change import Outcome
    from augury.models.tokenizer import Tokenizer

_DAMAGED = 1
_NAMED = 10  # files left out that are named

app = typer.Typer(
    name="index",
    help="Texts of your own, searched by the drafter retrieval for what follows.",
    no_args_is_help=True,
)

Paths = Annotated[list[Path], Argument(help="Files, or directories of them.", show_default=False)]
Which = Annotated[str, Option("--index", help="Name of the index, or a path with a / in it.")]
Fields = Annotated[
    list[str] | None,
    Option(
        "--field", metavar="KEY", help="Of JSONL, take only strings under this key; repeatable.", show_default="all"
    ),
]
Largest = Annotated[float, Option(help="Larger files are left out.", min=0.0)]


def build(
    paths: Paths,
    index: Which = DEFAULT,
    model: Annotated[str, Option(help="The model whose tokenizer reads them.")] = "smollm2-135m",
    field: Fields = None,
    max_file_mb: Largest = 100.0,
) -> None:
    """Make an index of files, in the place of the one that has its name.

    Text is one document a file; of .jsonl every string of every line is one. Binary and hidden files are left out.
    """
    from augury.datastore import change, documents

    place = locate(index)
    found = documents.files(paths)
    reading = documents.Reading(int(max_file_mb * 1e6), tuple(field or ()))
    begin = time.perf_counter()
    tokenizer = _tokenizer(model)
    with progress() as told:
        outcome = change.build(place, found, tokenizer, model, reading, told)
    _report(index, outcome, time.perf_counter() - begin)
    print(f"use it with: --drafters suffix,prediction,retrieval{'' if index == DEFAULT else f':{index}'}")


def add(paths: Paths, index: Which = DEFAULT, field: Fields = None, max_file_mb: Largest = 100.0) -> None:
    """Add files to an index. Files that are in it are read again if they changed."""
    from augury.datastore import change, documents

    place = locate(index)
    model = Manifest.read(place).model
    found = documents.files(paths)
    reading = documents.Reading(int(max_file_mb * 1e6), tuple(field or ()))
    begin = time.perf_counter()
    tokenizer = _tokenizer(model)
    with progress() as told:
        outcome = change.add(place, found, tokenizer, reading, told)
    _report(index, outcome, time.perf_counter() - begin)


def remove(paths: Paths, index: Which = DEFAULT) -> None:
    """Take files out of an index, by path or by a directory above them; their text is deleted from it."""
    from augury.datastore import change

    begin = time.perf_counter()
    _report(index, change.remove(locate(index), paths), time.perf_counter() - begin)


def show(
    index: Annotated[str | None, Argument(help="Show the files of this index.", show_default="all indexes")] = None,
) -> None:
    """List the indexes, or the files of one, with sizes."""
    if index is not None:
        manifest = Manifest.read(locate(index))
        for source in sorted(manifest.sources.values(), key=lambda s: s.path):
            texts = f", {source.documents} documents" if source.documents > 1 else ""
            print(f"{source.path}  {source.bytes / 1e6:.2f} MB, {source.tokens} tokens{texts}")
        print(_line(index, manifest))
        return
    known = names()
    for name in known:
        try:
            print(_line(name, Manifest.read(locate(name))))
        except InputError as damage:
            print(f"{name}: {damage}")
    print(f"{len(known)} in {home()}")


def check(index: Annotated[str, Argument(help="Name or path of the index.")] = DEFAULT) -> None:
    """Read all of an index and verify its checksums and its order. Exit code 1: it is damaged."""
    opened = Index(locate(index))
    wrong = opened.check()
    for what in wrong:
        note(f"augury: index {index} is damaged: {what}; build it again")
    if wrong:
        raise typer.Exit(_DAMAGED)
    print(f"{_line(index, opened.manifest)}: sound")


for _name, _verb in (("build", build), ("add", add), ("remove", remove), ("list", show), ("check", check)):
    app.command(_name)(guarded(spread(_verb)))


def _tokenizer(model: str) -> Tokenizer:
    from augury.models.load import load_wording

    return load_wording(model).tokenizer


def _report(index: str, outcome: Outcome, seconds: float) -> None:
    for path, why in outcome.left_out[:_NAMED]:
        note(f"augury: left out {path}: {why}")
    if len(outcome.left_out) > _NAMED:
        note(f"augury: left out {len(outcome.left_out) - _NAMED} more")
    counts = (("added", outcome.added), ("unchanged", outcome.unchanged), ("removed", outcome.removed))
    done = [f"{count} {what}" for what, count in counts if count]
    done += [f"{len(outcome.left_out)} left out"] if outcome.left_out else []
    assert outcome.manifest is not None
    print(f"{', '.join(done)} in {seconds:.1f} s")
    print(_line(index, outcome.manifest))


def _line(index: str, manifest: Manifest) -> str:
    return (
        f"{index}: {len(manifest.sources)} files, {manifest.tokens} tokens of {manifest.model}, "
        f"{manifest.size / 1e6:.1f} MB in {len(manifest.segments)} segments"
    )
