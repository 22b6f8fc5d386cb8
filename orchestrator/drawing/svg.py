"""A graph as SVG: for a page, or a file of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from orchestrator.drawing.element import drawing, escaped, number, point, shortened
from orchestrator.drawing.layout import (
    END_RADIUS,
    LINE,
    SPENT,
    TIMES,
    EdgeLabel,
    EdgeLine,
    EdgeRoute,
    GraphLayout,
    GraphMarks,
    Side,
    StateBox,
    layout,
    united,
)
from orchestrator.drawing.stylesheet import STATUSES
from orchestrator.kernel.graph import Graph

_CORNER = 7.0
_SMALLEST = 0.5
"""Radius below which a corner is not rounded."""
_HEAD = 7.5
"""Length of an arrow head."""
_HALF = 4.3
"""Half the width of an arrow head."""
_HEAVIEST = 6
"""The widest edge: 64 times or more."""
_HEATS = (0.0, 0.15, 0.5)
"""Shares of the time above which a box has the first, second and third tint."""


def svg(graph: Graph, marks: GraphMarks | None = None, *, styled: bool = True) -> str:
    """Return the drawing of a graph as SVG.

    The same graph always has the same layout, and nothing in it comes from a clock or a font. Texts are escaped.

    Args:
        graph: The graph.
        marks: The present state, visits, time and path of a run, or of many.
        styled: Whether the stylesheet is included. A page includes `stylesheet()` once instead.

    Returns:
        An element `svg` with its size in pixels.

    Example:
        >>> from orchestrator.machines.llm_loop.graph import LLM_LOOP
        >>> svg(LLM_LOOP).startswith('<svg xmlns="http://www.w3.org/2000/svg" class="fsm-drawing fsm-graph"')
        True
    """
    marks = marks or GraphMarks()
    found = layout(graph, marks)
    lines = sorted(found.lines, key=lambda one: _times(one.route, marks))
    x, y = found.start
    line = ((x - 20, y), (x, y))
    parts = [
        _bus([line for line in lines if line.route.failure]),
        (
            f'<g class="way spine"><circle class="start" cx="{number(x - 22)}" cy="{number(y)}" r="4.5"/>'
            f'<path class="edge" d="{_rounded(line)}"/><path class="head" d="{_head(line)}"/></g>'
        ),
        *(_line(line, marks) for line in lines if not line.route.failure or _times(line.route, marks)),
        *(_box(box, found, marks) for box in found.boxes),
        *(_label(label, found, marks) for label in found.labels),
    ]
    title = f"{graph.name}: {len(found.boxes)} states, {len(graph.rows)} edges"
    return drawing("fsm-graph", (found.width, found.height), title, parts, styled=styled)


# ---- lines ----


def _times(way: EdgeRoute, marks: GraphMarks) -> int:
    return sum(marks.times(*row) for row in way.rows)


def _classes(way: EdgeRoute, marks: GraphMarks) -> str:
    taken = "" if marks.taken is None else "taken" if _times(way, marks) else "unused"
    spine = "spine" if way.leaves is Side.BOTTOM and taken != "unused" else ""
    return " ".join(filter(None, ("failure" if way.failure else "", taken, spine)))


def _bus(lines: Sequence[EdgeLine]) -> str:
    """Return all failure edges as one dotted line."""
    if not lines:
        return ""
    path = "".join(f"M{point(start)}L{point(end)}" for start, end in united(lines))
    return (
        f'<g class="way failure"><path class="edge" d="{path}"/>'
        f'<path class="head" d="{_head(lines[0].points)}"/></g>'
    )


def _line(line: EdgeLine, marks: GraphMarks) -> str:
    times = _times(line.route, marks)
    weight = f" weight-{min(_HEAVIEST, times.bit_length() - 1)}" if times > 1 else ""
    names = "; ".join(f"{source}: {event} → {dest}" for source, event, dest in line.route.rows)
    return (
        f'<g class="way {_classes(line.route, marks)}{weight}"><title>{escaped(names)}</title>'
        f'<path class="edge" d="{_rounded(line.points)}"/><path class="head" d="{_head(line.points)}"/></g>'
    )


def _rounded(points: Sequence[tuple[float, float]]) -> str:
    """Return a path with round corners that ends at the foot of its arrow head."""
    (x, y), before = points[-1], points[-2]
    dx, dy = _direction(before, points[-1])
    shorter = [*points[:-1], (x - dx * (_HEAD - 1), y - dy * (_HEAD - 1))]
    steps = [f"M{point(shorter[0])}"]
    for start, corner, end in zip(shorter, shorter[1:], shorter[2:], strict=False):
        radius = min(_CORNER, math.dist(start, corner) / 2, math.dist(corner, end) / 2)
        if radius < _SMALLEST:
            steps.append(f"L{point(corner)}")
            continue
        (ax, ay), (bx, by) = _direction(corner, start), _direction(corner, end)
        first = (corner[0] + ax * radius, corner[1] + ay * radius)
        last = (corner[0] + bx * radius, corner[1] + by * radius)
        steps.append(f"L{point(first)}Q{point(corner)} {point(last)}")
    return "".join([*steps, f"L{point(shorter[-1])}"])


def _head(points: Sequence[tuple[float, float]]) -> str:
    (x, y), (dx, dy) = points[-1], _direction(points[-2], points[-1])
    left = (x - dx * _HEAD - dy * _HALF, y - dy * _HEAD + dx * _HALF)
    right = (x - dx * _HEAD + dy * _HALF, y - dy * _HEAD - dx * _HALF)
    return f"M{point(points[-1])}L{point(left)}L{point(right)}z"


def _direction(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    length = math.dist(start, end) or 1.0
    return (end[0] - start[0]) / length, (end[1] - start[1]) / length


# ---- boxes ----


def _box(box: StateBox, found: GraphLayout, marks: GraphMarks) -> str:
    area, state = box.area, box.state
    corner = min(area.height / 2, END_RADIUS) if state in found.layers.terminal else 7.0
    frame = f'x="{number(area.x)}" y="{number(area.y)}" width="{number(area.width)}" height="{number(area.height)}"'
    ring = (
        f'<rect class="ring" x="{number(area.x - 3)}" y="{number(area.y - 3)}" width="{number(area.width + 6)}"'
        f' height="{number(area.height + 6)}" rx="{number(corner + 3)}"/>'
    )
    return (
        f'<g class="{_box_classes(state, found, marks)}" data-state="{escaped(state)}">'
        f"<title>{escaped(state)}</title>{ring if state == marks.current else ''}"
        f'<rect class="box" {frame} rx="{number(corner)}"/>'
        f'<rect class="tint" {frame} rx="{number(corner)}"/>{"".join(_box_text(box))}</g>'
    )


def _box_classes(state: str, found: GraphLayout, marks: GraphMarks) -> str:
    classes = ["state", "end" if state in found.layers.terminal else ""]
    if state == marks.current:
        classes += ["current", marks.status if marks.status in STATUSES else "running"]
    elif marks.taken is not None and not _visited(state, found, marks):
        classes.append("unvisited")
    share = marks.share.get(state, 0.0)
    heat = sum(share > limit for limit in _HEATS)
    return " ".join(filter(None, [*classes, f"heat-{heat}" if heat and state != marks.current else ""]))


def _visited(state: str, found: GraphLayout, marks: GraphMarks) -> bool:
    entered = any(
        times and state in {source, dest} for (source, _, dest), times in (marks.taken or {}).items()
    )
    return entered or state == found.layers.initial


def _box_text(box: StateBox) -> Iterator[str]:
    area = box.area
    y = area.y + (area.height - (LINE + 1) * len(box.lines)) / 2 + 4.5
    x = number(area.middle)
    yield f'<text class="name" x="{x}" y="{number(y)}" text-anchor="middle">{escaped(shortened(box.state))}</text>'
    for line in box.lines:
        y += LINE + 1
        yield f'<text class="more" x="{x}" y="{number(y)}" text-anchor="middle">{escaped(line)}</text>'


# ---- labels ----


def _label(label: EdgeLabel, found: GraphLayout, marks: GraphMarks) -> str:
    x = label.area.right if label.from_right else label.area.x
    anchor = ' text-anchor="end"' if label.from_right else ""
    lines = []
    for index, line in enumerate(label.lines):
        y = label.area.y + LINE * (index + 1) - 3
        name, counted, rest = line.rpartition(TIMES)
        if not counted:
            text = escaped(line)
        else:
            times, dot, spent = rest.partition(SPENT)
            text = f'{escaped(name)} <tspan class="times">×{escaped(times)}</tspan>{escaped(dot + spent)}'
        lines.append(f'<text x="{number(x)}" y="{number(y)}"{anchor}>{text}</text>')
    return f'<g class="label {_label_classes(label.route, found, marks)}">{"".join(lines)}</g>'


def _label_classes(way: EdgeRoute, found: GraphLayout, marks: GraphMarks) -> str:
    if not way.failure:
        return _classes(way, marks)
    taken = any(marks.times(*row) for row in found.layers.failures)
    return "failure taken" if taken else "failure"
