"""How runs of the ralph loop end where something is wrong, and what stands in the files then."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, GraphError, LLMError, RunFailed, RunUnknown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.graph import Edge
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.ralph.contract import AgentFailed, Role
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.model import AgentRequest, RalphLimits, RalphState
from orchestrator.machines.ralph.tasklist import OutsideEdit, SessionFileError
from orchestrator.runtime.ralph.coding_agent import CommandAgent
from orchestrator.runtime.ralph.ralph import Ralph
from tests.runtime.ralph_stage import NO_WAIT, World, markers, moves_of

ONE = ("task-1: one",)

BROKEN = [
    (KeyError("k"), "stage_error", "'k'"),
    (LLMError("no key", kind="auth"), "llm_error", "no key"),
    (AgentFailed("executor", "it ended with status 1"), "stage_error", "it ended with status 1"),
    (ConnectionError("reset"), "stage_error", "reset"),
]


@pytest.mark.parametrize(("error", "reason", "said"), BROKEN, ids=[type(one[0]).__name__ for one in BROKEN])
async def test_an_agent_that_raises_fails_the_run_with_its_reason(
    error: Exception, reason: str, said: str, tmp_path: Path
) -> None:
    world = World(tmp_path, {Role.EXECUTOR: [error] * 9}, tasks=ONE)
    result = await world.ralph().run("x")

    assert (result.state, result.outcome, result.reason) == (RalphState.FAILED, Outcome.FAILED, reason)
    assert said in str(result.error)
    assert markers(result.session_path) == {"task-1": "/"}, "it was begun: the next run goes on with it"
    assert moves_of(result.session_path)[-1] == ("Executing", "error", "Failed")
    with pytest.raises(RunFailed):
        result.raise_for_outcome()

    world.says.clear()
    again = await world.ralph().run(session=result.session_path)
    assert (again.outcome, markers(again.session_path)) == (Outcome.COMPLETED, {"task-1": "x"})


async def test_an_agent_that_fails_inside_a_task_group_fails_the_run_and_does_not_cancel_it(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, tasks=ONE)

    async def broken(request: AgentRequest) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no such model")

    async def exits(request: AgentRequest) -> None:
        raise SystemExit(3)

    options: dict[str, Any] = {"root": tmp_path, "observers": (), "retry": NO_WAIT}
    failed = await Ralph(world, broken, world, **options).run("x")
    assert (failed.outcome, failed.reason) == (Outcome.FAILED, "stage_error")
    ended = await Ralph(world, exits, world, **options).run(session=failed.session_path)
    assert (ended.reason, str(ended.error)) == ("stage_error", "executor raised SystemExit")


async def test_a_program_that_floods_its_output_fails_the_run_and_does_not_cancel_it(tmp_path: Path) -> None:
    world = World(tmp_path, tasks=ONE)
    script = "import sys\nwhile True: sys.stdout.write('garbage' * 100_000)"
    flood = CommandAgent([sys.executable, "-c", script], timeout=60)
    ralph = Ralph(world, flood, world, root=tmp_path, observers=(), retry=NO_WAIT)
    result = await ralph.run("x")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "stage_error")
    assert "printed more than 32 MiB and was killed" in str(result.error)


async def test_a_session_in_which_a_run_is_at_work_takes_no_other_whatever_its_journal(
    tmp_path: Path,
) -> None:
    refused: list[SessionFileError] = []

    async def intrudes(request: AgentRequest) -> Any:
        with pytest.raises(SessionFileError, match="another run is active in it") as raised:
            await World(tmp_path).ralph().run(session=request.input["SESSION_PATH"])
        refused.append(raised.value)
        return world.usual(request)

    world = World(tmp_path, tasks=ONE)
    ralph = Ralph(world, intrudes, world, root=tmp_path, observers=())
    result = await ralph.run("x")
    assert (result.outcome, len(refused)) == (Outcome.COMPLETED, 1)
    later = await World(tmp_path).ralph().run(session=result.session_path)
    assert later.outcome is Outcome.COMPLETED, "it is free again"


async def test_words_that_cannot_be_stored_begin_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the request is not text"):
        await World(tmp_path).ralph().run("caf\udce9")
    with pytest.raises(ConfigError, match="steer is not text"):
        World(tmp_path).ralph().steer("x", "caf\udce9")
    assert not list(tmp_path.iterdir())


async def test_a_reviewer_that_writes_over_the_report_fails_the_run(tmp_path: Path) -> None:
    def replaces(request: AgentRequest) -> dict[str, str]:
        Path(request.input["REPORT_PATH"]).write_text("# A report that nobody wrote who did the work\n")
        return {"status": "completed", "verdict": "Qualified"}

    result = await World(tmp_path, {Role.REVIEWER: [replaces]}, tasks=ONE).ralph().run("x")
    assert (result.outcome, markers(result.session_path)) == (Outcome.FAILED, {"task-1": "P"})
    assert "tasks.task-1-report.md: was overwritten; a report may only be appended to" in str(result.error)


async def test_a_report_that_is_missing_is_asked_for_and_then_fails_the_run(tmp_path: Path) -> None:
    silent = {"status": "completed", "success_criteria_met": True}
    world = World(tmp_path, {Role.EXECUTOR: [lambda _: dict(silent)] * 3}, tasks=ONE)
    result = await world.ralph().run("x")

    assert result.reason == "completion_invalid"
    assert "there is no report" in str(result.error)
    assert "tasks.task-1-report.md" in str(result.error)
    assert [one.again for one in world.of(Role.EXECUTOR)] == [0, 1, 2]


async def test_a_report_of_an_answer_that_was_no_use_is_kept_under_another_name(tmp_path: Path) -> None:
    def babbles(request: AgentRequest) -> Any:
        world.usual(request)
        return "done, I think"

    world = World(tmp_path, {Role.EXECUTOR: [babbles]}, tasks=ONE)
    result = await world.ralph().run("x")

    names = sorted(one.name for one in Path(result.session_path).glob("tasks.task-1-report*"))
    assert (result.outcome, len(names)) == (Outcome.COMPLETED, 2)
    assert "tasks.task-1-report.md" in names


async def test_a_plan_that_cannot_be_read_is_asked_for_again_with_file_and_line(tmp_path: Path) -> None:
    def scribbles(request: AgentRequest) -> Any:
        path = Path(request.input["SESSION_PATH"])
        (path / "tasks.md").write_text("# Tasks\n\n- [?] task-1: one\n")
        return {"status": "completed"}

    world = World(tmp_path, {Role.PLANNER: [scribbles] * 3}, tasks=ONE)
    result = await world.ralph().run("x")

    assert result.reason == "completion_invalid"
    assert "tasks.md:3" in world.of(Role.PLANNER)[1].fault
    assert "[?]" in (Path(result.session_path) / "tasks.md").read_text(), "it is left as it is"


async def test_a_file_that_somebody_changed_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    mine = "# Progress\n\n- [C] task-1: one\n"

    def edited(request: AgentRequest) -> Any:
        (Path(request.input["SESSION_PATH"]) / "progress.md").write_text(mine)
        return world.usual(request)

    world = World(tmp_path, {Role.EXECUTOR: [edited]}, tasks=ONE)
    result = await world.ralph().run("x")

    assert isinstance(result.error, OutsideEdit)
    assert "progress.md was changed" in str(result.error)
    assert (Path(result.session_path) / "progress.md").read_text() == mine


async def test_what_people_write_into_the_files_while_an_agent_works_is_kept(tmp_path: Path) -> None:
    def edited(request: AgentRequest) -> Any:
        path = Path(request.input["SESSION_PATH"])
        for name in ("progress.md", "tasks.md"):
            with (path / name).open("a") as file:
                file.write("\n<!-- I saw this, ada -->\n")
        more = {"id": "task-8", "description": "more", "rationale": ""}
        return world.usual(request) | {"discovered_tasks": [more]}

    world = World(tmp_path, {(Role.EXECUTOR, "task-1"): [edited]}, tasks=ONE)
    result = await world.ralph().run("x")

    assert result.outcome is Outcome.COMPLETED
    for name in ("progress.md", "tasks.md"):
        text = (Path(result.session_path) / name).read_text()
        assert "<!-- I saw this, ada -->\n" in text
        assert "task-8" in text
    assert markers(result.session_path) == {"task-1": "x", "task-8": "x"}


async def test_a_deadline_interrupts_the_agent_and_is_a_budget(tmp_path: Path) -> None:

    async def hangs(_: AgentRequest) -> Any:
        await asyncio.Event().wait()

    world = World(tmp_path, {Role.PLANNER: [hangs]})
    result = await world.ralph().run("x", deadline=0.2)
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "time")


async def test_an_ended_run_is_only_told_and_its_files_may_be_gone(tmp_path: Path) -> None:
    world = World(tmp_path / "s", tasks=ONE)
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        ralph = world.ralph(journal=journal)
        first = await ralph.run("x")
        calls = len(world.calls)
        told = await world.ralph(journal=journal).resume(first.run_id)

        assert (told.outcome, told.tasks, told.executions) == (first.outcome, first.tasks, first.executions)
        assert [one.event for one in told.transitions] == [one.event for one in first.transitions]
        assert len(world.calls) == calls

        Path(first.session_path).rename(tmp_path / "elsewhere")
        told = await world.ralph(journal=journal).resume(first.run_id)
        assert (told.outcome, told.tasks) == (Outcome.COMPLETED, ())
        with pytest.raises(RunUnknown):
            await ralph.resume("nobody")


async def test_a_session_that_is_gone_or_no_session_is_refused_before_anything_is_done(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    with pytest.raises(SessionFileError, match="the session directory does not exist"):
        await world.ralph().run("x", session=tmp_path / "none")
    assert world.calls == []


MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"planner": None}, "planner is NoneType"),
    ({"executor": "claude"}, "executor is str"),
    ({"reviewer": World}, "reviewer is World"),
    ({"limits": 3}, "limits is 3; give RalphLimits"),
    ({"answer": "maybe"}, "answer is 'maybe'; give a function of the questions, 'wait', 'park' or None"),
    ({"open_questions": "ask"}, "open_questions is 'ask'; it must be 'proceed' or 'fail'"),
]


@pytest.mark.parametrize(("given", "said"), MISFITS, ids=[str(one[0]) for one in MISFITS])
def test_what_cannot_work_is_refused_at_once(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    agents = {"planner": world, "executor": world, "reviewer": world}
    with pytest.raises(ConfigError, match=said.replace("(", "\\(")):
        Ralph(**{**agents, "observers": (), **given})


@pytest.mark.parametrize("limit", ["max_task_attempts", "max_replans", "max_executions", "max_seconds"])
def test_a_limit_is_zero_or_more_and_has_a_name(limit: str) -> None:
    off: dict[str, Any] = {limit: 0}
    below: dict[str, Any] = {limit: -1}
    RalphLimits(**off)
    with pytest.raises(ConfigError, match=f"{limit} is -1; it must be 0"):
        RalphLimits(**below)
    with pytest.raises(ConfigError, match="unknown limit 'max_tries'"):
        RalphLimits(max_tries=3)  # type: ignore[call-arg]


async def test_a_host_adds_a_phase_without_touching_ours(tmp_path: Path) -> None:
    graph = RALPH.extend(
        name="ralph_with_release",
        states=["releasing"],
        events=["released"],
        without=[("Complete", "holistic_check_passed")],
        edges=[
            Edge("holistic_check_passed", "Complete", "releasing"),
            Edge("released", "releasing", "Done"),
            Edge("error", "releasing", "Failed"),
        ],
    )
    done: list[str] = []

    class Release:
        async def enter_releasing(self, run: Any) -> Any:
            done.append(run.ctx.session_id)
            return run.graph.events("released")

    result = await World(tmp_path).ralph(graph=graph, hooks=[Release()]).run("x")
    assert (result.outcome, done) == (Outcome.COMPLETED, [result.session_id])
    assert moves_of(result.session_path)[-2:] == [
        ("Complete", "holistic_check_passed", "releasing"),
        ("releasing", "released", "Done"),
    ]
    with pytest.raises(GraphError, match="no enter_releasing hook"):
        World(tmp_path).ralph(graph=graph)


async def test_a_log_that_a_crash_cut_short_is_whole_again_after_the_run_is_taken_up(tmp_path: Path) -> None:
    journal = MemoryJournal()
    world = World(tmp_path, {Role.PLANNER: [{"status": "needs_qa_cycle"}]}, tasks=ONE)
    ralph = world.ralph(journal=journal, answer="park")
    with pytest.raises(Exception, match="suspended"):
        await ralph.run("x", run_id="r")
    (path,) = tmp_path.iterdir()
    log = path / "transitions.jsonl"
    whole = log.read_bytes()
    file = path / "plan.questions.md"
    file.write_text(file.read_text().replace("**Answer**:", "**Answer**: bash"))

    log.write_bytes(whole[:-30])  # the last line is torn
    await ralph.resume("r")
    assert log.read_bytes().startswith(whole)
    lines = [json.loads(line)["transition"] for line in log.read_text().splitlines()]
    assert len(lines) == 8
    assert all(before["to"] == after["from"] for before, after in itertools.pairwise(lines))
