"""The drawing as text: well formed, escaped, the same each time, and with the marks of a run.

Where boxes, labels and lines of a drawing are: nothing covers anything else.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import Edge, Graph
from orchestrator.cli.shipped import SHIPPED
from orchestrator.drawing import stylesheet as style
from orchestrator.drawing.element import Rectangle, duration
from orchestrator.drawing.stylesheet import STATUSES, stylesheet
from orchestrator.drawing.svg import GraphLayout, GraphMarks, layout, svg, united
from orchestrator.kernel.branch import ANY, Fan
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.runs.listing import status_name
from orchestrator.runtime.runs.story import Story, path_marks, run_marks
from tests.cli.recorded import Call, Tape
from tests.tiers import examples

_SVG = "{http://www.w3.org/2000/svg}"
PATH = {
    ("init", "start_loop", "await_llm"): 1,
    ("await_llm", "llm_response", "evaluate_response"): 7,
    ("evaluate_response", "response_with_tools", "process_tools"): 7,
}


def root_of(text: str) -> ET.Element:
    """Return a drawing that was made here, parsed."""
    return ET.fromstring(text)  # noqa: S314


def groups(text: str) -> list[tuple[set[str], ET.Element]]:
    """Return the groups of a drawing with their classes."""
    return [(set(one.get("class", "").split()), one) for one in root_of(text).iter(f"{_SVG}g")]


def box(text: str, state: str) -> set[str]:
    """Return the classes of a state."""
    [found] = [classes for classes, one in groups(text) if one.get("data-state") == state]
    return found


def way(text: str, title: str) -> list[set[str]]:
    """Return the classes of the lines with a tooltip."""
    return [classes for classes, one in groups(text) if one.findtext(f"{_SVG}title") == title]


@pytest.mark.parametrize("name", SHIPPED)
def test_each_shipped_graph_is_well_formed_and_has_every_state_and_its_start(name: str) -> None:
    graph = SHIPPED[name]
    root = root_of(svg(graph))
    states = [one.get("data-state") for one in root.iter(f"{_SVG}g") if one.get("data-state")]
    assert sorted(map(str, states)) == sorted(state.value for state in graph.states)
    assert root.findtext(f"{_SVG}title") == f"{name}: {len(graph.states)} states, {len(graph.rows)} edges"
    assert len(list(root.iter(f"{_SVG}circle"))) == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_a_strict_content_security_policy_allows_a_drawing_without_stylesheet(name: str) -> None:
    root = root_of(svg(SHIPPED[name], styled=False))
    for one in root.iter():
        assert one.tag.removeprefix(_SVG) in {"svg", "title", "rect", "g", "path", "circle", "text", "tspan"}
        assert not [name for name in one.attrib if name == "style" or name.startswith("on") or "href" in name]


def test_the_same_graph_gives_the_same_bytes_in_every_process() -> None:
    code = (
        "from orchestrator.cli.shipped import SHIPPED\n"
        "from orchestrator.drawing.svg import svg\n"
        "print(*map(svg, SHIPPED.values()))"
    )
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": other},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == " ".join(map(svg, SHIPPED.values())) + "\n"


def test_markup_in_names_is_escaped() -> None:
    markup, hidden, colour = "<script>alert(1)</script>", 'b"&amp;&', "[31m"
    states = StrEnum("states", {"A": markup, "B": hidden, "C": colour})
    events = StrEnum("events", {"GO": "</text>", "ON": "a&b"})
    rows = (Edge("</text>", markup, hidden), Edge("a&b", hidden, colour))
    end = frozenset({states(colour)})
    graph = Graph("<odd>", states, events, states(markup), rows, terminal=end, strict=False)
    text = svg(graph)
    names = [one.get("data-state") for _, one in groups(text) if one.get("data-state")]
    assert names == ["<script>alert(1)</script>", 'b"&amp;&', "[31m"]
    assert "<script" not in text
    assert root_of(text).findtext(f"{_SVG}title", "").startswith("<odd>: ")


def test_a_name_that_is_too_long_is_shortened_and_whole_in_its_tooltip() -> None:
    long = "n" * 500
    states = StrEnum("states", {"A": long, "B": "end"})
    events = StrEnum("events", {"GO": "e" * 500})
    graph = Graph(
        "long",
        states,
        events,
        states(long),
        (Edge("e" * 500, long, "end"),),
        terminal=frozenset({states("end")}),
    )
    texts = ["".join(one.itertext()) for one in root_of(svg(graph)).iter(f"{_SVG}text")]
    assert max(map(len, texts)) == 36
    assert f"<title>{long}</title>" in svg(graph)


def test_the_present_state_is_lit_in_the_colour_of_its_status() -> None:
    text = svg(LLM_LOOP, GraphMarks(current="process_tools", status="waiting"))
    assert {"current", "waiting"} <= box(text, "process_tools")
    assert "current" not in box(text, "init")
    unknown = svg(LLM_LOOP, GraphMarks(current="init", status='"><script>'))
    assert {"current", "running"} <= box(unknown, "init")


def test_every_outcome_of_a_run_has_a_colour() -> None:
    assert {outcome.value for outcome in Outcome} <= STATUSES.keys()
    assert all(f".{status} .box" in stylesheet() for status in STATUSES)


def test_the_colours_of_statuses_are_in_one_table() -> None:
    """No other source of pages, drawings or the terminal repeats one."""
    table = Path(style.__file__)
    sources = [*table.parent.rglob("*.py"), *(table.parents[1] / "console").rglob("*.*s")]
    for source in {*sources} - {table}:
        text = source.read_text(encoding="utf-8")
        assert [one.name for one in STATUSES.values() if one.light in text or one.dark in text] == [], source


def test_the_path_taken_is_drawn_wider_and_all_else_is_dimmed() -> None:
    text = svg(LLM_LOOP, GraphMarks(current="process_tools", taken=PATH))
    assert way(text, "await_llm: llm_response → evaluate_response") == [{"way", "taken", "spine", "weight-2"}]
    assert way(text, "init: start_loop → await_llm") == [{"way", "taken", "spine"}]
    assert way(text, "process_tools: tools_executed → update_budgets") == [{"way", "unused"}]
    assert "unvisited" in box(text, "finalize")
    assert "unvisited" not in box(text, "evaluate_response")
    assert '<tspan class="times">×7</tspan>' in text


def test_a_failure_edge_that_was_taken_is_drawn_in_full_and_the_others_are_one_dotted_line() -> None:
    failed = ("await_llm", "failure", "terminate_error")
    plain, marked = svg(LLM_LOOP), svg(LLM_LOOP, GraphMarks(taken={**PATH, failed: 1}))
    title = "await_llm: failure → terminate_error"
    assert way(plain, title) == []
    assert way(marked, title) == [{"way", "failure", "taken"}]
    assert plain.count('class="way failure"') == marked.count('class="way failure"') == 1
    assert ">failure from 7 states</text>" in plain


def test_a_state_that_took_more_time_is_darker() -> None:
    shares = {"await_llm": 0.76, "process_tools": 0.2, "init": 0.01}
    text = svg(LLM_LOOP, GraphMarks(share=shares))
    heats = {state: next((one for one in box(text, state) if one.startswith("heat")), "") for state in shares}
    assert heats == {"await_llm": "heat-3", "process_tools": "heat-2", "init": "heat-1"}
    assert not any(one.startswith("heat") for one in box(text, "finalize"))


# ---- marks ----


def story_of(tape: Tape) -> Story:
    drafts = [one for append in tape.appends for one in append]
    records = [Record(0, 1, "created", tape.created, "")]
    records += [Record(at, 1, one.kind, one.body, "") for at, one in enumerate(drafts, 1)]
    return Story.of(tape.run_id, records)


def head(status: str, owner: str | None = None, outcome: str = "") -> RunHead:
    return RunHead("r", "llm_loop", "", status, 0, 1, owner, 0.0, 0.0, outcome=outcome)


def test_an_edge_has_its_visits_and_the_time_before_it() -> None:
    story = story_of(
        Tape("r", began=100.0).begin().calls(Call("look")).calls(Call("look"), seconds=3.0).completes()
    )
    marks = run_marks(head("ended", outcome="completed"), story, 200.0)
    edge = ("await_llm", "llm_response", "evaluate_response")
    assert (marks.taken or {})[edge] == 3
    assert marks.seconds[edge] == pytest.approx(5.0)
    assert marks.label(*edge) == "llm_response ×3 · 5 s"
    assert marks.notes["await_llm"] == "3 visits · 5 s"
    drawn = svg(LLM_LOOP, marks)
    assert 'llm_response <tspan class="times">×3</tspan> · 5 s</text>' in drawn
    assert {"current", "completed"} <= box(drawn, "finalize")


def test_heat_is_the_share_of_the_time_or_of_the_visits() -> None:
    history = story_of(Tape("r").begin().calls(Call("look")).completes()).history
    time, visits = path_marks(history).share, path_marks(history, heat="visits").share
    assert sum(time.values()) == pytest.approx(1.0)
    assert sum(visits.values()) == pytest.approx(1.0)
    assert time["await_llm"] > 0.6
    assert visits["await_llm"] == visits["evaluate_response"]


def test_a_run_that_waits_for_a_person_is_lit_with_the_time_since() -> None:
    tape = Tape("r", began=100.0).begin().calls(Call("look")).asks(Call("pay"))
    story = story_of(tape)
    marks = run_marks(replace(head("parked"), waiting="pay"), story, tape.at + 192)
    assert (marks.current, marks.status) == ("process_tools", "waiting")
    assert marks.notes["process_tools"] == "visit 2, waiting 3 m 12 s"


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (head("open", "worker"), "running"),
        (head("open"), "orphaned"),
        (head("parked"), "paused"),
        (replace(head("parked"), waiting="pay"), "waiting"),
        (head("ended", outcome="no_progress"), "no_progress"),
    ],
)
def test_the_status_of_a_run_is_a_colour(found: RunHead, status: str) -> None:
    assert status_name(found) == status
    assert f"--fsm-{status}:" in stylesheet()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.74, "740 ms"),
        (2.34, "2.3 s"),
        (41.4, "41 s"),
        (59.7, "1 m"),
        (192, "3 m 12 s"),
        (3600, "1 h"),
        (7500, "2 h 5 m"),
        (90000, "1 d 1 h"),
        (-1, "0 s"),
    ],
)
def test_a_length_of_time_has_one_or_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


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


def test_a_state_with_branches_says_how_many() -> None:
    graph = LLM_LOOP.extend(branches={"process_tools": Fan(max=9, join=ANY)})
    assert "up to 9 branches" in svg(graph)
    assert "branches" not in svg(LLM_LOOP)


def test_lines_on_one_another_are_united() -> None:
    found = layout(made([(0, 1), (1, 2), (2, 3)], failure=True))
    parts = united(line for line in found.lines if line.route.failure)
    for one, other in itertools.combinations(parts, 2):
        assert (
            not _segment(*one).meets(_segment(*other)) or one[0][0] != one[1][0] or other[0][0] != other[1][0]
        )
    assert len(parts) == 5  # three stubs, the bus and the way into the state
