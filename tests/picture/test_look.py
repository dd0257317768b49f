"""One palette: readable on both grounds, in one place, and enough for pictures without a style of their own."""

from __future__ import annotations

import re

import pytest
from steps import HIT, MISS, NAMES

from augury.picture import bars, plot, ribbon, strip, timeline, tree
from augury.picture.ink import COLOURS, DASHES, DRAFTERS, SERIES, cells, short
from augury.picture.look import page, stylesheet

DRAWN = {
    "lines": lambda **o: plot.lines("t", "x", "y", {"a": [(1.0, 2.0)], "b": [(1.0, 3.0)]}, **o),
    "bars": lambda **o: bars.bars("t", "x", [bars.Bar("a", 1.0, (0.5, 2.0))], line=1.0, **o),
    "stacked": lambda **o: bars.stacked("t", "x", ("a", "b"), {"r": (0.5, 0.5)}, **o),
    "strip": lambda **o: strip.strip("t", "x", {"a": [("b", 0.5)]}, line=1.0, **o),
    "tree": lambda **o: tree.tree(MISS, NAMES, **o),
    "timeline": lambda **o: timeline.timeline("t", [timeline.Run("plain", [MISS, HIT])], **o),
    "ribbon": lambda **o: ribbon.ribbon("t", list(ribbon.pieces([MISS, HIT])), NAMES, **o),
}


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", [name for name in COLOURS if name not in ("ground", "faint")])
@pytest.mark.parametrize("place", [0, 1])
def test_every_colour_can_be_read_as_text_on_its_ground(name, place):
    assert contrast(COLOURS[name][place], COLOURS["ground"][place]) >= 4.5


def test_drafters_are_no_colour_of_a_verdict():
    marked = {COLOURS[name] for name in ("own", "accepted", "rejected")}
    assert not marked & {COLOURS[f"d{i}"] for i in range(DRAFTERS)}


def test_no_two_of_thirty_drafters_look_alike():
    assert DRAFTERS == SERIES == 6
    assert len({(i % DRAFTERS, DASHES[i % len(DASHES)]) for i in range(30)}) == 30


def test_the_stylesheet_has_every_colour_once_for_each_theme_and_names_none_elsewhere():
    text = stylesheet()
    for name, (light, dark) in COLOURS.items():
        assert text.count(f"--{name}:{light};") == 2
        assert text.count(f"--{name}:{dark};") == 2
    rules = text.split(":root[data-theme=dark]")[1].split("\n", 1)[1]
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b", rules)
    assert {*re.findall(r"var\(--(\w+)\)", rules)} <= {*COLOURS}
    assert "url(" not in text
    assert "@import" not in text
    assert "<" not in text


@pytest.mark.parametrize("drawn", DRAWN.values(), ids=DRAWN)
def test_a_bare_picture_has_no_style_and_finds_all_its_classes_in_the_stylesheet(drawn):
    bare, alone = drawn(bare=True), drawn()
    assert "style" not in bare
    assert alone.count("<style>") == 1
    assert " style=" not in alone
    assert re.sub(r"<style>.*?</style>", "", alone) == bare
    known = {*re.findall(r"\.([a-z][a-z0-9]*)", stylesheet())}
    used = {name for names in re.findall(r'class="([^"]*)"', bare) for name in names.split()}
    assert used <= known | {"far"}


@pytest.mark.parametrize("drawn", DRAWN.values(), ids=DRAWN)
def test_a_picture_alone_has_its_own_ground_and_needs_no_variables(drawn):
    (style,) = re.findall(r"<style>(.*?)</style>", drawn())
    assert "var(" not in style
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    assert f"svg.picture:root{{background:{COLOURS['ground'][0]};color:{COLOURS['ink'][0]}}}" in light
    assert f"svg.picture:root{{background:{COLOURS['ground'][1]};color:{COLOURS['ink'][1]}}}" in dark
    for name in ("c0", "d1", "rejected"):
        assert f".picture .{name}{{color:{COLOURS[name][0]}}}" in light
        assert f".picture .{name}{{color:{COLOURS[name][1]}}}" in dark


def test_a_page_escapes_what_it_is_given_and_may_run_nothing():
    text = page(
        '{% extends "page.html" %}{% block title %}{{ a }}{% endblock %}{% block body %}{{ a }}{% endblock %}', a="<b>"
    )
    assert text.count("&lt;b&gt;") == 2
    assert "default-src 'none'" in text
    assert "script-src" not in text


@pytest.mark.parametrize(
    ("words", "room", "shown"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("天天天", 5, "天天…"), ("e\u0301e", 2, "e\u0301e")],
)
def test_texts_are_cut_by_columns(words, room, shown):
    assert short(words, room) == shown
    assert cells(shown) <= room
