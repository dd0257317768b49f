"""``--trace`` of verbs, and ``augury trace``: what is written, what is shown, what is refused."""

from __future__ import annotations

import json
import os
import re
import stat

import pytest
from corpus import Letters
from typer.testing import CliRunner

import augury
from augury.cli import app
from augury.cli.tracing import Tracing
from augury.conformance.toys import ToyTarget
from augury.drafters.suffix import Suffix
from augury.engine.engine import Engine
from augury.sampling import Sampling
from augury.trace import events
from augury.trace.log import TraceFile, TraceWriter

V = 100
STEP = {
    "kind": "step", "id": 1, "at": 1.0, "position": 3, "root": 5, "tokens": [], "parents": [], "source": [],
    "survival": [], "p": None, "q": {}, "path": [], "own": "plain", "proposals": [], "reason": None, "rows": 1,
    "requests": 1, "draft_ms": 0.0, "verify_ms": 1.0, "accept_ms": 0.0, "commit_ms": 0.0, "rest_ms": 0.0,
    "plain_ms": None, "saved_ms": None, "coins": None,
}  # fmt: skip
END = {"kind": "end", "id": 1, "at": 9.0, "finish": "length", "stop": None, "tokens": 0, "steps": 0, "error": None}


class Talk:
    """A chat template that only joins what was said."""

    def encode(self, tokenizer, messages, add_generation_prompt=True, **_):
        return tokenizer.encode("".join(message["content"] for message in messages))


def run(*args, code=0, stdin=None):
    done = CliRunner().invoke(app, [*map(str, args)], env={"COLUMNS": "300"}, input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def refused(*args):
    said = run(*args, code=2).stderr
    assert said.startswith("augury: ")
    assert said.count("\n") == 1
    return said


@pytest.fixture
def toy(monkeypatch):
    """``augury.load`` gives a toy."""

    def load(model, drafters="suffix", acceptance="coupled", **options):
        named = [] if drafters == "none" else [("suffix", Suffix())]
        return Engine(
            ToyTarget(V, spread=40.0), named, acceptance=acceptance, tokenizer=Letters(V), template=Talk(),
            slots=options.get("max_num_seqs", 1),
        )  # fmt: skip

    monkeypatch.setattr(augury, "load", load)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


def kinds(file):
    return [(event["kind"], event["id"]) for event in TraceFile(file)]


def generated(file, *flags):
    return run("generate", "10231023", "--max-tokens", 12, "--trace", file, *flags)


@pytest.mark.usefixtures("toy")
def test_generate_writes_a_trace_without_text(file):
    said = generated(file)
    found = TraceFile(file)
    rows = list(found)
    assert (found.header["source"], found.header["text"], found.header["drafters"]) == ("generate", False, ["suffix"])
    assert [row["kind"] for row in rows] == ["begin", *["step"] * (len(rows) - 2), "end"]
    begin, *steps, end = rows
    assert "prompt" not in begin
    assert all("texts" not in step for step in steps)
    assert (begin["label"], begin["prompt_tokens"], begin["sampling"]) == ("drafted", 8, {"temperature": 0.0})
    assert (end["finish"], end["tokens"], end["steps"]) == ("length", 12, len(steps))
    assert begin["at"] <= steps[0]["at"] < end["at"]
    assert sum(len(step["emitted"]) for step in steps) == 12
    assert said.stdout == run("generate", "10231023", "--max-tokens", 12).stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.usefixtures("toy")
def test_text_is_in_it_when_it_is_wanted(file):
    said = generated(file, "--trace-text", "--json")
    begin, *steps, _ = TraceFile(file)
    assert begin["prompt"] == Letters(V).encode("10231023").tolist()
    assert begin["prompt_text"] == "10231023"
    texts = {token: text for step in steps for token, text in step["texts"].items()}
    assert texts.keys() >= {str(token) for step in steps for token in (*step["tokens"], *step["emitted"], step["root"])}
    shown = run("trace", file).stdout
    assert "request 1: drafted" in shown
    assert json.loads(said.stdout)["ids"] == [token for step in steps for token in step["emitted"]]


@pytest.mark.usefixtures("toy")
def test_a_drawn_answer_has_its_seed_in_the_trace(file):
    said = generated(file, "--temperature", 1)
    begin, *_ = TraceFile(file)
    again = run("generate", "10231023", "--max-tokens", 12, "--temperature", 1, "--seed", begin["sampling"]["seed"])
    assert again.stdout == said.stdout
    generated(file, "--temperature", 1, "--seed", 5)
    begin, *_ = TraceFile(file)
    assert begin["sampling"] == {"temperature": 1.0, "seed": 5}


@pytest.mark.usefixtures("toy")
def test_explain_and_its_trace_tell_the_same(file):
    said = run("explain", "10231023", "--max-tokens", 12, "--trace", file, "--trace-text")
    assert all(event["p"] is not None for event in TraceFile(file) if event["kind"] == "step")
    shown = run("trace", file, "--explain").stdout.splitlines()
    assert shown[0] == "request 1: drafted"
    for mine, theirs in zip(shown[1:], said.stdout.splitlines(), strict=False):
        if " ms" not in mine and "tokens/s" not in mine:
            assert mine == theirs
    run("explain", "10231023", "--max-tokens", 12, "--trace", file)
    assert 'root "<' in run("trace", file, "--explain").stdout


@pytest.mark.usefixtures("toy")
def test_rejection_tells_its_coins(file):
    run(
        "explain", "1023" * 8, "--max-tokens", 12, "--trace", file, "--acceptance", "rejection", "--temperature", 1,
        "--seed", 3,
    )  # fmt: skip
    steps = [event for event in TraceFile(file) if event["kind"] == "step"]
    assert all(step["coins"] is not None for step in steps)
    assert any(coin is not None for step in steps for coin in step["coins"])


@pytest.mark.usefixtures("toy")
def test_chat_writes_every_turn(file):
    run("chat", "--max-tokens", 6, "--trace", file, stdin="one\ntwo\n/stats\n")
    assert [id for kind, id in kinds(file) if kind in ("begin", "end")] == [1, 1, 2, 2]
    first, second = (event for event in TraceFile(file) if event["kind"] == "begin")
    assert second["prompt_tokens"] > first["prompt_tokens"]


@pytest.mark.usefixtures("toy")
def test_bench_writes_both_runs_of_every_prompt(file, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"id": f"q-{i}", "kind": "q", "prompt": "123" * i}) for i in (1, 2)))
    run(
        "bench", "--file", prompts, "--drafters", "suffix", "--max-tokens", 6, "--rounds", 2, "--batch", "2",
        "--trace", file,
    )  # fmt: skip
    begun = [(event["label"], event["pair"]) for event in TraceFile(file) if event["kind"] == "begin"]
    pairs = {
        f"q-{i}, {among}round {turn}, suffix, temperature 0"
        for i in (1, 2)
        for turn in (1, 2)
        for among in ("", "2 at once, group 1, ")
    }
    assert sorted(begun) == sorted((label, pair) for label in ("plain", "drafted") for pair in pairs)
    for event in TraceFile(file):
        if event["kind"] == "step" and event["id"] == 1:
            assert event["tokens"] == []
    out = tmp_path / "out.json"
    assert run("trace", file, "--perfetto", out).stdout == ""
    names = [row["args"]["name"] for row in json.loads(out.read_text())["traceEvents"] if row["name"] == "process_name"]
    assert set(names) == pairs
    shown = run("trace", file).stdout
    assert "plain: 8 requests, 48 tokens in 48 steps" in shown
    assert "drafted: 8 requests, 48 tokens" in shown


@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize("verb", [["generate", "x"], ["explain", "x"], ["chat"], ["bench"]])
def test_a_trace_that_cannot_be_written_is_refused_before_anything_is_loaded(verb, tmp_path):
    assert "--trace /none/x: there is no directory /none" in refused(*verb, "--trace", "/none/x")
    assert "is a directory; give a file in it" in refused(*verb, "--trace", tmp_path)
    assert "--trace-text says what a trace holds, and there is none; give --trace" in refused(*verb, "--trace-text")


@pytest.mark.usefixtures("toy")
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line(file):
    said = refused("generate", "1023", "--max-tokens", 4, "--trace", "/dev/full")
    assert said == "augury: the trace cannot be written to /dev/full: No space left on device\n"
    generated(file)
    said = refused("trace", file, "--perfetto", "/dev/full")
    assert said == "augury: the timeline cannot be written to /dev/full: No space left on device\n"
    said = run("explain", "1023", "--max-tokens", 4, "--html", "/dev/full", code=2).stderr
    assert said == "augury: the page cannot be written to /dev/full: No space left on device\n"


@pytest.mark.usefixtures("toy")
def test_an_answer_that_is_left_has_an_end(file):
    engine = augury.load("toy")
    with Tracing(trace=file).opened(engine, "test") as trace:
        prompt = Letters(V).encode("1023")
        stream = trace.follow(engine.stream(prompt, max_tokens=9), engine, prompt, Sampling())
        next(stream)
        stream.close()
        assert engine.free == 1
    *_, end = TraceFile(file)
    assert (end["kind"], end["finish"], end["error"]) == ("end", "cancelled", None)


@pytest.mark.usefixtures("toy")
def test_who_stops_reading_leaves_a_whole_trace(file, monkeypatch):
    from augury.cli.ribbon import Pen

    def gone(*_):
        raise BrokenPipeError

    monkeypatch.setattr(Pen, "write", gone)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    with pytest.raises(Exception, match="fileno"):  # of the test's own stdout; all else has happened by then
        generated(file)
    *_, end = TraceFile(file)
    assert (end["kind"], end["finish"]) == ("end", "cancelled")


@pytest.mark.usefixtures("toy")
def test_an_answer_that_fails_has_an_end(file, monkeypatch):
    engine = augury.load("toy")
    prompt = Letters(V).encode("1023")
    with Tracing(trace=file).opened(engine, "test") as trace:
        stream = trace.follow(engine.stream(prompt, max_tokens=9), engine, prompt, Sampling())
        next(stream)

        def fails(*_):
            raise MemoryError("gone")

        monkeypatch.setattr(engine.target, "verify", fails)
        with pytest.raises(MemoryError):
            list(stream)
    *_, end = TraceFile(file)
    assert (end["finish"], end["error"]) == ("error", "MemoryError")


# ---- augury trace -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy")
def test_the_summary(file):
    generated(file)
    shown = run("trace", file).stdout
    assert "augury 0.1.0 generate, 20" in shown
    heads, row = (line.split() for line in shown.splitlines()[2:4])
    assert heads == [
        "request",
        "run",
        "prompt",
        "tokens",
        "steps",
        "length",
        "rate",
        "tokens/s",
        "saved",
        "ms",
        "ended",
    ]
    assert row[:4] == ["1", "drafted", "8", "12"]
    assert row[-1] == "length"


@pytest.mark.usefixtures("toy")
def test_everything_is_written_where_it_is_wanted(file, tmp_path):
    generated(file)
    out, folder = tmp_path / "out.json", tmp_path / "tables" / "of"
    said = run("trace", file, "--perfetto", out, "--parquet", folder)
    assert said.stdout == ""
    assert f"wrote {out}; open it at ui.perfetto.dev" in said.stderr
    assert len(list(folder.iterdir())) == 2
    assert json.loads(out.read_text())["otherData"]["source"] == "generate"


@pytest.mark.usefixtures("toy")
def test_a_timeline_that_fails_leaves_what_was_there(file, tmp_path):
    generated(file)
    whole, out, link = file.read_bytes(), tmp_path / "out.json", tmp_path / "link"
    link.symlink_to(file)
    for same in (file, link):
        said = f"--perfetto {same} would overwrite {file}, which this command reads; give another file"
        assert said in refused("trace", file, "--perfetto", same)
    assert file.read_bytes() == whole
    out.write_text("kept")
    assert "request 9 is not in" in refused("trace", file, "--request", 9, "--perfetto", out)
    file.write_bytes(whole + b"garbage\n")
    assert "it is not JSON" in refused("trace", file, "--perfetto", out)
    assert out.read_text() == "kept"
    assert {one.name for one in tmp_path.iterdir()} == {"run.jsonl", "out.json", "link"}


def test_what_cannot_be_shown(file, tmp_path):
    assert "cannot read" in refused("trace", file)
    file.write_text("{}\n")
    assert "run.jsonl line 1: it has no version; a trace begins with" in refused("trace", file)
    file.write_text('{"augury_trace":3,"version":"8"}\n')
    assert "version 3, written by augury '8'; this augury reads version 1" in refused("trace", file)
    assert "--no-browser is of --open" in refused("trace", file, "--no-browser")
    assert "--open shows every request, so --request 1 has no place" in refused("trace", file, "--open", "--request", 1)
    assert "there is no directory /none" in refused("trace", file, "--perfetto", "/none/x")


@pytest.mark.usefixtures("toy")
def test_the_page_is_opened_over_the_file(file, monkeypatch):
    from augury.server import viewing

    asked = []
    monkeypatch.setattr(viewing, "open_trace", lambda *args: asked.append(args) or 0)
    generated(file)
    run("trace", file, "--open")
    run("trace", file, "--open", "--no-browser")
    assert asked == [(file, True), (file, False)]


@pytest.mark.usefixtures("toy")
def test_a_broken_file(file, tmp_path):
    generated(file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    said = run("trace", file)
    assert "not yet" in said.stdout
    assert "was cut off after" in said.stderr
    assert said.stderr.count("\n") == 1
    file.write_bytes(whole + b"garbage\n")
    count = whole.count(b"\n") + 1
    for flags in ([], ["--explain"], ["--perfetto", tmp_path / "x"], ["--parquet", tmp_path / "y"]):
        assert f"run.jsonl line {count}: it is not JSON" in refused("trace", file, *flags)
    assert not list(tmp_path.glob("y/*"))


@pytest.mark.usefixtures("toy")
def test_one_request_of_several(file):
    run("chat", "--max-tokens", 6, "--trace", file, "--trace-text", stdin="one\ntwo\n")
    assert [row.split()[0] for row in run("trace", file, "--request", 2).stdout.splitlines()[3:4]] == ["2"]
    assert "request 9 is not in " in (said := refused("trace", file, "--request", 9))
    assert "it holds 1 to 2" in said


def test_names_cannot_steer_the_terminal(file):
    head = events.header(model="a\x1b[31m", runner="r", drafters=[], source="s", text=True, zero=0.0)
    with TraceWriter(file, head) as out:
        for id in range(1, 13):
            out.put({"kind": "end", "id": id, "at": 1.0, "finish": "error", "stop": None, "tokens": 0, "steps": 0,
                     "error": "[bold]\x1b[2J"})  # fmt: skip
    shown = run("trace", file).stdout + run("trace", file, "--explain").stdout
    assert "\x1b" not in shown
    assert "[bold]\\u{1B}[2J" in shown


def test_names_take_one_line_and_turn_nothing_around(file):
    odd = "a\nb\rc\td\u202ee\u2028f\u2029g\x1bh"
    with TraceWriter(file, events.header(model=odd, runner="r", drafters=[], source="s", text=True, zero=0.0)) as out:
        out.put({**END, "id": 1, "error": odd})
    shown = run("trace", file).stdout
    assert shown.count("a\\u{A}b\\u{D}c\\u{9}d\\u{202E}e\\u{2028}f\\u{2029}g\\u{1B}h") == 2
    assert not {*odd} & {*"\r\t\u202e\u2028\u2029\x1b"} & {*shown}
    assert len(shown.split("\n")) == 5


# ---- what is missing, and what was never shown --------------------------------------------------------------------


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("kept", "answer", "missing"),
    [
        ((0, 2, 3, 4), "a…cde", "1 step is missing"),
        ((0, 3, 4), "a…de", "2 steps are missing"),
        ((2, 3, 4), "…cde", "2 steps are missing"),
        ((0, 1, 2), "abc…", "2 steps are missing"),
        ((2,), "…c…", "4 steps are missing"),
    ],
)
def test_a_gap_is_told(file, kept, answer, missing):
    with TraceWriter(file, events.header(model="m", runner="r", drafters=[], source="s", text=True, zero=0.0)) as out:
        for n in kept:
            out.put(STEP | {"n": n, "next": n, "emitted": [n], "texts": {str(n): "abcde"[n]}})
        out.put(END | {"steps": 5, "tokens": 5})
    shown = run("trace", file).stdout
    assert shown.endswith(f"\n{answer}\n")
    assert f"request 1: {missing}; the figures are of the others" in shown
    told = run("trace", file, "--explain").stdout
    assert re.findall(r"^step (\d+)", told, re.MULTILINE) == [str(n + 1) for n in kept]
    assert "missing" in told


def test_nothing_is_missing_in_a_whole_trace(file, toy):
    generated(file, "--trace-text")
    shown = run("trace", file).stdout + run("trace", file, "--explain").stdout
    assert "missing" not in shown
    assert "…" not in shown


@pytest.mark.usefixtures("toy")
def test_what_is_behind_a_stop_string_was_never_answered(file):
    whole = run("generate", "10231023", "--max-tokens", 12, "--no-stats").stdout.rstrip("\n")
    for stop in (whole[3:5], whole[3:5] + whole[5:8]):
        said = generated(file, "--trace-text", "--stop", stop, "--no-stats").stdout.rstrip("\n")
        assert said == whole[: whole.index(stop)]
        assert run("trace", file).stdout.endswith(f"\n{said}\n")


# ---- what is written where ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy")
def test_files_of_others_stay_as_they_are(file, tmp_path):
    run("generate", "10231023", "--max-tokens", 6, "--trace", tmp_path / "out.json.part")
    (tmp_path / "out.json").write_text("old")
    tables = tmp_path / "tables"
    tables.mkdir()
    run("trace", tmp_path / "out.json.part", "--parquet", tables)
    mine = [one.with_suffix(".part") for one in tables.iterdir()]
    for one in mine:
        one.write_text("mine")
    trace = (tmp_path / "out.json.part").read_bytes()
    run("trace", tmp_path / "out.json.part", "--perfetto", tmp_path / "out.json", "--parquet", tables)
    assert (tmp_path / "out.json.part").read_bytes() == trace
    assert [one.read_text() for one in mine] == ["mine", "mine"]
    assert json.loads((tmp_path / "out.json").read_text())
    assert {one.name for one in tmp_path.iterdir()} == {"out.json", "out.json.part", "tables"}
    assert len(list(tables.iterdir())) == 4
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o666 & ~mask


@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize(
    ("verb", "out"),
    [
        (["generate", "--file"], "--trace"),
        (["generate", "x", "--prediction-file"], "--trace"),
        (["generate", "x", "--json-schema"], "--trace"),
        (["generate", "x", "--grammar"], "--trace"),
        (["generate", "x", "--model"], "--trace"),
        (["explain", "--file"], "--html"),
        (["bench", "--file"], "--json"),
        (["bench", "--from"], "--html"),
        (["trace"], "--perfetto"),
    ],
)
def test_what_is_read_is_not_overwritten(verb, out, tmp_path):
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.write_text("{}")
    link.symlink_to(mine)
    for same in (mine, link, tmp_path / "." / "mine"):
        said = refused(*verb, mine, out, same)
        assert f"{out} {same} would overwrite {mine}, which this command reads; give another file" in said
    assert mine.read_text() == "{}"


@pytest.mark.usefixtures("nothing_loaded")
def test_the_configuration_is_not_overwritten(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"trace": str(config)}))
    assert f"--trace {config} would overwrite {config}" in refused("serve", "--config", config)


@pytest.mark.usefixtures("nothing_loaded")
def test_outputs_are_not_one_file(tmp_path):
    out, link = tmp_path / "out", tmp_path / "link"
    said = refused("explain", "x", "--trace", out, "--html", out)
    assert f"--trace and --html would both write {out}; give two files" in said
    out.touch()
    link.symlink_to(out)
    assert "--html and --json would both write" in refused("bench", "--json", out, "--html", link)
    assert "--trace - is no name of a file; give one, or /dev/stdout" in refused("generate", "x", "--trace", "-")


@pytest.mark.usefixtures("toy")
def test_a_timeline_goes_into_a_pipe(file, tmp_path):
    generated(file)
    read, write = os.pipe()
    try:
        link = tmp_path / "stdout"
        link.symlink_to(f"/proc/self/fd/{write}")
        if not link.exists():
            pytest.skip("needs /proc")
        run("trace", file, "--perfetto", link)
        assert os.read(read, 1 << 20).startswith(b'{"displayTimeUnit"')
        os.close(read)
        read = -1
        with pytest.raises(Exception, match="fileno"):  # of the test's own stdout
            run("trace", file, "--perfetto", link)
    finally:
        os.close(write)
        if read >= 0:
            os.close(read)
    assert "--perfetto - is no name of a file" in refused("trace", file, "--perfetto", "-")


@pytest.mark.usefixtures("toy")
def test_a_trace_out_of_a_pipe_is_refused(file, tmp_path):
    generated(file)
    read, write = os.pipe()
    os.write(write, file.read_bytes())
    os.close(write)
    try:
        said = refused("trace", f"/proc/self/fd/{read}")
        assert "is no file, and a trace is read more than once; write it into one first" in said
    finally:
        os.close(read)


@pytest.mark.usefixtures("toy")
def test_an_answer_that_is_interrupted_is_cancelled(file, monkeypatch):
    engine = augury.load("toy")
    prompt = Letters(V).encode("1023")

    def pressed(*_):
        raise KeyboardInterrupt

    with Tracing(trace=file).opened(engine, "test") as trace:
        stream = trace.follow(engine.stream(prompt, max_tokens=9), engine, prompt, Sampling())
        next(stream)
        monkeypatch.setattr(engine.target, "verify", pressed)
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    *_, end = TraceFile(file)
    assert (end["finish"], end["error"]) == ("cancelled", None)


@pytest.mark.usefixtures("toy")
def test_a_trace_with_text_can_be_replayed(file):
    generated(file, "--trace-text")
    done = run("replay", file, "--drafters", "suffix", "--only")
    assert "1 answers, 12 tokens, of 1 conversations" in done.stdout
    generated(file)
    said = refused("replay", file, "--drafters", "suffix", "--only")
    assert "run.jsonl is a trace without prompts; write it with --trace-text to replay it" in said
