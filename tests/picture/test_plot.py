"""Line plots: well-formed, self-contained, and every point where its values say."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from augury.picture.plot import lines

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*args, **options):
    return ElementTree.fromstring(lines(*args, **options))


def markers(svg, name):
    """The centres of a series' discs."""
    found = []
    for group in svg.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None and title.text.startswith(f"{name}: "):
            disc = group.find(f"{SVG}circle")
            found.append((float(disc.get("cx")), float(disc.get("cy"))))
    return found


def labels(svg):
    return [text.text for text in svg.iter(f"{SVG}text")]


def test_texts_are_escaped_and_there_is_nothing_but_svg():
    text = lines('a <b> & "c"', "x<", "y>", {"<script>alert(1)</script>": [(1.0, 2.0)], "bell\a": [(2.0, 2.0)]})
    svg = ElementTree.fromstring(text)
    assert {'a <b> & "c"', "x<", "y>", "<script>alert(1)</script>", "bell\ufffd"} <= {*labels(svg)}
    assert svg.get("aria-label") == 'a <b> & "c"'
    assert "<script" not in text
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


def test_points_stand_where_their_values_say():
    (left, bottom), (middle, up), (right, top) = markers(
        drawn("t", "x", "y", {"a": [(0.0, 0.0), (5.0, 1.0), (10.0, 2.0)]}), "a"
    )
    assert left < middle < right
    assert bottom > up > top
    assert middle == pytest.approx((left + right) / 2, abs=0.2)
    assert up == pytest.approx((bottom + top) / 2, abs=0.2)


def test_a_logarithmic_axis_gives_equal_ratios_equal_room():
    svg = drawn("t", "x", "y", {"a": [(1.0, 1.0), (4.0, 1.0), (16.0, 1.0)]}, log_x=True)
    (first, _), (second, _), (third, _) = markers(svg, "a")
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert {"1", "2", "4", "8", "16"} <= {*labels(svg)}


def test_wide_logarithmic_axes_are_marked_by_powers_of_ten():
    shown = labels(drawn("t", "x", "y", {"a": [(1.0, 1.0), (1e6, 1.0)]}, log_x=True))
    assert {"1", "100", "1e+06"} <= {*shown}
    assert "2" not in shown


def test_the_y_axis_begins_at_zero_and_covers_every_value():
    shown = labels(drawn("t", "x", "y", {"a": [(0.0, 7.0), (1.0, 9.3)]}))
    assert {"0", "10"} <= {*shown}
    assert "-2" in labels(drawn("t", "x", "y", {"a": [(0.0, -1.5), (1.0, 3.0)]}))


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(3.0, 0.0)]}, {"a": [(3.0, -2.0), (3.0, -2.0)]}])
@pytest.mark.parametrize("log_x", [False, True])
def test_few_points_make_a_plot_too(series, log_x):
    svg = drawn("t", "x", "y", series, log_x=log_x)
    assert len(markers(svg, "a")) == sum(map(len, series.values()))
    assert all(name in labels(svg) for name in series)
    numbers = re.findall(r"-?\d+\.\d", " ".join(e.get("d", "") + e.get("cx", "") for e in svg.iter()))
    assert all(0.0 <= float(one) <= 640.0 for one in numbers)


def test_lines_differ_in_more_than_colour():
    svg = drawn("t", "x", "y", {str(i): [(0.0, i), (1.0, i)] for i in range(5)})
    dashes = [line.get("stroke-dasharray") for line in svg.iter(f"{SVG}polyline")]
    assert len(dashes) == 10  # each in the plot and in the legend
    assert len(set(dashes)) == 5


def test_a_long_legend_takes_more_rows():
    few, many = ({f"a rather long name {i}": [(0.0, 1.0)] for i in range(n)} for n in (1, 6))
    assert int(drawn("t", "x", "y", few).get("height")) < int(drawn("t", "x", "y", many).get("height"))


@pytest.mark.parametrize(
    ("point", "log_x"), [((0.0, math.nan), False), ((math.inf, 0.0), False), ((0.0, 1.0), True), ((-1.0, 1.0), True)]
)
def test_what_no_axis_holds_is_refused(point, log_x):
    with pytest.raises(ValueError, match="must be"):
        lines("t", "x", "y", {"a": [(1.0, 1.0), point]}, log_x=log_x)
