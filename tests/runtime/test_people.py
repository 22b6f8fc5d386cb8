"""People in control: pause, cancel, approve, edit, reject, respond, from here and from another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import AnswerRefused, Held, RunUnknown, StoreDown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import RunParked, RunStarted, ToolExecution
from orchestrator.kernel.journal import Draft, Lease, Posted
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.question import Question
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.service.descendant import PendingQuestion
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import tool
from tests.runtime.stage import NO_WAIT, Facts, faults, until
from tests.with_runtime import with_runtime

CALLS = (
    ToolCall("a", "pay", '{"to": "x", "sum": 5}'),
    ToolCall("b", "look", "{}"),
)


class Office:
    """Money goes out through `pay`, which needs a yes; the model asks once and then says what it was told."""

    def __init__(self, *calls: ToolCall) -> None:
        self.calls = calls or CALLS
        self.paid: list[tuple[str, int]] = []
        self.looked = 0

    def model(self, request: Request) -> Response:
        if request.messages[-1].role != "tool":
            return Response(None, self.calls)
        return Response("; ".join(one.text for one in request.messages if one.role == "tool"))

    def agent(self, journal: Any, **options: Any) -> Agent:
        @tool(approval=True)
        def pay(to: str, sum: int) -> str:  # noqa: A002
            self.paid.append((to, sum))
            return f"paid {sum} to {to}"

        @tool(effect="pure")
        def look() -> str:
            self.looked += 1
            return "looked"

        options = {"observers": (), "retry": NO_WAIT, **options}
        return Agent(FunctionLLM(self.model), tools=[pay, look], **with_runtime(journal=journal, **options))


async def asked(agent: Agent, run_id: str = "r") -> list[PendingQuestion]:
    """The questions of a run, once it asks any."""

    async def look() -> list[PendingQuestion]:
        try:
            return await agent.pending(run_id)
        except RunUnknown:
            return []

    found: list[PendingQuestion] = await until(look)
    return found


@asynccontextmanager
async def waiting(agent: Agent) -> AsyncIterator[tuple[asyncio.Task[Result], Question]]:
    """A run that waits for its first answer."""
    task = asyncio.create_task(agent.run("pay x", run_id="r"))
    questions = await asked(agent)

    async def parked() -> bool:
        return (await agent._service.journal.head("r")).status == "parked"

    await until(parked)  # it is on disk
    try:
        yield task, questions[0]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_approved_call_runs_once_and_only_then() -> None:
    office, facts, journal = Office(), Facts(), MemoryJournal()
    agent = office.agent(journal, observers=[facts])
    async with waiting(agent) as (task, question):
        assert (question.tool, question.why, question.key) == ("pay", "approval", "1:0")
        assert (office.paid, office.looked) == ([], 1)  # what needs no yes has run
        assert (await journal.head("r")).status == "parked"
        assert (await journal.head("r")).reason == "approval"

        await agent.approve("r", question.key, digest=question.digest, by="ann", why="it is due")
        result = await task

    assert (result.outcome, result.output) == (Outcome.COMPLETED, "paid 5 to x; looked")
    assert office.paid == [("x", 5)]
    assert [(fact.tool, fact.outcome) for fact in facts.of(ToolExecution)] == [("pay", "ok"), ("look", "ok")]
    assert [fact.reason for fact in facts.of(RunParked)] == ["approval"]
    assert [fact.origin for fact in facts.of(RunStarted)] == ["new", "resumed"]
    said = [record.body for record in await journal.load("r") if record.kind == "approval"]
    assert [(body["by"], body["why"], body["decision"]) for body in said] == [("ann", "it is due", "approve")]


async def test_edited_arguments_are_what_runs_and_the_transcript_keeps_what_was_asked() -> None:
    office = Office()
    agent = office.agent(None)
    async with waiting(agent) as (task, _):
        agent.approve("r", arguments='{"to": "x", "sum": 3}')
        result = await task
    assert office.paid == [("x", 3)]
    assert result.messages[1].tool_calls == CALLS
    assert result.output == "paid 3 to x; looked"


async def test_a_rejected_call_is_an_error_that_the_model_reads() -> None:
    office = Office()
    agent = office.agent(None)
    async with waiting(agent) as (task, _):
        agent.reject("r", by="bob", why="too much")
        result = await task
    assert result.outcome is Outcome.COMPLETED
    assert "a person rejected this call: too much" in str(result.output)
    assert result.messages[2].is_error
    assert office.paid == []


async def test_a_person_can_answer_in_place_of_the_tool() -> None:
    office = Office()
    agent = office.agent(None)
    async with waiting(agent) as (task, _):
        agent.respond("r", "I paid it by hand")
        result = await task
    assert (result.output, office.paid) == ("I paid it by hand; looked", [])


async def test_a_person_can_end_the_run_instead() -> None:
    office = Office()
    agent = office.agent(None)
    async with waiting(agent) as (task, _):
        agent.reject("r", by="bob", why="stop this", end=True)
        result = await task
    assert (result.outcome, result.reason) == (Outcome.REJECTED, "operator")
    assert "rejected by bob: stop this" in str(result.error)
    assert not faults(result.messages)
    assert office.paid == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"call": "9:9"}, "no question is open about call '9:9'"),
        ({"digest": "0" * 64}, "it is about other arguments: 00000000 was approved"),
        ({"digest": "abc"}, "is too short: give at least 8 characters"),
        ({"arguments": "[1]"}, "the edited arguments must be the text of one JSON object"),
        ({"arguments": "{"}, "the edited arguments are not JSON"),
    ],
)
async def test_an_answer_that_does_not_count_is_refused_and_changes_nothing(
    answer: dict[str, Any], said: str
) -> None:
    office, journal = Office(), MemoryJournal()
    agent = office.agent(journal)
    async with waiting(agent) as (_, question):
        before = await journal.load("r")
        with pytest.raises(AnswerRefused, match=said):
            await agent.approve("r", **answer)
        assert await journal.load("r") == before
        assert await agent.pending("r") == [question]
    assert office.paid == []


async def test_the_second_answer_is_refused_with_who_gave_the_first() -> None:
    office = Office(
        ToolCall("a", "pay", '{"to": "x", "sum": 1}'), ToolCall("b", "pay", '{"to": "y", "sum": 2}')
    )
    agent = office.agent(None)
    async with waiting(agent) as (task, _):
        with pytest.raises(AnswerRefused, match="several calls wait: name one of 1:0, 1:1"):
            await agent.approve("r")
        await agent.approve("r", "1:0", by="ann")
        await until(lambda: office.paid == [("x", 1)])
        with pytest.raises(AnswerRefused, match=r"ann answered before \(approve, 2"):
            await agent.reject("r", "1:0", by="bob")
        await agent.approve("r", "1:1", by="bob")
        assert (await task).outcome is Outcome.COMPLETED
    assert office.paid == [("x", 1), ("y", 2)]


async def test_of_two_answers_at_once_the_second_is_refused() -> None:
    office = Office()
    agent = office.agent(None)
    async with waiting(agent) as (task, _):
        agent.reject("r", by="ann")
        with pytest.raises(AnswerRefused, match=r"ann answered before \(reject, 2"):
            agent.approve("r", by="bob")
        await task
    assert office.paid == []


async def test_an_answer_is_judged_as_if_those_before_it_had_been_read() -> None:
    office = Office(
        ToolCall("a", "pay", '{"to": "x", "sum": 1}'), ToolCall("b", "pay", '{"to": "y", "sum": 2}')
    )
    agent = office.agent(None)
    async with waiting(agent) as (task, _):
        agent.approve("r", "1:0", by="ann")  # not read yet
        with pytest.raises(AnswerRefused, match=r"ann answered before \(approve, [-0-9: ]+ UTC\);"):
            agent.respond("r", "paid by hand", "1:0", by="bob")
        agent.approve("r", by="ben")  # one question is left, so it is about that one
        with pytest.raises(AnswerRefused, match=r"ben answered before \(approve, 2"):
            agent.reject("r", by="bob", end=True)
        assert (await task).outcome is Outcome.COMPLETED
    assert office.paid == [("x", 1), ("y", 2)]


async def test_a_question_expires_and_waiting_costs_no_time_of_the_run() -> None:
    office, clock = Office(), FakeClock()
    agent = office.agent(None, clock=clock, limits=Limits(approval_seconds=3600, max_seconds=60))
    async with waiting(agent) as (task, question):
        assert question.expires_at == clock.time() + 3600
        await clock.advance(3000)  # far longer than the run may last
        assert not task.done()
        await clock.advance(601)
        result = await task
    assert result.outcome is Outcome.COMPLETED
    assert "nobody approved this call in time" in str(result.output)
    assert office.paid == []


async def test_an_answer_in_time_leaves_no_timer_of_its_question() -> None:
    office, clock = Office(), FakeClock()
    agent = office.agent(None, clock=clock, limits=Limits(approval_seconds=3600))
    async with waiting(agent) as (task, question):
        agent.approve("r", question.key, by="ann")
        assert (await task).outcome is Outcome.COMPLETED
        assert clock.pending == 0


class Down(MemoryJournal):
    """A store that is reached until it is `down`."""

    down = False

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None) -> None:
        if self.down:
            raise StoreDown("the store is gone")
        super().append(lease, drafts, blobs)


async def test_a_run_pauses_before_its_next_step_and_goes_on_when_told() -> None:
    journal, facts = MemoryJournal(), Facts()
    begun, finish = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def slow() -> str:
        begun.set()
        await finish.wait()
        return "done"

    office = Office(ToolCall("a", "slow", "{}"))
    agent = Agent(FunctionLLM(office.model), tools=[slow], journal=journal, observers=[facts])
    task = asyncio.create_task(agent.run("go", run_id="r"))
    await begun.wait()
    agent.pause("r", by="ann", why="look first")
    finish.set()  # what is in flight comes to its end
    await until(lambda: facts.of(RunParked))
    head = await journal.head("r")
    assert (head.status, head.reason) == ("parked", "paused")
    stored = StoredRun.of("r", await journal.load("r"))
    assert stored.requested is not None
    assert (stored.requested["by"], stored.requested["why"]) == ("ann", "look first")
    assert (stored.state, stored.next) == ("process_tools", "tools_executed")
    assert not task.done()

    result = await agent.resume("r", by="ann")  # this process has it: it goes on where it is

    assert result is await task
    assert result.output == "done"
    assert [fact.reason for fact in facts.of(RunParked)] == ["paused"]


async def test_cancelling_a_run_that_waits_ends_it_whole() -> None:
    office, facts = Office(), Facts()
    agent = office.agent(None, observers=[facts])
    async with waiting(agent) as (task, _):
        agent.cancel("r", by="ann", why="no longer needed")
        result = await task
    assert (result.outcome, result.reason) == (Outcome.CANCELLED, "caller")
    assert not faults(result.messages)
    assert office.paid == []
    assert [fact.origin for fact in facts.of(RunStarted)] == ["new", "resumed"]
    told = [(fact.tool, fact.outcome) for fact in facts.of(ToolExecution)]
    assert told == [("look", "ok"), ("pay", "cancelled")]


async def test_a_pause_does_not_hold_a_run_that_was_cancelled_just_before() -> None:
    office = Office()
    agent = office.agent(None)
    async with waiting(agent) as (task, _):
        agent.cancel("r", by="ann")
        agent.pause("r", by="bob")
        assert (await task).outcome is Outcome.CANCELLED


async def test_a_pause_that_the_journal_did_not_take_holds_nobody() -> None:
    begun, finish = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def slow() -> str:
        begun.set()
        await finish.wait()
        return "done"

    office, journal = Office(ToolCall("a", "slow", "{}")), Down()
    agent = Agent(FunctionLLM(office.model), tools=[slow], journal=journal, observers=())
    task = asyncio.create_task(agent.run("go", run_id="r"))
    await begun.wait()
    agent.pause("r", by="ann")
    journal.down = True
    finish.set()

    result = await asyncio.wait_for(task, 20)  # nobody could tell it to go on: it is not found any more

    assert (result.outcome, result.reason) == (Outcome.FAILED, "journal_error")
    assert "store" in str(result.error)


async def test_a_run_under_way_here_cannot_be_resumed_here() -> None:
    office = Office()
    agent = office.agent(None)
    async with waiting(agent) as (task, _):
        with pytest.raises(Held, match="it is active here"):
            await agent.resume("r")
        agent.reject("r")
        await task


# ---- another process: the same file, another store and another agent ----


@asynccontextmanager
async def store(path: Path) -> AsyncIterator[SqliteJournal]:
    async with SqliteJournal(path / "journal.db") as journal:
        yield journal


async def test_another_process_approves_a_live_run(tmp_path: Path) -> None:
    office = Office()
    async with store(tmp_path) as mine, store(tmp_path) as theirs:
        agent, other = office.agent(mine), Office().agent(theirs)
        async with waiting(agent) as (task, question):
            assert await other.pending("r") == [question]
            with pytest.raises(AnswerRefused, match="it is about other arguments"):
                await other.approve("r", digest="f" * 64)
            assert await theirs.inbox("r") == []
            await other.approve("r", question.key, digest=question.digest, by="eve")
            result = await task
        assert (result.output, office.paid) == ("paid 5 to x; looked", [("x", 5)])
        with pytest.raises(AnswerRefused, match="run 'r' has ended: completed"):
            await other.approve("r", question.key)
        stored = StoredRun.of("r", await theirs.load("r"))
        assert stored.inbox == 1


async def test_an_answer_posted_while_nobody_had_the_run_counts_when_it_is_resumed(tmp_path: Path) -> None:
    office = Office()
    async with store(tmp_path) as mine:
        async with waiting(office.agent(mine)):
            pass  # its caller goes away
        assert (await mine.head("r")).reason == "interrupted" or (await mine.head("r")).status == "parked"
    async with store(tmp_path) as theirs:
        again = office.agent(theirs)
        question = (await again.pending("r"))[0]
        await again.approve("r", question.key, digest=question.digest, by="eve")
        await theirs.post("r", Posted("same", "approve", {"call": question.key}, "mallory"))
        await theirs.post("r", Posted("odd", "dance", {}, "mallory"))  # nobody knows this
        plans = await again.hosting.open_runs()
        assert plans[0].will == "continues: eve approved pay (call 1:0)"
        result = await again.resume("r")
        assert (result.output, office.paid, office.looked) == ("paid 5 to x; looked", [("x", 5)], 1)


async def test_an_answer_that_a_pause_overtook_counts_when_the_run_is_resumed_again(tmp_path: Path) -> None:
    office = Office()
    async with store(tmp_path) as journal:
        async with waiting(office.agent(journal)):
            pass  # its caller goes away
        desk = office.agent(journal)
        await desk.approve("r", by="ann")
        await desk.pause("r", by="bob")
        paused = asyncio.create_task(office.agent(journal).resume("r"))

        async def parked() -> bool:
            return (await journal.head("r")).reason == "paused"

        await until(parked)  # the pause is read, the answer is not
        paused.cancel()
        await asyncio.gather(paused, return_exceptions=True)
        assert [one.kind for one in await StoredRun.of("r", await journal.load("r")).unread(journal)] == [
            "approve"
        ]
        assert (await office.agent(journal).resume("r")).output == "paid 5 to x; looked"
        assert office.paid == [("x", 5)]


async def test_cancel_and_pause_reach_a_run_of_another_process(tmp_path: Path) -> None:
    office = Office()
    async with store(tmp_path) as mine, store(tmp_path) as theirs:
        agent, other = office.agent(mine), Office().agent(theirs)
        async with waiting(agent) as (task, _):
            await other.pause("r", by="eve")
            await until(lambda: agent._service.live.get("r").control.pause_request)
            await other.cancel("r", by="eve", why="wrong account")
            result = await task
        assert (result.outcome, office.paid) == (Outcome.CANCELLED, [])
        controls = [record.body for record in await theirs.load("r") if record.kind == "control"]
        assert [(body["kind"], body["by"]) for body in controls] == [("pause", "eve"), ("cancel", "eve")]
