"""Operators' orders are checked, journalled with who and why, then carried out; the others refused in a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchestrator.engines.engine_directory import KINDS
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.operator_command import OperatorCommand
from orchestrator.engines.run_queue import Phase
from orchestrator.errors import CancelRequested, ConfigError, NotAdmitting, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import ENGINE, Posted, Record
from orchestrator.kernel.outcome import Outcome
from tests.engines.stage import Stage, agent, until


async def records(engine: LocalEngine, journal: Any, kind: str) -> list[Record]:
    return [record for record in await journal.load(engine.run_id) if record.kind == kind]


async def test_an_engine_is_a_run_of_its_own_from_its_start_to_its_stop() -> None:
    journal = MemoryJournal()
    async with LocalEngine(agent(Stage(), journal), slots=3, queue=5, name="mill") as engine:
        (head,) = [head async for head in journal.runs(graph=ENGINE)]
        assert (head.run_id, head.status) == (engine.run_id, "open")
        assert head.owner is not None
        (created,) = await journal.load(engine.run_id)
        about = created.body["engine"]
        assert {name: about[name] for name in ("name", "slots", "queue", "grace")} == {
            "name": "mill",
            "slots": 3,
            "queue": 5,
            "grace": 30.0,
        }
        assert about["agents"]["agent"]["tools"] == ["send", "look"]
        await engine.drain(by="ann", why="over")
    head = await journal.head(engine.run_id)
    assert (head.status, head.reason, head.owner) == ("ended", "none", None)
    kinds = [
        (r.kind, r.body.get("kind"), r.body.get("by"), r.body.get("why"))
        for r in await journal.load(engine.run_id)
    ]
    assert kinds[1] == ("control", "drain", "ann", "over")
    assert kinds[-1][0] == "ended"


async def test_admission_stops_and_starts_and_what_is_queued_goes_on() -> None:
    stage, journal = Stage(), MemoryJournal()
    async with LocalEngine(agent(stage, journal), slots=1, name="mill") as engine:
        first, second = [await engine.submit(name) for name in "ab"]
        await engine.control("stop_admitting", by="ann", why="the price is wrong")
        with pytest.raises(
            NotAdmitting,
            match="engine 'mill' does not accept this run: admission was stopped by ann: the price is wrong; wait",
        ):
            await engine.submit("c", run_id="c")
        stage.let("a", "b", "c")
        assert [(await first).output, (await second).output] == ["a!", "b!"]
        await engine.control("start_admitting", by="ben")
        assert (await (await engine.submit("c", run_id="c"))).output == "c!"
        told = [
            (r.body["kind"], r.body["by"], r.body["why"]) for r in await records(engine, journal, "control")
        ]
        assert told == [("stop_admitting", "ann", "the price is wrong"), ("start_admitting", "ben", "")]


async def test_calls_of_a_disabled_tool_are_denied_with_the_reason_until_it_is_enabled() -> None:
    stage, journal = Stage(), MemoryJournal()
    stage.let("look 1", "look 2")
    async with LocalEngine(agent(stage, journal)) as engine:
        await engine.control("disable_tool", tool="look", by="ann", why="it lies")
        result = await (await engine.submit("look 1", run_id="r"))
        (answer,) = [json.loads(m.text) for m in result.messages if m.role == "tool"]
        assert answer == {
            "error": "not run: the tool look is switched off by ann: it lies; go on without it",
            "type": "Disabled",
        }
        assert (result.outcome, stage.effects) == (Outcome.COMPLETED, {})
        (done,) = [record.body for record in await journal.load("r") if record.kind == "done"]
        assert done["outcome"] == "denied"
        assert engine.status()["disabled"][0]["about"] == "look"
        await engine.control("enable_tool", tool="look", by="ann")
        await (await engine.submit("look 2"))
        assert stage.effects == {"look": 1}
        assert engine.status()["disabled"] == []


async def test_a_call_that_was_approved_after_its_tool_was_disabled_does_not_run() -> None:
    stage = Stage()
    runner = agent(stage)
    async with LocalEngine(runner) as engine:
        handle = await engine.submit("ask", run_id="r")
        await until(lambda: handle.phase is Phase.WAITING)
        await engine.control("disable_tool", tool="send", by="ann")
        await runner.approve("r", by="ben")
        result = await handle
        assert "switched off by ann" in next(m.text for m in result.messages if m.role == "tool")
    assert stage.effects == {}


async def test_runs_of_a_blocked_model_wait_without_a_slot_and_lose_nothing() -> None:
    journal, one, two = MemoryJournal(), Stage(), Stage()
    agents = {
        "one": agent(one, journal, name="one"),
        "two": agent(two, journal, name="two", model="spare"),
    }
    async with LocalEngine(agents, slots=1) as engine:
        look = await engine.submit("look", agent="one", run_id="look")
        await until(lambda: one.asked == ["look"])
        await engine.control("block_model", model="stage", by="ann", why="too dear")
        one.let("look")
        await until(lambda: look.phase is Phase.WAITING)
        assert one.effects == {"look": 1}, "what it asked for was still done"
        head = await journal.head("look")
        assert (head.status, head.reason) == ("parked", "waiting")
        parked = (await journal.load("look"))[-1].body
        assert (parked["model"], parked["by"], parked["why"]) == ("stage", "ann", "too dear")
        held = await engine.submit("later", agent="one")
        other = await engine.submit("other", agent="two")
        two.let("other")
        assert (await other).output == "other!"
        assert held.phase is Phase.QUEUED, "it could only wait"
        one.let("later")
        await engine.control("unblock_model", model="stage", by="ann")
        assert [(await look).output, (await held).output] == ["look!", "later!"]


async def test_all_runs_of_a_graph_are_paused_and_resumed() -> None:
    stage, journal = Stage(), MemoryJournal()
    async with LocalEngine(agent(stage, journal), slots=2) as engine:
        handles = [await engine.submit(f"look {n}", run_id=f"{n}") for n in range(2)]
        await until(lambda: len(stage.waiting) == 2)
        await engine.control("pause_all", by="ann", why="look at this")
        stage.let("look 0", "look 1")
        await until(lambda: {handle.phase for handle in handles} == {Phase.WAITING})
        assert [(await journal.head(handle.run_id)).reason for handle in handles] == ["paused"] * 2
        assert engine.status()["taken"] == 0
        controls = [r.body for r in await journal.load("0") if r.kind == "control"]
        assert [(c["kind"], c["by"], c["why"]) for c in controls] == [("pause", "ann", "look at this")]
        await engine.control("resume_all", graph="llm_loop", by="ben")
        assert {(await handle).outcome for handle in handles} == {Outcome.COMPLETED}
    assert stage.effects == {"look": 2}


@contextlib.asynccontextmanager
async def of_two(**options: Any) -> AsyncIterator[tuple[Stage, LocalEngine, MemoryJournal]]:
    """An engine with two agents on one stage, and an active run of each, named like its agent."""
    stage, journal = Stage(), MemoryJournal()
    agents = {name: agent(stage, journal, name=name) for name in ("good", "guilty")}
    async with LocalEngine(agents, **{"slots": 4, "name": "mill", **options}) as engine:
        for name in agents:
            await engine.submit(f"look {name}", agent=name, run_id=name)
        await until(lambda: len(stage.waiting) == 2)
        yield stage, engine, journal
        stage.let("look good", "look guilty")


async def test_the_runs_of_one_agent_are_paused_and_resumed_and_the_others_work() -> None:
    async with of_two() as (stage, engine, journal):
        await engine.control("pause_all", agent="guilty", by="ann")
        stage.let("look good", "look guilty")
        await ended(journal, "good")
        await until(lambda: engine.status()["waiting"] == 1)
        assert (await journal.head("guilty")).reason == "paused"
        await engine.control("resume_all", agent="good", by="ann")
        assert (await journal.head("guilty")).reason == "paused"
        await engine.control("resume_all", agent="guilty", by="ann")
        await ended(journal, "guilty")


async def test_the_runs_of_one_agent_are_cancelled_those_in_the_queue_too() -> None:
    async with of_two(slots=2) as (stage, engine, journal):
        queued = {name: await engine.submit(f"queued {name}", agent=name) for name in ("good", "guilty")}
        await engine.control("cancel_all", agent="guilty", graph="llm_loop", by="ann", why="wrong data")
        with pytest.raises(CancelRequested, match="before it began; ann: wrong data"):
            await queued["guilty"]
        assert await ended(journal, "guilty") == "cancelled"
        stage.let("look good", "queued good")
        assert (await queued["good"]).outcome is Outcome.COMPLETED
        assert await ended(journal, "good") == "completed"


async def test_admission_of_one_agent_stops_and_starts() -> None:
    async with of_two() as (stage, engine, _):
        stage.let("look good", "look guilty")
        await engine.control("stop_admitting", agent="guilty", by="ann", why="it fails")
        with pytest.raises(NotAdmitting, match="admission was stopped by ann: it fails"):
            await engine.submit("look guilty", agent="guilty")
        assert (await (await engine.submit("look good", agent="good"))).outcome is Outcome.COMPLETED
        assert [one["agent"] for one in engine.status()["closed_runs"]] == ["guilty"]
        assert engine.status()["admitting"]
        await engine.control("start_admitting", agent="guilty", by="ann")
        assert (await (await engine.submit("look guilty", agent="guilty"))).outcome is Outcome.COMPLETED


async def test_admission_of_all_agents_starts_for_each() -> None:
    async with of_two() as (_, engine, _):
        await engine.control("stop_admitting", agent="guilty", by="ann")
        closed = engine._commands.is_closed
        assert (closed("guilty", {}), closed("good", {}), closed("", {})) == (True, False, False)
        await engine.control("start_admitting", by="ann")
        assert not closed("guilty", {})


async def test_one_agent_is_drained_and_the_engine_works_on() -> None:
    async with of_two() as (stage, engine, journal):
        await engine.control("drain", agent="guilty", grace=0.01, by="ann", why="a new version")
        with pytest.raises(NotAdmitting, match="admission was stopped by ann: a new version"):
            await engine.submit("look guilty", agent="guilty")
        await until(lambda: not engine._commands._pausing)
        stage.let("look good", "look guilty")
        assert await ended(journal, "good") == "completed"
        await until(lambda: engine.status()["waiting"] == 1)
        assert (await journal.head("guilty")).reason == "paused"
        assert not engine.status()["draining"]


async def test_a_drained_agent_whose_runs_end_in_time_pauses_none() -> None:
    async with of_two() as (stage, engine, journal):
        await engine.control("drain", agent="guilty", by="ann")
        stage.let("look guilty")
        assert await ended(journal, "guilty") == "completed"
        await until(lambda: not engine._commands._pausing)


TENANT = {"tenant": "acme"}


@contextlib.asynccontextmanager
async def of_tenants(**options: Any) -> AsyncIterator[tuple[Stage, LocalEngine, MemoryJournal]]:
    """An engine with an active run of each of two tenants, and one without tags, each named like its tenant."""
    stage, journal = Stage(), MemoryJournal()
    agents = {"support": agent(stage, journal, name="support")}
    async with LocalEngine(agents, **{"slots": 4, "name": "mill", **options}) as engine:
        for name, tags in {"acme": TENANT | {"env": "live"}, "blue": {"tenant": "blue"}, "none": {}}.items():
            await engine.submit(f"look {name}", run_id=name, tags=tags)
        await until(lambda: len(stage.waiting) == 3)
        yield stage, engine, journal
        stage.let("look acme", "look blue", "look none")


async def test_the_runs_with_a_tag_are_paused_and_resumed_and_the_others_work() -> None:
    async with of_tenants() as (stage, engine, journal):
        await engine.control("pause_all", tags=TENANT, agent="support", by="ann")
        stage.let("look acme", "look blue", "look none")
        assert [await ended(journal, name) for name in ("blue", "none")] == ["completed"] * 2
        await until(lambda: engine.status()["waiting"] == 1)
        await engine.control("resume_all", tags={"tenant": "blue"}, by="ann")
        assert (await journal.head("acme")).reason == "paused"
        await engine.control("resume_all", tags=TENANT, by="ann")
        assert await ended(journal, "acme") == "completed"
    orders = [
        record.body.get("tags") for record in await journal.load(engine.run_id) if record.kind == "control"
    ]
    assert orders[:3] == [TENANT, {"tenant": "blue"}, TENANT]


async def test_the_runs_with_a_tag_are_cancelled_those_in_the_queue_too() -> None:
    async with of_tenants(slots=3) as (stage, engine, journal):
        queued = {
            name: await engine.submit(f"queued {name}", tags={"tenant": name}) for name in ("acme", "blue")
        }
        await engine.control("cancel_all", tags=TENANT, by="ann", why="wrong data")
        with pytest.raises(CancelRequested, match="before it began; ann: wrong data"):
            await queued["acme"]
        assert await ended(journal, "acme") == "cancelled"
        stage.let("look blue", "look none", "queued blue")
        assert (await queued["blue"]).outcome is Outcome.COMPLETED


async def test_admission_of_runs_with_a_tag_stops_and_starts() -> None:
    async with of_tenants() as (stage, engine, _):
        stage.let("look acme", "look blue", "look none")
        await engine.control("stop_admitting", tags=TENANT, by="ann", why="its flood")
        with pytest.raises(NotAdmitting, match="admission was stopped by ann: its flood"):
            await engine.submit("look acme", tags=TENANT | {"env": "test"})
        for tags in ({"tenant": "blue"}, {}):
            assert (await (await engine.submit("look none", tags=tags))).outcome is Outcome.COMPLETED
        assert [(one["agent"], one["tags"]) for one in engine.status()["closed_runs"]] == [("", TENANT)]
        assert engine.status()["admitting"]
        await engine.control("start_admitting", agent="support", by="ann")
        with pytest.raises(NotAdmitting):  # of that agent nothing was refused
            await engine.submit("look acme", tags=TENANT)
        await engine.control("start_admitting", tags=TENANT, by="ann")
        assert (await (await engine.submit("look acme", tags=TENANT))).outcome is Outcome.COMPLETED


async def test_the_runs_with_a_tag_are_drained_and_the_engine_works_on() -> None:
    async with of_tenants() as (stage, engine, journal):
        await engine.control("drain", tags=TENANT, grace=0.01, by="ann", why="it moves")
        await until(lambda: not engine._commands._pausing)
        stage.let("look acme", "look blue", "look none")
        assert [await ended(journal, name) for name in ("blue", "none")] == ["completed"] * 2
        await until(lambda: engine.status()["waiting"] == 1)
        with pytest.raises(NotAdmitting, match="it moves"):
            await engine.submit("look acme", tags=TENANT)
        assert not engine.status()["draining"]


async def test_an_orphan_with_the_tag_stays_in_the_journal_until_its_runs_are_admitted() -> None:
    stage, journal = Stage(), MemoryJournal()
    mine = agent(stage, journal, name="support")
    async with LocalEngine(mine, rescan=0.01, recover="resume") as engine:
        await engine.control("stop_admitting", tags=TENANT, by="ann")
        await mine.deposit("look acme", run_id="acme", tags=TENANT)
        await mine.deposit("look blue", run_id="blue", tags={"tenant": "blue"})
        stage.let("look acme", "look blue")
        assert await ended(journal, "blue") == "completed"
        assert (await journal.head("acme")).seq == 0
        await engine.control("start_admitting", tags=TENANT, by="ann")
        assert await ended(journal, "acme") == "completed"


@pytest.mark.parametrize(
    ("kind", "about", "words"),
    [
        ("slots", {"slots": 2, "tags": TENANT}, "slots takes slots, not tags"),
        ("pause_all", {"tags": "tenant=acme"}, "give a dict of text to text"),
        ("pause_all", {"tags": {"": "acme"}}, "must be printable text"),
    ],
)
async def test_tags_that_no_run_can_have_are_refused(kind: str, about: dict[str, Any], words: str) -> None:
    async with LocalEngine(agent(Stage(), MemoryJournal())) as engine:
        with pytest.raises(ConfigError, match=words):
            await engine.control(kind, by="ann", **about)


async def ended(journal: MemoryJournal, run_id: str) -> str:
    """Wait for the end of a run, and return its outcome."""
    async with asyncio.timeout(60):
        while (head := await journal.head(run_id)).status != "ended":  # noqa: ASYNC110 - whoever ends it
            await asyncio.sleep(0.001)
    return head.outcome


async def test_all_runs_of_a_graph_are_cancelled_those_that_wait_to_begin_too() -> None:
    stage, journal = Stage(), MemoryJournal()
    async with LocalEngine(agent(stage, journal), slots=2) as engine:
        names = ("ask", "quick", "look", "queued")
        handles = {name: await engine.submit(name, run_id=name) for name in names}
        await until(lambda: set(stage.waiting) == {"quick", "look"})
        await engine.submit("another")
        fresh = await engine.submit("just begun", run_id="fresh")
        await engine.control("slots", slots=3, by="ann")  # `queued` begins in this very moment
        await engine.control("cancel_all", graph="llm_loop", by="ann", why="wrong data")
        for name in names:
            assert (await handles[name]).outcome is Outcome.CANCELLED, name
        with pytest.raises(CancelRequested, match="before it began; ann: wrong data"):
            await fresh
        assert engine.status()["queued"] == 0
    known = [head.run_id async for head in journal.runs(graph="llm_loop")]
    assert known == list(names)
    assert stage.effects == {}


async def test_a_queued_resumption_is_cancelled_when_its_turn_comes() -> None:
    stage, journal = Stage(), MemoryJournal()
    runner = agent(stage, journal)
    task = asyncio.create_task(runner.run("quick", run_id="r"))
    await until(lambda: bool(stage.waiting))
    task.cancel()
    await asyncio.wait((task,))
    async with LocalEngine(runner, slots=1) as engine:
        first = await engine.submit("first")
        again = await engine.resume("r")
        await engine.control("cancel_all", by="ann")
        assert (await first).outcome is Outcome.CANCELLED
        assert (await again).outcome is Outcome.CANCELLED


async def test_more_slots_begin_more_runs_at_once_and_fewer_as_runs_end() -> None:
    stage = Stage()
    async with LocalEngine(agent(stage), slots=1) as engine:
        handles = [await engine.submit(name) for name in "abcd"]
        await until(lambda: stage.asked == ["a"])
        await engine.control("slots", slots=3, by="ann")
        await until(lambda: stage.asked == ["a", "b", "c"])
        await engine.control("slots", slots=1, by="ann")
        stage.let("a", "b")
        await handles[0]
        await handles[1]
        assert stage.asked == ["a", "b", "c"]
        stage.let("c", "d")
        assert [(await handle).output for handle in handles] == ["a!", "b!", "c!", "d!"]


async def test_an_order_to_drain_stops_the_engine() -> None:
    stage, journal = Stage(), MemoryJournal()
    engine = LocalEngine(agent(stage, journal))
    await engine.start()
    handle = await engine.submit("quick")
    await until(lambda: bool(stage.waiting))
    await engine.control("drain", by="ann", why="new version", grace=60)
    with pytest.raises(ConfigError, match="is draining; that cannot be taken back"):
        await engine.control("start_admitting", by="ann")
    assert engine.status()["draining"] is True
    stage.let("quick")
    assert (await handle).outcome is Outcome.COMPLETED
    assert (await engine.drain()).ended == (handle.run_id,)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("explode", {}, f"unknown operator command 'explode'; allowed: {', '.join(KINDS)}"),
    ("disable_tool", {}, "disable_tool needs tool"),
    ("disable_tool", {"tool": "lok"}, "engine 'local' has no tool 'lok'; it has: look, send"),
    ("block_model", {"model": "gpt"}, "engine 'local' has no model 'gpt'; it has: stage"),
    ("cancel_all", {"graph": "ralph"}, "engine 'local' has no graph 'ralph'; it has: llm_loop"),
    ("slots", {"slots": 0}, "slots is 0; it must be a whole number, 1 or more"),
    ("drain", {"grace": -1}, "grace is -1; it must be a number of seconds, 0 or more"),
    ("stop_admitting", {"tool": "look"}, "stop_admitting takes agent and tags, not tool"),
    ("enable_tool", {"tool": ""}, "tool is ''; it must be a name"),
]


@pytest.mark.parametrize(("kind", "about", "sentence"), REFUSED)
async def test_an_order_that_makes_no_sense_is_one_sentence_and_changes_nothing(
    kind: str, about: dict[str, Any], sentence: str
) -> None:
    journal = MemoryJournal()
    async with LocalEngine(agent(Stage(), journal)) as engine:
        before = engine.status()
        with pytest.raises(ConfigError) as refused:
            await engine.control(kind, by="ann", **about)
        assert str(refused.value) == sentence
        assert engine.status() == before
        assert await records(engine, journal, "control") == []
        await engine._commands.take(Posted("7", kind, about, "ben", number=7))  # from another process
        (told,) = await records(engine, journal, "control")
        assert (told.body["refused"], told.body["by"], told.body["number"]) == (sentence, "ben", 7)
        assert engine.status() == before


async def test_an_order_that_cannot_be_journalled_is_not_carried_out() -> None:
    stage = Stage()
    engine = LocalEngine(agent(stage, CrashingJournal(MemoryJournal(), at=1)))
    await engine.start()
    with pytest.raises(StoreDown):
        await engine.control("stop_admitting", by="ann")
    assert engine.status()["admitting"] is True
    await engine.drain(0)


def test_orders_to_the_run_of_an_engine_mean_what_they_mean_for_runs() -> None:
    found = [OperatorCommand.of(kind, "ann", {"why": "so"}).kind for kind in ("cancel", "pause", "resume")]
    assert found == ["drain", "stop_admitting", "start_admitting"]


async def test_the_next_run_of_a_conversation_begins_though_the_last_one_ended_without_a_slot() -> None:
    stage = Stage()
    runner = agent(stage)
    async with LocalEngine(runner) as engine:
        first = await engine.submit("ask", run_id="r", conversation_id="talk")
        await until(lambda: first.phase is Phase.WAITING)
        second = await engine.submit("then", conversation_id="talk")
        assert second.phase is Phase.QUEUED
        stage.let("then")
        await runner.cancel("r", by="ann")
        assert [(await first).outcome, (await second).outcome] == [Outcome.CANCELLED, Outcome.COMPLETED]
