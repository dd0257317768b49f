import json

import numpy as np
import pytest

from augury.bench.paired import Answer, Pair
from augury.bench.prompts import Prompt
from augury.bench.report import by_kind, by_run, document, machine, markdown, notes, summarise, versions
from augury.models.target import TargetInfo
from augury.record import RequestRecord, StepRecord
from augury.trace.figures import figures
from augury.tree import DraftTree, Path

INFO = TargetInfo("toy", "llama", "none", "bfloat16", 10, 100, 4, 1, 100, 200, True, True)


def step(ms: float, drafted: int = 0, accepted: int = 0, source: int = 0) -> StepRecord:
    """A step that spends a tenth on drafting when it drafts, and emits ``accepted + 1`` tokens."""
    tree = DraftTree.chain(list(range(drafted)), np.ones(drafted, np.float32), source)
    draft_ms = 0.1 * ms if drafted else 0.0
    return StepRecord(
        position=0, root=0, tree=tree, path=Path(tuple(range(accepted)), 9), emitted=(*range(accepted), 9),
        proposals=(), reason=None, rows=drafted + 1, draft_ms=draft_ms, verify_ms=0.8 * ms, accept_ms=0.0,
        commit_ms=0.0, rest_ms=0.2 * ms - draft_ms,
    )  # fmt: skip


def answer(*steps: StepRecord, prefill_ms: float = 5.0, untimed_ms: float = 1.0) -> Answer:
    record = RequestRecord(3, ("suffix", "prediction"), prefill_ms=prefill_ms, steps=list(steps), finish="length")
    tokens = tuple(t for s in steps for t in s.emitted)
    return Answer(tokens, prefill_ms + record.decode_ms + untimed_ms, figures(record))


def pair(prompt: str, kind: str, turn: int, plain_ms: float, drafted_ms: float, same: bool | None = True) -> Pair:
    """Four tokens: plainly in four steps, drafted in two, of whose four draft tokens two are accepted."""
    plain = answer(*[step(plain_ms)] * 4)
    drafted = answer(step(2 * drafted_ms, drafted=2, accepted=2), step(2 * drafted_ms, drafted=2, source=1))
    return Pair(Prompt(prompt, kind, "x"), turn, plain, drafted, same)


def test_times_of_an_answer():
    one = answer(step(10.0), step(20.0), untimed_ms=2.0)
    assert one.token_ms == 15.0
    assert one.untimed_ms == pytest.approx(2.0)


def test_a_prompt_counts_by_the_median_of_its_rounds_and_a_kind_by_the_geometric_mean_of_its_prompts():
    pairs = [pair("a", "qa", turn, 10.0, 10.0 / ratio) for turn, ratio in enumerate([2.0, 100.0, 1.0])]
    pairs += [pair("b", "qa", turn, 10.0, 10.0 / 8.0) for turn in range(3)]
    (row,) = summarise(pairs).kinds
    assert row.prompts == 2
    assert row.speedup == pytest.approx(4.0)


def test_shares_lengths_and_rates():
    row = summarise([pair("a", "qa", 0, 10.0, 5.0)]).overall
    assert row.plain == pytest.approx(100.0)
    assert row.drafted == pytest.approx(4 / 20e-3)
    assert row.draft + row.verify + row.rest == pytest.approx(1.0)
    assert row.verify == pytest.approx(0.8)
    assert row.acceptance_length == 2.0
    assert row.acceptance_rate == 0.5
    assert row.accepted == {"suffix": 2, "prediction": 0}


def test_end_to_end_includes_the_prompt():
    row = summarise([pair("a", "qa", 0, 10.0, 5.0)]).overall
    assert row.speedup == pytest.approx(2.0)
    assert row.end_to_end == pytest.approx((40 + 6) / (20 + 6))


def test_the_worst_kind_and_the_interval():
    pairs = [pair(f"{kind}{i}", kind, 0, 10.0, 10.0 / r) for kind, r in (("qa", 3.0), ("rag", 0.9)) for i in range(3)]
    summary = summarise(pairs)
    assert summary.worst == "rag"
    assert summary.overall.speedup == pytest.approx((3.0 * 0.9) ** 0.5)
    low, high = summary.interval
    assert 0.9 <= low < summary.overall.speedup < high <= 3.0


def test_mismatches_are_counted_and_said():
    pairs = [pair("a", "qa", 0, 1.0, 1.0, True), pair("b", "qa", 0, 1.0, 1.0, False)]
    summary = summarise(pairs)
    assert (summary.answers, summary.mismatches) == (2, 1)
    assert "1 of 2 pairs have the same tokens" in notes(summary)
    unpromised = summarise([pair("a", "qa", 0, 1.0, 1.0, None)])
    assert (unpromised.answers, unpromised.mismatches) == (0, 0)
    assert any("not compared" in line for line in notes(unpromised))


def test_time_that_no_record_accounts_for_is_said():
    slow = answer(step(10.0), untimed_ms=10.0)
    summary = summarise([Pair(Prompt("a", "qa", "x"), 0, slow, slow, True)])
    assert summary.untimed == pytest.approx(10.0 / 25.0)
    assert any("unaccounted" in line for line in notes(summary))
    assert not any("unaccounted" in line for line in notes(summarise([pair("a", "qa", 0, 100.0, 100.0)])))


def test_noise_is_what_the_same_work_differs_by():
    pairs = [pair("a", "qa", 0, 10.0, 5.0), pair("a", "qa", 1, 12.0, 6.0)]
    assert summarise(pairs).noise == pytest.approx(0.2)
    assert any("differ by 20.0%" in line for line in notes(summarise(pairs)))
    assert summarise(pairs[:1]).noise is None


def test_tables_hold_the_figures():
    summary = summarise([pair("a", "qa", 0, 10.0, 5.0)])
    text = markdown(by_kind("x", summary)).splitlines()
    assert text[0].startswith("| kind | plain tok/s |")
    assert text[2] == "| qa | 100.0 | 200.0 | 2.00 | 1.77 | 2.00 | 50% | 10.0% | 80.0% | 10.0% | suffix 2 |"
    assert text[3].startswith("| all |")
    assert markdown(by_run([("suffix", 0.0, summary)])).endswith(
        "| suffix | 0 | 2.00 | - | qa 2.00 | 2.00 | 50% | 1/1 |"
    )


def test_the_document_is_json_and_holds_every_answer():
    pairs = [pair("a", "qa", turn, 10.0, 5.0) for turn in range(2)]
    found = json.loads(json.dumps(document({"seed": 3}, INFO, [("suffix", 0.0, pairs)])))
    assert found["arguments"] == {"seed": 3}
    assert found["target"]["name"] == "toy"
    assert {"augury", "python", "numpy"} <= found["versions"].keys() == versions().keys()
    assert found["machine"] == machine()
    (run,) = found["runs"]
    assert run["summary"]["overall"]["speedup"] == pytest.approx(2.0)
    assert [p["drafted"]["tokens"] for p in run["pairs"]] == [[0, 1, 9, 9]] * 2
