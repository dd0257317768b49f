"""Verbs on the embedded model: every flag has an effect that can be seen."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import augury
from augury.cli import app
from augury.engine.costs import Meter

pytestmark = pytest.mark.real

CODE = "Write a Python function that returns the n-th Fibonacci number, then write it again with type hints."
COPY = "Repeat this sentence five times: The quick brown fox jumps over the lazy dog and runs away."
CHINESE = "今天天气很好，我想去公园散步玩耍。请把这句话重复三遍。"


@pytest.fixture
def said(engine, monkeypatch):
    """Run the command on the one loaded engine; gives what was said, after checking that it went well."""
    monkeypatch.setattr(augury, "load", lambda *args, **options: engine)

    def run(*args, code=0, stdin=None):
        done = CliRunner().invoke(app, [str(a) for a in args], input=stdin, env={"COLUMNS": "300"})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, done.stderr
        return done

    return run


@pytest.fixture
def answer(said):
    """The JSON of an answer of at most 24 tokens."""

    def run(*args, prompt=CODE):
        limit = [] if "--max-tokens" in args else ["--max-tokens", 24]
        return json.loads(said("generate", prompt, "--json", *limit, *args).stdout)

    return run


def test_stdout_is_the_answer_alone(said, engine):
    plain = said("generate", CODE, "--max-tokens", 32)
    expected = engine.generate(engine.render(CODE), max_tokens=32)
    assert plain.stdout == expected.text + "\n"
    assert re.fullmatch(
        r"32 tokens after \d+( \(\d+ cached\))? · [\d.]+ tokens/s · \d+ steps · acceptance length [\d.]+ · "
        r"draft acceptance rate .* · time draft \d+% verify \d+% rest \d+% · accepted suffix \d+, prediction 0\n",
        plain.stderr,
    )
    assert said("generate", CODE, "--max-tokens", 32, "--no-stats").stderr == ""


def test_prompts_from_stdin_and_files_are_the_same_prompt(said, tmp_path):
    (tmp_path / "p").write_text(CODE + "\n")
    texts = {
        said("generate", CODE, "--max-tokens", 8).stdout,
        said("generate", "-", "--max-tokens", 8, stdin=CODE + "\n").stdout,
        said("generate", "--file", tmp_path / "p", "--max-tokens", 8).stdout,
    }
    assert len(texts) == 1


def test_json_has_everything(answer, engine):
    found = answer("--max-tokens", 40, "--logprobs", 2)
    assert set(found) == {"text", "ids", "drafters", "finish_reason", "stop", "logprobs", "statistics"}
    assert len(found["ids"]) == len(found["drafters"]) == len(found["logprobs"]) == 40
    assert found["finish_reason"] == "length"
    accepted = sum(d is not None for d in found["drafters"])
    assert accepted == found["statistics"]["accepted"] > 0
    assert sum(d["accepted"] for d in found["statistics"]["drafters"]) == accepted
    for entry, token in zip(found["logprobs"], found["ids"], strict=True):
        assert entry["id"] == token == entry["top"][0]["id"]
        assert entry["logprob"] <= 0
        assert len(entry["top"]) == 2


def test_logprobs_of_text_go_to_stderr(said):
    done = said("generate", CODE, "--max-tokens", 4, "--logprobs", 3, "--no-stats")
    rows = done.stderr.splitlines()
    assert len(rows) == 4
    assert all(row.count("-0.") + row.count("-") >= 3 for row in rows)
    assert said("generate", CODE, "--max-tokens", 4, "--no-stats").stderr == ""


def test_max_tokens(answer):
    assert len(answer("--max-tokens", 3)["ids"]) == 3
    assert answer("--max-tokens", 0)["text"] == ""


def test_temperature_and_seed(answer):
    greedy = answer()["ids"]
    hot = [answer("--temperature", 1.5, "--seed", seed)["ids"] for seed in (1, 1, 2)]
    assert hot[0] == hot[1] != hot[2]
    assert hot[0] != greedy
    assert answer("--temperature", 1.5)["ids"] != answer("--temperature", 1.5)["ids"]


@pytest.mark.parametrize(
    "flags",
    [("--top-k", 1), ("--top-p", 1e-6), ("--min-p", 1.0)],
    ids=lambda flags: flags[0],
)
def test_a_law_of_one_token_is_greedy(answer, flags):
    assert answer("--temperature", 1.5, "--seed", 1, *flags)["ids"] == answer()["ids"]


def test_typical_p(answer):
    hot = ("--temperature", 1.5, "--seed", 1)
    assert answer(*hot, "--typical-p", 0.01)["ids"] != answer(*hot)["ids"]


@pytest.mark.parametrize(
    "flags",
    [("--repetition-penalty", 5), ("--presence-penalty", 2), ("--frequency-penalty", 2)],
    ids=lambda flags: flags[0],
)
def test_penalties(answer, flags):
    free, held = answer("--max-tokens", 48)["ids"], answer("--max-tokens", 48, *flags)["ids"]
    assert len(set(held)) > len(set(free))


def test_logit_bias(answer, engine):
    token = int(engine.tokenizer.encode(" banana", special=False)[0])
    assert answer("--logit-bias", f"{token}=100", "--max-tokens", 3)["ids"] == [token] * 3
    first = answer()["ids"][0]
    assert answer("--logit-bias", f"{first}=-100", "--logit-bias", f"{token}=-100")["ids"][0] != first


def test_bad_words(answer):
    free = answer()["text"]
    assert "python" in free
    assert "def" in free
    held = answer("--bad-words", "python", "--bad-words", "def")["text"]
    assert "python" not in held
    assert "def" not in held


def test_min_tokens_and_ignore_eos(answer, engine):
    short = COPY
    free = answer("--max-tokens", 40, prompt=short)
    assert free["finish_reason"] == "stop"
    end = len(free["ids"])
    assert free["ids"][-1] in engine.eos_ids
    assert len(answer("--max-tokens", 40, "--min-tokens", end + 5, prompt=short)["ids"]) >= end + 5
    on = answer("--max-tokens", 40, "--ignore-eos", prompt=short)
    assert (len(on["ids"]), on["finish_reason"]) == (40, "length")


def test_stops(answer):
    free = answer()
    held = answer("--stop", "zzz", "--stop", "fibonacci")
    assert held["text"] == free["text"][: free["text"].index("fibonacci")]
    assert (held["finish_reason"], held["stop"]) == ("stop", "fibonacci")
    token = free["ids"][3]
    held = answer("--stop-token-ids", f"{token},49000")
    assert held["ids"] == free["ids"][: free["ids"].index(token) + 1]
    assert held["stop"] == token


def test_raw_and_system(answer):
    chat, raw, pirate = (
        answer(*flags)["statistics"]["prompt_tokens"] for flags in ([], ["--raw"], ["--system", "You are a pirate."])
    )
    assert raw < pirate
    assert raw < chat != pirate


def test_prediction(answer, tmp_path):
    long = ("--max-tokens", 60)
    free = answer(*long, prompt="Explain why the sky is blue.")
    (tmp_path / "p").write_text(free["text"])
    for flags in (["--prediction", free["text"]], ["--prediction-file", tmp_path / "p"]):
        told = answer(*long, *flags, prompt="Explain why the sky is blue.")
        assert told["ids"] == free["ids"]
        assert told["drafters"].count("prediction") > 30 > free["drafters"].count("prediction")


def test_show_drafts_marks_what_was_accepted(said, answer):
    found = answer("--max-tokens", 60)
    done = said("generate", CODE, "--max-tokens", 60, "--show-drafts", "--no-stats")
    marked = done.stdout.removesuffix("\n")
    assert re.sub(r"⟦(.*?)⟧\d", r"\1", marked, flags=re.S) == found["text"]
    inside = "".join(re.findall(r"⟦(.*?)⟧1", marked, flags=re.S))
    assert found["drafters"].count("suffix") > 0
    assert 0 < len(inside) < len(found["text"])
    assert done.stderr == "guessed by ⟦suffix⟧1, ⟦prediction⟧2; the rest is the target's own\n"


def test_characters_are_never_split(said, engine):
    expected = engine.generate(engine.render(CHINESE), max_tokens=40).text
    for flags in ([], ["--show-drafts"]):
        text = said("generate", CHINESE, "--max-tokens", 40, *flags).stdout.removesuffix("\n")
        assert re.sub(r"[⟦]|⟧\d", "", text) == expected


def test_explain_tells_every_step(said):
    text = said("explain", CHINESE, "--max-tokens", 40).stdout
    steps = re.findall(r"^step (\d+)", text, flags=re.M)
    told = re.findall(r"(accepted|rejected|not reached|cut off)  \".*?\"  suffix  survival [01]\.\d\d  p \d", text)
    assert len(told) > 0
    assert told.count("accepted") > 0
    assert told.count("rejected") > 0
    # The costs of a step decide what is drafted, and they are measured: two runs need not draft the same.
    assert re.search(
        rf"^40 tokens after .* · {len(steps)} steps .* \({told.count('accepted')}/{len(told)}\)", text, re.M
    )
    assert [int(n) for n in steps] == list(range(1, len(steps) + 1))
    assert "correction  " in text
    assert "own token  " in text
    assert "nothing was drafted: " in text
    assert "\x1b" not in text
    assert "suffix" in text.rsplit("drafter", 1)[1]


def test_explain_chinese_and_raw(said):
    text = said("explain", "今天天气很好，我想去公园散步玩耍", "--raw", "--max-tokens", 24).stdout
    assert re.search(r"‹[0-9A-F]{2}( [0-9A-F]{2})*›", text)
    assert "\\u{FFFD}" not in text
    assert "�" not in text


def test_explain_flags_reach_the_engine(said):
    one = said("explain", CODE, "--max-tokens", 6, "--system", "You are a pirate.", "--temperature", 1.5, "--seed", 3)
    other = said("explain", CODE, "--max-tokens", 6, "--system", "You are a pirate.", "--temperature", 1.5, "--seed", 4)
    emitted = [re.findall(r"emits (.*)$", done.stdout, flags=re.M) for done in (one, other)]
    assert emitted[0] != emitted[1]
    assert "ended: stop at 'fibonacci'" in said("explain", CODE, "--max-tokens", 40, "--stop", "fibonacci").stdout


def test_check_finds_no_difference(said):
    done = said("check", CODE, "What is 2 + 2?", "--max-tokens", 40, "--limit", 1)
    assert re.search(r"^ +1  identical bits +40 tokens, +[1-9]\d* of +\d+ drafts accepted  Write", done.stdout)
    assert "\n1 answers: 1 identical bits\n" in done.stdout
    assert "promises equal bits" in done.stdout


def test_check_draws_and_takes_files(said, tmp_path):
    (tmp_path / "p.jsonl").write_text(json.dumps({"turns": [CODE, "Again."]}) + "\n")
    done = said("check", "--file", tmp_path / "p.jsonl", "--max-tokens", 24, "--temperature", 0.7, "--seed", 5)
    assert "2 answers: 2 identical bits\n" in done.stdout
    other = said("check", "--file", tmp_path / "p.jsonl", "--max-tokens", 24, "--temperature", 0.7, "--seed", 6)
    assert other.stdout != done.stdout


def test_check_that_proved_nothing_fails(said):
    done = said("check", "Hi", "--max-tokens", 1, code=1)
    assert "nothing was proved" in done.stderr


def test_check_with_a_budget_verifies_what_is_worth_it(said, engine, monkeypatch):
    rows = np.arange(1, 66)
    meter = Meter(tuple(rows.tolist()), 10.0 + rows, 0.0)  # a guess must be right in one of some ten cases
    meter.served = lambda *_: None
    monkeypatch.setattr(engine, "parts", replace(engine.parts, meter=meter))
    drafted = []
    for flags in ([], ["--budget"]):
        text = said("check", CODE, "--max-tokens", 32, *flags).stdout
        assert "1 answers: 1 identical bits" in text or "1 answers: 1 same tokens" in text
        drafted.append(int(re.search(r"of (\d+) draft tokens", text)[1]))
    assert 0 < drafted[1] < drafted[0]


def test_check_names_a_prompt_that_does_not_fit(said):
    done = said("check", "word " * 3000, CODE, "--max-tokens", 24)
    assert re.search(r"^ +1  not checked: the prompt has \d+ tokens", done.stdout)
    assert "1 answers: 1 identical bits, 1 not checked" in done.stdout


def test_chat_remembers_and_reuses(said):
    done = said("chat", "--max-tokens", 12, stdin="My name is Ada.\nWhat is my name?\n")
    assert done.stdout.count("\n") == 2
    first, second = done.stderr.splitlines()[-2:]
    tokens, cached = re.search(r"after (\d+) \((\d+) cached\)", second).groups()
    assert int(tokens) > int(re.search(r"after (\d+)", first).group(1))
    assert int(cached) > 30


def test_chat_commands(said, tmp_path):
    typed = f"""\
/help
Hello.
/stats
/drafts
Hello again.
/reset
/save {tmp_path}/other/c.json
/sav
\"""
Two
lines.
\"""
/save {tmp_path}/chat.json
/save {tmp_path}/nowhere/chat.json
/exit
never read
"""
    (tmp_path / "chat.json").write_text("precious")
    (tmp_path / "other").mkdir()
    done = said("chat", "--max-tokens", 6, "--system", "Be brief.", stdin=typed)
    lines = done.stderr.splitlines()
    assert "/reset" in done.stdout
    assert sum("tokens/s" in one for one in lines) == 1
    assert any(one.startswith("guessed by") for one in lines)
    assert "(the conversation is forgotten)" in lines
    assert "(saved 1 messages)" in lines
    assert any("unknown command '/sav'; did you mean '/save'?" in one for one in lines)
    assert any("exists already" in one for one in lines)
    assert any("cannot write" in one for one in lines)
    assert (tmp_path / "chat.json").read_text() == "precious"
    saved = json.loads((tmp_path / "other/c.json").read_text())
    assert saved["messages"] == [{"role": "system", "content": "Be brief."}]


def test_chat_saves_what_was_said(said, tmp_path):
    said(
        "chat",
        "--max-tokens",
        6,
        stdin=f'Hello.\n"""Two\nlines."""\n/save {tmp_path}/c.json\n/save {tmp_path}/c.json\n',
    )
    saved = json.loads((tmp_path / "c.json").read_text())
    assert [m["role"] for m in saved["messages"]] == ["user", "assistant"] * 2
    assert saved["messages"][2]["content"] == "Two\nlines."


def test_chat_names_a_full_context_and_drops_nothing(said, tmp_path):
    long = "word " * 1500
    done = said("chat", "--max-tokens", 4, "--no-stats", stdin=f"{long}\n{long}\nShort.\n/save {tmp_path}/c.json\n")
    refused = [one for one in done.stderr.splitlines() if one.startswith("augury: ")]
    assert len(refused) == 1
    assert re.search(r"has \d+ tokens with this message, the context holds 2048; the message was not sent", refused[0])
    saved = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [m["content"] for m in saved if m["role"] == "user"] == [long.rstrip("\n"), "Short."]


def test_chat_says_when_an_answer_was_cut(said):
    done = said("chat", "--max-tokens", 3, "--no-stats", stdin=CODE + "\n")
    assert done.stderr == "(cut off after 3 tokens; --max-tokens allows more)\n"


@pytest.mark.parametrize(
    ("flag", "value", "option"),
    [
        ("--model", "gemma3-270m", "model"),
        ("--drafters", "none", "drafters"),
        ("--acceptance", "block", "acceptance"),
        ("--dtype", "float32", "dtype"),
        ("--device", "cpu", "device"),
        ("--threads", 1, "threads"),
        ("--max-model-len", 77, "max_model_len"),
        ("--runner", "torch", "runner"),
    ],
)
def test_what_is_said_of_the_model_reaches_it(engine, monkeypatch, flag, value, option):
    loaded = []

    def load(model, **options):
        loaded.append({"model": model, **options})
        return engine

    monkeypatch.setattr(augury, "load", load)
    for verb in (["generate", "Hi", "--max-tokens", "0"], ["explain", "Hi", "--max-tokens", "0"], ["chat"]):
        done = CliRunner().invoke(app, [*verb, flag, str(value)], input="")
        assert done.exit_code == 0, done.stderr
    assert [one[option] for one in loaded] == [value] * 3


def test_no_draft_loads_no_drafter(engine, monkeypatch):
    loaded = []
    monkeypatch.setattr(augury, "load", lambda model, **options: loaded.append(options) or engine)
    assert CliRunner().invoke(app, ["generate", "Hi", "--max-tokens", "0", "--no-draft"]).exit_code == 0
    assert loaded[0]["drafters"] == "none"


def test_info_tells_what_there_is(said):
    found = json.loads(said("info", "--json").stdout)
    assert set(found) == {"augury", "machine", "models", "drafters", "rules"}
    assert found["augury"]["version"] == augury.__version__
    assert found["models"]["smollm2-135m"] == "installed"
    assert set(found["rules"]) == {"coupled", "rejection", "block"}
    assert {"suffix", "prediction", "ngram"} <= set(found["drafters"])
    text = said("info").stdout
    for section in found.values():
        for name in section:
            assert name.replace("_", " ") in text


def test_info_measures_a_model_as_it_is_asked_to_run():
    flags = ["--runner", "torch", "--dtype", "float32", "--threads", "1", "--max-model-len", "128"]
    done = CliRunner().invoke(app, ["info", "--model", "smollm2-135m", "--json", *flags])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["model"]["context"] == 128
    assert re.match(r"torch float32 cpu", found["model"]["runner"])
    assert found["costs"]["1 rows"].endswith(" ms")
    assert "plain decoding" in found["costs"]


def test_info_refuses_flags_that_would_do_nothing():
    done = CliRunner().invoke(app, ["info", "--threads", "2"])
    assert done.exit_code == 2
    assert done.stderr == "augury: --threads needs --model: without one nothing is loaded\n"
