"""What every dispatcher keeps to, tried on DBOS and on Procrastinate, each on a database of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from orchestrator.engines import dbos, procrastinate
from orchestrator.engines.dbos import DbosDispatcher
from orchestrator.engines.dispatcher import Dispatcher, WorkerLimits
from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.engines.worker import Worker
from orchestrator.errors import ConfigError, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.kernel.machine import Machine
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import tool
from tests.postgres import Cluster

KINDS: dict[str, Callable[..., Any]] = {"dbos": DbosDispatcher, "procrastinate": ProcrastinateDispatcher}
each = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the dispatchers look for work more often than they do by default."""
    monkeypatch.setattr(dbos, "_POLL", 0.02)
    monkeypatch.setattr(procrastinate, "_POLL", 0.1)


class Work:
    """What is driven, and how many at once; a run is driven until it is let go."""

    def __init__(self, *, held: bool = False) -> None:
        self.driven: Counter[tuple[str, int]] = Counter()
        self.now: set[str] = set()
        self.most = 0
        self.most_of: Counter[str] = Counter()
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.go = asyncio.Event()
        if not held:
            self.go.set()

    async def drive(self, run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        self.driven[run_id, slice] += 1
        self.loops.add(asyncio.get_running_loop())
        self.now.add(run_id)
        self.most = max(self.most, len(self.now))
        for tenant, count in Counter(name.partition("-")[0] for name in self.now).items():
            self.most_of[tenant] = max(self.most_of[tenant], count)
        try:
            await self.go.wait()
            await asyncio.sleep(0.01)
        finally:
            self.now.discard(run_id)


@asynccontextmanager
async def started(
    kind: str, dsn: str, work: Work, *, slots: int = 4, name: str = "w1", **options: Any
) -> AsyncIterator[Dispatcher]:
    one: Dispatcher = KINDS[kind](dsn, **options)
    await one.start(work.drive, name, slots)
    try:
        yield one
    finally:
        work.go.set()
        await until(lambda: not work.now)
        await one.stop()


async def until(ready: Callable[[], bool], seconds: float = 30.0) -> None:
    ends = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < ends, "it never came to that"
        await asyncio.sleep(0.02)


@each
async def test_what_is_submitted_is_driven_in_the_loop_of_whoever_started(
    kind: str, postgres: Cluster
) -> None:
    work = Work()
    async with started(kind, postgres.database(), work) as one:  # its tables are made
        for number in range(5):
            await one.submit(f"r{number}", number)
        await until(lambda: len(work.driven) == 5)
    assert work.driven == {(f"r{number}", number): 1 for number in range(5)}
    assert work.loops == {asyncio.get_running_loop()}


@each
async def test_a_slice_that_waits_is_one_however_often_it_is_submitted(kind: str, database: str) -> None:
    work = Work(held=True)
    async with started(kind, database, work, slots=1) as one:
        await one.submit("first", 0)
        await until(lambda: work.now == {"first"})
        await asyncio.gather(*(one.submit("r", 7) for _ in range(5)))
        work.go.set()
        await one.submit("last", 0)
        await until(lambda: bool(work.driven["last", 0] and work.driven["r", 7]))  # DBOS sorts by the clock
    assert work.driven["r", 7] == 1


LOCKING = {
    "dbos": "UPDATE orchestrator_dbos.workflow_status SET status = status",
    "procrastinate": "UPDATE orchestrator_procrastinate.procrastinate_jobs SET status = status",
}


@pytest.mark.campaign
@each
async def test_a_process_that_is_frozen_between_two_statements_keeps_nobody_waiting(
    kind: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has locked what it wrote last: a sweep that tells of the same run waited for as long as it was frozen."""
    monkeypatch.setattr(dbos, "_FROZEN", 3.0)  # no session that works is idle in a transaction for so long
    async with started(kind, database, Work(held=True), slots=1) as one:
        await one.submit("r", 0)
        await one.submit("s", 0)
        frozen = await _stopped_in_the_middle(one, LOCKING[kind])
        other = KINDS[kind](database)
        await asyncio.wait_for(other.submit("s", 0), 30)
        await other.stop()
        await frozen()


async def _stopped_in_the_middle(one: Any, statement: str) -> Callable[[], Any]:
    """Do what locks rows on a connection of a dispatcher's own, and nothing after it; return what gives it back."""
    if isinstance(one, ProcrastinateDispatcher):
        pool = one._app.connector.pool
        db = await pool.getconn()
        await db.execute(statement)
        return lambda: pool.putconn(db)
    connection = await asyncio.to_thread(one._pool.connect)
    await asyncio.to_thread(connection.exec_driver_sql, statement)

    async def back() -> None:
        await asyncio.to_thread(connection.invalidate)
        await asyncio.to_thread(connection.close)

    return back


@each
async def test_a_run_that_got_further_is_something_new_and_one_left_where_it_was_is_driven_again(
    kind: str, database: str
) -> None:
    work = Work()
    async with started(kind, database, work) as one:
        for number in (3, 4):
            await one.submit("r", number)
            await until(lambda number=number: work.driven["r", number] == 1 and not work.now)  # type: ignore[misc]
        await until(lambda: not left(kind, database))  # it notes that a drive is over some time after it is
        work.go.clear()
        await one.submit("r", 4)
        await until(lambda: bool(work.now))
        work.go.set()
    assert work.driven == {("r", 3): 1, ("r", 4): 2}


LEFT = {
    "dbos": "SELECT count(*) FROM orchestrator_dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
    "procrastinate": "SELECT count(*) FROM orchestrator_procrastinate.procrastinate_jobs",
}


def left(kind: str, database: str) -> int:
    """Return how many slices a dispatcher does not know as over."""
    with psycopg.connect(database) as db:
        found = db.execute(LEFT[kind].encode()).fetchone()
        assert found is not None
        return int(found[0])


@each
async def test_a_drive_that_raises_by_a_defect_closes_no_run_for_good(kind: str, database: str) -> None:
    """To DBOS an exception is the end of a workflow: its id is never run again, and a call of it raises for ever."""
    work = Work()
    raised: list[str] = []

    async def drive(run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        if not raised:
            raised.append(run_id)
            raise ZeroDivisionError("a defect")
        await work.drive(run_id, slice)

    one: Dispatcher = KINDS[kind](database)
    await one.start(drive, "w1", 1)
    try:
        await one.submit("r", 0)
        await until(lambda: bool(raised))
        ends = time.monotonic() + 30
        while not work.driven:  # as a sweep does
            assert time.monotonic() < ends
            await one.submit("r", 0)
            await asyncio.sleep(0.2)
        assert set(work.driven) == {("r", 0)}
    finally:
        await one.stop()


@each
async def test_no_worker_drives_more_than_it_has_slots(kind: str, database: str) -> None:
    work = Work(held=True)
    async with started(kind, database, work, slots=3) as one:
        for number in range(7):
            await one.submit(f"r{number}", 0)
        await until(lambda: len(work.now) == 3)
        work.go.set()
        await until(lambda: len(work.driven) == 7)
    assert work.most == 3


@each
async def test_somebody_who_only_submits_need_not_be_a_worker(kind: str, database: str) -> None:
    work, client = Work(), KINDS[kind](database)
    async with started(kind, database, work):
        await client.submit("r", 0)
        await until(lambda: bool(work.driven))
    await client.stop()


@pytest.mark.campaign
@each
async def test_a_server_that_is_stopped_loses_nothing_that_was_submitted_and_who_submits_is_told(
    kind: str, server: Cluster
) -> None:
    work = Work(held=True)
    async with started(kind, server.database(), work, slots=1) as one:
        for number in range(3):
            await one.submit(f"r{number}", 0)
        await until(lambda: bool(work.now))
        await asyncio.to_thread(server.stop, "immediate")
        with pytest.raises(StoreDown) as told:
            await asyncio.wait_for(one.submit("s", 0), 60)
        assert server.password not in str(told.value)
        await asyncio.to_thread(server.start)
        work.go.set()
        await until(lambda: {run for run, _ in work.driven} >= {"r0", "r1", "r2"}, 60)


# ---- workers whose tables differ ----


@each
async def test_a_worker_with_another_table_leaves_a_run_and_says_why_and_one_with_the_same_table_ends_it(
    kind: str, database: str
) -> None:
    reviewed: list[str] = []

    def with_review(machine: Machine, by: str) -> None:
        async def enter_review(run: Any) -> str:
            reviewed.append(by)
            return "reviewed"

        with machine.changing():
            machine.add_states({"name": "review", "on_enter": enter_review})
            machine.get_transitions("completion_success")[0].dest = "review"
            machine.add_transition("reviewed", "review", "finalize")
            machine.add_transition("failure", "review", "terminate_error")

    def agent(journal: Any, look: Callable[[], str] = lambda: "seen") -> Agent:
        model = FunctionLLM(lambda asked: "done" if asked.messages[-1].role == "tool" else call("look"))
        return Agent(
            model, tools=[tool(name="look", effect="pure")(look)], journal=journal, observers=(), name="sales"
        )

    @asynccontextmanager
    async def working(name: str, *, review: bool) -> AsyncIterator[Agent]:
        async with PostgresJournal(database, name=name) as journal:
            own = agent(journal)
            if review:
                with_review(own.machine, name)
            async with Worker(own, KINDS[kind](database), slots=1, grace=0, rescan=0.2):
                yield own

    def look_and_change() -> str:
        with_review(dying.machine, "dead")
        return "seen"

    async with PostgresJournal(database) as lost:
        dying = agent(CrashingJournal(lost, at=5), look_and_change)
        assert isinstance((await dying.run("go", run_id="r")).error, StoreDown)
    reviewed.clear()
    async with PostgresJournal(database) as journal:

        async def reaches(run_id: str, member: str, value: str) -> None:
            async with asyncio.timeout(30):
                while getattr(await journal.head(run_id), member) != value:  # noqa: ASYNC110 - a worker writes it
                    await asyncio.sleep(0.02)

        client = KINDS[kind](database)
        async with working("other", review=False) as other:
            await client.submit("r", (await journal.head("r")).seq)
            await reaches("r", "reason", "other_graph")
            (listed,) = await other.hosting.open_runs()
            assert "its table has changes that are missing here: " in listed.will
            assert "added edge 'reviewed' from 'review' to 'finalize'" in listed.will
            parked = await journal.load("r")
            await client.submit("r", parked[-1].seq)
            await agent(journal).deposit("go", run_id="later")
            await client.submit("later", 0)
            await reaches("later", "status", "ended")
            assert await journal.load("r") == parked, "the worker drove nothing of it"
        async with working("same", review=True):
            await reaches("r", "status", "ended")
        await client.stop()
        assert (reviewed, (await journal.head("r")).outcome) == (["same"], "completed")


# ---- what DBOS has beyond ----


async def test_nobody_takes_away_a_slice_that_another_put_in_anew_since_he_looked(database: str) -> None:
    """After an outage every worker sweeps, and tells of the same runs, at the same moment."""
    work, slow = Work(), DbosDispatcher(database)
    looked, may = asyncio.Event(), asyncio.Event()
    told = slow._call

    async def held_up(method: str, *about: Any, **options: Any) -> Any:
        said = await told(method, *about, **options)
        if method == "list_workflows" and not looked.is_set():
            looked.set()
            await may.wait()
        return said

    slow._call = held_up  # type: ignore[method-assign]
    async with started("dbos", database, work) as one:
        await one.submit("r", 0)
        await until(lambda: statuses(database) == {"SUCCESS": 1})
        work.go.clear()
        telling = asyncio.create_task(slow.submit("r", 0))
        await looked.wait()
        await one.submit("r", 0)
        await until(lambda: work.driven["r", 0] == 2)
        may.set()
        await telling
        assert statuses(database) == {"PENDING": 1}, "that of who drives it: it counts for the limits"
    await slow.stop()
    assert work.driven["r", 0] == 2


async def test_what_is_over_for_long_is_removed_and_nothing_else(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DBOS keeps a row for each slice there ever was."""
    work = Work()
    async with started("dbos", database, work, slots=1) as one:
        await one.submit("r", 0)
        await until(lambda: statuses(database) == {"SUCCESS": 1})
        work.go.clear()
        await one.submit("s", 0)
        await until(lambda: work.now == {"s"})
        await one.submit("t", 0)
        assert await one.reap(frozenset({"w1"})) == 0
        assert statuses(database) == {"SUCCESS": 1, "PENDING": 1, "ENQUEUED": 1}, "not over for long"
        monkeypatch.setattr(dbos, "_KEPT", -60.0)
        assert await one.reap(frozenset({"w1"})) == 0
        assert statuses(database) == {"SUCCESS": 1, "PENDING": 1, "ENQUEUED": 1}, "not each time"
        monkeypatch.setattr(one, "_cleans", 0.0)
        assert await one.reap(frozenset({"w1"})) == 0
        assert statuses(database) == {"PENDING": 1, "ENQUEUED": 1}
        work.go.set()
        await until(lambda: bool(work.driven["t", 0]))
    assert work.driven == {("r", 0): 1, ("s", 0): 1, ("t", 0): 1}


def statuses(database: str) -> dict[str, int]:
    """Return how many of DBOS's workflows have which status."""
    with psycopg.connect(database) as db:
        found = db.execute("SELECT status, count(*) FROM orchestrator_dbos.workflow_status GROUP BY status")
        return dict(found.fetchall())


async def test_all_workers_together_keep_to_the_limits_of_each_tenant_and_of_all(postgres: Cluster) -> None:
    work = Work(held=True)
    caps = WorkerLimits(concurrency=5, tenant_concurrency=2)
    async with started("dbos", postgres.database(), work, slots=8, caps=caps) as one:
        for number in range(12):
            tenant = "abc"[number % 3]
            await one.submit(f"{tenant}-{number}", 0, tenant=tenant)
        await until(lambda: len(work.now) == 5)
        work.go.set()
        await until(lambda: len(work.driven) == 12)
    assert work.most == 5
    assert max(work.most_of.values()) == 2


async def test_no_more_runs_begin_within_a_period_than_the_rate_says(database: str) -> None:
    work = Work()
    async with started("dbos", database, work, slots=8, caps=WorkerLimits(rate=2, period=0.4)) as one:
        await asyncio.gather(*(one.submit(f"r{number}", 0) for number in range(5)))
        await until(lambda: len(work.driven) == 5)
    # As DBOS has it: when a run that was taken from the queue is begun depends on who else wants the processor.
    with psycopg.connect(database) as db:
        query = "SELECT started_at_epoch_ms FROM orchestrator_dbos.workflow_status ORDER BY 1"
        taken = [row[0] for row in db.execute(query)]
    assert all(later - earlier >= 400 for earlier, later in zip(taken, taken[2:], strict=False)), taken


def test_the_names_of_the_queues_stay_because_submitted_runs_are_stored_under_them() -> None:
    assert (dbos.QUEUE, procrastinate.QUEUE) == ("orchestrator-runs", "orchestrator-runs")


async def test_a_worker_of_dbos_logs_only_the_errors_of_dbos(database: str) -> None:
    logging.getLogger("dbos").setLevel(logging.DEBUG)
    async with started("dbos", database, Work()):
        assert logging.getLogger("dbos").level == logging.ERROR


async def test_a_job_of_a_worker_of_procrastinate_without_a_heartbeat_is_queued_and_driven_again(
    database: str,
) -> None:
    work, client = Work(), ProcrastinateDispatcher(database)
    await client.submit("r", 0)
    await client.stop()
    tables = "-c search_path=orchestrator_procrastinate"
    with psycopg.connect(database, autocommit=True, options=tables) as db:
        dead = "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '1 day') RETURNING id"
        row = db.execute(dead).fetchone()
        assert row is not None
        db.execute("UPDATE procrastinate_jobs SET status = 'doing', worker_id = %s", row)
    async with started("procrastinate", database, work) as living:
        assert work.driven == {}
        assert await living.reap(frozenset()) == 1
        await until(lambda: work.driven == {("r", 0): 1})
        assert await living.reap(frozenset()) == 0
    assert isinstance(living, ProcrastinateDispatcher)
    await living._driven("late", 0)
    assert work.driven == {("r", 0): 1}, "a job that the library begins after the stop is left to a sweep"


async def test_what_a_dead_worker_had_goes_back_to_its_queue_and_not_before(database: str) -> None:
    """Nobody in the open part of DBOS looks for dead workers, and what they have counts against the limits."""
    lost, work = Work(held=True), Work()
    first = DbosDispatcher(database, caps=WorkerLimits(concurrency=1))
    await first.start(lost.drive, "w1", 1)
    await first.submit("r", 0)
    await until(lambda: lost.now == {"r"})
    await first.stop()  # its process would be gone now; the slice is left as one that it has
    second = DbosDispatcher(database, caps=WorkerLimits(concurrency=1))
    await second.start(work.drive, "w2", 1)
    try:
        await second.submit("s", 0)
        assert await second.reap(frozenset({"w1", "w2"})) == 0
        assert work.driven == {}
        assert await second.reap(frozenset({"w2"})) == 1
        await until(lambda: work.driven == {("r", 0): 1, ("s", 0): 1})
        assert work.most == 1, "what is given back keeps to the limit of its queue"
    finally:
        lost.go.set()
        await second.stop()


@pytest.mark.campaign
async def test_dbos_takes_up_its_work_as_soon_as_the_server_is_back(
    server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself it sleeps for longer after each attempt, up to 90 seconds, and sleeps on when the server is there."""
    sleep, slept = time.sleep, [0.0]

    def shortened(seconds: float) -> None:
        slept.append(seconds)
        sleep(min(seconds, 0.05))

    monkeypatch.setattr(time, "sleep", shortened)
    work = Work()
    async with started("dbos", server.database(), work) as one:
        await one.submit("r", 0)
        await until(lambda: bool(work.driven))
        await asyncio.to_thread(server.stop, "immediate")
        await asyncio.sleep(1.0)
        await asyncio.to_thread(server.start)
        await one.submit("s", 0)
        await until(lambda: bool(work.driven["s", 0]))
    assert max(slept) <= 1.5, "the first of its pauses"


async def test_a_process_has_one_and_its_name_is_its_own(database: str) -> None:
    one, two = DbosDispatcher(database), DbosDispatcher(database)
    with pytest.raises(ConfigError, match="'local' is not allowed as a worker name"):
        await one.start(Work().drive, "local", 1)
    await one.start(Work().drive, "w1", 1)
    try:
        with pytest.raises(ConfigError, match="this process has a started DBOS dispatcher already"):
            await two.start(Work().drive, "w2", 1)
    finally:
        await one.stop()


async def test_what_is_submitted_belongs_to_a_version_that_no_build_changes(database: str) -> None:
    """DBOS's own version has the source and its release in it: after an upgrade nobody would take what was left."""
    outside, work = DbosDispatcher(database), Work()
    async with started("dbos", database, work) as one:
        await outside.submit("r", 0)
        await one.submit("s", 0)
        await until(lambda: len(work.driven) == 2)
        with psycopg.connect(database) as db:
            found = db.execute("SELECT DISTINCT application_version FROM orchestrator_dbos.workflow_status")
            assert found.fetchall() == [("agent-journal-v1",)]
    await outside.stop()


async def test_threads_of_the_loop_work_on_after_it_has_stopped(database: str) -> None:
    """DBOS puts threads of its own in their place, and stops them with itself."""
    one = DbosDispatcher(database)
    await one.start(Work().drive, "w1", 1)
    await one.stop()
    assert await asyncio.to_thread(lambda: 7) == 7


async def test_nothing_that_stands_in_the_tables_of_dbos_is_a_pickle(database: str) -> None:
    work = Work()
    async with started("dbos", database, work) as one:
        await one.submit("r", 3)
        await until(lambda: bool(work.driven))
        with psycopg.connect(database) as db:
            tables = db.execute(
                "SELECT table_name, column_name FROM information_schema.columns "
                "WHERE table_schema = 'orchestrator_dbos' AND column_name IN ('inputs', 'serialization')"
            ).fetchall()
            found = {}
            for table, column in tables:
                query = f"SELECT {column} FROM orchestrator_dbos.{table}"  # noqa: S608 - names from the catalogue
                found[table, column] = [row[0] for row in db.execute(query.encode()).fetchall() if row[0]]
            steps = db.execute("SELECT count(*) FROM orchestrator_dbos.operation_outputs").fetchone()
    assert steps == (0,), "no step of a run is one of DBOS: nothing is replayed, in whatever order"
    kinds = {value for (_, column), values in found.items() if column == "serialization" for value in values}
    inputs = [value for (_, column), values in found.items() if column == "inputs" for value in values]
    assert kinds == {"portable_json"}
    assert [json.loads(value)["positionalArgs"] for value in inputs] == [["r", 3]], inputs


@pytest.mark.parametrize(
    ("caps", "said"),
    [
        ({"concurrency": -1}, "concurrency is -1"),
        ({"rate": 1.5}, "rate is 1.5"),
        ({"rate": 1, "period": 0}, "period is 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(caps: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        WorkerLimits(**caps)


def test_the_configuration_for_dbos_has_only_members_that_dbos_knows() -> None:
    from dbos import DBOSConfig

    configured = DbosDispatcher("postgresql://u@h/d")._config("w")
    assert configured.keys() <= DBOSConfig.__annotations__.keys()
    assert (configured["executor_id"], configured["dbos_system_schema"]) == ("w", "orchestrator_dbos")


def test_a_stopped_dispatcher_of_dbos_opens_no_connection() -> None:
    dispatcher = DbosDispatcher("postgresql://u@localhost:1/d")
    connections = dispatcher._connections()
    dispatcher._over.set()
    with pytest.raises(RuntimeError, match="this worker has stopped"):
        connections.connect()


def test_procrastinate_says_that_it_has_no_limits_over_workers() -> None:
    with pytest.raises(ConfigError, match="use DBOS for those"):
        ProcrastinateDispatcher("postgresql://u@h/d", caps=WorkerLimits(concurrency=2))


@each
def test_an_address_that_is_none_of_a_database_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="postgresql://"):
        KINDS[kind]("journal.db")
