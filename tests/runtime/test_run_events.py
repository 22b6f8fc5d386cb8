"""Events of a run from its journal: read again, continued, followed in another process, and with the owner's pieces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, Limits, MemoryJournal, Response, Runs, RunUnknown, Usage, tool
from orchestrator.errors import ConfigError, Corrupt
from orchestrator.events import (
    BudgetWarning,
    ChildRunFinished,
    ChildRunStarted,
    ModelRequestFinished,
    ModelRequestRetried,
    ModelRequestStarted,
    QuestionAnswered,
    QuestionAsked,
    ReasoningDelta,
    RunCreated,
    RunEvent,
    RunFinished,
    RunResumed,
    RunSuspended,
    StateChanged,
    TextDelta,
    ToolArgumentsDelta,
    ToolFinished,
    ToolStarted,
)
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import RunParked
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import ReasoningPiece, Request
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.service import run_feed
from tests.runtime.stage import Facts, agent, until

Open = Callable[[], Journal]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the store: each call is another process to it, but for the store in memory."""
    if request.param == "memory":
        one = MemoryJournal()
        return lambda: one
    if request.param == "sqlite":
        return lambda: SqliteJournal(tmp_path / "journal.db")
    dsn = request.getfixturevalue("database")
    return lambda: PostgresJournal(dsn)


@contextlib.asynccontextmanager
async def closing(*journals: Journal) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for journal in {id(one): one for one in journals}.values():
            await journal.close()


@tool(effect="pure")
def look(what: str = "") -> str:
    return f"saw {what}"


@tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


async def read(events: AsyncGenerator[RunEvent, None]) -> list[RunEvent]:
    return [event async for event in events]


async def add(seen: list[RunEvent], events: AsyncGenerator[RunEvent, None]) -> None:
    async for event in events:
        seen.append(event)  # noqa: PERF401 - others look at the list meanwhile


def without_states(events: list[RunEvent]) -> list[RunEvent]:
    return [event for event in events if not isinstance(event, StateChanged)]


class Half:
    """Says half of its answer and then waits for `let`."""

    double = True
    model = "half"

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.said = asyncio.Event()

    async def complete(self, request: Request) -> Response:
        if request.on_piece is not None:
            request.on_piece(ReasoningPiece("hm "))
            request.on_piece(ReasoningPiece("hm"))
        for piece in ("half ", "an "):
            if request.on_delta is not None:
                request.on_delta(piece)
        self.said.set()
        await self.let.wait()
        if request.on_delta is not None:
            request.on_delta("answer")
        return Response("half an answer")


# ---- what the journal has ----


async def test_each_event_of_a_run_has_its_content_its_order_and_an_id_that_continues_after_it(
    opened: Open,
) -> None:
    journal = opened()
    async with closing(journal):
        child = Agent(ScriptedLLM(["from below"]), observers=(), name="digger")
        script = [
            Response(
                "Let me see.",
                (call("look", what="x"), call("dig", task="a")),
                reasoning="They ask.",
                usage=Usage(85, 1),
            ),
            call("pay", amount=3),
            "done",
        ]
        tools = [look, pay, child.as_tool("dig", "Dig.")]
        runner = agent(script, tools, journal=journal, name="clerk", limits=Limits(max_input_tokens=100))
        stream = runner.stream("go", run_id="p", tags={"team": "ops"})
        events = []
        async for event in stream:
            events.append(event)
            if isinstance(event, QuestionAsked):
                await runner.runs.approve("p", by="ann", why="fine")
        kept = [event for event in events if event.run_id == "p" and event.id]
        assert kept == await read(Runs(journal).events("p"))
        assert [type(event) for event in without_states(kept)] == [
            *(RunCreated, ModelRequestStarted, ModelRequestFinished),
            *(ToolStarted, ToolStarted, ChildRunStarted, ToolFinished, ChildRunFinished, ToolFinished),
            *(
                BudgetWarning,
                ModelRequestStarted,
                ModelRequestFinished,
                QuestionAsked,
                RunSuspended,
                RunResumed,
            ),
            *(QuestionAnswered, ToolStarted, ToolFinished),
            *(ModelRequestStarted, ModelRequestFinished, RunFinished),
        ]
        check_contents(kept)
        for index, event in enumerate(kept):
            assert await read(runner.runs.events("p", after=event.id)) == kept[index + 1 :]
        assert await read(runner.runs.events("p", after=kept[-1].seq)) == []
        assert await read(runner.runs.events("p", after=0)) == kept[1:]
        below = await read(runner.runs.events("p:1:1"))
        assert below == [event for event in events if event.run_id == "p:1:1" and event.id]
        assert isinstance(below[0], RunCreated)
        assert below[0].parent_run_id == "p"


def check_contents(events: list[RunEvent]) -> None:
    def one(kind: Any, index: int = 0) -> Any:
        return [event for event in events if type(event) is kind][index]

    assert (one(RunCreated).agent, one(RunCreated).tags) == ("clerk", {"team": "ops"})
    first = one(ModelRequestFinished)
    assert (first.text, first.reasoning, first.tool_calls) == ("Let me see.", "They ask.", 2)
    assert (one(ToolStarted).tool, one(ToolStarted).arguments) == ("look", '{"what": "x"}')
    assert (one(ToolFinished).tool, one(ToolFinished).result) == ("look", "saw x")
    started, finished = one(ChildRunStarted), one(ChildRunFinished)
    assert (started.child_run_id, started.agent, started.key) == ("p:1:1", "digger", "1:1")
    assert (finished.child_run_id, finished.outcome) == ("p:1:1", "ok")
    asked, answered = one(QuestionAsked), one(QuestionAnswered)
    assert (asked.tool, asked.arguments, asked.why) == ("pay", '{"amount": 3}', "approval")
    assert (answered.key, answered.decision, answered.by) == (asked.key, "approve", "ann")
    warned = one(BudgetWarning)
    assert (warned.guard, warned.limit) == ("input_tokens", 100)
    end = one(RunFinished)
    assert (end.outcome, end.reason, end.output) == ("completed", "none", "done")
    assert [event.at for event in events] == sorted(event.at for event in events if event.at)


async def test_a_run_of_another_process_is_followed_to_its_end(opened: Open) -> None:
    owner, reader = opened(), opened()
    async with closing(owner, reader):
        llm = Half()
        runner = agent(llm, journal=owner)
        going = asyncio.create_task(runner.run("go", run_id="r"))
        await llm.said.wait()
        seen: list[RunEvent] = []
        following = asyncio.create_task(add(seen, Runs(reader).events("r", follow=True)))
        await until(lambda: any(isinstance(event, ModelRequestStarted) for event in seen))
        llm.let.set()
        await going
        await following
        assert isinstance(seen[-1], RunFinished)
        assert seen == await read(Runs(reader).events("r"))
        assert all(event.id for event in seen)


async def test_a_parked_run_is_followed_until_another_process_has_ended_it(tmp_path: Path) -> None:
    owner, reader = SqliteJournal(tmp_path / "j.db"), SqliteJournal(tmp_path / "j.db")
    async with closing(owner, reader):
        parking = Facts()
        runner = agent([call("pay", amount=1), "done"], [pay], journal=owner, observers=[parking])
        going = asyncio.create_task(runner.run("go", run_id="r"))
        seen: list[RunEvent] = []
        await until(lambda: parking.of(RunParked))
        following = asyncio.create_task(add(seen, Runs(reader).events("r", follow=True)))
        await until(lambda: any(isinstance(event, RunSuspended) for event in seen))
        going.cancel()
        await asyncio.wait((going,))
        await Runs(reader).approve("r")
        await runner.resume("r")
        await following
        assert [type(event) for event in seen if isinstance(event, QuestionAnswered | RunFinished)] == [
            QuestionAnswered,
            RunFinished,
        ]


# ---- the owner ----


async def test_a_client_that_reconnects_to_the_owner_gets_the_text_so_far_and_then_the_pieces() -> None:
    llm = Half()
    runner = agent(llm, journal=MemoryJournal())
    async with runner.stream("go", run_id="r") as stream:
        await llm.said.wait()
        following = runner.runs.events("r", after=0, follow=True)
        came = [await anext(following) for _ in range(4)]
        assert [type(event) for event in came] == [
            StateChanged,
            ModelRequestStarted,
            ReasoningDelta,
            TextDelta,
        ]
        assert [event.text for event in came if isinstance(event, TextDelta | ReasoningDelta)] == [
            "hm hm",
            "half an ",
        ]
        llm.let.set()
        rest = [event async for event in following]
        assert isinstance(rest[0], TextDelta)
        assert (rest[0].text, rest[0].id) == ("answer", None)
        assert isinstance(rest[-1], RunFinished)
        assert isinstance((await stream.result()).output, str)
    late = await read(runner.runs.events("r", follow=True))
    assert not [event for event in late if event.id is None], "the run has ended"


async def test_a_reader_of_a_run_that_had_none_gets_the_pieces_of_the_next_answer() -> None:
    first = asyncio.Event()
    started = asyncio.Event()

    async def model(request: Request) -> Any:
        if len(llm.requests) == 1:
            started.set()
            await first.wait()
            return call("look", what="it")
        return "two words"

    llm = FunctionLLM(model)
    runner = agent(llm, [look], journal=MemoryJournal())
    going = asyncio.create_task(runner.run("go", run_id="r"))
    await started.wait()
    following = asyncio.create_task(read(runner.runs.events("r", follow=True)))
    await until(lambda: runner._service.live.find("r").control.follower)  # type: ignore[union-attr]
    first.set()
    await going
    events = await following
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["two", " words"]
    assert [request.on_delta is not None for request in llm.requests] == [False, True]


async def test_a_reader_that_waits_for_a_run_gets_the_pieces_of_its_first_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.runtime.runs.runs.POLL", 100)  # it waits when the run becomes live
    events: list[RunEvent] = []

    async def model(_: Request) -> str:
        await until(lambda: any(isinstance(event, ModelRequestStarted) for event in events))
        return "two words"

    async def follow(runner: Agent) -> None:
        async for event in runner.runs.events("r", follow=True):
            events.append(event)  # noqa: PERF401 - each as it arrives

    async with SqliteJournal(tmp_path / "journal.db") as journal:
        llm = FunctionLLM(model)
        runner = agent(llm, journal=journal)
        await runner.deposit("go", run_id="r")
        following = asyncio.create_task(follow(runner))
        await until(lambda: runner._service.live._awaited)
        await runner.resume("r")
        await following
        assert [event.text for event in events if isinstance(event, TextDelta)] == ["two", " words"]
        assert runner._service.live._awaited == {}


async def test_pieces_of_arguments_name_their_call_and_a_failed_attempt_is_void() -> None:
    from tests.runtime.test_stream import CUT

    script = [CUT, (call("look", what="a"), call("look", what="b c")), "done"]
    runner = agent(script, [look], journal=MemoryJournal())
    events = await read(runner.stream("go"))  # type: ignore[arg-type]
    given: dict[tuple[int, str], str] = {}
    for event in events:
        if isinstance(event, ToolArgumentsDelta):
            assert (event.iteration, event.attempt) == (1, 2)
            given[event.position, event.tool] = given.get((event.position, event.tool), "") + event.text
    assert given == {(0, "look"): '{"what": "a"}', (1, "look"): '{"what": "b c"}'}
    (retried,) = [event for event in events if isinstance(event, ModelRequestRetried)]
    assert (retried.iteration, retried.attempt, retried.reason, retried.id) == (1, 1, "connection", None)


async def test_a_slow_reader_of_the_owner_loses_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_feed, "KEPT", 4)
    turns = 20
    llm = FunctionLLM(
        lambda request: call("look", what=str(len(llm.requests))) if len(llm.requests) <= turns else "x"
    )
    go, journal = asyncio.Event(), MemoryJournal()

    class Waits:
        async def before_llm_request(self, run: Any, request: Request) -> Request:
            await go.wait()
            return request

    runner = agent(llm, [look], journal=journal, hooks=[Waits()])
    going = asyncio.create_task(runner.run("go", run_id="r"))
    await until(lambda: runner._service.live.find("r"))
    following = runner.runs.events("r", follow=True)
    events = [await anext(following)]
    go.set()
    await going
    events += [event async for event in following]
    assert [event for event in events if event.id] == await read(Runs(journal).events("r"))


async def test_a_reader_that_is_cancelled_leaves_the_run_alone_and_nothing_behind() -> None:
    llm = Half()
    runner = agent(llm, journal=MemoryJournal())
    going = asyncio.create_task(runner.run("go", run_id="r"))
    await llm.said.wait()
    following = asyncio.create_task(read(runner.runs.events("r", follow=True)))
    await until(lambda: runner._service.live.find("r").control.follower)  # type: ignore[union-attr]
    await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait((following,))
    assert following.cancelled()
    assert not runner._service.live.find("r").control.follower._taps  # type: ignore[union-attr]
    llm.let.set()
    assert (await going).output == "half an answer"


# ---- what is refused ----


@pytest.mark.parametrize("after", [-1, "-1", "x", "1.", "1.x", True, 1.5])
def test_a_wrong_position_is_refused_at_the_call_with_what_is_allowed(after: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"must be the id of an event, the number of a record \(0 or more\), or None"
    ):
        Runs(MemoryJournal()).events("r", after=after)


@pytest.mark.parametrize("follow", [False, True])
async def test_an_unknown_run_is_refused_in_one_sentence(opened: Open, *, follow: bool) -> None:
    journal = opened()
    async with closing(journal):
        with pytest.raises(RunUnknown, match="there is no run 'nobody'"):
            await anext(Runs(journal).events("nobody", follow=follow))


async def test_a_damaged_run_is_refused_in_one_sentence(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "j.db"
    async with SqliteJournal(path) as journal:
        await agent(["hi"], journal=journal).run("go", run_id="r")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE record SET body = CAST(replace(CAST(body AS TEXT), '\"hi\"', '\"ho\"') AS BLOB)")
        db.commit()
    async with SqliteJournal(path) as journal:
        with pytest.raises(Corrupt):
            await read(Runs(journal).events("r", follow=True))
