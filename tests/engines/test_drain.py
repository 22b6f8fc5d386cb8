"""A drained engine leaves nothing half-done: what can end ends, the rest waits in the journal to be resumed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.engines.local_engine import HURRY, SETTLE, DrainReport, LocalEngine
from orchestrator.engines.run_queue import Handle, Phase
from orchestrator.errors import NotAdmitting, StoreDown, Suspended
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.outcome import Outcome
from orchestrator.testing.clock import FakeClock
from tests.engines.stage import Stage, agent, left, until


async def standing(journal: MemoryJournal, run_id: str) -> tuple[str, str, str | None]:
    head = await journal.head(run_id)
    return head.status, head.reason, head.owner


async def suspended(handle: Handle) -> str:
    with pytest.raises(Suspended) as left:
        await handle
    assert left.value.run_id == handle.run_id
    return left.value.reason


async def test_a_drain_lets_end_what_can_parks_what_it_may_and_interrupts_the_rest() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    engine = LocalEngine(agent(stage, journal, clock=clock), slots=3, grace=30, name="mill")
    await engine.start()
    runs = {
        name: await engine.submit(name, run_id=name) for name in ("ask", "quick", "look", "stuck", "queued")
    }
    await until(lambda: set(stage.waiting) == {"quick", "look", "stuck"})
    assert (runs["ask"].phase, runs["queued"].phase) == (Phase.WAITING, Phase.QUEUED)

    draining = asyncio.create_task(engine.drain(by="ann", why="new version"))
    with pytest.raises(NotAdmitting, match="drained by ann: new version; submit it to another engine"):
        await runs["queued"]
    with pytest.raises(NotAdmitting, match="it is draining or has stopped"):
        await engine.submit("late")
    stage.let("quick")
    assert (await runs["quick"]).output == "quick!"
    await clock.advance(31)
    assert not draining.done(), "two are in the middle of a step"
    stage.let("look")
    await until(lambda: runs["look"].phase is Phase.WAITING)
    await clock.advance(SETTLE + 1)
    report = await draining

    assert report == DrainReport(
        ended=("quick",), parked=("ask", "look"), interrupted=("stuck",), refused=("queued",)
    )
    assert [await suspended(runs[name]) for name in ("ask", "look", "stuck")] == [
        "approval",
        "shutdown",
        "interrupted",
    ]
    assert await standing(journal, "ask") == ("parked", "approval", None)
    assert await standing(journal, "look") == ("parked", "shutdown", None)
    assert await standing(journal, "stuck") == ("parked", "interrupted", None)
    assert [head.run_id async for head in journal.runs(graph="llm_loop")] == ["ask", "quick", "look", "stuck"]
    assert stage.effects == {}
    assert stage.running == 0
    mill = await journal.head(engine.run_id)
    assert (mill.status, mill.outcome, mill.reason) == ("ended", "completed", "none")


async def test_after_a_drain_another_engine_goes_on_and_every_effect_happens_once() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    runner = agent(stage, journal, clock=clock)
    async with left(runner, clock, meanwhile=lambda: stage.let("look 1")) as engine:
        for name in ("ask", "look 1", "look 2", "quick"):
            await engine.submit(name, run_id=name)
        await until(lambda: len(stage.waiting) == 3)
    heads = [await standing(journal, name) for name in ("ask", "look 1", "look 2", "quick")]
    assert [reason for _, reason, _ in heads] == ["approval", "shutdown", "interrupted", "interrupted"]

    next_stage = Stage()
    next_stage.let("look 1", "look 2", "quick")
    runner = agent(next_stage, journal, clock=clock)
    async with LocalEngine(runner, recover="resume") as engine:
        assert sorted(engine.recovered) == ["look 1", "look 2", "quick"]
        for handle in engine.recovered.values():
            assert (await handle).output == f"{handle.run_id}!"
        asked = await engine.resume("ask")
        await until(lambda: asked.phase is Phase.WAITING)
        await runner.approve("ask", by="ann")
        assert (await asked).outcome is Outcome.COMPLETED
    assert stage.effects + next_stage.effects == {"look": 2, "send": 1}


async def test_who_stands_in_line_with_an_answer_is_not_left_with_it_unheard() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    runner = agent(stage, journal, clock=clock)
    engine = LocalEngine(runner, slots=1, grace=5)
    await engine.start()
    ask = await engine.submit("ask", run_id="ask")
    await until(lambda: ask.phase is Phase.WAITING)
    look = await engine.submit("look", run_id="look")
    await until(lambda: stage.asked == ["look"])
    await runner.approve("ask", by="ann")
    await until(lambda: ask.phase is Phase.READY)
    draining = asyncio.create_task(engine.drain())
    await clock.advance(6)
    stage.let("look")  # it parks, and leaves its slot to the other one
    report = await draining
    assert sorted(report.parked) == ["ask", "look"]
    assert [await suspended(ask), await suspended(look)] == ["shutdown", "shutdown"]
    stored = StoredRun.of("ask", await journal.load("ask"))
    assert [entry.answer["by"] for entry in stored.ledger.entries.values() if entry.answer] == ["ann"]
    assert stage.effects == {"send": 1}
    later = Stage()
    assert (await agent(later, journal).resume("ask")).output == "ask!"
    assert later.effects == {}


async def test_a_drain_is_joined_and_may_be_shortened_but_not_lengthened() -> None:
    stage, clock = Stage(), FakeClock()
    engine = LocalEngine(agent(stage, clock=clock), grace=60)
    await engine.start()
    await engine.submit("look", run_id="look")
    await until(lambda: bool(stage.waiting))
    first = asyncio.create_task(engine.drain())
    second = asyncio.create_task(engine.drain(600))
    third = asyncio.create_task(engine.drain(10))
    await clock.advance(11)
    stage.let("look")
    reports = [await one for one in (first, second, third)]
    assert reports[0] == DrainReport(parked=("look",))
    assert reports[1] is reports[0] is reports[2]


async def test_a_drain_that_is_shortened_to_nothing_leaves_runs_their_time_to_settle() -> None:
    stage, clock = Stage(), FakeClock()
    engine = LocalEngine(agent(stage, clock=clock))
    await engine.start()
    handle = await engine.submit("look", run_id="look")
    await until(lambda: bool(stage.waiting))
    first = asyncio.create_task(engine.drain(60))
    await clock.advance(1)
    joined = []
    for _ in range(3):
        joined.append(asyncio.create_task(engine.drain(0)))
        await clock.advance(SETTLE / 4)
    stage.let("look")
    assert await asyncio.gather(first, *joined) == [DrainReport(parked=("look",))] * 4
    assert await suspended(handle) == "shutdown"


async def test_who_is_cancelled_while_draining_does_not_stop_it() -> None:
    stage, clock = Stage(), FakeClock()
    engine = LocalEngine(agent(stage, clock=clock))
    await engine.start()
    handle = await engine.submit("quick")
    await until(lambda: bool(stage.waiting))
    caller = asyncio.create_task(engine.drain())
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    stage.let("quick")
    assert (await handle).outcome is Outcome.COMPLETED
    assert (await engine.drain()).ended == (handle.run_id,)


async def test_a_block_that_is_left_by_an_error_drains_at_once() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    engine = LocalEngine(agent(stage, journal, clock=clock), grace=1e9)

    async def host() -> None:
        async with engine:
            handle = await engine.submit("ask", run_id="r")
            await until(lambda: handle.phase is Phase.WAITING)
            await engine.submit("quick")
            raise ValueError("mine")

    leaving = asyncio.create_task(host())
    await until(lambda: engine._draining is not None)
    await clock.advance(SETTLE)
    with pytest.raises(ValueError, match="mine"):
        await leaving
    assert await standing(journal, "r") == ("parked", "approval", None)


async def test_a_block_whose_caller_is_cancelled_interrupts_at_once_and_leaves_no_task_behind() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    engine = LocalEngine(agent(stage, journal, clock=clock))

    async def host() -> None:
        async with engine:
            await engine.submit("quick", run_id="r")
            await until(lambda: bool(stage.waiting))

    task = asyncio.create_task(host())
    await until(lambda: engine._draining is not None)
    task.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait((task,))  # no second of its grace period or of a step passes
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await standing(journal, "r") == ("parked", "interrupted", None)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_engine_whose_journal_is_down_still_stops() -> None:
    stage, inner = Stage(), MemoryJournal()
    journal = CrashingJournal(inner, at=2)
    engine = LocalEngine(agent(stage, journal), grace=0)
    await engine.start()
    stage.let("quick")
    handle = await engine.submit("quick", run_id="r")
    assert (await handle).outcome is Outcome.FAILED
    assert (await engine.drain(0)) == DrainReport()
    assert (await inner.head(engine.run_id)).status == "open", "it will count as lost"


class Unready(MemoryJournal):
    """A journal whose server does not answer to the creation of the run `new`, and to nothing once it is down."""

    def __init__(self) -> None:
        super().__init__()
        self.creating = 0
        self.waits = asyncio.Event()
        self.down = False
        self.hurried: list[float] = []

    async def create(self, run_id: str, owner: str, body: Any) -> Any:
        if body["graph"] == "llm_loop" and run_id == "new":
            self.creating += 1
            await self.waits.wait()
            raise StoreDown("the server does not answer")
        return await super().create(run_id, owner, body)

    async def head(self, run_id: str) -> Any:
        if self.down:
            raise StoreDown("the server does not answer")
        return await super().head(run_id)

    def hurry(self, seconds: float) -> None:
        self.hurried.append(seconds)
        self.waits.set()


async def test_a_run_that_was_cut_before_it_was_in_the_journal_is_refused_and_says_so() -> None:
    stage, journal, clock = Stage(), Unready(), FakeClock()
    engine = LocalEngine(agent(stage, journal, clock=clock), name="mill")
    await engine.start()
    handle = await engine.submit("quick", run_id="new")
    await until(lambda: journal.creating == 1)
    draining = asyncio.create_task(engine.drain(0, by="ann", why="new version"))
    await clock.advance(SETTLE)
    report = await draining
    assert report == DrainReport(refused=("new",))
    with pytest.raises(NotAdmitting) as refused:
        await handle
    assert "drained by ann: new version; submit it to another engine" in str(refused.value)
    assert journal.hurried == [HURRY]


async def test_a_run_whose_end_nobody_can_read_counts_as_interrupted() -> None:
    stage, journal, clock = Stage(), Unready(), FakeClock()
    engine = LocalEngine(agent(stage, journal, clock=clock))
    await engine.start()
    handle = await engine.submit("quick", run_id="r")
    await until(lambda: bool(stage.waiting))
    draining = asyncio.create_task(engine.drain(0))
    await clock.advance(0)
    journal.down = True
    while not draining.done():
        await clock.advance(SETTLE)
    assert await draining == DrainReport(interrupted=("r",))
    assert await suspended(handle) == "interrupted"


class Stalling(MemoryJournal):
    """A journal that answers no read of a run's head while `stalls`."""

    def __init__(self) -> None:
        super().__init__()
        self.stalls = False
        self.stalled = 0
        self.hurried: list[float] = []

    def hurry(self, seconds: float) -> None:
        self.hurried.append(seconds)

    async def head(self, run_id: str) -> Any:
        if self.stalls and run_id == "r":
            self.stalled += 1
            await asyncio.Event().wait()
        return await super().head(run_id)


async def cut_while_its_head_is_read(engine: LocalEngine, journal: Stalling) -> DrainReport:
    """Drain at once as soon as the run `r` waits for its head; the journal answers again afterwards."""
    await until(lambda: journal.stalled == 1)
    journal.stalls = False
    async with asyncio.timeout(60):
        return await engine.drain(0)


async def test_a_resumed_run_that_is_cut_before_it_is_claimed_stays_in_the_journal_and_its_handle_says_so() -> (
    None
):
    stage, journal = Stage(), Stalling()
    async with LocalEngine(agent(stage, journal), grace=0) as first:
        waiting = await first.submit("ask", run_id="r")
        await until(lambda: waiting.phase is Phase.WAITING)
    async with LocalEngine(agent(stage, journal)) as engine:
        handle = await engine.resume("r")  # the engine has read the head; its agent reads it again
        journal.stalls, journal.hurried = True, []
        report = await cut_while_its_head_is_read(engine, journal)
    assert report == DrainReport(parked=("r",))
    assert journal.hurried == [HURRY], "a server that is down is not waited for"
    assert handle.done()
    assert await suspended(handle) == "approval"
    assert await standing(journal, "r") == ("parked", "approval", None)


async def test_a_run_that_is_cut_after_its_end_has_ended_and_its_handle_has_the_result() -> None:
    stage, journal = Stage(), Stalling()
    async with LocalEngine(agent(stage, journal), grace=0) as first:
        await first.submit("look", run_id="r")
        await until(lambda: bool(stage.waiting))
    async with LocalEngine(agent(stage, journal)) as engine:
        handle = await engine.resume("r")
        await until(lambda: bool(stage.waiting))
        journal.stalls = True  # after its end, the open child runs of a resumed run are read
        stage.let("look")
        report = await cut_while_its_head_is_read(engine, journal)
    assert report == DrainReport(ended=("r",))
    assert handle.done()
    assert (await handle).output == "look!"
    assert await standing(journal, "r") == ("ended", "none", None)


async def test_a_drained_engine_leaves_no_timer() -> None:
    stage, clock = Stage(), FakeClock()
    async with left(agent(stage, clock=clock), clock, meanwhile=lambda: stage.let("look")) as engine:
        for name in ("look", "quick", "ask"):
            await engine.submit(name, run_id=name)
        await until(lambda: sorted(stage.waiting) == ["look", "quick"])
    assert clock.pending == 0


async def test_a_stored_run_in_the_queue_stays_in_the_journal() -> None:
    journal, clock = MemoryJournal(), FakeClock()
    async with left(agent(Stage(), journal, clock=clock), clock) as engine:
        await engine.submit("look", run_id="r")
    stage = Stage()
    runner = agent(stage, journal, clock=clock)
    async with left(runner, clock, slots=1) as engine:
        await engine.submit("quick")
        await until(lambda: bool(stage.waiting))
        handle = await engine.resume("r")
        assert handle.phase is Phase.QUEUED
    report = await engine.drain()
    assert (report.parked, report.refused, len(report.interrupted)) == (("r",), (), 1)
    assert await suspended(handle) == "shutdown"


@pytest.mark.parametrize("turns", range(12))
async def test_an_order_whose_caller_is_cancelled_is_journalled_and_carried_out_or_neither(
    turns: int,
) -> None:
    stage, journal = Stage(), Slow()
    async with LocalEngine(agent(stage, journal)) as engine:
        caller = asyncio.create_task(engine.control("stop_admitting", by="ann"))
        for _ in range(turns):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait((caller,))
        for _ in range(20):
            await asyncio.sleep(0)
        noted = any(record.kind == "control" for record in await journal.load(engine.run_id))
        assert noted is not engine.status()["admitting"]


class Slow(MemoryJournal):
    """An append takes some turns of the loop."""

    def append(self, lease: Any, drafts: Any, blobs: Any = None) -> Any:
        super().append(lease, drafts, blobs)
        return self._turns()

    async def _turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_runs_that_others_begin_with_the_agent_are_not_the_engines() -> None:
    stage = Stage()
    runner = agent(stage)
    async with LocalEngine(runner, slots=1) as engine:
        await engine.submit("mine")
        await until(lambda: stage.asked == ["mine"])
        direct = asyncio.create_task(runner.run("ask", run_id="direct"))
        await until(lambda: runner.hosting.live("direct") is not None)
        while not await runner.pending("direct"):  # noqa: ASYNC110  until it asks
            await asyncio.sleep(0)
        await runner.approve("direct", by="ann")
        assert (await direct).outcome is Outcome.COMPLETED, "it has no slot to wait for"
        assert engine.status()["taken"] == 1
        stage.let("mine")
