"""Where seed 002 contradicts itself: each resolution R1–R14 (systems 6.5) by name, mostly in whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, RunExists, RunFailed
from orchestrator.kernel.fact import OperationAttempt
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.ralph.contract import AgentOutputInvalid, PlannerInput, PlannerMode, Role
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.model import (
    AgentRequest,
    RalphContext,
    RalphEvent,
    RalphLimits,
    RalphState,
    TaskCounts,
)
from orchestrator.machines.ralph.step import next_work, resolved
from orchestrator.machines.ralph.tasklist import MOVES, IllegalMove, Marker, check_move
from orchestrator.runtime.ralph.session import SessionDirectory
from orchestrator_guards import Verdict
from tests.kernel.toy import Facts
from tests.runtime.ralph_stage import (
    NOT_QUALIFIED,
    QUALIFIED,
    World,
    log_of,
    markers,
    moves_of,
    report_name,
    tasks_md,
)

ONE = ("task-1: one",)


def session(root: Path, *tasks: tuple[str, str]) -> Path:
    """An old session with these tasks, each with its marker."""
    files = SessionDirectory.create(root, "an old one", "260131-144400")
    if not tasks:
        return files.path
    (files.path / "tasks.md").write_text(tasks_md(*(f"{name}: do {name}" for name, _ in tasks)))
    progress = files.path / "progress.md"
    lines = "".join(f"- [{mark}] {name}: do {name}\n" for name, mark in tasks)
    progress.write_text(progress.read_text() + "\n" + lines)
    return files.path


def reported(path: Path, task: str, *attempts: int) -> None:
    for attempt in attempts:
        (path / report_name(task, attempt)).write_text(f"# Task Report\n\nattempt {attempt}\n")


async def test_r1_complete_is_no_end_the_check_runs_there_and_done_is_the_exit(tmp_path: Path) -> None:
    world = World(tmp_path, tasks=ONE)
    result = await world.ralph().run("x")

    assert RalphState.COMPLETE not in RALPH.terminal
    assert RALPH.terminal == {RalphState.DONE, RalphState.FAILED}
    assert world.called[-1] == "checker"
    assert result.state is RalphState.DONE


async def test_r2_the_check_happens_in_complete_whose_condition_is_that_all_tasks_are_done(
    tmp_path: Path,
) -> None:
    stood: list[str] = []

    def check(request: AgentRequest) -> Any:
        stood.append(log_of(request.input["SESSION_PATH"])[-1]["transition"]["to"])
        assert set(markers(request.input["SESSION_PATH"]).values()) == {"x"}
        return {"passed": True}

    result = await World(tmp_path, {Role.CHECKER: [check]}).ralph().run("x")
    assert (result.outcome, stood) == (Outcome.COMPLETED, ["Complete"])


async def test_r3_the_tables_win_over_the_diagram(tmp_path: Path) -> None:
    edges = {(source, event, dest) for source, event, dest, _ in RALPH.rows}
    assert (RalphState.COMPLETE, RalphEvent.HOLISTIC_CHECK_FAILED, RalphState.PLANNING) in edges
    assert (RalphState.EXECUTING, RalphEvent.EXECUTOR_BLOCKED, RalphState.PLANNING) in edges

    found = {"id": "task-7", "description": "new", "rationale": ""}
    says = {
        (Role.EXECUTOR, "task-1"): [{"status": "blocked", "blockers": ["no compiler"]}],
        Role.REVIEWER: [{"discovered_tasks": [found]}],
    }
    world = World(tmp_path, says, tasks=ONE)
    result = await world.ralph().run("x")

    assert ("Executing", "executor_completed", "Planning") in moves_of(result.session_path)
    assert world.of(Role.PLANNER)[1].input["CONTEXT"]["blockers"] == ["no compiler"]
    assert markers(result.session_path) == {"task-1": "x", "task-7": "x"}, "found while reviewing"
    assert (result.replans, result.blockers) == (1, ())


async def test_r4_a_task_whose_third_review_fails_fails_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.REVIEWER: [NOT_QUALIFIED] * 3}, tasks=ONE)
    result = await world.ralph().run("x")

    assert (result.state, result.outcome, result.reason) == (
        RalphState.FAILED,
        Outcome.FAILED,
        "max_task_attempts",
    )
    assert moves_of(result.session_path)[-1] == ("Reviewing", "reviewer_completed", "Failed")
    assert result.verdict == Verdict(False, "task_attempts", 3, 3)
    assert result.blockers == ("task-1 failed 3 times: no test",)
    assert markers(result.session_path) == {"task-1": "F"}
    assert [one.input["ATTEMPT_NUMBER"] for one in world.of(Role.EXECUTOR)] == [1, 2, 3]


async def test_r4_an_executor_that_fails_three_times_fails_the_run_without_a_review(tmp_path: Path) -> None:
    fails = {"status": "failed", "blockers": ["it does not compile"]}
    world = World(tmp_path, {Role.EXECUTOR: [fails] * 3}, tasks=ONE)
    result = await world.ralph().run("x")

    assert (result.state, result.reason) == (RalphState.FAILED, "max_task_attempts")
    assert moves_of(result.session_path)[-1] == ("Executing", "executor_completed", "Failed")
    assert world.of(Role.REVIEWER) == []
    assert result.blockers == ("task-1 failed 3 times: it does not compile",)


STANDINGS = [
    # tasks of the session, what the first state after Initializing is, which task is in hand
    ([("task-1", "P"), ("task-2", " ")], "Reviewing", "task-1"),
    ([("task-1", "x"), ("task-2", "P"), ("plan-1", " ")], "Reviewing", "task-2"),
    ([("plan-1", "P"), ("task-1", "P")], "Reviewing", "task-1"),
    ([("task-1", "x"), ("task-2", "/")], "Executing", None),
    ([("task-1", "x"), ("task-2", " ")], "Executing", None),
    ([("task-1", " "), ("plan-1", " ")], "Planning", None),
    ([("task-1", "x"), ("task-2", "C")], "Complete", None),
    ([], "Planning", None),
]


@pytest.mark.parametrize(("tasks", "to", "hand"), STANDINGS, ids=[str(one[0]) for one in STANDINGS])
async def test_r5_a_session_goes_on_where_its_files_say(
    tasks: list[tuple[str, str]], to: str, hand: str | None, tmp_path: Path
) -> None:
    path = session(tmp_path, *tasks)
    for name, mark in tasks:
        if mark in "Px":
            reported(path, name, 1)
    world = World(tmp_path)
    result = await world.ralph().run(session=path)

    first = log_of(path)[0]["transition"]
    assert (first["from"], first["trigger"], first["to"]) == ("Initializing", "session_resolved", to)
    assert result.outcome is Outcome.COMPLETED
    assert {mark for name, mark in markers(path).items()} <= {"x", "C"}
    if hand is not None:
        assert world.of(Role.REVIEWER)[0].input["TASK_ID"] == hand
    if not tasks:
        assert world.called[0] == "planner INITIALIZE"


@pytest.mark.parametrize(("left", "attempt"), [(b"", 2), (None, 1)], ids=["empty", "missing"])
async def test_r5_what_waits_for_a_review_without_a_report_is_executed_again(
    left: bytes | None, attempt: int, tmp_path: Path
) -> None:
    path = session(tmp_path, ("task-1", "P"), ("task-2", " "))
    if left is not None:
        (path / report_name("task-1", 1)).write_bytes(left)
    world = World(tmp_path)
    result = await world.ralph().run(session=path)

    assert moves_of(path)[0] == ("Initializing", "session_resolved", "Executing")
    assert world.called[:2] == [f"executor task-1 {attempt}", "reviewer task-1"]
    assert (result.outcome, markers(path)) == (Outcome.COMPLETED, {"task-1": "x", "task-2": "x"})


async def test_r5_a_report_that_is_lost_while_it_waits_is_written_again(tmp_path: Path) -> None:
    path = session(tmp_path, ("task-1", "P"))
    reported(path, "task-1", 1)
    lost = path / report_name("task-1", 1)

    class Host:
        async def leave_initializing(self, run: Any) -> None:
            lost.rename(tmp_path / "elsewhere.md")

    world = World(tmp_path)
    result = await world.ralph(hooks=[Host()]).run(session=path)
    assert world.called[:2] == ["executor task-1 2", "reviewer task-1"]
    asked = world.of(Role.EXECUTOR)[0].input["CONTEXT"]
    assert asked["feedback"] == "its report was missing when it was to be reviewed"
    assert (result.outcome, result.reworks, markers(path)) == (Outcome.COMPLETED, 1, {"task-1": "x"})


@pytest.mark.parametrize("verdict", [QUALIFIED, NOT_QUALIFIED], ids=["qualified", "failed"])
async def test_r4_a_report_that_is_deleted_while_it_is_reviewed_is_rework(
    verdict: dict[str, str], tmp_path: Path
) -> None:
    def deletes(request: AgentRequest) -> dict[str, str]:
        Path(request.input["REPORT_PATH"]).unlink()
        return verdict

    world = World(tmp_path, {Role.REVIEWER: [deletes]}, tasks=("task-1: one",))
    result = await world.ralph().run("x")
    path = Path(result.session_path)
    assert world.called[1:5] == [
        "executor task-1 1",
        "reviewer task-1",
        "executor task-1 2",
        "reviewer task-1",
    ]
    assert not (path / report_name("task-1", 1)).exists(), "nobody made up a report that is only a review"
    assert (path / report_name("task-1", 2)).read_text().count("PART 2") == 1
    assert (result.outcome, result.reworks, markers(path)) == (Outcome.COMPLETED, 1, {"task-1": "x"})


async def test_r4_reports_that_are_lost_each_time_are_failed_attempts(tmp_path: Path) -> None:
    def deletes(request: AgentRequest) -> dict[str, str]:
        Path(request.input["REPORT_PATH"]).unlink()
        return QUALIFIED

    world = World(tmp_path, {Role.REVIEWER: [deletes] * 3}, tasks=("task-1: one",))
    result = await world.ralph().run("x")
    assert (result.outcome, markers(result.session_path)) == (Outcome.FAILED, {"task-1": "F"})
    why = "task-1 failed 3 times: its report was missing when it was to be reviewed"
    assert result.blockers == (why,)


async def test_r10_a_report_after_one_that_is_gone_is_reviewed_and_not_set_aside(tmp_path: Path) -> None:
    path = session(tmp_path, ("task-1", "P"))
    reported(path, "task-1", 2)
    world = World(tmp_path)
    result = await world.ralph().run(session=path)
    assert world.called[0] == "reviewer task-1"
    assert world.of(Role.REVIEWER)[0].input["REPORT_PATH"] == str(path / report_name("task-1", 2))
    assert result.outcome is Outcome.COMPLETED


async def test_r12_what_is_marked_for_review_meanwhile_without_a_report_is_executed(tmp_path: Path) -> None:
    def also_marks(request: AgentRequest) -> Any:
        path = Path(request.input["SESSION_PATH"])
        (path / "tasks.md").write_text(tasks_md("task-1: one"))
        progress = path / "progress.md"
        progress.write_text(progress.read_text() + "\n- [P] task-1: one\n")
        return {"status": "completed"}

    world = World(tmp_path, {Role.PLANNER: [also_marks]})
    result = await world.ralph().run("x")
    assert world.called[:3] == ["planner INITIALIZE", "executor task-1 1", "reviewer task-1"]
    assert (result.outcome, markers(result.session_path)) == (Outcome.COMPLETED, {"task-1": "x"})


def test_r5_the_inference_in_all_its_orders() -> None:
    old = RalphContext(is_new=False)
    asked = RalphContext(is_new=False, requirements=("more",))
    e = RalphEvent
    assert resolved(old, TaskCounts(review=1, active=1, planning=1, open=1)) is e.REVIEW_RESUMED
    assert resolved(old, TaskCounts(active=1, planning=1, open=1)) is e.EXECUTION_RESUMED
    assert resolved(old, TaskCounts(planning=1, open=1)) is e.SESSION_RESOLVED
    assert resolved(old, TaskCounts(open=1, done=1)) is e.EXECUTION_RESUMED
    assert resolved(old, TaskCounts(done=1, cancelled=1)) is e.COMPLETION_RESUMED
    assert resolved(old, TaskCounts()) is e.SESSION_RESOLVED
    assert resolved(old, TaskCounts(cancelled=2)) is e.SESSION_RESOLVED, "nothing was done: that is no end"
    assert resolved(asked, TaskCounts(done=1)) is e.SESSION_RESOLVED
    assert resolved(asked, TaskCounts(review=1)) is e.REVIEW_RESUMED, "a review under way is ended first"


def test_r6_qa_coordinate_is_read_as_discovery() -> None:
    given = {"SESSION_PATH": "s", "MODE": "QA_COORDINATE", "USER_REQUEST": "x"}
    assert PlannerInput.model_validate(given).mode is PlannerMode.DISCOVERY


async def test_r7_a_failed_execution_is_rework_without_a_review(tmp_path: Path) -> None:
    says = {Role.EXECUTOR: [{"status": "failed", "blockers": ["a typo"]}]}
    world = World(tmp_path, says, tasks=ONE)
    result = await world.ralph().run("x")

    assert world.called == [
        "planner INITIALIZE",
        "executor task-1 1",
        "executor task-1 2",
        "reviewer task-1",
        "checker",
    ]
    assert world.of(Role.EXECUTOR)[1].input["CONTEXT"]["feedback"] == "a typo"
    assert (result.outcome, result.reworks) == (Outcome.COMPLETED, 1)


async def test_r7_a_review_that_could_not_be_made_is_asked_for_again(tmp_path: Path) -> None:
    says = {Role.REVIEWER: [{"status": "error", "verdict": None, "issues": ["no disk"]}]}
    world = World(tmp_path, says, tasks=ONE)
    result = await world.ralph().run("x")

    asked = world.of(Role.REVIEWER)
    assert [(one.again, one.fault) for one in asked] == [(0, ""), (1, "no review could be made: no disk")]
    assert asked[0].key == asked[1].key
    assert (result.outcome, result.reworks) == (Outcome.COMPLETED, 0)


async def test_r7_a_planner_that_needs_clarification_gets_a_round_of_questions(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.PLANNER: [{"status": "needs_clarification"}]}, tasks=ONE)
    result = await world.ralph().run("x")

    assert world.called[:3] == ["planner INITIALIZE", "questioner BRAINSTORM 1", "planner DISCOVERY"]
    assert (result.outcome, result.qa_cycles) == (Outcome.COMPLETED, 1)
    open_questions = world.of(Role.PLANNER)[1].input["CONTEXT"]["open_questions"]
    assert open_questions == [{"id": "1.1", "text": "Which shell, 1?"}]


async def test_r8_after_three_rounds_planning_goes_on_with_open_questions(tmp_path: Path) -> None:
    asks = {"status": "needs_qa_cycle"}
    world = World(tmp_path, {Role.PLANNER: [asks] * 4}, tasks=ONE)
    result = await world.ralph().run("x")

    cycles = [one.input["CYCLE_NUMBER"] for one in world.of(Role.QUESTIONER)]
    assert (cycles, result.qa_cycles, result.outcome) == ([1, 2, 3], 3, Outcome.COMPLETED)
    told = [one.input["CONTEXT"].get("instruction") for one in world.of(Role.PLANNER)]
    assert told[:4] == [None] * 4
    assert "plan with what is known" in str(told[4])


async def test_r8_or_fails_where_it_is_to(tmp_path: Path) -> None:
    asks = {"status": "needs_qa_cycle"}
    world = World(tmp_path, {Role.PLANNER: [asks] * 4}, tasks=ONE)
    result = await world.ralph(open_questions="fail").run("x")

    assert (result.state, result.reason, result.qa_cycles) == (RalphState.FAILED, "max_qa_cycles", 3)
    assert result.verdict == Verdict(False, "qa_cycles", 3, 3)


async def test_r8_a_planner_that_only_asks_is_told_so_thrice_and_then_fails_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.PLANNER: [{"status": "needs_qa_cycle"}] * 20}, tasks=ONE)
    result = await world.ralph().run("x")

    assert (result.state, result.reason) == (RalphState.FAILED, "max_qa_cycles")
    assert len(world.of(Role.PLANNER)) == 1 + 3 + 2, (
        "asked, after each round, and as often as it may be repeated"
    )


async def test_r8_an_answer_that_cannot_be_used_is_asked_for_again_twice(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.PLANNER: ["no JSON at all"] * 2}, tasks=ONE)
    result = await world.ralph().run("x")

    asked = world.of(Role.PLANNER)
    assert [one.again for one in asked] == [0, 1, 2]
    assert "not JSON" in asked[1].fault
    assert result.outcome is Outcome.COMPLETED

    world = World(tmp_path, {Role.PLANNER: ["no JSON at all"] * 3}, tasks=ONE)
    result = await world.ralph().run("y")
    assert (result.state, result.reason) == (RalphState.FAILED, "completion_invalid")
    assert isinstance(result.error, AgentOutputInvalid)
    assert "asked 3 times" in str(result.error)


def test_r9_one_function_moves_markers_and_it_knows_the_ways() -> None:
    allowed = {(before, after) for before in Marker for after in MOVES[before]}
    for before in Marker:
        for after in Marker:
            if before is after:
                assert check_move("t", before, after) is False
            elif (before, after) in allowed:
                assert check_move("t", before, after) is True
            else:
                with pytest.raises(IllegalMove, match=r"task 't' cannot move from"):
                    check_move("t", before, after)
    m = Marker
    assert {(m.REVIEW, m.DONE), (m.REVIEW, m.OPEN)} <= allowed, "the seed's two moves"
    assert (m.OPEN, m.DONE) not in allowed


async def test_r9_the_reviewer_moves_nothing_the_orchestrator_does(tmp_path: Path) -> None:
    seen: list[str] = []

    def review(request: AgentRequest) -> Any:
        seen.append(markers(request.input["SESSION_PATH"])["task-1"])
        return {"status": "completed", "verdict": "Qualified"}

    result = await World(tmp_path, {Role.REVIEWER: [review]}, tasks=ONE).ralph().run("x")
    assert (seen, markers(result.session_path)) == (["P"], {"task-1": "x"})


async def test_r10_the_attempt_follows_from_the_reports_there_are(tmp_path: Path) -> None:
    path = session(tmp_path, ("task-1", " "), ("task-2", " "))
    reported(path, "task-1", 1)
    world = World(tmp_path)
    await world.ralph().run(session=path)

    assert world.called[0] == "executor task-1 2", "one report is there"
    assert "executor task-2 1" in world.called, "another task begins anew"


async def test_r11_a_network_error_is_tried_again_and_the_state_stays(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.EXECUTOR: [ConnectionError("reset"), TimeoutError("slow")]}, tasks=ONE)
    result = await world.ralph().run("x")

    assert [one.again for one in world.of(Role.EXECUTOR)] == [0, 0, 0]
    assert "Retry" not in {state.value for state in RalphState}
    assert (result.outcome, result.reworks) == (Outcome.COMPLETED, 0)
    assert moves_of(result.session_path).count(("Executing", "executor_completed", "Reviewing")) == 1


async def test_r8_and_r11_each_repetition_is_told(tmp_path: Path) -> None:
    facts = Facts()
    says = {Role.PLANNER: ["no JSON", ConnectionError("reset")], Role.REVIEWER: ["no"] * 3}
    await World(tmp_path, says, tasks=ONE).ralph(observers=(facts,)).run("x")

    told = [(one.operation, one.number, one.outcome, one.reason) for one in facts.of(OperationAttempt)]
    assert told == [
        ("completion", 1, "retry", "schema_invalid"),
        ("completion", 1, "retry", "connection"),
        ("completion", 1, "retry", "schema_invalid"),
        ("completion", 2, "retry", "schema_invalid"),
        ("completion", 3, "exhausted", "schema_invalid"),
    ]


async def test_r11_what_a_try_left_that_the_network_broke_is_set_aside(tmp_path: Path) -> None:
    def breaks(request: AgentRequest) -> Any:
        world.usual(request)
        raise ConnectionError("reset")

    world = World(tmp_path, {Role.EXECUTOR: [breaks]}, tasks=ONE)
    result = await world.ralph().run("x")
    assert (result.outcome, result.reworks) == (Outcome.COMPLETED, 0)


async def test_r12_a_task_in_review_keeps_the_session_from_being_complete(tmp_path: Path) -> None:
    assert next_work(TaskCounts(done=3, review=1)) is RalphEvent.REVIEW_PENDING
    assert next_work(TaskCounts(done=3)) is RalphEvent.NO_TASKS_REMAINING

    def also_marks(request: AgentRequest) -> Any:
        path = Path(request.input["SESSION_PATH"])
        (path / "tasks.md").write_text(tasks_md("task-1: one", "task-2: two"))
        progress = path / "progress.md"
        progress.write_text(progress.read_text() + "\n- [ ] task-1: one\n- [P] task-2: two\n")
        reported(path, "task-2", 1)
        return {"status": "completed"}

    world = World(tmp_path, {Role.PLANNER: [also_marks]})
    result = await world.ralph().run("x")

    assert ("Executing", "no_tasks_remaining", "Reviewing") in moves_of(result.session_path)
    assert markers(result.session_path) == {"task-1": "x", "task-2": "x"}
    assert result.outcome is Outcome.COMPLETED


async def test_r13_a_blocked_planner_fails_the_run_and_another_run_goes_on_with_the_session(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, {Role.PLANNER: [{"status": "blocked", "blockers": ["no goal"]}]}, tasks=ONE)
    ralph = world.ralph()
    failed = await ralph.run("x")
    assert (failed.state, failed.reason, failed.blockers) == (
        RalphState.FAILED,
        "planner_blocked",
        ("no goal",),
    )
    last = json.loads((Path(failed.session_path) / "transitions.jsonl").read_text().splitlines()[-1])
    assert (last["transition"]["to"], last["transition"]["blockers"]) == ("Failed", ["no goal"])

    done = await ralph.run("the goal is a shell", session=failed.session_path)

    assert (done.run_id, done.session_id) == (f"{failed.run_id}-2", failed.session_id)
    assert world.of(Role.PLANNER)[1].input["CONTEXT"]["requirements"] == ["the goal is a shell"]
    assert done.outcome is Outcome.COMPLETED
    assert len(log_of(done.session_path)) == len(failed.transitions) + len(done.transitions)


async def test_r13_a_task_that_had_failed_gets_one_more_attempt_in_the_next_run(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.REVIEWER: [NOT_QUALIFIED] * 3}, tasks=ONE)
    ralph = world.ralph()
    failed = await ralph.run("x")
    assert markers(failed.session_path) == {"task-1": "F"}

    done = await ralph.run(session=failed.session_path)
    assert (done.outcome, markers(done.session_path)) == (Outcome.COMPLETED, {"task-1": "x"})
    assert world.called[-3] == "executor task-1 4"


async def test_r14_new_requirements_are_queued_and_planned_at_the_next_boundary(tmp_path: Path) -> None:
    world = World(tmp_path)
    ralph = world.ralph()

    async def steer(request: AgentRequest) -> Any:
        await ralph.steer(request.run_id, "and a manual")
        await ralph.steer(request.run_id, "in French")
        return world.usual(request)

    world.says[Role.EXECUTOR, "task-1"] = [steer]
    result = await ralph.run("x")

    assert world.called[:5] == [
        "planner INITIALIZE",
        "executor task-1 1",
        "reviewer task-1",
        "planner UPDATE",
        "executor task-2 1",
    ], "the review under way is ended first"
    assert world.of(Role.PLANNER)[1].input["CONTEXT"]["requirements"] == ["and a manual", "in French"]
    assert ("Executing", "new_requirements", "Planning") in moves_of(result.session_path)
    assert (result.outcome, result.replans) == (Outcome.COMPLETED, 0), "what people ask is not counted"


@pytest.mark.parametrize(("role", "path"), [(Role.PLANNER, "Planning"), (Role.CHECKER, "Complete")])
async def test_r14_also_while_planning_and_while_the_whole_is_checked(
    role: Role, path: str, tmp_path: Path
) -> None:
    world = World(tmp_path, tasks=ONE)
    ralph = world.ralph()

    async def steer(request: AgentRequest) -> Any:
        await ralph.steer(request.run_id, "and a manual")
        return world.usual(request)

    world.says[role] = [steer]
    result = await ralph.run("x")

    assert (path, "new_requirements", "Planning") in moves_of(result.session_path)
    told = [one.input["CONTEXT"]["requirements"] for one in world.of(Role.PLANNER)]
    assert told == [[], ["and a manual"]], "told once"
    assert result.outcome is Outcome.COMPLETED


# ---- limits that are ours ----


async def test_a_fourth_return_to_planning_is_one_too_many(tmp_path: Path) -> None:
    fails = {"passed": False, "summary": "still no manual"}
    world = World(tmp_path, {Role.CHECKER: [fails] * 4}, tasks=ONE)
    result = await world.ralph().run("x")

    assert (result.state, result.reason, result.replans) == (RalphState.FAILED, "max_iterations", 3)
    assert result.verdict == Verdict(False, "replans", 3, 3)
    assert len(world.of(Role.PLANNER)) == 4


async def test_the_executions_of_a_run_are_counted_over_all_tasks(tmp_path: Path) -> None:
    def finds(request: AgentRequest) -> Any:
        number = int(request.input["TASK_ID"].removeprefix("task-")) + 1
        more = {"id": f"task-{number}", "description": "and on", "rationale": ""}
        return world.usual(request) | {"discovered_tasks": [more]}

    world = World(tmp_path, {Role.EXECUTOR: [finds] * 50}, tasks=ONE)
    result = await world.ralph(limits=RalphLimits(max_executions=5)).run("x")

    assert (result.state, result.reason, result.executions) == (RalphState.FAILED, "max_iterations", 5)
    assert list(markers(result.session_path).values()) == ["x"] * 5 + [" "]
    with pytest.raises(RunFailed, match=r"\(max_iterations\): iterations: 5 of 5 used$"):
        result.raise_for_outcome()


async def test_a_session_has_one_run_at_a_time_and_a_new_one_needs_a_request(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.PLANNER: [{"status": "needs_qa_cycle"}]}, tasks=ONE)
    ralph = world.ralph(answer="park")
    with pytest.raises(ConfigError, match="the request is empty"):
        await ralph.run("  ")
    with pytest.raises(Exception, match="suspended"):
        await ralph.run("x")
    (path,) = tmp_path.iterdir()
    with pytest.raises(RunExists):
        await ralph.run(session=path)
