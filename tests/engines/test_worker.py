"""Workers in this process: who gives back what dead ones had, and what a worker does with what it cannot carry."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from orchestrator.cli import operate
from orchestrator.engines import dbos, engine_directory, local_engine, orphan_recovery
from orchestrator.engines import engine_directory as roster
from orchestrator.engines import worker as worker_module
from orchestrator.engines.dbos import DbosDispatcher
from orchestrator.engines.dispatcher import WorkerLimits
from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.engines.worker import Worker
from orchestrator.errors import ConfigError, StoreDown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.llm.message import Request
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.ralph.ralph import Ralph
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.spec import ToolContext, tool
from tests.postgres import Cluster

ROOT = Path(__file__).resolve().parents[2]
SOON = 0.2
"""Seconds between two sweeps, where it is not their time that is looked at."""


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look for work, messages and dead workers more often than they do by default."""
    monkeypatch.setattr(worker_module, "BEAT", 0.1)
    monkeypatch.setattr(orphan_recovery, "POLL", 0.02)
    monkeypatch.setattr(dbos, "_POLL", 0.02)


class Held:
    """A model that answers once it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may = asyncio.Event()

    async def answer(self, request: Request) -> str:
        self.asked += 1
        await self.may.wait()
        return f"so {request.messages[-1].text}"


def agent(journal: Any, model: Any = None) -> Agent:
    return Agent(FunctionLLM(model or (lambda request: "done")), journal=journal, observers=())


@asynccontextmanager
async def working(
    dsn: str, name: str, *, model: Any = None, caps: WorkerLimits | None = None
) -> AsyncIterator[Worker]:
    async with (
        PostgresJournal(dsn, name=name) as journal,
        Worker(
            agent(journal, model), DbosDispatcher(dsn, caps=caps), slots=2, grace=0, rescan=SOON
        ) as worker,
    ):
        yield worker


@asynccontextmanager
async def client(dsn: str, name: str = "") -> AsyncIterator[PostgresJournal]:
    async with PostgresJournal(dsn, name=name) as journal:
        yield journal


async def until(ready: Callable[[], Any], seconds: float = 30.0) -> None:
    ends = time.monotonic() + seconds
    while not await ready():
        assert time.monotonic() < ends, "it never came to that"
        await asyncio.sleep(0.05)


def ended(journal: PostgresJournal, run: str) -> Callable[[], Any]:
    async def look() -> bool:
        return (await journal.head(run)).status == "ended"

    return look


async def taken_and_left(dsn: str, run: str, name: str = "w0") -> object:
    """Let a worker take slice 0 of a run and die: its dispatcher knows the slice as one that it has.

    Returns what is to be kept: nobody else has what its drive waits for, and what waits for that would be collected.
    """
    taken, never = asyncio.Event(), asyncio.Event()

    async def drive(run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        taken.set()
        await never.wait()

    dead = DbosDispatcher(dsn)
    await dead.start(drive, name, 1)
    await dead.submit(run, 0)
    await asyncio.wait_for(taken.wait(), 30)
    await dead.stop()
    return never


async def test_what_a_dead_worker_had_is_given_back_whoever_else_has_the_database_open(database: str) -> None:
    """Clients hold what they deposit; their names, and the lack of one, say nothing about who looks after workers."""
    async with client(database) as nameless, client(database, "a host") as host:
        await agent(nameless).deposit("x", run_id="r1")
        await agent(host).deposit("x", run_id="r2")
        kept = await taken_and_left(database, "r1")
        caps = WorkerLimits(concurrency=1)  # a slice of the dead counts, and nothing else begins
        async with working(database, "w1", caps=caps):
            await until(ended(host, "r1"))
            await until(ended(host, "r2"))
        del kept


async def test_a_worker_that_drains_takes_nothing_more_from_the_queue(database: str) -> None:
    """DBOS would go on to hand it slices, and it could but send them away, each to wait for a sweep."""
    held = Held()
    async with client(database) as host:
        async with PostgresJournal(database, name="w1") as journal:
            own = agent(journal, held.answer)
            worker = Worker(own, DbosDispatcher(database), slots=2, grace=60, rescan=SOON)
            async with worker:
                await agent(host).deposit("x", run_id="old")
                await until(lambda: _is(held.asked == 1))
                draining = asyncio.create_task(worker.run_until_signal())
                await asyncio.sleep(0)
                await worker._engine.control("drain", by="ann")
                await agent(host).deposit("x", run_id="new")
                outside = DbosDispatcher(database)
                await until(lambda: _is(not _taking()))
                await outside.submit("new", 0)
                await asyncio.to_thread(lambda: None)  # threads of the loop work on
                held.may.set()
                assert (await asyncio.wait_for(draining, 30)).ended == ("old",)
                await outside.stop()
        assert (await host.head("new")).seq == 0
        async with working(database, "w2"):
            await until(ended(host, "new"))


async def _is(truth: bool) -> bool:
    return truth


def _taking() -> bool:
    return bool(dbos._active)


async def test_a_run_that_a_draining_worker_hands_on_still_counts_for_its_tenant(database: str) -> None:
    held = Held()

    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    async def answer(request: Request) -> Answer:
        await held.answer(request)
        return call("look")

    async with PostgresJournal(database, name="w1") as journal:
        one = Agent(FunctionLLM(answer), tools=[look], journal=journal, observers=())
        worker = Worker(one, DbosDispatcher(database), slots=1, grace=0, rescan=SOON)
        async with worker:
            await one.deposit("x", run_id="r", tenant="acme")
            await until(lambda: _is(held.asked == 1))
            leaving = asyncio.create_task(worker._engine.drain(0))
            await until(lambda: _is(worker.load().phase == "draining"))
            held.may.set()
            await leaving
            head = await journal.head("r")
        assert (head.status, head.reason) == ("parked", "shutdown")
    with psycopg.connect(database) as db:
        found = db.execute(
            "SELECT queue_partition_key FROM orchestrator_dbos.workflow_status WHERE workflow_uuid = %s",
            (f"r:{head.seq}",),
        ).fetchall()
    assert found == [("acme",)]


async def test_a_run_whose_graph_no_worker_has_is_left_as_it_is_without_an_error_line(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(database) as host:
        await host.create(
            "odd", "ann", {"graph": "somebody's", "fingerprint": "1", "at": 0.0, "deposited": {}}
        )
        await host.release(await host.claim("odd", "ann", steal=True))
        before = await host.head("odd")
        outside = DbosDispatcher(database)
        with caplog.at_level(logging.ERROR, "orchestrator"):
            async with working(database, "w1"):
                await outside.submit("odd", before.seq)
                await agent(host).deposit("x", run_id="even")
                await until(ended(host, "even"))
                await until(lambda: outside._is_over(f"odd:{before.seq}"))
        await outside.stop()
        assert "odd" not in caplog.text
        after = await host.head("odd")
        assert (after.status, after.seq, after.epoch) == (before.status, before.seq, before.epoch)


async def test_agents_park_as_long_as_they_belong_to_a_worker(database: str) -> None:
    async with PostgresJournal(database, name="w1") as journal:
        own = agent(journal)
        parks = [own.parks]
        async with Worker(own, DbosDispatcher(database)):
            parks.append(own.parks)
        parks.append(own.parks)
        assert parks == [False, True, False]
        assert (await own.run("x")).output == "done"


async def test_a_second_worker_of_a_name_is_refused_before_it_takes_anything(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To DBOS they would be one executor, and each be given what the other has."""
    monkeypatch.setattr(worker_module, "TWIN", 0.1)
    async with working(database, "w1"), PostgresJournal(database, name="w1") as journal:
        with pytest.raises(
            ConfigError, match="a worker named 'w1' runs already; give each worker its own name"
        ):
            async with Worker(agent(journal), DbosDispatcher(database)):
                pass
        assert not agent(journal).parks


@pytest.mark.campaign
async def test_a_worker_that_is_started_anew_waits_for_the_death_of_the_one_before_it(database: str) -> None:
    before = PostgresJournal(database, name="w1")
    await before.open()
    assert before._handle is not None
    before._handle.presence.beat = 1e9
    before._handle.presence.postpone()  # it beats no more
    before._handle._session._drop()  # and lost its connection, as by a kill
    async with working(database, "w1"), client(database) as host:
        await agent(host).deposit("x", run_id="r")
        await until(ended(host, "r"))
    await before.close()


@pytest.mark.campaign
async def test_a_worker_that_is_started_while_the_server_is_away_waits_for_it(server: Cluster) -> None:
    dsn = server.database()
    await asyncio.to_thread(server.stop)
    starting = asyncio.create_task(_one_run(dsn))
    await asyncio.sleep(0.5)
    assert not starting.done()
    await asyncio.to_thread(server.start)
    assert await asyncio.wait_for(starting, 60) == "ended"


async def _one_run(dsn: str) -> str:
    async with working(dsn, "w1"), client(dsn) as host:
        await agent(host).deposit("x", run_id="r")
        await until(ended(host, "r"))
        return (await host.head("r")).status


async def test_a_worker_ends_also_where_a_library_swallows_that_its_reaper_is_cancelled(
    database: str,
) -> None:
    """As `asyncio.wait_for` may before Python 3.12, which connection pools use."""
    reaping = asyncio.Event()

    class Swallows(DbosDispatcher):
        async def reap(self, living: frozenset[str]) -> int:
            reaping.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return 0
            raise AssertionError

    async with PostgresJournal(database, name="w1") as journal, Worker(agent(journal), Swallows(database)):
        await reaping.wait()


@pytest.mark.campaign
async def test_a_run_that_lost_its_journal_goes_on_once_the_server_is_back(server: Cluster) -> None:
    """Else it would be held, for as long as the worker lives, by a worker that does not carry it."""
    dsn, model = server.database(), Held()
    async with (
        PostgresJournal(dsn, name="w1", patience=0.2) as journal,
        Worker(agent(journal, model.answer), DbosDispatcher(dsn), slots=2, grace=0, rescan=SOON) as worker,
        client(dsn) as host,
    ):

        async def under_way() -> bool:
            return model.asked > 0

        async def lost() -> bool:
            return not worker.status()["live"]

        await agent(host).deposit("x", run_id="r")
        await until(under_way)
        await asyncio.to_thread(server.stop, "immediate")
        model.may.set()
        await until(lost)
        await asyncio.to_thread(server.start)
        await until(ended(host, "r"))
        assert model.asked == 2


GONE = """
import asyncio, sys
from orchestrator.cli import operate
from orchestrator.engines import local_engine, engine_directory
from orchestrator.engines import engine_directory as roster
from orchestrator.engines import worker as worker_module
from orchestrator.engines.dbos import DbosDispatcher
from orchestrator.engines.procrastinate import ProcrastinateDispatcher

async def main():
    go, driven = asyncio.Event(), asyncio.Event()
    async def drive(run, slice):
        driven.set()
        await go.wait()
    one = DbosDispatcher(sys.argv[1])
    await one.start(drive, "w1", 1)
    await one.submit("r", 0)
    await driven.wait()
    print("driven", flush=True)
    await asyncio.to_thread(sys.stdin.readline)  # the server is gone by now
    go.set()
    await asyncio.sleep(2.0)  # DBOS asks for it again and again
    await one.stop()

asyncio.run(main())
"""


@pytest.mark.campaign
def test_a_worker_whose_server_is_gone_for_good_can_end(server: Cluster) -> None:
    """DBOS repeats for ever what the server did not take, in threads that a process waits for at its end."""
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", GONE, server.database()]
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "driven\n"
            server.stop("immediate")
            said = process.communicate("go\n", timeout=60)
            assert process.returncode == 0, said
        finally:
            process.kill()
            server.stop()
            server.start()


async def test_what_dbos_may_not_do_is_said_in_a_sentence(
    postgres: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """By itself it prints the whole of what was raised, too."""
    database = postgres.database()
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("CREATE ROLE weak LOGIN PASSWORD 'weak'")
    weak = database.replace(f"{postgres.user}:{postgres.password}", "weak:weak")
    one = DbosDispatcher(weak)

    async def nothing(run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        raise AssertionError(run_id)

    with pytest.raises(StoreDown, match=r"DBOS could not start: .*permission denied for database"):
        await one.start(nothing, "w1", 1)
    with pytest.raises(StoreDown, match=r"Procrastinate could not start: .*permission denied for database"):
        await ProcrastinateDispatcher(weak).submit("r", 0)
    assert "Traceback" not in capfd.readouterr().err


async def test_of_a_dead_worker_it_is_said_who_goes_on_with_its_runs(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with PostgresJournal(database, name="w1") as journal:
        async with Worker(agent(journal), DbosDispatcher(database)):
            [living] = await roster.engines(journal)
        dead = dataclasses.replace(living, owner=None)
        operate._print(dead, None)
        assert (
            "is dead: its process is gone, and it never stopped; its runs are resumed by another worker"
            in (capsys.readouterr().out)
        )
        with pytest.raises(
            ConfigError, match="1 died without stopping, their runs are resumed by another worker"
        ):
            roster.meant([dead], None)
        for name in (None, "all", living.name, living.run_id):
            assert roster.meant([living, dead], name) == [living]


def test_agents_that_no_worker_can_carry_are_refused() -> None:
    dispatcher: Any = None
    ralph = Ralph(print, print, print, observers=())
    with pytest.raises(ConfigError, match="bound to the directory of its session"):
        Worker({"mine": ralph}, dispatcher)
    with pytest.raises(ConfigError, match="a journal that many machines share"):
        Worker(agent(MemoryJournal()), dispatcher)

    @tool(effect="pure")
    def tenant(context: ToolContext[str]) -> str:
        """Return the tenant."""
        return context.deps

    without_deps = Agent(ScriptedLLM(["done"]), tools=[tenant], observers=())
    with pytest.raises(
        ConfigError, match=r"tool 'tenant' reads deps \(str\), and neither the agent nor the run"
    ):
        Worker(without_deps, dispatcher)


@pytest.mark.campaign
async def test_a_worker_stops_though_the_server_is_away_for_longer_than_anybody_waits(
    server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its runs would wait out the journal's patience, one after the other, and a supervisor kills it."""
    monkeypatch.setattr(local_engine, "SETTLE", 0.1)
    monkeypatch.setattr(engine_directory, "NOTIFY_SECONDS", 0.1)
    dsn, model = server.database(), Held()
    async with PostgresJournal(dsn, name="w1", patience=3600) as journal:
        async with Worker(
            agent(journal, model.answer), DbosDispatcher(dsn), slots=3, grace=0, rescan=SOON
        ) as worker:
            for run in ("r1", "r2", "r3"):
                await agent(journal).deposit("x", run_id=run)
            await until(lambda: _is(model.asked == 3))
            await asyncio.to_thread(server.stop, "immediate")
            async with asyncio.timeout(60):
                drained = await worker._engine.drain(0)
            assert sorted(drained.interrupted) == ["r1", "r2", "r3"]
        await asyncio.to_thread(server.start)
    model.may.set()
    async with working(dsn, "w2", model=model.answer), client(dsn) as host:
        for run in ("r1", "r2", "r3"):
            await until(ended(host, run))
