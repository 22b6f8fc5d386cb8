"""The way of each edge through the grid: the sides of boxes, gutters between columns, channels between ranks.

- to the next rank of the same column: straight down
- to the right, if all cells on the way are empty: to the right and down
- further down in its column: on its right side; back in its column: on its left side
- to a neighbour column: through the gutter between the two
- to any other column: through the gutter beside the source and the channel above the destination

Edges to the same state share their lane in a gutter and their track in a channel. Gutter n is left of column n, channel
n is below rank n.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from orchestrator.drawing.layering import Layers, Pair, Row


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
        return _in_a_column(rows, down, left)
    if left < right and down > 0 and _is_free(found, pair):
        return EdgeRoute(rows=rows, leaves=Side.RIGHT, enters=Side.TOP)
    side, gutter = (Side.RIGHT, left + 1) if left < right else (Side.LEFT, left)
    if abs(left - right) == 1:
        other = Side.LEFT if side is Side.RIGHT else Side.RIGHT
        return EdgeRoute(rows=rows, leaves=side, enters=other, gutter=gutter)
    return EdgeRoute(rows=rows, leaves=side, enters=Side.TOP, gutter=gutter, channel=found.rank[dest] - 1)


def _in_a_column(rows: tuple[Row, ...], down: int, column: int) -> EdgeRoute:
    if down == 1:
        return EdgeRoute(rows=rows, leaves=Side.BOTTOM, enters=Side.TOP)
    if down > 1:
        return EdgeRoute(rows=rows, leaves=Side.RIGHT, enters=Side.RIGHT, gutter=column + 1)
    return EdgeRoute(rows=rows, leaves=Side.LEFT, enters=Side.LEFT, gutter=column)


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
