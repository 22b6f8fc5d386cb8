"""Whole runs of the ralph loop over real session directories: the path, the files, the log, the counts."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.model import RalphState
from orchestrator.runtime.ralph.session import log_line
from tests.runtime.ralph_stage import NOT_QUALIFIED, World, log_of, markers, moves_of


async def test_two_tasks_are_planned_executed_reviewed_and_held_against_the_goal(tmp_path: Path) -> None:
    world = World(tmp_path)
    result = await world.ralph().run("write a shell")

    assert (result.state, result.outcome, result.reason, result.error) == (
        RalphState.DONE,
        Outcome.COMPLETED,
        "none",
        None,
    )
    assert world.called == [
        "planner INITIALIZE",
        "executor task-1 1",
        "reviewer task-1",
        "executor task-2 1",
        "reviewer task-2",
        "checker",
    ]
    assert markers(result.session_path) == {"task-1": "x", "task-2": "x"}
    assert moves_of(result.session_path) == [
        ("Initializing", "session_resolved", "Planning"),
        ("Planning", "planner_completed", "Executing"),
        ("Executing", "task_selected", "Executing"),
        ("Executing", "executor_completed", "Reviewing"),
        ("Reviewing", "reviewer_completed", "Executing"),
        ("Executing", "task_selected", "Executing"),
        ("Executing", "executor_completed", "Reviewing"),
        ("Reviewing", "reviewer_completed", "Executing"),
        ("Executing", "no_tasks_remaining", "Complete"),
        ("Complete", "holistic_check_passed", "Done"),
    ]
    assert (result.executions, result.qualified, result.reworks, result.replans) == (2, 2, 0, 0)
    assert result.summary == "the goal is met"


async def test_the_log_has_the_seeds_members_and_no_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    result = await world.ralph().run("write a shell")

    first = next(
        log_line for log_line in log_of(result.session_path) if log_line["transition"]["taskId"] == "task-1"
    )
    executed = log_of(result.session_path)[3]
    text = (Path(result.session_path) / "transitions.jsonl").read_text().splitlines()[3]
    assert executed == {
        "timestamp": executed["timestamp"],
        "sessionId": result.session_id,
        "transition": {
            "from": "Executing",
            "to": "Reviewing",
            "trigger": "executor_completed",
            "taskId": "task-1",
            "attemptNumber": 1,
        },
    }
    assert list(json.loads(text)) == ["timestamp", "sessionId", "transition"]
    assert list(executed["transition"]) == ["from", "to", "trigger", "taskId", "attemptNumber"]
    assert executed["timestamp"].endswith("Z")
    assert len(executed["timestamp"]) == len("2026-01-31T15:00:00Z")
    assert first["transition"]["trigger"] == "task_selected"
    reviewed = log_of(result.session_path)[4]["transition"]
    assert (reviewed["taskId"], reviewed["attemptNumber"]) == ("task-1", 1), "the task that was reviewed"


def test_a_line_of_the_log_is_readable_in_any_language_and_names_unknown_events_as_they_are() -> None:
    move = ("Executing", "executor_fertig", "Prüfung")
    text = log_line("s", 0.0, move, ("tâche-1", 2))
    assert "Prüfung" in text
    assert json.loads(text) == {
        "timestamp": "1970-01-01T00:00:00Z",
        "sessionId": "s",
        "transition": {
            "from": "Executing",
            "to": "Prüfung",
            "trigger": "executor_fertig",
            "taskId": "tâche-1",
            "attemptNumber": 2,
        },
    }


async def test_rework_tells_the_executor_what_was_wrong_and_writes_another_report(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.REVIEWER: [NOT_QUALIFIED]}, tasks=("task-1: one",))
    result = await world.ralph().run("write a shell")

    assert result.outcome is Outcome.COMPLETED
    assert world.called[1:5] == [
        "executor task-1 1",
        "reviewer task-1",
        "executor task-1 2",
        "reviewer task-1",
    ]
    assert world.of(Role.EXECUTOR)[1].input["CONTEXT"]["feedback"] == "no test"
    reports = sorted(one.name for one in Path(result.session_path).glob("tasks.task-1-report*"))
    assert reports == ["tasks.task-1-report-r2.md", "tasks.task-1-report.md"]
    assert "attempt 1" in (Path(result.session_path) / reports[1]).read_text()
    assert (result.reworks, result.executions) == (1, 2)


async def test_tasks_that_an_agent_finds_are_added_to_both_files_and_done(tmp_path: Path) -> None:
    found = {"id": "task-9", "description": "write the manual", "rationale": "nobody knows how"}
    world = World(
        tmp_path,
        {(Role.EXECUTOR, "task-1"): [{"discovered_tasks": [found]}]},
        tasks=("task-1: one",),
    )
    result = await world.ralph().run("write a shell")

    path = Path(result.session_path)
    assert markers(path) == {"task-1": "x", "task-9": "x"}
    assert "task-9: write the manual" in (path / "tasks.md").read_text()
    assert (result.outcome, result.executions) == (Outcome.COMPLETED, 2)


async def test_a_check_that_fails_is_planned_again_with_the_missing_tasks(tmp_path: Path) -> None:
    missing = {"id": "task-5", "description": "a manual", "rationale": "the goal names one"}
    world = World(
        tmp_path,
        {Role.CHECKER: [{"passed": False, "missing_tasks": [missing], "summary": "no manual"}]},
        tasks=("task-1: one",),
    )
    result = await world.ralph().run("write a shell")

    update = world.of(Role.PLANNER)[1].input
    assert (update["MODE"], update["CONTEXT"]["summary"]) == ("UPDATE", "no manual")
    assert update["CONTEXT"]["missing_tasks"] == [missing]
    assert markers(result.session_path) == {"task-1": "x", "task-5": "x"}
    assert (result.outcome, result.replans) == (Outcome.COMPLETED, 1)
    checks = sorted(Path(result.session_path).glob("progress.review*.md"))
    assert ["no manual" in one.read_text() for one in checks] == [True, False]
