"""What it costs to trace a step: its event, the event's JSON, and its place in the ring.

    python -m augury.bench.tracing

Steps are made up, with trees of several sizes; each time is the least of several repetitions, as noise only adds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np

from augury.record import Proposal, StepRecord
from augury.trace import events
from augury.trace.ring import Ring
from augury.tree import DraftTree, Path

SIZES = (0, 8, 24, 64)
"""Nodes of the trees."""

STEP_MS = 10.0
"""Milliseconds of the step that a share is told of: a small model's, on a fast machine."""


def made(nodes: int, explained: bool) -> StepRecord:
    """A step with a tree of two branches, of which the first three nodes are accepted."""
    tree = DraftTree.of(
        np.arange(1000, 1000 + nodes, dtype=np.int32),
        np.array([-1, *range(nodes - 1)][:nodes], np.int32)
        - np.array([i == nodes // 2 for i in range(nodes)], np.int32),
        np.linspace(0.9, 0.1, nodes, dtype=np.float32),
        1,
    )
    path = tuple(range(min(3, nodes // 2)))
    return StepRecord(
        position=100, root=7, tree=tree, path=Path(path, 9), emitted=(*(1000 + i for i in path), 9),
        proposals=(Proposal("suffix", nodes, 0.08), Proposal("self", nodes, 6.0)), reason=None, rows=nodes + 1,
        draft_ms=6.1, verify_ms=12.0, accept_ms=0.1, commit_ms=0.1, rest_ms=0.4,
        probabilities=tuple(np.linspace(0.99, 0.01, nodes).tolist()) if explained else None, began=1.0, plain_ms=11.0,
    )  # fmt: skip


def microseconds(nodes: int, text: bool, explained: bool, repeats: int = 7, count: int = 300) -> float:
    """Of one step."""
    ring, step = Ring(1 << 20), made(nodes, explained)
    piece = events.pieces(lambda id: b" word%d" % (id % 50)) if text else None
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        for n in range(count):
            ring.put(events.step(1, n, step, 0.0, piece))
        best = min(best, time.perf_counter() - begin)
    return 1e6 * best / count


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    argparse.ArgumentParser(prog="python -m augury.bench.tracing", description=__doc__).parse_args(arguments)
    print(f"microseconds to trace one step, and its share of a step of {STEP_MS:g} ms")
    print(" nodes      ids only     with text     explained, with text")
    for nodes in SIZES:
        times = [microseconds(nodes, *options) for options in ((False, False), (True, False), (True, True))]
        cells = [f"{us:6.1f}  {us / 10 / STEP_MS:5.2f} %" for us in times]
        print(f"{nodes:6d}  " + "  ".join(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
