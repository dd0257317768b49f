"""Every series is the sum over the records, at rest nothing runs, and those who read vLLM's names read ours."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from augury.engine.service import Ending, Room, Service
from augury.errors import Overloaded, Stopping
from augury.sampling import Sampling
from augury.server.metrics import Histogram, Metrics
from augury.trace.figures import figures

PROMPTS = ["Count: 1 2 3 4 1 2 3 4 1 2 3", "A list: a b c a b c a b", "Once upon a time", "x = [1, 2, 3]\ny = [1, 2,"]


class Run:
    """A service over an engine, and every ticket that was given."""

    def __init__(self, engine, metrics, room=None):
        self.engine, self.metrics = engine, metrics
        self.service = Service(engine, room, metrics)
        self.tickets = []
        self.begun = threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.service.stop()

    def ask(self, prompt, sampling=None, seconds=None, **options):
        ended = threading.Event()
        request = self.engine.request(prompt, sampling, **options)

        def deliver(item):
            self.begun.set()
            if isinstance(item, Ending):
                ended.set()

        self.tickets.append(self.service.submit(request, deliver, seconds=seconds))
        return self.tickets[-1], ended

    def text(self):
        return self.metrics.exposition(self.service).decode()


def samples(text):
    """(name, labels beside those that all have) -> value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            key = (sample.name, *sorted(labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.fixture(scope="module")
def ran(loaded):
    """Requests of every kind of end, and what was scraped when all had ended."""
    metrics = Metrics("smollm2-135m")
    with Run(loaded, metrics) as run:
        asked = [run.ask(prompt, max_tokens=16, ignore_eos=True) for prompt in PROMPTS]
        asked.append(run.ask(PROMPTS[0], Sampling(temperature=0.8, seed=3), max_tokens=12, draft=False))
        asked.append(run.ask("Say yes.", max_tokens=0))
        asked.append(run.ask("Say", max_tokens=200, ignore_eos=True, seconds=0.0))
        gone, ended = run.ask(PROMPTS[2], max_tokens=500, ignore_eos=True)
        asked.append((gone, ended))
        run.begun.wait(60)
        run.service.cancel(gone)
        for _, done in asked:
            assert done.wait(120)
        yield run, samples(run.text()), run.text()
    loaded.close()


def test_every_series_is_the_sum_over_the_records(ran):
    run, found, _ = ran
    records = [t.request.record for t in run.tickets]
    all_figures = [figures(record) for record in records]
    steps = [step for record in records for step in record.steps]
    drafts = [step for step in steps if step.drafted]
    assert len(drafts) < len(steps)
    assert sum(step.accepted for step in steps) > 0  # else nothing was tried
    for prefix in ("augury", "vllm"):
        name = f"{prefix}:{{}}_total".format
        assert found[name("spec_decode_num_drafts"),] == len(drafts)
        assert found[name("spec_decode_num_draft_tokens"),] == sum(f.drafted for f in all_figures)
        assert found[name("spec_decode_num_accepted_tokens"),] == sum(f.accepted for f in all_figures)
        assert found[name("generation_tokens"),] == sum(f.completion_tokens for f in all_figures)
        begun = [f for f in all_figures if f.steps]
        assert found[name("prompt_tokens"),] == sum(f.prompt_tokens for f in begun)
        assert found[name("prompt_tokens_cached"),] == sum(f.cached_tokens for f in begun)
        for position in range(max(step.accepted for step in drafts)):
            expected = sum(step.accepted > position for step in drafts)
            assert found[name("spec_decode_num_accepted_tokens_per_pos"), ("position", str(position))] == expected
    assert found["augury:steps_total",] == len(steps)
    for place, drafter in enumerate(records[0].drafters):
        of = [f.drafters[place] for f in all_figures]
        for series, value in (
            ("proposed_tokens", sum(d.proposed for d in of)),
            ("draft_tokens", sum(d.drafted for d in of)),
            ("accepted_tokens", sum(d.accepted for d in of)),
            ("faults", sum(d.faults for d in of)),
            ("seconds", sum(d.ms for d in of) / 1e3),
        ):
            assert found[f"augury:drafter_{series}_total", ("drafter", drafter)] == pytest.approx(value)


def test_every_request_ends_once(ran):
    run, found, _ = ran
    words = {"cancelled": "abort"}
    ends = Counter(words.get(t.ending.finish, t.ending.finish) for t in run.tickets)
    assert ends["length"] >= 5
    assert ends["abort"] == ends["error"] == 1
    for reason in ("stop", "length", "abort", "error"):
        assert found["vllm:request_success_total", ("finished_reason", reason)] == ends[reason]
    assert found["augury:request_errors_total", ("reason", "deadline")] == 1
    assert found["augury:e2e_request_latency_seconds_count",] == len(run.tickets)


def test_times_are_those_of_the_tickets(ran):
    run, found, _ = ran
    first = [t.first - t.arrived for t in run.tickets if t.first is not None]
    assert found["vllm:time_to_first_token_seconds_count",] == len(first)
    assert found["vllm:time_to_first_token_seconds_sum",] == pytest.approx(sum(first))
    whole = sum(t.ended - t.arrived for t in run.tickets)
    assert found["vllm:e2e_request_latency_seconds_sum",] == pytest.approx(whole)
    waited = [t.admitted - t.arrived for t in run.tickets if t.admitted is not None]
    assert found["vllm:request_queue_time_seconds_count",] == len(waited)
    assert found["vllm:request_queue_time_seconds_sum",] == pytest.approx(sum(waited))
    chunks = sum(max(len(t.request.record.steps) - 1, 0) for t in run.tickets)
    assert found["vllm:inter_token_latency_seconds_count",] == chunks
    each = [
        (t.last - t.first) / (t.request.record.completion_tokens - 1)
        for t in run.tickets
        if t.request.record.completion_tokens > 1
    ]
    assert found["vllm:request_time_per_output_token_seconds_sum",] == pytest.approx(sum(each))
    lengths = [t.request.record.acceptance_length for t in run.tickets if t.request.record.steps]
    assert found["augury:request_acceptance_length_sum",] == pytest.approx(sum(lengths))


def test_at_rest_nothing_runs_and_no_more_was_accepted_than_drafted(ran):
    _, found, _ = ran
    for prefix in ("augury", "vllm"):
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert found[f"{prefix}:{gauge}",] == 0
        drafted, accepted = (found[f"{prefix}:spec_decode_num_{w}_tokens_total",] for w in ("draft", "accepted"))
        assert 0 < accepted <= drafted


def test_both_prefixes_say_the_same(ran):
    _, found, _ = ran
    theirs = {key: value for key, value in found.items() if key[0].startswith("vllm:")}
    assert len(theirs) > 100
    for (name, *labels), value in theirs.items():
        assert found[(name.replace("vllm:", "augury:"), *labels)] == value


def as_vllm_bench_reads(text):
    """The rules of ``fetch_spec_decode_metrics`` in vllm/benchmarks/serve.py (0.32): what it looks for in a line."""
    counts, positions, seen = Counter(), Counter(), False
    for line in map(str.strip, text.split("\n")):
        if not line or line.startswith("#") or not line.startswith("vllm:spec_decode"):
            continue
        parts = line.split(None, 1)
        name = parts[0].split("{")[0]
        if not name.endswith("_total"):
            continue
        seen, value = True, int(float(parts[-1]))
        if "num_drafts" in name:
            counts["drafts"] += value
        elif "num_draft_tokens" in name:
            counts["draft_tokens"] += value
        elif "num_accepted_tokens_per_pos" in name:
            start = line.index('position="') + len('position="')
            positions[int(line[start : line.index('"', start)])] += value
        elif "num_accepted_tokens" in name:
            counts["accepted"] += value
    assert seen
    return counts, positions


def test_vllm_bench_reads_what_happened(ran):
    run, _, text = ran
    counts, positions = as_vllm_bench_reads(text)
    steps = [step for t in run.tickets for step in t.request.record.steps if step.drafted]
    assert counts["drafts"] == len(steps)
    assert counts["draft_tokens"] == sum(step.drafted for step in steps)
    assert counts["accepted"] == sum(positions.values()) == sum(step.accepted for step in steps)


def test_a_scrape_while_requests_run_sees_one_moment(engine):
    metrics = Metrics("m")
    with Run(engine, metrics) as run:
        asked = [run.ask(prompt, max_tokens=40, ignore_eos=True) for prompt in PROMPTS]
        running, usage = 0.0, 0.0
        while not all(ended.is_set() for _, ended in asked):
            found = samples(run.text())
            running = max(running, found["vllm:num_requests_running",])
            usage = max(usage, found["vllm:kv_cache_usage_perc",])
            drafted = found["augury:spec_decode_num_draft_tokens_total",]
            accepted = found["augury:spec_decode_num_accepted_tokens_total",]
            places = [v for k, v in found.items() if k[0] == "augury:spec_decode_num_accepted_tokens_per_pos_total"]
            assert accepted <= drafted
            assert sum(places) == accepted
            assert sum(v for k, v in found.items() if k[0] == "augury:drafter_accepted_tokens_total") == accepted
        assert running == 4
        held = sum(len(t.request.prompt) + 40 for t, _ in asked)
        assert 0 < usage <= held / (4 * engine.target.info.context)


def test_what_is_refused_is_counted_by_why(engine):
    metrics = Metrics("m")
    with Run(engine, metrics, Room(requests=0)) as run:
        asked = [run.ask(prompt, max_tokens=30, ignore_eos=True) for prompt in PROMPTS]
        with pytest.raises(Overloaded):
            run.service.check()
        for _, ended in asked:
            assert ended.wait(120)
        run.service.stop()
        with pytest.raises(Stopping):
            run.service.check()
        found = samples(run.text())
    for reason in ("queue", "stopping"):
        assert found["vllm:admission_rejections_total", ("reason", reason)] == 1


def test_without_vllm_there_are_no_names_of_its_own(engine):
    metrics = Metrics("m", vllm=False)
    with Run(engine, metrics) as run:
        assert "augury:" in run.text()
        assert "vllm:" not in run.text()


def test_a_bound_holds_what_is_equal_to_it():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    assert histogram.buckets == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.total == 14.0


def test_no_more_tokens_in_a_row_are_drafted_than_the_limit_says(engine):
    repeated = "one two three four five six " * 6
    before = engine.generate(repeated, max_tokens=40)
    assert max(step.tree.depths.max(initial=0) for step in before.record.steps) > 2
    engine.parts.deepest = 2
    try:
        after = engine.generate(repeated, max_tokens=40)
    finally:
        engine.parts.deepest = 64
    assert after.tokens == before.tokens
    assert max(step.tree.depths.max(initial=0) for step in after.record.steps) == 2
