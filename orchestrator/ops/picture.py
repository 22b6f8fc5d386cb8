"""Draw lines, bars, tables and single figures as SVG and HTML, small enough to be read as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

from orchestrator.ops.live_source import TimeSeries
from orchestrator.ops.panel import Panel, PanelUnit

Lines = Sequence[tuple[str, TimeSeries]]

COLOURS = (
    "#2f6fb5",
    "#c8562b",
    "#3c8c4a",
    "#8a5fb0",
    "#b08a1e",
    "#c04a82",
    "#3a9aa6",
    "#7a6a58",
    "#666",
    "#a33",
)
_WIDTH, _HEIGHT = 420, 150
_LEFT, _BOTTOM, _TOP = 46, 18, 6
_MANY = 10
_LENGTHS = ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"))
MOST_LINES = 12
"""Maximum drawn lines of a panel; the rest is counted."""


def shown(value: float, unit: PanelUnit) -> str:
    """Return a figure in a readable form."""
    match unit:
        case PanelUnit.SHARE:
            return f"{100 * value:,.0f} %" if abs(value) >= _MANY else f"{100 * value:.3g} %"
        case PanelUnit.SECONDS:
            return _duration(value)
        case PanelUnit.BYTES:
            return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
        case PanelUnit.RATE:
            return f"{value:.3g}/s"
        case _:
            return _scaled(value, 1000, ("", "k", "M", "G", "T")).rstrip()


def _duration(value: float) -> str:
    for seconds, name in _LENGTHS:
        if abs(value) >= seconds:
            return f"{value / seconds:.3g} {name}"
    return f"{value * 1e6:.3g} µs" if value else "0 s"


def _scaled(value: float, base: int, names: tuple[str, ...]) -> str:
    size = value
    for name in names:
        if abs(size) < base:
            return f"{size:.3g} {name}"
        size /= base
    return f"{value:.3g}"


def chart(panel: Panel, lines: Lines, start: float, end: float) -> str:
    """Return lines with two axes, stacked if the panel asks for that."""
    drawn = _stacked(lines) if panel.stacked else [(name, line.points) for name, line in lines]
    top = max((value for _, points in drawn for _, value in points), default=0)
    if panel.line is not None and top >= panel.line / 2:
        top = max(top, panel.line * 1.1)
    top = top or 1
    span = max(end - start, 1)

    def coordinates(at: float, value: float) -> str:
        x = _LEFT + (at - start) / span * (_WIDTH - _LEFT - 4)
        y = _HEIGHT - _BOTTOM - max(value, 0) / top * (_HEIGHT - _BOTTOM - _TOP)
        return f"{x:.1f},{y:.1f}"

    parts = _axes(panel, start, end, top)
    for number, (_, points) in reversed(list(enumerate(drawn[:MOST_LINES]))):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(coordinates(at, value) for at, value in points)
        if panel.stacked:
            floor = f"{coordinates(points[-1][0], 0)} {coordinates(points[0][0], 0)}"
            parts.append(f'<polygon points="{path} {floor}" fill="{colour}" fill-opacity=".75"/>')
        else:
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    if panel.line is not None and panel.line <= top:
        ends = f"{coordinates(start, panel.line)} {coordinates(end, panel.line)}"
        parts.append(f'<polyline points="{ends}" stroke="#c22" stroke-dasharray="4 3"/>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg>{legend_list(panel, lines)}'


def _stacked(lines: Lines) -> list[tuple[str, tuple[tuple[float, float], ...]]]:
    """Return each line on top of those before it."""
    floor: dict[float, float] = {}
    found = []
    for name, line in lines:
        for at, value in line.points:
            floor[at] = floor.get(at, 0) + value
        found.append((name, tuple((at, floor[at]) for at, _ in line.points)))
    return found


def _axes(panel: Panel, start: float, end: float, top: float) -> list[str]:
    base = _HEIGHT - _BOTTOM
    found = []
    for share in (0, 0.5, 1):
        y = base - share * (base - _TOP)
        found.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 4}" y1="{y:.0f}" y2="{y:.0f}" class="grid"/>')
        label = escape(shown(share * top, panel.unit))
        found.append(f'<text x="{_LEFT - 4}" y="{y + 3:.0f}" text-anchor="end">{label}</text>')
    for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        x = _LEFT + share * (_WIDTH - _LEFT - 4)
        clock = time.strftime("%H:%M:%S", time.localtime(start + share * (end - start)))
        found.append(f'<text x="{x:.0f}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{clock}</text>')
    return found


def legend_list(panel: Panel, lines: Lines) -> str:
    """Return names with their last values."""
    rows = []
    for number, (name, line) in enumerate(lines[:MOST_LINES]):
        mark = f'<i style="background:{COLOURS[number % len(COLOURS)]}"></i>'
        rows.append(f"<li>{mark}{escape(name)} <b>{escape(shown(line.points[-1][1], panel.unit))}</b></li>")
    if len(lines) > MOST_LINES:
        rows.append(f"<li>and {len(lines) - MOST_LINES} more</li>")
    return f"<ul>{''.join(rows)}</ul>"


def figures(panel: Panel, lines: Lines) -> str:
    """Return one large figure for each line, in the colour of its step."""
    found = []
    for name, line in lines[:MOST_LINES]:
        value = line.points[-1][1]
        colour = _colour(panel, value, name)
        words = f"<b>{escape(shown(value, panel.unit))}</b><small>{escape(name)}</small>"
        found.append(f'<p class="figure" style="color:{colour}">{words}</p>')
    return "".join(found)


def bars(panel: Panel, lines: Lines) -> str:
    """Return one bar for each line; the whole width is the largest value, or the highest step."""
    most = max([line.points[-1][1] for _, line in lines] + [step for step, _ in panel.steps] + [1e-9])
    found = []
    for name, line in lines[:MOST_LINES]:
        value = line.points[-1][1]
        width = max(0.5, 100 * value / most)
        found.append(
            f'<div class="bar"><span style="width:{width:.1f}%;background:{_colour(panel, value)}"></span>'
            f"<em>{escape(name)}</em><b>{escape(shown(value, panel.unit))}</b></div>"
        )
    return "".join(found)


def table(panel: Panel, lines: Lines) -> str:
    """Return names and values."""
    ordered = sorted(lines, key=lambda item: -item[1].points[-1][1])
    rows = (
        f"<tr><td>{escape(name)}</td><td>{escape(shown(line.points[-1][1], panel.unit))}</td></tr>"
        for name, line in ordered
    )
    return f"<table>{''.join(rows)}</table>"


def heatmap(lines: Lines) -> str:
    """Return the buckets of a histogram over time: rows are upper bounds, darker is more."""
    ordered = sorted(lines, key=lambda item: float(item[0]))
    cells = _differences(ordered)
    most = max(cells.values(), default=0) or 1
    rows = [name for name, _ in ordered]
    height = (_HEIGHT - _BOTTOM - _TOP) / max(len(rows), 1)
    times = sorted({at for at, _ in cells})
    width = (_WIDTH - _LEFT - 4) / max(len(times), 1)
    parts = []
    for (at, row), value in cells.items():
        if value <= 0:
            continue
        x = _LEFT + times.index(at) * width
        y = _HEIGHT - _BOTTOM - (row + 1) * height
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width + 0.3:.1f}" height="{height:.1f}" fill="#2f6fb5"'
            f' fill-opacity="{0.15 + 0.85 * value / most:.2f}"/>'
        )
    for row in range(0, len(rows), max(1, len(rows) // 6)):
        y = _HEIGHT - _BOTTOM - (row + 0.5) * height + 3
        parts.append(f'<text x="{_LEFT - 4}" y="{y:.0f}" text-anchor="end">{escape(rows[row])}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg>'


def _differences(ordered: Lines) -> dict[tuple[float, int], float]:
    """Return (time, row) -> number of values in that bucket and not in a lower one."""
    below: dict[float, float] = {}
    cells: dict[tuple[float, int], float] = {}
    for row, (_, line) in enumerate(ordered):
        for at, value in line.points:
            cells[at, row] = value - below.get(at, 0)
            below[at] = value
    return cells


def _colour(panel: Panel, value: float, name: str = "") -> str:
    named = {"red": "#c22", "orange": "#c77a00", "green": "#2d8a3e", "blue": "#2f6db5"}
    if value > 0 and name in panel.colours:
        return named[panel.colours[name]]
    found = "#333"
    for step, colour in panel.steps:
        if value >= step or found == "#333":
            found = named[colour]
    return found
