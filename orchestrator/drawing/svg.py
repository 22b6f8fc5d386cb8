"""A graph as SVG, for a page or a file of its own, with marks of runs: the present state, the path taken, visits, time.

Coordinates of boxes, labels and lines follow from the table of the graph and the texts of its marks. A rank is the
longest path from the start over edges that are not back edges. The longest such path is the spine, in column 0; every
other state takes the free column of its rank that is nearest to its neighbours.

- to the next rank of the same column: straight down
- to the right, if all cells on the way are empty: to the right and down
- further down in its column: on its right side; back in its column: on its left side
- to a neighbour column: through the gutter between the two
- to any other column: through the gutter beside the source and the channel above the destination

Edges to the same state share their lane in a gutter and their track in a channel. Gutter n is left of column n, channel
n is below rank n.

A label never meets a box or another label, because each has a place of its own: a label of an edge that leaves a box
at a side is above the edge, at a port of this height, in the part of the gutter that is for labels of this side of the
column; a label of an edge that goes straight down is in the part of the channel that is for labels.

A library for layered layouts (grandalf) was rejected: it places boxes and routes edges without labels, ports or
channels, and these make the drawing readable.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import TypeAlias

from orchestrator.drawing.element import (
    Rectangle,
    drawing,
    duration,
    escaped,
    number,
    point,
    shortened,
    width,
)
from orchestrator.drawing.stylesheet import STATUSES
from orchestrator.kernel.graph import Graph

# ---- marks ----

Row: TypeAlias = tuple[str, str, str]
"""Source, event, destination."""

SHORTEST = 0.001
"""Seconds before an edge from which on they are written beside it."""
TIMES, SPENT = " ×", " · "
"""Before the count and the time of an edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMarks:
    """Marks on the drawing of a graph. Without any, it shows the table.

    Args:
        current: The state that the run is in; its box is lit.
        status: Status of the run (`running`, `waiting`, `failed`, …): the colour of that box.
        notes: State -> a short text below its name, such as `7 visits · 16.4 s`.
        share: State -> its share of the time or of the visits, 0 to 1; a darker box has more of it.
        taken: (source, event, destination) -> how often the edge was taken. Edges that are not in it are dimmed, and
            the width of the others grows with the logarithm. None means that nothing is known.
        seconds: (source, event, destination) -> seconds in the source before the edge was taken, of all times
            together. They are written beside the edge, from SHORTEST on.

    Example:
        svg(LLM_LOOP, GraphMarks(current="await_llm", taken={("init", "start_loop", "await_llm"): 1}))
    """

    current: str | None = None
    status: str = "running"
    notes: Mapping[str, str] = field(default_factory=dict)
    share: Mapping[str, float] = field(default_factory=dict)
    taken: Mapping[Row, int] | None = None
    seconds: Mapping[Row, float] = field(default_factory=dict)

    def times(self, source: str, event: str, dest: str) -> int:
        """Return how often an edge was taken."""
        return (self.taken or {}).get((source, event, dest), 0)

    def label(self, source: str, event: str, dest: str) -> str:
        """Return the text of an edge: its event, how often it was taken, and the time before it."""
        times, seconds = self.times(source, event, dest), self.seconds.get((source, event, dest), 0.0)
        counted = f"{TIMES}{times:,}" if times else ""
        spent = f"{SPENT}{duration(seconds)}" if times and seconds >= SHORTEST else ""
        return f"{shortened(event)}{counted}{spent}"


# ---- ranks, columns and ways ----

Pair: TypeAlias = tuple[str, str]
"""Source and destination."""

_FEWEST = 3
"""Edges of the failure event into one state from which on they are drawn as one bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The position of each state in the grid of a drawing."""

    initial: str
    terminal: frozenset[str]
    rank: Mapping[str, int]
    column: Mapping[str, int]
    edges: Mapping[Pair, tuple[str, ...]]
    """Events between two states; edges to their own state and failure edges are not here."""
    loops: Mapping[str, tuple[str, ...]]
    """Events that stay in a state."""
    failures: tuple[Row, ...]
    """Failure edges, which share one line."""

    @property
    def cells(self) -> frozenset[tuple[int, int]]:
        """The occupied cells, by rank and column."""
        return frozenset((self.rank[state], self.column[state]) for state in self.rank)


def layers(graph: Graph) -> Layers:
    """Return the grid of a graph. The same table always gives the same grid."""
    rows = list(dict.fromkeys((s.value, e.value, d.value) for s, e, d, _ in graph.rows))
    failures = _failures(graph, rows)
    kept = [row for row in rows if row not in set(failures)]
    edges = _grouped((pair, event) for *pair, event in ((s, d, e) for s, e, d in kept if s != d))
    loops = _grouped(((s, s), event) for s, event, d in kept if s == d)
    start = graph.initial.value
    order, back = _depth_first(start, [state.value for state in graph.states], edges)
    forward = [pair for pair in edges if pair not in back]
    # The longest path to each state: states in topological order, each after all that lead to it.
    after, waits = _successors(forward), Counter(dest for _, dest in forward)
    rank = dict.fromkeys(order, 0)
    ready = [state for state in order if not waits[state]]
    for state in ready:  # grows
        for dest in after[state]:
            rank[dest] = max(rank[dest], rank[state] + 1)
            waits[dest] -= 1
            if not waits[dest]:
                ready.append(dest)
    bus = failures[0][2] if failures else None
    if bus is not None and not any(d == bus for _, d in edges):
        rank[bus] = max(found for state, found in rank.items() if state != bus) + 1
    return Layers(
        initial=start,
        terminal=frozenset(state.value for state in graph.terminal),
        rank=rank,
        column=_columns(order, rank, _spine(start, rank, forward), edges, bus),
        edges=edges,
        loops={state: events for (state, _), events in loops.items()},
        failures=tuple(failures),
    )


def _failures(graph: Graph, rows: Sequence[Row]) -> list[Row]:
    """Return the edges of failure events into the state that most of them lead to, if there are enough."""
    events = {state: event.value for state, event in graph.failure_events.items() if event is not None}
    found = [(s, e, d) for s, e, d in rows if events.get(s) == e and s != d]
    into = Counter(dest for _, _, dest in found).most_common(1)
    if not into or into[0][1] < _FEWEST:
        return []
    return [row for row in found if row[2] == into[0][0]]


def _grouped(found: Iterable[tuple[Sequence[str], str]]) -> dict[Pair, tuple[str, ...]]:
    pairs: dict[Pair, list[str]] = defaultdict(list)
    for (source, dest), event in found:
        pairs[source, dest].append(event)
    return {pair: tuple(events) for pair, events in pairs.items()}


def _successors(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for source, dest in pairs:
        found[source].append(dest)
    return found


def _depth_first(start: str, states: Sequence[str], edges: Iterable[Pair]) -> tuple[list[str], set[Pair]]:
    """Return the states in the order of a depth-first search, and the edges to an ancestor."""
    after = _successors(edges)
    order: list[str] = []
    back: set[Pair] = set()
    open_: set[str] = set()
    seen: set[str] = set()
    for root in (start, *states):
        if root in seen:
            continue
        seen.add(root)
        open_.add(root)
        order.append(root)
        stack: list[tuple[str, Iterator[str]]] = [(root, iter(after[root]))]
        while stack:
            state, rest = stack[-1]
            if (dest := next(rest, None)) is None:
                open_.discard(stack.pop()[0])
            elif dest in open_:
                back.add((state, dest))
            elif dest not in seen:
                seen.add(dest)
                open_.add(dest)
                order.append(dest)
                stack.append((dest, iter(after[dest])))
    return order, back


def _spine(start: str, rank: Mapping[str, int], forward: Sequence[Pair]) -> list[str]:
    """Return the longest forward path from the start; of equal ones the first of the table."""
    after = _successors(forward)
    far = dict.fromkeys(rank, 0)
    for state in sorted(rank, key=rank.__getitem__, reverse=True):
        far[state] = max((far[dest] + 1 for dest in after[state]), default=0)
    path = [start]
    while after[path[-1]]:
        path.append(max(after[path[-1]], key=far.__getitem__))
    return path


def _columns(
    order: Sequence[str],
    rank: Mapping[str, int],
    spine: Sequence[str],
    edges: Iterable[Pair],
    bus: str | None,
) -> dict[str, int]:
    column = dict.fromkeys(spine, 0)
    used = {(rank[state], 0) for state in column}
    if bus is not None and (rank[bus], 0) not in used:
        column[bus] = 0
        used.add((rank[bus], 0))
    near: dict[str, list[str]] = defaultdict(list)
    for source, dest in edges:
        near[source].append(dest)
        near[dest].append(source)
    for state in sorted((one for one in order if one not in column), key=rank.__getitem__):
        found = [column[other] for other in near[state] if other in column]
        best = max(1, round(sum(found) / len(found))) if found else 1
        column[state] = _nearest(best, rank[state], used)
        used.add((rank[state], column[state]))
    return column


def _nearest(best: int, rank: int, used: set[tuple[int, int]]) -> int:
    """Return the free column from 1 on that is nearest to `best`, the right one of two."""
    distance = 0
    while True:
        for column in (best + distance, best - distance):
            if column >= 1 and (rank, column) not in used:
                return column
        distance += 1


class Side(StrEnum):
    """A side of a box."""

    LEFT = "left"
    RIGHT = "right"
    TOP = "top"
    BOTTOM = "bottom"


PortKey: TypeAlias = tuple[str, ...]
LaneKey: TypeAlias = tuple[int, str, str]
"""Number of a gutter or channel, destination, and what distinguishes its lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRoute:
    """The way of the edges between two states."""

    rows: tuple[Row, ...]
    leaves: Side
    enters: Side
    gutter: int | None = None
    """The gutter beside the source; None for a way without lanes."""
    channel: int | None = None
    last_gutter: int | None = None
    """The gutter beside the destination, after the channel."""
    failure: bool = False

    @property
    def source(self) -> str:
        """The source of the edges."""
        return self.rows[0][0]

    @property
    def dest(self) -> str:
        """The destination of the edges."""
        return self.rows[0][2]

    @property
    def leaving_port(self) -> PortKey:
        """The port at the source."""
        return ("out", self.source, self.dest, "failure" if self.failure else "")

    @property
    def entering_port(self) -> PortKey:
        """The port at the destination, shared with other edges."""
        return ("in", self.dest, self.enters.value, "failure" if self.failure else "")

    def lane(self, number: int) -> LaneKey:
        """Return the key of its lane in a gutter or its track in a channel."""
        return (number, self.dest, "failure" if self.failure else self.enters.value)


def routes(found: Layers) -> list[EdgeRoute]:
    """Return a route for each pair of states, in the order of the table, and one for each failure edge."""
    ways = [
        _route(found, pair, tuple((pair[0], e, pair[1]) for e in events))
        for pair, events in found.edges.items()
    ]
    return [*ways, *(_failure_route(found, row) for row in found.failures)]


def _route(found: Layers, pair: Pair, rows: tuple[Row, ...]) -> EdgeRoute:
    source, dest = pair
    down = found.rank[dest] - found.rank[source]
    left, right = found.column[source], found.column[dest]
    if left == right:
        if down == 1:
            return EdgeRoute(rows=rows, leaves=Side.BOTTOM, enters=Side.TOP)
        if down > 1:
            return EdgeRoute(rows=rows, leaves=Side.RIGHT, enters=Side.RIGHT, gutter=left + 1)
        return EdgeRoute(rows=rows, leaves=Side.LEFT, enters=Side.LEFT, gutter=left)
    if left < right and down > 0 and _is_free(found, pair):
        return EdgeRoute(rows=rows, leaves=Side.RIGHT, enters=Side.TOP)
    side, gutter = (Side.RIGHT, left + 1) if left < right else (Side.LEFT, left)
    if abs(left - right) == 1:
        other = Side.LEFT if side is Side.RIGHT else Side.RIGHT
        return EdgeRoute(rows=rows, leaves=side, enters=other, gutter=gutter)
    return EdgeRoute(rows=rows, leaves=side, enters=Side.TOP, gutter=gutter, channel=found.rank[dest] - 1)


def _is_free(found: Layers, pair: Pair) -> bool:
    """Return whether no box is in the row of the source up to the column of the destination, and then above it."""
    (top, left), (bottom, right) = ((found.rank[state], found.column[state]) for state in pair)
    across = {(top, column) for column in range(left + 1, right + 1)}
    down = {(rank, right) for rank in range(top + 1, bottom)}
    return found.cells.isdisjoint(across | down)


def _failure_route(found: Layers, row: Row) -> EdgeRoute:
    """Return the way to the bus, the lane beside the failure state: right of column 0, left of another column."""
    source, _, dest = row
    column = found.column[source]
    enters, bus = (Side.LEFT, found.column[dest]) if found.column[dest] else (Side.RIGHT, 1)
    leaves, gutter = (Side.RIGHT, column + 1) if column < bus else (Side.LEFT, column)
    if gutter == bus:
        return EdgeRoute(rows=(row,), leaves=leaves, enters=enters, gutter=bus, failure=True)
    return EdgeRoute(
        rows=(row,),
        leaves=leaves,
        enters=enters,
        gutter=gutter,
        channel=found.rank[dest] - 1,
        last_gutter=bus,
        failure=True,
    )


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a lane or track that a route uses."""

    key: LaneKey
    low: float
    high: float


def lane_spans(found: Layers, ways: Iterable[EdgeRoute]) -> Iterator[Span]:
    """Yield the vertical parts: a row has the number 2 rank + 1, the channel below it 2 rank + 2."""
    for way in ways:
        start, end = (2 * found.rank[state] + 1 for state in (way.source, way.dest))
        turn = end if way.channel is None else 2 * way.channel + 2
        if way.gutter is not None:
            yield Span(way.lane(way.gutter), min(start, turn), max(start, turn))
        if way.last_gutter is not None:
            yield Span(way.lane(way.last_gutter), min(turn, end), max(turn, end))


def track_spans(found: Layers, ways: Iterable[EdgeRoute]) -> Iterator[Span]:
    """Yield the horizontal parts in channels: gutter n is at 2 n, column n at 2 n + 1."""
    for way in ways:
        if way.channel is not None and way.gutter is not None:
            end = 2 * found.column[way.dest] + 1 if way.last_gutter is None else 2 * way.last_gutter
            start = 2 * way.gutter
            yield Span(way.lane(way.channel), min(start, end), max(start, end))


def numbered(spans: Iterable[Span]) -> tuple[dict[LaneKey, int], dict[int, int]]:
    """Return the number of each lane within its gutter or channel, and how many each has.

    Lanes that do not meet have the same number; failures are first, then the short ones.
    """
    extent: dict[LaneKey, tuple[float, float]] = {}
    for span in spans:
        low, high = extent.get(span.key, (span.low, span.high))
        extent[span.key] = (min(low, span.low), max(high, span.high))
    number: dict[LaneKey, int] = {}
    lanes: dict[int, list[list[tuple[float, float]]]] = {}
    for key, (low, high) in sorted(extent.items(), key=_lane_order):
        there = lanes.setdefault(key[0], [])
        at = next((at for at, lane in enumerate(there) if all(high < a or b < low for a, b in lane)), None)
        if at is None:
            at = len(there)
            there.append([])
        there[at].append((low, high))
        number[key] = at
    return number, {place: len(there) for place, there in lanes.items()}


def _lane_order(item: tuple[LaneKey, tuple[float, float]]) -> tuple[bool, float, LaneKey]:
    key, (low, high) = item
    return (key[2] != "failure", high - low, key)


@dataclass(frozen=True, slots=True)
class StateBox:
    """The box of a state, and the lines of text below its name."""

    state: str
    area: Rectangle
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EdgeLabel:
    """The text of a route."""

    route: EdgeRoute
    area: Rectangle
    lines: tuple[str, ...]
    from_right: bool = False
    """Whether the text ends at its right side instead of starting at its left one."""


@dataclass(frozen=True, slots=True)
class EdgeLine:
    """The line of a route: points, each on the same x or y as the one before. It has an arrow at its end."""

    route: EdgeRoute
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLayout:
    """A graph with coordinates."""

    width: float
    height: float
    layers: Layers
    boxes: tuple[StateBox, ...]
    labels: tuple[EdgeLabel, ...]
    lines: tuple[EdgeLine, ...]
    start: tuple[float, float]
    """The end of the start marker's arrow."""


def united(lines: Iterable[EdgeLine]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return the segments that lines cover, each part once: dotted lines on one another would look solid."""
    spans: dict[tuple[bool, float], list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        for (ax, ay), (bx, by) in pairwise(line.points):
            across = ay == by
            start, end = sorted((ax, bx) if across else (ay, by))
            spans[across, ay if across else ax].append((start, end))
    found: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for (across, at), parts in spans.items():
        for start, end in _joined(parts):
            found.append(((start, at), (end, at)) if across else ((at, start), (at, end)))
    return found


def _joined(parts: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(parts):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


NAME_SIZE, TEXT_SIZE = 12.5, 11.0
# ---- coordinates ----

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
    marks = marks or GraphMarks()
    if graph.branches:
        notes = {state.value: str(fan) for state, fan in graph.branches.items()}
        marks = replace(marks, notes={**notes, **marks.notes})
    plan = _Plan(layers(graph), marks)
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
        names = max(width(shortened(state), NAME_SIZE) for state in texts)
        box_width = max(112.0, names + 28, _widest(texts.values()) + 28)
        height = {state: self._box_height(state, lines) for state, lines in texts.items()}
        left, total_width = self._across(box_width)
        top, total_height = self._down(height)
        for state, lines in texts.items():
            area = Rectangle(
                left[self.layers.column[state]], top[self.layers.rank[state]], box_width, height[state]
            )
            self.boxes[state] = StateBox(state, area, lines)
        # Set the height of each port. Edges at both sides of a gutter never have the same one.
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


# ---- the drawing ----

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
