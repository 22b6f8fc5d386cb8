"""DBOS as the dispatcher: a queue in the PostgreSQL database of the journal that stores only the ids of runs.

DBOS records one workflow for each (run, slice), assigns it to one executor, applies the limits of the queue and keeps
its queue when the server restarts. The journal needs nothing else from it. No step of a run is a DBOS step,
therefore:

- Nothing has to be replayed in order.
- No application version binds a run.
- Write access to the database does not lead to code execution: workers unpickle nothing.

Only the public interface of DBOS is used. All its workflows are one function that never changes, so its application
version is a constant. The open-source part of DBOS does not detect dead executors: `reap` returns their workflows to
the queue.
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
"""Version of the rows in DBOS's tables: a name, a run and a number. The journal has its own version of run data."""
QUEUE = "orchestrator-runs"
WORKFLOW = "orchestrator.drive"
NOBODY = "-"
"""Partition of runs without a tenant."""
_OVER = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
_POLL = 0.1
_OUTAGE = RetryPolicy(UNLIMITED, base=_POLL, max_delay=_POLL, deadline=20.0, jitter=0.0)
"""How long to wait for a database connection, so that callers that wait for one of the pool do not fail."""
_FROZEN = 10.0
"""Seconds after which the server closes a session that stopped inside a transaction. A frozen process keeps its locks,
which may block every other worker. The 60 seconds of DBOS apply only to connections that it opens itself."""
_ANY = 1_000_000
_KEPT = 3600.0
"""Seconds that a finished workflow stays in DBOS's tables."""
_CLEANS = 60.0
_MOST = 1000
"""`_CLEANS` is the seconds between two removals of finished workflows; `_MOST` is how many one removal takes."""

_active: list[DbosDispatcher] = []
"""The started dispatcher of this process: a process can have only one DBOS."""


class DbosDispatcher:
    """Place runs on the workers of a database with DBOS. A dispatcher that is not started can only submit runs.

    Args:
        dsn: PostgreSQL address of the journal.
        caps: Limits for all workers together. If workers state different limits, the last one to start counts.
        schema: Database schema of DBOS's own tables.

    Raises:
        ConfigError: The address is not a PostgreSQL address.
        MissingExtra: The extra `dbos` is not installed.
    """

    def __init__(
        self,
        dsn: str | JournalAddress,
        *,
        caps: WorkerLimits | None = None,
        schema: str = "orchestrator_dbos",
    ) -> None:
        try:
            import dbos
        except ImportError as error:
            raise MissingExtra("DBOS", "dbos", "workers") from error
        self._dbos: Any = dbos
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
            raise ConfigError("this process has a started DBOS dispatcher already; stop that one first")
        if name in ("", "local"):
            raise ConfigError(
                f"{name!r} is not allowed as a worker name, because DBOS gives a name's work to each process of it; "
                "choose a unique name"
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
        with contextlib.suppress(StoreDown):  # the tables do not exist yet, or the server is down
            # Before DBOS takes anything: it applies the limits that it finds and reads changed ones only later.
            await self._call("register_queue", QUEUE, **limits)
        try:
            DBOS(config=self._config(name))
            DBOS.launch()  # in this event loop; otherwise DBOS runs workflows on its own thread
            self._launched = True
            logging.getLogger("dbos").setLevel(logging.ERROR)
            await DBOS.register_queue_async(QUEUE, **limits)
        except Exception as error:
            raise StoreDown(f"DBOS could not start: {_said(error, self._address)}") from error
        if DBOS.executor_id != name:
            raise ConfigError(
                f"this process already runs DBOS as executor {DBOS.executor_id!r}; start the worker in another process"
            )

    def _config(self, name: str) -> dict[str, Any]:
        return {
            "name": APPLICATION,
            "system_database_url": self._address.secret,
            "dbos_system_schema": self._schema,
            "application_version": VERSION,
            "executor_id": name,
            "serializer": self._dbos.DBOSPortableJSONSerializer(),
            "log_level": "CRITICAL",  # until it has started: we report a failed start ourselves, once
            "system_database_engine": self._connections(),
        }

    def _connections(self) -> Any:
        """Return connections for DBOS that wait for an unavailable server, and fail once the dispatcher has stopped.

        Without the wait, each thread of DBOS would repeat a failed statement with doubled delays of up to 90 seconds:
        it would still sleep after the server has come back, and the process could not exit before.
        """
        from sqlalchemy import create_engine, event, make_url

        url = make_url(self._address.secret).set(drivername="postgresql+psycopg")
        about = {"application_name": APPLICATION, "connect_timeout": 10}
        pool = create_engine(url, pool_size=5, max_overflow=0, pool_pre_ping=True, connect_args=about)

        def connect(dialect: Any, _: Any, given: Any, named: Any) -> Any:
            def opened() -> Any:
                if self._over.is_set():
                    raise RuntimeError("this worker has stopped")
                db = dialect.connect(*given, **named)
                with db.cursor() as cursor:
                    cursor.execute(_bound())
                db.commit()
                return db

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
        # Always partitioned: otherwise the submitter would have to know the limits that the workers were started with.
        limits["partition_concurrency"] = caps.tenant_concurrency or caps.concurrency or _ANY
        if caps.rate:
            limits["limiter"] = {"limit": caps.rate, "period": caps.period}
        return limits

    async def driven(self, run_id: str, slice: int) -> None:  # noqa: A002 - the protocol's name
        """Drive a slice on the worker's own event loop, whichever loop DBOS uses for its workflows."""
        if self._drive is None or self._loop is None:
            await asyncio.Event().wait()  # stopping: the slice stays with this executor until it is reaped
        else:
            driving = self._drive(run_id, slice)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_only(driving), self._loop))

    async def reap(self, living: frozenset[str]) -> int:
        """Return the slices of executors outside `living` to the queue; return how many. Raises StoreDown."""
        taken = await self._call("list_workflows", status="PENDING", queue_name=QUEUE, load_input=False)
        lost = [one.workflow_id for one in taken if one.executor_id not in living]
        if lost:
            # Without a queue name the workflow would go to a queue without limits.
            await self._call("resume_workflows", lost, queue_name=QUEUE)
        if (now := time.monotonic()) >= self._cleans:
            self._cleans = now + _CLEANS
            # Delete old finished workflows, which DBOS keeps for ever and nothing reads again.
            before = datetime.now(UTC) - timedelta(seconds=_KEPT)
            about = {"status": list(_OVER), "queue_name": QUEUE, "completed_before": before.isoformat()}
            over = await self._call(
                "list_workflows", **about, limit=_MOST, load_input=False, load_output=False
            )
            if over:
                await self._call("delete_workflows", [one.workflow_id for one in over])
            if len(over) == _MOST:
                self._cleans = now
        return len(lost)

    async def cease(self) -> None:
        """Stop taking slices. Running slices continue and belong to this worker until it is known to be dead."""
        if self not in _active:
            return
        _active.remove(self)
        self._over.set()
        # Running workflows end without DBOS, which logs errors for them: the next `reap` repeats them.
        logging.getLogger("dbos").setLevel(logging.CRITICAL + 1)
        loop = asyncio.get_running_loop()
        # DBOS made its own executor the default of the loop and shuts it down: `asyncio.to_thread` must still work.
        loop.set_default_executor(ThreadPoolExecutor())
        with ThreadPoolExecutor(1, thread_name_prefix="dbos end") as aside:
            await loop.run_in_executor(aside, self._dbos.DBOS.destroy)
            if self._pool is not None:
                await loop.run_in_executor(aside, self._pool.dispose)

    async def stop(self) -> None:
        """Stop taking slices and close the database connections."""
        await self.cease()
        self._drive = None
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.destroy)

    # ---- for workers and submitters ----

    async def submit(self, run_id: str, slice: int, *, tenant: str = "") -> None:  # noqa: A002 - the protocol's name
        """Put a slice of a run into the queue. A finished slice is queued again. Raises StoreDown."""
        name = f"{run_id}:{slice}"
        if not await self._is_over(name):
            await self._put(name, run_id, slice, tenant)
            return
        # The worker that drove this slice left the run where it was. DBOS counts that as finished, and an id is
        # used only once.
        # Under a lock, because otherwise one worker could delete the workflow that another has just queued again.
        async with self._alone(name):
            if await self._is_over(name):
                await self._call("delete_workflow", name)
                await self._put(name, run_id, slice, tenant)

    async def _is_over(self, name: str) -> bool:
        known = await self._call("list_workflows", workflow_ids=[name], load_input=False, load_output=False)
        return any(one.status in _OVER for one in known)

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """Hold a lock on this workflow name. Raises StoreDown."""
        import psycopg

        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)
        try:
            async with await psycopg.AsyncConnection.connect(self._address.secret, connect_timeout=10) as db:
                await db.execute(_bound())
                await db.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
                yield
        except psycopg.Error as error:
            raise StoreDown(f"DBOS cannot take a run: {_said(error, self._address)}") from error

    async def _put(self, name: str, run_id: str, slice: int, tenant: str) -> None:  # noqa: A002 - the protocol's name
        options: dict[str, Any] = {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE,
            "workflow_id": name,
            "queue_partition_key": tenant or NOBODY,
            "app_version": VERSION,
            "serialization_type": self._dbos.WorkflowSerializationFormat.PORTABLE,
        }
        await self._call("enqueue", options, run_id, slice)

    async def _call(self, method: str, *about: Any, **options: Any) -> Any:
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


def registered(library: Any) -> None:
    """Register the one workflow with DBOS."""

    async def drive(run_id: str, slice: int) -> None:  # noqa: A002 - the protocol's name
        for dispatcher in _active:
            await dispatcher.driven(run_id, slice)

    library.workflow(name=WORKFLOW, max_recovery_attempts=None)(drive)


async def _only(driving: Any) -> None:
    await driving


def _url(given: str | JournalAddress) -> JournalAddress:
    """Return the address as DBOS expects it. Raises ConfigError."""
    address = address_of(given)
    if isinstance(address, JournalAddress) and "://" in address.secret:
        return address
    raise ConfigError("DBOS needs the address of a database: postgresql://user:password@host:port/database")


def _said(error: Exception, address: JournalAddress) -> str:
    """Return the first line of an error message without the password of the address."""
    return hidden(f"{type(error).__name__}: {error}".split("\n", 1)[0], address)
