"""A change of the machine of an agent: its runs, their records and metrics follow it, and a resume needs it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transitions
from prometheus_client import CollectorRegistry

from orchestrator import Agent, LocalEngine, MemoryJournal
from orchestrator.approval import Approval
from orchestrator.engines import engine_directory, orphan_recovery
from orchestrator.errors import GraphError, OtherGraph, RunUnknown, StoreDown, Suspended
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import RunParked, RunStarted, TableRejected, Transition
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Draft, Journal
from orchestrator.kernel.machine import Machine
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.team.graph import LLM_LOOP_WITH_HANDOFFS
from orchestrator.pipeline import Pipeline
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.ralph import Ralph
from orchestrator.rlm import Rlm
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.tools.spec import tool
from tests.runtime.stage import NO_WAIT, Facts
from tests.with_runtime import with_runtime

LIVE: Any = {"observers": (), "retry": NO_WAIT}


def with_review(made: Machine) -> None:
    """Let a run review its answer before it finalizes."""

    async def enter_review(run: Any) -> str:
        return "reviewed"

    with made.changing():
        made.add_states({"name": "review", "on_enter": enter_review})
        made.get_transitions("completion_success")[0].dest = "review"
        made.add_transition("reviewed", "review", "finalize")
        made.add_transition("failure", "review", "terminate_error")


CHANGES = (
    "removed edge 'completion_success' from 'handle_completion' to 'finalize'",
    "added state 'review'",
    "added event 'reviewed'",
    "added edge 'completion_success' from 'handle_completion' to 'review'",
    "added edge 'reviewed' from 'review' to 'finalize'",
    "added edge 'failure' from 'review' to 'terminate_error'",
    "added failure event 'failure' of 'review'",
    "added callbacks enter_review in on_enter of review",
)


class World:
    """Agents that look something up once, and may do something meanwhile."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.looked = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def agent(self, journal: Any = None, **options: Any) -> Agent:
        @tool(effect="pure")
        async def look() -> str:
            self.looked += 1
            wait = self.meanwhile()
            if asyncio.iscoroutine(wait):
                await wait
            return "seen"

        def answer(request: Any) -> Any:
            return "done" if request.messages[-1].role == "tool" else call("look")

        given = with_runtime(**{**LIVE, "journal": journal or self.journal, **options})
        return Agent(FunctionLLM(answer), tools=[look], name="sales", **given)

    async def bury(self, run_id: str) -> None:
        journal: Any = self.journal
        journal.bury((await journal.head(run_id)).owner or "")


# ---- the machine is public ----


def test_every_facade_has_its_machine(tmp_path: Path) -> None:
    def stage(_: object) -> str:
        return ""

    async def agent(_: object) -> str:
        return ""

    facades: list[Any] = [
        World(MemoryJournal()).agent(),
        Pipeline(stage, stage, stage, stage),
        Rlm(FunctionLLM(lambda _: "")),
        Ralph(agent, agent, agent, root=tmp_path / "ralph"),
        Approval(tmp_path),
    ]
    for facade in facades:
        assert isinstance(facade.machine, transitions.Machine)
        assert facade.machine.get_transitions()
        with pytest.raises(AttributeError):
            facade.machine = None


# ---- a resume needs the same table ----


async def crash_at(
    world: World, append: int, change: Callable[[Machine], None] | None, run_id: str = "r"
) -> None:
    """Leave a run of a dead process. With `change`, the machine of that process is changed during the tool."""
    agent = world.agent(CrashingJournal(world.journal, at=append))
    if change is not None:
        world.meanwhile = lambda: change(agent.machine)
    await agent.run("go", run_id=run_id)
    world.meanwhile = lambda: None
    await world.bury(run_id)


async def test_a_run_begun_after_a_change_is_resumed_by_a_program_with_that_change_and_by_no_other() -> None:
    world = World(MemoryJournal())
    one = world.agent(CrashingJournal(world.journal, at=2))
    with_review(one.machine)
    await one.run("go", run_id="r")
    await world.bury("r")
    created = (await world.journal.load("r"))[0].body
    assert (created["fingerprint"], tuple(created["table_changes"])) == (
        one.machine.graph.fingerprint,
        CHANGES,
    )
    before = await world.journal.load("r")
    with pytest.raises(OtherGraph, match="its table has changes that are missing here") as caught:
        await world.agent().resume("r")
    assert all(change in str(caught.value) for change in CHANGES)
    assert await world.journal.load("r") == before
    other = world.agent()
    with_review(other.machine)
    result = await other.resume("r")
    assert (result.output, result.transitions[-1].source) == ("done", "review")


async def test_a_change_in_the_middle_of_a_run_is_recorded_and_its_resume_needs_it() -> None:
    world = World(MemoryJournal())
    await crash_at(world, 5, with_review)
    moves = [record.body for record in await world.journal.load("r") if record.kind == "transition"]
    (named,) = [body for body in moves if "fingerprint" in body]
    assert tuple(named["table_changes"]) == CHANGES
    assert (await world.journal.head("r")).fingerprint == named["fingerprint"] != LLM_LOOP.fingerprint
    plain = world.agent()
    with pytest.raises(OtherGraph, match="added state 'review'"):
        await plain.resume("r")
    (listed,) = await plain.hosting.open_runs()
    assert "its table has changes that are missing here: removed edge 'completion_success'" in listed.will
    assert (listed.unattended, listed.foreign) == (False, True)
    same = world.agent()
    with_review(same.machine)
    result = await same.resume("r")
    assert (result.output, world.looked) == ("done", 1)
    assert "review" in {
        record.body["dest"] for record in await world.journal.load("r") if record.kind == "transition"
    }


async def test_a_change_in_the_middle_of_a_run_is_refused_by_name_from_postgresql_until_it_is_made_again(
    database: str,
) -> None:
    async with PostgresJournal(database) as lost:
        world = World(lost)
        agent = world.agent(CrashingJournal(lost, at=5))
        world.meanwhile = lambda: with_review(agent.machine)
        assert isinstance((await agent.run("go", run_id="r")).error, StoreDown)
    async with PostgresJournal(database) as journal:
        before = await journal.load("r")
        moves = [record.body for record in before if record.kind == "transition"]
        assert [tuple(body["table_changes"]) for body in moves if "fingerprint" in body] == [CHANGES]
        assert (await journal.head("r")).fingerprint == agent.machine.graph.fingerprint
        here = world.agent(journal)
        with pytest.raises(OtherGraph, match="its table has changes that are missing here") as caught:
            await here.resume("r")
        assert all(change in str(caught.value) for change in CHANGES)
        assert await journal.load("r") == before, "a refusal leaves no trace"
        with_review(here.machine)
        result = await here.resume("r")
        assert (result.output, result.transitions[-1].source, world.looked) == ("done", "review", 1)


@pytest.mark.parametrize("made", [LLM_LOOP, LLM_LOOP_WITH_HANDOFFS], ids=["plain", "with handoffs"])
async def test_a_run_of_the_old_table_is_not_resumed_under_a_change_and_is_once_that_is_taken_back(
    made: Graph,
) -> None:
    world = World(MemoryJournal())
    await world.agent(CrashingJournal(world.journal, at=3), graph=made).run("go", run_id="r")
    await world.bury("r")
    agent = world.agent()
    agent.machine.add_transition("budget_exceeded", "handle_completion", "terminate_error")
    with pytest.raises(
        OtherGraph, match="its table lacks changes that were made here: added edge 'budget_exceeded'"
    ):
        await agent.resume("r")
    assert "migrated" not in {record.kind for record in await world.journal.load("r")}
    agent.machine.remove_transition("budget_exceeded", "handle_completion")
    assert (await agent.resume("r")).output == "done"


async def test_records_of_an_earlier_version_that_lack_a_change_are_refused_by_name() -> None:
    world, older = World(MemoryJournal()), MemoryJournal()
    await crash_at(world, 5, with_review)
    created, *records = await world.journal.load("r")
    lease = await older.create("r", "old", created.body)
    new = ("fingerprint", "table_changes")
    for record in records:
        older.append(lease, [Draft(record.kind, {n: v for n, v in record.body.items() if n not in new})])
    await older.release(lease)
    assert (await older.head("r")).fingerprint == LLM_LOOP.fingerprint
    with pytest.raises(OtherGraph, match="the table here has no state 'review'"):
        await world.agent(older).resume("r")
    assert (await older.head("r")).owner is None


async def test_the_result_of_an_ended_run_can_be_read_under_any_table() -> None:
    world = World(MemoryJournal())
    one = world.agent()
    with_review(one.machine)
    await one.run("go", run_id="r")
    assert (await world.agent().resume("r")).output == "done"
    one.machine.get_transitions("budget_ok")[0].conditions.clear()
    assert (await one.resume("r")).output == "done"


async def test_a_changed_table_is_in_the_row_of_a_file(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "runs.db") as journal:
        world = World(journal)
        agent = world.agent()
        world.meanwhile = lambda: with_review(agent.machine)
        assert (await agent.run("go", run_id="r")).output == "done"
        assert (await journal.head("r")).fingerprint == agent.machine.graph.fingerprint
        assert len(await journal.load("r")) > 5, "head and records agree"
    async with SqliteJournal(tmp_path / "runs.db") as journal:
        assert (await journal.head("r")).fingerprint == agent.machine.graph.fingerprint
        assert (await world.agent(journal).resume("r")).output == "done"


# ---- metrics ----


async def test_an_added_state_has_its_own_series_from_the_change_on() -> None:
    registry = CollectorRegistry()
    world = World(MemoryJournal())
    agent = world.agent(observers=[Metrics(registry)])
    with_review(agent.machine)
    await agent.run("go")

    def count(metric: str, **labels: str) -> float | None:
        return registry.get_sample_value(
            f"orchestrator_{metric}", {"machine": "llm_loop", "agent": "sales", **labels}
        )

    edge = {"from_state": "handle_completion", "event": "completion_success", "to_state": "review"}
    assert count("transitions_total", **edge) == 1
    assert count("state_entries_total", state="review") == 1
    states = {
        sample.labels["state"]
        for family in registry.collect()
        for sample in family.samples
        if "state" in sample.labels
    }
    assert "_unknown" not in states


def test_an_edge_that_was_not_declared_keeps_the_names_that_were() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.declare(LLM_LOOP)
    metrics.observe(RunStarted("llm_loop", "r", 0.0))
    metrics.observe(Transition("llm_loop", "r", 1, "reviewed", "handle_completion", "review", 1.0, 1.0, 0))
    labels = {"machine": "llm_loop", "agent": "_none"}
    edge = {"from_state": "handle_completion", "event": "_unknown", "to_state": "_unknown"}
    assert registry.get_sample_value("orchestrator_transitions_total", labels | edge) == 1
    stays = "orchestrator_state_duration_seconds_count"
    assert registry.get_sample_value(stays, labels | {"state": "handle_completion"}) == 1


# ---- an invalid table ----


def break_table(made: Machine) -> None:
    made.get_transitions("budget_ok")[0].conditions.clear()


async def test_twenty_runs_wait_for_a_repair_and_continue_without_a_trace() -> None:
    registry, facts = CollectorRegistry(), Facts()
    world = World(MemoryJournal())
    agent = world.agent(observers=[facts, Metrics(registry)])
    conditions = list(agent.machine.get_transitions("budget_ok")[0].conditions)
    everyone = asyncio.Barrier(20)

    async def meet() -> None:
        await everyone.wait()
        if conditions == list(agent.machine.get_transitions("budget_ok")[0].conditions):
            break_table(agent.machine)

    world.meanwhile = meet
    left = await asyncio.gather(*(agent.run("go", run_id=f"r{n}") for n in range(20)), return_exceptions=True)
    assert [(type(one), getattr(one, "reason", "")) for one in left] == [(Suspended, "invalid_table")] * 20
    assert [fact.reason for fact in facts.of(RunParked)] == ["invalid_table"] * 20
    (rejected,) = facts.of(TableRejected)
    assert (rejected.graph, rejected.agent) == ("llm_loop", "sales")
    assert (
        registry.get_sample_value(
            "orchestrator_tables_rejected_total", {"machine": "llm_loop", "agent": "sales"}
        )
        == 1
    )
    with pytest.raises(GraphError, match="unbounded_cycle"):
        await agent.run("go", run_id="new")
    with pytest.raises(GraphError, match="unbounded_cycle"):
        await agent.resume("r0")
    with pytest.raises(RunUnknown):
        await world.journal.head("new")
    for listed in await agent.hosting.open_runs():
        assert (listed.reason, listed.unattended) == ("invalid_table", False)
        assert listed.will.startswith("waits until the table of its graph is valid again: unbounded_cycle: ")
    agent.machine.get_transitions("budget_ok")[0].conditions.extend(conditions)
    world.meanwhile = lambda: None
    results = [await agent.resume(f"r{n}") for n in range(20)]
    assert [(result.output, result.outcome, result.error) for result in results] == [
        ("done", "completed", None)
    ] * 20
    assert world.looked == 20, "no call was repeated"


async def test_an_engine_leaves_runs_of_an_invalid_table_and_resumes_them_after_the_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_directory, "_REREAD", 0.0)
    monkeypatch.setattr(orphan_recovery, "LOOK", 0.01)
    monkeypatch.setattr(orphan_recovery, "POLL", 0.005)
    world = World(MemoryJournal())
    agent = world.agent()
    conditions = list(agent.machine.get_transitions("budget_ok")[0].conditions)
    world.meanwhile = lambda: break_table(agent.machine)
    async with LocalEngine(agent, recover="resume", rescan=0.01) as engine:
        handle = await engine.submit("go", run_id="r")
        with pytest.raises(Suspended, match="invalid_table"):
            await handle
        with pytest.raises(GraphError, match="unbounded_cycle"):
            await (await engine.submit("go", run_id="new"))
        looked = await world.journal.head("r")
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert await world.journal.head("r") == looked
        agent.machine.get_transitions("budget_ok")[0].conditions.extend(conditions)

        async with asyncio.timeout(60):
            while (await world.journal.head("r")).status != "ended":  # noqa: ASYNC110 - a journal in memory tells nobody
                await asyncio.sleep(0.001)
    assert world.looked == 1


async def test_the_log_says_once_what_is_wrong_with_a_table() -> None:
    lines = io.StringIO()
    world = World(MemoryJournal())
    agent = world.agent(observers=[TransitionLog(lines)])
    break_table(agent.machine)
    for number in range(3):
        with pytest.raises(GraphError):
            await agent.run("go", run_id=f"r{number}")
    (line,) = [json.loads(one) for one in lines.getvalue().splitlines() if "table.rejected" in one]
    assert (line["level"], line["machine"], line["agent"]) == ("error", "llm_loop", "sales")
    assert all(problem.startswith("unbounded_cycle: ") for problem in line["problems"])
