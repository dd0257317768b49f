"""docs/how-it-works.md is told from its trace: pictures are drawn of it, and what is quoted stands in it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from corpus import Letters

from augury.bench.story import drawn, runs
from augury.bench.story.drawn import TOLD, TRACE, answers, examples, pictures, told
from augury.conformance.toys import ToyTarget
from augury.engine.engine import Engine
from augury.errors import InputError
from augury.record import PHASES
from augury.trace.log import TraceFile
from augury.trace.told import Teller

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS, PICTURES = DOCS / "results", DOCS / "pictures"
PAGES = [DOCS / "how-it-works.md", DOCS / "how-it-works.zh-CN.md"]
SVG = "{http://www.w3.org/2000/svg}"


class Talk:
    """A chat template that only joins what was said."""

    def encode(self, tokenizer, messages, add_generation_prompt=True, **_):
        return tokenizer.encode("".join(message["content"] for message in messages))


def test_the_trace_is_one_that_is_read():
    assert sum(1 for _ in TraceFile(RESULTS / TRACE)) > 100


def test_pictures_are_those_of_the_trace():
    made = pictures(RESULTS)
    assert {path.stem for path in PICTURES.glob("*.svg")} >= {*made}
    for name, svg in made.items():
        assert (PICTURES / f"{name}.svg").read_text("utf-8") == svg + "\n", f"make pictures: {name}.svg is another's"


def test_the_worked_examples_are_those_of_the_trace():
    assert (RESULTS / TOLD).read_text("utf-8") == told(RESULTS)


@pytest.mark.parametrize("name", [path.name for path in sorted(PICTURES.glob("*.svg"))])
def test_a_picture_is_a_file_that_needs_nothing_and_has_its_own_ground(name):
    text = (PICTURES / name).read_text("utf-8")
    svg = ElementTree.fromstring(text)
    assert svg.get("aria-label")
    assert "prefers-color-scheme:dark" in text
    assert "svg.picture:root{background:" in text
    assert "var(" not in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert not list(svg.iter(f"{SVG}script"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_what_a_page_quotes_stands_in_the_worked_examples(page):
    known = {*told(RESULTS).splitlines()}
    quoted = [
        line for block in re.findall(r"^```text\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
        for line in block.splitlines() if line.strip()
    ]  # fmt: skip
    assert len(quoted) > 10
    assert [line for line in quoted if line not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_picture_of_a_page_is_there_and_is_described(page):
    found = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", page.read_text("utf-8"))
    assert {Path(path).stem for _, path in found} >= {*pictures(RESULTS)}
    for said, path in found:
        assert len(said) > 8
        assert (page.parent / path).is_file()


def test_the_promise_of_the_page_holds_in_its_trace():
    found = answers(RESULTS / TRACE)
    assert found["plain"].tokens == found["drafted"].tokens == found["every guess"].tokens
    assert found["plain, sampled"].tokens == found["coupled, sampled"].tokens
    assert len(found["drafted"].steps) < len(found["plain"].steps)


def test_an_answer_lasts_from_its_slot_to_its_last_step():
    telling, teller = runs.Telling("plain", "toy", "1023", ()), Teller(0.0, Letters(100).token_bytes)
    with Engine(ToyTarget(100), [], tokenizer=Letters(100), template=Talk()) as engine:
        begin, *steps, end = runs._answer(engine, telling, 1, teller)
    assert begin["at"] < steps[0]["at"]
    assert begin["prompt_text"] == "1023"
    assert end["at"] == pytest.approx(steps[-1]["at"] + sum(steps[-1][f"{phase}_ms"] for phase in PHASES), abs=0.01)


def test_a_trace_without_what_the_page_tells_of_is_refused(tmp_path, monkeypatch):
    found = answers(RESULTS / TRACE)
    only = {name: drawn.Answer(one.begin, one.steps[-1:]) for name, one in found.items()}
    with pytest.raises(InputError, match="is of the kind that the page needs"):
        examples({**only, "drafted": found["plain"]})


def test_a_forward_that_is_no_table_is_refused(tmp_path):
    (tmp_path / "x.txt").write_text("nothing")
    with pytest.raises(InputError, match=r"x\.txt is no table of python -m augury\.bench\.forward"):
        drawn._forward(tmp_path / "x.txt")
