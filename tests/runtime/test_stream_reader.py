"""Who reads a stream may be slow, late or gone: the run is not held up, nothing is left behind, nothing swallowed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from orchestrator.errors import RunError, Suspended
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import RunCompleted, RunParked
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.live_event import EventsDropped, RunEvent, TextDelta
from orchestrator.llm.message import Request, Response
from orchestrator.llm.run_event import RunCreated, RunFinished, RunSuspended, StateChanged
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.run_stream import RunStream
from orchestrator.runtime.service.run_feed import FINE, KEPT, StreamBuffer
from orchestrator.tools.spec import tool
from tests.runtime.stage import Facts, agent, until


@tool(effect="pure")
def look() -> str:
    return "a fact"


def text_of(facts: list[RunEvent], run_id: str | None = None) -> str:
    deltas = (fact for fact in facts if isinstance(fact, TextDelta))
    return "".join(delta.text for delta in deltas if run_id in (None, delta.run_id))


def piece(run_id: str, iteration: int, attempt: int, text: str) -> TextDelta:
    return TextDelta(run_id=run_id, iteration=iteration, attempt=attempt, text=text)


def moved(run_id: str, number: int) -> StateChanged:
    return StateChanged(run_id=run_id, event="go", source="s", dest="s", transition=number)


def only_this_task() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


class Speaker:
    """Says the numbers from 0 on, a word each, without ever waiting; then that is its answer."""

    double = True
    model = "speaker"

    def __init__(self, words: int) -> None:
        self.answer = "".join(f"{number} " for number in range(words))

    async def complete(self, request: Request) -> Response:
        if request.on_delta is not None:
            for word in self.answer.split(" ")[:-1]:
                request.on_delta(word + " ")
        return Response(self.answer)


class Hangs:
    """Says half of its answer and hangs, the first time; later it answers at once."""

    double = True
    model = "hangs"

    def __init__(self) -> None:
        self.asked = 0
        self.cancelled = 0

    async def complete(self, request: Request) -> Response:
        self.asked += 1
        if self.asked == 1:
            if request.on_delta is not None:
                request.on_delta("half an ")
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return Response("half an answer")


# ---- slow ----


async def test_a_run_ends_while_its_reader_has_read_one_fact_and_no_word_is_lost() -> None:
    watching = Facts()
    llm = Speaker(20_000)
    runner = agent(llm, observers=[watching], journal=MemoryJournal())
    stream = runner.stream("go")
    facts = aiter(stream)
    read = [await anext(facts)]
    await until(lambda: watching.of(RunCompleted))
    assert len(stream._backlog) < FINE + 20
    read += [fact async for fact in facts]
    assert text_of(read) == llm.answer
    assert [fact for fact in read if fact.id] == [one async for one in runner.runs.events(stream.run_id)]
    assert (await stream.result()).output == llm.answer


async def test_a_run_that_nobody_reads_ends_as_it_would_and_keeps_so_many_facts_and_not_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = 500
    monkeypatch.setattr("orchestrator.runtime.service.run_feed.KEPT", most)
    turns = most // 8
    llm = FunctionLLM(lambda request: call("look") if len(llm.requests) <= turns else "done")
    runner = agent(llm, [look], limits=OFF, journal=MemoryJournal())
    async with runner.stream("go") as stream:
        assert (await stream.result()).output == "done"
        whole = [one async for one in runner.runs.events(stream.run_id)]
        assert len(whole) > most
        assert len(stream._backlog) == most
        first, *rest = [fact async for fact in stream]
    assert isinstance(first, EventsDropped)
    assert first.count >= len(whole) - most
    kept = [fact for fact in rest if fact.id]
    assert kept == whole[-len(kept) :]
    assert len(rest) == most
    assert len(stream._backlog) == 0


async def test_the_words_of_runs_that_speak_at_once_are_not_mixed_when_they_get_coarse() -> None:
    backlog = StreamBuffer("root")
    for number in range(5_000):
        for run_id in "abc":
            backlog.put(piece(run_id, 1, 1, f"{run_id}{number} "))
    assert len(backlog) == FINE
    for fact in told_last(run_id="a"):
        backlog.put(fact)
    backlog.end()
    read = await drained(backlog)
    for run_id in "bc":
        assert text_of(read, run_id) == "".join(f"{run_id}{number} " for number in range(5_000))
    said = "".join(f"a{number} " for number in range(5_000))
    assert text_of(read, "a") == said + "and next again "
    assert read[-4:] == told_last(run_id="a"), "what lies between is told between"


def told_last(run_id: str) -> list[RunEvent]:
    return [
        moved(run_id, 1),
        piece(run_id, 1, 1, "and "),
        piece(run_id, 2, 1, "next "),
        piece(run_id, 2, 2, "again "),
    ]


async def drained(backlog: StreamBuffer) -> list[RunEvent]:
    read: list[RunEvent] = []
    while (fact := await backlog.next()) is not None:
        read.append(fact)
    return read


async def test_what_was_read_does_not_grow_any_more() -> None:
    backlog = StreamBuffer("a")
    for _ in range(FINE + 10):
        backlog.put(piece("a", 1, 1, "x"))
    seen = [await backlog.next() for _ in range(FINE)]
    assert seen[-1] == piece("a", 1, 1, "x" * 11)
    backlog.put(piece("a", 1, 1, "y"))
    backlog.end()
    assert await drained(backlog) == [piece("a", 1, 1, "y")]
    assert not backlog._growing


async def test_the_oldest_make_room_again_and_again_and_each_gap_says_how_many() -> None:
    backlog = StreamBuffer("root")
    for number in range(KEPT + 7):
        backlog.put(moved("root", number))
    assert await backlog.next() == EventsDropped(run_id="root", count=7)
    assert await backlog.next() == moved("root", 7)
    for number in range(3):
        backlog.put(moved("root", KEPT + 7 + number))
    assert await backlog.next() == EventsDropped(run_id="root", count=2)
    assert await backlog.next() == moved("root", 10)


# ---- leaving ----

Leave: TypeAlias = Callable[[RunStream], Awaitable[None]]


class Left(Exception):
    """What a reader raises who leaves."""


async def first_word(stream: RunStream) -> None:
    async for fact in stream:
        if isinstance(fact, TextDelta):
            return


async def by_break(stream: RunStream) -> None:
    async for fact in stream:
        if isinstance(fact, TextDelta):
            break


async def by_exception(stream: RunStream) -> None:
    with contextlib.suppress(Left):
        async for fact in stream:
            if isinstance(fact, TextDelta):
                raise Left


async def by_cancellation_in_the_body(stream: RunStream) -> None:
    reached = asyncio.Event()

    async def reader() -> None:
        async for fact in stream:
            if isinstance(fact, TextDelta):
                reached.set()
                await asyncio.get_running_loop().create_future()

    await cancelled(asyncio.create_task(reader()), reached)


async def by_cancellation_while_waiting(stream: RunStream) -> None:
    reached = asyncio.Event()

    async def reader() -> None:
        async for fact in stream:
            if isinstance(fact, TextDelta):
                reached.set()

    await cancelled(asyncio.create_task(reader()), reached)


async def by_timeout(stream: RunStream) -> None:
    limit = asyncio.timeout(None)
    with contextlib.suppress(TimeoutError):
        async with limit:
            async for fact in stream:
                if isinstance(fact, TextDelta):
                    limit.reschedule(0.0)
    assert limit.expired()


async def by_closing_the_iterator(stream: RunStream) -> None:
    async with contextlib.aclosing(aiter(stream)) as facts:  # type: ignore[type-var]
        async for fact in facts:
            if isinstance(fact, TextDelta):
                break


async def by_closing_the_stream(stream: RunStream) -> None:
    facts = aiter(stream)
    while not isinstance(await anext(facts), TextDelta):
        pass
    await stream.aclose()


async def by_the_block(stream: RunStream) -> None:
    async with stream:
        await first_word(stream)


async def by_an_exception_in_the_block(stream: RunStream) -> None:
    with contextlib.suppress(Left):
        async with stream:
            await first_word(stream)
            raise Left


async def by_cancellation_in_the_block(stream: RunStream) -> None:
    reached = asyncio.Event()

    async def reader() -> None:
        async with stream:
            await first_word(stream)
            reached.set()
            await stream.result()

    await cancelled(asyncio.create_task(reader()), reached)


async def by_giving_up_the_result(stream: RunStream) -> None:
    waiting = asyncio.create_task(stream.result())
    await until(lambda: stream._backlog and stream._task)
    await asyncio.sleep(0)
    waiting.cancel("enough")
    await asyncio.wait((waiting,))
    assert waiting.cancelled()


async def cancelled(reader: asyncio.Task[None], reached: asyncio.Event) -> None:
    await reached.wait()
    reader.cancel("enough")
    await asyncio.wait((reader,))
    assert reader.cancelled(), "a cancellation is never swallowed"


AT_ONCE: tuple[Leave, ...] = (
    by_cancellation_while_waiting,
    by_timeout,
    by_closing_the_iterator,
    by_closing_the_stream,
    by_the_block,
    by_an_exception_in_the_block,
    by_cancellation_in_the_block,
    by_giving_up_the_result,
)
SOON: tuple[Leave, ...] = (first_word, by_break, by_exception, by_cancellation_in_the_body)


@pytest.mark.parametrize("leave", [*AT_ONCE, *SOON], ids=lambda leave: leave.__name__)
async def test_who_leaves_gives_the_run_up_and_resume_goes_on_with_it(leave: Leave) -> None:
    llm, journal, watching = Hangs(), MemoryJournal(), Facts()
    runner = agent(llm, journal=journal, observers=[watching])
    stream = runner.stream("go", run_id="r")
    await leave(stream)
    if leave in SOON:
        await until(only_this_task)
    assert only_this_task()
    assert llm.cancelled == 1
    [parked] = watching.of(RunParked)
    assert parked.reason == "interrupted"
    assert (await journal.head("r")).owner is None
    assert runner.hosting.live("r") is None
    with pytest.raises(Suspended, match="resume"):
        await stream.result()
    with pytest.raises(Suspended):
        [fact async for fact in stream]
    assert (await runner.resume("r")).output == "half an answer"
    assert only_this_task()


async def test_a_run_below_is_left_with_the_one_above_it_and_both_go_on(tmp_path: Any) -> None:
    llm = Hangs()
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        script = ScriptedLLM([call("dig", task="dig"), "done"])
        runner = agent(script, [agent(llm).as_tool("dig", "Dig.")], journal=journal)
        async with runner.stream("go", run_id="p") as stream:
            async for fact in stream:
                if isinstance(fact, TextDelta):
                    assert fact.run_id == "p:1:0"
                    break
        assert llm.cancelled == 1
        assert (await journal.head("p:1:0")).owner is None
        assert (await runner.resume("p")).output == "done"
        assert llm.asked == 2


async def test_who_is_cancelled_twice_still_waits_until_nothing_runs() -> None:
    cleaned = asyncio.Event()
    waits, reached = asyncio.Event(), asyncio.Event()

    async def model(request: Request) -> str:
        reached.set()
        try:
            return str(await asyncio.get_running_loop().create_future())
        finally:
            waits.set()
            await cleaned.wait()

    stream = agent(FunctionLLM(model)).stream("go")
    reader = asyncio.create_task(first_word(stream))
    await reached.wait()
    reader.cancel()
    await waits.wait()
    reader.cancel()
    await asyncio.sleep(0)
    assert not reader.done()
    cleaned.set()
    await asyncio.wait((reader,))
    assert reader.cancelled()
    assert only_this_task()


async def test_a_stream_that_was_closed_before_it_began_begins_nothing() -> None:
    runner = agent(["hi"])
    stream = runner.stream("go", run_id="r")
    await stream.aclose()
    with pytest.raises(RunError, match="closed before the run started"):
        await stream.result()
    assert (await runner.run("go", run_id="r")).output == "hi"


# ---- staying ----


async def test_the_block_keeps_the_run_going_between_loops_and_after_them() -> None:
    async with agent(["some words here"]).stream("go") as stream:
        await first_word(stream)
        rest = [fact async for fact in stream]
        assert isinstance(rest[-1], RunFinished)
        assert (await stream.result()).output == "some words here"
    assert (await stream.result()).output == "some words here"


async def test_who_waits_for_the_result_beside_a_reader_may_give_up_alone() -> None:
    held = asyncio.Event()

    async def model(request: Request) -> str:
        await held.wait()
        return "answer"

    stream = agent(FunctionLLM(model)).stream("go")
    facts = aiter(stream)
    assert isinstance(await anext(facts), RunCreated)
    waiting = asyncio.create_task(stream.result())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    held.set()
    assert text_of([fact async for fact in facts]) == "answer"


async def test_readers_at_once_share_what_comes_and_both_come_to_the_end() -> None:
    runner = agent(Speaker(500), journal=MemoryJournal())
    async with runner.stream("go") as stream:

        async def reader() -> list[RunEvent]:
            read = []
            async for fact in stream:
                read.append(fact)
                await asyncio.sleep(0)
            return read

        one, other = await asyncio.gather(reader(), reader())
    assert one
    assert other
    read = {fact.id for fact in (*one, *other) if fact.id}
    assert read == {fact.id async for fact in runner.runs.events(stream.run_id)}


async def test_a_run_that_is_cancelled_by_its_reader_is_told_to_its_end() -> None:
    llm = Hangs()
    runner = agent(llm)
    stream = runner.stream("go")
    read: list[RunEvent] = []
    async for fact in stream:
        read.append(fact)
        if isinstance(fact, TextDelta):
            runner.cancel(stream.run_id, why="seen enough")
    end = read[-1]
    assert isinstance(end, RunFinished)
    assert (end.outcome, end.reason) == ("cancelled", "caller")
    assert (await stream.result()).outcome is Outcome.CANCELLED


async def test_a_reader_may_answer_what_the_run_asks_people() -> None:
    @tool(approval=True)
    def pay() -> str:
        return "paid"

    runner = agent([call("pay"), "done"], [pay])
    stream = runner.stream("go")
    async for fact in stream:
        if isinstance(fact, RunSuspended):
            [question] = await runner.pending(stream.run_id)
            runner.approve(stream.run_id, question.key)
    result = await stream.result()
    assert result.output == "done"
    assert "paid" in [message.text for message in result.messages]


async def test_streams_of_many_runs_at_once_keep_apart() -> None:
    runner = Agent(FunctionLLM(lambda request: f"answer to {request.messages[-1].text}"), observers=())

    async def one(number: int) -> str:
        stream = runner.stream(f"question {number}")
        read = [fact async for fact in stream]
        assert {fact.run_id for fact in read} == {stream.run_id}
        return text_of(read)

    said = await asyncio.gather(*(one(number) for number in range(50)))
    assert list(said) == [f"answer to question {number}" for number in range(50)]
    assert not len(runner._service.live)


async def test_a_generator_that_passes_a_stream_on_ends_with_its_own_reader() -> None:
    llm = Hangs()
    runner = agent(llm, journal=MemoryJournal())

    async def sent() -> AsyncIterator[str]:
        async with runner.stream("go", run_id="r") as stream:
            async for fact in stream:
                if isinstance(fact, TextDelta):
                    yield fact.text

    client = sent()
    assert await anext(client) == "half an "
    await client.aclose()  # type: ignore[attr-defined]
    assert only_this_task()
    assert llm.cancelled == 1
