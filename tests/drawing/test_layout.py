"""Where boxes, labels and lines of a drawing are: nothing covers anything else."""

from __future__ import annotations

import itertools
from enum import StrEnum
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import Edge, Graph
from orchestrator.cli.shipped import SHIPPED
from orchestrator.drawing.element import Rectangle
from orchestrator.drawing.svg import GraphLayout, GraphMarks, layout, united
from tests.tiers import examples


def made(edges: list[tuple[int, int]], *, failure: bool = False, suffix: str = "") -> Graph:
    """Return a graph of numbered states; each edge has an event of its own, and with `failure` all lead to an end."""
    count = max(itertools.chain.from_iterable(edges)) + 1
    names = [f"state_{number}{suffix}" for number in range(count)] + (["failed"] if failure else [])
    sources = {source for source, _ in edges}
    texts = [f"event_{number}{suffix}" for number in range(len(edges))] + ["failure"] * failure
    states = StrEnum("states", {f"S{at}": name for at, name in enumerate(names)})  # type: ignore[misc]
    events = StrEnum("events", {f"E{at}": text for at, text in enumerate(texts)})  # type: ignore[misc]
    rows = [Edge(texts[at], names[a], names[b], reenter=a == b) for at, (a, b) in enumerate(edges)]
    rows += [Edge("failure", names[at], "failed") for at in sorted(sources)] * failure
    ends = [name for at, name in enumerate(names) if at not in sources]
    return Graph(
        "made",
        states,
        events,
        states(names[0]),
        tuple(rows),
        terminal=frozenset(map(states, ends)),
        rest=frozenset(() if ends else states),
        failure=events("failure") if failure else None,
        strict=False,
    )


def covered(found: GraphLayout) -> list[str]:
    """Return what covers something else."""
    boxes = [(box.state, box.area) for box in found.boxes]
    labels = [(" ".join(label.lines), label.area) for label in found.labels]
    faults = [
        f"{one} is on {other}"
        for (one, first), (other, second) in itertools.combinations([*boxes, *labels], 2)
        if first.meets(second)
    ]
    whole = Rectangle(0, 0, found.width, found.height)
    faults += [f"{text} leaves the drawing" for text, area in [*boxes, *labels] if not _inside(area, whole)]
    for line in found.lines:
        for start, end in pairwise(line.points):
            area = _segment(start, end)
            assert start[0] == end[0] or start[1] == end[1]
            faults += [f"a line is on {state}" for state, box in boxes if area.meets(_inner(box))]
            if not _inside(area, whole):
                faults.append(f"the line of {line.route.rows[0]} leaves the drawing")
    return faults


def _inside(area: Rectangle, whole: Rectangle) -> bool:
    across = whole.x <= area.x and area.right <= whole.right
    return across and whole.y <= area.y and area.bottom <= whole.bottom


def _segment(start: tuple[float, float], end: tuple[float, float]) -> Rectangle:
    (left, right), (top, bottom) = sorted((start[0], end[0])), sorted((start[1], end[1]))
    return Rectangle(left, top, max(right - left, 0.1), max(bottom - top, 0.1))


def _inner(box: Rectangle) -> Rectangle:
    """Return a box without its border and the round sides of a terminal state."""
    return Rectangle(box.x + 18, box.y + 0.2, box.width - 36, box.height - 0.4)


@pytest.mark.parametrize("name", SHIPPED)
def test_in_the_drawing_of_a_shipped_graph_nothing_covers_anything_else(name: str) -> None:
    graph = SHIPPED[name]
    found = layout(graph)
    assert covered(found) == []
    assert {box.state for box in found.boxes} == {state.value for state in graph.states}
    drawn = {row for line in found.lines for row in line.route.rows}
    assert drawn == {(s.value, e.value, d.value) for s, e, d, _ in graph.rows if s != d}


@pytest.mark.parametrize("name", SHIPPED)
def test_notes_and_counts_make_room_for_themselves(name: str) -> None:
    graph = SHIPPED[name]
    taken = {(s.value, e.value, d.value): 1_234_567 for s, e, d, _ in graph.rows}
    notes = {state.value: "1,234,567 visits · 12 d 22 h" for state in graph.states}
    marked = layout(graph, GraphMarks(taken=taken, notes=notes))
    assert covered(marked) == []
    assert marked.layers == layout(graph).layers


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph whose states can be reached."""
    count = draw(st.integers(2, 14))
    tree = [(draw(st.integers(0, at - 1)), at) for at in range(1, count)]
    state = st.integers(0, count - 1)
    more = draw(st.lists(st.tuples(state, state), max_size=24))
    suffix = draw(st.sampled_from(["", "_with_a_long_name", "_" + "x" * 80, "_ẞ漢字"]))
    return made([*tree, *more], failure=draw(st.booleans()), suffix=suffix)


@given(graphs())
@settings(max_examples=examples(100), deadline=None)
def test_in_the_drawing_of_any_graph_nothing_covers_anything_else(graph: Graph) -> None:
    assert covered(layout(graph)) == []


def test_a_graph_of_200_states_is_drawn() -> None:
    chain = [(at, at + 1) for at in range(199)]
    back = [(at, at - 7) for at in range(10, 199, 5)]
    far = [(at, at + 20) for at in range(0, 170, 9)]
    found = layout(made([*chain, *back, *far], failure=True))
    assert len(found.boxes) == 201
    assert covered(found) == []


def test_the_longest_path_goes_straight_down_and_back_edges_are_on_the_left() -> None:
    found = layout(made([(0, 1), (1, 2), (2, 3), (0, 3), (3, 1), (1, 4)]))
    assert [found.layers.column[f"state_{at}"] for at in range(5)] == [0, 0, 0, 0, 1]
    assert [found.layers.rank[f"state_{at}"] for at in range(5)] == [0, 1, 2, 3, 2]
    lines = {(line.route.source, line.route.dest): line for line in found.lines}
    assert len(lines["state_0", "state_1"].points) == 2
    middle = next(box.area.middle for box in found.boxes if box.state == "state_0")
    assert all(x < middle for x, _ in lines["state_3", "state_1"].points)


def test_events_between_the_same_states_share_a_line_and_the_fifth_is_counted() -> None:
    found = layout(made([(0, 1)] * 6))
    [label] = found.labels
    assert len(found.lines) == 1
    assert label.lines == ("event_0", "event_1", "event_2", "and 3 more")


def test_an_edge_to_its_own_state_is_a_line_of_text_in_the_box() -> None:
    found = layout(made([(0, 0), (0, 1)]))
    assert [box.lines for box in found.boxes] == [("↻ event_0",), ()]


def test_lines_on_one_another_are_united() -> None:
    found = layout(made([(0, 1), (1, 2), (2, 3)], failure=True))
    parts = united(line for line in found.lines if line.route.failure)
    for one, other in itertools.combinations(parts, 2):
        assert (
            not _segment(*one).meets(_segment(*other)) or one[0][0] != one[1][0] or other[0][0] != other[1][0]
        )
    assert len(parts) == 5  # three stubs, the bus and the way into the state
