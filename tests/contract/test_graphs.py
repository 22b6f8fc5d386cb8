"""Every (state, event) pair of every graph against the seed's own table, written out here row by row."""

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
from orchestrator.machines.approval.graph import APPROVAL
from orchestrator.machines.code_mode.graph import CODE_MODE
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.pipeline.graph import EVENT_OF, PIPELINE
from orchestrator.machines.pipeline.model import OrchestrationState
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.tools_mode.graph import TOOLS_MODE

# Seed 003, with `failure` from init and finalize too (P3) and `restart_loop` as the eleventh event (P10).
LLM_LOOP_TABLE = """
init               start_loop           await_llm
await_llm          llm_response         evaluate_response
evaluate_response  response_no_tool     handle_completion
evaluate_response  response_with_tools  process_tools
process_tools      tools_executed       update_budgets
update_budgets     budget_ok            await_llm
update_budgets     budget_exceeded      terminate_error
update_budgets     restart_loop         await_llm
handle_completion  completion_retry     await_llm
handle_completion  completion_success   finalize
init               failure              terminate_error
await_llm          failure              terminate_error
evaluate_response  failure              terminate_error
process_tools      failure              terminate_error
update_budgets     failure              terminate_error
handle_completion  failure              terminate_error
finalize           failure              terminate_error
"""

# Seed 000, row by row, each with the event we gave it; the last two are the edges that the seed lacks (4.4).
PIPELINE_TABLE = """
initialized   start             planning
initialized   failure           failed
planning      plan_ready        validating
planning      failure           failed
planning      budget_exhausted  budget_exhausted
validating    plan_valid        implementing
validating    plan_invalid      planning
validating    failure           failed
implementing  implemented       judging
implementing  failure           failed
implementing  budget_exhausted  budget_exhausted
judging       approved          succeeded
judging       soft_failure      implementing
judging       hard_failure      planning
judging       failure           failed
validating    budget_exhausted  budget_exhausted
judging       budget_exhausted  budget_exhausted
"""

# Seed 002 with the resolutions R1, R3–R5, R7, R12 and R14 (systems 6.5). The events are ours where one trigger
# of the seed leads to several states; `tests/machines/test_ralph_seed.py` has the seed's own names, row by row.
RALPH_TABLE = """
Initializing  session_resolved       Planning
Initializing  execution_resumed      Executing
Initializing  review_resumed         Reviewing
Initializing  completion_resumed     Complete
Initializing  error                  Failed
Planning      qa_needed              Planning
Planning      new_requirements       Planning
Planning      planner_completed      Executing
Planning      planner_blocked        Failed
Planning      error                  Failed
Executing     new_requirements       Planning
Executing     task_selected          Executing
Executing     executor_completed     Reviewing
Executing     executor_failed        Executing
Executing     executor_blocked       Planning
Executing     review_pending         Reviewing
Executing     no_tasks_remaining     Complete
Executing     attempts_exhausted     Failed
Executing     error                  Failed
Reviewing     qualified              Executing
Reviewing     rework                 Executing
Reviewing     attempts_exhausted     Failed
Reviewing     error                  Failed
Complete      new_requirements       Planning
Complete      holistic_check_passed  Done
Complete      holistic_check_failed  Planning
Complete      error                  Failed
"""

# Seed 004, row by row (systems.md 7.2); then the policy that may stop any machine (L10), and the way to fail.
CODE_MODE_TABLE = """
INIT          DepthExceeded         SHALLOW_CALL
INIT          LLMResponseReceived   PROMPTING
PROMPTING     FinalAnswerFound      DONE
PROMPTING     CodeBlocksFound       EXECUTING
EXECUTING     FinalAnswerFound      DONE
EXECUTING     MaxIterationsReached  DONE
EXECUTING     CodeExecuted          PROMPTING
SHALLOW_CALL  LLMResponseReceived   DONE
PROMPTING     PolicyStop            DONE
EXECUTING     PolicyStop            DONE
INIT          Failed                DONE
PROMPTING     Failed                DONE
EXECUTING     Failed                DONE
SHALLOW_CALL  Failed                DONE
"""

# Seed 004 (systems.md 7.3), and the way to fail.
TOOLS_MODE_TABLE = """
INIT             LLMResponseReceived   PROMPTING
PROMPTING        NoToolCalls           DONE
PROMPTING        PolicyStop            DONE
PROMPTING        ToolCallsFound        EXECUTING_TOOLS
EXECUTING_TOOLS  ToolsExecuted         PROMPTING
EXECUTING_TOOLS  MaxIterationsReached  DONE
EXECUTING_TOOLS  PolicyStop            DONE
INIT             Failed                DONE
PROMPTING        Failed                DONE
EXECUTING_TOOLS  Failed                DONE
"""

# Seed 001's twenty-two rows, in its order, each with the event of its trigger.
APPROVAL_TABLE = """
Idle              submit             ExtractingIntent
ExtractingIntent  intent_validated   Planning
ExtractingIntent  intent_rejected    Idle
ExtractingIntent  ai_error           Failed
Planning          plan_validated     AwaitingApproval
Planning          plan_invalid       Failed
Planning          cancel             Idle
AwaitingApproval  approve            Executing
AwaitingApproval  reject             Idle
AwaitingApproval  request_changes    Planning
Executing         steps_completed    Completed
Executing         step_failed        Failed
Executing         pause              Paused
Executing         cancel             Cancelling
Paused            resume             Executing
Paused            cancel             Cancelling
Paused            resume_failed      Failed
Failed            acknowledge        Idle
Failed            retry              Planning
Completed         acknowledge        Idle
Cancelling        rollback_finished  Idle
Cancelling        rollback_failed    Failed
"""

# One line a graph: the graph, the seed's table, how many states and events the seed has.
GRAPHS = [
    (LLM_LOOP, LLM_LOOP_TABLE, 8, 11),
    (PIPELINE, PIPELINE_TABLE, 8, 10),
    (APPROVAL, APPROVAL_TABLE, 9, 19),
    (RALPH, RALPH_TABLE, 7, 20),
    (CODE_MODE, CODE_MODE_TABLE, 5, 8),  # the seed's six events, PolicyStop and Failed
    (TOOLS_MODE, TOOLS_MODE_TABLE, 4, 7),  # the seed's six events and Failed
]

IDS = [graph.name for graph, *_ in GRAPHS]
Table = dict[tuple[str, str], str]


@dataclass
class Context:
    iteration: int = 0


def table(text: str) -> Table:
    rows = [line.split() for line in text.strip().splitlines()]
    return {(source, event): dest for source, event, dest in rows}


def open_(graph: Graph) -> Graph:
    """The graph with its guards allowing everything: here the rows are asked, not the budgets."""
    return replace(graph, edges=tuple(replace(edge, when=None) for edge in graph.edges), strict=False)


def run_in(machine: Machine, state: str) -> Run[Any, Any]:
    run: Run[Any, Any] = Run(machine, "r", Context(), None)
    run.cursor.state, run.cursor.entry_pending, run.cursor.started_at = state, False, 0.0
    return run


PAIRS = [
    pytest.param(graph, table(text), state, event, id=f"{graph.name}-{state}-{event}")
    for graph, text, _, _ in GRAPHS
    for state in graph.states
    for event in graph.events
]


@pytest.mark.parametrize(("graph", "text", "states", "events"), GRAPHS, ids=IDS)
def test_the_graph_has_the_states_events_and_rows_of_its_seed(
    graph: Graph, text: str, states: int, events: int
) -> None:
    assert (len(graph.states), len(graph.events)) == (states, events)
    assert {(s.value, e.value): d.value for s, e, d, _ in graph.rows} == table(text)
    assert len(graph.rows) == len(text.strip().splitlines())


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


@pytest.mark.parametrize("graph", [graph for graph, *_ in GRAPHS], ids=IDS)
def test_the_graph_is_clean(graph: Graph) -> None:
    assert graph.lint() == []


@pytest.mark.parametrize("graph", [graph for graph, *_ in GRAPHS], ids=IDS)
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
    rows = {(state, to): event for (state, event), to in table(PIPELINE_TABLE).items()}
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


FINGERPRINTS = {
    "llm_loop": "7b6df8a9930d10fe",
    "pipeline": "1e81a8996d314695",
    "approval": "2b5c1610175e4c93",
    "ralph": "ed2e1748a4942162",
    "code_mode": "b75e97d21b012084",
    "tools_mode": "ddb938ea5bdca3f8",
}
"""First digits of each. Another one refuses every stored run until a migration is registered."""


def test_stored_runs_of_every_shipped_graph_are_resumed_without_a_migration() -> None:
    assert {name: graph.fingerprint[:16] for name, graph in SHIPPED.items()} == FINGERPRINTS
