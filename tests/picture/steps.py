"""Steps made by hand, as events, for what draws and tells of them."""

from __future__ import annotations

import numpy as np

from augury.record import Proposal, RequestRecord, StepRecord
from augury.sampling import Sampling
from augury.trace import events
from augury.tree import DraftTree, Path

WORDS = {
    1: b" the", 2: b" quick", 3: b" brown", 4: b" lazy", 5: b" fox", 6: b" dog", 7: b"\n", 9: b" end",
    20: b"\xe4\xbb", 21: b"\x8a", 22: "天".encode(), 30: b"<script>alert(1)</script>", 31: b'"><img src=x onerror=a>&',
    32: b"\x00\x1b[31m", 33: "\u202e\U0001f600".encode(),
}  # fmt: skip
NAMES = ("suffix", "self")

#            root
#           /    \
#       0 quick   1 lazy
#       /    \        \
#   2 brown  3 fox     4 dog
FORKED = DraftTree(
    np.asarray([2, 4, 3, 5, 6], np.int32), np.asarray([-1, -1, 0, 0, 1], np.int32),
    np.asarray([0.9, 0.5, 0.8, 0.4, 0.2], np.float32), np.asarray([0, 0, 1, 1, 0], np.uint8),
)  # fmt: skip
EMPTY = DraftTree.empty()


def record(
    tree, nodes, emitted, *, p=None, q=None, coins=None, reason=None, position=5, root=1, began=0.0, plain_ms=None
):
    return StepRecord(
        position=position, root=root, tree=tree, path=Path(nodes, 9), emitted=emitted,
        proposals=(Proposal("suffix", 3, 0.25), Proposal("self", 0, 0.0, unasked="it is dear")), reason=reason,
        rows=len(tree) + 1, draft_ms=1.0, verify_ms=6.0, accept_ms=1.0, commit_ms=0.5, rest_ms=1.5, probabilities=p,
        sampled=q or {}, coins=coins, began=began, plain_ms=plain_ms,
    )  # fmt: skip


def event(*args, n=0, text=True, words=WORDS, **options):
    piece = events.pieces(words.__getitem__) if text else None
    return events.step(0, n, record(*args, **options), 0.0, piece)


def begin(rule="coupled", sampling=None, drafters=NAMES):
    request = RequestRecord(6, drafters, prefill_ms=3.0)
    return events.begin(
        0, request, at=0.0, label="drafted", rule=rule, sampling=sampling or Sampling(), drafters=drafters
    )


MISS = event(FORKED, (0,), (2, 9), p=(0.75, 0.125, 0.5, 0.0625, 0.0), q={2: 0.25}, plain_ms=8.0)
HIT = event(FORKED, (0, 2), (2, 3, 9), n=1, began=0.02)
CUT = event(FORKED, (0, 2), (2,), n=2, began=0.03)
PLAIN = event(EMPTY, (), (9,), n=3, reason="no drafter had a guess", began=0.05)
