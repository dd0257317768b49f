"""``augury plan``: the table, the files it writes, and what is refused before anything is loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

import augury
from augury.bench.plan import hardware, measured
from augury.bench.plan.gain import Steps
from augury.bench.plan.measured import Seen, verify_ms
from augury.bench.plan.roofline import Hardware
from augury.cli import app
from augury.conformance.toys import ToyTarget
from augury.engine import costs
from augury.engine.costs import Meter
from augury.engine.engine import Engine

EXAMPLE = ["--hardware", "H100", "--params", "70B", "--bits", "16", "--draft", "8B", "--acceptance", "0.8"]
SMALL = ["--hardware", "H100", "--params", "70B", "--draft", "8B@0.8", "--batch", "1"]


def run(*args, code=0):
    done = CliRunner().invoke(app, ["plan", *map(str, args)], env={"COLUMNS": "300"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def cells(markdown, number=0):
    """Rows of a Markdown table, as mappings."""
    tables = [[]]
    for line in markdown.splitlines():
        if line.startswith("|"):
            tables[-1].append([cell.strip() for cell in line.split("|")[1:-1]])
        elif tables[-1]:
            tables.append([])
    heads, _, *rows = tables[number]
    return [dict(zip(heads, row, strict=True)) for row in rows]


# ---- what it prints -----------------------------------------------------------------------------------------------


def test_the_example_from_one_request_to_256():
    done = run(*EXAMPLE, "--markdown")
    rows = cells(done.stdout)
    assert [int(row["batch"]) for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert {row["best drafter"] for row in rows} == {"8B"}
    gains, lengths = [float(row["speed-up"]) for row in rows], [int(row["length"]) for row in rows]
    assert gains == sorted(gains, reverse=True)
    assert lengths == sorted(lengths, reverse=True)
    assert (rows[0]["speed-up"], rows[0]["length"], rows[0]["tokens a step"]) == ("2.34", "5", "3.69")
    assert rows[0]["plain tok/s"] == "23.9"  # 3350 GB/s over 140 GB
    assert (rows[0]["plain waits for"], rows[0]["verify waits for"]) == ("memory", "memory")
    assert (rows[-1]["plain waits for"], rows[-1]["verify waits for"]) == ("memory", "compute")
    assert "from batch 1 on it does not fit" in done.stdout
    assert "take 156 GB, and H100 holds 80" in done.stdout
    assert "With --bits fp8 it takes 78 GB" in done.stdout


def test_several_drafters_are_compared():
    done = run(
        *EXAMPLE, "--draft", "copy@0.3", "--draft", "head:1B@0.7", "--batch", "1,1024", "--context", 0, "--markdown"
    )
    best, each = cells(done.stdout), cells(done.stdout, 1)
    assert [*each[0]] == ["batch", "8B", "copy", "head:1B"]
    assert best[0]["best drafter"] == "head:1B"
    peak, length = re.fullmatch(r"([\d.]+) \((\d+)\)", each[0]["head:1B"]).groups()
    assert (best[0]["speed-up"], best[0]["length"]) == (peak, length)
    assert best[1] | {"best drafter": "none", "length": "0", "speed-up": "1.00", "verify waits for": "-"} == best[1]
    assert "plain decoding is best at batch 1024" in done.stdout
    assert "one acceptance" not in done.stdout
    assert "one acceptance was given for all" in run(*EXAMPLE, "--draft", "copy", "--batch", "1").stdout


def test_free_figures_are_the_preset_they_repeat():
    by_name = cells(run(*SMALL, "--markdown").stdout)
    free = ["--bandwidth", 3350, "--flops", 989, "--params", "70B", "--draft", "8B@0.8", "--batch", "1"]
    assert cells(run(*free, "--markdown").stdout) == by_name
    twice = cells(run(*SMALL, "--bandwidth", 6700, "--markdown").stdout)
    assert float(twice[0]["plain tok/s"]) == pytest.approx(2 * float(by_name[0]["plain tok/s"]), rel=1e-2)


def test_overhead_and_memory_are_taken():
    slow = run(*SMALL, "--overhead", 5, "--memory", 200).stdout
    assert "5 ms a forward on top" in slow
    assert "does not fit" not in slow
    assert float(cells(run(*SMALL, "--overhead", 5, "--markdown").stdout)[0]["speed-up"]) < 2.34


def test_a_rate_that_is_given_is_that_of_every_precision(tmp_path):
    run(*SMALL, "--bits", "fp8", "--flops", 500, "--json", tmp_path / "x.json")
    found = json.loads((tmp_path / "x.json").read_text())["hardware"]
    assert (found["flops"], found["flops8"]) == (500.0, None)


def test_the_cache_of_a_token_can_be_given():
    args = (*SMALL, "--context", 100_000, "--markdown")
    assert cells(run(*args, "--kv-bytes", 0).stdout) != cells(run(*args).stdout)


def test_no_batch_where_anything_pays():
    assert "plain decoding is best at every batch size" in run(*SMALL[:-4], "--draft", "70B@0.9").stdout


@pytest.mark.real
def test_a_model_by_name_is_read_and_not_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(augury, "load", lambda *a, **o: pytest.fail("something was loaded"))
    args = ("--hardware", "desktop-DDR5", "--model", "smollm2-135m", "--draft", "self:int4@0.95")
    run(*args, "--json", tmp_path / "x.json")
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["target"]["parameters"] == 134_515_008
    assert found["target"]["kv_bytes"] == 23040


# ---- what it writes -----------------------------------------------------------------------------------------------


def test_the_json_has_what_was_asked_and_what_was_reckoned(tmp_path):
    run(*EXAMPLE, "--batch", "1,256", "--longest", 4, "--json", tmp_path / "x.json")
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["arguments"]["acceptance"] == "0.8"
    assert found["hardware"]["bandwidth"] == 3350
    assert found["target"]["weight_bytes"] == 140e9
    one = found["batches"][0]
    assert len(one["speedup_by_length"]["8B"]) == 5
    assert one["speedup"] == one["speedup_by_length"]["8B"][one["length"]]
    assert one["drafted_tokens_per_second"] == pytest.approx(one["speedup"] * one["plain_tokens_per_second"])
    assert any("does not fit" in text for text in found["notes"])


class Page(HTMLParser):
    """What a page would fetch or run, and how often each element occurs."""

    def __init__(self):
        super().__init__()
        self.fetched, self.count = [], {}

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        self.fetched += [value for name, value in attrs if name in ("src", "href") or name.startswith("on")]


def test_the_page_has_plots_and_needs_nothing(tmp_path):
    run(*EXAMPLE, "--draft", "copy@0.3,0.9", "--html", tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    page = Page()
    page.feed(text)
    assert page.fetched == []
    assert "script" not in page.count
    assert (page.count["table"], page.count["svg"]) == (2, 3)  # by batch size, and by length of each drafter
    plots = [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    names = [text.text for plot in plots for text in plot.iter("{http://www.w3.org/2000/svg}text")]
    assert {"8B", "copy", "batch 1", "batch 256"} <= {*names}
    assert "2.34" in text


# ---- measured -----------------------------------------------------------------------------------------------------


@pytest.fixture
def timed(monkeypatch):
    """A toy is loaded; a forward of it takes 10 ms and 1 ms for each row, a guess of ``self`` 2 ms."""
    toy = ToyTarget(6)
    monkeypatch.setattr(augury, "load", lambda model, **options: Engine(toy, []))
    table = np.array([11.0, 75.0])
    monkeypatch.setattr(costs, "profile", lambda target, **options: Meter((1, 65), table, 0.0))
    monkeypatch.setattr(measured, "_self_share", lambda draft, engine, costs: 2.0 / verify_ms(costs, 1)(1, 1))
    return toy


def wrote(monkeypatch, name):
    """The name of a file of ``augury bench --json`` of a model: 2.4 tokens a step of two guesses, 1.5 times as fast."""
    seen = Seen(name, "self", 2.4, 2.0, context=5, gain=1.5, answers=(Steps(2.4, 1.0, 2.0),), plain_rest=1.0, rest=2.0)
    monkeypatch.setattr(measured, "read_seen", lambda path: seen)
    return "self.json"


def test_measured_costs_take_the_place_of_the_roofline(timed, tmp_path):
    args = ("--measure", "--model", "toy", "--draft", "self:int4@0.8", "--context", 2, "--batch", "1,4")
    done = run(*args, "--markdown", "--json", tmp_path / "x.json")
    rows = cells(done.stdout)
    by_hand = [(1 - 0.8 ** (k + 1)) / 0.2 * 11 / (2 * k + 11 + k) for k in range(17)]
    assert rows[0]["speed-up"] == f"{max(by_hand):.2f}"
    assert int(rows[0]["length"]) == by_hand.index(max(by_hand))
    assert "plain waits for" not in rows[0]
    assert "roofline" not in done.stdout
    four = json.loads((tmp_path / "x.json").read_text())["batches"][1]
    assert four["plain_ms"] == pytest.approx(14.0)
    assert four["speedup_by_length"]["self:int4"][1] == pytest.approx(1.8 * 14 / (4 * 2 + 18))  # one after the other


def test_a_prediction_beside_what_bench_measured(timed, monkeypatch):
    file = wrote(monkeypatch, timed.info.name)
    done = run("--measure", "--model", timed.info.name, "--draft", "self:int4", "--bench", file)
    # 2.4 tokens a step of 2 guesses: 2 x 2 ms, a forward of three rows, 13 ms, and 2 ms, against 11 and 1 ms for one.
    expected = 2.4 * 12 / 19
    assert f"measured speed-up 1.50, predicted {expected:.2f}, 1% above" in done.stdout
    assert "context 5" in done.stdout


def test_bench_of_another_model_is_refused(timed, monkeypatch):
    file = wrote(monkeypatch, "another")
    done = run("--measure", "--model", "toy", "--draft", "self:int4", "--bench", file, code=2)
    assert "--bench measured another, and --model is toy" in done.stderr


def test_on_other_hardware_bench_gives_its_steps_only(monkeypatch):
    file = wrote(monkeypatch, "toy")
    done = run("--hardware", "H100", "--params", "70B", "--draft", "self:int4", "--bench", file)
    assert "with these steps this hardware would gain" in done.stdout
    assert "measured speed-up" not in done.stdout


def test_here_is_measured(monkeypatch):
    asked = []
    monkeypatch.setattr(hardware, "here", lambda threads: asked.append(threads) or Hardware("mine", 20.0, 0.1))
    file = wrote(monkeypatch, "toy")
    done = run("--here", "--threads", 1, "--params", "1B", "--draft", "self:int4", "--bench", file)
    assert asked == [1]
    assert "on mine: 20 GB/s, 0.1 TFLOP/s" in done.stdout
    assert "measured speed-up 1.50, predicted" in done.stdout


def test_here_without_the_compiled_forward_says_what_else_to_give(monkeypatch):
    monkeypatch.setattr("augury.models.native.native_available", lambda: "there is no C compiler")
    done = run("--here", "--params", "1B", "--draft", "8M@0.8", code=2)
    assert "and there is no C compiler; give --bandwidth and --flops" in done.stderr


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "say who drafts: --draft 8B"),
        (["--draft", "8B"], "say how often a guess of --draft 8B is right: --acceptance 0.8"),
        (["--draft", "8B@0.8"], "--params and --model are both missing"),
        (["--draft", "8B@0.8", "--params", "70B"], "say on what: --hardware with one of H100, "),
        (["--draft", "8B@0.8", "--params", "70B", "--bandwidth", "9"], "or --bandwidth and --flops"),
        ([*SMALL, "--model", "smollm2-135m"], "--params and --model exclude each other"),
        ([*SMALL, "--hardware", "H10O"], "unknown hardware 'H10O'; did you mean 'H100'?"),
        ([*SMALL, "--here"], "--hardware H100 and --here exclude each other"),
        ([*SMALL, "--bandwidth", "0"], "--bandwidth is 0; it must be a number above 0"),
        ([*SMALL, "--bandwidth", "nan"], "--bandwidth is nan"),
        ([*SMALL, "--flops", "-1"], "--flops is -1"),
        ([*SMALL, "--memory", "inf"], "--memory is inf"),
        ([*SMALL, "--overhead", "-1"], "--overhead is -1; it must be a number 0 or more, the nearest choice is 0"),
        ([*SMALL, "--acceptance", "1.5"], "--acceptance: acceptance 1.5 is outside 0 to 1"),
        ([*SMALL, "--params", "70"], "--params '70' is not a number of parameters"),
        ([*SMALL, "--params", "smollm2-135m"], "a model whose files are here is given by --model"),
        (["--draft", "8B@0.8", "--model", "70B", "--hardware", "H100"], "--model 70B is a size"),
        (["--draft", "8B@0.8", "--params", "", "--model", "x"], "--params and --model exclude each other"),
        ([*SMALL, "--bits", "5"], "unknown precision of --bits '5'"),
        ([*SMALL, "--kv-bytes", "-1"], "--kv-bytes is -1; it must be 0 or more, and a model of this size has about"),
        ([*SMALL, "--batch", "1,x"], "--batch '1,x' is not a comma list of whole numbers"),
        ([*SMALL, "--batch", "0"], "--batch has 0; it must be 1 to 65536, and the nearest is 1"),
        ([*SMALL, "--batch", ""], "--batch '' is not a comma list"),
        ([*SMALL, "--draft", "8B"], "--draft 8B is given twice"),
        ([*SMALL, "--draft", "copy@0.5", "--bench", "x"], "--bench x is of one run, and there are 2 drafts"),
        ([*SMALL, "--bench", "/no/x"], "/no/x"),
        ([*SMALL, "--threads", "2"], "--threads needs --measure or --here"),
        ([*SMALL, "--dtype", "float32"], "--dtype needs --measure: without it nothing is loaded"),
        ([*SMALL, "--json", "/no/x"], "--json /no/x: there is no directory /no"),
        ([*SMALL, "--html", "/no/x"], "--html /no/x: there is no directory /no"),
        ([*SMALL, "--html", "/"], "--html / is a directory; give a file in it"),
        ([*SMALL, "--measure"], "--measure times this machine, so --hardware has no place"),
        (["--measure", "--draft", "copy@0.5"], "--measure needs a model to load"),
        (["--measure", "--model", "x", "--draft", "8B@0.5"], "--draft 8B is known by its size only"),
        (["--measure", "--model", "x", "--bits", "8", "--draft", "copy@0.5"], "so --bits has no place"),
    ],
)
def test_what_is_refused_is_told_in_one_line(monkeypatch, args, said):
    monkeypatch.setattr(augury, "load", lambda *a, **o: pytest.fail("something was loaded"))
    done = run(*args, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_context_that_the_loaded_model_does_not_hold(timed):
    args = ("--measure", "--model", "toy", "--draft", "copy@0.5", "--context")
    assert f"the nearest is {timed.info.context - 1}" in run(*args, 10**6, code=2).stderr
    assert "the nearest is 1" in run(*args, 0, code=2).stderr


def test_a_context_that_nothing_holds():
    assert "'--context'" in run(*SMALL, "--context", 10**12, code=2).stderr


def test_a_plan_on_paper_imports_no_torch():
    code = (
        f"import sys; sys.argv = {['augury', 'plan', *EXAMPLE]!r}\n"
        "from augury.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "sys.exit(' '.join({'torch', 'transformers', 'scipy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
