"""Records as events: plain dicts of JSON, one a line of a trace. Whoever reads a trace reads these and nothing else.

Times are milliseconds; ``at`` counts from the header's clock (``zero``, in seconds of ``time.perf_counter``). Ids of
tokens are numbers; what they spell is in ``texts``, only where text is wanted.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import chain
from typing import Any

from augury.record import PHASES, RequestRecord, StepRecord
from augury.sampling import Sampling
from augury.trace.explain import Bytes, legible

FORMAT = 1
"""Version of the events' form, in the header; a reader refuses others."""

Event = dict[str, Any]
"""One line of a trace."""

Piece = Callable[[int], str]
"""What a token spells, for the eye."""

_PIECES = 1 << 16
"""Tokens whose spelling is kept."""

_DEFAULT = Sampling()


def pieces(token: Bytes) -> Piece:
    """Spellings of tokens as ``legible`` writes them, without its quotes; the last ones are kept."""
    return lru_cache(_PIECES)(lambda id: legible(token(id))[1:-1])


def header(*, model: str, runner: str, drafters: Sequence[str], source: str, text: bool, zero: float) -> Event:
    """The first line: what is traced, and when.

    Args:
        model: the target's name.
        runner: what computes its forwards.
        drafters: the engine's, in its order.
        source: who writes the trace: ``serve``, ``generate``, ``bench``...
        text: whether prompts, and what tokens spell, are in it.
        zero: when ``at`` is 0, in seconds of ``time.perf_counter``.
    """
    from augury import __version__

    return {
        "augury_trace": FORMAT,
        "version": __version__,
        "model": model,
        "runner": runner,
        "drafters": list(drafters),
        "text": text,
        "unix": round(time.time() - (time.perf_counter() - zero), 3),
        "source": source,
    }


def begin(
    id: int,
    record: RequestRecord,
    *,
    at: float,
    label: str,
    rule: str,
    sampling: Sampling,
    drafters: Sequence[str],
    prompt: Sequence[int] | None = None,
    prompt_text: str | None = None,
    pair: str | None = None,
) -> Event:
    """A request has its prompt in the cache.

    Args:
        id: of the request in this trace.
        record: its record so far.
        at: when it began, in milliseconds.
        label: tells runs of one prompt apart, as in ``plain`` and ``drafted``.
        rule: by which guesses are accepted.
        sampling: of the answer.
        drafters: names, by the index that steps use in ``source``.
        prompt: token ids, where text is wanted.
        prompt_text: likewise.
        pair: a name that runs of one prompt share, told apart by their labels; timelines show them one above the other.
    """
    event: Event = {
        "kind": "begin",
        "id": id,
        "at": round(at, 3),
        "label": label,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "prefill_ms": round(record.prefill_ms, 3),
        "drafters": list(drafters),
        "rule": rule,
        "sampling": _sampling(sampling),
    }
    if prompt is not None:
        event["prompt"] = [int(token) for token in prompt]
    if prompt_text is not None:
        event["prompt_text"] = prompt_text
    if pair is not None:
        event["pair"] = pair
    return event


def step(id: int, n: int, step: StepRecord, zero: float, piece: Piece | None) -> Event:
    """One step.

    Args:
        id: of the request.
        n: the step's number in it, from 0.
        step: its record.
        zero: see ``header``.
        piece: what tokens spell, or None where text is not wanted.
    """
    tree, path = step.tree, step.path
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    saved = step.saved_ms
    times = {f"{phase}_ms": round(getattr(step, f"{phase}_ms"), 3) for phase in PHASES}
    event: Event = {
        "kind": "step",
        "id": id,
        "n": n,
        "at": round(1e3 * (step.began - zero), 3),
        "position": step.position,
        "root": step.root,
        "tokens": tokens,
        "parents": parents,
        "source": tree.source.tolist(),
        "survival": [round(s, 4) for s in tree.survival.tolist()],
        "p": None if step.probabilities is None else [_share(p) for p in step.probabilities],
        "q": {str(node): _share(q) for node, q in step.sampled.items()},
        "path": list(path.nodes),
        "next": path.next_token,
        "own": _own(step, parents),
        "emitted": list(step.emitted),
        "proposals": [
            {"drafter": p.drafter, "nodes": p.nodes, "ms": round(p.ms, 3), "fault": p.fault, "unasked": p.unasked}
            for p in step.proposals
        ],
        "reason": step.reason,
        "rows": step.rows,
        "requests": step.requests,
        **times,
        "plain_ms": None if step.plain_ms is None else round(step.plain_ms, 3),
        "saved_ms": None if saved is None else round(saved, 3),
        "coins": None if step.coins is None else [None if c is None else _share(c) for c in step.coins],
    }
    if piece is not None:
        shown = dict.fromkeys(chain((step.root, path.next_token), tokens))
        event["texts"] = {str(token): piece(token) for token in shown}
    return event


def end(
    id: int, record: RequestRecord, at: float, *, text: bool, error: str | None = None, included: bool = False
) -> Event:
    """A request has ended.

    Args:
        id: of the request.
        record: its record.
        at: when, in milliseconds.
        text: whether text is wanted; without, ``stop`` says of a stop string only that it was one.
        error: what went wrong, if something did.
        included: whether the answer keeps the stop string that ended it.
    """
    event: Event = {
        "kind": "end",
        "id": id,
        "at": round(at, 3),
        "finish": record.finish,
        "stop": True if isinstance(record.stop, str) and not text else record.stop,
        "tokens": record.completion_tokens,
        "steps": len(record.steps),
        "error": error,
    }
    if included and isinstance(record.stop, str):
        event["included"] = True
    return event


def load(at: float, running: int, waiting: int, kv_used: float) -> Event:
    """How busy the engine is: requests that run and that wait, and the share of the caches that is taken."""
    return {"kind": "load", "at": round(at, 3), "running": running, "waiting": waiting, "kv_used": round(kv_used, 4)}


def accepted(step: Mapping[str, Any]) -> int:
    """Draft tokens of a step that were accepted and emitted."""
    return min(len(step["path"]), len(step["emitted"]))


def encode(event: Mapping[str, Any]) -> bytes:
    """An event as its line, without the line's end."""
    return _ENCODER.encode(event).encode(errors="replace")  # half a surrogate pair is in no file of text


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


def _own(step: StepRecord, parents: Sequence[int]) -> str | None:
    """What the target's own token is; None where the answer ended before it."""
    nodes = step.path.nodes
    if len(step.emitted) <= len(nodes):
        return None
    if not parents:
        return "plain"
    return "correction" if (nodes[-1] if nodes else -1) in parents else "bonus"


def _share(value: float) -> float | None:
    """A probability as JSON takes it: a row off the path may have none."""
    return round(value, 6) if math.isfinite(value) else None


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """The temperature, and what is not as in the default; of collections the size: what is in them may be private."""
    told: dict[str, Any] = {"temperature": sampling.temperature}
    for f in fields(sampling):
        value = getattr(sampling, f.name)
        if value == getattr(_DEFAULT, f.name):
            continue
        told[f.name] = value if isinstance(value, int | float) else True if f.name == "grammar" else len(value)
    return told
