"""Versions of an agent in engines: who continues a run, who leaves it, and when it is migrated or waits."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import Agent, Edge, LocalEngine, MemoryJournal
from orchestrator.engines import engine_directory, orphan_recovery
from orchestrator.engines.engine_directory import LiveVersions
from orchestrator.errors import StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.kernel.clock import SystemClock
from orchestrator.kernel.fact import RunParked
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Journal
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.service.recovery import Migration
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import tool
from tests.engines.stage import until
from tests.runtime.stage import NO_WAIT, Facts
from tests.with_runtime import with_runtime

NEWER = LLM_LOOP.extend(edges=[Edge("budget_exceeded", ("handle_completion",), "terminate_error")])
WAYS = (Migration(LLM_LOOP.fingerprint, lambda stored: stored),)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_directory, "_REREAD", 0.0)
    monkeypatch.setattr(orphan_recovery, "LOOK", 0.01)
    monkeypatch.setattr(orphan_recovery, "POLL", 0.005)


class World:
    """Agents that pay, and who paid."""

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()

    def agent(
        self, journal: Journal, by: str, *, name: str = "sales", graph: Graph = LLM_LOOP, **options: Any
    ) -> Agent:
        @tool(effect="pure")
        def pay() -> str:
            self.paid[by] += 1
            return "paid"

        def answer(request: Any) -> Any:
            return f"{by} is done" if request.messages[-1].role == "tool" else call("pay")

        options = with_runtime(**{"observers": (), "retry": NO_WAIT, "journal": journal, **options})
        return Agent(FunctionLLM(answer), tools=[pay], name=name, version=by, graph=graph, **options)

    async def orphan(self, journal: MemoryJournal, run_id: str, by: str, **options: Any) -> None:
        """Leave a run whose process died before its call."""
        one = self.agent(CrashingJournal(journal, at=2), by, **options)
        assert isinstance((await one.run("go", run_id=run_id)).error, StoreDown)
        journal.bury((await journal.head(run_id)).owner or "")


async def when(ready: Callable[[], Any]) -> None:
    while not await ready():  # noqa: ASYNC110 - a journal in memory tells nobody
        await asyncio.sleep(0.001)


async def ended(journal: MemoryJournal, run_id: str) -> None:
    async def is_over() -> bool:
        return (await journal.head(run_id)).status == "ended"

    await asyncio.wait_for(when(is_over), 20)


async def parked(journal: MemoryJournal, run_id: str) -> None:
    async def is_parked() -> bool:
        return (await journal.head(run_id)).reason == "other_graph"

    await asyncio.wait_for(when(is_parked), 20)


def engine(agents: Any, **options: Any) -> LocalEngine:
    return LocalEngine(agents, recover="resume", rescan=0.01, **options)


async def test_the_engines_of_a_journal_are_read_again_only_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_directory, "_REREAD", 1.0)
    world, journal, clock = World(), MemoryJournal(), FakeClock()
    one = world.agent(journal, "1")
    await one.run("go", run_id="r")
    head, versions = await journal.head("r"), LiveVersions(journal, clock)
    found = []
    async with engine(one):
        found.append(await versions.has(head, head.fingerprint))
    found.append(await versions.has(head, head.fingerprint))
    await clock.advance(0.9)
    found.append(await versions.has(head, head.fingerprint))
    await clock.advance(0.2)
    found.append(await versions.has(head, head.fingerprint))
    assert found == [True, True, True, False]


async def test_an_engine_recovers_the_runs_of_each_of_its_agents_that_share_a_graph() -> None:
    world, journal = World(), MemoryJournal()
    for name in ("a", "b"):
        for number in range(3):
            await world.orphan(journal, f"{name}{number}", f"{name}-1", name=name)
    agents = {name: world.agent(journal, f"{name}-1", name=name) for name in ("a", "b")}
    async with engine(agents) as one:
        results = {name: await handle for name, handle in one.recovered.items()}
    assert {name: result.output for name, result in results.items()} == {
        f"{name}{number}": f"{name}-1 is done" for name in ("a", "b") for number in range(3)
    }
    assert world.paid == {"a-1": 3, "b-1": 3}


async def test_two_versions_of_an_agent_in_one_engine_each_continue_the_runs_of_their_graph() -> None:
    world, journal = World(), MemoryJournal()
    await world.orphan(journal, "old", "1")
    await world.orphan(journal, "new", "2", graph=NEWER)
    agents = {
        "one": world.agent(journal, "1"),
        "two": world.agent(journal, "2", graph=NEWER, migrations=WAYS),
    }
    async with engine(agents):
        await ended(journal, "old")
        await ended(journal, "new")
    assert world.paid == {"1": 1, "2": 1}


class AdjustedClock(SystemClock):
    """The machine's clock, which an operator may set back."""

    set_back = 0.0

    def time(self) -> float:
        return super().time() - self.set_back


@pytest.mark.parametrize("set_back", [0.0, 7_200.0])
async def test_a_run_is_left_to_the_live_engine_with_its_graph_although_another_one_could_migrate_it(
    set_back: float,
) -> None:
    world, journal, clock = World(), MemoryJournal(), AdjustedClock()
    newer = world.agent(journal, "2", graph=NEWER, migrations=WAYS, clock=clock)
    async with engine(world.agent(journal, "1")) as old, engine(newer):
        old._orphans.stop()  # so only the newer one looks
        await world.orphan(journal, "r", "1")
        before = await journal.head("r")
        looked = world.agent(journal, "2", graph=NEWER, name="other")
        await looked.run("go")  # meanwhile the newer one has looked many times
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert await journal.head("r") == before
        clock.set_back = set_back
        await old.drain()
        await ended(journal, "r")
    assert world.paid["2"] == 2
    (migrated,) = [record for record in await journal.load("r") if record.kind == "migrated"]
    assert migrated.body["to"] == (await journal.head("r")).fingerprint == NEWER.fingerprint
    assert (await journal.head("r")).agent_version == "2"


async def test_a_run_whose_graph_nobody_has_waits_visibly_until_a_migration_is_registered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, journal, told = World(), MemoryJournal(), Facts()
    await world.orphan(journal, "r", "1")
    with caplog.at_level(logging.WARNING, "orchestrator"):
        newer = world.agent(journal, "2", graph=NEWER, observers=(told,))
        async with engine(newer) as one:
            await parked(journal, "r")
            (listed,) = await newer.hosting.open_runs()
            assert (listed.status, listed.reason, listed.unattended) == ("parked", "other_graph", False)
            assert listed.will == (
                f"waits for its graph version {LLM_LOOP.fingerprint[:12]}, or for a migration to "
                f"{NEWER.fingerprint[:12]}, which is here"
            )
            assert [fact.reason for fact in told.of(RunParked)] == ["other_graph"]
            before = await journal.load("r")
            await (await one.submit("go"))
            assert await journal.load("r") == before, "it is parked once"
        async with engine(world.agent(journal, "2", graph=NEWER, migrations=WAYS)):
            await ended(journal, "r")
    assert world.paid["2"] == 2
    assert caplog.records == []


async def test_a_run_that_waits_for_its_graph_continues_as_soon_as_an_engine_has_it() -> None:
    world, journal = World(), MemoryJournal()
    await world.orphan(journal, "r", "1")
    async with engine(world.agent(journal, "2", graph=NEWER)):
        await parked(journal, "r")
        async with engine(world.agent(journal, "1")):
            await ended(journal, "r")
    assert world.paid == {"1": 1}
    kinds = [record.kind for record in await journal.load("r")]
    assert (kinds.count("parked"), kinds.count("migrated")) == (1, 0)


async def test_an_engine_of_another_agent_writes_no_error_line_about_the_runs_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, journal = World(), MemoryJournal()
    await world.orphan(journal, "r", "1")
    before = await journal.head("r")
    with caplog.at_level(logging.WARNING, "orchestrator"):
        async with engine(world.agent(journal, "2", name="support", graph=NEWER)) as one:
            await (await one.submit("go"))
            await until(lambda: True)
    assert (await journal.head("r"), caplog.records) == (before, [])


# ---- an agent that gets or loses handoffs ----


def team_of(world: World, journal: Journal, by: str, **options: Any) -> Agent:
    """The agent `sales` that may hand over to `billing`."""
    billing = world.agent(journal, by, name="billing", **options)
    return world.agent(journal, by, handoffs=[billing], **options)


async def test_an_engine_whose_agent_got_handoffs_recovers_its_runs_from_before() -> None:
    world, journal = World(), MemoryJournal()
    await world.orphan(journal, "before", "1")
    async with engine(team_of(world, journal, "2")) as one:
        assert (await one.recovered["before"]).output == "2 is done"
        await world.orphan(journal, "later", "1")  # found by a scan
        await ended(journal, "later")
        after = await (await one.submit("go", run_id="after"))
    assert (after.output, world.paid) == ("2 is done", {"2": 3})
    graphs = {run_id: (await journal.head(run_id)).graph for run_id in ("before", "later", "after")}
    assert graphs == {"before": "llm_loop", "later": "llm_loop", "after": "team"}


async def test_runs_from_before_the_handoffs_stay_with_a_live_engine_that_has_the_agent_without() -> None:
    world, journal = World(), MemoryJournal()
    async with engine(team_of(world, journal, "2", graph=NEWER), name="new") as new:
        async with engine(world.agent(journal, "1"), name="old"):
            assert not new.recovered
            await world.orphan(journal, "old", "1")
            await ended(journal, "old")
        assert world.paid == {"1": 1}


async def test_a_live_engine_says_that_it_has_the_earlier_graph_of_an_agent_with_handoffs() -> None:
    world, journal = World(), MemoryJournal()
    await world.orphan(journal, "run", "1")
    head = await journal.head("run")
    async with LocalEngine(team_of(world, journal, "2"), name="team", recover="list"):
        (listing,) = await engine_directory.engines(journal)
        assert not listing.fits(head, head.fingerprint)  # it resumes nothing
    async with engine(team_of(world, journal, "2"), name="team", slots=1) as one:
        (found,) = await engine_directory.engines(journal)
        assert found.fits(head, head.fingerprint)
        assert not found.fits(head, "another")
        await one.recovered["run"]


async def test_a_command_for_the_earlier_graph_reaches_the_runs_from_before_the_handoffs() -> None:
    world, journal, asked = World(), MemoryJournal(), asyncio.Event()

    async def waits(_: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    await world.orphan(journal, "before", "1")
    team = team_of(world, journal, "2").replace(model=FunctionLLM(waits))
    async with engine(team) as one:
        await asked.wait()
        await one.control("cancel_all", graph="llm_loop", by="ann", why="wrong prices")
        result = await one.recovered["before"]
    assert (result.outcome, result.reason) == ("cancelled", "caller")


async def test_an_engine_whose_agent_lost_its_handoffs_recovers_the_runs_of_the_team() -> None:
    world, journal = World(), MemoryJournal()
    one = team_of(world, CrashingJournal(journal, at=5), "1")
    assert isinstance((await one.run("go", run_id="team")).error, StoreDown)
    journal.bury((await journal.head("team")).owner or "")
    assert (await journal.head("team:s1")).status == "open"
    async with engine(world.agent(journal, "2", handoffs=[])) as two:
        assert (await two.recovered["team"]).output == "2 is done"
    assert (await journal.head("team:s1")).status == "ended"
