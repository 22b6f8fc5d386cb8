"""Every (state, event) pair of every graph against its accepted table in `tests/data/golden/graph`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from orchestrator.cli.shipped import SHIPPED
from orchestrator.errors import InvalidEvent
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.machines.pipeline.graph import EVENT_OF, PIPELINE
from orchestrator.machines.pipeline.model import OrchestrationState
from tests.derived import GRAPHS as GOLDEN
from tests.derived import HINT, ROOT, accepted_graph, accepted_rows, graph_text

Table = dict[tuple[str, str], str]
GRAPHS = list(SHIPPED.values())
IDS = list(SHIPPED)


@dataclass
class Context:
    iteration: int = 0


def table(name: str) -> Table:
    return {(source, event): dest for source, event, dest in accepted_rows(name)}


def open_(graph: Graph) -> Graph:
    """The graph with its guards allowing everything: here the rows are asked, not the budgets."""
    return replace(graph, edges=tuple(replace(edge, when=None) for edge in graph.edges), strict=False)


def run_in(machine: Machine, state: str) -> Run[Any, Any]:
    run: Run[Any, Any] = Run(machine, "r", Context(), None)
    run.cursor.state, run.cursor.entry_pending, run.cursor.started_at = state, False, 0.0
    return run


PAIRS = [
    pytest.param(graph, table(graph.name), state, event, id=f"{graph.name}-{state}-{event}")
    for graph in GRAPHS
    for state in graph.states
    for event in graph.events
]


@pytest.mark.parametrize("graph", GRAPHS, ids=IDS)
def test_the_graph_is_the_one_that_was_accepted(graph: Graph) -> None:
    """Another fingerprint refuses every stored run until a migration is registered."""
    assert graph_text(graph) == accepted_graph(graph.name), HINT


def test_each_accepted_graph_is_shipped() -> None:
    assert {file.stem for file in (ROOT / GOLDEN).glob("*.txt")} == set(SHIPPED), HINT


@pytest.mark.parametrize(("graph", "rows", "state", "event"), PAIRS)
def test_each_pair_commits_or_is_refused_as_the_table_says(
    graph: Graph, rows: Table, state: Any, event: Any
) -> None:
    machine = Machine(open_(graph), Hooks({}))
    run = run_in(machine, state.value)
    dest = rows.get((state.value, event.value))
    if dest is not None:
        asyncio.run(Driver(machine).fire(run, event))
        assert (run.cursor.state, run.seq) == (dest, 1)
        return
    with pytest.raises(InvalidEvent) as caught:
        asyncio.run(Driver(machine).fire(run, event))
    error = caught.value
    assert (error.graph, error.state, error.event) == (graph.name, state.value, event.value)
    assert error.allowed == tuple(sorted(known for source, known in rows if source == state.value))
    assert (run.cursor.state, run.seq) == (state.value, 0)


@pytest.mark.parametrize("graph", GRAPHS, ids=IDS)
def test_the_graph_is_clean(graph: Graph) -> None:
    assert graph.lint() == []


@pytest.mark.parametrize("graph", GRAPHS, ids=IDS)
def test_every_state_with_work_has_a_way_to_fail_that_no_guard_can_bar(graph: Graph) -> None:
    if graph.failure is not None:
        assert all(graph.failure_event(state) for state in graph.states if graph.is_working(state))


STATES = [
    pytest.param(source, dest, id=f"{source}-{dest}")
    for source in OrchestrationState
    for dest in OrchestrationState
]


@pytest.mark.parametrize(("source", "dest"), STATES)
def test_of_the_pipeline_each_pair_of_states_has_the_one_event_that_the_table_says_or_none(
    source: OrchestrationState, dest: OrchestrationState
) -> None:
    rows = {(state, to): event for (state, event), to in table("pipeline").items()}
    event = EVENT_OF.get((source, dest))
    assert event == rows.get((source.value, dest.value))
    machine = Machine(open_(PIPELINE), Hooks({}))
    run = run_in(machine, source.value)
    if event is not None:
        asyncio.run(Driver(machine).fire(run, event))
        assert run.cursor.state == dest
        return
    for other in PIPELINE.events:  # and no other event leads there either
        run = run_in(machine, source.value)
        if run.can(other):
            asyncio.run(Driver(machine).fire(run, other))
            assert run.cursor.state != dest
