from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from orchestrator.errors import Refused
from orchestrator.kernel.fact import GuardEvaluated, RunCompleted, RunParked
from orchestrator.kernel.graph import Edge, Graph
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.testing.coverage import GraphCoverage
from orchestrator.testing.paths import (
    Path,
    WalkDiverged,
    edge_paths,
    parametrize_paths,
    path_id,
    shortest_paths,
    simple_paths,
    walk,
)
from orchestrator.testing.purity import strict_guards
from tests.testing.gate import GATE, Event, State, Visitor


def joins(graph: Graph, path: Path) -> bool:
    begins = [graph.initial, *(hop.dest for hop in path)]
    return [hop.source for hop in path] == begins[:-1]


# ---- seeking ----


def test_the_shortest_paths_lead_to_every_state() -> None:
    paths = shortest_paths(LLM_LOOP)
    assert paths.keys() == set(LLM_LOOP.states)
    for state, path in paths.items():
        assert joins(LLM_LOOP, path)
        assert not path or path[-1].dest == state


def test_of_two_ways_the_shorter_one_is_found_and_of_the_initial_state_none() -> None:
    lengths = {state.value: len(path) for state, path in shortest_paths(GATE).items()}
    assert lengths == {"idle": 0, "checking": 1, "open": 2, "shut": 2}


def test_there_is_an_edge_path_for_each_row_of_the_table_and_it_ends_with_it() -> None:
    paths = edge_paths(LLM_LOOP)
    assert [tuple(path[-1]) for path in paths] == list(LLM_LOOP.rows)
    assert all(joins(LLM_LOOP, path) for path in paths)


def test_simple_paths_visit_no_state_twice() -> None:
    paths = list(simple_paths(LLM_LOOP))
    assert len({path_id(path) for path in paths}) == len(paths)
    for path in paths:
        assert joins(LLM_LOOP, path)
        assert path[-1].dest in LLM_LOOP.terminal
        assert len({hop.dest for hop in path} | {LLM_LOOP.initial}) == len(path) + 1


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        (None, ["knock.decide.leave->shut", "knock.decide->shut"]),
        (State.SHUT, ["knock.decide.leave->shut", "knock.decide->shut"]),
        (State.IDLE, ["start"]),
        ({State.OPEN, State.CHECKING}, ["knock->checking", "knock.decide->open"]),
    ],
)
def test_simple_paths_end_where_they_are_told_to(to: State | set[State] | None, expected: list[str]) -> None:
    assert [path_id(path) for path in simple_paths(GATE, to=to)] == expected


def test_an_id_says_the_events_and_where_they_lead() -> None:
    assert [path_id(path) for path in edge_paths(GATE)] == [
        "look->idle",
        "knock->checking",
        "knock.decide->open",
        "knock.decide->idle",
        "knock.decide->shut",
        "knock.decide.leave->shut",
    ]
    assert path_id(()) == "start"


# ---- walking ----


@parametrize_paths(LLM_LOOP)
async def test_every_edge_of_the_llm_loop_can_be_walked(path: Path) -> None:
    walked = await walk(LLM_LOOP, path, force=True)
    assert [(fact.source, fact.event, fact.dest) for fact in walked.transitions] == [hop[:3] for hop in path]
    assert walked.run.state == path[-1].dest


@parametrize_paths(LLM_LOOP, simple_paths, argname="way")
async def test_every_simple_path_of_the_llm_loop_ends_the_run(way: Path) -> None:
    walked = await walk(LLM_LOOP, way, force=True)
    assert walked.run.ended
    assert isinstance(walked.facts[-1], RunCompleted)


async def test_the_edge_paths_together_cover_the_whole_llm_loop() -> None:
    coverage = GraphCoverage(LLM_LOOP)
    for path in edge_paths(LLM_LOOP):
        await walk(LLM_LOOP, path, force=True, observers=[coverage])
    assert coverage.states.percent == coverage.transitions.percent == 100


@parametrize_paths(GATE)
async def test_force_takes_the_row_of_the_path_among_rivals(path: Path) -> None:
    walked = await walk(GATE, path, force=True)
    assert [fact.dest for fact in walked.transitions] == [hop.dest for hop in path]


@parametrize_paths(GATE)
async def test_a_path_leads_through_the_strict_graph_too(path: Path) -> None:
    assert (await walk(strict_guards(GATE), path, force=True)).run.state == path[-1].dest


async def test_a_forced_guard_keeps_its_name_in_the_facts() -> None:
    walked = await walk(GATE, edge_paths(GATE)[3], force=True)
    asked = [(fact.guard, fact.result) for fact in walked.facts if isinstance(fact, GuardEvaluated)]
    assert asked == [("is_member", "deny"), ("is_known", "allow")]


async def test_guards_are_honoured_unless_forced() -> None:
    path = next(path for path in edge_paths(LLM_LOOP) if path[-1].event == "budget_ok")
    used_up = LoopContext([], Limits(max_iterations=3), 0, iteration=3)
    with pytest.raises(Refused, match="iterations: 3 of 3 used"):
        await walk(LLM_LOOP, path, used_up)
    left = LoopContext([], Limits(max_iterations=3), 0, iteration=2)
    assert (await walk(LLM_LOOP, path, left)).run.state == "await_llm"


async def test_a_guard_that_chooses_another_row_is_reported() -> None:
    to_open = edge_paths(GATE)[2]
    with pytest.raises(
        WalkDiverged, match="'decide' in 'checking' led to 'idle', the path says 'open'"
    ) as caught:
        await walk(GATE, to_open, Visitor(known=True))
    assert (caught.value.hop.dest, caught.value.arrived) == (State.OPEN, State.IDLE)


async def test_a_guard_needs_a_context_or_force() -> None:
    with pytest.raises(ValueError, match=r"knock\.decide->open: a guard is evaluated on the way"):
        await walk(GATE, edge_paths(GATE)[2])


async def test_a_path_to_a_waiting_state_parks_the_run_and_one_to_a_working_state_leaves_it_there() -> None:
    parked = await walk(GATE, edge_paths(GATE)[0])
    assert isinstance(parked.facts[-1], RunParked)
    working = await walk(GATE, edge_paths(GATE)[1])
    assert working.facts[-1] == working.transitions[-1]
    assert not working.run.ended


async def test_an_internal_edge_in_mid_path_does_not_lose_the_way() -> None:
    look, knock = edge_paths(GATE)[:2]
    walked = await walk(GATE, (*look, *knock))
    assert [fact.event for fact in walked.transitions] == ["look", "knock"]


async def test_a_walk_leaves_the_graph_as_it_was() -> None:
    before = replace(GATE)
    await walk(GATE, edge_paths(GATE)[3], force=True)
    assert GATE.edges == before.edges


def test_a_walk_runs_without_an_async_plugin() -> None:
    looped = GATE.extend(edges=[Edge(Event.LEAVE, (State.IDLE,), State.SHUT)])
    path = next(path for path in edge_paths(looped) if path_id(path) == "leave->shut")
    assert asyncio.run(walk(looped, path)).run.ended
