"""A timeline as SVG: for a page, or a file of its own."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.drawing.element import drawing, duration, escaped, number, point, shortened, width
from orchestrator.drawing.layout import Rectangle
from orchestrator.drawing.timeline.lanes import (
    EDGE,
    NAMES,
    TICK,
    Bar,
    Label,
    LaneBox,
    LanesLayout,
    Piece,
    Sign,
    column_parts,
    lay_out,
    lay_out_columns,
)
from orchestrator.machines.timeline import Kind, Timeline

MOST_TURNS = 300
"""Turns above which the drawing has columns of equal time in place of bars."""
LEAST_WIDTH = 360.0
_HEADER = 30.0
_HATCH = 6.0
"""Distance of the slanted lines in a bar."""
_LEGEND = (
    ("model", "Model"),
    ("tool", "Tools"),
    ("people", "People"),
    ("down", "No process"),
    ("work", "Own work"),
)


def timeline_svg(
    line: Timeline, *, width_px: float = 1200.0, header: bool = True, styled: bool = True
) -> str:
    """Return the drawing of a timeline as SVG.

    Times are wall time. A long gap in which nothing works is cut, and its length is written in it. Over MOST_TURNS
    turns the drawing has 200 columns of equal time; `line.between(first, last)` is a part that is drawn in full.

    Args:
        line: The timeline.
        width_px: Width in pixels, at least 360.
        header: Whether the run, its totals and the legend are drawn above.
        styled: Whether the stylesheet is included. A page includes `stylesheet()` once instead.

    Returns:
        An element `svg` with its size in pixels and a description in words.
    """
    wide = max(width_px, LEAST_WIDTH)
    top = _HEADER if header else 0.0
    head = [_header(line, wide)] if header else []
    if len(line.turns) > MOST_TURNS:
        columns = lay_out_columns(line, wide, top)
        parts, height = [*lane_parts(columns.lanes), *column_parts(columns)], columns.height
    else:
        found = lay_out(line, wide, top)
        parts, height = list(lane_parts(found)), found.height
    title = f"Timeline of run {shortened(line.name)}"
    size = (wide, height + 6)
    return drawing("fsm-timeline", size, title, [*head, *parts], description=described(line), styled=styled)


def described(line: Timeline) -> str:
    """Return a timeline in words; `line.rows()` has everything."""
    seconds: dict[Kind, float] = {}
    for span in line.spans:
        if span.lane.value != "State":
            seconds[span.kind] = seconds.get(span.kind, 0.0) + line.until(span) - span.start
    crashes = sum(mark.kind is Kind.CRASH for mark in line.marks)
    facts = [
        f"{duration(line.end - line.start)} in all, {len(line.turns):,} turns",
        *(f"{duration(seconds[kind])} {text}" for kind, text in _WORDS if seconds.get(kind)),
        f"{crashes:,} crashes" if crashes else "",
    ]
    return "; ".join(filter(None, facts)) + "."


_WORDS = (
    (Kind.MODEL, "model"),
    (Kind.TOOL, "tools"),
    (Kind.CHILD, "child runs"),
    (Kind.PERSON, "waiting for people"),
    (Kind.DOWN, "without a process"),
    (Kind.FAILED, "failed attempts and calls"),
    (Kind.WAIT, "waiting for the next attempt or a slot"),
)


# ---- the form with lanes ----


def lane_parts(found: LanesLayout) -> Iterator[str]:
    """Yield the elements of a layout: lanes, gaps, lines, bars, labels, signs, from back to front."""
    top, bottom = found.lanes[0].y if found.lanes else 0.0, found.height
    yield from (_lane(lane, found) for lane in found.lanes)
    yield from (
        rectangle(Rectangle(cut.left, top, cut.right - cut.left, bottom - top), "gap", 0)
        for cut in found.axis.cuts
    )
    yield from (_upright("grid", x, top, bottom) for x in found.lines)
    yield from (_upright("turn", x, top, found.lanes[0].y + found.lanes[0].height) for x in found.turns)
    yield from map(_bar, found.bars)
    yield from (_cut_edges(cut, top, bottom) for cut in found.axis.cuts)
    yield from map(label_text, found.labels)
    yield from map(_sign, found.signs)


def _lane(lane: LaneBox, found: LanesLayout) -> str:
    y = lane.y + min(17, lane.height / 2 + 4)
    more = f' <tspan class="hidden">+{lane.hidden:,}</tspan>' if lane.hidden else ""
    return (
        f'<path class="rule" d="M0 {number(lane.y)}H{number(found.right + EDGE)}"/>'
        f'<text class="lane" x="14" y="{number(y)}">{escaped(lane.name)}{more}</text>'
    )


def _bar(bar: Bar) -> str:
    span, area = bar.span, bar.area
    form = "tick" if area.width < TICK else "bar"
    words = ", ".join(filter(None, (span.name, span.note))) or span.kind.value
    count = f" ×{bar.count}" if bar.count > 1 else ""
    end = duration(span.end - span.start) if span.end is not None else "not finished"
    turn = f"turn {span.turn}: " if span.turn else ""
    lane = span.lane.value.split()[0].lower()
    return (
        f'<g class="span {lane} {span.kind}"><title>{escaped(f"{turn}{words}{count}, {end}")}</title>'
        f"{_shape(area, span.kind, lane, form)}</g>"
    )


def _shape(area: Rectangle, kind: Kind, lane: str, form: str) -> str:
    middle = area.y + area.height / 2
    if kind is Kind.WAIT or (lane == "process" and kind is Kind.IDLE):
        return f'<path class="thread" d="M{number(area.x)} {number(middle)}H{number(area.right)}"/>'
    if lane == "process" and kind is Kind.WORK:
        return rectangle(Rectangle(area.x, middle - 2.5, area.width, 5), form, 2)
    if form == "tick":
        return rectangle(area, form, 0)
    hatch = f'<path class="hatch" d="{_hatch(area)}"/>' if kind in {Kind.LOST, Kind.UNKNOWN} else ""
    return rectangle(area, form, min(2.5, area.width / 4)) + hatch


def _hatch(area: Rectangle) -> str:
    """Return slanted lines in a rectangle."""
    found: list[str] = []
    x = area.x - area.height + _HATCH
    while x < area.right:
        left, right = max(x, area.x), min(x + area.height, area.right)
        if right > left:
            low, high = area.bottom - (left - x), area.bottom - (right - x)
            found.append(f"M{point((left, low))}L{point((right, high))}")
        x += _HATCH
    return "".join(found)


def rectangle(area: Rectangle, form: str, corner: float) -> str:
    """Return a rectangle with round corners."""
    round_ = f' rx="{number(corner)}"' if corner else ""
    return (
        f'<rect class="{form}" x="{number(area.x)}" y="{number(area.y)}" width="{number(area.width)}"'
        f' height="{number(area.height)}"{round_}/>'
    )


def _cut_edges(cut: Piece, top: float, bottom: float) -> str:
    """Return the double stroke of a cut, in front of the bars that it interrupts."""
    x = (cut.left + cut.right) / 2
    high = bottom - top
    lines = "".join(f"M{number(x + by + 3)} {number(top)}l-6 {number(high)}" for by in (-2.5, 2.5))
    band = f"M{number(x + 3)} {number(top)}l-6 {number(high)}"
    return f'<path class="break" d="{band}"/><path class="stroke" d="{lines}"/>'


def _upright(form: str, x: float, top: float, bottom: float) -> str:
    return f'<path class="{form}" d="M{number(x)} {number(top)}V{number(bottom)}"/>'


def label_text(label: Label) -> str:
    """Return a label."""
    area = label.area
    y = number(area.y + 10)
    back = label.form.startswith("thread-text")
    behind = (
        rectangle(Rectangle(area.x - 3, area.y, area.width + 6, area.height), "surface", 0) if back else ""
    )
    return (
        f'{behind}<text class="text {label.form}" x="{number(area.x)}" y="{y}">{escaped(label.text)}</text>'
    )


def _sign(sign: Sign) -> str:
    x, y = sign.x, sign.y
    form = {
        Kind.CRASH: f"M{number(x - 4)} {number(y - 4)}l8 8m0 -8l-8 8",
        Kind.RESUMED: f"M{number(x - 3)} {number(y - 5)}l7 5l-7 5z",
    }.get(sign.mark.kind, f"M{number(x)} {number(y - 5)}l5 5l-5 5l-5 -5z")
    return (
        f'<g class="sign {sign.mark.kind}"><title>{escaped(sign.mark.name)}</title>'
        f'<path class="sign-form" d="{form}"/></g>'
    )


# ---- the header ----


def _header(line: Timeline, wide: float) -> str:
    turns = f", {len(line.turns):,} turns" if line.turns else ""
    name, facts = shortened(line.name), f"{duration(line.end - line.start)}{turns}"
    x = 14 + width(name, 13.5) + 10
    parts = [
        f'<text class="head" x="14" y="20">{escaped(name)}</text>',
        f'<text class="text facts" x="{number(x)}" y="20">{escaped(facts)}</text>',
    ]
    right = wide - EDGE
    for kind, text in reversed(_LEGEND):
        right -= width(text, 10.5)
        if right - 16 < max(x + width(facts, 10.5) + 16, NAMES):
            break
        parts.append(f'<text class="text key" x="{number(right)}" y="19.5">{text}</text>')
        parts.append(
            f'<g class="span key {kind}">{rectangle(Rectangle(right - 15, 10, 10, 10), "bar", 2)}</g>'
        )
        right -= 29
    return "".join(parts)
