import io

import pytest
from made import answer, pair, step, together
from rich.console import Console

from augury.bench.document import Run
from augury.bench.paired import Pair
from augury.bench.prompts import Prompt
from augury.bench.report import by_batch, by_kind, by_run, markdown, notes, summarise


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


@pytest.mark.parametrize("kind", ["[/x]", "[red]q", "[bold"])
def test_a_kind_is_no_markup(kind):
    table = by_kind("of [/none]", summarise([pair("a", kind, 0, 10.0, 5.0)]))
    console = Console(width=400, file=io.StringIO())
    console.print(table)
    assert kind in console.file.getvalue()
    assert "of [/none]" in console.file.getvalue()


def test_the_worst_kind_and_the_interval():
    pairs = [pair(f"{kind}{i}", kind, 0, 10.0, 10.0 / r) for kind, r in (("qa", 3.0), ("rag", 0.9)) for i in range(3)]
    summary = summarise(pairs)
    assert summary.worst == "rag"
    assert summary.overall.speedup == pytest.approx((3.0 * 0.9) ** 0.5)
    low, high = summary.overall.interval
    assert 0.9 <= low < summary.overall.speedup < high <= 3.0


def test_a_kind_of_three_prompts_has_its_own_interval_and_one_of_two_has_none():
    pairs = [pair(f"{kind}{i}", kind, 0, 10.0, 10.0 / (1 + i)) for kind, n in (("qa", 3), ("rag", 2)) for i in range(n)]
    three, two = summarise(pairs).kinds
    assert 1.0 <= three.interval[0] < three.speedup < three.interval[1] <= 3.0
    assert two.interval is None


def test_the_worst_prompt_and_how_many_are_slower():
    ratios = {"a": 2.0, "b": 0.96, "c": 0.94, "d": 0.5}
    summary = summarise([pair(name, "qa", 0, 10.0, 10.0 / ratio) for name, ratio in ratios.items()])
    assert (summary.overall.worst, summary.overall.slower) == ("d", 0.5)
    assert summary.overall.worst_speedup == pytest.approx(0.5)
    assert "worst prompt: d at 0.50; below 0.95 are 50% of prompts" in notes(summary)


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
    assert text[2] == "| qa | 100.0 | 200.0 | 2.00 | - | 0% | 1.77 | 2.00 | 50% | 10.0% | 80.0% | 10.0% | suffix 2 |"
    assert text[3].startswith("| all |")
    assert markdown(by_run([("suffix", 0.0, summary)])).endswith(
        "| suffix | 0 | 2.00 | - | qa 2.00 | 2.00 | 50% | 1/1 |"
    )


def test_the_table_of_batch_sizes_begins_with_the_pairs():
    run = Run("suffix", 0.0, [pair("a", "qa", 0, 10.0, 5.0)], [together(2, n, 0, 4.0, same=n > 0) for n in range(3)])
    lines = markdown(by_batch("", run.batches)).splitlines()
    assert lines[2] == "| 1 | 1 | 100.0 | 200.0 | 2.00 | - | 1.77 | 2.00 | 1/1 |"
    assert lines[3] == "| 2 | 3 | 200.0 | 800.0 | 4.00 | 4.00 to 4.00 | 2.50 | 2.00 | 4/6 |"
    assert run.mismatches == 2
