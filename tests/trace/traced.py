"""Made-up requests and their events, and the rules that readers of Chrome traces go by."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from hypothesis import strategies as st

from augury.record import Proposal, RequestRecord, StepRecord
from augury.sampling import Sampling
from augury.trace import events
from augury.tree import DraftTree, Path

DRAFTERS = ("suffix", "eagle", "self")
WORDS = [
    b" the",
    b"\n",
    b'"',
    "天".encode(),
    b"\xe4\xbb",
    b"\x8a",
    b"\\n",
    b"<script>",
    b"\x1b[31m",
    "‹E4›".encode(),
    b"",
]

milliseconds = st.floats(0.0, 50.0) | st.sampled_from([0.0, 0.0004, 0.0005, 0.0015, 1.0])
chances = st.floats(0.0, 1.0)


def word(token):
    return WORDS[token % len(WORDS)]


def header(text=False, zero=0.0):
    return events.header(model="toy", runner="by hand", drafters=DRAFTERS, source="test", text=text, zero=zero)


@st.composite
def trees(draw, size=8):
    parents = [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(0, size)))]
    survival = []
    for parent in parents:
        survival.append(draw(chances) * (survival[parent] if parent >= 0 else 1.0))
    return DraftTree(
        np.array([draw(st.integers(0, 60_000)) for _ in parents], np.int32),
        np.array(parents, np.int32),
        np.array(survival, np.float32),
        np.array([draw(st.integers(0, len(DRAFTERS) - 1)) for _ in parents], np.uint8),
    )


@st.composite
def steps(draw, position=9, root=5, began=0.0):
    tree = draw(trees())
    nodes = []
    while (children := tree.children(nodes[-1] if nodes else -1)) and draw(st.booleans()):
        nodes.append(draw(st.sampled_from(children)))
    whole = [int(tree.tokens[node]) for node in nodes] + [draw(st.integers(0, 60_000))]
    kept = draw(st.sampled_from([len(whole)] * 4 + list(range(len(whole) + 1))))
    some = st.none() | st.text(max_size=8)
    offers = [
        Proposal(name, draw(st.integers(0, 9)), draw(milliseconds), draw(some), draw(some))
        for name in DRAFTERS
        if draw(st.booleans())
    ]
    sampled = draw(st.dictionaries(st.integers(0, len(tree) - 1), chances)) if len(tree) else {}
    explained, n = draw(st.booleans()), len(tree)
    return StepRecord(
        position=position,
        root=root,
        tree=tree,
        path=Path(tuple(nodes), whole[-1]),
        emitted=tuple(whole[:kept]),
        proposals=tuple(offers),
        reason=draw(some),
        rows=draw(st.integers(1, 40)),
        draft_ms=draw(milliseconds),
        verify_ms=draw(milliseconds),
        accept_ms=draw(milliseconds),
        commit_ms=draw(milliseconds),
        rest_ms=draw(milliseconds),
        probabilities=tuple(draw(chances | st.just(float("nan"))) for _ in range(n)) if explained else None,
        sampled=sampled,
        began=began,
        plain_ms=draw(st.none() | milliseconds),
        requests=draw(st.integers(1, 4)),
        coins=tuple(draw(st.none() | chances) for _ in range(n)) if explained and draw(st.booleans()) else None,
    )


@st.composite
def requests(draw, began=0.0):
    """A record whose steps follow each other, nearly: clocks are read between them, and rounded."""
    record = RequestRecord(10, DRAFTERS, draw(st.integers(0, 10)), draw(milliseconds), began=began)
    now = began + record.prefill_ms / 1e3
    position = 9
    for _ in range(draw(st.integers(0, 4))):
        step = draw(steps(position, 5, now))
        record.steps.append(step)
        position += len(step.emitted)
        now += step.ms / 1e3 + draw(st.floats(-1e-6, 1e-3))
    record.finish = draw(st.sampled_from(["stop", "length", "cancelled", "error", None]))
    record.stop = draw(st.none() | st.text(max_size=4) | st.integers(0, 60_000))
    return record


def told(id, record, *, text=False, label="drafted", pair=None, sampling=None):
    """Events of a whole request."""
    piece = events.pieces(word) if text else None
    last = record.steps[-1] if record.steps else None
    end = record.began + record.prefill_ms / 1e3 if last is None else last.began + last.ms / 1e3
    return [
        events.begin(
            id, record, at=1e3 * record.began, label=label, rule="coupled", sampling=sampling or Sampling(),
            drafters=DRAFTERS, prompt=[1, 2, 3] if text else None, prompt_text="one two" if text else None, pair=pair,
        ),
        *(events.step(id, n, step, 0.0, piece) for n, step in enumerate(record.steps)),
        events.end(id, record, 1e3 * end, text=text),
    ]  # fmt: skip


@st.composite
def traces(draw, text=None, pairs=None):
    """Events of several requests at once, each in its order; some begin before the trace, some end behind it."""
    text = draw(st.booleans()) if text is None else text
    pairs = draw(st.booleans()) if pairs is None else pairs
    rows = []
    for id in range(1, draw(st.integers(0, 4)) + 1):
        record = draw(requests(draw(st.floats(-0.01, 0.2))))
        label = (
            ("plain", "drafted")[id % 2] if pairs else draw(st.sampled_from(["plain", "drafted", "", "a: verifier"]))
        )
        own = told(id, record, text=text, label=label, pair=f"prompt {(id + 1) // 2}" if pairs else None)
        rows.append(own if pairs else own[draw(st.integers(0, 1)) : len(own) - draw(st.integers(0, 1))])
    out = []
    while any(rows):
        out.append(draw(st.sampled_from([row for row in rows if row])).pop(0))
        if draw(st.integers(0, 5)) == 0:
            out.append(events.load(out[-1]["at"], 1, draw(st.integers(0, 3)), 0.25))
    return out


def check_chrome(rows):
    """What Perfetto's importer of JSON wants: it drops slices that do not nest, and arrows that find no slice."""
    names = [row for row in rows if row["ph"] == "M"]
    rest = rows[len(names) :]
    assert rows[: len(names)] == names, "names come first"
    processes = {row["pid"]: row["args"]["name"] for row in names if row["name"] == "process_name"}
    tracks = {(row["pid"], row["tid"]): row["args"]["name"] for row in names if row["name"] == "thread_name"}
    assert len(processes) == sum(row["name"] == "process_name" for row in names), "a process has one name"
    assert len(tracks) == sum(row["name"] == "thread_name" for row in names), "a track has one name"
    assert all(tracks.values())
    assert all(row["pid"] in processes for row in rest)
    times = [row["ts"] for row in rest]
    assert all(type(ts) is int and ts >= 0 for ts in times)
    assert times == sorted(times)
    assert {row["ph"] for row in rest} <= {"X", "C", "s", "f"}
    open = defaultdict(list)
    arrows = defaultdict(list)
    for row in rest:
        track = row["pid"], row["tid"]
        stack = open[track]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= row["ts"]:
            stack.pop()
        if row["ph"] == "X":
            assert track in tracks, "a track has a name"
            assert type(row["dur"]) is int
            assert row["dur"] >= 0
            end = row["ts"] + row["dur"]
            assert not stack or end <= stack[-1]["ts"] + stack[-1]["dur"], "slices nest"
            assert not stack or "request" in stack[0]["name"], "only requests hold others"
            stack.append(row)
        elif row["ph"] == "C":
            assert row["args"]
            assert all(type(value) in (int, float) for value in row["args"].values())
        else:
            assert stack, "an arrow is bound to a slice"
            assert row["ph"] == "s" or row["bp"] == "e"
            arrows[row["cat"], row["name"], row["id"]].append((row["ph"], stack[-1]["name"]))
    assert all(ends == [("s", "verify"), ("f", "forward")] for ends in arrows.values())
    return Counter(row["name"].split(",")[0] for row in rest if row["ph"] == "X"), processes, tracks
