"""Coordinates of the boxes, labels and lines of a graph.

A label never meets a box or another label, because each has a place of its own: a label of an edge that leaves a box
at a side is above the edge, at a port of this height, in the part of the gutter that is for labels of this side of the
column; a label of an edge that goes straight down is in the part of the channel that is for labels.

A library for layered layouts (grandalf) was rejected: it places boxes and routes edges without labels, ports or
channels, and these make the drawing readable.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.drawing.geometry import EdgeLabel, EdgeLine, GraphLayout, Rectangle, StateBox
from orchestrator.drawing.layering import Layers, layers
from orchestrator.drawing.mark import GraphMarks
from orchestrator.drawing.routing import (
    EdgeRoute,
    LaneKey,
    PortKey,
    Side,
    lane_spans,
    numbered,
    routes,
    track_spans,
)
from orchestrator.drawing.words import shortened, width
from orchestrator.kernel.graph import Graph

NAME_SIZE, TEXT_SIZE = 12.5, 11.0
LINE = 13.0
"""Height of a line of text."""
MARGIN = 16.0
END_RADIUS = 17.0
"""Largest radius of the box of a terminal state."""
_LANE, _TRACK = 9.0, 8.0
_GAP = 8.0
"""Between a label and what is beside it."""
_PORT = 12.0
"""Height of a port without a label."""
_SHIFTS = (0.0, 4.0, -4.0)
_APART = 3.0
"""Distance of edges that leave two neighbour boxes towards each other, and the shifts of ports that give it."""
_SLACK = 2 * max(_SHIFTS) + 6
"""Height of a box beyond its ports, so that a shifted port stays clear of its corners."""
_MOST_LINES = 4
"""Labels of one line; further events are counted."""
_ASIDE = 0.25
"""Where an edge enters a box from above, from its middle, in widths: edges straight down enter in the middle."""
LOOP = "\N{CLOCKWISE OPEN CIRCLE ARROW}"


def layout(graph: Graph, marks: GraphMarks | None = None) -> GraphLayout:
    """Return the coordinates of a graph. Marks change texts and so sizes, but never rank or column of a state."""
    plan = _Plan(layers(graph), marks or GraphMarks())
    plan.measure()
    return plan.finished()


@dataclass(slots=True)
class _Port:
    """A place at a side of a box, with the label above it."""

    key: PortKey
    order: int
    lines: tuple[str, ...] = ()

    @property
    def height(self) -> float:
        return LINE * len(self.lines) + 5 if self.lines else _PORT


@dataclass(slots=True)
class _Plan:
    """Widths and heights of columns, gutters, ranks and channels, and the coordinates that follow."""

    layers: Layers
    marks: GraphMarks
    ways: list[EdgeRoute] = field(init=False)
    ports: dict[tuple[str, Side], list[_Port]] = field(default_factory=lambda: defaultdict(list))
    lanes: dict[LaneKey, int] = field(default_factory=dict)
    tracks: dict[LaneKey, int] = field(default_factory=dict)
    lane_count: dict[int, int] = field(default_factory=dict)
    track_count: dict[int, int] = field(default_factory=dict)
    boxes: dict[str, StateBox] = field(default_factory=dict)
    lane_x: dict[int, float] = field(default_factory=dict)
    track_y: dict[int, float] = field(default_factory=dict)
    port_y: dict[PortKey, float] = field(default_factory=dict)
    row_bottom: dict[int, float] = field(default_factory=dict)
    size: tuple[float, float] = (0.0, 0.0)

    def measure(self) -> None:
        """Compute everything that a coordinate needs."""
        self.ways = routes(self.layers)
        self.lanes, self.lane_count = numbered(lane_spans(self.layers, self.ways))
        self.tracks, self.track_count = numbered(track_spans(self.layers, self.ways))
        self._make_ports()
        texts = {state: self._box_lines(state) for state in self.layers.rank}
        box_width = _box_width(texts)
        height = {state: self._box_height(state, lines) for state, lines in texts.items()}
        left, total_width = self._across(box_width)
        top, total_height = self._down(height)
        for state, lines in texts.items():
            area = Rectangle(
                left[self.layers.column[state]], top[self.layers.rank[state]], box_width, height[state]
            )
            self.boxes[state] = StateBox(state, area, lines)
        self._position_ports()
        self.size = (total_width, total_height)

    # ---- text ----

    def labels_of(self, way: EdgeRoute) -> tuple[str, ...]:
        """Return the lines of a label. The label of all failure edges is at their destination."""
        if way.failure:
            return ()
        found = [self.marks.label(*row) for row in way.rows]
        if len(found) > _MOST_LINES:
            found = [*found[: _MOST_LINES - 1], f"and {len(found) - _MOST_LINES + 1} more"]
        return tuple(found)

    def failure_label(self) -> tuple[str, ...]:
        """Return the label of the failure edges."""
        events = list(dict.fromkeys(event for _, event, _ in self.layers.failures))
        times = sum(self.marks.times(*row) for row in self.layers.failures)
        first = events[0] if len(events) == 1 else f"{events[0]} and {len(events) - 1} more"
        suffix = f" ×{times:,}" if times else ""
        sources = len({source for source, _, _ in self.layers.failures})
        return (f"{shortened(first)} from {sources} states{suffix}",)

    def _box_lines(self, state: str) -> tuple[str, ...]:
        note = (shortened(self.marks.notes[state]),) if state in self.marks.notes else ()
        loops = (self.marks.label(state, event, state) for event in self.layers.loops.get(state, ()))
        return (*note, *(f"{LOOP} {one}" for one in loops))

    # ---- ports ----

    def _make_ports(self) -> None:
        entering: set[PortKey] = set()
        self.ports[self.layers.initial, Side.LEFT].append(_Port(("start",), 0))
        for way in self.ways:
            up = self.layers.rank[way.dest] <= self.layers.rank[way.source]
            order = 4 if way.failure else 1 if up else 3
            if way.leaves in {Side.LEFT, Side.RIGHT}:
                port = _Port(way.leaving_port, order, self.labels_of(way))
                self.ports[way.source, way.leaves].append(port)
            if way.enters in {Side.LEFT, Side.RIGHT} and way.entering_port not in entering:
                entering.add(way.entering_port)
                lines = self.failure_label() if way.failure else ()
                self.ports[way.dest, way.enters].append(_Port(way.entering_port, 2, lines))
        for found in self.ports.values():
            found.sort(key=lambda port: port.order)

    def _box_height(self, state: str, lines: tuple[str, ...]) -> float:
        sides = (sum(port.height for port in self.ports[state, side]) for side in (Side.LEFT, Side.RIGHT))
        return max(32 + (LINE + 1) * len(lines) - (4 if lines else 0), _SLACK + max(sides))

    def _position_ports(self) -> None:
        """Set the height of each port. Edges at both sides of a gutter never have the same one."""
        busy: dict[tuple[int, int], list[float]] = defaultdict(list)
        for (state, side), found in sorted(self.ports.items(), key=lambda item: item[0][1] is Side.LEFT):
            gutter = self.layers.column[state] + (side is Side.RIGHT)
            there = busy[self.layers.rank[state], gutter]
            heights = self._port_heights(state, found)
            shifts = (
                (sum(abs(y + by - other) < _APART for y in heights for other in there), by) for by in _SHIFTS
            )
            shift = min(shifts, key=lambda one: one[0])[1]
            for port, y in zip(found, heights, strict=True):
                self.port_y[port.key] = y + shift
                there.append(y + shift)

    def _port_heights(self, state: str, found: list[_Port]) -> list[float]:
        area = self.boxes[state].area
        y = area.y + (area.height - sum(port.height for port in found)) / 2
        heights = []
        for port in found:
            y += port.height
            heights.append(y - (0 if port.lines else _PORT / 2))
        return heights

    # ---- columns and ranks ----

    def _across(self, box_width: float) -> tuple[list[float], float]:
        """Return the left side of each column, and the whole width."""
        columns = max(self.layers.column.values()) + 1
        room = {(column, side): 12.0 for column in range(columns) for side in (Side.LEFT, Side.RIGHT)}
        for (state, side), found in self.ports.items():
            key = (self.layers.column[state], side)
            room[key] = max(room[key], _widest(port.lines for port in found) + 2 * _GAP)
        for way in self.ways:
            if way.leaves is Side.BOTTOM:
                key = (self.layers.column[way.source], Side.RIGHT)
                room[key] = max(room[key], _widest([self.labels_of(way)]) + 2 * _GAP - box_width / 2)
        room[self.layers.column[self.layers.initial], Side.LEFT] = max(
            30.0, room[self.layers.column[self.layers.initial], Side.LEFT]
        )
        left: list[float] = []
        x = MARGIN
        for column in range(columns):
            self.lane_x[column] = x + _LANE / 2
            x += self.lane_count.get(column, 0) * _LANE + room[column, Side.LEFT]
            left.append(x)
            x += box_width + room[column, Side.RIGHT]
        self.lane_x[columns] = x + _LANE / 2
        return left, x + self.lane_count.get(columns, 0) * _LANE + MARGIN

    def _down(self, height: dict[str, float]) -> tuple[list[float], float]:
        """Return the top of each rank, and the whole height."""
        ranks = max(self.layers.rank.values()) + 1
        rows = [0.0] * ranks
        texts = [0] * (ranks + 1)
        for state, one in height.items():
            rows[self.layers.rank[state]] = max(rows[self.layers.rank[state]], one)
        for way in self.ways:
            if way.leaves is Side.BOTTOM:
                rank = self.layers.rank[way.source]
                texts[rank] = max(texts[rank], len(self.labels_of(way)))
        top: list[float] = []
        y = MARGIN
        for rank in range(-1, ranks):
            if rank >= 0:
                top.append(y)
                y += rows[rank]
                self.row_bottom[rank] = y
            text = LINE * texts[rank] + 10 if rank >= 0 and texts[rank] else 0
            count = self.track_count.get(rank, 0)
            self.track_y[rank] = y + text + _TRACK
            y += max(text + (_TRACK * (count + 1) if count else 0) + 6, 0 if rank in {-1, ranks - 1} else 26)
        return top, y + MARGIN - 6

    # ---- coordinates ----

    def finished(self) -> GraphLayout:
        """Return everything with coordinates."""
        area = self.boxes[self.layers.initial].area
        return GraphLayout(
            width=self.size[0],
            height=self.size[1],
            layers=self.layers,
            boxes=tuple(self.boxes.values()),
            labels=tuple(self._labels()),
            lines=tuple(EdgeLine(way, tuple(self._points(way))) for way in self.ways),
            start=(area.x, self.port_y["start",]),
        )

    def _labels(self) -> Iterator[EdgeLabel]:
        for way in self.ways:
            if lines := self.labels_of(way):
                yield self._label(way, lines)
        if failures := [way for way in self.ways if way.failure]:
            area, lines = self.boxes[failures[0].dest].area, self.failure_label()
            y = self.port_y[failures[0].entering_port] - LINE * len(lines) - 3
            yield _beside(failures[0], failures[0].enters, area, y, lines)

    def _label(self, way: EdgeRoute, lines: tuple[str, ...]) -> EdgeLabel:
        area, wide, high = self.boxes[way.source].area, _widest([lines]), LINE * len(lines)
        if way.leaves is Side.BOTTOM:
            below = self.row_bottom[self.layers.rank[way.source]] + 5
            return EdgeLabel(way, Rectangle(area.middle + _GAP, below, wide, high), lines)
        return _beside(way, way.leaves, area, self.port_y[way.leaving_port] - high - 3, lines)

    def _points(self, way: EdgeRoute) -> Iterator[tuple[float, float]]:
        source, dest = self.boxes[way.source].area, self.boxes[way.dest].area
        if way.leaves is Side.BOTTOM:
            yield from ((source.middle, source.bottom), (dest.middle, dest.y))
            return
        y = self.port_y[way.leaving_port]
        yield self._edge(way.source, way.leaves, y), y
        if way.gutter is None:
            yield from ((dest.middle, y), (dest.middle, dest.y))
            return
        x = self._lane(way, way.gutter)
        yield x, y
        if way.channel is not None:
            y = self.track_y[way.channel] + self.tracks[way.lane(way.channel)] * _TRACK
            yield x, y
            if way.last_gutter is None:
                x = dest.middle + dest.width * (_ASIDE if way.leaves is Side.LEFT else -_ASIDE)
                yield from ((x, y), (x, dest.y))
                return
            x = self._lane(way, way.last_gutter)
            yield x, y
        y = self.port_y[way.entering_port]
        yield from ((x, y), (self._edge(way.dest, way.enters, y), y))

    def _edge(self, state: str, side: Side, y: float) -> float:
        """Return where the side of a box is at this height: the boxes of terminal states have round sides."""
        area = self.boxes[state].area
        radius = min(area.height / 2, END_RADIUS) if state in self.layers.terminal else 0.0
        over = max(0.0, area.y + radius - y, y - (area.bottom - radius))
        inset = radius - math.sqrt(max(0.0, radius * radius - over * over))
        return area.right - inset if side is Side.RIGHT else area.x + inset

    def _lane(self, way: EdgeRoute, gutter: int) -> float:
        """Return the x of a lane. The first one is next to the column left of it, in gutter 0 next to column 0."""
        at = self.lanes[way.lane(gutter)]
        return self.lane_x[gutter] + _LANE * (self.lane_count[gutter] - 1 - at if gutter == 0 else at)


def _beside(way: EdgeRoute, side: Side, area: Rectangle, y: float, lines: tuple[str, ...]) -> EdgeLabel:
    wide, high = _widest([lines]), LINE * len(lines)
    if side is Side.RIGHT:
        return EdgeLabel(way, Rectangle(area.right + _GAP, y, wide, high), lines)
    return EdgeLabel(way, Rectangle(area.x - _GAP - wide, y, wide, high), lines, from_right=True)


def _widest(texts: Iterable[tuple[str, ...]]) -> float:
    return max((width(line, TEXT_SIZE) for lines in texts for line in lines), default=0.0)


def _box_width(texts: Mapping[str, tuple[str, ...]]) -> float:
    names = max(width(shortened(state), NAME_SIZE) for state in texts)
    return max(112.0, names + 28, _widest(texts.values()) + 28)
