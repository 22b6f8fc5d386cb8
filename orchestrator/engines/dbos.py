"""DBOS as the dispatcher: a queue in the PostgreSQL database of the journal, and nothing of the runs but their ids.

DBOS records a workflow for each (run, slice), lets one executor take it, keeps to the limits of the queue, and forgets
nothing at a restart of the server. What the journal needs of it is only that: no step of a run is a step of DBOS, so
nothing has to be replayed in order, no version of an application binds a run, and nobody who can write to the
database has code run by what a worker unpickles. Only its public interface is used.

Its workflows are one function that never changes, so its application version is a constant. Nobody in the open part
of DBOS looks for dead executors: `reap` gives what they had taken back to its queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.engines.dispatcher import Drive, WorkerLimits
from orchestrator.errors import ConfigError, MissingExtra, StoreDown
from orchestrator.journal.address import JournalAddress, address_of, hidden
from orchestrator.llm.retry import UNLIMITED, RetryPolicy

APPLICATION = "orchestrator"
VERSION = "agent-journal-v1"
"""Version of what stands in DBOS's tables: a name, a run and a number. That of a run's data is the journal's own."""
QUEUE = "orchestrator-runs"
WORKFLOW = "orchestrator.drive"
NOBODY = "-"
"""Partition of runs without a tenant."""
_OVER = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
_POLL = 0.1
_OUTAGE = RetryPolicy(UNLIMITED, base=_POLL, max_delay=_POLL, deadline=20.0, jitter=0.0)
"""How long a connection is waited for, so that whoever waits for one of the pool is not refused."""
_FROZEN = 10.0
"""Seconds after which the server ends a session that stopped between two statements: what it had locked keeps others
waiting, all of them perhaps, for as long as its process is frozen. DBOS's own 60 are for connections that it makes."""
_ANY = 1_000_000
_KEPT = 3600.0
"""Seconds that what is over stays in DBOS's tables."""
_CLEANS = 60.0
_MOST = 1000
"""Seconds between two removals of it where nothing is left, and how much goes at once."""

_active: list[DbosDispatcher] = []
"""The one of this process that is started: DBOS itself is one in each process."""


class DbosDispatcher:
    """Places runs on the workers of a database. Not started, it only submits.

    `dsn` is that of the journal; DBOS's own tables are in `schema`. `caps` hold for all workers together: of several
    that say different things the last one to start counts. Raises ConfigError, and MissingExtra without the
    extra `dbos`.
    """

    def __init__(
        self,
        dsn: str | JournalAddress,
        *,
        caps: WorkerLimits | None = None,
        schema: str = "orchestrator_dbos",
    ) -> None:
        self._dbos = _library()
        self._address = _url(dsn)
        self._caps = caps or WorkerLimits()
        self._schema = schema
        self._client: Any = None
        self._connecting = asyncio.Lock()
        self._drive: Drive | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: Any = None
        self._over = threading.Event()
        self._launched = False
        self._cleans = 0.0

    # ---- a worker ----

    async def start(self, drive: Drive, name: str, slots: int) -> None:
        """Take slices from the queue as executor `name`. Raises ConfigError, StoreDown."""
        if _active:
            raise ConfigError("a process has one DBOS, and one dispatcher of this process is started already")
        if name in ("", "local"):
            raise ConfigError(
                f"{name!r} is no name for a worker: DBOS gives what one executor had to the next one of its name"
            )
        self._drive, self._loop = drive, asyncio.get_running_loop()
        _active.append(self)
        try:
            await self._begun(name, slots)
        except BaseException:
            await self.stop()
            raise

    async def _begun(self, name: str, slots: int) -> None:
        DBOS = self._dbos.DBOS  # noqa: N806 - a class
        registered(DBOS)
        limits = self._limits(slots) | {"on_conflict": "always_update"}
        with contextlib.suppress(StoreDown):  # there are no tables yet, or no server
            # Before it takes anything: it goes by the limits that it finds, and looks for others later.
            await self._told("register_queue", QUEUE, **limits)
        try:
            DBOS(config=self._config(name))
            DBOS.launch()  # here, in the loop: else what it takes from the queue runs on a thread's own
            self._launched = True
            logging.getLogger("dbos").setLevel(logging.ERROR)
            await DBOS.register_queue_async(QUEUE, **limits)
        except Exception as error:
            raise StoreDown(f"DBOS could not start: {_said(error, self._address)}") from error
        if DBOS.executor_id != name:
            raise ConfigError(
                f"this process runs a DBOS of its own, as executor {DBOS.executor_id!r}; workers take another"
            )

    def _config(self, name: str) -> dict[str, Any]:
        return {
            "name": APPLICATION,
            "system_database_url": self._address.secret,
            "dbos_system_schema": self._schema,
            "application_version": VERSION,
            "executor_id": name,
            "serializer": self._dbos.DBOSPortableJSONSerializer(),
            "log_level": "CRITICAL",  # until it has started: what it cannot is told once, by us
            "system_database_engine": self._connections(),
        }

    def _connections(self) -> Any:
        """Return connections for DBOS that wait for a server that is away, and are refused once it is over.

        Its threads repeat for ever what the server did not take, each time after twice as long, up to 90 seconds: the
        server were back, and they slept on; and the process would not end before.
        """
        from sqlalchemy import create_engine, event, make_url

        url = make_url(self._address.secret).set(drivername="postgresql+psycopg")
        about = {"application_name": APPLICATION, "connect_timeout": 10}
        pool = create_engine(url, pool_size=5, max_overflow=0, pool_pre_ping=True, connect_args=about)

        def connect(dialect: Any, _: Any, given: Any, named: Any) -> Any:
            def opened() -> Any:
                if self._over.is_set():
                    raise RuntimeError("this worker has stopped")
                return _bounded(dialect.connect(*given, **named))

            def may_retry(error: Exception) -> bool:
                return self._launched and isinstance(error, dialect.dbapi.OperationalError)

            return _OUTAGE.call_sync(opened, may_retry=may_retry, sleep=self._over.wait)

        def close(_: Any, record: Any) -> None:
            if self._over.is_set():
                record.invalidate()

        event.listen(pool, "do_connect", connect)
        event.listen(pool, "checkin", close)
        self._over.clear()
        self._pool, self._launched = pool, False
        return pool

    def _limits(self, slots: int) -> dict[str, Any]:
        caps = self._caps
        limits: dict[str, Any] = {"polling_interval_sec": _POLL}
        limits["worker_concurrency"] = min(slots, caps.concurrency) if caps.concurrency else slots
        if caps.concurrency:
            limits["global_concurrency"] = caps.concurrency
        # Always in partitions: else whoever submits had to know which limits the workers were started with.
        limits["partition_concurrency"] = caps.tenant_concurrency or caps.concurrency or _ANY
        if caps.rate:
            limits["limiter"] = {"limit": caps.rate, "period": caps.period}
        return limits

    async def driven(self, run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        """Drive a slice on the worker's own loop, whichever DBOS runs its workflows on."""
        if self._drive is None or self._loop is None:
            await asyncio.Event().wait()  # it stops: the slice stays this executor's, until it is reaped
        else:
            driving = self._drive(run_id, slice)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_only(driving), self._loop))

    async def reap(self, living: frozenset[str]) -> int:
        """Give back to the queue what executors have that are not among the living. Raises StoreDown."""
        taken = await self._told("list_workflows", status="PENDING", queue_name=QUEUE, load_input=False)
        lost = [one.workflow_id for one in taken if one.executor_id not in living]
        if lost:
            # Without its queue a workflow goes to one that no limit holds for.
            await self._told("resume_workflows", lost, queue_name=QUEUE)
        if (now := time.monotonic()) >= self._cleans:
            self._cleans = now + _CLEANS
            if await self._clean() == _MOST:
                self._cleans = now
        return len(lost)

    async def _clean(self) -> int:
        """Remove what is over for long: DBOS keeps it for ever, and nobody asks for it any more. Return how many."""
        before = datetime.now(UTC) - timedelta(seconds=_KEPT)
        about = {"status": list(_OVER), "queue_name": QUEUE, "completed_before": before.isoformat()}
        over = await self._told("list_workflows", **about, limit=_MOST, load_input=False, load_output=False)
        if over:
            await self._told("delete_workflows", [one.workflow_id for one in over])
        return len(over)

    async def cease(self) -> None:
        """Take nothing more. What is under way goes on, and stays this worker's until it is known as dead."""
        if self not in _active:
            return
        _active.remove(self)
        self._over.set()
        # What is under way ends without it, which it would show as errors: whoever reaps has it driven once more.
        logging.getLogger("dbos").setLevel(logging.CRITICAL + 1)
        loop = asyncio.get_running_loop()
        # DBOS made its own threads the loop's, and they go: `asyncio.to_thread` is to work on.
        loop.set_default_executor(ThreadPoolExecutor())
        with ThreadPoolExecutor(1, thread_name_prefix="dbos end") as aside:
            await loop.run_in_executor(aside, self._dbos.DBOS.destroy)
            if self._pool is not None:
                await loop.run_in_executor(aside, self._pool.dispose)

    async def stop(self) -> None:
        """Take nothing more, and let go of the database."""
        await self.cease()
        self._drive = None
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.destroy)

    # ---- everybody ----

    async def submit(self, run_id: str, slice: int, *, tenant: str = "") -> None:  # noqa: A002 - the seam's word
        """Put a slice of a run into the queue; one that is over there is put in anew. Raises StoreDown."""
        name = f"{run_id}:{slice}"
        if not await self._is_over(name):
            await self._put(name, run_id, slice, tenant)
            return
        # Whoever drove it left the run where it was: to DBOS that is an end, and an id is used once. One at a time, or
        # what another worker has put in anew meanwhile, and somebody drives, was taken away.
        async with self._alone(name):
            if await self._is_over(name):
                await self._told("delete_workflow", name)
                await self._put(name, run_id, slice, tenant)

    async def _is_over(self, name: str) -> bool:
        known = await self._told("list_workflows", workflow_ids=[name], load_input=False, load_output=False)
        return any(one.status in _OVER for one in known)

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """Keep others of this name waiting. Raises StoreDown."""
        import psycopg

        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)
        try:
            async with await psycopg.AsyncConnection.connect(self._address.secret, connect_timeout=10) as db:
                await db.execute(_bound())
                await db.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
                yield
        except psycopg.Error as error:
            raise StoreDown(f"DBOS cannot take a run: {_said(error, self._address)}") from error

    async def _put(self, name: str, run_id: str, slice: int, tenant: str) -> None:  # noqa: A002 - the seam's word
        options: dict[str, Any] = {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE,
            "workflow_id": name,
            "queue_partition_key": tenant or NOBODY,
            "app_version": VERSION,
            "serialization_type": self._dbos.WorkflowSerializationFormat.PORTABLE,
        }
        await self._told("enqueue", options, run_id, slice)

    async def _told(self, method: str, *about: Any, **options: Any) -> Any:
        """Call a method of DBOS's client. Raises StoreDown."""
        try:
            async with self._connecting:
                if self._client is None:
                    self._client = await asyncio.to_thread(self._connected)
            return await getattr(self._client, f"{method}_async")(*about, **options)
        except Exception as error:
            raise StoreDown(
                f"DBOS cannot {method.replace('_', ' ')}: {_said(error, self._address)}"
            ) from error

    def _connected(self) -> Any:
        return self._dbos.DBOSClient(
            system_database_url=self._address.secret,
            dbos_system_schema=self._schema,
            serializer=self._dbos.DBOSPortableJSONSerializer(),
            application_name=APPLICATION,
            retry_connection_errors=False,
            lazy=True,
            sys_db_idle_transaction_timeout_sec=_FROZEN,
        )


def _bound() -> bytes:
    return b"SET idle_in_transaction_session_timeout = %d" % (_FROZEN * 1000)


def _bounded(db: Any) -> Any:
    """Return a new connection on which nobody can be frozen for long."""
    with db.cursor() as cursor:
        cursor.execute(_bound())
    db.commit()
    return db


def registered(library: Any) -> None:
    """Make the one workflow known to DBOS."""

    async def drive(run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        for dispatcher in _active:
            await dispatcher.driven(run_id, slice)

    library.workflow(name=WORKFLOW, max_recovery_attempts=None)(drive)


async def _only(driving: Any) -> None:
    await driving


def _url(given: str | JournalAddress) -> JournalAddress:
    """Return an address in the form that DBOS takes. Raises ConfigError."""
    address = address_of(given)
    if isinstance(address, JournalAddress) and "://" in address.secret:
        return address
    raise ConfigError("DBOS takes the address of a database as postgresql://user:password@host:port/database")


def _library() -> Any:
    try:
        import dbos
    except ImportError as error:
        raise MissingExtra("DBOS", "dbos") from error
    return dbos


def _said(error: Exception, address: JournalAddress) -> str:
    """Return the first line of what an error says, without the password that the address may hold."""
    return hidden(f"{type(error).__name__}: {error}".split("\n", 1)[0], address)
