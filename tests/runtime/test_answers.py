"""The first valid answer to a question counts: in one process, through another handle, and on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import AnswerRefused, RunOver
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, Journal, Posted
from orchestrator.llm.message import ToolCall
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.answer import OpenQuestions
from orchestrator.runtime.service.descendant import PendingQuestion
from orchestrator.testing.clock import FakeClock
from tests.runtime.test_people import Office, waiting

Handles = Callable[[], Any]
EDIT = '{"to": "x", "sum": 3}'
TWO = (ToolCall("a", "pay", '{"to": "x", "sum": 1}'), ToolCall("b", "pay", '{"to": "y", "sum": 2}'))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def handles(request: pytest.FixtureRequest, tmp_path: Path) -> Handles:
    """Open two handles of one journal: the owner's, and that of another process."""
    make: Callable[[], Any]
    match request.param:
        case "sqlite":
            make = lambda: SqliteJournal(tmp_path / "journal.db")  # noqa: E731
        case "postgres":
            url = request.getfixturevalue("database")
            make = lambda: PostgresJournal(url)  # noqa: E731
        case _:
            one = MemoryJournal()
            make = lambda: one  # noqa: E731

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Journal, Journal]]:
        async with AsyncExitStack() as stack:
            both = make(), make()
            for journal in both:
                stack.push_async_callback(journal.close)
            yield both

    return opened


@asynccontextmanager
async def left_asking(journal: Journal, office: Office | None = None) -> AsyncIterator[list[PendingQuestion]]:
    """A run that asks, and that no process drives."""
    agent = (office or Office()).agent(journal)
    async with waiting(agent):
        pass
    yield await agent.pending("r")


def kept(posts: list[Posted]) -> list[tuple[str, str]]:
    return [(one.kind, one.by) for one in posts]


async def approvals(journal: Journal) -> list[tuple[str, str]]:
    return [
        (str(record.body["decision"]), str(record.body["by"]))
        for record in await journal.load("r")
        if record.kind == "approval"
    ]


Say = Callable[[Agent, str], Any]
ANSWERS: dict[str, Say] = {
    "approve": lambda agent, by: agent.approve("r", "1:0", by=by),
    "edit": lambda agent, by: agent.approve("r", "1:0", arguments=EDIT, by=by),
    "another edit": lambda agent, by: agent.approve("r", "1:0", arguments='{"to": "x", "sum": 4}', by=by),
    "reject": lambda agent, by: agent.reject("r", "1:0", by=by),
    "end": lambda agent, by: agent.reject("r", "1:0", end=True, by=by),
    "respond": lambda agent, by: agent.respond("r", "paid by hand", "1:0", by=by),
    "another response": lambda agent, by: agent.respond("r", "not paid", "1:0", by=by),
}
WORDS = {
    "approve": "approve",
    "edit": "approve with edited arguments",
    "another edit": "approve with edited arguments",
    "reject": "reject",
    "end": "reject and end the run",
    "respond": "respond",
    "another response": "respond",
}


@pytest.mark.parametrize("second", ANSWERS)
@pytest.mark.parametrize("first", ANSWERS)
async def test_a_different_answer_is_refused_with_who_answered_what_and_when(first: str, second: str) -> None:
    journal = MemoryJournal()
    clock = FakeClock(1_700_000_000.0)
    async with left_asking(journal):
        desk = Office().agent(journal, clock=clock)
        await ANSWERS[first](desk, "ann")
        if first == second:
            await ANSWERS[second](desk, "ann")
        for person in ("bob",) if first == second else ("ann", "bob"):
            with pytest.raises(AnswerRefused) as refused:
                await ANSWERS[second](desk, person)
            said = f"ann answered before ({WORDS[first]}, 2023-11-14 22:13:20 UTC)"
            assert (
                str(refused.value) == f"run 'r' refuses the answer: {said}; see `orchestrator docs approvals`"
            )
            assert refused.value.kind == "answered"
            assert refused.value.earlier is not None
            assert (refused.value.earlier["by"], refused.value.earlier["at"]) == ("ann", 1_700_000_000.0)
        assert kept(await journal.inbox("r")) == [(WORDS[first].split()[0], "ann")]
        assert await desk.pending("r") == []


async def test_approve_followed_by_reject_refuses_the_second_on_every_store(handles: Handles) -> None:
    office = Office()
    async with handles() as (mine, theirs):
        async with left_asking(mine) as (question,):
            desk, other = office.agent(mine), office.agent(theirs)
            await desk.approve("r", question.key, digest=question.digest, by="ann")
            for late in (desk, other):
                with pytest.raises(AnswerRefused, match=r"ann answered before \(approve, 2"):
                    await late.reject("r", question.key, by="bob")
                assert await late.pending("r") == []
            await other.approve("r", question.key, by="ann")  # the same person, the same answer
        result = await office.agent(theirs).resume("r")
        assert (result.output, office.paid) == ("paid 5 to x; looked", [("x", 5)])
        assert await approvals(mine) == [("approve", "ann")]
        assert kept(await mine.inbox("r")) == [("approve", "ann")]


async def test_the_process_of_a_live_run_and_another_one_agree_on_the_first_answer(handles: Handles) -> None:
    office = Office()
    async with handles() as (mine, theirs):
        agent, other = office.agent(mine), Office().agent(theirs)
        async with waiting(agent) as (task, question):
            ann, bob = await asyncio.gather(
                outcome(lambda: agent.reject("r", question.key, by="ann")),
                outcome(lambda: other.approve("r", question.key, by="bob")),
            )
            result = await task
        (refused,) = [error for error in (ann, bob) if error is not None]
        won = "ann" if ann is None else "bob"
        assert f"{won} answered before" in str(refused)
        assert [by for _, by in await approvals(theirs)] == [won]
        assert office.paid == ([] if won == "ann" else [("x", 5)])
        assert (result.outcome, await other.pending("r")) == ("completed", [])


async def outcome(answer: Callable[[], Any]) -> AnswerRefused | None:
    """The error that an answer raised."""
    try:
        await answer()
    except AnswerRefused as error:
        return error
    return None


async def test_the_same_answer_of_the_same_person_may_be_repeated_at_any_time(handles: Handles) -> None:
    office = Office()
    async with handles() as (mine, theirs):
        desk, other = office.agent(mine), office.agent(theirs)
        async with left_asking(mine) as (question,):
            for one in (desk, other, desk):
                await one.approve("r", arguments=EDIT, by="ann", why="less")
            await other.approve("r", question.key, digest=question.digest[:8], arguments=EDIT, by="ann")
            await other.approve("r", arguments='{"sum":3,"to":"x"}', by="ann")  # JSON, so the same
        assert len(await mine.inbox("r")) == 1
        assert (await office.agent(mine).resume("r")).output == "paid 3 to x; looked"
        records = await mine.load("r")
        for one in (desk, other):  # the run is over
            await one.approve("r", question.key, arguments=EDIT, by="ann")
            await one.approve("r", arguments=EDIT, by="ann")
            with pytest.raises(
                RunOver, match=r"has ended: completed; ann answered before \(approve with edited"
            ):
                await one.approve("r", question.key, by="ann")
            with pytest.raises(RunOver, match="has ended: completed; ann answered before"):
                await one.approve("r", question.key, arguments=EDIT, by="bob")
        assert await mine.load("r") == records
        assert len(await mine.inbox("r")) == 1
    assert office.paid == [("x", 3)]


async def test_a_question_that_was_answered_is_not_pending_and_the_others_are(handles: Handles) -> None:
    office = Office(*TWO)
    async with handles() as (mine, theirs), left_asking(mine, office) as (one, two):
        await office.agent(mine).approve("r", one.key, by="ann")
        assert await office.agent(theirs).pending("r") == [two]
        await office.agent(theirs).reject("r", by="bob", end=True)  # it ends the run, whatever is asked
        assert await office.agent(mine).pending("r") == []


async def test_an_answer_after_one_that_ends_the_run_is_refused_whatever_it_is_about(
    handles: Handles,
) -> None:
    office = Office(*TWO)
    async with handles() as (mine, theirs):
        async with left_asking(mine, office) as (one, two):
            await office.agent(mine).reject("r", by="ann", end=True)
            for question in (one, two):
                with pytest.raises(AnswerRefused, match=r"ann answered before \(reject and end the run, "):
                    await office.agent(theirs).approve("r", question.key, by="bob")
        assert (await office.agent(mine).resume("r")).outcome == "rejected"
    assert office.paid == []


async def test_an_answer_that_does_not_count_blocks_no_later_one(handles: Handles) -> None:
    office = Office()
    async with handles() as (mine, theirs):
        async with left_asking(mine) as (question,):
            desk = office.agent(theirs)
            for wrong in ({"digest": "f" * 64}, {"digest": "short"}, {"call": "9:9"}, {"arguments": "[]"}):
                with pytest.raises(AnswerRefused):
                    await desk.approve("r", by="eve", **wrong)
            assert await mine.inbox("r") == []
            # A host that posts by itself: its answer is about something else, under the id of the right one.
            name = f"answer {question.key} {question.digest}"
            body = {"call": question.key, "digest": "f" * 64}
            assert await mine.post("r", Posted(name, "reject", body, "eve"))
            assert await desk.pending("r") == [question]
            await desk.approve("r", by="ann")
            with pytest.raises(AnswerRefused, match="ann answered before"):
                await desk.reject("r", by="bob")
        assert (await office.agent(mine).resume("r")).output == "paid 5 to x; looked"
        assert await approvals(mine) == [("approve", "ann")]
    assert office.paid == [("x", 5)]


async def test_an_answer_to_a_question_that_expired_is_refused_and_the_run_goes_on(handles: Handles) -> None:
    office = Office()
    clock = FakeClock()
    async with handles() as (mine, theirs):
        agent = office.agent(mine, clock=clock, limits=Limits(approval_seconds=60))
        async with waiting(agent):
            pass
        await clock.advance(61)
        with pytest.raises(AnswerRefused, match="it came too late: the question has expired"):
            await office.agent(theirs, clock=clock).approve("r", by="ann")
        assert await mine.inbox("r") == []
        assert "nobody approved this call in time" in str((await agent.resume("r")).output)


async def test_an_answer_that_an_earlier_version_posted_counts_before_ours(handles: Handles) -> None:
    office = Office()
    async with handles() as (mine, theirs):
        async with left_asking(mine) as (question,):
            await mine.post("r", Posted("4f2c", "reject", {"call": question.key, "why": "no"}, "ann"))
            desk = office.agent(theirs)
            assert await desk.pending("r") == []
            with pytest.raises(AnswerRefused, match=r"ann answered before \(reject, "):
                await desk.approve("r", question.key, by="bob")
            await desk.reject("r", question.key, by="ann")
        assert "a person rejected this call: no" in str((await office.agent(mine).resume("r")).output)
        assert await approvals(mine) == [("reject", "ann")]


class Rival(MemoryJournal):
    """A store where another process posts first, after an answer was judged and before it is posted."""

    def __init__(self, rival: Callable[[Posted], Posted]) -> None:
        super().__init__()
        self.rival: Callable[[Posted], Posted] | None = rival

    async def post(self, run_id: str, request: Posted) -> bool:
        rival, self.rival = self.rival, None
        if rival is not None:
            await super().post(run_id, rival(request))
        return await super().post(run_id, request)


@pytest.mark.parametrize(
    "rival",
    [
        lambda ours: Posted(ours.id, "reject", {**ours.body}, "bob", 1.0),
        lambda ours: Posted("4f2c", "reject", {"call": "1:0"}, "bob", 1.0),
        lambda ours: Posted("4f2c", "reject", {"call": "1:1", "end": True}, "bob", 1.0),
    ],
    ids=["of this version", "of an earlier version", "that ends the run"],
)
async def test_an_answer_that_comes_between_judging_and_posting_wins(
    rival: Callable[[Posted], Posted],
) -> None:
    office, journal = Office(*TWO), Rival(rival)
    async with left_asking(journal, office) as (question, _):
        with pytest.raises(AnswerRefused, match=r"bob answered before \(reject"):
            await office.agent(journal).approve("r", question.key, by="ann")
        assert question not in await office.agent(journal).pending("r")
    assert office.paid == []


async def test_a_run_that_was_cancelled_meanwhile_takes_no_answer() -> None:
    office, journal = Office(), MemoryJournal()
    async with left_asking(journal) as (question,):
        await office.agent(journal)._service.control._post("r", "cancel", "bob", "enough")
        await office.agent(journal).resume("r")
        with pytest.raises(RunOver, match=r"^run 'r' has ended: cancelled$"):
            await office.agent(journal).approve("r", question.key, by="ann")


async def test_the_last_answer_of_a_run_is_that_to_a_question_asked_again_however_old_the_first_one_is() -> (
    None
):
    journal = MemoryJournal()
    lease = await journal.create("r", "me", {"graph": "llm_loop", "fingerprint": "f", "at": 0.0, "schema": 1})

    async def write(kind: str, **body: Any) -> None:
        journal.append(lease, [Draft(kind, body)])

    asked = {"tool": "send", "arguments": "{}", "why": "approval", "version": 2, "at": 0.0}
    for key in ("1:0", "1:1"):
        await write("asked", key=key, digest=key * 4, **asked)
        await write("approval", key=key, digest=key * 4, decision="approve", by="ann", id=key, at=1.0)
    await write("asked", key="1:0", digest="again " * 4, **asked | {"why": "unknown_effect"})
    await journal.post("r", Posted("a", "reject", {"call": "1:0", "digest": "again " * 4}, "ben", 2.0))
    found = await OpenQuestions.read(journal, "r", 3.0)
    assert list(found.answered) == ["1:1", "1:0"]
    assert found.waiting == {}
    last = found.earlier(None)
    assert last is not None
    assert (last["key"], last["decision"], last["by"]) == ("1:0", "reject", "ben")
