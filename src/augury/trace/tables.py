"""Events as tables in Parquet: ``sequences``, a row a request, and ``drafts``, a row a step.

The first columns of both are those of specspecs 0.1.0, by name and type, so that its viewer and queries written for it
read these files; what is ours comes behind them. Its rows know chains only, and this is how a tree becomes one:

- ``draft_tokens`` is one path of the tree: the accepted one, and from its end on, at every node, the child that was
  most likely to survive (the first of equals). ``acceptances`` says of each token whether it was accepted and emitted.
- There, as in specspecs, every row of a sequence but its first begins with the token that the row before emitted, and
  that counts as drafted and accepted: in ``draft_tokens``, ``acceptances``, ``k`` and ``acceptance_length``.
- ``emitted_token`` is the last token of the step: the target's own. Where the answer ended before that, it is the last
  accepted one, which ``acceptance_length`` then does not count.

So the sum of ``acceptance_length`` over a whole sequence, and 1, is its number of tokens. An error may end a sequence
with a step that emitted nothing; there ``emitted_token`` is null. ``drafted`` and ``accepted`` are what the engine
counts: all nodes of the tree, and those of them that were emitted. ``t`` is UTC.

The whole tree is in ``tokens``, ``parents``, ``drafter``, ``fate``, ``survival``, ``p``, ``q`` and ``coins``, an entry
a node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.errors import AuguryError, MissingPackage
from augury.record import PHASES
from augury.trace.aside import aside
from augury.trace.events import Event, accepted
from augury.trace.explain import judged

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 4096
"""Rows of a group: what is in memory before it is written."""


def write(folder: Path, header: Mapping[str, Any], events: Iterable[Event], only: int | None = None) -> list[Path]:
    """Write both tables into a folder, which is made where it is not there; gives their paths.

    Their names hold the run's, so that the traces of several runs may lie in one folder and be read as one.

    Args:
        folder: where they go.
        header: of the trace.
        events: as ``log`` checks them.
        only: the id of the request to write; None writes all.

    Raises:
        MissingPackage: pyarrow is not installed.
        AuguryError: the files cannot be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingPackage("a table in Parquet", "pyarrow", "pip install 'augury[trace]'") from None
    run = run_id(header)
    schemas = {"sequences": _schema(pa, _SEQUENCES), "drafts": _schema(pa, _DRAFTS)}
    paths = {name: folder / f"{name}-{run}.parquet" for name in schemas}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with aside(*paths.values()) as parts, ExitStack() as stack:
            files = {
                name: stack.enter_context(pq.ParquetWriter(part, schema, compression="zstd"))
                for part, (name, schema) in zip(parts, schemas.items(), strict=True)
            }
            for name, rows in _grouped(_rows(header, events, only)):
                files[name].write_table(pa.Table.from_pylist(rows, schemas[name]))
    except OSError as error:
        raise AuguryError(f"the tables cannot be written to {folder}: {error.strerror or error}") from None
    return list(paths.values())


def run_id(header: Mapping[str, Any]) -> str:
    """A name of the run: who traced, and when, to the millisecond."""
    source = "".join(c for c in header["source"] if c.isascii() and c.isalnum())[:16] or "trace"
    return f"{source}-{_ms(header['unix'])}"


def _grouped(rows: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows of each table, many at a time."""
    held: dict[str, list[dict[str, Any]]] = {}
    for name, row in rows:
        mine = held.setdefault(name, [])
        mine.append(row)
        if len(mine) == _ROWS:
            yield name, held.pop(name)
    yield from held.items()


def _rows(header: Mapping[str, Any], events: Iterable[Event], only: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """(table, row), each step as it comes and each request when it has ended."""
    run, zero = run_id(header), 1000 * _ms(header["unix"])
    open: dict[int, dict[str, Any]] = {}
    for event in events:
        kind = event["kind"]
        if kind == "load" or (only is not None and event["id"] != only):
            continue
        id = event["id"]
        row = open.get(id)
        if row is None:
            row = open[id] = _sequence(header, run, zero, event)
        if kind == "step":
            names = header["drafters"] if row["drafters"] is None else row["drafters"]
            yield "drafts", _draft(row, zero, event, names)
            row["steps"] += 1
            row["tokens"] += len(event["emitted"])
        elif kind == "end":
            row |= {key: event[key] for key in ("finish", "error")}
            row["stop"] = None if event["stop"] is None or event["stop"] is True else str(event["stop"])
            row["ended"] = _time(zero, event["at"])
            yield "sequences", open.pop(id)
    for row in open.values():
        yield "sequences", row


def _sequence(header: Mapping[str, Any], run: str, zero: int, event: Event) -> dict[str, Any]:
    """The row of a request, from the first event of it that the trace holds."""
    begin = event if event["kind"] == "begin" else {}
    row: dict[str, Any] = {key: begin.get(key) for key in _OF_BEGIN}
    return row | {
        "run_id": run,
        "sequence_id": f"{event['id']}-{run}",  # its first letters tell it apart: viewers show no more
        "t": _time(zero, event["at"]),
        "prompt_token_ids": begin.get("prompt", []),
        "prompt_len": begin.get("prompt_tokens"),
        "request": event["id"],
        "sampling": json.dumps(begin["sampling"]) if begin else None,
        "model": header["model"],
        "runner": header["runner"],
        "steps": 0,
        "tokens": 0,
    }


def _draft(row: Mapping[str, Any], zero: int, step: Event, drafters: Sequence[str]) -> dict[str, Any]:
    """The row of a step; ``row`` is that of its request."""
    tokens, emitted = step["tokens"], step["emitted"]
    kept = accepted(step)
    chain = _chain(step)
    overlap = [step["root"]] if row["steps"] else []
    draft = overlap + [tokens[node] for node in chain]
    taken = len(overlap) + kept
    own: dict[str, Any] = {key: step[key] for key in _OF_STEP}
    return own | {
        "run_id": row["run_id"],
        "sequence_id": row["sequence_id"],
        "step": step["n"],
        "t": _time(zero, step["at"]),
        "draft_tokens": draft,
        "acceptances": [place < taken for place in range(len(draft))],
        "k": len(draft),
        "acceptance_length": len(overlap) + max(min(kept, len(emitted) - 1), 0),
        "emitted_token": emitted[-1] if emitted else None,
        "request": step["id"],
        "fate": judged(step["parents"], step["path"], len(emitted)),
        "drafter": [drafters[source] for source in step["source"]],
        "q": [step["q"].get(str(node)) for node in range(len(tokens))],
        "drafted": len(tokens),
        "accepted": kept,
    }


def _chain(step: Event) -> list[int]:
    """The path of the tree that stands for it: the accepted one, and on to the likeliest leaf."""
    chain = list(step["path"])
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(step["parents"]):
        below.setdefault(parent, []).append(node)
    survival = step["survival"]
    while children := below.get(chain[-1] if chain else -1):
        chain.append(max(children, key=lambda node: (survival[node], -node)))
    return chain


def _time(zero: int, at: float) -> int:
    """Microseconds since 1970."""
    return zero + round(1e3 * at)


def _ms(unix: float) -> int:
    return round(1e3 * unix)


# ---- columns: name -> type; those of specspecs first --------------------------------------------------------------

_SEQUENCES: Mapping[str, str] = {
    "run_id": "string",
    "sequence_id": "string",
    "t": "time",
    "prompt_token_ids": "list int64",
    "prompt_len": "int32",
    "request": "int64",
    "label": "string",
    "pair": "string",
    "rule": "string",
    "sampling": "string",
    "drafters": "list string",
    "cached_tokens": "int32",
    "prefill_ms": "float64",
    "prompt_text": "string",
    "ended": "time",
    "finish": "string",
    "stop": "string",
    "error": "string",
    "steps": "int32",
    "tokens": "int32",
    "model": "string",
    "runner": "string",
}

_DRAFTS: Mapping[str, str] = {
    "run_id": "string",
    "sequence_id": "string",
    "step": "int32",
    "t": "time",
    "draft_tokens": "list int64",
    "acceptances": "list bool",
    "k": "int16",
    "acceptance_length": "int16",
    "emitted_token": "int32",
    "request": "int64",
    "position": "int32",
    "root": "int32",
    "tokens": "list int64",
    "parents": "list int16",
    "drafter": "list string",
    "fate": "list string",
    "survival": "list float64",
    "p": "list float64",
    "q": "list float64",
    "coins": "list float64",
    "path": "list int16",
    "emitted": "list int64",
    "own": "string",
    "drafted": "int16",
    "accepted": "int16",
    "rows": "int32",
    "requests": "int32",
    "reason": "string",
    **{f"{phase}_ms": "float64" for phase in PHASES},
    "plain_ms": "float64",
    "saved_ms": "float64",
    "proposals": "proposals",
}

_PROPOSAL: Mapping[str, str] = {
    "drafter": "string",
    "nodes": "int32",
    "ms": "float64",
    "fault": "string",
    "unasked": "string",
}

_OF_BEGIN = ("label", "pair", "rule", "drafters", "cached_tokens", "prefill_ms", "prompt_text")
_OF_STEP = (
    "position", "root", "tokens", "parents", "survival", "p", "coins", "path", "emitted", "own", "rows", "requests",
    "reason", *(f"{phase}_ms" for phase in PHASES), "plain_ms", "saved_ms", "proposals",
)  # fmt: skip


def _schema(arrow: Any, columns: Mapping[str, str]) -> pa.Schema:
    return arrow.schema([(name, _type(arrow, kind)) for name, kind in columns.items()])


def _type(arrow: Any, kind: str) -> Any:
    if kind == "time":
        return arrow.timestamp("us")
    if kind == "proposals":
        return arrow.list_(arrow.struct([(name, _type(arrow, own)) for name, own in _PROPOSAL.items()]))
    of = kind.removeprefix("list ")
    plain = getattr(arrow, "bool_" if of == "bool" else of)()
    return plain if of == kind else arrow.list_(plain)
