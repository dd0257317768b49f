"""Figures and explanations of hand-made records."""

from __future__ import annotations

import io
import json
import re
from dataclasses import asdict

import numpy as np
import pytest
from rich.console import Console

from augury.record import Proposal, RequestRecord, StepRecord
from augury.trace.explain import explain, fates, legible
from augury.trace.figures import figures, line
from augury.tree import DraftTree, Path

WORDS = {
    1: b" the", 2: b" quick", 3: b" brown", 4: b" lazy", 5: b" fox", 6: b" dog", 7: b"\n", 9: b" end",
    20: b"\xe4\xbb", 21: b"\x8a", 22: "天".encode(), 23: b"\xe5", 24: b"\xa4\xa9",
}  # fmt: skip


def record(
    tree, nodes, emitted, *, next_token=9, root=1, position=5, reason=None, chances=None, proposals=(), sampled=None
):
    return StepRecord(
        position, root, tree, Path(nodes, next_token), emitted, proposals, reason, len(tree) + 1,
        1.0, 6.0, 1.0, 0.5, 1.5, chances, sampled or {},
    )  # fmt: skip


def written(renderable, width=300, **options):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, **options).print(renderable)
    return out.getvalue()


#            root
#           /    \
#       0 quick   1 lazy
#       /    \        \
#   2 brown  3 fox     4 dog
FORKED = DraftTree.of([2, 4, 3, 5, 6], [-1, -1, 0, 0, 1], [0.9, 0.5, 0.8, 0.4, 0.2])


def test_a_miss_below_the_first_node():
    step = record(FORKED, (0,), (2, 9))
    assert fates(step) == ["accepted", "not reached", "rejected", "rejected", "not reached"]


def test_siblings_are_tried_in_order():
    assert fates(record(FORKED, (1, 4), (4, 6, 9))) == [
        "rejected",
        "accepted",
        "not reached",
        "not reached",
        "accepted",
    ]


def test_a_miss_at_the_root_reaches_no_grandchild():
    step = record(FORKED, (), (9,))
    assert fates(step) == ["rejected", "rejected", "not reached", "not reached", "not reached"]


def test_what_a_stop_cut_off_is_named_so():
    assert fates(record(FORKED, (0, 2), (2,))) == ["accepted", "not reached", "cut off", "not reached", "not reached"]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b" the", '" the"'),
        (b'a\n\t"\\', '"a\\n\\t\\"\\\\"'),
        (b"\xe4\xbb", '"‹E4 BB›"'),
        (b"\x8a", '"‹8A›"'),
        (b"\x8a\x8a", '"‹8A 8A›"'),
        ("今天".encode() + b"\xe5", '"今天‹E5›"'),
        (b"\xff\xfea\xe2\x82", '"‹FF FE›a‹E2 82›"'),
        ("\u202eabc\x1b[31m".encode(), '"\\u{202E}abc\\u{1B}[31m"'),
        (b"", '""'),
    ],
)
def test_bytes_are_legible(raw, shown):
    assert legible(raw) == shown


def test_every_byte_is_shown_or_named():
    rng = np.random.default_rng(0)
    for _ in range(200):
        raw = bytes(rng.integers(0, 256, rng.integers(0, 12)).tolist())
        text = legible(raw)[1:-1]
        assert text.isprintable()


def test_an_explanation_tells_everything():
    request = RequestRecord(6, ("suffix", "model"), cached_tokens=2, prefill_ms=3.0)
    tree = DraftTree(FORKED.tokens, FORKED.parents, FORKED.survival, np.asarray([0, 0, 1, 1, 0], np.uint8))
    offers = (Proposal("suffix", 3, 0.25), Proposal("model", 0, 1.5, "took 2000 ms, the limit is 1000"))
    request.steps.append(
        record(tree, (0,), (2, 9), chances=(0.75, 0.125, 0.5, 0.0625, 0.0), proposals=offers, sampled={2: 0.25})
    )
    request.steps.append(
        record(DraftTree.empty(), (), (5,), next_token=5, root=9, position=7, reason="no drafter had a guess")
    )
    request.finish = "length"
    text = written(explain(request, WORDS.__getitem__))
    lines = [one.strip(" │├└─") for one in text.splitlines()]
    assert 'step 1  position 5  root " the"  emits " quick end"' in lines
    assert "draft 1.00 + verify 6.00 + accept 1.00 + commit 0.50 + rest 1.50 = 10.00 ms, 6 rows" in lines
    assert (
        "offered: suffix 3 in 0.25 ms, model 0 in 1.50 ms (dropped: took 2000 ms, the limit is 1000); verified: 5"
        in lines
    )
    assert 'accepted  " quick"  suffix  survival 0.90  p 0.750' in lines
    assert 'rejected  " brown"  model  survival 0.80  p 0.500  q 0.250' in lines
    assert 'not reached  " dog"  suffix  survival 0.20  p 0.000' in lines
    assert 'correction  " end"' in lines
    assert "nothing was drafted: no drafter had a guess" in lines
    assert 'own token  " fox"' in lines
    assert "1 steps without a draft: no drafter had a guess" in lines


def test_the_shape_of_a_tree():
    request = RequestRecord(6, ("suffix",), steps=[record(FORKED, (0,), (2, 9))])
    text = re.sub("  suffix .*", "", written(explain(request, WORDS.__getitem__)))
    assert text.splitlines()[2:8] == [
        '   ├─ accepted  " quick"',
        '   │  ├─ rejected  " brown"',
        '   │  ├─ rejected  " fox"',
        '   │  └─ correction  " end"',
        '   └─ not reached  " lazy"',
        '      not reached  " dog"',
    ]


def test_a_long_chain_does_not_run_out_of_the_terminal():
    chain = DraftTree.chain([1] * 64, [0.5] * 64)
    request = RequestRecord(6, ("suffix",), steps=[record(chain, tuple(range(64)), (1,) * 64 + (9,))])
    assert (
        written(explain(request, WORDS.__getitem__), width=80).count('      accepted  " the"  suffix  survival 0.50\n')
        == 63
    )
    assert '\n      bonus token  " end"\n' in written(explain(request, WORDS.__getitem__), width=80)


def test_a_full_hit_gives_a_bonus_token():
    request = RequestRecord(6, ("suffix",), steps=[record(FORKED, (0, 2), (2, 3, 9))])
    text = written(explain(request, WORDS.__getitem__))
    assert 'bonus token  " end"' in text
    assert "correction" not in text


def test_a_cut_answer_shows_no_token_behind_the_cut():
    request = RequestRecord(6, ("suffix",), steps=[record(FORKED, (0, 2), (2,))])
    text = written(explain(request, WORDS.__getitem__))
    assert "bonus" not in text
    assert "correction" not in text
    assert 'cut off  " brown"' in text


def test_chinese_tokens_that_are_parts_of_characters():
    chain = DraftTree.chain([21, 22, 23, 24], [0.9, 0.8, 0.7, 0.6])
    request = RequestRecord(6, ("suffix",), steps=[record(chain, (0, 1, 2, 3), (21, 22, 23, 24, 9), root=20)])
    text = written(explain(request, WORDS.__getitem__))
    assert 'root "‹E4 BB›"  emits "‹8A›天天 end"' in text
    assert '"‹E5›"' in text
    assert '"‹A4 A9›"' in text


def test_no_colour_is_needed_to_read_it():
    request = RequestRecord(6, ("suffix",), steps=[record(FORKED, (0,), (2, 9))])
    assert "\x1b" not in written(explain(request, WORDS.__getitem__))
    assert "\x1b[32maccepted" in written(
        explain(request, WORDS.__getitem__), force_terminal=True, color_system="standard"
    )


def test_figures_by_hand():
    request = RequestRecord(6, ("suffix", "model"), cached_tokens=2)
    tree = DraftTree(FORKED.tokens, FORKED.parents, FORKED.survival, np.asarray([0, 0, 1, 1, 0], np.uint8))
    offers = (Proposal("suffix", 3, 0.25), Proposal("model", 2, 1.5))
    request.steps.append(record(tree, (0, 2), (2, 3, 9), proposals=offers))
    request.steps.append(record(DraftTree.empty(), (), (5,), reason="no drafter had a guess"))
    found = figures(request)
    assert (found.steps, found.completion_tokens, found.drafted, found.accepted) == (2, 4, 5, 2)
    assert (found.draft_ms, found.verify_ms, found.rest_ms, found.decode_ms) == (2.0, 12.0, 6.0, 20.0)
    assert [(d.name, d.proposed, d.drafted, d.accepted, d.ms) for d in found.drafters] == [
        ("suffix", 3, 3, 1, 0.25), ("model", 2, 2, 1, 1.5),
    ]  # fmt: skip
    assert sum(d.accepted for d in found.drafters) == found.accepted
    assert sum(d.drafted for d in found.drafters) == found.drafted
    assert found.undrafted == {"no drafter had a guess": 1}
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["mean_acceptance_length"] == 2.0
    assert line(request) == (
        "4 tokens after 6 (2 cached) · 200.0 tokens/s · 2 steps · acceptance length 2.00 · "
        "draft acceptance rate 40% (2/5) · time draft 10% verify 60% rest 30% · accepted suffix 1, model 1"
    )


def test_a_request_without_steps_has_figures():
    empty = RequestRecord(6, ("suffix",), finish="length")
    assert line(empty) == "0 tokens after 6 · accepted suffix 0"
    assert figures(empty).tokens_per_second is None
    assert "ended: length" in written(explain(empty, WORDS.__getitem__))
