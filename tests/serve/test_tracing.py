"""Steps in answers and in the ring: whose they are, that their figures are the answer's own, what they cost nobody."""

from __future__ import annotations

import json
import logging
import threading
import time
from types import SimpleNamespace

import pytest
from served import NAME, serving

from augury.server.settings import Settings
from augury.server.tracing import LOAD_S, Recent, Recorder, Tap
from augury.trace.log import TraceFile
from augury.trace.ring import LEAST, Ring

LINE = "red, green and blue; "
ASKED = {
    "messages": [{"role": "user", "content": f"Repeat this text three times:\n{LINE * 3}"}],
    "max_tokens": 24,
    "temperature": 0,
    "ignore_eos": True,
}


def chat(server, **more):
    answer = server.ask("POST", "/v1/chat/completions", {**ASKED, **more})
    assert answer.status == 200, answer.body
    return answer


def told(frames, key):
    """What frames carry under a key, in their order."""
    return [frame[key] for frame in frames if key in frame]


def steps_of(frames):
    return [step for steps in told(frames, "steps") for step in steps]


def kept(tap, id):
    """The events of a request in a ring."""
    lines = [json.loads(line) for line in tap.since(0, 1_000_000).lines]
    return [event for event in lines if event.get("id") == id]


def bare(event):
    return {key: value for key, value in event.items() if key not in ("texts", "prompt", "prompt_text")}


def test_a_stream_carries_its_steps_and_their_figures_are_the_answers(traced):
    body = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    events = chat(traced, **body, speculative={"trace": True, "figures": "detailed"}).events
    assert events.pop() == "[DONE]"
    last = events[-1]
    (begin,), (end,), steps = told(events, "begin"), told(events, "end"), steps_of(events)
    assert [step["n"] for step in steps] == [*range(len(steps))]
    tokens = [token for frame in events for choice in frame["choices"] for token in choice.get("token_ids", [])]
    assert [token for step in steps for token in step["emitted"]] == tokens
    assert any(len(step["emitted"]) > 1 for step in steps)
    assert all(len(step["p"]) == len(step["tokens"]) for step in steps)
    assert all(0 <= p <= 1 for step in steps for p in step["p"])
    # The numbers are those of usage, of metrics and of timings.
    usage, found, timings = last["usage"], last["metrics"]["speculative_decoding"], last["timings"]
    accepted = [min(len(step["path"]), len(step["emitted"])) for step in steps]
    assert (end["tokens"], end["steps"]) == (usage["completion_tokens"], found["num_spec_steps"])
    assert end["tokens"] == timings["predicted_n"]
    assert accepted == found["per_step_accepted"]
    assert [len(step["tokens"]) for step in steps] == found["per_step_drafted"]
    assert sum(accepted) == found["num_accepted_draft_tokens"] == timings["draft_n_accepted"]
    assert begin["prompt_tokens"] == usage["prompt_tokens"]
    assert begin["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    spent = sum(step[f"{phase}_ms"] for step in steps for phase in ("draft", "verify", "accept", "commit", "rest"))
    assert spent == pytest.approx(timings["predicted_ms"], abs=0.005 * len(steps))
    assert begin["prefill_ms"] == pytest.approx(timings["prompt_ms"], abs=0.001)
    assert end["finish"] == "length"


def test_its_texts_spell_what_was_asked_and_answered(traced):
    events = chat(traced, stream=True, ignore_eos=False, speculative={"trace": True}).events[:-1]
    (begin,), steps = told(events, "begin"), steps_of(events)
    assert LINE * 3 in begin["prompt_text"]
    assert len(begin["prompt"]) == begin["prompt_tokens"]
    text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    spelt = "".join(step["texts"][str(token)] for step in steps for token in step["emitted"])
    assert spelt.replace("\\n", "\n").removesuffix("<|im_end|>") == text


def test_an_answer_in_one_piece_carries_them_all(traced):
    trace = chat(traced, speculative={"trace": True}).json["trace"]
    assert [*trace] == ["header", "begin", "steps", "end"]
    assert (trace["header"]["augury_trace"], trace["header"]["text"]) == (1, True)
    assert trace["header"]["drafters"] == trace["begin"]["drafters"] == ["suffix", "prediction"]
    assert sum(len(step["emitted"]) for step in trace["steps"]) == trace["end"]["tokens"] == 24
    assert "trace" not in chat(traced).json
    assert "trace" not in chat(traced, speculative={"trace": False}).json


def test_completions_carry_them_too(traced):
    body = {"prompt": "one two three one two three one", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    whole = traced.ask("POST", "/v1/completions", {**body, "speculative": {"trace": True}}).json
    frames = traced.ask("POST", "/v1/completions", {**body, "stream": True, "speculative": {"trace": True}}).events[:-1]
    emitted = [step["emitted"] for step in whole["trace"]["steps"]]
    assert [step["emitted"] for step in steps_of(frames)] == emitted
    assert len(told(frames, "begin")) == len(told(frames, "end")) == 1
    assert told(frames, "end")[0]["tokens"] == 12


def test_each_of_several_answers_carries_its_own(traced):
    body = {"n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 10, "return_token_ids": True}
    whole = chat(traced, **body, speculative={"trace": True}).json
    first, second = whole["trace"]
    assert first["begin"]["id"] != second["begin"]["id"]
    assert [first["begin"]["sampling"]["seed"], second["begin"]["sampling"]["seed"]] == [3, 4]
    for choice, trace in zip(whole["choices"], whole["trace"], strict=True):
        assert [token for step in trace["steps"] for token in step["emitted"]] == choice["token_ids"]
    frames = chat(traced, **body, stream=True, speculative={"trace": True}).events[:-1]
    for choice in whole["choices"]:
        own = [frame for frame in frames if frame["choices"][0]["index"] == choice["index"]]
        assert [token for step in steps_of(own) for token in step["emitted"]] == choice["token_ids"]
        assert len({step["id"] for step in steps_of(own)}) == len(told(own, "begin")) == len(told(own, "end")) == 1


def test_stops_and_logprobs_go_with_them(traced):
    plain = chat(traced).json["choices"][0]["message"]["content"]
    stop = plain[len(plain) // 2 :][:6]
    body = {"stop": [stop], "logprobs": True, "top_logprobs": 2, "stream": True, "return_token_ids": True}
    frames = chat(traced, **body, speculative={"trace": True}).events[:-1]
    (end,), steps = told(frames, "end"), steps_of(frames)
    known = [one for f in frames for c in f["choices"] for one in (c["logprobs"] or {"content": []})["content"]]
    assert (end["finish"], end["stop"]) == ("stop", stop)
    assert end["tokens"] == len(known) == sum(len(step["emitted"]) for step in steps)
    assert plain.startswith("".join(c["delta"].get("content") or "" for f in frames for c in f["choices"]))
    assert "included" not in end
    trace = chat(traced, stop=[stop], include_stop_str_in_output=True, speculative={"trace": "steps"}).json["trace"]
    assert (trace["end"]["stop"], trace["end"]["included"]) == (stop, True)


def test_beside_others_a_step_is_told_to_whom_it_belongs(traced):
    answers = {}

    def ask(number):
        body = {"stream": True, "speculative": {"trace": True}, "seed": number, "temperature": 0.8, "max_tokens": 32}
        answers[number] = chat(traced, **body).events[:-1]

    threads = [threading.Thread(target=ask, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [{step["id"] for step in steps_of(frames)} for frames in answers.values()]
    assert all(len(one) == 1 for one in ids)
    assert len(set.union(*ids)) == 4
    steps = [step for frames in answers.values() for step in steps_of(frames)]
    assert max(step["requests"] for step in steps) == 2
    assert all(step["rows"] >= len(step["tokens"]) + step["requests"] for step in steps)


def test_without_p_it_costs_no_more_than_it_shows(traced):
    steps = chat(traced, speculative={"trace": "steps"}).json["trace"]["steps"]
    assert all(step["p"] is None for step in steps)
    assert any(step["tokens"] for step in steps)
    refused = traced.chat({"speculative": {"trace": "all"}})
    assert (refused.status, refused.error["param"]) == (400, "speculative.trace")
    assert 'it must be true, false or "steps"' in refused.error["message"]


def test_a_drawn_rule_tells_its_coins(traced):
    wish = {"trace": True, "acceptance": "rejection"}
    trace = chat(traced, temperature=0.7, seed=1, speculative=wish).json["trace"]
    assert trace["begin"]["rule"] == "rejection"
    thrown = [coin for step in trace["steps"] for coin in step["coins"] if coin is not None]
    assert thrown
    assert all(0 < coin < 1 for coin in thrown)


def test_plain_and_drafted_answers_are_told_apart(traced):
    labels = [
        chat(traced, speculative={"trace": "steps", **more}).json["trace"]["begin"]["label"]
        for more in ({}, {"enabled": False}, {"drafters": []})
    ]
    assert labels == ["drafted", "plain", "plain"]


@pytest.mark.parametrize("settings", [{"stream_interval": 7}, {"stream_mode": "smooth"}])
def test_steps_that_are_sent_together_are_all_there(watched, settings):
    with serving(watched.service, Settings(names=(NAME,), **settings)) as server:
        frames = chat(server, stream=True, speculative={"trace": True}).events[:-1]
    steps = steps_of(frames)
    assert [step["n"] for step in steps] == [*range(len(steps))]
    assert sum(len(step["emitted"]) for step in steps) == told(frames, "end")[0]["tokens"] == 24


@pytest.mark.parametrize(
    ("settings", "why"), [({"stream_mode": "private"}, "private"), ({"figures_on_request": False}, "switched it off")]
)
def test_where_figures_are_nobodys_business_steps_are_neither(watched, settings, why):
    with serving(watched.service, Settings(names=(NAME,), **settings)) as server:
        refused = server.chat({"speculative": {"trace": True}})
        assert (refused.status, refused.error["param"]) == (400, "speculative.trace")
        assert why in refused.error["message"]
        assert server.ask("GET", "/v1/models").json["data"][0]["speculative"]["trace"] is False


def test_responses_refuse_them_by_name(traced):
    refused = traced.ask("POST", "/v1/responses", {"input": "hi", "speculative": {"trace": True}})
    assert (refused.status, refused.error["param"]) == (400, "speculative.trace")


def test_the_ring_holds_the_same_without_texts(traced, watched):
    trace = chat(traced, speculative={"trace": True}).json["trace"]
    id = trace["begin"]["id"]
    assert traced.at_rest()
    told_here, spelt = kept(watched.tap, id), kept(watched.spelt, id)
    assert told_here == [bare(event) for event in [trace["begin"], *trace["steps"], trace["end"]]]
    assert spelt == [trace["begin"], *trace["steps"], trace["end"]]
    assert not any({"texts", "prompt", "prompt_text"} & {*event} for event in told_here)
    assert watched.tap.header["text"] is False


def test_a_request_that_never_ran_begins_and_ends(watched):
    service = watched.service
    came = threading.Event()
    running = [service.submit(service.engine.request([1, 2, 3], max_tokens=400, ignore_eos=True), lambda _: None)
               for _ in range(2)]  # fmt: skip
    waiting = service.engine.request([1, 2, 3], max_tokens=4)
    service.cancel(service.submit(waiting, lambda _: came.set()))
    for ticket in running:
        service.cancel(ticket)
    assert came.wait(10)
    begin, end = kept(watched.tap, waiting.number)
    assert (begin["kind"], end["kind"], end["finish"], end["steps"]) == ("begin", "end", "cancelled", 0)


def test_one_that_fails_says_how(watched):
    service, came = watched.service, threading.Event()
    request = service.engine.request([1, 2, 3], max_tokens=400, ignore_eos=True)
    service.submit(request, lambda item: came.set() if hasattr(item, "error") else None, seconds=0.05)
    assert came.wait(10)
    end = kept(watched.tap, request.number)[-1]
    assert (end["finish"], end["error"]) == ("error", "TooLate")


# ---- the file, and the load --------------------------------------------------------------------------------------


def answered(service, tokens=6):
    came = threading.Event()
    request = service.engine.request([1, 2, 3], max_tokens=tokens, ignore_eos=True)
    service.submit(request, lambda item: came.set() if hasattr(item, "error") else None)
    assert came.wait(20)
    return request


def test_a_file_is_written_that_can_be_read(watched, tmp_path):
    path = tmp_path / "trace.jsonl"
    with Recorder(watched.tap, watched.service, path):
        request = answered(watched.service)
        time.sleep(2 * LOAD_S)
    found = TraceFile(path)
    events = [event for event in found if event.get("id") == request.number]
    assert found.torn is None
    assert events == kept(watched.tap, request.number)
    assert any(event["kind"] == "load" and event["running"] == 0 for event in found)
    assert "texts" not in path.read_text()


def test_a_file_that_cannot_be_written_costs_one_warning(watched, tmp_path, caplog):
    missing = []
    with (
        caplog.at_level(logging.WARNING, logger="augury.server"),
        Recorder(watched.tap, watched.service, tmp_path / "none" / "trace.jsonl", unwritten=missing.append),
    ):
        answered(watched.service)
        answered(watched.service)
    assert len([record for record in caplog.records if "trace" in record.getMessage()]) == 1
    assert sum(missing) == watched.tap.last


def test_a_disk_that_fills_costs_the_rest_of_the_file_alone(watched, tmp_path, caplog, monkeypatch):
    from augury.errors import AuguryError
    from augury.trace.log import TraceWriter

    missing = []
    real = TraceWriter.add

    def full(self, line):
        if b'"end"' in line:
            raise AuguryError("the trace cannot be written: No space left on device")
        return real(self, line)

    monkeypatch.setattr(TraceWriter, "add", full)
    with (
        caplog.at_level(logging.WARNING, logger="augury.server"),
        Recorder(watched.tap, watched.service, tmp_path / "trace.jsonl", unwritten=missing.append),
    ):
        assert answered(watched.service).record.finish == "length"
        assert answered(watched.service).record.finish == "length"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "No space left on device; answers go on without it" in warning
    assert sum(missing) > 0


def test_a_file_has_its_bytes_and_no_more(watched, tmp_path):
    path, missing = tmp_path / "trace.jsonl", []
    with Recorder(watched.tap, watched.service, path, 2000, unwritten=missing.append):
        answered(watched.service, 24)
    assert path.stat().st_size <= 2000
    assert sum(missing) > 0
    assert [*TraceFile(path)]


def test_a_ring_that_is_full_tells_what_is_lost(watched):
    tap = Tap(watched.tap.teller, Ring(LEAST))
    request = answered(watched.service, 40)
    ticket = SimpleNamespace(request=request, ending=None)
    for step in request.record.steps * 20:
        tap.brought(ticket, SimpleNamespace(step=step), 1.0)
    assert tap.first > 1
    part = tap.since(0, 10)
    assert part.lost == tap.first - 1


def test_an_event_that_cannot_be_made_is_counted(watched, caplog, monkeypatch):
    from augury.trace import events

    def fails(*args, **more):
        raise ValueError("private")

    missing = []
    tap = Tap(watched.tap.teller, Ring(LEAST), unwritten=missing.append)
    request = answered(watched.service, 6)
    ticket = SimpleNamespace(request=request, ending=None)
    first, *_, last = request.record.steps
    with caplog.at_level(logging.WARNING, logger="augury.server"):
        tap.brought(ticket, SimpleNamespace(step=first), 1.0)
        with monkeypatch.context() as broken:
            broken.setattr(events, "step", fails)
            for _ in range(2):
                tap.brought(ticket, SimpleNamespace(step=last), 1.0)
        tap.brought(ticket, SimpleNamespace(step=last), 1.0)
        tap.left(ticket)
    assert missing == [1, 1]
    assert [event.get("n") for event in kept(tap, request.number)] == [None, 0, 3, None]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == "an event cannot be made and is missing in the trace: ValueError"


def test_the_speed_of_a_moment_is_that_of_its_steps(watched):
    recent = Recent()
    assert recent.figures()["acceptance_length"] is None
    record = answered(watched.service, 20).record
    for step in record.steps:
        recent.add(step)
    found = recent.figures()
    assert (found["steps"], found["tokens"]) == (len(record.steps), record.completion_tokens)
    assert (found["drafted"], found["accepted"]) == (record.drafted, record.accepted)
    assert found["acceptance_length"] == record.acceptance_length


def test_nothing_is_made_of_steps_where_nobody_asks(service, monkeypatch):
    """Off, tracing is not there: no watch is told, and no event is made."""
    from augury.trace import events

    made = []
    for name in ("begin", "step", "end"):
        monkeypatch.setattr(events, name, lambda *args, name=name, **more: made.append(name))
    with serving(service, Settings(names=(NAME,))) as server:
        assert server.chat({}).status == 200
        assert server.at_rest()
    assert made == []
