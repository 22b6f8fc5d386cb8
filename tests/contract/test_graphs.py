"""Every (state, event) pair of every graph against its accepted table in `tests/data/golden/graph`."""

from __future__ import annotations

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


@pytest.mark.parametrize("graph", GRAPHS, ids=IDS)
def test_the_graph_is_the_one_that_was_accepted(graph: Graph) -> None:
    """Another fingerprint refuses every stored run until a migration is registered."""
    assert graph_text(graph) == accepted_graph(graph.name), HINT


def test_each_accepted_graph_is_shipped() -> None:
    assert {file.stem for file in (ROOT / GOLDEN).glob("*.txt")} == set(SHIPPED), HINT


@pytest.mark.parametrize("graph", GRAPHS, ids=IDS)
async def test_each_pair_of_a_state_and_an_event_commits_or_is_refused_as_the_table_says(
    graph: Graph,
) -> None:
    rows, machine = table(graph.name), Machine(open_(graph), Hooks({}))
    found = {
        (state.value, event.value): await after(machine, state, event)
        for state in graph.states
        for event in graph.events
    }
    assert found == {pair: expected(rows, pair) for pair in found}


async def after(machine: Machine, state: Any, event: Any) -> object:
    """Return the state and the number of commits after an event, and what its refusal says."""
    run = run_in(machine, state.value)
    try:
        await Driver(machine).fire(run, event)
    except InvalidEvent as error:
        refused = (error.graph == machine.graph.name, error.state, error.event, error.allowed)
        return run.cursor.state, run.seq, refused
    return run.cursor.state, run.seq


def expected(rows: Table, pair: tuple[str, str]) -> object:
    state, event = pair
    if pair in rows:
        return rows[pair], 1
    allowed = tuple(sorted(known for source, known in rows if source == state))
    return state, 0, (True, state, event, allowed)


@pytest.mark.parametrize("graph", GRAPHS, ids=IDS)
def test_the_graph_is_clean(graph: Graph) -> None:
    assert graph.lint() == []


@pytest.mark.parametrize("graph", GRAPHS, ids=IDS)
def test_every_state_with_work_has_a_way_to_fail_that_no_guard_can_bar(graph: Graph) -> None:
    if graph.failure is not None:
        assert all(graph.failure_event(state) for state in graph.states if graph.is_working(state))


async def test_of_the_pipeline_each_pair_of_states_has_the_one_event_that_the_table_says_or_none() -> None:
    machine = Machine(open_(PIPELINE), Hooks({}))
    rows = {(source, dest): event for (source, event), dest in table("pipeline").items()}
    reached: dict[tuple[str, str], list[str]] = {}
    for source in OrchestrationState:
        for event in PIPELINE.events:
            run = run_in(machine, source.value)
            if run.can(event):
                await Driver(machine).fire(run, event)
                reached.setdefault((source.value, str(run.cursor.state)), []).append(event.value)
    assert {(source.value, dest.value): event.value for (source, dest), event in EVENT_OF.items()} == rows
    assert reached == {pair: [event] for pair, event in rows.items()}
