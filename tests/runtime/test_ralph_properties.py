"""Whatever agents answer and people say: the path is one of the table, limits hold, the files say what the run says."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import InvalidEvent
from orchestrator.kernel.outcome import REASONS
from orchestrator.machines.ralph.contract import (
    CheckerOutput,
    ExecutorOutput,
    PlannerOutput,
    ReviewerOutput,
    Role,
)
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.model import (
    AgentRequest,
    OrchestratorState,
    RalphEvent,
    RalphLimits,
    RalphState,
    TaskCounts,
    trigger,
)
from orchestrator.machines.ralph.step import Given, OrchestratorEvent, next_state
from tests.runtime.ralph_stage import World, log_of, markers
from tests.tiers import examples

pytestmark = pytest.mark.timeout(900)  # at full size

ids = st.sampled_from(("task-1", "task-2", "task-3", "task-4"))
found = st.lists(
    st.fixed_dictionaries({"id": ids, "description": st.just("more"), "rationale": st.text(max_size=20)}),
    max_size=2,
)
words = st.lists(st.text(max_size=30), max_size=2)
garbage: st.SearchStrategy[Any] = st.sampled_from(
    ("", "no JSON", None, 7, [], {"status": "done"}, "{}", ConnectionError("reset"))
)
raised: st.SearchStrategy[Any] = st.sampled_from((KeyError("k"), RuntimeError("gone"), SystemExit(3)))


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """A list of answers: a good one for most calls, else what no agent should give; then what is usual."""
    said = st.sampled_from(("good",) * 38 + ("garbage",) * 3 + ("raised",)).flatmap(
        {"good": good, "garbage": garbage, "raised": raised}.__getitem__
    )
    return st.lists(said, min_size=3, max_size=7)


SAYS = st.fixed_dictionaries(
    {
        Role.PLANNER: mostly(
            st.fixed_dictionaries(
                {
                    "status": st.sampled_from(
                        ("completed",) * 5 + ("needs_qa_cycle", "needs_clarification", "blocked")
                    ),
                    "blockers": words,
                    "next_actions": st.lists(st.sampled_from(("qa_brainstorm", "qa_research")), max_size=2),
                }
            )
        ),
        Role.QUESTIONER: mostly(st.just({"status": "completed"})),
        Role.EXECUTOR: mostly(
            st.fixed_dictionaries(
                {
                    "status": st.sampled_from(("completed",) * 4 + ("failed", "blocked")),
                    "discovered_tasks": found,
                    "blockers": words,
                }
            )
        ),
        Role.REVIEWER: mostly(
            st.fixed_dictionaries(
                {
                    "status": st.sampled_from(("completed",) * 6 + ("error",)),
                    "verdict": st.sampled_from(("Qualified", "Failed")),
                    "feedback": st.text(max_size=30),
                    "discovered_tasks": found,
                }
            )
        ),
        Role.CHECKER: mostly(
            st.fixed_dictionaries({"passed": st.booleans(), "missing_tasks": found, "summary": st.text()})
        ),
    }
)
LIMITS = st.builds(
    RalphLimits,
    max_task_attempts=st.sampled_from((3, 2, 1)),
    max_qa_cycles=st.sampled_from((2, 1)),
    max_planning_retries=st.integers(1, 2),
    max_replans=st.sampled_from((3, 2, 1)),
    max_agent_retries=st.integers(1, 2),
    max_executions=st.sampled_from((12, 7, 3)),
)
ROWS = {(source.value, event.value, dest.value) for source, event, dest, _ in RALPH.rows}


@pytest.mark.campaign
def test_no_answer_and_no_message_leads_anywhere_but_along_the_table_to_an_end(
    tmp_path: Path, campaign: Any
) -> None:
    reached: Counter[Any] = Counter()
    number = itertools.count()

    @given(says=SAYS, limits=LIMITS, strict=st.booleans(), steered=st.sampled_from((0,) * 5 + (1, 2, 3)))
    @settings(max_examples=campaign(40, 1_500), deadline=None)
    def along(says: Any, limits: RalphLimits, strict: bool, steered: int) -> None:
        folder = tmp_path / str(next(number))
        drive(reached, folder, says, limits, strict=strict, steered=steered)
        shutil.rmtree(folder)

    along()
    assert min(reached["completed"], reached["failed"]) >= 3, reached
    taken = {one for one in reached if isinstance(one, tuple)}
    # How an old session begins, and what only files that were changed by hand lead to, are tests of R5 and R12.
    assert len(taken) >= 14, f"never taken: {ROWS - taken}"


def drive(
    reached: Counter[Any], root: Path, says: Any, limits: RalphLimits, *, strict: bool, steered: int
) -> None:
    world = World(root, says)
    usual = world.usual
    ralph = world.ralph(limits=limits, open_questions="fail" if strict else "proceed")
    talked = itertools.count(1)

    def work(request: AgentRequest) -> dict[str, Any]:
        if next(talked) <= steered:
            run = ralph._service.live.get(request.run_id)
            run_id = run.run_id
            ralph.steer(run_id, "more")
        return usual(request)

    world.usual = work  # type: ignore[method-assign]
    result = ralph.run_sync("x")

    assert result.reason in REASONS[result.outcome]
    reached[result.outcome.value] += 1
    moves = [(one.source, one.event, one.dest) for one in result.transitions]
    reached.update(moves)
    assert set(moves) <= ROWS
    assert all(before[2] == after[0] for before, after in itertools.pairwise(moves))
    assert moves[-1][2] == result.state
    logged = [line["transition"] for line in log_of(result.session_path)]
    told = [(one["from"], one["trigger"], one["to"]) for one in logged]
    assert told == [
        (one.source, trigger(RalphEvent(one.event), RalphState(one.source)), one.dest)
        for one in result.transitions
    ]

    count = Counter(event for _, event, _ in moves)
    assert result.executions == count["task_selected"] <= limits.max_executions
    assert result.qa_cycles == count["qa_needed"] <= limits.max_qa_cycles
    replans = count["executor_blocked"] + count["holistic_check_failed"]
    assert result.replans == replans <= limits.max_replans
    assert result.reworks == count["rework"] + count["executor_failed"]
    assert result.qualified == count["qualified"]
    for role, most in [
        (Role.PLANNER, limits.max_planning_retries),
        *((one, limits.max_agent_retries) for one in Role if one is not Role.PLANNER),
    ]:
        assert all(one.again <= most for one in world.of(role))
    if result.state is RalphState.DONE:
        assert set(markers(result.session_path).values()) <= {"x", "C"}
        assert not [task for task in result.tasks if task.marker.value not in "xC"]


# ---- the pure function, which is quick ----

outputs = st.one_of(
    st.builds(
        PlannerOutput,
        status=st.sampled_from(("completed", "needs_qa_cycle", "needs_clarification", "blocked")),
    ),
    st.builds(ExecutorOutput, status=st.sampled_from(("completed", "failed", "blocked"))),
    st.builds(ReviewerOutput, status=st.just("completed"), verdict=st.sampled_from(("Qualified", "Failed"))),
    st.builds(ReviewerOutput, status=st.just("error")),
    st.builds(CheckerOutput, passed=st.booleans()),
)
standings = st.builds(TaskCounts, *[st.integers(0, 2)] * 7)
events = st.one_of(
    outputs,
    st.builds(
        OrchestratorEvent, type=st.just("session_resolved"), is_new_session=st.booleans(), progress=standings
    ),
    st.builds(OrchestratorEvent, type=st.just("no_tasks_remaining"), progress=standings),
    st.builds(
        OrchestratorEvent,
        type=st.just("task_selected"),
        task_id=st.sampled_from(("a", "b")),
        reports=st.integers(0, 3),
    ),
    st.builds(OrchestratorEvent, type=st.sampled_from(("new_requirements", "error"))),
)


@given(given_=st.lists(events, max_size=25), limits=LIMITS)
@settings(max_examples=examples(100))
def test_next_state_goes_along_the_table_and_within_the_limits(
    given_: list[Given], limits: RalphLimits
) -> None:
    arrows = {(source, dest) for source, _, dest in ROWS} | {(state.value, "Failed") for state in RalphState}
    state = OrchestratorState(session_id="s")
    for one in given_:
        before = state
        try:
            state = next_state(state, one, limits)
        except InvalidEvent:
            assert state == before
            continue
        error = isinstance(one, ReviewerOutput) and one.verdict is None
        assert error or (before.current_state.value, state.current_state.value) in arrows
        assert state.qa_cycle_count <= limits.max_qa_cycles
        assert state.replans <= limits.max_replans
        assert state.session_id == "s"
        if state.current_state is RalphState.FAILED and before.current_state is not RalphState.FAILED:
            continue
        if state.current_task_id is None:
            assert state.current_attempt_number == 0
