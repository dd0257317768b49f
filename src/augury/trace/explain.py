"""Tells what happened in a request, step by step: who guessed what, what the target thought, what was kept.

Pure functions from records to rich renderables. Tokens come as bytes, because a token need not be a whole
character: Chinese text is full of tokens that are two of a character's three bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from augury.record import PHASES, RequestRecord, StepRecord
from augury.trace.figures import figures, line

Bytes = Callable[[int], bytes]
"""The bytes of a token."""

Fate = Literal["accepted", "rejected", "not reached", "cut off"]
"""``not reached``: the rule stopped before it. ``cut off``: accepted, but the answer ended before it."""

_INDENT = "   "
_STYLE = {"accepted": "green", "rejected": "red", "not reached": "dim", "cut off": "yellow"}


def legible(raw: bytes) -> str:
    """Bytes of tokens for the eye: quoted, controls escaped, bytes that are no whole character as ``‹E4 BB›``."""
    out = ""
    while raw:
        try:
            out += _escaped(raw.decode())
            break
        except UnicodeDecodeError as bad:
            out += _escaped(raw[: bad.start].decode()) + "‹" + raw[bad.start : bad.end].hex(" ").upper() + "›"
            raw = raw[bad.end :]
    return '"' + out.replace("›‹", " ") + '"'


def fates(step: StepRecord) -> list[Fate]:
    """What became of each node of the step's tree; see ``judged``."""
    return judged(step.tree.parents.tolist(), step.path.nodes, len(step.emitted))


def judged(parents: Sequence[int], path: Sequence[int], emitted: int) -> list[Fate]:
    """What became of each node of a tree.

    The rule goes down from the root and tries a node's children in order until one is accepted, so the
    siblings behind an accepted node, and all that hangs on a rejected one, are never looked at.

    Args:
        parents: of the nodes, -1 for the root's children.
        path: the nodes that the rule accepted.
        emitted: how many tokens the step added to the answer.
    """
    kept = {node: place for place, node in enumerate(path)}
    settled: set[int] = set()  # parents one of whose children was accepted already
    found: list[Fate] = []
    for node, parent in enumerate(parents):
        if node in kept:
            settled.add(parent)
            found.append("accepted" if kept[node] < emitted else "cut off")
        elif (parent >= 0 and parent not in kept) or parent in settled:
            found.append("not reached")
        else:
            found.append("rejected")
    return found


def explain(record: RequestRecord, token: Bytes) -> RenderableType:
    """All steps of a request and its summary."""
    steps = [step(n, s, record.drafters, token) for n, s in enumerate(record.steps, 1)]
    return Group(*steps, summary(record))


def step(number: int, record: StepRecord, drafters: Sequence[str], token: Bytes) -> RenderableType:
    """One step and its tree: branch marks where guesses fork, no new mark where a path just goes on."""
    last = record.path.nodes[-1] if record.path.nodes else -1
    own = len(record.tree)  # the target's own token hangs on the last kept node, like one more of its children
    labels = [_node(record, node, fate, drafters, token) for node, fate in enumerate(fates(record))]
    below: dict[int, list[int]] = {node: record.tree.children(node) for node in range(-1, own)}
    if len(record.emitted) > len(record.path.nodes):
        kind = "own token" if not own else "correction" if below[last] else "bonus token"
        labels.append(Text.assemble((kind, "blue"), f"  {legible(token(record.path.next_token))}"))
        below[last].append(own)
    lines = [
        Text.assemble(
            (f"step {number}", "bold"),
            f"  position {record.position}  root {legible(token(record.root))}  emits ",
            (legible(b"".join(token(t) for t in record.emitted)), "bold"),
        ),
        Text(f"{_INDENT}{_times(record)}", "dim"),
    ]
    if record.proposals:
        lines.append(Text(f"{_INDENT}{_offers(record)}", "dim"))
    if record.reason is not None:
        lines.append(Text(f"{_INDENT}nothing was drafted: {record.reason}"))
    return Group(*lines, *_hung(below, labels, -1, _INDENT))


def _hung(below: Mapping[int, Sequence[int]], labels: Sequence[Text], parent: int, prefix: str) -> Iterator[Text]:
    """Lines of all that hangs on a node."""
    children = below.get(parent, ())
    goes_on = parent >= 0 and len(children) == 1
    for child in children:
        mark, deeper = ("", "") if goes_on else ("└─ ", "   ") if child == children[-1] else ("├─ ", "│  ")
        yield Text.assemble(prefix + mark, labels[child])
        yield from _hung(below, labels, child, prefix + deeper)


def summary(record: RequestRecord) -> RenderableType:
    """The request in a few lines: its figures, its drafters, and why nothing was drafted where nothing was."""
    f = figures(record)
    table = Table("drafter", "proposed", "drafted", "accepted", "rate", "ms", "faults", box=None, pad_edge=False)
    for d in f.drafters:
        rate = f"{d.accepted / d.drafted:.0%}" if d.drafted else "-"
        table.add_row(d.name, str(d.proposed), str(d.drafted), str(d.accepted), rate, f"{d.ms:.1f}", str(d.faults))
    histogram = ", ".join(f"{accepted}: {steps}" for accepted, steps in enumerate(f.acceptance_histogram))
    ended = f.finish_reason or "not yet"
    lines = [
        f"ended: {ended}" + (f" at {record.stop!r}" if record.stop is not None else ""),
        line(record),
        f"steps by accepted draft tokens: {histogram or '-'}",
        *(f"{steps} steps without a draft: {why}" for why, steps in f.undrafted.items()),
    ]
    return Group(*(Text(one) for one in lines), *([table] if f.drafters else []))


def _node(record: StepRecord, node: int, fate: Fate, drafters: Sequence[str], token: Bytes) -> Text:
    tree = record.tree
    drafter = drafters[int(tree.source[node])]
    parts = [legible(token(int(tree.tokens[node]))), drafter, f"survival {tree.survival[node]:.2f}"]
    if record.probabilities is not None:
        parts.append(f"p {record.probabilities[node]:.3f}")
    if node in record.sampled:
        parts.append(f"q {record.sampled[node]:.3f}")
    return Text.assemble((fate, _STYLE[fate]), "  " + "  ".join(parts))


def _times(record: StepRecord) -> str:
    laps = " + ".join(f"{phase} {getattr(record, phase + '_ms'):.2f}" for phase in PHASES)
    return f"{laps} = {record.ms:.2f} ms, {record.rows} row{'s' if record.rows != 1 else ''}"


def _offers(record: StepRecord) -> str:
    offers = [
        f"{p.drafter} not asked ({p.unasked})"
        if p.unasked
        else f"{p.drafter} {p.nodes} in {p.ms:.2f} ms" + (f" (dropped: {p.fault})" if p.fault else "")
        for p in record.proposals
    ]
    return f"offered: {', '.join(offers)}; verified: {record.drafted}"


def _escaped(text: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    return "".join(named.get(c) or (c if c.isprintable() else f"\\u{{{ord(c):X}}}") for c in text)
