"""Boxes, labels and lines with coordinates in pixels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.drawing.layering import Layers
from orchestrator.drawing.routing import EdgeRoute


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right side."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its bottom."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """The x of its middle."""
        return self.x + self.width / 2

    def meets(self, other: Rectangle) -> bool:
        """Return whether two rectangles have an area in common."""
        apart = self.right <= other.x or other.right <= self.x
        return not (apart or self.bottom <= other.y or other.bottom <= self.y)


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
