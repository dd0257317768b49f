"""The picture of a step: every node with its figures, verdicts told by more than colour, the kept path bold."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from steps import CUT, EMPTY, FORKED, HIT, MISS, NAMES, PLAIN, WORDS, event

from augury.picture.tree import tree
from augury.tree import MAX_NODES, DraftTree

SVG = "{http://www.w3.org/2000/svg}"


def drawn(step, drafters=NAMES):
    return ElementTree.fromstring(tree(step, drafters, bare=True))


def boxes(svg):
    """What each box says, and the box's group."""
    return {g.find(f"{SVG}title").text: g for g in svg.iter(f"{SVG}g") if g.find(f"{SVG}title") is not None}


def place(group):
    box = group.find(f"{SVG}rect")
    return float(box.get("x")), float(box.get("y"))


def texts(group):
    return [text.text for text in group.iter(f"{SVG}text")]


def test_every_node_says_who_guessed_it_how_sure_and_what_became_of_it():
    found = boxes(drawn(MISS))
    assert {*found} == {
        "the last committed token",
        'accepted: " quick" by suffix, survival 0.90, p 0.750',
        'not reached: " lazy" by suffix, survival 0.50, p 0.125',
        'rejected: " brown" by self, survival 0.80, p 0.500, q 0.250',
        'rejected: " fox" by self, survival 0.40, p 0.062',
        'not reached: " dog" by suffix, survival 0.20, p 0.000',
        'correction " end", the target\'s own',
    }
    assert texts(found['rejected: " brown" by self, survival 0.80, p 0.500, q 0.250']) == [
        '" brown"', "S 0.80", "p 0.500  q 0.250",
    ]  # fmt: skip


def test_verdicts_differ_in_more_than_colour():
    found = boxes(drawn(MISS))
    marks = {}
    for said, group in found.items():
        strokes = [path.get("d") for path in group.iter(f"{SVG}path") if path.get("class") == "sign"]
        marks[said.partition(":")[0]] = strokes[0] if strokes else None
    assert len({*marks.values()}) == len({"accepted", "rejected", "not reached", None})
    through = {
        said for said, g in found.items() if any(p.get("class") == "through rejected" for p in g.iter(f"{SVG}path"))
    }
    assert through == {said for said in found if said.startswith("rejected")}
    kept = {said for said, g in found.items() if "kept" in g.get("class").split()}
    assert kept == {'accepted: " quick" by suffix, survival 0.90, p 0.750', 'correction " end", the target\'s own'}


def test_drafters_differ_in_colour_and_in_pattern():
    found = boxes(drawn(MISS))
    looks = {}
    for said, group in found.items():
        for name in NAMES:
            if f"by {name}" in said:
                looks.setdefault(name, set()).add(
                    (group.get("class").split()[0], group.find(f"{SVG}rect").get("stroke-dasharray"))
                )
    assert all(len(of_one) == 1 for of_one in looks.values())
    (suffix,), (self,) = looks["suffix"], looks["self"]
    assert suffix[0] != self[0]
    assert suffix[1] != self[1]


def test_it_reads_from_left_to_right_and_siblings_stand_in_the_order_they_are_tried_in():
    found = {said.split('"')[1].strip(): place(group) for said, group in boxes(drawn(HIT)).items() if '"' in said}
    root = place(boxes(drawn(HIT))["the last committed token"])
    assert root[0] < found["quick"][0] == found["lazy"][0] < found["brown"][0] == found["fox"][0] < found["end"][0]
    assert root[1] == found["quick"][1] == found["brown"][1] == found["end"][1]
    assert found["brown"][1] < found["fox"][1] < found["lazy"][1] == found["dog"][1]


def test_the_kept_path_is_bold_and_ends_at_the_own_token():
    svg = drawn(HIT)
    bold = [path.get("class") for path in svg.iter(f"{SVG}path") if "bold" in path.get("class", "")]
    assert bold == ["edge bold accepted", "edge bold accepted", "edge bold own"]
    assert 'bonus token " end", the target\'s own' in boxes(svg)


def test_a_cut_answer_shows_no_own_token():
    found = boxes(drawn(CUT))
    assert not any("the target's own" in said for said in found)
    assert any(said.startswith('cut off: " brown"') for said in found)


def test_plain_decoding_is_a_root_and_a_token():
    svg = drawn(PLAIN)
    assert list(boxes(svg)) == ["the last committed token", 'own token " end", the target\'s own']
    assert svg.get("aria-label") == "Step 4: nothing was drafted"


def test_a_screen_reader_is_told_everything():
    svg = drawn(MISS)
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == "Step 1: 1 of 5 guesses accepted"
    told = svg.find(f"{SVG}desc").text
    assert told.startswith('Root " the" at position 5. accepted: " quick" by suffix, survival 0.90, p 0.750. ')
    assert all(f"{said}." in told for said in boxes(svg) if said != "the last committed token")


def test_without_texts_tokens_are_their_ids():
    found = boxes(drawn(event(FORKED, (0,), (2, 9), text=False)))
    assert "accepted: #2 by suffix, survival 0.90" in found


@pytest.mark.parametrize("token", [30, 31, 32, 33])
def test_texts_are_texts(token):
    chain = DraftTree.chain([token, token], [0.5, 0.25])
    step = event(chain, (0,), (token, 9), root=token)
    text = tree(step, ('<img src="x">', "self"))
    svg = ElementTree.fromstring(text)
    assert {one.tag for one in svg.iter()} <= {
        f"{SVG}{name}" for name in ("svg", "g", "rect", "path", "text", "title", "desc", "style", "circle")
    }
    assert not any(name.startswith("on") or name in ("href", "src") for one in svg.iter() for name in one.attrib)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


def test_parts_of_characters_are_shown_as_bytes():
    chain = DraftTree.chain([20, 21], [0.5, 0.25])
    found = boxes(drawn(event(chain, (0, 1), (20, 21, 9))))
    assert 'accepted: "‹E4 BB›" by suffix, survival 0.50' in found


@pytest.mark.parametrize("seed", range(20))
def test_boxes_of_any_tree_lie_apart_and_inside(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, MAX_NODES + 1))
    parents = [int(rng.integers(-1, node)) if node else -1 for node in range(n)]
    survival = []
    for parent in parents:
        survival.append((1.0 if parent < 0 else survival[parent]) * float(rng.random()))
    tokens = rng.choice([*WORDS], n).tolist()
    whole = DraftTree(
        np.asarray(tokens, np.int32), np.asarray(parents, np.int32), np.asarray(survival, np.float32),
        rng.integers(0, 2, n).astype(np.uint8),
    )  # fmt: skip
    node = int(rng.integers(-1, n))
    path = tuple(whole.path(node))
    svg = drawn(event(whole, path, (*(tokens[i] for i in path), 9)))
    width, height = float(svg.get("width")), float(svg.get("height"))
    rects = [group.find(f"{SVG}rect") for group in boxes(svg).values()]
    spans = []
    for group in svg.iter(f"{SVG}g"):
        if group.find(f"{SVG}title") is not None:
            box = group.find(f"{SVG}rect")
            x, y, w, h = (float(box.get(name)) for name in ("x", "y", "width", "height"))
            assert x >= 0
            assert y >= 0
            assert x + w <= width
            assert y + h <= height
            spans.append((x, y, w, h))
    assert rects
    assert len(spans) == n + 2  # and the root, and the target's own
    for i, (x, y, w, h) in enumerate(spans):
        for other_x, other_y, other_w, other_h in spans[:i]:
            assert x + w <= other_x or other_x + other_w <= x or y + h <= other_y or other_y + other_h <= y


def test_an_empty_tree_of_ids_is_drawn():
    assert drawn(event(EMPTY, (), (9,), text=False)) is not None
