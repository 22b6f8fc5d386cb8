"""Procrastinate as the dispatcher: jobs in the PostgreSQL database of the journal, without DBOS.

What it has not: limits over all workers, and a check of who ends a job. A worker that was frozen, taken for dead and
wakes marks a job done that its successor works on, and nobody would repeat it if that one died too: the journal lets
the woken one write nothing (its epoch has passed), and a sweep tells of the run again. So it does no harm here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from orchestrator.engines.dispatcher import Drive, WorkerLimits
from orchestrator.errors import ConfigError, MissingExtra, StoreDown
from orchestrator.journal.address import JournalAddress, address_of, hidden
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.llm.retry import UNLIMITED, RetryAttempt, RetryPolicy

QUEUE = "orchestrator-runs"
TASK = "orchestrator.drive"
HEARTBEAT = 1.0
"""Seconds between two heartbeats of a worker."""
STALLED = 5.0
"""Seconds without one after which a worker counts as dead."""
_POLL = 0.5
_PATIENCE = 5.0
"""Seconds that a connection is waited for, and jobs that are under way at the end."""
_RESTARTS = RetryPolicy(UNLIMITED, base=1.0, max_delay=1.0, deadline=0.0, jitter=0.0)
"""How a worker of the library that ended with its connection is started again, until `cease`."""
_POOL = "orchestrator-procrastinate"
"""Name of our connections: there may be others of their kind in the process."""
_SCHEMA_LOCK = 7_203_117
"""Advisory lock under which the tables are made."""

_log = logging.getLogger("orchestrator")


class ProcrastinateDispatcher:
    """Places runs on the workers of a database. Not started, it only submits.

    `dsn` is that of the journal; Procrastinate's tables are in `schema`. Raises ConfigError for caps, which it cannot
    keep to, and MissingExtra without the extra `procrastinate`.
    """

    def __init__(
        self,
        dsn: str | JournalAddress,
        *,
        caps: WorkerLimits | None = None,
        schema: str = "orchestrator_procrastinate",
        clock: Clock | None = None,
    ) -> None:
        if caps not in (None, WorkerLimits()):
            raise ConfigError("Procrastinate has no limits over all workers; use DBOS for those")
        if not schema.isidentifier():
            raise ConfigError(f"schema is {schema!r}; it must be a plain name")
        address = address_of(dsn)
        if not isinstance(address, JournalAddress):
            raise ConfigError("Procrastinate needs the address of a database: postgresql://…")
        self._library = _library()
        self._address = address
        self._schema = schema
        self._clock: Clock = clock or SystemClock()
        self._app: Any = None
        self._drive: Drive | None = None
        self._working: asyncio.Task[None] | None = None
        self._ceased = False

    # ---- a worker ----

    async def start(self, drive: Drive, name: str, slots: int) -> None:
        """Take jobs from the queue. Raises StoreDown."""
        self._drive, self._ceased = drive, False
        await self._opened()
        # Of a server that is away it tells in pages of tracebacks and a line each second, we that it begins anew.
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
        logging.getLogger("psycopg.pool").addFilter(_not_ours)
        self._working = asyncio.create_task(self._work(name, slots), name=f"procrastinate {name}")

    async def _work(self, name: str, slots: int) -> None:
        """Work, again after the server was away: a worker of Procrastinate ends with its connection."""

        def warn(one: RetryAttempt) -> None:
            if one.error is not None:
                does = "begins anew" if one.outcome == "retry" else "ends"
                _log.warning("worker %s %s: %s", name, does, self._said(one.error))

        with contextlib.suppress(Exception):  # raised after `cease` only
            await _RESTARTS.call(
                self._worked,
                name,
                slots,
                may_retry=lambda _: not self._ceased,  # whatever ended it, there is work to be done
                on_attempt=warn,
                clock=self._clock,
            )

    async def _worked(self, name: str, slots: int) -> None:
        """Work as long as the library's worker does. Raises StoreDown where that ends before `cease`."""
        await self._app.run_worker_async(
            queues=[QUEUE],
            name=name,
            concurrency=slots,
            fetch_job_polling_interval=_POLL,
            update_heartbeat_interval=HEARTBEAT,
            stalled_worker_timeout=STALLED,
            shutdown_graceful_timeout=_PATIENCE,
            install_signal_handlers=False,
            delete_jobs="always",
        )
        if not self._ceased:  # after `cease` it takes the cancellation for a request to end, and returns
            raise StoreDown("the worker of Procrastinate ended with its connection")

    async def _driven(self, run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        if self._drive is not None:
            await self._drive(run_id, slice)

    async def reap(self, living: frozenset[str]) -> int:
        """Let jobs be done again whose workers beat no more. Raises StoreDown."""
        del living  # it has heartbeats of its own
        try:
            jobs = self._app.job_manager
            lost = list(await jobs.get_stalled_jobs(queue=QUEUE, seconds_since_heartbeat=STALLED))
            for job in lost:
                await jobs.retry_job(job)
        except Exception as error:
            raise StoreDown(f"Procrastinate cannot look for lost jobs: {self._said(error)}") from error
        return len(lost)

    async def cease(self) -> None:
        """Take nothing more. A drive that goes on for longer than five seconds ends for Procrastinate, not for us."""
        if self._working is not None and not self._ceased:
            self._ceased = True
            self._working.cancel()

    async def stop(self) -> None:
        """Take nothing more, and let go of the database."""
        await self.cease()
        self._drive = None
        working, self._working = self._working, None
        if working is not None:
            # Its end is to write to a server that may be away; what it leaves undone there a sweep makes good.
            await asyncio.wait((working,), timeout=2 * _PATIENCE)
            working.cancel()
        app, self._app = self._app, None
        if app is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(app.close_async(), 2 * _PATIENCE)

    # ---- everybody ----

    async def submit(self, run_id: str, slice: int, *, tenant: str = "") -> None:  # noqa: A002 - the seam's word
        """Put a job for a slice into the queue, unless one waits there. Raises StoreDown."""
        del tenant  # no limits of tenants
        try:
            await self._opened()
            job = self._app.configure_task(TASK, queue=QUEUE, queueing_lock=f"{run_id}:{slice}")
            with contextlib.suppress(self._library.exceptions.AlreadyEnqueued):
                await job.defer_async(run_id=run_id, slice=slice)
        except StoreDown:
            raise
        except Exception as error:
            raise StoreDown(f"Procrastinate cannot take a run: {self._said(error)}") from error

    # ---- inside ----

    async def _opened(self) -> None:
        if self._app is not None:
            return
        connector = self._library.PsycopgConnector(
            conninfo=self._address.secret,
            kwargs={"options": f"-c search_path={self._schema}"},
            configure=_one_by_one,
            name=_POOL,
            min_size=1,
            max_size=8,
            timeout=_PATIENCE,
        )
        app = self._library.App(connector=connector)
        app.task(name=TASK, queue=QUEUE)(self._driven)
        try:
            await self._made()
            await app.open_async()
        except Exception as error:
            await app.close_async()
            raise StoreDown(f"Procrastinate could not start: {self._said(error)}") from error
        self._app = app

    async def _made(self) -> None:
        """Make the tables where they are missing."""
        import psycopg
        from procrastinate.schema import SchemaManager

        options = f"-c search_path={self._schema}"
        async with await psycopg.AsyncConnection.connect(self._address.secret, options=options) as db:
            await db.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
            found = await db.execute("SELECT to_regclass(%s)", (f"{self._schema}.procrastinate_jobs",))
            if await found.fetchone() == (None,):
                await db.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}".encode())
                await db.execute(SchemaManager.get_schema().encode())

    def _said(self, error: Exception) -> str:
        return hidden(f"{type(error).__name__}: {error}".split("\n", 1)[0], self._address)


async def _one_by_one(db: Any) -> None:
    """Let each statement stand for itself.

    Frozen between one and its commit, a worker would keep a job locked, and whoever tells of such a run waiting: the
    sweeps of all the others, for as long as it is frozen.
    """
    await db.set_autocommit(True)


def _not_ours(record: logging.LogRecord) -> bool:
    return _POOL not in record.getMessage()


def _library() -> Any:
    try:
        import procrastinate
    except ImportError as error:
        raise MissingExtra("Procrastinate", "procrastinate") from error
    return procrastinate
