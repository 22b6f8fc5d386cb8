"""Plots of numbers: round ticks, labels that cover nothing, every point inside."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.drawing.plot import (
    COLOURS,
    PlotAxis,
    PlotSeries,
    _layout,
    bars_svg,
    plot_svg,
    point_labels,
    ticks,
)
from orchestrator.errors import ConfigError
from tests.drawing.test_svg import _SVG, groups, root_of
from tests.tiers import examples

X, Y = PlotAxis(name="Harm", unit="%"), PlotAxis(name="Benefit", unit="%")
SWEEP = PlotSeries(
    name="max_iterations", line=True, points=[(2, 20), (4, 35), (9, 55)], labels=["5", "10", "20"]
)
finite = st.floats(-1e9, 1e9)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 70, [0, 20, 40, 60, 80]),
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (3, 3, [1, 2, 3, 4, 5]),
        (0, 0, [-0.5, -0.25, 0, 0.25, 0.5]),
    ],
)
def test_ticks_are_round_numbers_around_the_values(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == expected


@given(finite, finite, st.integers(3, 12))
@settings(max_examples=examples(100), deadline=None)
def test_ticks_of_any_values_are_few_and_enclose_them(one: float, other: float, most: int) -> None:
    low, high = sorted((one, other))
    found = ticks(low, high, most)
    slack = 1e-6 * max(abs(low), abs(high), 1e-9)
    assert 2 <= len(found) <= most
    assert found[0] <= low + slack
    assert high - slack <= found[-1]
    assert found == sorted(set(found))


@given(st.lists(st.tuples(finite, finite), max_size=20))
@settings(max_examples=examples(50), deadline=None)
def test_points_are_inside_and_no_label_covers_a_point_or_a_label(points: list[tuple[float, float]]) -> None:
    series = PlotSeries(points=points, labels=[f"point {at}" for at in range(len(points))])
    found = _layout(points, X, Y, (720.0, 400.0))
    for pair in points:
        x, y = found.at(*pair)
        assert found.area.x - 1e-3 <= x <= found.area.right + 1e-3
        assert found.area.y - 1e-3 <= y <= found.area.bottom + 1e-3
    labels = [label.area for label in point_labels(found, [series], [list(enumerate(points))])]
    assert not any(one.meets(other) for one, other in itertools.combinations(labels, 2))


def test_a_series_has_a_colour_a_shape_a_line_and_tooltips() -> None:
    text = plot_svg("Benefit against harm", [SWEEP, PlotSeries(name="recorded", points=[(3, 61)])], x=X, y=Y)
    series = [(classes - {"series"}, one.findtext(f"{_SVG}title")) for classes, one in groups(text)]
    assert ({"model"}, "5: 2, 20") in series
    assert ({"tool"}, "recorded: 3, 61") in series
    assert sum(one.get("class") == "line" for one in root_of(text).iter(f"{_SVG}path")) == 1
    words = root_of(text).findtext(f"{_SVG}desc")
    assert words == "Benefit against harm: 4 points. Harm from 2 % to 9 %, Benefit from 20 % to 61 %."


def test_points_at_one_place_share_a_label_and_a_point_in_a_corner_has_one() -> None:
    corner = PlotSeries(points=[(0, 0), (0, 2), (0, 0)], labels=["1", "2", "3"])
    shown = [one.text for one in root_of(plot_svg("p", [corner], x=X, y=Y)).iter(f"{_SVG}text")]
    assert {"1, 3", "2"} <= {*shown}


def test_counts_have_whole_ticks_from_zero_also_if_each_is_zero() -> None:
    counts = PlotAxis(name="runs", step=1)
    assert _layout([(0, 1), (0, 0)], counts, counts, (720.0, 400.0)).x_ticks == [0, 1]
    assert _layout([(0, 3), (0, 0)], counts, counts, (720.0, 400.0)).y_ticks == [0, 1, 2, 3]


def test_the_title_is_whole_and_a_long_legend_is_below_it() -> None:
    title = "Backtest of 1,011 runs: max_no_progress=1..5"
    short, long = "stops earlier", "also behind another message, if the model answers as recorded"
    [beside, below] = [
        root_of(plot_svg(title, [replace(SWEEP, name=name) for name in names], x=X, y=Y))
        for names in ([short], [short, long])
    ]
    for root, names in ((beside, {short: "20"}), (below, {short: "38", long: "38"})):
        rows = {one.text: one.get("y") for one in root.iter(f"{_SVG}text")}
        assert rows[title] == "20"
        assert {name: rows[name] for name in names} == names


def test_numbers_that_are_not_finite_are_left_out_and_no_point_is_a_picture_too() -> None:
    odd = PlotSeries(points=[(1, math.nan), (math.inf, 2), (1, 2)])
    assert "1 points" in str(root_of(plot_svg("odd", [odd], x=X, y=Y)).findtext(f"{_SVG}desc"))
    assert ">no data</text>" in plot_svg("empty", [], x=X, y=Y)


def test_more_series_than_colours_are_refused() -> None:
    with pytest.raises(ConfigError, match="a plot has 7 series; at most 6"):
        plot_svg("many", [SWEEP] * (len(COLOURS) + 1), x=X, y=Y)


def test_bars_have_the_length_of_their_numbers_and_their_text_beside_them() -> None:
    text = bars_svg(
        "<Time>", [("Implementing", 30.0, "30 s"), ("Judging", 15.0, "15 s"), ("Planning", 0.0, "0 s")]
    )
    wide = [
        float(str(one.get("width")))
        for one in root_of(text).iter(f"{_SVG}rect")
        if one.get("class") == "mark"
    ]
    assert wide[0] == pytest.approx(2 * wide[1], abs=0.2)
    assert wide[2] == 1
    assert root_of(text).findtext(f"{_SVG}desc") == "Implementing: 30 s; Judging: 15 s; Planning: 0 s"
    assert "<Time>" not in text


def test_a_strict_content_security_policy_allows_a_plot() -> None:
    for one in root_of(plot_svg("p", [SWEEP] * 6, x=X, y=Y, styled=False)).iter():
        assert one.tag.removeprefix(_SVG) in {"svg", "title", "desc", "rect", "g", "path", "circle", "text"}
        assert not [name for name in one.attrib if name == "style" or name.startswith("on") or "href" in name]
