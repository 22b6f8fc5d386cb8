"""A graph as a list of states, for graphs with too many states for a drawing. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from markupsafe import Markup

from orchestrator.drawing.mark import GraphMarks
from orchestrator.drawing.svg import svg
from orchestrator.kernel.graph import Graph

DRAWN: Final = 40
"""Most states of a graph that is drawn."""
_STEPS: Final = 2
"""Steps from the centre to the states that are listed at once."""


class Way(NamedTuple):
    """An edge that leaves a state."""

    event: str
    dest: str
    times: int


class ListedState(NamedTuple):
    """A state with the ways out of it."""

    name: str
    note: str
    is_centre: bool
    ways: list[Way]


class StateList(NamedTuple):
    """The states around a centre, and the others."""

    centre: str
    near: list[ListedState]
    others: list[ListedState]


class GraphView(NamedTuple):
    """A graph on a page: its drawing, or its list if it has more states than DRAWN; neither for an unknown graph."""

    drawing: Markup
    states: StateList | None

    @classmethod
    def of(cls, graph: Graph | None, marks: GraphMarks, centre: str) -> Self:
        """Return the view of a graph with these marks. The list shows the states around `centre` first."""
        if graph is None:
            return cls(Markup(), None)
        if len(graph.states) > DRAWN:
            return cls(Markup(), state_list(graph, marks, centre))
        return cls(Markup(svg(graph, marks, styled=False)), None)  # noqa: S704 - the drawing escapes its texts


def state_list(graph: Graph, marks: GraphMarks, centre: str) -> StateList:
    """Return the states of a graph: those within two steps of the centre, in either direction, and the others.

    Args:
        graph: The graph.
        marks: The path taken.
        centre: A state; an unknown one is replaced by the initial state.
    """
    names = [state.value for state in graph.states]
    centre = centre if centre in names else graph.initial.value
    rows = [(source, edge.event, edge.dest) for edge in graph.edges for source in edge.sources]
    rows = [(str(source), str(event), str(dest)) for source, event, dest in rows]
    near = _near(centre, rows)
    listed = [_listed(name, rows, marks, centre) for name in names]
    return StateList(
        centre,
        [state for state in listed if state.name in near],
        [state for state in listed if state.name not in near],
    )


def _near(centre: str, rows: Iterable[tuple[str, str, str]]) -> set[str]:
    near = {centre}
    for _ in range(_STEPS):
        near |= {dest for source, _, dest in rows if source in near} | {
            source for source, _, dest in rows if dest in near
        }
    return near


def _listed(name: str, rows: Iterable[tuple[str, str, str]], marks: GraphMarks, centre: str) -> ListedState:
    ways = [
        Way(event, dest, marks.times(name, event, dest)) for source, event, dest in rows if source == name
    ]
    return ListedState(
        name, marks.notes.get(name, ""), name == centre, sorted(ways, key=lambda way: -way.times)
    )
