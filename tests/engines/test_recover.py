"""What an engine does at its start with runs that others have left: it lists them, or takes up what needs no person."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.run_queue import Handle
from orchestrator.errors import Held, StoreDown, Suspended
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Posted, RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.runtime.service.recovery import MOST_CLAIMS
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


async def test_at_start_open_runs_are_listed_and_nothing_runs() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    async with left(agent(stage, journal, clock=clock), clock) as engine:
        for name in ("ask", "quick"):
            await engine.submit(name, run_id=name)
        await until(lambda: len(stage.waiting) == 1)
    before = {run_id: (await journal.head(run_id)).seq for run_id in ("ask", "quick")}

    later = Stage()
    async with LocalEngine(agent(later, journal, clock=clock)) as engine:
        assert [(run.run_id, run.status, run.reason) for run in engine.found] == [
            ("ask", "parked", "approval"),
            ("quick", "parked", "interrupted"),
        ]
        assert (
            engine.found[0].will == "waits for a person: may send run? (call 1:0); continues in process_tools"
        )
        assert engine.recovered == {}
        assert engine.status()["queued"] == 0
    assert later.asked == []
    assert {run_id: (await journal.head(run_id)).seq for run_id in before} == before


async def test_runs_that_need_a_person_are_not_taken_up() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    runner = agent(stage, journal, clock=clock)
    async with left(runner, clock) as engine:
        names = ("ask 1", "ask 2", "look paused", "poison", "fine")
        for name in names:
            await engine.submit(name, run_id=name)
        await until(lambda: len(stage.waiting) == 3)
        await runner.pause("look paused", by="ann")
        stage.let("look paused")
        await until(lambda: stage.waiting.keys() == {"poison", "fine"})
    for _ in range(MOST_CLAIMS):
        await journal.release(await journal.claim("poison", "somebody"))
    request = {"call": "1:0", "why": ""}
    await journal.post("ask 2", Posted("1", "approve", request, "ann"))  # answered while nobody was there

    later = Stage()
    later.let(*names)
    async with LocalEngine(agent(later, journal, clock=clock), recover="resume") as engine:
        assert sorted(engine.recovered) == ["ask 2", "fine"]
        for handle in engine.recovered.values():
            assert (await handle).outcome is Outcome.COMPLETED
    assert later.effects == {"send": 1}
    reasons = {name: (await journal.head(name)).reason for name in names}
    assert (reasons["ask 1"], reasons["look paused"]) == ("approval", "paused")
    assert (await journal.head("poison")).status == "parked"


async def test_a_queued_resumption_stays_in_the_journal() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    async with left(agent(stage, journal, clock=clock), clock) as engine:
        await engine.submit("quick", run_id="quick")
        await until(lambda: bool(stage.waiting))
    before = await standing(journal, "quick")
    async with left(agent(stage, journal, clock=clock), clock, slots=1) as engine:
        await engine.submit("other")
        waits = await engine.resume("quick")
    assert await suspended(waits) == "shutdown"
    assert "quick" in (await engine.drain()).parked
    assert await standing(journal, "quick") == before


async def test_two_engines_that_start_at_once_take_each_run_up_once() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    names = [f"look {number}" for number in range(6)]
    async with left(agent(stage, journal, clock=clock), clock) as engine:
        for name in names:
            await engine.submit(name, run_id=name)
        await until(lambda: len(stage.waiting) == 6)
    later = Stage()
    later.let(*names)
    one, two = (LocalEngine(agent(later, journal), recover="resume", name=name) for name in ("one", "two"))
    await asyncio.gather(one.start(), two.start())
    results = await asyncio.gather(
        *(_end(engine.recovered[name]) for engine in (one, two) for name in engine.recovered)
    )
    assert sorted(one for one in results if one is not None) == [f"{name}!" for name in names]
    assert later.effects == {"look": 6}
    await asyncio.gather(one.drain(), two.drain())


async def _end(handle: Handle) -> str | None:
    try:
        return str((await handle).output)
    except Held:
        return None


async def test_an_engine_that_cannot_take_runs_up_leaves_nothing_behind() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    async with left(agent(stage, journal, clock=clock), clock) as engine:
        for name in ("quick 1", "quick 2"):
            await engine.submit(name, run_id=name)
        await until(lambda: len(stage.waiting) == 2)

    class Failing(MemoryJournal):
        async def head(self, run_id: str) -> RunHead:
            if run_id == "quick 2":
                raise StoreDown("the disk is gone")
            return await super().head(run_id)

    journal.__class__ = Failing
    runner = agent(stage, journal, clock=clock)
    engine = LocalEngine(runner, recover="resume")
    with pytest.raises(StoreDown, match="the disk is gone"):
        await engine.start()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert (await journal.head(engine.run_id)).status == "ended"
    assert (await journal.head("quick 1")).owner is None
    async with LocalEngine(runner):
        pass  # the agent is free
