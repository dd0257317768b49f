"""Events as records again, for all that reads records: explanations, figures, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from augury.record import PHASES, Proposal, RequestRecord, StepRecord
from augury.trace.events import Event
from augury.tree import DraftTree, Path

_PART = re.compile(r'‹((?:[0-9A-F]{2})(?: [0-9A-F]{2})*)›|\\(?:u\{([0-9A-F]{1,6})\}|([ntr"\\]))')
_NAMED = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}


@dataclass
class Traced:
    """One request of a trace.

    Attributes:
        id: of the request.
        record: with the steps that the trace holds.
        begin: its event, or None where the trace begins later.
        end: its event, or None where the trace ends earlier.
        numbers: of these steps in the request; where some are missing they do not follow each other.
        texts: what tokens spell, by id; empty where the trace has no text.
    """

    id: int
    record: RequestRecord
    begin: Event | None = None
    end: Event | None = None
    numbers: list[int] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As in ``plain`` and ``drafted``; empty where its beginning is not in the trace."""
        return "" if self.begin is None else str(self.begin["label"])

    def token(self, id: int) -> bytes:
        """The bytes of a token, or its number where the trace has no text."""
        text = self.texts.get(id)
        return f"<{id}>".encode() if text is None else spelt(text)

    @property
    def missing(self) -> int:
        """Steps that the trace does not hold, as far as it tells."""
        return self.known - len(self.numbers)

    @property
    def answer(self) -> str | None:
        """What was answered, without what ended it; ``…`` stands where steps are missing. None without text."""
        if not self.texts:
            return None
        runs: list[list[int]] = []
        due = 0
        for number, step in zip(self.numbers, self.record.steps, strict=True):
            if number != due or not runs:
                runs.append([])
            runs[-1] += step.emitted
            due = number + 1
        said = [b"".join(map(self.token, run)) for run in runs]
        if due == self.known and self.record.finish == "stop":
            said[-1] = self._ended(runs[-1])
        texts = [one.decode(errors="replace") for one in said]
        return "…".join([""] * (self.numbers[0] > 0) + texts + [""] * (due < self.known))

    @property
    def known(self) -> int:
        """Steps of the request that are known of."""
        behind = self.numbers[-1] + 1 if self.numbers else 0
        return max(behind, 0 if self.end is None else self.end["steps"])

    def _ended(self, tokens: list[int]) -> bytes:
        """The last tokens without the token, or the text, that ended the answer: the last of them made it whole."""
        stop = self.record.stop
        if tokens[-1:] == [stop]:
            del tokens[-1]
        said = b"".join(map(self.token, tokens))
        if not isinstance(stop, str) or not tokens or (self.end is not None and self.end.get("included")):
            return said
        before, raw = len(said) - len(self.token(tokens[-1])), stop.encode(errors="replace")
        at = said.find(raw, max(before - len(raw) + 1, 0))
        return said if at < 0 else said[:at]


def requests(header: Mapping[str, Any], events: Iterable[Event]) -> Iterator[Traced]:
    """The requests of a trace, each when it has ended; at last those that have not. Events are as ``log`` checks them.

    Args:
        header: of the trace.
        events: its events.
    """
    open: dict[int, Traced] = {}
    for event in events:
        kind = event["kind"]
        if kind == "begin":
            open[event["id"]] = Traced(event["id"], _request(event), begin=event)
        elif kind == "step":
            one = open.get(event["id"])
            if one is None:
                one = open[event["id"]] = Traced(event["id"], RequestRecord(0, tuple(header["drafters"])))
            one.numbers.append(event["n"])
            one.record.steps.append(step(event))
            for token, text in event.get("texts", {}).items():
                one.texts[int(token)] = text
        elif kind == "end":
            one = open.pop(event["id"], None) or Traced(event["id"], RequestRecord(0, tuple(header["drafters"])))
            one.end = event
            one.record.finish = event["finish"]
            one.record.stop = None if event["stop"] is True else event["stop"]  # a string that the trace does not tell
            yield one
    yield from open.values()


def step(event: Mapping[str, Any]) -> StepRecord:
    """The record of a step; ``began`` counts from the header's clock."""
    parents = event["parents"]
    survival = np.asarray(event["survival"], np.float32)
    for node, parent in enumerate(parents):  # rounding may have lifted one above its parent
        if parent >= 0:
            survival[node] = min(survival[node], survival[parent])
    p, coins = event["p"], event["coins"]
    return StepRecord(
        position=event["position"],
        root=event["root"],
        tree=DraftTree(
            np.asarray(event["tokens"], np.int32),
            np.asarray(parents, np.int32),
            survival,
            np.asarray(event["source"], np.uint8),
        ),
        path=Path(tuple(event["path"]), event["next"]),
        emitted=tuple(event["emitted"]),
        proposals=tuple(
            Proposal(one["drafter"], one["nodes"], one["ms"], one["fault"], one["unasked"])
            for one in event["proposals"]
        ),
        reason=event["reason"],
        rows=event["rows"],
        **{f"{phase}_ms": float(event[f"{phase}_ms"]) for phase in PHASES},
        probabilities=None if p is None else tuple(float("nan") if one is None else one for one in p),
        sampled={int(node): float("nan") if q is None else q for node, q in event["q"].items()},
        began=event["at"] / 1e3,
        plain_ms=event["plain_ms"],
        requests=event["requests"],
        coins=None if coins is None else tuple(coins),
    )


def spelt(text: str) -> bytes:
    """The bytes that ``legible`` shows so, without its quotes."""
    out, at = b"", 0
    for part in _PART.finditer(text):
        out += text[at : part.start()].encode(errors="replace")
        raw, code, name = part.groups()
        out += bytes.fromhex(raw) if raw else (_NAMED[name] if name else _character(code)).encode(errors="replace")
        at = part.end()
    return out + text[at:].encode(errors="replace")


def _character(code: str) -> str:
    number = int(code, 16)
    return chr(number) if number <= 0x10FFFF else "\N{REPLACEMENT CHARACTER}"


def _request(begin: Mapping[str, Any]) -> RequestRecord:
    return RequestRecord(
        prompt_tokens=begin["prompt_tokens"],
        drafters=tuple(begin["drafters"]),
        cached_tokens=begin["cached_tokens"],
        prefill_ms=begin["prefill_ms"],
        began=begin["at"] / 1e3,
    )
