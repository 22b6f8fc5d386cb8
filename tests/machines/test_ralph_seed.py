"""Seed 002 row by row: its tables, its pseudocode and its two tests, against the pure `next_state`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ConfigError, InvalidEvent, UnknownEvent
from orchestrator.machines.ralph.contract import (
    CheckerOutput,
    ExecutorOutput,
    PlannerOutput,
    ReviewerOutput,
)
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.model import (
    OrchestratorState,
    RalphLimits,
    RalphState,
    TaskCounts,
)
from orchestrator.machines.ralph.step import Given, OrchestratorEvent, next_state

S = RalphState


def at(state: RalphState, **more: Any) -> OrchestratorState:
    """A session in a state, as runs have it there."""
    working = {S.EXECUTING: ("task-1", 1), S.REVIEWING: ("task-1", 1)}
    task, attempt = working.get(state, (None, 0))
    return OrchestratorState(
        current_state=state,
        session_id="260131-144400",
        **{"current_task_id": task, "current_attempt_number": attempt, **more},
    )


def event(name: str, output: Any = None, **more: Any) -> OrchestratorEvent:
    return OrchestratorEvent(type=name, output=output, **more)


NEEDS_QA = PlannerOutput(status="needs_qa_cycle")
PLANNED = PlannerOutput(status="completed")
PLAN_BLOCKED = PlannerOutput(status="blocked", blockers=("no access to the repository",))
EXECUTED = ExecutorOutput(status="completed", success_criteria_met=True)
EXECUTION_BLOCKED = ExecutorOutput(status="blocked", blockers=("no compiler",))
QUALIFIED = ReviewerOutput(status="completed", verdict="Qualified")
NOT_QUALIFIED = ReviewerOutput(status="completed", verdict="Failed", feedback="no test")
DISCOVERED = ReviewerOutput(
    status="completed",
    verdict="Qualified",
    discovered_tasks=({"id": "task-9", "description": "a manual"},),
)
PASSED = CheckerOutput(passed=True)
NOT_PASSED = CheckerOutput(passed=False, summary="the manual is missing")
OLD = {"is_new_session": False}

# (where it stands, from, condition or pseudocode branch, event, to). Each row of the seed once; the rows in which it
# contradicts itself as the resolutions say (systems 6.5).
ROWS: list[tuple[str, RalphState, str, Given, RalphState]] = [
    # Transitions, from Initializing
    ("table", S.INITIALIZING, "New session", event("session_resolved"), S.PLANNING),
    (
        "table",
        S.INITIALIZING,
        "Resume session: Planning",
        event("session_resolved", **OLD, progress=TaskCounts(planning=1, open=2)),
        S.PLANNING,
    ),
    (
        "table",
        S.INITIALIZING,
        "Resume session: Executing",
        event("session_resolved", **OLD, progress=TaskCounts(open=1, done=1)),
        S.EXECUTING,
    ),
    ("table", S.INITIALIZING, "Critical error", event("error", text="disk full"), S.FAILED),
    # from Planning
    ("table", S.PLANNING, "Planner requests Q&A cycle", NEEDS_QA, S.PLANNING),
    ("table", S.PLANNING, "Tasks ready", PLANNED, S.EXECUTING),
    ("table", S.PLANNING, "Unresolvable blockers", PLAN_BLOCKED, S.FAILED),
    (
        "table",
        S.PLANNING,
        "New requirements from user",
        event("new_requirements", text="also HTML"),
        S.PLANNING,
    ),
    # from Executing
    ("table", S.EXECUTING, "Executor marks task [P]", EXECUTED, S.REVIEWING),
    ("table", S.EXECUTING, "Executor blocked", EXECUTION_BLOCKED, S.PLANNING),
    (
        "table",
        S.EXECUTING,
        "All tasks [x]",
        event("no_tasks_remaining", progress=TaskCounts(done=2)),
        S.COMPLETE,
    ),
    (
        "table",
        S.EXECUTING,
        "New requirements discovered",
        event("new_requirements", text="also HTML"),
        S.PLANNING,
    ),
    # from Reviewing
    ("table", S.REVIEWING, "Verdict: Qualified", QUALIFIED, S.EXECUTING),
    ("table", S.REVIEWING, "Verdict: Failed", NOT_QUALIFIED, S.EXECUTING),
    ("table", S.REVIEWING, "New tasks discovered", DISCOVERED, S.EXECUTING),
    # from Complete
    ("table", S.COMPLETE, "Holistic check passed", PASSED, S.DONE),
    ("table", S.COMPLETE, "Holistic check failed", NOT_PASSED, S.PLANNING),
    # Diagram: the arrows that no table row has in this form
    ("diagram", S.INITIALIZING, "Session created", event("session_resolved"), S.PLANNING),
    ("diagram", S.INITIALIZING, "Critical error", event("error"), S.FAILED),
    ("diagram", S.PLANNING, "Q&A cycle needed", event("planner_completed", NEEDS_QA), S.PLANNING),
    ("diagram", S.PLANNING, "Tasks ready", event("planner_completed", PLANNED), S.EXECUTING),
    ("diagram", S.PLANNING, "Unresolvable blockers", event("planner_completed", PLAN_BLOCKED), S.FAILED),
    ("diagram", S.EXECUTING, "Task marked [P]", event("executor_completed", EXECUTED), S.REVIEWING),
    (
        "diagram",
        S.EXECUTING,
        "All tasks [x]",
        event("no_tasks_remaining", progress=TaskCounts(done=1)),
        S.COMPLETE,
    ),
    ("diagram", S.EXECUTING, "New requirements", event("new_requirements"), S.PLANNING),
    ("diagram", S.REVIEWING, "Qualified (mark [x])", event("reviewer_completed", QUALIFIED), S.EXECUTING),
    (
        "diagram",
        S.REVIEWING,
        "Failed (mark [ ], rework)",
        event("reviewer_completed", NOT_QUALIFIED),
        S.EXECUTING,
    ),
    ("diagram", S.COMPLETE, "Success", event("holistic_check_passed", PASSED), S.DONE),
    # Pseudocode, branch by branch
    (
        "pseudocode",
        S.INITIALIZING,
        "isNewSession",
        event("session_resolved", is_new_session=True),
        S.PLANNING,
    ),
    (
        "pseudocode",
        S.INITIALIZING,
        "hasUncompletedTasks",
        event("session_resolved", **OLD, progress=TaskCounts(open=3)),
        S.EXECUTING,
    ),
    (
        "pseudocode",
        S.INITIALIZING,
        "else (all completed)",
        event("session_resolved", **OLD, progress=TaskCounts(done=3)),
        S.COMPLETE,
    ),
    ("pseudocode", S.INITIALIZING, "error", event("error"), S.FAILED),
    ("pseudocode", S.PLANNING, "needs_qa_cycle", event("planner_completed", NEEDS_QA), S.PLANNING),
    ("pseudocode", S.PLANNING, "completed", event("planner_completed", PLANNED), S.EXECUTING),
    ("pseudocode", S.PLANNING, "blocked", event("planner_completed", PLAN_BLOCKED), S.FAILED),
    (
        "pseudocode",
        S.EXECUTING,
        "no_tasks_remaining",
        event("no_tasks_remaining", progress=TaskCounts(done=1, cancelled=1)),
        S.COMPLETE,
    ),
    ("pseudocode", S.EXECUTING, "task_selected", event("task_selected", task_id="task-2"), S.EXECUTING),
    ("pseudocode", S.EXECUTING, "completed", event("executor_completed", EXECUTED), S.REVIEWING),
    ("pseudocode", S.EXECUTING, "blocked", event("executor_completed", EXECUTION_BLOCKED), S.PLANNING),
    ("pseudocode", S.REVIEWING, "Qualified", event("reviewer_completed", QUALIFIED), S.EXECUTING),
    ("pseudocode", S.REVIEWING, "Failed", event("reviewer_completed", NOT_QUALIFIED), S.EXECUTING),
    ("pseudocode", S.COMPLETE, "holistic_check_passed", event("holistic_check_passed"), S.DONE),
    ("pseudocode", S.COMPLETE, "holistic_check_failed", event("holistic_check_failed"), S.PLANNING),
    # Failure Conditions
    (
        "failure conditions",
        S.REVIEWING,
        "Task failed 3 times",
        NOT_QUALIFIED,
        S.FAILED,
    ),
    ("failure conditions", S.PLANNING, "Planner blocked", PLAN_BLOCKED, S.FAILED),
]


@pytest.mark.parametrize(
    ("where", "source", "condition", "given", "dest"),
    ROWS,
    ids=[f"{where}-{source}-{condition}" for where, source, condition, _, _ in ROWS],
)
def test_each_row_of_the_seed(
    where: str, source: RalphState, condition: str, given: Given, dest: RalphState
) -> None:
    attempt = {"current_attempt_number": 3} if where == "failure conditions" and source is S.REVIEWING else {}
    before = at(source, **attempt)
    after = next_state(before, given)

    assert after.current_state is dest
    assert (after.session_id, before) == (before.session_id, at(source, **attempt)), (
        "nothing is changed in place"
    )


def test_the_rows_are_all_there() -> None:
    count = {where: sum(1 for row in ROWS if row[0] == where) for where in dict(row[:2] for row in ROWS)}
    print(f"rows of seed 002 transcribed: {len(ROWS)} {count}")  # noqa: T201
    # The last two failure conditions (network error, invalid response) change no state: tests of R8 and R11.
    assert count == {"table": 17, "diagram": 11, "pseudocode": 15, "failure conditions": 2}


STATES = [
    # state, what the seed's table says of it: who owns it, where it is entered
    ("Initializing", "User request received"),
    ("Planning", "Session resolved"),
    ("Executing", "Tasks ready, next task identified"),
    ("Reviewing", "Task marked `[P]`"),
    ("Complete", "All tasks `[x]`, holistic check passed"),
    ("Failed", "Critical blocker, max retries exceeded"),
]


@pytest.mark.parametrize(("name", "entry"), STATES)
def test_each_state_of_the_seed_is_one_of_ours_and_is_entered_from_somewhere(name: str, entry: str) -> None:
    state = RalphState(name)
    entered = {source for source, _, dest, _ in RALPH.rows if dest is state and source is not state}
    assert (state is RALPH.initial) == (not entered), entry
    assert {one.value for one in RalphState} - {name for name, _ in STATES} == {"Done"}


def test_when_executor_completes_then_transitions_to_reviewing() -> None:
    """The seed's first test."""
    state = OrchestratorState(
        current_state=RalphState.EXECUTING, current_task_id="task-1", current_attempt_number=1
    )
    output = ExecutorOutput(status="completed", success_criteria_met=True)

    after = next_state(state, output)

    assert after.current_state is RalphState.REVIEWING


def test_when_reviewer_qualifies_then_transitions_to_executing() -> None:
    """The seed's second test."""
    state = OrchestratorState(current_state=RalphState.REVIEWING, current_task_id="task-1")
    output = ReviewerOutput(status="completed", verdict="Qualified")

    after = next_state(state, output)

    assert after.current_state is RalphState.EXECUTING
    assert after.current_task_id is None, "cleared for the next selection"


MODEL = [
    # field of the seed's record, what it is at first
    ("current_state", RalphState.INITIALIZING),
    ("session_id", ""),
    ("session_path", ""),
    ("current_task_id", None),
    ("current_attempt_number", 0),
    ("blockers", ()),
    ("qa_cycle_count", 0),
]


@pytest.mark.parametrize(("name", "first"), MODEL)
def test_each_field_of_the_state_data_model(name: str, first: Any) -> None:
    state = OrchestratorState()
    assert getattr(state, name) == first
    with pytest.raises(AttributeError):
        setattr(state, name, first)


def test_the_limits_are_the_seeds_retry_policy() -> None:
    limits = RalphLimits()
    assert (limits.max_task_attempts, limits.max_qa_cycles, limits.max_planning_retries) == (3, 3, 2)
    assert [limits.should_retry_task(number) for number in (1, 2, 3, 4)] == [True, True, False, False]
    assert [limits.should_continue_qa(number) for number in (1, 2, 3, 4)] == [True, True, False, False]


# ---- what the events change beside the state ----


def test_rework_keeps_the_task_and_counts_the_attempt_on() -> None:
    after = next_state(at(S.REVIEWING), NOT_QUALIFIED)
    assert (after.current_task_id, after.current_attempt_number) == ("task-1", 2)


def test_selecting_another_task_begins_its_attempts_anew_and_after_its_reports() -> None:
    state = at(S.EXECUTING, current_task_id="task-1", current_attempt_number=3)
    fresh = next_state(state, event("task_selected", task_id="task-2"))
    tried = next_state(state, event("task_selected", task_id="task-2", reports=1))
    same = next_state(state, event("task_selected", task_id="task-1", reports=1))

    assert (fresh.current_task_id, fresh.current_attempt_number) == ("task-2", 1)
    assert tried.current_attempt_number == 2
    assert same.current_attempt_number == 3


def test_blockers_are_kept_on_the_way_to_failed() -> None:
    assert next_state(at(S.PLANNING), PLAN_BLOCKED).blockers == ("no access to the repository",)
    gave_up = next_state(at(S.REVIEWING, current_attempt_number=3), NOT_QUALIFIED)
    assert gave_up.blockers == ("task-1 failed 3 times: no test",)


def test_a_limit_that_is_used_up_leads_to_failed_and_says_so() -> None:
    blocked = next_state(at(S.EXECUTING, replans=3), EXECUTION_BLOCKED)
    unmet = next_state(at(S.COMPLETE, replans=3), NOT_PASSED)
    strict = next_state(at(S.PLANNING, qa_cycle_count=3), NEEDS_QA, fail_on_open_questions=True)

    assert (blocked.current_state, blocked.blockers) == (S.FAILED, ("replans: 3 of 3 used",))
    assert (unmet.current_state, unmet.blockers) == (S.FAILED, ("replans: 3 of 3 used",))
    assert (strict.current_state, strict.blockers) == (S.FAILED, ("qa_cycles: 3 of 3 used",))


@pytest.mark.parametrize("state", [S.DONE, S.FAILED])
def test_nothing_leaves_an_end(state: RalphState) -> None:
    for given in (PLANNED, EXECUTED, QUALIFIED, PASSED, event("error"), event("task_selected", task_id="t")):
        with pytest.raises(InvalidEvent):
            next_state(at(state), given)


def test_an_unknown_event_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnknownEvent, match="'planner_completed', 'reviewer_completed'"):
        next_state(at(S.PLANNING), event("planner_complete"))
    with pytest.raises(InvalidEvent):
        next_state(at(S.PLANNING), EXECUTED)


def test_limits_of_a_run_are_asked_not_those_of_the_seed() -> None:
    one = RalphLimits(max_task_attempts=1)
    assert next_state(at(S.REVIEWING), NOT_QUALIFIED, one).current_state is S.FAILED
    free = RalphLimits(max_task_attempts=0, max_replans=0)
    later = replace(at(S.REVIEWING), current_attempt_number=50, replans=50)
    assert next_state(later, NOT_QUALIFIED, free).current_state is S.EXECUTING


@pytest.mark.parametrize("state", ["Executing", S.EXECUTING])
def test_a_state_may_be_given_as_text(state: Any) -> None:
    before = at(state, current_task_id="task-1", current_attempt_number=1)
    assert before == at(S.EXECUTING)
    after = next_state(before, OrchestratorEvent(type="error", text="disk full"))
    assert (after.current_state, after.blockers) == (S.FAILED, ("disk full",))


def test_a_state_that_is_none_is_refused_with_the_states_there_are() -> None:
    unknown: Any = "executing"
    with pytest.raises(
        ConfigError, match="current_state is 'executing'; possible: 'Initializing', 'Planning'"
    ):
        OrchestratorState(current_state=unknown)
