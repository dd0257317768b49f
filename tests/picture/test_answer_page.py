"""The page of an answer: its figures are the record's, it runs and loads nothing, and long answers stay small."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from steps import EMPTY, FORKED, NAMES, WORDS, record

from augury.picture import answer
from augury.picture.answer import page
from augury.record import RequestRecord
from augury.sampling import Sampling
from augury.trace import events
from augury.tree import DraftTree

NASTY = '<script>alert("1")</script><img src=x onerror=alert(1)></style></pre>'


class Reader(HTMLParser):
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.names, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names += [name for name, _ in attrs]

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        self.texts += [data.strip()] if data.strip() else []


def made(steps, drafters=NAMES, prompt="Why?", model="toy", sampling=None):
    request = RequestRecord(6, drafters, cached_tokens=2, prefill_ms=3.0, steps=list(steps), finish="length")
    piece = events.pieces(WORDS.__getitem__)
    header = events.header(model=model, runner="none", drafters=drafters, source="explain", text=True, zero=0.0)
    begin = events.begin(
        0, request, at=0.0, label="drafted", rule="coupled", sampling=sampling or Sampling(), drafters=drafters,
        prompt_text=prompt,
    )  # fmt: skip
    return page(header, begin, [events.step(0, n, s, 0.0, piece) for n, s in enumerate(request.steps)], request)


STEPS = [
    record(FORKED, (0, 2), (2, 3, 9), plain_ms=8.0),
    record(EMPTY, (), (5,), reason="no drafter had a guess", plain_ms=8.0),
]


def test_the_page_has_the_figures_of_the_record():
    said = " ".join(Reader(made(STEPS, sampling=Sampling(temperature=0.5, seed=2**62 + 1))).texts)
    for figure in (
        "4 in 2 steps", "200.0 the prompt excluded", "2.00 tokens a step", "40% 2 of 5", "12 ms against plain steps",
        "6 tokens, 2 of them cached, in 3.0 ms", "ended length", "temperature 0.5, seed 4611686018427387905", "Why?",
        "suffix 6 3 1 33% 0.5 0", "self 0 2 1 50% 0.0 0", "no drafter had a guess 1", "Step 1: 2 of 5 guesses accepted",
        'Behind " the" the target\'s own token is " quick". " quick" is it: kept.',
    ):  # fmt: skip
        assert figure in said, figure


def test_it_is_xml_with_a_picture_for_each_step():
    text = made(STEPS)
    tree = ElementTree.fromstring(text)
    pictures = [svg.get("class") for svg in tree.iter("{http://www.w3.org/2000/svg}svg")]
    assert pictures == ["picture timeline", "picture rows", "picture tree", "picture tree"]
    assert len(list(tree.iter("details"))) == 2


@pytest.mark.parametrize("token", [30, 31, 32, 33])
def test_nothing_that_is_shown_runs(token):
    chain = DraftTree.chain([token, token], [0.5, 0.25])
    steps = [record(chain, (0, 1), (token, token, 9), root=token), record(EMPTY, (), (token,), reason=NASTY)]
    text = made(steps, drafters=(NASTY, "self"), prompt=NASTY, model=NASTY)
    plain, read = Reader(made(STEPS)), Reader(text)
    assert {*read.tags} <= {*plain.tags}
    assert {*read.names} <= {*plain.names}
    assert not {"script", "link", "img", "iframe", "object", "a", "base"} & {*read.tags}
    assert not any(name.startswith("on") or name in ("src", "href", "style") for name in read.names)
    assert NASTY in read.texts
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "default-src 'none'" in text


def test_a_long_answer_stays_small(monkeypatch):
    chain = DraftTree.chain([2] * 60, [0.5] * 60)
    steps = [record(chain, tuple(range(60)), (2,) * 60 + (9,)) for _ in range(400)]
    text = made(steps, prompt="x" * 1_000_000)
    assert len(text) < answer.DRAWN + 1_500_000
    read = Reader(text)
    left = next(int(found[1]) for said in read.texts if (found := re.match(r"(\d+) more steps are left out", said)))
    assert read.tags.count("details") + left == 400
    assert f"{400 * 61 - answer.RIBBON} more tokens are left out." in read.texts
    assert "996000 more characters are left out." in read.texts


def test_an_answer_without_steps_is_a_page_too():
    read = Reader(made([]))
    assert "0" in read.texts
    assert read.tags.count("svg") == 0


def test_plain_decoding_is_a_page_too():
    said = " ".join(Reader(made([record(EMPTY, (), (9,), reason="nobody drafts")], drafters=())).texts)
    assert "Nobody guessed; every token is the target's own." in said
