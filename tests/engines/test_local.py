"""The local engine: so many runs at once, the others in order or refused; who waits for a person needs no slot."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.local_engine import DrainReport, LocalEngine
from orchestrator.engines.run_queue import Handle, Phase
from orchestrator.errors import (
    ConfigError,
    NotAdmitting,
    Overloaded,
    RunError,
    RunExists,
    RunUnknown,
)
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing.clock import FakeClock
from tests.engines.stage import Stage, agent, until


async def test_a_run_is_submitted_and_its_handle_is_its_result() -> None:
    stage = Stage()
    async with LocalEngine(agent(stage)) as engine:
        handle = await engine.submit("one", run_id="r")
        assert handle.run_id == "r"
        assert not handle.done()
        stage.let("one")
        result = await handle
        assert (result.outcome, result.output, result.run_id) == (Outcome.COMPLETED, "one!", "r")
        assert await handle is result, "may be awaited again"
        assert handle.phase is Phase.OVER


async def test_no_more_run_at_once_than_there_are_slots_and_the_others_come_in_order() -> None:
    stage = Stage()
    async with LocalEngine(agent(stage), slots=2) as engine:
        handles = [await engine.submit(name, run_id=name) for name in "abcd"]
        await until(lambda: stage.asked == ["a", "b"])
        assert [handle.phase for handle in handles] == [Phase.RUNNING] * 2 + [Phase.QUEUED] * 2
        stage.let("b")
        await until(lambda: stage.asked == ["a", "b", "c"])
        stage.let("a", "c", "d")
        assert [(await handle).output for handle in handles] == ["a!", "b!", "c!", "d!"]
    assert stage.most == 2


async def test_a_full_queue_refuses_and_the_journal_knows_nothing_of_it() -> None:
    stage, journal = Stage(), MemoryJournal()
    async with LocalEngine(agent(stage, journal), slots=1, queue=1, name="mill") as engine:
        kept = [await engine.submit(name, run_id=name) for name in "ab"]
        with pytest.raises(
            Overloaded, match=r"queue of engine 'mill' is full: 1 runs wait for its 1 slots; submit again"
        ) as full:
            await engine.submit("c", run_id="c")
        assert (full.value.queue, full.value.slots) == (1, 1)
        assert isinstance(full.value, RunError)
        stage.let("a", "b", "c")
        for handle in kept:
            await handle
        await (await engine.submit("c", run_id="c"))  # there is room again
    assert [head.run_id async for head in journal.runs(graph="llm_loop")] == ["a", "b", "c"]


async def test_without_a_queue_a_run_begins_at_once_or_is_refused() -> None:
    stage = Stage()
    async with LocalEngine(agent(stage), slots=1, queue=0) as engine:
        first = await engine.submit("a")
        with pytest.raises(Overloaded):
            await engine.submit("b")
        stage.let("a")
        await first


async def test_a_known_run_id_is_refused_where_it_is_submitted() -> None:
    stage, journal = Stage(), MemoryJournal()
    async with LocalEngine(agent(stage, journal), slots=1) as engine:
        await engine.submit("a", run_id="a")
        await engine.submit("b", run_id="b")
        for name in "ab":  # one is under way, the other is queued
            with pytest.raises(RunExists):
                await engine.submit("again", run_id=name)
        stage.let("a", "b")
    async with LocalEngine(agent(stage, journal)) as other:
        with pytest.raises(RunExists):
            await other.submit("again", run_id="a")
        with pytest.raises(RunUnknown):
            await other.resume("nobody")


async def test_who_waits_for_a_person_gives_the_slot_back_and_takes_one_again() -> None:
    stage = Stage()
    runner = agent(stage)
    async with LocalEngine(runner, slots=1) as engine:
        asks = await engine.submit("ask", run_id="asks")
        other = await engine.submit("other", run_id="other")
        await until(lambda: "other" in stage.asked)
        assert (asks.phase, other.phase) == (Phase.WAITING, Phase.RUNNING)
        await runner.approve("asks", by="ann")
        await until(lambda: asks.phase is Phase.READY)
        assert stage.effects["send"] == 0, "without a slot nothing goes on"
        stage.let("other")
        await other
        assert (await asks).outcome is Outcome.COMPLETED
        assert stage.effects["send"] == 1
        assert engine.status()["taken"] == 0
    assert stage.most == 1


async def test_a_pause_gives_the_slot_back_and_one_that_comes_while_it_waits_for_a_slot_counts() -> None:
    stage = Stage()
    runner = agent(stage)
    async with LocalEngine(runner, slots=1) as engine:
        first = await engine.submit("look", run_id="first")
        await until(lambda: stage.asked == ["look"])
        await runner.pause("first", by="ann")
        stage.let("look")
        await until(lambda: first.phase is Phase.WAITING)
        second = await engine.submit("second", run_id="second")
        await until(lambda: "second" in stage.asked)
        assert (await engine.resume("first", by="ann")).run_id == "first"
        await until(lambda: first.phase is Phase.READY)
        await runner.pause("first", by="ben")
        stage.let("second")
        await second
        await until(lambda: first.phase is Phase.WAITING)
        assert stage.effects["look"] == 0
        await engine.resume("first", by="ben")
        assert (await first).outcome is Outcome.COMPLETED
        assert stage.effects["look"] == 1


async def test_a_paused_run_is_not_resumed_by_an_engine_that_drains() -> None:
    stage = Stage()
    runner = agent(stage)
    async with LocalEngine(runner, slots=2, grace=60) as engine:
        first = await engine.submit("look", run_id="first")
        second = await engine.submit("quick", run_id="second")
        await until(lambda: sorted(stage.asked) == ["look", "quick"])
        await runner.pause("first", by="ann")
        stage.let("look")
        await until(lambda: first.phase is Phase.WAITING)
        draining = asyncio.create_task(engine.drain())
        await until(lambda: engine.load().phase == "draining")
        with pytest.raises(NotAdmitting, match="it is draining or has stopped"):
            await engine.resume("first", by="ben")
        stage.let("quick")
        report = await draining
    assert (report.ended, report.parked) == (("second",), ("first",))
    assert stage.effects["look"] == 0
    assert (await second).outcome is Outcome.COMPLETED


async def test_a_run_is_not_resumed_where_the_engine_began_to_drain_while_its_head_was_read() -> None:
    class Slow(MemoryJournal):
        """A journal whose heads are read only when `go` is set."""

        def __init__(self) -> None:
            super().__init__()
            self.reading, self.go = asyncio.Event(), asyncio.Event()
            self.go.set()

        async def head(self, run_id: str) -> Any:
            self.reading.set()
            await self.go.wait()
            return await super().head(run_id)

    stage, journal = Stage(), Slow()
    runner = agent(stage, journal)
    await runner.deposit("quick", run_id="r")
    engine = LocalEngine(runner)
    await engine.start()
    journal.go.clear()
    journal.reading.clear()
    resuming = asyncio.create_task(engine.resume("r"))
    await journal.reading.wait()
    draining = asyncio.create_task(engine.drain(0))
    await until(lambda: engine.load().phase != "running")
    journal.go.set()
    with pytest.raises(NotAdmitting):
        await resuming
    assert await draining == DrainReport()
    assert stage.asked == []


async def test_agents_are_free_again_after_an_engine_that_could_not_have_all_of_them() -> None:
    journal = MemoryJournal()
    free, taken = (agent(Stage(), journal, model=name, name=name) for name in ("free", "taken"))
    async with LocalEngine(taken):
        with pytest.raises(RunError):
            await LocalEngine({"free": free, "taken": taken}).start()
        async with LocalEngine(free) as engine:
            assert engine.load().phase == "running"


async def test_the_status_of_an_engine_has_these_members_and_its_limits() -> None:
    async with LocalEngine(agent(Stage()), slots=3, name="mill") as engine:
        status = engine.status()
    assert status.keys() >= {
        "engine",
        "slots",
        "taken",
        "queued",
        "waiting",
        "admitting",
        "closed",
        "draining",
        "live",
    }
    assert (status["engine"], status["slots"], status["taken"], status["queued"]) == ("mill", 3, 0, 0)
    assert (status["admitting"], status["closed"], status["draining"], status["live"]) == (
        True,
        None,
        False,
        [],
    )


async def test_only_a_paused_run_of_the_engine_can_be_resumed_and_not_with_other_limits() -> None:
    stage = Stage()
    runner = agent(stage)
    async with LocalEngine(runner, slots=1) as engine:
        first = await engine.submit("look", run_id="first")
        queued = await engine.submit("queued", run_id="queued")
        await until(lambda: stage.asked == ["look"])
        for name in ("first", "queued"):
            with pytest.raises(RunExists, match=name):
                await engine.resume(name, by="ann")
        await runner.pause("first", by="ann")
        stage.let("look")
        await until(lambda: first.phase is Phase.WAITING)
        with pytest.raises(RunExists, match="first"):
            await engine.resume("first", limits=Limits(max_iterations=3), by="ann")
        assert first.phase is Phase.WAITING
        stage.let("queued")
        await queued
        await engine.resume("first", by="ann")
        assert (await first).outcome is Outcome.COMPLETED


async def test_a_run_that_is_cancelled_while_it_waits_ends_though_every_slot_is_taken() -> None:
    stage = Stage()
    runner = agent(stage)
    async with LocalEngine(runner, slots=1) as engine:
        asks = await engine.submit("ask", run_id="asks")
        await until(lambda: asks.phase is Phase.WAITING)
        other = await engine.submit("other")
        await until(lambda: "other" in stage.asked)
        await runner.cancel("asks", by="ann")
        assert (await asks).outcome is Outcome.CANCELLED
        assert engine.status()["taken"] == 1
        stage.let("other")
        await other
    assert stage.effects["send"] == 0


async def test_one_that_is_cancelled_while_it_waits_for_a_slot_ends_and_no_slot_is_lost() -> None:
    stage = Stage()
    runner = agent(stage)
    async with LocalEngine(runner, slots=1) as engine:
        asks = await engine.submit("ask", run_id="asks")
        await until(lambda: asks.phase is Phase.WAITING)
        other = await engine.submit("other")
        await until(lambda: "other" in stage.asked)
        await runner.approve("asks", by="ann")
        await until(lambda: asks.phase is Phase.READY)
        await runner.cancel("asks", by="ann")
        assert (await asks).outcome is Outcome.CANCELLED
        stage.let("other", "third")
        await other
        await (await engine.submit("third"))
        assert engine.status()["taken"] == 0


async def test_runs_of_one_conversation_follow_each_other() -> None:
    stage = Stage()
    async with LocalEngine(agent(stage), slots=4) as engine:
        first = await engine.submit("a", conversation_id="talk")
        second = await engine.submit("b", conversation_id="talk")
        third = await engine.submit("c")
        await until(lambda: stage.asked == ["a", "c"])
        assert second.phase is Phase.QUEUED
        stage.let("a", "b", "c")
        await first
        assert [m.text for m in (await second).messages] == ["a", "a!", "b", "b!"]
        await third


async def test_a_deadline_counts_from_submission() -> None:
    stage, clock = Stage(), FakeClock()
    async with LocalEngine(agent(stage, clock=clock), slots=1) as engine:
        first = await engine.submit("a")
        late = await engine.submit("b", deadline=5)
        await until(lambda: stage.asked == ["a"])
        await clock.advance(6)
        stage.let("a")
        await first
        result = await late
        assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "time")
    assert stage.asked == ["a"]


async def test_a_run_sees_the_context_variables_of_whoever_submitted_it() -> None:
    seen: list[str] = []
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

    async def model(request: Request) -> str:
        seen.append(tenant.get())
        await asyncio.sleep(0)
        return "done"

    runner = Agent(FunctionLLM(model), observers=())
    async with LocalEngine(runner, slots=1) as engine:
        handles = []
        for name in ("ann", "ben", "cem"):
            tenant.set(name)
            handles.append(await engine.submit("hi"))
        for handle in handles:
            await handle
    assert seen == ["ann", "ben", "cem"]


async def test_who_is_cancelled_while_waiting_for_a_handle_leaves_the_run_alone() -> None:
    stage = Stage()
    async with LocalEngine(agent(stage)) as engine:
        handle = await engine.submit("a")
        waiter = asyncio.ensure_future(_wait(handle))
        await until(lambda: stage.asked == ["a"])
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        stage.let("a")
        assert (await handle).output == "a!"


async def _wait(handle: Any) -> Any:
    return await handle


async def test_several_agents_share_the_slots_and_are_chosen_by_name() -> None:
    journal, one, two = MemoryJournal(), Stage(), Stage()
    agents = {"one": agent(one, journal, name="one"), "two": agent(two, journal, name="two")}
    async with LocalEngine(agents, slots=1) as engine:
        with pytest.raises(ConfigError, match="agent must be one of one, two; none was named"):
            await engine.submit("a")
        with pytest.raises(ConfigError, match="not 'six'"):
            await engine.submit("a", agent="six")
        first = await engine.submit("a", agent="one")
        second = await engine.submit("b", agent="two")
        await until(lambda: one.asked == ["a"])
        assert two.asked == []
        one.let("a")
        two.let("b")
        assert [(await first).output, (await second).output] == ["a!", "b!"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"slots": 0}, "slots is 0; it must be a whole number, 1 or more"),
    ({"queue": -1}, "queue is -1; it must be a whole number, 0 or more"),
    ({"grace": -1.0}, "grace is -1.0; it must be a number of seconds, 0 or more"),
    ({"recover": "all"}, "recover is 'all'; it must be one of list, resume"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD)
def test_what_an_engine_cannot_be_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        LocalEngine(agent(Stage()), **options)
    assert str(refused.value) == sentence


def test_agents_of_one_engine_share_a_journal() -> None:
    with pytest.raises(ConfigError, match="must share one journal"):
        LocalEngine({"one": agent(Stage()), "two": agent(Stage())})
    with pytest.raises(ConfigError, match="at least one agent"):
        LocalEngine({})
    runner = agent(Stage())
    with pytest.raises(ConfigError, match="one name, not several"):
        LocalEngine({"one": runner, "two": runner})
    journal = MemoryJournal()
    for name, named in {None: "have no name", "sales": "are named 'sales'"}.items():
        pair = {key: agent(Stage(), journal, name=name) for key in ("one", "two")}
        with pytest.raises(ConfigError, match=f"two agents of graph 'llm_loop' {named}, so the agent"):
            LocalEngine(pair)


async def test_an_engine_runs_nothing_before_its_start_and_after_its_stop() -> None:
    engine = LocalEngine(agent(Stage()))
    with pytest.raises(NotAdmitting, match="it is not started; use `async with engine`"):
        await engine.submit("a")
    with pytest.raises(ConfigError, match="is not started"):
        await engine.drain()
    async with engine:
        pass
    with pytest.raises(NotAdmitting, match="has stopped; submit it to another engine"):
        await engine.submit("a")
    with pytest.raises(ConfigError, match="was started before; make another one"):
        await engine.start()


async def test_an_agent_has_one_engine_at_a_time_and_is_free_afterwards() -> None:
    stage = Stage()
    runner = agent(stage)
    async with LocalEngine(runner):
        with pytest.raises(RunError, match="have seats already"):
            await LocalEngine(runner).start()
    stage.let("a", "b")
    assert (await runner.run("a")).output == "a!"  # by itself
    async with LocalEngine(runner) as engine:
        assert (await (await engine.submit("b"))).output == "b!"


async def test_an_engine_belongs_to_its_loop_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LocalEngine(agent(Stage())) as engine:

        def elsewhere() -> None:
            asyncio.run(_submit(engine))

        with pytest.raises(ConfigError, match="belongs to the process and event loop that started it"):
            await asyncio.to_thread(elsewhere)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(ConfigError, match="make another one after a fork"):
                await engine.submit("a")


async def _submit(engine: LocalEngine) -> None:
    await engine.submit("a")


# ---- any order of events, with real runs ----

STEPS = st.lists(st.sampled_from(("quick", "ask", "approve", "let", "cancel", "slots")), max_size=25)


class Crowd:
    """Runs of one engine, and people who answer each question once."""

    def __init__(self, stage: Stage, slots: int) -> None:
        self.stage = stage
        self.runner = agent(stage)
        self.engine = LocalEngine(self.runner, slots=slots)
        self.most = slots
        self.handles: list[Handle] = []
        self.answered: set[str] = set()

    def waiting(self) -> list[str]:
        """Runs that nobody has answered yet."""
        parked = [one.run_id for one in self.handles if one.phase is Phase.WAITING]
        return [run_id for run_id in parked if run_id not in self.answered]

    async def do(self, number: int, step: str) -> None:
        name, waiting = f"{step} {number}", self.waiting()
        match step:
            case "quick" | "ask":
                self.handles.append(await self.engine.submit(name, run_id=name))
            case "approve" if waiting:
                await self.approve(waiting[-1])
            case "let" if self.stage.waiting:
                self.stage.let(next(iter(self.stage.waiting)))
            case "cancel" if waiting:
                self.answered.add(waiting[0])
                await self.runner.cancel(waiting[0])
            case "slots":
                await self.engine.control("slots", slots=1 + number % 4, by="ann")
                self.most = max(self.most, 1 + number % 4)
            case _:
                pass

    async def approve(self, run_id: str) -> None:
        self.answered.add(run_id)
        await self.runner.approve(run_id, by="ann")

    async def finish(self) -> None:
        """Answer everything until all runs are over; where a wake-up was lost this gives up."""
        for _ in range(20_000):
            if all(handle.done() for handle in self.handles):
                return
            self.stage.let(*self.stage.waiting)
            for run_id in self.waiting():
                await self.approve(run_id)
            await asyncio.sleep(0)
        raise AssertionError(self.handles)


@given(slots=st.integers(1, 3), steps=STEPS)
async def test_whatever_happens_slots_hold_and_every_run_comes_to_its_end(
    slots: int, steps: list[str]
) -> None:
    crowd = Crowd(Stage(), slots)
    async with crowd.engine as engine:
        for number, step in enumerate(steps):
            await crowd.do(number, step)
            for _ in range(number % 7 * 3):
                await asyncio.sleep(0)
        await crowd.finish()
        outcomes = {(await handle).outcome for handle in crowd.handles}
        assert outcomes <= {Outcome.COMPLETED, Outcome.CANCELLED}
        assert engine.status()["taken"] == 0
    assert crowd.stage.most <= crowd.most
