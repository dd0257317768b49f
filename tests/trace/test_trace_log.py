"""Trace files: whatever is in one, its reader gives events or one clear error."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from traced import header, requests, told, traces

from augury.errors import AuguryError, InputError
from augury.trace import events, records, tables, timeline
from augury.trace.explain import explain
from augury.trace.log import TraceFile, TraceWriter

STEP = {
    "kind": "step", "id": 1, "n": 0, "at": 1.0, "position": 3, "root": 5, "tokens": [7, 8], "parents": [-1, 0],
    "source": [0, 1], "survival": [0.5, 0.25], "p": [0.5, None], "q": {"1": 0.5}, "path": [0, 1], "next": 9,
    "own": "bonus", "emitted": [7, 8, 9], "proposals": [], "reason": None, "rows": 3, "requests": 1, "draft_ms": 1.0,
    "verify_ms": 10.0, "accept_ms": 0.1, "commit_ms": 0.1, "rest_ms": 0.1, "plain_ms": 9.0, "saved_ms": 15.7,
    "coins": None,
}  # fmt: skip
BEGIN = {
    "kind": "begin", "id": 1, "at": 0.0, "label": "drafted", "prompt_tokens": 4, "cached_tokens": 0, "prefill_ms": 1.0,
    "drafters": ["suffix", "eagle"], "rule": "coupled", "sampling": {"temperature": 0.0},
}  # fmt: skip
END = {"kind": "end", "id": 1, "at": 20.0, "finish": "stop", "stop": 9, "tokens": 3, "steps": 1, "error": None}


def written(path, rows, head=None):
    with TraceWriter(path, head or header()) as file:
        for row in rows:
            assert file.put(row)
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


def lines(path, *rows, head=None):
    """A file of lines as they are given."""
    rows = [json.dumps(row).encode() if isinstance(row, dict) else row for row in (head or header(), *rows)]
    path.write_bytes(b"\n".join(rows) + b"\n")
    return path


def test_a_file_that_was_there_is_for_its_owners_eyes_too(file):
    file.touch(0o644)
    written(file, [BEGIN, STEP, {**END, "stop": True}])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [*TraceFile(file)][-1]["stop"] is True


# ---- round trips ------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(traces())
def test_what_is_written_is_read(rows):
    with tempfile.TemporaryDirectory() as folder:
        found = TraceFile(written(Path(folder) / "a", rows))
        assert found.header == header() | {"unix": found.header["unix"]}
        assert list(found) == rows
        assert list(found) == rows, "as often as one likes"
        assert found.torn is None


@settings(max_examples=50)
@given(traces(), st.integers(1, 400))
def test_a_torn_last_line_is_left_out_and_told(rows, cut):
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "a", [*rows, events.load(1.0, 1, 1, 0.5)])
        whole = path.read_bytes()
        last = whole.rindex(b"\n", 0, -1) + 1
        path.write_bytes(whole[: min(last + cut, len(whole) - 2)])
        found = TraceFile(path)
        assert list(found) == rows
        assert re.fullmatch(rf"the last line, {len(rows) + 2}, was cut off after \d+ bytes and is left out", found.torn)


def test_a_last_line_that_lacks_only_its_end_is_whole(file):
    file.write_bytes(written(file, [BEGIN, STEP, END]).read_bytes()[:-1])
    found = TraceFile(file)
    assert list(found) == [BEGIN, STEP, END]
    assert found.torn is None


def test_keys_that_are_not_known_are_left_out(file):
    (begin, step) = TraceFile(
        lines(file, BEGIN | {"new": 1}, json.dumps(STEP | {"more": 1}).replace("1}", "1e999}").encode())
    )
    assert (begin, step) == (BEGIN, STEP)


def test_a_trace_may_begin_and_end_in_the_middle(file):
    assert len(list(TraceFile(lines(file, STEP | {"n": 8}, END, STEP | {"id": 2, "n": 3})))) == 3


# ---- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"", "it is empty, and a trace begins with"),
        (b"hello", "it is not JSON: Expecting value"),
        (b"[1]", "it is a JSON list; an object is expected"),
        (b"{}", "it has no version; a trace begins with"),
        (b'{"augury_trace":2,"version":"9"}', "of version 2, written by augury '9'; this augury reads version 1"),
        (b'{"augury_trace":true}', "it is a trace of version True"),
        (b'{"augury_trace":"1"}', "it is a trace of version '1'"),
        (b'{"augury_trace":1,"version":"x","model":"m"}', '"runner" is missing'),
        (b'{"augury_trace":1,"version":7}', '"version" is 7; it must be a text'),
        (b'{"augury_trace":1', "it is not JSON"),
        (b"\xff\xfe", "it is not JSON: 'utf-8' codec can't decode"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_trace_of_this_version(file, first, said):
    file.write_bytes(first + b"\n" * bool(first))
    with pytest.raises(InputError, match=r"run\.jsonl line 1: ") as raised:
        TraceFile(file)
    assert said in str(raised.value)


def test_a_header_that_is_torn_is_told_so(file):
    file.write_bytes(b'{"augury_trace":1,"ver')
    with pytest.raises(InputError, match=r"it ends in the middle of that line"):
        TraceFile(file)


def test_a_file_that_is_not_there_or_is_a_directory(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*none: No such file"):
        TraceFile(tmp_path / "none")
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory"):
        TraceFile(tmp_path)


def changed(row, **changes):
    return {key: value for key, value in (row | changes).items() if value is not ...}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"garbage", "it is not JSON"),
        (b"{", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"\x00\xff", "it is not JSON"),
        (b"null", "it is a JSON NoneType; an object is expected"),
        (b'{"kind":"load","at":NaN}', "NaN is no number of JSON"),
        ({"kind": "stop"}, "\"kind\" is 'stop'; it must be one of begin, step, end, load"),
        ({"kind": [1]}, '"kind" is [1]'),
        ({"at": 1}, '"kind" is None'),
        (changed(STEP, n=...), '"n" is missing in this step'),
        (changed(STEP, n=-1), '"n" is -1; it must be a whole number in 0..'),
        (changed(STEP, n=1.0), '"n" is 1.0; it must be a whole number'),
        (changed(STEP, n=True), '"n" is True; it must be a whole number'),
        (changed(STEP, id=10**30), '"id" is 1000'),
        (changed(STEP, at="soon"), "\"at\" is 'soon'; it must be a number"),
        (changed(STEP, at=1e300), '"at" is 1e+300; it must be a number'),
        (changed(STEP, draft_ms=-1), '"draft_ms" is -1; it must be a number in 0..'),
        (changed(STEP, tokens=[1]), '"parents" has 2 entries, and there are 1 tokens'),
        (changed(STEP, tokens=[1, -2]), '"tokens" is -2; it must be a whole number'),
        (changed(STEP, tokens=[1, "2"]), "\"tokens\" is '2'; it must be a whole number"),
        (changed(STEP, tokens="12"), "\"tokens\" is '12'; it must be a list"),
        (changed(STEP, tokens=[1] * 65), '"tokens" has 65 entries; at most 64 are allowed'),
        (changed(STEP, parents=[0, -1]), '"parents" has 0 for node 0; a parent is -1 or an earlier node'),
        (changed(STEP, survival=[0.5, 0.6]), '"survival" of node 1 is 0.6, above its parent'),
        (changed(STEP, survival=[0.5, 1.5]), '"survival" is 1.5; it must be a number in 0..1'),
        (changed(STEP, source=[0, 2]), '"source" of node 1 is 2; there are 2 drafters'),
        (changed(STEP, p=[0.5]), '"p" has 1 entries'),
        (changed(STEP, p=[0.5, "x"]), "\"p\" is 'x'; it must be a number"),
        (changed(STEP, q={"2": 0.5}), '"q" names a node that is not among the 2'),
        (changed(STEP, q={"x": 0.5}), "\"q\" has the key 'x'; a whole number is expected"),
        (changed(STEP, q=[0.5]), '"q" is [0.5]; it must be an object'),
        (changed(STEP, path=[1]), '"path" goes from node -1 to 1, which does not hang on it'),
        (changed(STEP, path=[0, 1, 2]), '"path" goes from node 1 to 2'),
        (changed(STEP, emitted=[7, 9]), '"emitted" is not what "path" and "next" are'),
        (changed(STEP, own="mine"), "\"own\" is 'mine'; it must be one of correction, bonus, plain, None"),
        (changed(STEP, rows=0), '"rows" is 0; it must be a whole number in 1..'),
        (changed(STEP, proposals=[{"drafter": "a"}]), "\"proposals\" has an entry where 'fault' is missing"),
        (changed(STEP, proposals=[1]), '"proposals" has 1; an object is expected'),
        (changed(STEP, texts={"7": 1}), '"texts" is 1; it must be a text'),
        (changed(STEP, reason="a\ud800"), "with half a surrogate pair, which is no text"),
        (changed(BEGIN, drafters=["a", 1]), '"drafters" is 1; it must be a text'),
        (changed(BEGIN, sampling=1), '"sampling" is 1; it must be an object'),
        (changed(BEGIN, sampling={"a b": 1}), "\"sampling\" has the key 'a b'; the name of a parameter is expected"),
        (changed(BEGIN, sampling={"top_p": "x"}), "\"top_p\" is 'x'; it must be a number"),
        (changed(BEGIN, prompt=["x"]), "\"prompt\" is 'x'; it must be a whole number"),
        (changed(BEGIN, pair=7), '"pair" is 7; it must be a text'),
        (changed(END, finish="well"), "\"finish\" is 'well'; it must be one of stop, length, cancelled, error, None"),
        (changed(END, stop=1.5), '"stop" is 1.5'),
        ({"kind": "load", "at": 1, "running": 1, "waiting": 0, "kv_used": -1}, '"kv_used" is -1'),
    ],
)
def test_a_line_that_is_no_event_is_named(file, row, said):
    with pytest.raises(InputError, match=r"run\.jsonl line 3: ") as raised:
        list(TraceFile(lines(file, BEGIN | {"id": 99}, row, head=header() | {"drafters": ["suffix", "eagle"]})))
    assert said in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([BEGIN, BEGIN], "line 3: request 1 begins a second time"),
        ([STEP, BEGIN], "line 3: request 1 begins a second time"),
        ([BEGIN, STEP | {"n": 1}, STEP], "line 4: request 1 has step 0 behind step 1"),
        ([BEGIN, END, STEP], "line 4: request 1 has ended before this step"),
        ([END, END], "line 3: request 1 has ended before this end"),
        ([BEGIN | {"drafters": ["suffix"]}, STEP], 'line 3: "source" of node 1 is 1; there are 1 drafters'),
    ],
)
def test_requests_are_in_order(file, rows, said):
    with pytest.raises(InputError) as raised:
        list(TraceFile(lines(file, *rows)))
    assert said in str(raised.value)


def test_a_line_that_is_too_long_is_not_read(file, monkeypatch):
    monkeypatch.setattr("augury.trace.log.MAX_LINE", 1 << 20)
    with pytest.raises(InputError, match="line 2: it is longer than 1 MiB, and no event is"):
        list(TraceFile(lines(file, b"x" * (1 << 21), BEGIN)))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def spoilt(draw):
    """Events, some value of one of them changed, at whatever depth."""
    rows = json.loads(json.dumps([*draw(traces()), *told(90, draw(requests()), text=draw(st.booleans()))]))
    here = draw(st.sampled_from(rows))
    while True:
        keys = list(here) if isinstance(here, dict) else range(len(here))
        if not keys:
            break
        key = draw(st.sampled_from(list(keys)))
        if isinstance(here[key], dict | list) and draw(st.booleans()):
            here = here[key]
            continue
        if draw(st.booleans()):
            here[key] = draw(VALUES)
        elif isinstance(here, dict):
            del here[key]
        break
    return [json.dumps(row).encode() for row in rows]


def read_all(path):
    """Everything that reads traces, over whatever the reader lets through."""
    try:
        found = TraceFile(path)
        rows = list(found)
    except InputError as error:
        message = str(error)
        assert re.match(rf"{path.name} line \d+: .", message), message
        assert "\n" not in message
        assert len(message) < 1000
        return
    for row in timeline.timeline(rows):
        json.dumps(row, allow_nan=False).encode()
    for one in records.requests(found.header, rows):
        explain(one.record, one.token)
        assert isinstance((one.answer or "").encode(), bytes)
    for name, row in tables._rows(found.header, rows, None):
        assert name in ("sequences", "drafts")
        json.dumps(row, allow_nan=False).encode()


@given(spoilt())
def test_whatever_is_changed_it_is_events_or_one_error(rows):
    with tempfile.TemporaryDirectory() as folder:
        read_all(lines(Path(folder) / "spoilt", *rows))


@given(
    st.lists(st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()), max_size=4), st.booleans()
)
@example([b'{"kind":"load","at":1e999,"running":1,"waiting":0,"kv_used":0}'], True)
@example([b'{"kind":"load","at":' + b"9" * 5000 + b"}"], True)
def test_garbage_is_one_error(rows, headed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "garbage"
        path.write_bytes(b"\n".join([json.dumps(header()).encode()] * headed + rows))
        read_all(path)


# ---- writing ----------------------------------------------------------------------------------------------------


def test_a_trace_is_for_its_owners_eyes(file):
    written(file, [])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_has_no_more_than_its_room(file):
    with TraceWriter(file, header(), room=2000) as out:
        told_of = [out.put(STEP | {"n": n}) for n in range(5)]
        assert told_of == [True] * told_of.count(True) + [False] * out.left_out
        assert out.left_out > 0
        assert not out.put(END), "nothing behind what is left out"
    assert file.stat().st_size <= 2000
    assert len(list(TraceFile(file))) == told_of.count(True) > 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_error():
    with pytest.raises(AuguryError, match="the trace cannot be written to /dev/full: No space left on device"):
        TraceWriter(Path("/dev/full"), header())


def test_what_the_system_took_of_a_line_is_gone_on_with(file, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda to, data: real(to, bytes(data[:7])))
    written(file, [BEGIN, STEP, END])
    monkeypatch.undo()
    assert list(TraceFile(file)) == [BEGIN, STEP, END]


def test_a_disk_that_becomes_full(file, monkeypatch):
    out = TraceWriter(file, header())

    def full(to, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(AuguryError, match="No space left on device"):
        out.put(BEGIN)
    monkeypatch.undo()
    out.close()
    out.close()
    assert list(TraceFile(file)) == []


def test_a_file_has_one_writer(file):
    with TraceWriter(file, header()) as first:
        first.put(BEGIN)
        with pytest.raises(AuguryError, match="is being written by another run; give another file"):
            TraceWriter(file, header())
        first.put(END)
    assert [event["kind"] for event in TraceFile(file)] == ["begin", "end"]
    written(file, [])
    assert list(TraceFile(file)) == []


def test_what_somebody_cuts_off_leaves_no_hole(file):
    with TraceWriter(file, header()) as out:
        out.put(BEGIN)
        os.truncate(file, 0)
        out.put(END)
    assert b"\0" not in file.read_bytes()


def test_what_is_no_file_is_not_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is no file, and a trace is read more than once"):
        TraceFile(pipe)


def test_the_largest_id(file):
    largest = (1 << 53) - 1
    written(file, [{**END, "id": largest}])
    assert [event["id"] for event in TraceFile(file)] == [largest]
    lines(file, {**END, "id": largest + 1})
    with pytest.raises(InputError, match=rf'"id" is {largest + 1}; it must be a whole number in 0..{largest}'):
        list(TraceFile(file))


@pytest.mark.parametrize(
    ("told_of", "answer"),
    [({}, "ab"), ({"included": True}, "abcd"), ({"finish": "length", "stop": None}, "abcdefg"), ({"stop": 9}, "abcde")],
)
def test_an_answer_ends_where_its_stop_string_begins(told_of, answer):
    end = END | {"stop": "cd"} | told_of
    step = STEP | {"emitted": [7, 8, 9], "texts": {"7": "abc", "8": "de", "9": "fg"}}
    rows = [BEGIN, step, end]
    if "included" in told_of:  # what the answer keeps is as long as it is
        rows[1] = STEP | {"emitted": [7, 8], "path": [0], "next": 8, "texts": {"7": "abc", "8": "d"}}
    elif told_of == {}:
        rows[1] = STEP | {"emitted": [7, 8], "path": [0], "next": 8, "texts": {"7": "abc", "8": "de"}}
    (one,) = records.requests(header(text=True), rows)
    assert one.answer == answer


def test_a_stop_string_that_was_no_stop_is_answered():
    step = STEP | {"emitted": [7, 8, 9], "texts": {"7": "cd", "8": "c", "9": "d!"}}
    (one,) = records.requests(header(text=True), [BEGIN, step, END | {"stop": "cd"}])
    assert one.answer == "cd", "the first came before min_tokens"


def test_where_nothing_may_be_written(tmp_path):
    with pytest.raises(AuguryError, match=r"the trace cannot be written to .*: Is a directory"):
        TraceWriter(tmp_path, header())
    with pytest.raises(AuguryError, match=r"the trace cannot be written to .*: No such file"):
        TraceWriter(tmp_path / "no" / "where", header())
