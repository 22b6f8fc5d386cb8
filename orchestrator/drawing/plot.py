"""Plots of numbers as SVG: points and lines over two axes, and bars.

A plotting library was rejected: the smallest one with SVG takes 60 MB with its dependencies, and its output has style
attributes, which a strict content security policy refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.drawing.element import Rectangle, drawing, escaped, number, point, shortened, width
from orchestrator.errors import ConfigError

COLOURS = ("model", "tool", "people", "failed", "completed", "work")
"""Classes of the series, in their order; each has a shape of its own too."""
_TEXT, _NAME, _HEIGHT = 10.5, 12.5, 13.0
_MARGIN = 14.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 20.0, 20.0, 34.0, 46.0
_RADIUS = 4.0
_TITLE = 72
"""Characters of a title, or of a name in a legend."""
_KEY = 18.0
"""Height of a row of the legend, and width of a mark in it."""
_ROW, _BAR = 28.0, 12.0
_LEAST = 1e-9
"""Two numbers that differ by less are equal on an axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotAxis:
    """An axis: its name, and the unit that is written behind each number.

    Args:
        name: What is measured.
        unit: Written behind each number, such as `%`.
        low: The axis has at least this number; None: the least of the points.
        high: The axis has at least this number; None: the greatest of the points.
        step: Two numbers on the axis differ by at least this much: 1 for counts, 0 for any distance.
    """

    name: str
    unit: str = ""
    low: float | None = 0.0
    high: float | None = None
    step: float = 0.0

    def text(self, value: float) -> str:
        """Return a number on this axis."""
        return f"{_short(value)} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSeries:
    """Points of one kind.

    Args:
        name: Its name in the legend; empty for none.
        points: x and y; a pair with a number that is not finite is left out.
        labels: The text of each point, drawn where there is room; all of them are tooltips.
        line: Whether a line connects the points in their order.
    """

    points: Sequence[tuple[float, float]]
    name: str = ""
    labels: Sequence[str] = ()
    line: bool = False


@dataclass(frozen=True, slots=True)
class PlotLabel:
    """A text with its place."""

    text: str
    area: Rectangle


@dataclass(slots=True)
class PlotLayout:
    """The area of a plot and its scales."""

    area: Rectangle
    x_ticks: list[float]
    y_ticks: list[float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of two numbers."""
        return (
            self.area.x + _share(x, self.x_ticks) * self.area.width,
            self.area.bottom - _share(y, self.y_ticks) * self.area.height,
        )


def plot_svg(
    title: str,
    series: Sequence[PlotSeries],
    *,
    x: PlotAxis,
    y: PlotAxis,
    size: tuple[float, float] = (720.0, 400.0),
    styled: bool = True,
) -> str:
    """Return points and lines over two axes as SVG.

    Args:
        title: Written above.
        series: At most six.
        x: The horizontal axis.
        y: The vertical axis.
        size: Width and height in pixels.
        styled: Whether the stylesheet is included. A page includes `stylesheet()` once instead.

    Raises:
        ConfigError: There are more than six series.

    Example:
        >>> sweep = PlotSeries(points=[(10, 4.0), (20, 9.5)], name="policy", line=True)
        >>> "policy" in plot_svg("Sweep", [sweep], x=PlotAxis(name="limit"), y=PlotAxis(name="runs", unit="%"))
        True
    """
    if len(series) > len(COLOURS):
        raise ConfigError(f"a plot has {len(series)} series; at most {len(COLOURS)} can be told apart")
    kept = [
        [(at, pair) for at, pair in enumerate(one.points) if all(map(math.isfinite, pair))] for one in series
    ]
    pairs = [pair for found in kept for _, pair in found]
    legend, rows = _legend(title, series, size[0])
    found = _layout(pairs, x, y, size, rows)
    labels = list(point_labels(found, series, kept))
    drawn = list(enumerate(series))
    parts = [
        _title(title),
        *legend,
        *_grid(found, x, y),
        *(part for at, one in reversed(drawn) for part in _series(found, one, kept[at], COLOURS[at])),
        *(_text(label.text, label.area.x, label.area.y + 10, "note") for label in labels),
        ""
        if pairs
        else _text("no data", found.area.middle - 18, found.area.y + found.area.height / 2, "axis"),
    ]
    ranges = f"{x.name} from {_range(pairs, 0, x)}, {y.name} from {_range(pairs, 1, y)}"
    description = f"{title}: {len(pairs)} points. {ranges}." if pairs else f"{title}: no data."
    return drawing("fsm-plot", size, title, parts, description=description, styled=styled)


def bars_svg(
    title: str,
    rows: Sequence[tuple[str, float, str]],
    *,
    width_px: float = 640.0,
    styled: bool = True,
) -> str:
    """Return named numbers as horizontal bars.

    Args:
        title: Written above.
        rows: Name, number (not negative) and the text beside the bar, from top to bottom.
        width_px: Width in pixels.
        styled: Whether the stylesheet is included. A page includes `stylesheet()` once instead.
    """
    left = 14 + max((width(shortened(name), 11.5) for name, _, _ in rows), default=0.0) + 10
    room = width_px - left - 20 - max((width(text, _TEXT) for _, _, text in rows), default=0.0)
    most = max((value for _, value, _ in rows if math.isfinite(value)), default=0.0)
    parts = [_title(title)]
    for index, (name, value, text) in enumerate(rows):
        y = _TOP + index * _ROW + 6
        wide = max(room, 40.0) * max(value, 0.0) / most if most > 0 and math.isfinite(value) else 0.0
        parts.append(
            f'<text class="name" x="14" y="{number(y + 10)}">{escaped(shortened(name))}</text>'
            f'<g class="series model"><title>{escaped(f"{name}: {text}")}</title><rect class="mark" x="{number(left)}"'
            f' y="{number(y)}" width="{number(max(wide, 1.0))}" height="{_BAR}" rx="2"/></g>'
            + _text(text, left + wide + 8, y + 10, "axis")
        )
    height = _TOP + len(rows) * _ROW + 12
    words = "; ".join(f"{name}: {text}" for name, _, text in rows)
    return drawing("fsm-plot", (width_px, height), title, parts, description=words, styled=styled)


# ---- scales ----


def ticks(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Return at most so many round numbers, `least` or more apart, with equal distances, around `low` and `high`."""
    if high - low <= _LEAST * max(abs(low), abs(high), 1.0):
        around = max(abs(low), abs(high)) if max(abs(low), abs(high)) > _LEAST else 1.0
        low, high = low - around / 2, high + around / 2
    least = max(least, (high - low) / max(most - 1, 1))
    power = 10.0 ** math.floor(math.log10(least))
    for step in (power * one for one in (1, 2, 2.5, 5, 10, 20, 25)):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if step >= least * (1 - 1e-9) and last - first < most:
            break
    return [round(at * step, 12) for at in range(first, last + 1)]


def _layout(
    pairs: Sequence[tuple[float, float]], x: PlotAxis, y: PlotAxis, size: tuple[float, float], rows: int = 0
) -> PlotLayout:
    """Return scales for these points, below so many rows of a legend."""
    x_ticks = _axis_ticks([a for a, _ in pairs], x, int(size[0] // 90))
    y_ticks = _axis_ticks([b for _, b in pairs], y, int(size[1] // 50))
    left = _LEFT + max(width(y.text(value), _TEXT) for value in y_ticks) + 8
    top = _TOP + 22 + rows * _KEY
    area = Rectangle(left, top, size[0] - left - _RIGHT, size[1] - top - _BOTTOM)
    return PlotLayout(area, x_ticks, y_ticks)


def _axis_ticks(values: Sequence[float], axis: PlotAxis, most: int) -> list[float]:
    low = min([*values, *([] if axis.low is None else [axis.low])], default=0.0)
    high = max([*values, *([] if axis.high is None else [axis.high])], default=1.0)
    if low == high == axis.low:
        high = low + (axis.step or 1.0)
    return ticks(low, high, max(most, 3), axis.step)


def _share(value: float, found: Sequence[float]) -> float:
    return (value - found[0]) / (found[-1] - found[0])


def _range(pairs: Sequence[tuple[float, float]], index: int, axis: PlotAxis) -> str:
    values = [pair[index] for pair in pairs] or [0.0]
    return f"{axis.text(min(values))} to {axis.text(max(values))}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"  # noqa: PLR2004


# ---- elements ----


def _grid(found: PlotLayout, x: PlotAxis, y: PlotAxis) -> Iterator[str]:
    area = found.area
    for value in found.y_ticks:
        at = found.at(found.x_ticks[0], value)[1]
        yield f'<path class="grid" d="M{number(area.x)} {number(at)}H{number(area.right)}"/>'
        yield _text(y.text(value), area.x - 8, at + 3.5, "axis", end=True)
    for value in found.x_ticks:
        at = found.at(value, found.y_ticks[0])[0]
        yield f'<path class="rule" d="M{number(at)} {number(area.bottom)}v4"/>'
        text = x.text(value)
        yield _text(text, at - width(text, _TEXT) / 2, area.bottom + 17, "axis")
    yield f'<path class="base" d="M{number(area.x)} {number(area.bottom)}H{number(area.right)}"/>'
    yield _text(x.name, area.right, area.bottom + 34, "axis-name", end=True)
    yield _text(y.name, 14, area.y - 12, "axis-name")


def _series(
    found: PlotLayout, one: PlotSeries, kept: Sequence[tuple[int, tuple[float, float]]], colour: str
) -> Iterator[str]:
    spots = [found.at(*pair) for _, pair in kept]
    if one.line and len(spots) > 1:
        yield f'<g class="series {colour}"><path class="line" d="M{"L".join(map(point, spots))}"/></g>'
    for (index, (a, b)), spot in zip(kept, spots, strict=True):
        label = one.labels[index] if index < len(one.labels) else one.name
        text = f"{label}: {a:g}, {b:g}".removeprefix(": ")
        shape = _SHAPES[COLOURS.index(colour) % len(_SHAPES)]
        yield f'<g class="series {colour}"><title>{escaped(text)}</title>{shape(*spot)}</g>'


def point_labels(
    found: PlotLayout, series: Sequence[PlotSeries], kept: Sequence[Sequence[tuple[int, tuple[float, float]]]]
) -> Iterator[PlotLabel]:
    """Yield the labels of points that cover neither a point nor another label.

    Points of one series at the same place share a label.
    """
    taken = [_around(found.at(*pair)) for points in kept for _, pair in points]
    for one, points in zip(series, kept, strict=True):
        names: dict[tuple[float, float], list[str]] = {}
        for index, pair in points:
            names.setdefault(pair, []).extend(filter(None, one.labels[index : index + 1]))
        for pair, labels in names.items():
            text = shortened(", ".join(labels))
            for area in _places(found.at(*pair), width(text, _TEXT)) if text else ():
                if _inside(area, found.area) and not any(area.meets(other) for other in taken):
                    taken.append(area)
                    yield PlotLabel(text, area)
                    break


def _inside(label: Rectangle, area: Rectangle) -> bool:
    """Whether a label is inside of a plot, up to half its height."""
    across = area.x <= label.x and label.right <= area.right
    return across and label.y >= area.y - _HEIGHT / 2 and label.bottom <= area.bottom + _HEIGHT / 2


def _around(at: tuple[float, float]) -> Rectangle:
    return Rectangle(at[0] - _RADIUS - 1, at[1] - _RADIUS - 1, 2 * _RADIUS + 2, 2 * _RADIUS + 2)


def _places(at: tuple[float, float], wide: float) -> Iterator[Rectangle]:
    """Yield the places of a label around a point: right, left, above, below."""
    x, y = at
    yield Rectangle(x + 9, y - _HEIGHT / 2, wide, _HEIGHT)
    yield Rectangle(x - 9 - wide, y - _HEIGHT / 2, wide, _HEIGHT)
    yield Rectangle(x - wide / 2, y - 9 - _HEIGHT, wide, _HEIGHT)
    yield Rectangle(x - wide / 2, y + 9, wide, _HEIGHT)


def _title(title: str) -> str:
    return f'<text class="head" x="14" y="20">{escaped(shortened(title, _TITLE))}</text>'


def _legend(title: str, series: Sequence[PlotSeries], wide: float) -> tuple[list[str], int]:
    """Return the legend and the rows that it takes below the title: none if there is room beside it."""
    names = [(at, name) for at, one in enumerate(series) if (name := shortened(one.name, _TITLE))]
    lengths = [_KEY + width(name, _TEXT) + _KEY for _, name in names]
    beside = wide - _RIGHT + _KEY - sum(lengths)
    x, row = (beside, 0) if beside > _MARGIN + width(shortened(title, _TITLE), _NAME) + _KEY else (_MARGIN, 1)
    parts = []
    for (at, name), length in zip(names, lengths, strict=True):
        if x + length - _KEY > wide - _RIGHT and x > _MARGIN:
            x, row = _MARGIN, row + 1
        y = 20 + row * _KEY
        parts.append(f'<g class="series {COLOURS[at]}">{_SHAPES[at % len(_SHAPES)](x + 5, y - 4.0)}</g>')
        parts.append(_text(name, x + _KEY, y, "axis"))
        x += length
    return parts, row if names else 0


def _text(text: str, x: float, y: float, form: str, *, end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    return f'<text class="text {form}" x="{number(x)}" y="{number(y)}"{anchor}>{escaped(text)}</text>'


def _circle(x: float, y: float) -> str:
    return f'<circle class="mark" cx="{number(x)}" cy="{number(y)}" r="{number(_RADIUS)}"/>'


def _square(x: float, y: float) -> str:
    return f'<rect class="mark" x="{number(x - 4.2)}" y="{number(y - 4.2)}" width="8.4" height="8.4"/>'


def _triangle(x: float, y: float) -> str:
    return f'<path class="mark" d="M{number(x)} {number(y - 4.8)}l4.8 8.6h-9.6z"/>'


def _diamond(x: float, y: float) -> str:
    return f'<path class="mark" d="M{number(x)} {number(y - 5.2)}l5.2 5.2l-5.2 5.2l-5.2 -5.2z"/>'


def _cross(x: float, y: float) -> str:
    return f'<path class="mark open" d="M{number(x - 4)} {number(y - 4)}l8 8m0 -8l-8 8"/>'


def _ring(x: float, y: float) -> str:
    return f'<circle class="mark open" cx="{number(x)}" cy="{number(y)}" r="{number(_RADIUS)}"/>'


_SHAPES: Sequence[Callable[[float, float], str]] = (_circle, _square, _triangle, _diamond, _cross, _ring)
