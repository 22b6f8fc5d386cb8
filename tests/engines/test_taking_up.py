"""Runs that others left and a living engine: which ask a person, which wait in the journal, which stay out."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.engines import orphan_recovery as uptake
from orchestrator.engines.engine_directory import engines
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.run_queue import Handle, Phase
from orchestrator.errors import AnswerRefused, ConfigError, Corrupt, Fenced, StoreDown, Suspended
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import ENGINE, Journal, Posted, RunHead
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.recovery import MOST_CLAIMS
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import tool
from tests.engines.stage import Stage, agent, left, until
from tests.runtime.stage import NO_WAIT
from tests.with_runtime import with_runtime

SOON = 0.02
"""A `rescan` for tests: each look at the news is one at everything, then."""


class Charge:
    """An agent whose one call is irreversible, and a count of how often it took effect."""

    def __init__(self) -> None:
        self.effects = 0

    def agent(self, journal: Journal, **options: Any) -> Agent:
        @tool(effect="irreversible")
        async def charge() -> str:
            self.effects += 1
            return "charged"

        def model(request: Any) -> Any:
            said = request.messages[-1]
            return f"heard: {said.text}" if said.role == "tool" else call("charge")

        options = {"observers": (), "retry": NO_WAIT, **options}
        return Agent(FunctionLLM(model), tools=[charge], **with_runtime(journal=journal, **options))

    async def broken_off(self, run_id: str = "r") -> MemoryJournal:
        """A journal with a run whose process died after the charge, before its result was written."""
        inner = MemoryJournal()
        result = await self.agent(CrashingJournal(inner, at=3)).run("go", run_id=run_id)
        assert isinstance(result.error, StoreDown)
        inner.bury((await inner.head(run_id)).owner or "")
        return inner


async def parked(*names: str, clock: FakeClock, **options: Any) -> tuple[MemoryJournal, Stage]:
    """A journal with runs that ask for approval and whose engine is gone."""
    stage, journal = Stage(), MemoryJournal()
    async with left(agent(stage, journal, clock=clock, **options), clock) as engine:
        for name in names:
            await engine.submit(name, run_id=name)
        await until(lambda: engine.status()["waiting"] == len(names))
    return journal, stage


async def ended(journal: MemoryJournal, run_id: str, clock: FakeClock | None = None) -> RunHead:
    while (head := await journal.head(run_id)).status != "ended":
        if clock is not None:
            await clock.advance(SOON)
        await asyncio.sleep(0.001)
    return head


async def swept(journal: MemoryJournal, stage: Stage, clock: FakeClock) -> None:
    """Return once a living engine has looked at all runs: one that was left just now is the last it finds."""
    task = asyncio.create_task(agent(stage, journal, clock=clock).run("quick", run_id="swept"))
    await until(lambda: "quick" in stage.waiting)
    task.cancel()
    await asyncio.wait((task,))
    stage.let("quick")
    await ended(journal, "swept", clock)


async def nothing_taken_up(
    engine: LocalEngine, journal: MemoryJournal, stage: Stage, clock: FakeClock
) -> None:
    """Assert that an engine looks at all runs and takes none of them but the one that was left just now."""
    await swept(journal, stage, clock)

    def live() -> set[str]:
        return {str(one["run_id"]) for one in engine.status()["live"]}

    await until(lambda: "swept" not in live())  # it lets go some time after the journal has the end
    assert live() == set()


def _waits(handle: Handle) -> bool:
    return handle.phase is Phase.WAITING


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uptake, "POLL", 0.002)


async def test_a_run_whose_call_may_have_happened_asks_and_holds_no_slot() -> None:
    charge = Charge()
    journal = await charge.broken_off()
    runner = charge.agent(journal)
    async with LocalEngine(runner, slots=1, recover="resume") as engine:
        (found,) = engine.found
        assert found.will == (
            "asks a person about charge: it may have happened (irreversible); "
            "charges a model request, which may have followed; continues in process_tools"
        )
        handle = engine.recovered["r"]
        await until(lambda: handle.phase is Phase.WAITING)
        assert (engine.status()["taken"], engine.status()["waiting"]) == (0, 1)
        (question,) = await runner.pending("r")
        assert (question.key, question.tool, question.why) == ("1:0", "charge", "unknown_effect")
        await runner.respond("r", "it was charged", by="ann")
        assert (await handle).output == "heard: it was charged"
    assert charge.effects == 1


async def test_a_question_about_a_call_that_may_have_happened_is_asked_once_however_often_the_run_is_resumed() -> (
    None
):
    charge, clock = Charge(), FakeClock()
    journal = await charge.broken_off()
    questions = []
    for _ in range(3):
        runner = charge.agent(journal, clock=clock)
        async with left(runner, clock) as engine:
            handle = await engine.resume("r")
            await until(functools.partial(_waits, handle))
            questions += await runner.pending("r")
    assert len(questions) == 3
    assert questions == [questions[0]] * 3
    assert [record.kind for record in await journal.load("r")].count("asked") == 1
    await charge.agent(journal, clock=clock).respond("r", "it was charged", by="ann")
    assert (await charge.agent(journal, clock=clock).resume("r")).output == "heard: it was charged"
    assert charge.effects == 1


@pytest.mark.parametrize(
    ("answer", "said", "effects"),
    [
        (lambda runner: runner.approve("r", by="ann"), "heard: charged", 2),
        (
            lambda runner: runner.reject("r", by="ann"),
            'heard: {"error":"a person rejected this call","type":"Rejected"}',
            1,
        ),
    ],
)
async def test_each_answer_about_a_call_that_may_have_happened_counts(
    answer: Callable[[Agent], Any], said: str, effects: int
) -> None:
    charge = Charge()
    runner = charge.agent(await charge.broken_off())
    async with LocalEngine(runner, recover="resume") as engine:
        handle = engine.recovered["r"]
        await until(lambda: handle.phase is Phase.WAITING)
        await answer(runner)
        assert (await handle).output == said
    assert charge.effects == effects


async def test_runs_parked_for_an_answer_stay_in_the_journal_and_are_taken_up_once_answered() -> None:
    clock = FakeClock()
    names = [f"ask {number}" for number in range(20)]
    journal, stage = await parked(*names, clock=clock)
    before = {name: (await journal.head(name)).seq for name in names}
    runner = agent(stage, journal, clock=clock)
    async with LocalEngine(runner, recover="resume", rescan=SOON) as engine:
        assert engine.recovered == {}
        await nothing_taken_up(engine, journal, stage, clock)
        assert {name: (await journal.head(name)).seq for name in names} == before
        assert [one.tool for one in await runner.pending("ask 3")] == ["send"]
        await runner.approve("ask 3", by="ann")
        await runner.reject("ask 7", by="ben")
        assert (await ended(journal, "ask 3")).reason == (await ended(journal, "ask 7")).reason == "none"
        with pytest.raises(AnswerRefused, match="has ended: completed"):
            await runner.approve("ask 3")
    assert stage.effects == {"send": 1}
    waiting = [head.run_id async for head in journal.runs(status="parked")]
    assert waiting == [name for name in names if name not in {"ask 3", "ask 7"}]


async def test_a_question_that_expires_lets_its_run_go_on() -> None:
    clock = FakeClock()
    journal, stage = await parked("ask", clock=clock, limits=Limits(approval_seconds=60))
    async with LocalEngine(agent(stage, journal, clock=clock), recover="resume") as engine:
        await nothing_taken_up(engine, journal, stage, clock)
        await clock.advance(60)
        assert (await ended(journal, "ask", clock)).reason == "none"
    assert stage.effects == {}


async def test_what_was_answered_or_cancelled_is_told_before_anybody_takes_the_run_up() -> None:
    clock = FakeClock()
    journal, stage = await parked("ask 1", "ask 2", "ask 3", "ask 4", clock=clock)
    for run_id, kind in (("ask 1", "approve"), ("ask 2", "respond"), ("ask 3", "cancel")):
        body = {"call": "1:0", "content": "x"} if kind != "cancel" else {}
        await journal.post(run_id, Posted(run_id, kind, body, "ann"))
    runner = agent(stage, journal, clock=clock)
    assert [run.will for run in await runner.hosting.open_runs()] == [
        "continues: ann approved send (call 1:0)",
        "continues: ann answered for send (call 1:0)",
        "ends: ann cancelled it",
        "waits for a person: may send run? (call 1:0); continues in process_tools",
    ]
    await clock.advance(7 * 24 * 3600.0)
    assert [run.will for run in await runner.hosting.open_runs()][3] == (
        "continues: the question about send has expired (call 1:0)"
    )


async def test_a_run_whose_owner_dies_is_taken_up_by_an_engine_that_lives() -> None:
    stage, journal, clock = Stage(), MemoryJournal(), FakeClock()
    dying, living = agent(stage, journal, clock=clock), agent(stage, journal, clock=clock)
    doomed = asyncio.create_task(dying.run("look", run_id="look"))
    await until(lambda: "look" in stage.waiting)
    async with LocalEngine(living, recover="resume", rescan=SOON) as engine:
        await nothing_taken_up(engine, journal, stage, clock)
        doomed.cancel()
        await asyncio.wait((doomed,))
        stage.let("look")
        await ended(journal, "look", clock)
        records = await journal.load("look")
    assert [record.body["by"] for record in records if record.kind == "resumed"] == ["engine local"]
    assert stage.effects == {"look": 1}


async def test_poison_paused_and_other_runs_stay_out_until_a_person_lets_them_go_on() -> None:
    clock = FakeClock()
    journal, stage = await parked("ask paused", "ask poison", clock=clock)
    other = agent(stage, journal, clock=clock)
    async with left(other, clock) as engine:
        await engine.resume("ask paused")
        await until(lambda: engine.status()["waiting"] == 1)
        await other.pause("ask paused", by="ann")
    for _ in range(MOST_CLAIMS):
        await journal.release(await journal.claim("ask poison", "somebody"))
    await journal.post("ask poison", Posted("p", "approve", {"call": "1:0"}, "ann"))
    runner = agent(stage, journal, clock=clock)
    async with LocalEngine(runner, recover="resume", rescan=SOON) as engine:
        await runner.approve("ask paused", by="ann")
        await nothing_taken_up(engine, journal, stage, clock)
        await journal.post("ask paused", Posted("q", "resume", {}, "ann"))
        assert (await ended(journal, "ask paused")).reason == "none"
    assert stage.effects == {"send": 1}
    assert (await journal.head("ask poison")).status == "parked"


async def test_a_run_begun_with_a_launch_is_left_to_who_can_make_its_agent() -> None:
    clock = FakeClock()
    journal, stage = await parked("ask", clock=clock, launch={"model": "somebody's"})
    plain = agent(stage, journal, clock=clock)
    async with LocalEngine(plain, recover="resume", rescan=SOON) as engine:
        await plain.approve("ask", by="ann")
        await nothing_taken_up(engine, journal, stage, clock)
    async with LocalEngine(agent(stage, journal, clock=clock, launch={"model": "mine"}), recover="resume"):
        assert (await ended(journal, "ask")).reason == "none"


async def test_of_two_engines_one_takes_a_run_that_was_answered() -> None:
    clock = FakeClock()
    names = [f"ask {number}" for number in range(8)]
    journal, stage = await parked(*names, clock=clock)
    agents = [agent(stage, journal, clock=clock) for _ in range(2)]
    async with (
        LocalEngine(agents[0], recover="resume", rescan=SOON, name="one"),
        LocalEngine(agents[1], recover="resume", rescan=SOON, name="two"),
    ):
        for name in names:
            await agents[0].approve(name, by="ann")
        for name in names:
            await ended(journal, name)
    assert stage.effects == {"send": 8}


async def test_an_engine_that_admits_nothing_takes_nothing_up_until_it_admits_again() -> None:
    clock = FakeClock()
    names = [f"ask {number}" for number in range(8)]
    journal, stage = await parked(*names, "ask last", clock=clock)
    closed, open_ = (agent(stage, journal, clock=clock) for _ in range(2))
    async with LocalEngine(closed, recover="resume", rescan=SOON, name="closed") as engine:
        await engine.control("stop_admitting", by="ann")
        async with LocalEngine(open_, recover="resume", rescan=SOON, name="open"):
            for name in names:
                await closed.approve(name, by="ann")
                await ended(journal, name)
        await closed.approve("ask last", by="ann")
        await engine.control("start_admitting", by="ann")
        await ended(journal, "ask last")
    resumed = [
        record.body["by"]
        for name in (*names, "ask last")
        for record in await journal.load(name)
        if record.kind == "resumed"
    ]
    assert resumed == ["engine open"] * 8 + ["engine closed"]


async def test_a_run_that_another_process_moved_on_to_its_next_question_while_it_was_queued_is_left_alone() -> (
    None
):
    clock, effects, journal = FakeClock(), [], MemoryJournal()
    busy, free = asyncio.Event(), asyncio.Event()

    @tool(effect="irreversible", approval=True)
    async def send(to: str) -> str:
        effects.append(to)
        return f"sent to {to}"

    async def model(request: Any) -> Any:
        prompt = next(message.text for message in request.messages if message.role == "user")
        if prompt == "busy":
            busy.set()
            await free.wait()
            return "free"
        done = [message for message in request.messages if message.role == "tool"]
        return call("send", to="ab"[len(done)]) if len(done) < 2 else "both"

    def runner() -> Agent:
        return Agent(
            FunctionLLM(model),
            tools=[send],
            retry=NO_WAIT,
            runtime=Runtime(journal=journal, clock=clock, observers=()),
        )

    async with left(runner(), clock) as first:
        await first.submit("two letters", run_id="letters")
        await until(lambda: first.status()["waiting"] == 1)
    async with LocalEngine(runner(), slots=1, queue=0, recover="resume", rescan=SOON) as engine:
        await engine.submit("busy", run_id="busy")
        await busy.wait()
        other = runner()
        await other.approve("letters", by="ann")
        await until(lambda: engine.status()["queued"] == 1)
        async with left(other, clock) as elsewhere:
            await elsewhere.resume("letters")
            await until(lambda: elsewhere.status()["waiting"] == 1)
        moved = await journal.head("letters")
        assert (effects, moved.status, moved.owner) == (["a"], "parked", None)
        free.set()
        await until(lambda: engine.status()["queued"] == engine.status()["taken"] == 0)
        assert (await journal.head("letters")).seq == moved.seq
        await other.approve("letters", by="ann")
        assert (await ended(journal, "letters")).reason == "none"
    assert effects == ["a", "b"]


async def test_an_engine_that_only_lists_takes_up_nothing() -> None:
    clock = FakeClock()
    journal, stage = await parked("ask 1", "ask 2", clock=clock)
    lists, takes = (agent(stage, journal, clock=clock) for _ in range(2))
    async with LocalEngine(lists, rescan=SOON, name="lists"):
        await lists.approve("ask 1", by="ann")
        async with LocalEngine(takes, recover="resume", name="takes") as engine:
            assert list(engine.recovered) == ["ask 1"]
            await lists.approve("ask 2", by="ann")
            await ended(journal, "ask 2")
    assert stage.effects == {"send": 2}


async def test_what_goes_wrong_with_one_run_keeps_no_other_from_going_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    journal, stage = await parked("ask 1", "ask 2", clock=clock)

    class Odd(MemoryJournal):
        async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
            if run_id == "ask 1" and odd:
                raise ValueError("what is this?")
            return await super().inbox(run_id, since)

    odd: list[bool] = []
    journal.__class__ = Odd
    runner = agent(stage, journal, clock=clock)
    async with LocalEngine(runner, recover="resume", rescan=SOON):
        odd.append(True)
        with caplog.at_level(logging.ERROR, "orchestrator"):
            await journal.post("ask 1", Posted("1", "approve", {"call": "1:0"}, "ann"))
            await runner.approve("ask 2", by="ann")
            assert (await ended(journal, "ask 2")).reason == "none"
            await swept(journal, stage, clock)
        assert [record.getMessage() for record in caplog.records] == [
            (
                "run 'ask 1' could not be resumed and is left until a message is posted for it: "
                "ValueError: what is this?"
            )
        ]
        odd.clear()
        await journal.post("ask 1", Posted("2", "approve", {"call": "1:0"}, "ann"))
        assert (await ended(journal, "ask 1")).reason == "none"
    assert stage.effects == {"send": 2}


async def test_what_is_posted_while_the_store_cannot_be_read_counts_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody knows then what it was for: a run that could not go on is tried again."""
    clock = FakeClock()
    journal, stage = await parked("ask 1", clock=clock)
    wrong, missed = {"inbox"}, []

    class Odd(MemoryJournal):
        async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
            if run_id == "ask 1" and "inbox" in wrong:
                raise ValueError("what is this?")
            return await super().inbox(run_id, since)

        async def news(self, since: int) -> tuple[int, list[str]]:
            if "news" in wrong:
                missed.append(since)
                raise Corrupt("a page is damaged")
            return await super().news(since)

    runner = agent(stage, journal, clock=clock)
    async with LocalEngine(runner, recover="resume", rescan=SOON):
        journal.__class__ = Odd
        with caplog.at_level(logging.ERROR, "orchestrator"):
            await journal.post("ask 1", Posted("1", "approve", {"call": "1:0"}, "ann"))
            await until(lambda: "could not be resumed" in caplog.text)
        wrong.add("news")
        await until(lambda: len(missed) > 1)
        wrong.remove("inbox")
        await journal.post("ask 1", Posted("2", "approve", {"call": "1:0"}, "ann"))
        wrong.clear()
        assert (await ended(journal, "ask 1")).reason == "none"
    assert stage.effects == {"send": 1}


async def test_an_answer_whose_notification_was_missed_is_found_once_the_store_can_be_read() -> None:
    clock = FakeClock()
    journal, stage = await parked("ask 1", clock=clock)
    down, missed = [True], []

    class Odd(MemoryJournal):
        async def news(self, since: int) -> tuple[int, list[str]]:
            if down:
                missed.append(since)
                raise Corrupt("a page is damaged")
            position, found = await super().news(since)
            return position, [
                run_id for run_id in found if run_id != "ask 1"
            ]  # it was told while nobody could read

    runner = agent(stage, journal, clock=clock)
    async with LocalEngine(runner, recover="resume", rescan=SOON) as engine:
        await nothing_taken_up(engine, journal, stage, clock)
        journal.__class__ = Odd
        await until(lambda: len(missed) > 1)
        await journal.post("ask 1", Posted("1", "approve", {"call": "1:0"}, "ann"))
        down.clear()
        assert (await ended(journal, "ask 1")).reason == "none"
    assert stage.effects == {"send": 1}


async def test_a_run_that_moved_on_since_it_was_described_is_described_again() -> None:
    clock = FakeClock()
    journal, stage = await parked("ask 1", clock=clock)
    runner = agent(stage, journal, clock=clock)
    async with LocalEngine(runner) as engine:
        head = await journal.head("ask 1")
        described = await runner.hosting.described(head)
        assert not described.unattended
        stale = replace(described, unattended=True, seq=head.seq - 1)
        assert await engine._orphans._consider(head, stale) is None
        assert engine.status()["live"] == []


async def test_a_queued_run_that_moved_on_is_left_where_it_waits_and_its_result_is_read_where_it_ended() -> (
    None
):
    clock = FakeClock()
    journal, stage = await parked("ask 1", clock=clock)
    runner = agent(stage, journal, clock=clock)
    async with LocalEngine(runner) as engine:
        head = await journal.head("ask 1")
        before, name = replace(head, seq=head.seq - 1), next(iter(engine._agents))
        with pytest.raises(Suspended) as left_waiting:
            await engine._orphans._go_on(before, name)
        assert left_waiting.value.reason == "approval"
        await runner.approve("ask 1", by="ann")
        other = agent(stage, journal, clock=clock)
        assert (await other.resume("ask 1")).output == "ask 1!"
        assert (await engine._orphans._go_on(before, name)).output == "ask 1!"
    assert stage.effects == {"send": 1}


async def test_the_next_engine_closes_the_records_of_one_that_died_and_says_who_did() -> None:
    stage, journal = Stage(), MemoryJournal()
    dead = LocalEngine(agent(stage, journal), name="dead")
    await dead.start()
    alive = LocalEngine(agent(stage, journal), name="alive")
    await alive.start()
    first = (await journal.head(dead.run_id)).owner
    journal.bury(first or "")
    assert {one.name: one.alive for one in await engines(journal)} == {"dead": False, "alive": True}
    async with LocalEngine(agent(stage, journal), name="next") as engine:
        assert [one.name for one in await engines(journal)] == ["alive", "next"]
        last = (await journal.load(dead.run_id))[-1]
        assert (last.kind, last.body["outcome"], last.body["reason"]) == ("ended", "lost", "process_died")
        assert last.body["by"] == f"engine next ({engine.run_id})"
    await alive.drain()
    assert [head.owner async for head in journal.runs(graph=ENGINE)] == [None] * 3
    with pytest.raises(Fenced):
        await dead.control("slots", slots=1, by="ann")


def test_rescan_and_recover_are_checked() -> None:
    stage = Stage()
    with pytest.raises(ConfigError, match="rescan is 0; it must be a number of seconds, more than 0"):
        LocalEngine(agent(stage), rescan=0)
    with pytest.raises(ConfigError, match="recover is 'all'; it must be one of list, resume"):
        LocalEngine(agent(stage), recover="all")  # type: ignore[arg-type]
