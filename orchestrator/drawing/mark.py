"""Marks of one run or of many on a graph: the present state, the path taken, visits and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from orchestrator.drawing.element import duration, shortened

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
