"""Events as a Chrome trace: JSON that ui.perfetto.dev, chrome://tracing and speedscope open.

Perfetto's importer of this format wants the slices of a track to nest, so everything that goes on beside something
else has a track of its own: every request, every drafter, the verifier. All times are whole microseconds, which every
reader keeps as they are; where the clock's rounding lets two slices of a track touch, the later one begins later.

A trace of pairs (``pair`` in all its begin events, as ``augury bench`` writes) shows each pair as a process: the plain
run above the drafted one, both from the moment when the first of them began.

What a step's record does not hold is drawn where it must have been: drafters propose in their order from the beginning
of the draft phase on, requests that share a step in one slice, and a prompt is computed just before the first step.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from augury.record import PHASES
from augury.trace.events import Event, accepted

Slice = dict[str, Any]
"""One event of the Chrome format."""

_ENGINE, _REQUESTS = 1, 2
_TRACKS = 1 << 20
"""Numbers of tracks are above it: one that is a process's own number would be shown as its main thread."""

_SHOWN = 2000
"""Characters of a prompt that are shown."""

_ORDER = {"M": 0, "X": 1, "C": 2, "s": 3, "f": 4}
"""Of events at one time: slices are there before arrows are bound to them, and arrows begin before they end."""


@dataclass
class _Request:
    """One request's events, moved by ``shift`` microseconds."""

    id: int
    begin: Event | None = None
    steps: list[Event] = field(default_factory=list)
    end: Event | None = None
    shift: int = 0

    @property
    def label(self) -> str:
        return "" if self.begin is None else str(self.begin["label"])

    @property
    def pair(self) -> str | None:
        return None if self.begin is None else self.begin.get("pair")

    @property
    def start(self) -> int:
        """When it began, unmoved."""
        first = self.begin or (self.steps[0] if self.steps else self.end)
        assert first is not None
        return min([_us(first["at"]), *(_us(step["at"]) for step in self.steps[:1])])


def document(header: Mapping[str, Any], events: Iterable[Event], only: int | None = None) -> Iterator[str]:
    """The whole file, in parts; see ``timeline``."""
    told = {key: header[key] for key in ("model", "runner", "version", "source", "unix")}
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(told)},"traceEvents":[\n'
    between, encode = "", json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
    for one in timeline(events, only):
        yield between + encode(one)
        between = ",\n"
    yield "\n]}\n"


def timeline(events: Iterable[Event], only: int | None = None) -> list[Slice]:
    """Chrome trace events in the order of time; names of tracks first.

    Args:
        events: as ``log`` checks them.
        only: the id of the request to show; None shows all, and the load.
    """
    found: dict[int, _Request] = {}
    loads: list[Event] = []
    for event in events:
        if event["kind"] == "load":
            loads.append(event)
        elif only is None or event["id"] == only:
            one = found.setdefault(event["id"], _Request(event["id"]))
            if event["kind"] == "step":
                one.steps.append(event)
            else:
                setattr(one, event["kind"], event)
    requests = list(found.values())
    drawing = _Drawing()
    if requests and _paired(requests):
        drawing.pairs(requests)
    else:
        drawing.all(requests, loads if only is None else [])
    return drawing.done()


def _paired(requests: Sequence[_Request]) -> bool:
    """Whether all are of pairs, and the runs of each told apart by their labels."""
    runs = Counter((one.pair, one.label) for one in requests)
    return all(one.pair is not None for one in requests) and max(runs.values()) == 1


class _Drawing:
    """Collects slices; knows what each track holds already."""

    def __init__(self) -> None:
        self._out: list[Slice] = []
        self._tracks: dict[tuple[object, ...], int] = {}
        self._ends: dict[int, int] = {}  # of what tracks without nesting hold
        self._verified: dict[tuple[int, int], tuple[int, int, int]] = {}  # (request, n) -> process, track, time
        self._flows = 0

    def pairs(self, requests: Sequence[_Request]) -> None:
        """A process for each pair."""
        by: dict[str, list[_Request]] = {}
        for one in requests:
            by.setdefault(str(one.pair), []).append(one)
        for pid, (pair, runs) in enumerate(by.items(), 1):
            self._process(pid, pair, pid)
            start = min(one.start for one in runs)
            runs.sort(key=lambda one: (one.label != "plain", one.id))
            for one in runs:  # their own tracks first, which are to be compared
                one.shift = start - one.start
                self._request(pid, one, one.label or f"request {one.id}")
            for one in runs:
                self._shared(pid, [one], one.label)

    def all(self, requests: Sequence[_Request], loads: Sequence[Event]) -> None:
        """One process of requests, and one of what serves them; the runs of a pair lie side by side."""
        self._process(_ENGINE, "engine", 0)
        self._process(_REQUESTS, "requests", 1)
        starts: dict[str, int] = {}
        for one in requests:
            if one.pair is not None:
                starts[one.pair] = min(starts.get(one.pair, one.start), one.start)

        def place(one: _Request) -> tuple[int, str, bool, int]:
            pair = one.pair
            return (one.start if pair is None else starts[pair]), pair or "", one.label != "plain", one.id

        for one in sorted(requests, key=place):
            name = " ".join(part for part in (f"request {one.id}", one.label, one.pair) if part)
            self._request(_REQUESTS, one, name)
        self._shared(_ENGINE, requests, "")
        for load in loads:
            at = _us(load["at"])
            self._count(_ENGINE, "queue", at, {"running": load["running"], "waiting": load["waiting"]})
            self._count(_ENGINE, "cache", at, {"used": load["kv_used"]})

    def done(self) -> list[Slice]:
        """All of it in the order of time; what holds others stands before them."""
        early = min((one["ts"] for one in self._out if "ts" in one), default=0)
        if early < 0:  # what began before the trace's clock
            for one in self._out:
                if "ts" in one:
                    one["ts"] -= early
        return sorted(self._out, key=lambda one: (one.get("ts", -1), _ORDER[one["ph"]], -one.get("dur", 0)))

    # ---- one request's own track ------------------------------------------------------------------------

    def _request(self, pid: int, one: _Request, name: str) -> None:
        """The request, and in it prompt and steps, and in these the phases."""
        track = self._track(pid, "request", one.id, name=name)
        start = at = one.start + one.shift
        title = " ".join(part for part in (f"request {one.id}", one.label) if part)
        whole = self._slice(pid, track, title if one.end is not None else f"{title}, not ended", at, 0, _told(one))
        if one.begin is not None:
            length = _us(one.begin["prefill_ms"])
            at = _us(one.steps[0]["at"]) + one.shift if one.steps else start + length
            told = {key: one.begin[key] for key in ("prompt_tokens", "cached_tokens")}
            if prompt := min(length, at - start):
                self._slice(pid, track, "prompt", at - prompt, prompt, told)
        for step in one.steps:
            at = self._step(pid, track, one.id, max(_us(step["at"]) + one.shift, at), step)
        if one.end is not None:
            at = max(at, _us(one.end["at"]) + one.shift)
        whole["dur"] = at - start

    def _step(self, pid: int, track: int, id: int, start: int, step: Event) -> int:
        """A step and its phases; gives its end."""
        tokens = len(step["emitted"])
        told = {key: step[key] for key in ("n", "position", "rows", "requests", "own", "reason", "saved_ms")}
        told |= {"drafted": len(step["tokens"]), "accepted": accepted(step)}
        if "texts" in step:
            told["emitted"] = "".join(step["texts"].get(str(token), "") for token in step["emitted"])
        whole = self._slice(pid, track, f"step, {tokens} token{'s' if tokens != 1 else ''}", start, 0, told)
        at = start
        for phase in PHASES:
            length = _us(step[f"{phase}_ms"])
            if phase == "verify":
                self._verified[id, step["n"]] = pid, track, at
            if length:
                self._slice(pid, track, phase, at, length)
            at += length
        whole["dur"] = at - start
        return at

    # ---- what requests share ----------------------------------------------------------------------------

    def _shared(self, pid: int, requests: Sequence[_Request], label: str) -> None:
        """Forwards, drafters, and counters of each step, once for all requests that it was of."""
        together: dict[tuple[int, float, float, int], list[tuple[int, Event]]] = {}
        for one in requests:
            for step in one.steps:
                key = _us(step["at"]) + one.shift, step["draft_ms"], step["verify_ms"], step["rows"]
                together.setdefault(key, []).append((one.id, step))
        if not together:
            return
        before = f"{label}: " if label else ""
        verifier = self._track(pid, "verifier", label, name=f"{before}verifier")
        at = length = 0
        for (start, _, verify_ms, rows), of in sorted(together.items(), key=lambda item: item[0][0]):
            self._propose(pid, start, of, label)
            sources = [self._verified[id, step["n"]] for id, step in of]
            length = max(_us(verify_ms), 1)
            at = self._behind(verifier, max(begun for _, _, begun in sources), length)
            told = {"rows": rows, "requests": of[0][1]["requests"]}
            self._slice(pid, verifier, "forward", at, length, told)
            for source in sources if _us(verify_ms) else []:  # nothing is bound to a slice without length
                self._arrow(source, (pid, verifier, at))
            kept = sum(accepted(step) for _, step in of)
            self._count(pid, f"{before}batch", at, {"rows": rows})
            self._count(pid, f"{before}acceptance", at, {"length": round(1.0 + kept / len(of), 4)})
        self._count(pid, f"{before}batch", at + length, {"rows": 0})

    def _propose(self, pid: int, start: int, of: Sequence[tuple[int, Event]], label: str) -> None:
        """What the drafters did in one step, in the order in which they were asked."""
        spent: dict[str, list[Mapping[str, Any]]] = {}
        for _, step in of:
            for offer in step["proposals"]:
                if offer["unasked"] is None:
                    spent.setdefault(offer["drafter"], []).append(offer)
        for name, offers in spent.items():
            length = max(_us(sum(offer["ms"] for offer in offers)), 1)
            track = self._track(
                pid, "drafter", label, name, name=f"{label}: drafter {name}" if label else f"drafter {name}"
            )
            told: dict[str, Any] = {"nodes": sum(offer["nodes"] for offer in offers)}
            if faults := [offer["fault"] for offer in offers if offer["fault"] is not None]:
                told["fault"] = faults[0]
            self._slice(pid, track, "propose", self._behind(track, start, length), length, told)
            start += length

    # ---- the format -------------------------------------------------------------------------------------

    def _behind(self, track: int, start: int, length: int) -> int:
        """Where a slice begins that is put behind all that its track holds."""
        start = max(start, self._ends.get(track, start))
        self._ends[track] = start + length
        return start

    def _slice(
        self, pid: int, track: int, name: str, start: int, length: int, told: Mapping[str, Any] | None = None
    ) -> Slice:
        one: Slice = {"ph": "X", "pid": pid, "tid": track, "name": name, "cat": "augury", "ts": start, "dur": length}
        if told:
            one["args"] = {key: value for key, value in told.items() if value is not None}
        self._out.append(one)
        return one

    def _count(self, pid: int, name: str, at: int, values: Mapping[str, float]) -> None:
        self._out.append({"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": at, "args": dict(values)})

    def _arrow(self, *ends: tuple[int, int, int]) -> None:
        """From the verify phase of a request's step to the forward that it shared."""
        self._flows += 1
        for how, (pid, track, at) in zip(({"ph": "s"}, {"ph": "f", "bp": "e"}), ends, strict=True):
            bound = {"name": "step", "cat": "step", "id": self._flows, "pid": pid, "tid": track, "ts": at}
            self._out.append({**how, **bound})

    def _process(self, pid: int, name: str, place: int) -> None:
        self._name("process_name", pid, 0, name=name)
        self._name("process_sort_index", pid, 0, sort_index=place)

    def _track(self, pid: int, *key: object, name: str) -> int:
        """The track of that key, made and named when it is met first."""
        track = self._tracks.get((pid, *key))
        if track is None:
            place = len(self._tracks)
            track = self._tracks[pid, *key] = _TRACKS + place
            self._name("thread_name", pid, track, name=name)
            self._name("thread_sort_index", pid, track, sort_index=place)
        return track

    def _name(self, what: str, pid: int, tid: int, **told: object) -> None:
        self._out.append({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": told})


def _told(one: _Request) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if one.begin is not None:
        told |= {key: one.begin[key] for key in ("rule", "sampling", "prompt_tokens")}
        told["prompt"] = one.begin.get("prompt_text", "")[:_SHOWN] or None
    if one.end is not None:
        told |= {key: one.end[key] for key in ("finish", "tokens", "steps", "error")}
    return told


def _us(ms: float) -> int:
    """Whole microseconds."""
    return round(1e3 * ms)
