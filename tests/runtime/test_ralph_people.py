"""What people say to a run of the ralph loop, here and from another process: answers, steer, inform, pause, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import AnswerRefused, ConfigError, RunExists, RunOver, RunUnknown, Suspended
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.ralph.contract import OrchestratorStatus, Role
from orchestrator.machines.ralph.model import AgentRequest, PlanQuestion, RalphState
from orchestrator.runtime.service import inbox
from tests.runtime.ralph_stage import World, markers, moves_of
from tests.runtime.stage import until

ASKS = {"status": "needs_clarification"}
ONE = ("task-1: one",)


async def test_a_function_answers_and_the_answers_stand_in_the_file(tmp_path: Path) -> None:
    asked: list[Sequence[PlanQuestion]] = []

    async def people(questions: Sequence[PlanQuestion]) -> dict[str, str]:
        asked.append(questions)
        return {questions[0].id: "bash", "9.9": "nobody asked"}

    world = World(tmp_path, {Role.PLANNER: [ASKS, ASKS]}, tasks=ONE)
    result = await world.ralph(answer=people).run("x")

    text = (Path(result.session_path) / "plan.questions.md").read_text()
    assert text.count("bash") == 2
    assert [one[0].id for one in asked] == ["1.1", "2.1"], "what is answered is not asked again"
    assert (result.outcome, result.qa_cycles) == (Outcome.COMPLETED, 2)
    assert world.of(Role.PLANNER)[2].input["CONTEXT"]["open_questions"] == []


async def test_a_run_waits_in_place_for_an_answer(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.PLANNER: [ASKS]}, tasks=ONE)
    journal = MemoryJournal()
    ralph = world.ralph(answer="wait", journal=journal)
    running = asyncio.create_task(ralph.run("x", run_id="r"))
    await until(lambda: _parked(journal))
    status = await ralph.status("r")
    assert (status.status, status.next_action) == (OrchestratorStatus.BLOCKED, "answer its questions")
    with pytest.raises(ConfigError, match="answer needs non-empty text"):
        await ralph.answer("r", {"1.1": ""})
    await ralph.inform("r", "think of Windows")  # wakes it, and answers nothing
    await ralph.answer("r", {"1.1": "bash"})
    result = await running

    assert result.outcome is Outcome.COMPLETED
    assert "bash" in (Path(result.session_path) / "plan.questions.md").read_text()
    assert world.of(Role.PLANNER)[1].notes == ("think of Windows",)


def _parked(journal: MemoryJournal) -> bool:
    kept = [record.kind for record in _records(journal, "r")]
    return bool(kept) and kept[-1] == "parked"


def _records(journal: MemoryJournal, run_id: str) -> list[Any]:
    loading = journal.load(run_id)
    try:
        loading.send(None)
    except StopIteration as done:
        return list(done.value)
    except RunUnknown:
        return []
    raise AssertionError("it waited")


async def test_a_run_is_left_parked_and_goes_on_once_the_file_has_answers(tmp_path: Path) -> None:
    world = World(tmp_path / "s", {Role.PLANNER: [ASKS]}, tasks=ONE)
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        ralph = world.ralph(answer="park", journal=journal)
        with pytest.raises(Suspended, match="questions"):
            await ralph.run("x", run_id="r")
        assert (await journal.head("r")).status == "parked"
        (left,) = await ralph.hosting.open_runs()
        assert (left.reason, left.will, left.unattended) == (
            "questions",
            "waits for a person: 1 question",
            False,
        )
        (path,) = (tmp_path / "s").iterdir()
        calls = len(world.calls)

        with pytest.raises(Suspended, match="questions"):
            await ralph.resume("r")  # still nobody has answered
        file = path / "plan.questions.md"
        file.write_text(file.read_text().replace("**Answer**:", "**Answer**: bash"))
        result = await world.ralph(answer="park", journal=journal).resume("r")

    assert result.outcome is Outcome.COMPLETED
    assert world.called[calls] == "planner DISCOVERY", "the questioner is not asked again"


@pytest.mark.parametrize("answers", [{}, None, "bash", {"1.1": ""}, {"1.1": 7}])
async def test_what_is_no_answer_is_refused(answers: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="answer"):
        World(tmp_path).ralph().answer("r", answers)


async def test_a_run_that_is_left_in_memory_is_answered_and_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.PLANNER: [ASKS]}, tasks=ONE)
    ralph = world.ralph(answer="park", journal=(journal := MemoryJournal()))
    with pytest.raises(Suspended, match="questions"):
        await ralph.run("x", run_id="r")
    await ralph.answer("r", {"1.1": "bash", "9.9": "to what nobody asked"}, by="ann")
    await ralph.inform("r", "be quick")
    result = await ralph.resume("r")
    controls = [record.body for record in await journal.load("r") if record.kind == "control"]
    assert [one.get("refused") for one in controls] == [None, "there is no question 9.9", None]
    assert result.outcome is Outcome.COMPLETED
    assert "- **Answer**: bash" in (Path(result.session_path) / "plan.questions.md").read_text()
    assert world.of(Role.PLANNER)[-1].notes == ("be quick",)


async def test_the_first_answer_to_a_question_of_a_run_counts_and_a_different_one_is_refused(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "s", {Role.PLANNER: [ASKS]}, tasks=ONE)
    async with (
        SqliteJournal(tmp_path / "journal.db") as mine,
        SqliteJournal(tmp_path / "journal.db") as theirs,
    ):
        ralph, other = world.ralph(answer="park", journal=mine), world.ralph(answer="park", journal=theirs)
        with pytest.raises(Suspended, match="questions"):
            await ralph.run("x", run_id="r")
        told = await asyncio.gather(
            ralph.answer("r", {"1.1": "bash"}, by="ann"),
            other.answer("r", {"1.1": "fish"}, by="bob"),
            return_exceptions=True,
        )
        (refused,) = [one for one in told if one is not None]
        won, lost = (("ann", "bash"), ("bob", "fish"))[:: -1 if told[0] else 1]
        assert isinstance(refused, AnswerRefused)
        assert f"question 1.1: {won[0]} answered before (answer, 2" in str(refused)
        await other.answer("r", {"1.1": won[1]}, by=won[0])  # the same person, the same answer
        with pytest.raises(AnswerRefused, match=won[0]):
            await ralph.answer("r", {"2.1": "not posted either", "1.1": lost[1]}, by=lost[0])
        (kept,) = await mine.inbox("r")
        assert (kept.by, kept.body["answers"]) == (won[0], {"1.1": won[1]})
        result = await ralph.resume("r")
        await ralph.answer("r", {"1.1": won[1]}, by=won[0])
        with pytest.raises(RunOver):
            await ralph.answer("r", {"2.1": "too late"}, by="ann")
    assert f"- **Answer**: {won[1]}" in (Path(result.session_path) / "plan.questions.md").read_text()


async def test_an_answer_to_a_question_that_was_not_asked_yet_blocks_no_later_one(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.PLANNER: [ASKS, ASKS]}, tasks=ONE)
    ralph = world.ralph(answer="park", journal=MemoryJournal())
    with pytest.raises(Suspended, match="questions"):
        await ralph.run("x", run_id="r")
    await ralph.answer("r", {"1.1": "bash", "2.1": "too early"}, by="ann")
    with pytest.raises(Suspended, match="questions"):
        await ralph.resume("r")
    await ralph.answer("r", {"2.1": "in time"}, by="bob")
    result = await ralph.resume("r")
    assert "- **Answer**: in time" in (Path(result.session_path) / "plan.questions.md").read_text()


async def test_what_is_told_to_all_goes_to_every_agent_after_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    ralph = world.ralph()

    async def tells(request: AgentRequest) -> Any:
        await ralph.inform(request.run_id, "use tabs", by="ada")
        return world.usual(request)

    world.says[Role.PLANNER] = [tells]
    result = await ralph.run("x")

    assert [one.notes for one in world.calls] == [(), *[("use tabs",)] * 5]
    assert world.calls[1].input["CONTEXT"]["notes"] == ["use tabs"]
    assert ("Executing", "new_requirements", "Planning") not in moves_of(result.session_path)


async def test_a_stop_is_carried_out_at_the_boundary_and_what_came_after_it_is_not(tmp_path: Path) -> None:
    world = World(tmp_path)
    ralph = world.ralph()

    async def stops(request: AgentRequest) -> Any:
        await ralph.stop(request.run_id, "enough")
        await ralph.steer(request.run_id, "and a manual")
        return world.usual(request)

    world.says[Role.EXECUTOR, "task-1"] = [stops]
    result = await ralph.run("x")

    assert (result.outcome, result.reason, result.state) == (Outcome.CANCELLED, "caller", RalphState.FAILED)
    assert world.called[-1] == "executor task-1 1", "it was ended first; no review was begun"
    assert markers(result.session_path) == {"task-1": "P"}

    again = await ralph.run(session=result.session_path)
    assert again.outcome is Outcome.COMPLETED
    assert world.called[2] == "reviewer task-1", "it goes on where it was stopped"


async def test_cancelling_does_not_wait_for_the_boundary(tmp_path: Path) -> None:
    world = World(tmp_path)
    ralph = world.ralph()
    begun = asyncio.Event()

    async def hangs(_: AgentRequest) -> Any:
        begun.set()
        await asyncio.Event().wait()

    world.says[Role.EXECUTOR] = [hangs]
    running = asyncio.create_task(ralph.run("x", run_id="r"))
    await begun.wait()
    await ralph.cancel("r")
    result = await running
    assert (result.outcome, markers(result.session_path)["task-1"]) == (Outcome.CANCELLED, "/")


async def test_messages_of_another_process_are_read_in_order_and_none_is_lost_behind_a_pause(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "s")
    async with (
        SqliteJournal(tmp_path / "journal.db") as journal,
        SqliteJournal(tmp_path / "journal.db") as other,
    ):
        ralph, elsewhere = world.ralph(journal=journal), world.ralph(journal=other)

        async def talks(request: AgentRequest) -> Any:
            await elsewhere.steer(request.run_id, "and a manual")
            await elsewhere.pause(request.run_id)
            await elsewhere.inform(request.run_id, "use tabs")
            run = ralph._service.live.get(request.run_id)
            await until(lambda: run.control.pause_request is not None)
            return world.usual(request)

        world.says[Role.EXECUTOR, "task-1"] = [talks]
        running = asyncio.create_task(ralph.run("x", run_id="r"))
        await until(lambda: _is_parked(journal))
        running.cancel()  # this process lets it go, with both messages unread
        with pytest.raises(asyncio.CancelledError):
            await running

        result = await elsewhere.resume("r")

    told = [one.input["CONTEXT"]["requirements"] for one in world.of(Role.PLANNER)]
    assert told == [[], ["and a manual"]]
    assert world.calls[-1].notes == ("use tabs",)
    assert result.outcome is Outcome.COMPLETED


async def test_what_was_posted_before_a_boundary_is_read_at_it_however_seldom_anybody_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "POLL", 3600.0)
    world = World(tmp_path / "s")
    async with (
        SqliteJournal(tmp_path / "journal.db") as journal,
        SqliteJournal(tmp_path / "journal.db") as other,
    ):
        elsewhere = world.ralph(journal=other)

        async def stops(request: AgentRequest) -> Any:
            await elsewhere.stop(request.run_id, "enough for today")
            return world.usual(request)

        world.says[Role.EXECUTOR, "task-1"] = [stops]
        result = await world.ralph(journal=journal).run("x", run_id="r")

    assert (result.outcome, markers(result.session_path)["task-1"]) == (Outcome.CANCELLED, "P")
    assert not world.of(Role.REVIEWER)


async def _is_parked(journal: SqliteJournal) -> bool:
    try:
        return (await journal.head("r")).status == "parked"
    except RunUnknown:
        return False


async def test_a_session_has_no_second_run_while_one_lives_here_whatever_its_id(tmp_path: Path) -> None:
    world = World(tmp_path, tasks=ONE)
    ralph = world.ralph()
    refused: list[str] = []

    async def again(request: AgentRequest) -> Any:
        with pytest.raises(RunExists) as caught:
            await ralph.run("y", session=request.input["SESSION_PATH"], run_id="other")
        refused.append(str(caught.value))
        return world.usual(request)

    world.says[Role.EXECUTOR] = [again]
    result = await ralph.run("x", run_id="first")
    assert result.outcome is Outcome.COMPLETED
    assert "run 'first' exists" in refused[0]


async def test_nobody_can_talk_to_a_run_that_is_over_or_never_was(tmp_path: Path) -> None:
    world = World(tmp_path / "s")
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        ralph = world.ralph(journal=journal)
        result = await ralph.run("x")
        with pytest.raises(RunOver):
            await ralph.steer(result.run_id, "more")
        with pytest.raises(RunUnknown):
            await ralph.inform("nobody", "hello")
    with pytest.raises(ConfigError, match="steer needs non-empty text"):
        ralph.steer(result.run_id, " ")


async def test_the_status_of_a_run_in_the_words_of_the_contract(tmp_path: Path) -> None:
    world = World(tmp_path, tasks=ONE)
    ralph = world.ralph(journal=(journal := MemoryJournal()))
    seen: list[Any] = []

    async def looks(request: AgentRequest) -> Any:
        seen.append(await ralph.status(request.run_id))
        return world.usual(request)

    world.says = {role: [looks] for role in (Role.PLANNER, Role.EXECUTOR, Role.REVIEWER, Role.CHECKER)}
    result = await ralph.run("x")
    seen.append(await world.ralph(journal=journal).status(result.run_id))

    assert [(one.status.value, one.current_state, one.last_action, one.next_action) for one in seen] == [
        ("in_progress", "Planning", "session_resolved", "plan"),
        ("in_progress", "Executing", "task_selected", "execute task-1"),
        ("in_progress", "Reviewing", "executor_completed", "review task-1"),
        ("in_progress", "Complete", "no_tasks_remaining", "check the work against the goal"),
        ("completed", "Done", "holistic_check_passed", ""),
    ]
    assert {one.session_id for one in seen} == {result.session_id}
