"""The table of `map_reduce`: a branch for each document, then one that combines their values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.kernel.branch import Fan, Join
from orchestrator.kernel.graph import Edge, Graph


class MapReduceState(StrEnum):
    """The states."""

    MAPPING = "mapping"
    REDUCING = "reducing"
    REDUCED = "reduced"
    FAILED = "failed"


class MapReduceEvent(StrEnum):
    """The events."""

    MAPPED = "mapped"
    COMBINED = "combined"
    TOO_FEW = "too_few"
    FAILURE = "failure"


@dataclass
class MapReduceContext:
    """The data of a run."""

    documents: list[Any]
    """JSON data: texts, or whatever `prompt` makes a text of."""
    parts: list[Any] = field(default_factory=list)
    """The value of the mapper for each document, as JSON data; None for one that did not complete."""
    errors: list[str] = field(default_factory=list)
    """Why the branch of each document did not complete; empty for one that did."""
    output: Any = None
    """The output of the reducer, as JSON data."""
    iteration: int = 0


S, E = MapReduceState, MapReduceEvent


def map_reduce_graph(most: int, concurrency: int, join: Join) -> Graph:
    """Return the graph for at most `most` documents; the arguments are those of Fan. Raises GraphError."""
    return Graph(
        name="map_reduce",
        states=S,
        events=E,
        initial=S.MAPPING,
        terminal=frozenset((S.REDUCED, S.FAILED)),
        failure=E.FAILURE,
        context=MapReduceContext,
        edges=(
            Edge(E.MAPPED, (S.MAPPING,), S.REDUCING),
            Edge(E.COMBINED, (S.REDUCING,), S.REDUCED),
            Edge(E.TOO_FEW, (S.MAPPING,), S.FAILED),
            Edge(E.FAILURE, (S.MAPPING, S.REDUCING), S.FAILED),
        ),
        branches={S.MAPPING: Fan(most, concurrency, join), S.REDUCING: Fan(1)},
    )
