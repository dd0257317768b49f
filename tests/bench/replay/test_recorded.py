"""A recorded text in the place of its model: the same trees, the same verdicts, step by step."""

from __future__ import annotations

import json

import numpy as np
import pytest
from corpus import Letters

from augury.bench.replay.recorded import Fixed, Recorded
from augury.bench.replay.recordings import read
from augury.bench.replay.replay import replay
from augury.budget import Costs
from augury.conformance.toys import ToyTarget
from augury.drafters import free, make, unreplayable
from augury.engine.engine import Engine
from augury.errors import AuguryError, InputError
from augury.models.load import Wording
from augury.sampling import Sampling
from augury.tree import DraftTree, Path

V = 6
SLOW = 1e5  # of forwards, so that no drafter's own time, on however busy a machine, is worth a decision
STEEP = Costs(np.concatenate([[0.0], SLOW * np.linspace(10.0, 74.0, 65)]), 0.0, 0.0)
FLAT = Costs(np.concatenate([[0.0], SLOW * np.linspace(10.0, 12.0, 65)]), 0.0, 0.0)
PROMPTS = [[1, 2, 3, 1, 2], [4, 4, 1, 2, 3, 5, 1], [1, 2, 3, 1, 2, 2], [4, 4, 1, 2]]
TARGET = ToyTarget(V, spread=3.0)
LETTERS = Wording(Letters(V), None, frozenset())


def steps(record):
    """What happened in each step, times left out; what was accepted behind an end is nobody's."""
    return [
        (
            s.position, s.root, s.tree.tokens.tolist(), s.tree.parents.tolist(), s.tree.survival.tolist(),
            s.path.nodes[: len(s.emitted)], s.emitted, [p.nodes for p in s.proposals],
        )
        for s in record.steps
    ]  # fmt: skip


def live(target, spec, prompts, costs, max_tokens, temperature=0.0, eos_ids=(), users=("",)):
    """Results of an engine, and each with whose it is."""
    drafters = [(one, make(one)) for one in spec.split("+")]
    with Engine(target, drafters, eos_ids=eos_ids, meter=costs and Fixed(costs)) as engine:
        return [
            engine.generate(
                prompt, Sampling(temperature=temperature, seed=i), max_tokens=max_tokens,
                cache_salt=users[i % len(users)],
            )
            for i, prompt in enumerate(prompts)
        ]  # fmt: skip


def log(tmp_path, prompts, answers, users=("",), wording=LETTERS):
    file = tmp_path / "log.jsonl"
    rows = [
        {"prompt_ids": list(map(int, p)), "answer_ids": list(map(int, a)), "user": users[i % len(users)]}
        for i, (p, a) in enumerate(zip(prompts, answers, strict=True))
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return read(file, wording)


def again(held, spec, costs, temperature=0.0, eos_ids=()):
    """Records of the replay."""
    records = []
    *_, _last = replay(
        held, [tuple(spec.split("+"))], costs, temperature=temperature, eos_ids=eos_ids,
        taken=lambda arm, recording, record: records.append(record),
    )  # fmt: skip
    return records


@pytest.mark.parametrize(
    ("spec", "costs", "temperature"),
    [
        ("ngram", STEEP, 0.0),
        ("suffix", FLAT, 0.8),
        ("memory", FLAT, 0.0),
        ("ngram+suffix+memory", STEEP, 0.8),
        ("ngram+suffix+memory", None, 0.0),
    ],
)
def test_a_replay_repeats_what_happened(tmp_path, spec, costs, temperature):
    users, prompts = ("ann", "bob"), [*PROMPTS, *PROMPTS[:2]]
    results = live(TARGET, spec, prompts, costs, 48, temperature, users=users)
    held = log(tmp_path, prompts, [r.tokens for r in results], users)
    records = again(held, spec, costs, temperature)
    assert [steps(a) for a in records] == [steps(r.record) for r in results]
    assert sum(r.record.accepted for r in results) > 3
    if costs is STEEP:
        assert sum(p.nodes for r in results for s in r.record.steps for p in s.proposals) > sum(
            r.record.drafted for r in results
        ), "the budget chose"


def test_a_replay_of_another_answer_or_table_is_another(tmp_path):
    """So the equality above is no accident."""
    (result, *_) = live(TARGET, "suffix", PROMPTS[:1], STEEP, 40)
    changed = [*result.tokens[:20], (result.tokens[20] + 1) % V, *result.tokens[21:]]
    (other,) = again(log(tmp_path, PROMPTS[:1], [changed]), "suffix", STEEP)
    assert steps(other) != steps(result.record)
    held = log(tmp_path, PROMPTS[:1], [result.tokens])
    (cheaper,) = again(held, "suffix", FLAT)
    assert steps(cheaper) != steps(result.record)
    (same,) = again(held, "suffix", STEEP)
    assert steps(same) == steps(result.record)


@pytest.mark.parametrize("name", [*free(), "memory"])
def test_who_is_said_to_need_rows_does_and_nobody_else(tmp_path, name):
    results = live(TARGET, name, PROMPTS, FLAT, 40)
    records = again(log(tmp_path, PROMPTS, [r.tokens for r in results]), name, FLAT)
    same = [steps(a) for a in records] == [steps(r.record) for r in results]
    assert same == (unreplayable(name) is None)


def test_drafters_had_room_behind_an_end(tmp_path):
    """An answer that ended by itself is drafted for as if it went on; one that a limit cut is not."""
    ends = (int(live(TARGET, "suffix", PROMPTS[:1], FLAT, 40)[0].tokens[30]),)
    wording = Wording(Letters(V), None, frozenset(ends))
    ended = 0
    for prompt in [[1, 2, 3, 1, 2, n, m] for n in range(V) for m in (1, 2)]:
        (result,) = live(TARGET, "suffix", [prompt], FLAT, 60, eos_ids=ends)
        held = log(tmp_path, [prompt], [result.tokens], wording=wording)
        (record,) = again(held, "suffix", FLAT, eos_ids=ends)
        assert steps(record) == steps(result.record)
        assert record.finish == result.finish_reason
        ended += result.finish_reason == "stop" and bool(result.record.drafted)
    assert ended > 2


def test_an_end_token_in_the_middle_ended_nothing(tmp_path):
    wording = Wording(Letters(V), None, frozenset({3}))
    held = log(tmp_path, [[1, 2]] * 3, [[1, 3, 2, 3], [1, 2, 3], [3, 1, 2]], wording=wording)
    assert [r.ended for r in held.recordings] == [False, True, False]
    records = again(held, "suffix", None, eos_ids=(3,))
    assert [r.completion_tokens for r in records] == [4, 3, 3]


# ---- the target -----------------------------------------------------------------------------------------------------


def test_the_law_is_certain_along_the_text_and_nothing_elsewhere():
    target = Recorded(V)
    target.text = np.array([1, 2, 3, 4, 5, 0], np.int32)
    slot = target.open()
    target.prefill(slot, target.text[:2])
    tree = DraftTree.of([4, 4, 1, 5, 0, 1], [-1, -1, 0, 0, 3, 4], [0.5] * 6)
    (rows,) = target.verify([slot], [3], [tree]).logits
    assert rows.shape == (7, V)
    said = {0: 4, 1: 5, 2: 5, 4: 0}  # root, both nodes of 4, and 5 behind the first of them; then the text ends
    for row in range(7):
        assert np.flatnonzero(rows[row]).tolist() == ([said[row]] if row in said else [])
    target.commit([slot], [Path((0, 3), 0)])
    assert target.length(slot) == 5
    (rows,) = target.verify([slot], [0], [DraftTree.empty()]).logits
    assert not rows.any(), "behind the end, and nothing is left of the step before"
    with pytest.raises(InputError, match="1 slot"):
        target.open()
    target.release(slot)
    assert target.open() == slot


def test_a_text_that_was_not_recorded_is_refused():
    target = Recorded(V)
    target.text = np.array([1, 2, 3], np.int32)
    slot = target.open()
    with pytest.raises(AuguryError, match="does not go on so behind its first 0 tokens"):
        target.prefill(slot, np.array([1, 3], np.int32))
    target.prefill(slot, np.array([1], np.int32))
    with pytest.raises(AuguryError, match="behind its first 1 tokens"):
        target.verify([slot], [3], [DraftTree.empty()])


# ---- the embedded model ---------------------------------------------------------------------------------------------

ASKED = [
    "Repeat exactly: red, green, blue, red, green, blue, red, green, blue.",
    "Say yes.",
]


@pytest.mark.real
@pytest.mark.parametrize("spec", ["ngram", "suffix"])
def test_what_the_embedded_model_wrote_is_replayed_step_by_step(engine, tmp_path, spec):
    costs = Costs(np.concatenate([[0.0], SLOW * np.linspace(10.0, 30.0, 65)]), 0.0, 0.0)
    prompts = [engine.render(text) for text in ASKED]
    results = live(engine.target, spec, prompts, costs, 48, eos_ids=engine.eos_ids)
    wording = Wording(engine.tokenizer, engine.template, frozenset(engine.eos_ids))
    held = log(tmp_path, prompts, [r.tokens for r in results], wording=wording)
    records = again(held, spec, costs, eos_ids=engine.eos_ids)
    assert [steps(a) for a in records] == [steps(r.record) for r in results]
    assert results[0].record.accepted > 5
    assert [r.ended for r in held.recordings] == [r.finish_reason == "stop" for r in results]
