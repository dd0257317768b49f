"""The ribbon's pieces are the answer; blocks of the timeline are as wide as the steps took."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from steps import CUT, FORKED, HIT, MISS, NAMES, PLAIN, event

from augury.picture.ribbon import Piece, html, pieces, ribbon
from augury.picture.timeline import Run, timeline
from augury.tree import DraftTree

SVG = "{http://www.w3.org/2000/svg}"


class Text(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.said = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.said += data


def test_pieces_are_by_step_and_drafter_and_join_to_the_answer():
    assert list(pieces([MISS, HIT, CUT, PLAIN])) == [
        Piece(" quick", 0, 0), Piece(" end", -1, 0),
        Piece(" quick", 0, 1), Piece(" brown", 1, 1), Piece(" end", -1, 1),
        Piece(" quick", 0, 2),
        Piece(" end", -1, 3),
    ]  # fmt: skip


def test_a_character_of_several_tokens_is_whose_last_token_it_is():
    words = {9: b"\x8a", 20: b"\xe4\xbb", 1: b"x"}
    first = event(DraftTree.chain([20], [0.5]), (0,), (20, 9), words=words)
    assert list(pieces([first])) == [Piece("今", -1, 0)]


def test_a_ribbon_ends_behind_so_many_tokens():
    assert [piece.step for piece in pieces([MISS, HIT, PLAIN], 3)] == [0, 0, 1, 1, 1]
    assert list(pieces([MISS], 0)) == []


def test_ids_stand_for_tokens_without_text():
    assert "".join(p.text for p in pieces([event(FORKED, (0,), (2, 9), text=False)])) == "#2 #9 "


def test_html_is_the_answer_and_inert():
    step = event(DraftTree.chain([30, 31, 32], [0.5, 0.4, 0.3]), (0, 1, 2), (30, 31, 32, 9))
    read = Text(html(pieces([step, PLAIN]), NAMES))
    assert {*read.tags} == {"p", "span", "b", "i"}
    assert read.said == '<script>alert(1)</script>"><img src=x onerror=a>&\ufffd\ufffd[31m end end'
    assert read.tags.count("i") == 1  # a seam between two steps


def test_html_keeps_line_ends():
    step = event(DraftTree.chain([7], [0.5]), (0,), (7, 9))
    assert Text(html(pieces([step]), NAMES)).said == "\n end"


@pytest.mark.parametrize("count", [1, 12, 40])
def test_the_svg_has_every_letter_and_none_beyond_its_edge(count):
    found = [piece._replace(step=i) for i in range(count) for piece in pieces([HIT])]
    svg = ElementTree.fromstring(ribbon("Who", found, NAMES))
    said = [text for text in svg.iter(f"{SVG}text") if text.get("class") == "said"]
    assert "".join(text.text for text in said[:-2]) == " quick brown end" * count
    assert [text.text for text in said[-2:]] == list(NAMES)
    assert svg.find(f"{SVG}desc").text == " quick brown end" * count
    width, height = float(svg.get("width")), float(svg.get("height"))
    for text in said:
        assert float(text.get("x")) + float(text.get("textLength")) <= width
        assert float(text.get("y")) < height


def test_lines_break_behind_spaces_and_at_line_ends():
    svg = ElementTree.fromstring(ribbon("Who", [Piece("word " * 30 + "\n" + "x" * 100, -1, 0)], ()))
    lines = [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == "said"]
    assert lines == ["word " * 16, "word " * 14, "x" * 84, "x" * 16]


def blocks(svg):
    return [
        (group.find(f"{SVG}title").text, [float(r.get(k)) for r in group.iter(f"{SVG}rect") for k in ("x", "width")])
        for group in svg.iter(f"{SVG}g")
        if (group.find(f"{SVG}title") is not None and group.find(f"{SVG}rect") is not None)
    ]


def test_blocks_are_as_wide_as_the_steps_and_stand_where_they_began():
    svg = ElementTree.fromstring(timeline("Race", [Run("plain", [PLAIN]), Run("drafted", [MISS, HIT])]))
    (_, plain), (said, miss), (_, hit) = blocks(svg)
    assert said == "step 1: 1 of 5 guesses accepted, 2 tokens; drafting 1.00 ms of 10.00, 6 rows"
    assert plain[1] == pytest.approx(miss[1], abs=0.1)  # ten milliseconds each
    assert plain[0] == pytest.approx(miss[0], abs=0.1)  # both runs begin at 0
    assert hit[0] - miss[0] == pytest.approx(2 * miss[1], abs=0.2)  # 20 ms later
    assert miss[3] == pytest.approx(miss[1] / 10, abs=0.1)  # of them drafting
    assert (
        svg.find(f"{SVG}desc").text == "plain: 1 tokens in 1 forwards, 10 ms. drafted: 5 tokens in 2 forwards, 30 ms."
    )


def test_a_timeline_ends_where_it_is_told_to():
    steps = [event(FORKED, (0,), (2, 9), n=i, began=0.01 * i) for i in range(1000)]
    svg = timeline("Race", [Run("drafted", steps)], tokens=31)
    assert len(blocks(ElementTree.fromstring(svg))) == 16
    assert "32 tokens in 16 forwards, 160 ms" in svg


def test_names_are_texts():
    svg = timeline("<script>", [Run('"><script>alert(1)</script>', [PLAIN])])
    assert not re.search("<script", svg)
    assert ElementTree.fromstring(svg).get("aria-label") == "<script>"
