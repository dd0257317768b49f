"""How far drafters are to be relied on, folded from the events of a trace as they come.

Each event is looked at once, and what is kept does not grow with the trace. Only what was verified is judged: what was
offered and left out is not in a trace. (``augury drafters`` runs each alone and judges all that it offers.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from augury.record import PHASES
from augury.trace.events import Event, accepted

BINS = 10
"""Classes of stated survival, of equal width."""

MOST_SPANS = 240
"""Spans of time whose figures are kept apart; where there would be more, they become twice as long."""

_SPAN_MS = 1000.0
_LONGEST_MS = 1e12
_MOST_OPEN = 4096
_MOST_NAMES, _MOST_LABELS = 64, 16
_OTHERS = "others"


@dataclass
class Class:
    """Verified nodes of about the same stated survival: how many, the sum of it, and how many were accepted."""

    nodes: int = 0
    stated: float = 0.0
    accepted: int = 0


@dataclass
class Drafter:
    """What one drafter did.

    Attributes:
        asked: steps in which it was asked.
        offered: steps in which it had a guess.
        proposed: nodes that it offered.
        verified: steps in which a node of it was verified.
        hits: of these, in which one was accepted and emitted.
        drafted: nodes of it that were verified.
        accepted: of these, accepted and emitted.
        ms: of its proposals.
        saved_ms: what its accepted tokens would have cost, less its proposals and its share of the wider steps.
        faults: steps without it because it broke its contract.
        unasked: why it was not asked: reason -> steps.
        classes: of the verified nodes, by stated survival.
        runs: accepted and emitted nodes of it in a step in which one was verified -> steps.
    """

    asked: int = 0
    offered: int = 0
    proposed: int = 0
    verified: int = 0
    hits: int = 0
    drafted: int = 0
    accepted: int = 0
    ms: float = 0.0
    saved_ms: float = 0.0
    faults: int = 0
    unasked: Counter[str] = field(default_factory=Counter)
    classes: list[Class] = field(default_factory=lambda: [Class() for _ in range(BINS)])
    runs: Counter[int] = field(default_factory=Counter)


@dataclass
class Span:
    """Some time: tokens and steps that began in it and their milliseconds, a label's apart, and its drafts."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    ms: dict[str, float] = field(default_factory=dict)

    def take(self, other: Span) -> None:
        """Become both."""
        self.steps, self.drafted, self.accepted = (
            self.steps + other.steps, self.drafted + other.drafted, self.accepted + other.accepted,
        )  # fmt: skip
        for label, tokens in other.tokens.items():
            self.tokens[label] = self.tokens.get(label, 0) + tokens
            self.ms[label] = self.ms.get(label, 0.0) + other.ms[label]


class Reliability:
    """The fold. Not for several threads at once.

    Args:
        drafters: names by the index of steps, for requests whose beginning is lost.
    """

    def __init__(self, drafters: Sequence[str] = ()) -> None:
        self._names = list(drafters)
        self._open: dict[int, tuple[list[str], str]] = {}  # requests that run: their drafters and label
        self._labels: set[str] = set()
        self._spans: list[Span] = []
        self._span_ms = _SPAN_MS
        self.drafters: dict[str, Drafter] = {}
        self.requests = self.steps = self.tokens = self.drafted = self.accepted = 0
        self._ms = [0.0] * len(PHASES)
        self.forwards = 0.0
        self.rows = 0.0
        self.saved_ms = 0.0
        self.timed = 0
        self.histogram: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        """Take the next event."""
        match event.get("kind"):
            case "begin":
                self.requests += 1
                while len(self._open) >= _MOST_OPEN:  # their ends are lost
                    del self._open[next(iter(self._open))]
                known = event["label"] in self._labels or len(self._labels) < _MOST_LABELS
                label = event["label"] if known else _OTHERS
                self._labels.add(label)
                self._open[event["id"]] = (event["drafters"], label)
            case "step":
                self._step(event, *self._open.get(event["id"], (self._names, "")))
            case "end":
                self._open.pop(event["id"], None)

    def _step(self, event: Event, names: Sequence[str], label: str) -> None:
        emitted, sources = len(event["emitted"]), event["source"]
        kept = event["path"][: accepted(event)]
        ms = [event[f"{phase}_ms"] for phase in PHASES]
        spent = sum(ms)
        share = 1.0 / max(event["requests"], 1)  # phases are told whole to each request that shared them
        self.steps += 1
        self.tokens += emitted
        self.drafted += len(sources)
        self.accepted += len(kept)
        self.forwards += share
        self.rows += event["rows"] * share
        self.histogram[len(kept)] += 1
        for phase, part in enumerate(ms):
            self._ms[phase] += part * share
        if event["reason"] is not None:
            _count(self.reasons, event["reason"])
        offering, timed = self._offers(event["proposals"]), event["saved_ms"] is not None
        own = [self._of(names[source]) for source in sources]
        runs = Counter(sources[node] for node in kept)
        drafted: Counter[int] = Counter(sources)
        self._verified(event, own)
        for source, nodes in drafted.items():
            of, run = self._of(names[source]), runs[source]
            of.verified += 1
            of.hits += run > 0
            of.drafted += nodes
            of.accepted += run
            of.runs[run] += 1
        if timed:
            self.timed += 1
            self.saved_ms += event["saved_ms"] * share
            for offer in event["proposals"]:
                self._of(offer["drafter"]).saved_ms -= offer["ms"]
            # Tokens go to who guessed them, time to who took it, what a wider step took more to its nodes. The target's
            # own token is no guess; of a step that was cut before it, the last guess only stands in its place. Of a
            # step that was shared each request has its part, and in that its own proposals whole.
            plain = event["plain_ms"] * share
            each = (spent * share - plain - offering) / len(sources) if sources else 0.0
            for source, nodes in drafted.items():
                self._of(names[source]).saved_ms += runs[source] * plain - nodes * each
            if event["own"] is None and kept:
                own[kept[-1]].saved_ms -= plain
        span = self._span(event["at"])
        span.steps += 1
        span.drafted += len(sources)
        span.accepted += len(kept)
        span.tokens[label] = span.tokens.get(label, 0) + emitted
        span.ms[label] = span.ms.get(label, 0.0) + spent

    def _of(self, name: str) -> Drafter:
        found = self.drafters.get(name)
        if found is None:
            name = name if len(self.drafters) < _MOST_NAMES else _OTHERS
            found = self.drafters.setdefault(name, Drafter())
        return found

    def _offers(self, proposals: Iterable[Mapping[str, Any]]) -> float:
        """Note who offered what; gives the milliseconds of all."""
        whole = 0.0
        for offer in proposals:
            of, nodes, ms = self._of(offer["drafter"]), offer["nodes"], offer["ms"]
            whole += ms
            of.proposed += nodes
            of.ms += ms
            if offer["unasked"] is None:
                of.asked += 1
                of.offered += nodes > 0
            else:
                _count(of.unasked, offer["unasked"])
            of.faults += offer["fault"] is not None
        return whole

    @staticmethod
    def _verified(event: Event, own: Sequence[Drafter]) -> None:
        path = event["path"]  # what a stop cut off was right all the same
        for node, (of, stated) in enumerate(zip(own, event["survival"], strict=True)):
            of_class = of.classes[min(int(stated * BINS), BINS - 1)]
            of_class.nodes += 1
            of_class.stated += stated
            if node in path:
                of_class.accepted += 1

    def _span(self, at: float) -> Span:
        at = min(max(at, 0.0), _LONGEST_MS)
        while at >= self._span_ms * MOST_SPANS:
            self._span_ms *= 2.0
            for span, next_one in zip(self._spans[::2], self._spans[1::2], strict=False):
                span.take(next_one)
            self._spans = self._spans[::2]
        place = int(at / self._span_ms)
        self._spans += [Span() for _ in range(place + 1 - len(self._spans))]
        return self._spans[place]

    # ---- what it shows ----------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """All of it, as JSON."""
        ms = dict(zip(PHASES, self._ms, strict=True))
        spent = sum(self._ms)
        return {
            "requests": self.requests,
            "steps": self.steps,
            "tokens": self.tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "mean_acceptance_length": 1.0 + self.accepted / self.steps if self.steps else None,
            "draft_acceptance_rate": _share(self.accepted, self.drafted),
            "rows": self.rows / self.forwards if self.forwards else None,
            "acceptance_histogram": _dense(self.histogram),
            "ms": ms,
            "time_shares": {phase: part / spent for phase, part in ms.items()} if spent else {},
            "saved_ms": self.saved_ms if self.timed else None,
            "undrafted": dict(self.reasons.most_common()),
            "drafters": {name: self._drafter(of) for name, of in self.drafters.items()},
            "span_ms": self._span_ms,
            "over_time": [
                {"at": place * self._span_ms, **_spanned(span)} for place, span in enumerate(self._spans) if span.steps
            ],
        }

    def _drafter(self, of: Drafter) -> dict[str, Any]:
        classes = [
            {"nodes": c.nodes, "stated": c.stated / c.nodes, "accepted": c.accepted / c.nodes}
            for c in of.classes
            if c.nodes
        ]
        error = sum(c["nodes"] * abs(c["stated"] - c["accepted"]) for c in classes)
        return {
            "asked": of.asked,
            "offered": of.offered,
            "proposed": of.proposed,
            "verified": of.verified,
            "drafted": of.drafted,
            "accepted": of.accepted,
            "hit_rate": _share(of.hits, of.verified),
            "acceptance_rate": _share(of.accepted, of.drafted),
            "calibration": classes,
            "calibration_error": error / of.drafted if of.drafted else None,
            "runs": _dense(of.runs),
            "ms": of.ms,
            "saved_ms": of.saved_ms if self.timed else None,
            "faults": of.faults,
            "unasked": dict(of.unasked.most_common()),
        }


def _spanned(span: Span) -> dict[str, Any]:
    return {
        "steps": span.steps,
        "acceptance_length": 1.0 + span.accepted / span.steps,
        "draft_acceptance_rate": _share(span.accepted, span.drafted),
        "tokens": dict(span.tokens),
        "tokens_per_second": {label: 1e3 * n / span.ms[label] for label, n in span.tokens.items() if span.ms[label]},
    }


def _count(counter: Counter[str], name: str) -> None:
    """Count, of no more than so many names."""
    counter[name if name in counter or len(counter) < _MOST_NAMES else _OTHERS] += 1


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _dense(counts: Counter[int]) -> list[int]:
    return [counts[i] for i in range(max(counts) + 1)] if counts else []
