"""Procrastinate as the dispatcher: jobs in the PostgreSQL database of the journal, without DBOS.

Procrastinate has no limits across workers, and it does not check which worker finishes a job. A frozen worker that
was taken for dead and wakes up marks its job as done while its successor works on it; if the successor died too, the
job would not be repeated. This does no harm here: the journal accepts no writes of the woken worker, because its
epoch has passed, and a sweep submits the run again.
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
"""Seconds without a heartbeat after which a worker counts as dead."""
_POLL = 0.5
_PATIENCE = 5.0
"""Seconds to wait for a connection, and for running jobs when the worker stops."""
_RESTARTS = RetryPolicy(UNLIMITED, base=1.0, max_delay=1.0, deadline=0.0, jitter=0.0)
"""How a worker of the library is restarted that ended with its connection, until `cease`."""
_POOL = "orchestrator-procrastinate"
"""Name of our connection pool: the process may have others of this library."""
_SCHEMA_LOCK = 7_203_117
"""Advisory lock for the creation of the tables."""

_log = logging.getLogger("orchestrator")


class ProcrastinateDispatcher:
    """Place runs on the workers of a database with Procrastinate.

    A dispatcher that is not started can only submit runs.

    Args:
        dsn: PostgreSQL address of the journal.
        caps: Must be empty: Procrastinate has no limits across workers.
        schema: Database schema of Procrastinate's own tables.
        clock: Clock for restarts.

    Raises:
        ConfigError: `caps` has a limit, `schema` is no plain name, or the address is not a PostgreSQL address.
        MissingExtra: The extra `procrastinate` is not installed.
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
            raise ConfigError("Procrastinate has no limits across workers; use DBOS for those")
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
        # While the server is down the library logs tracebacks and one line each second; we log each restart instead.
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
        logging.getLogger("psycopg.pool").addFilter(_not_ours)
        self._working = asyncio.create_task(self._work(name, slots), name=f"procrastinate {name}")

    async def _work(self, name: str, slots: int) -> None:
        """Take jobs, and start again after the server was down: a worker of Procrastinate ends with its connection."""

        def warn(one: RetryAttempt) -> None:
            if one.error is not None:
                does = "begins anew" if one.outcome == "retry" else "ends"
                _log.warning("worker %s %s: %s", name, does, self._said(one.error))

        with contextlib.suppress(Exception):  # raised only after `cease`
            await _RESTARTS.call(
                self._worked,
                name,
                slots,
                may_retry=lambda _: not self._ceased,  # there is work to do, for any error
                on_attempt=warn,
                clock=self._clock,
            )

    async def _worked(self, name: str, slots: int) -> None:
        """Take jobs as long as the library's worker runs. Raises StoreDown if it ends before `cease`."""
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
        if not self._ceased:  # after `cease` the cancellation is a request to end, and it returns
            raise StoreDown("the worker of Procrastinate ended with its connection")

    async def _driven(self, run_id: str, slice: int) -> None:  # noqa: A002 - the protocol's name
        if self._drive is not None:
            await self._drive(run_id, slice)

    async def reap(self, living: frozenset[str]) -> int:
        """Queue the jobs of workers without heartbeat again; return how many. Raises StoreDown."""
        del living  # the library has its own heartbeats
        try:
            jobs = self._app.job_manager
            lost = list(await jobs.get_stalled_jobs(queue=QUEUE, seconds_since_heartbeat=STALLED))
            for job in lost:
                await jobs.retry_job(job)
        except Exception as error:
            raise StoreDown(f"Procrastinate cannot look for lost jobs: {self._said(error)}") from error
        return len(lost)

    async def cease(self) -> None:
        """Stop taking jobs. A drive of more than five seconds ends for Procrastinate but continues here."""
        if self._working is not None and not self._ceased:
            self._ceased = True
            self._working.cancel()

    async def stop(self) -> None:
        """Stop taking jobs and close the database connections."""
        await self.cease()
        self._drive = None
        working, self._working = self._working, None
        if working is not None:
            # Its end writes to a server that may be down; a sweep repairs what is missing then.
            await asyncio.wait((working,), timeout=2 * _PATIENCE)
            working.cancel()
        app, self._app = self._app, None
        if app is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(app.close_async(), 2 * _PATIENCE)

    # ---- for workers and submitters ----

    async def submit(self, run_id: str, slice: int, *, tenant: str = "") -> None:  # noqa: A002 - the protocol's name
        """Put a job for a slice into the queue, unless one is queued already. Raises StoreDown."""
        del tenant  # Procrastinate has no tenant limits
        try:
            await self._opened()
            job = self._app.configure_task(TASK, queue=QUEUE, queueing_lock=f"{run_id}:{slice}")
            with contextlib.suppress(self._library.exceptions.AlreadyEnqueued):
                await job.defer_async(run_id=run_id, slice=slice)
        except StoreDown:
            raise
        except Exception as error:
            raise StoreDown(f"Procrastinate cannot take a run: {self._said(error)}") from error

    # ---- private ----

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
            # Create the tables if they do not exist.
            import psycopg
            from procrastinate.schema import SchemaManager

            options = f"-c search_path={self._schema}"
            async with await psycopg.AsyncConnection.connect(self._address.secret, options=options) as db:
                await db.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
                found = await db.execute("SELECT to_regclass(%s)", (f"{self._schema}.procrastinate_jobs",))
                if await found.fetchone() == (None,):
                    await db.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}".encode())
                    await db.execute(SchemaManager.get_schema().encode())
            await app.open_async()
        except Exception as error:
            await app.close_async()
            raise StoreDown(f"Procrastinate could not start: {self._said(error)}") from error
        self._app = app

    def _said(self, error: Exception) -> str:
        return hidden(f"{type(error).__name__}: {error}".split("\n", 1)[0], self._address)


async def _one_by_one(db: Any) -> None:
    """Commit each statement at once.

    A worker that freezes between a statement and its commit would keep a job locked for as long as it is frozen, and
    would block the sweeps of all other workers that submit the run.
    """
    await db.set_autocommit(True)


def _not_ours(record: logging.LogRecord) -> bool:
    return _POOL not in record.getMessage()


def _library() -> Any:
    try:
        import procrastinate
    except ImportError as error:
        raise MissingExtra("Procrastinate", "procrastinate", "workers") from error
    return procrastinate
