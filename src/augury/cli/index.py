"""``augury index``: texts of the user's own on disk and in an object store, for the drafter ``retrieval``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from augury.cli.flags import spread
from augury.cli.terminal import guarded, named, note, progress
from augury.datastore.index import DEFAULT, Index, Manifest, home, locate, names
from augury.errors import InputError

if TYPE_CHECKING:
    from augury.datastore.change import Outcome
    from augury.datastore.publish import Moved
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


Url = Annotated[str, Argument(metavar="URL", help="As in s3://bucket/folder.", show_default=False)]


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
            print(f"{named(source.path)}  {source.bytes / 1e6:.2f} MB, {source.tokens} tokens{texts}")
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


def push(
    index: Annotated[str, Argument(help="Name or path of the index.", show_default=False)],
    url: Url,
    grace_hours: Annotated[
        float,
        Option(help="How long segments stay there that are no longer part of it, for who reads them now.", min=0.0),
    ] = 1.0,
) -> None:
    """Bring an index to an object store, or a shared disk as file:///DIRECTORY: what is not there yet, the list last.

    One machine pushes; of several the last one's index stands.
    """
    from augury.datastore import publish
    from augury.datastore.bucket import Bucket

    begin = time.perf_counter()
    place, bucket = locate(index), Bucket(url)
    with progress() as told:
        done = publish.push(place, bucket, 3600 * grace_hours, told)
    _moved("sent", done, time.perf_counter() - begin)
    print(_line(index, done.manifest))


def pull(
    url: Url,
    index: Which = DEFAULT,
    max_gb: Annotated[float, Option(help="A larger index is refused before anything is fetched.", min=0.0)] = 16.0,
) -> None:
    """Make the index of an object store the one that has this name here. Running processes use it when it is there.

    Only what is missing is fetched, and checked before it is used. Call it from time to time, or whenever one was
    pushed.
    """
    from augury.datastore import publish
    from augury.datastore.bucket import Bucket

    begin = time.perf_counter()
    place, bucket = locate(index), Bucket(url)
    with progress() as told:
        done = publish.pull(place, bucket, int(max_gb * 1e9), told)
    _moved("fetched", done, time.perf_counter() - begin)
    print(_line(index, done.manifest))


for _name, _verb in (("build", build), ("add", add), ("remove", remove), ("list", show), ("check", check)):
    app.command(_name)(guarded(spread(_verb)))
for _name, _moving in (("push", push), ("pull", pull)):
    app.command(_name)(guarded(spread(_moving)))


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


def _moved(how: str, done: Moved, seconds: float) -> None:
    parts = [f"{how} {done.pieces} of {len(done.manifest.segments)} segments, {done.bytes / 1e6:.1f} MB"]
    parts += [f"deleted {done.deleted}"] if done.deleted else []
    parts += [] if done.changed else ["nothing changed"]
    print(f"{', '.join(parts)} in {seconds:.1f} s")


def _line(index: str, manifest: Manifest) -> str:
    return (
        f"{index}: {len(manifest.sources)} files, {manifest.tokens} tokens of {named(manifest.model)}, "
        f"{manifest.size / 1e6:.1f} MB in {len(manifest.segments)} segments"
    )
