"""Plots are XML, say every figure, and hold texts as texts."""

from xml.etree import ElementTree

import pytest

from augury.picture.bars import Bar, bars, stacked
from augury.picture.ink import ticks
from augury.picture.rows import along
from augury.picture.strip import strip

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '<script>alert("1")</script> & \x00\ud800'


def parsed(svg: str) -> ElementTree.Element:
    found = ElementTree.fromstring(svg)
    assert found.tag == f"{SVG}svg"
    assert not list(found.iter(f"{SVG}script"))
    return found


def titles(found: ElementTree.Element) -> list[str]:
    return [title.text for title in found.iter(f"{SVG}title")]


def widths(found: ElementTree.Element) -> list[float]:
    return [float(group.find(f"{SVG}rect").get("width")) for group in found.iter(f"{SVG}g")]


def test_bars_are_as_long_as_their_values():
    found = parsed(bars("Speed-up", "times", [Bar("qa", 2.0, (1.5, 2.25)), Bar("rag", 0.5)], line=1.0))
    assert found.get("aria-label") == "Speed-up"
    assert "qa: 2.00, 95 % between 1.50 and 2.25" in titles(found)
    assert "rag: 0.50" in titles(found)
    two, half = widths(found)
    assert two == pytest.approx(4 * half, rel=0.01)
    (mark,) = [path for path in found.iter(f"{SVG}path") if path.get("class") == "mark"]
    assert mark.get("d").startswith(f"M{along(1.0, ticks(0.0, 2.25)):.1f} ")
    (reach,) = [path for path in found.iter(f"{SVG}path") if path.get("class") == "reach"]
    assert reach.get("d").startswith(f"M{along(1.5, ticks(0.0, 2.25)):.1f} ")


def test_bars_without_an_interval_and_a_line_have_none():
    found = parsed(bars("Tokens", "tokens", [Bar("suffix", 0.0), Bar("the target itself", 12.0)], form=".0f"))
    assert not [path for path in found.iter(f"{SVG}path") if path.get("class") in ("mark", "reach")]
    assert "suffix: 0" in titles(found)
    assert widths(found)[0] == 0.0


def test_parts_lie_behind_each_other_and_fill_the_bar():
    found = parsed(stacked("Time", "share", ("draft", "verify", "rest"), {"qa": (0.25, 0.7, 0.05)}))
    assert "qa: verify 70.0%" in titles(found)
    boxes = [group.find(f"{SVG}rect") for group in found.iter(f"{SVG}g")]
    ends = [(float(box.get("x")), float(box.get("x")) + float(box.get("width"))) for box in boxes]
    assert ends[0][1] == pytest.approx(ends[1][0], abs=0.2)
    assert ends[2][1] == pytest.approx(along(1.0, [0.0, 1.0]), abs=0.2)
    assert {"draft", "verify", "rest"} <= {text.text for text in found.iter(f"{SVG}text")}


def test_dots_below_the_line_are_rings():
    found = parsed(strip("Ratios", "times", {"qa": [("qa-1", 1.5), ("qa-2", 0.98)], "rag": [("rag-1", 1.0)]}, line=1.0))
    looks = {g.find(f"{SVG}title").text: g.find(f"{SVG}circle").get("class") for g in found.iter(f"{SVG}g")}
    assert looks == {"qa-1: 1.500": "fill", "qa-2: 0.980": "open", "rag-1: 1.000": "fill"}


@pytest.mark.parametrize(
    "svg",
    [
        bars(NASTY, NASTY, [Bar(NASTY, 1.0)]),
        stacked(NASTY, NASTY, (NASTY,), {NASTY: (1.0,)}),
        strip(NASTY, NASTY, {NASTY: [(NASTY, 1.0)]}, line=1.0),
    ],
)
def test_texts_are_texts(svg):
    assert any('<script>alert("1")</script> & \ufffd\ufffd' in title for title in titles(parsed(svg)))


def test_a_long_name_is_cut_beside_its_row_and_whole_when_pointed_at():
    found = parsed(bars("x", "y", [Bar("中" * 30, 1.0), Bar("a" * 30, 1.0)]))
    said = [text.text for text in found.iter(f"{SVG}text") if text.find(f"{SVG}title") is not None]
    assert said == ["中" * 9 + "…", "a" * 19 + "…"]
    assert {"中" * 30, "a" * 30} <= set(titles(found))


@pytest.mark.parametrize(
    ("high", "last"), [(0.3, 0.3), (1.0, 1.0), (1.01, 1.2), (2.25, 2.5), (7.0, 8.0), (1234.0, 1500.0)]
)
def test_ticks_are_round_and_reach_the_highest(high, last):
    found = ticks(0.0, high)
    assert found[0] == 0.0
    assert found[-1] == pytest.approx(last)
    assert 4 <= len(found) <= 8


def test_what_is_no_figure_is_no_plot():
    with pytest.raises(ValueError, match="finite"):
        bars("x", "y", [Bar("a", float("nan"))])
