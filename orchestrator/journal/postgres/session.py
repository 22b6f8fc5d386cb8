"""A connection that recovers: work that lost its connection is repeated until `patience` is over.

A lost connection is not a fault of the store: the work is repeated on another connection. Nothing here poisons the
store: the server is responsible for its disk, and it shuts down if a sync fails.

The work must be safe to repeat: reads are, and each kind of write can look up whether it landed (`writer`). A restart
of the server costs its callers only its duration.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import errors

from orchestrator.errors import Corrupt, JournalError, StoreDown
from orchestrator.journal.address import JournalAddress
from orchestrator.journal.postgres import schema
from orchestrator.llm.retry import UNLIMITED, RetryPolicy

LOST: Final = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.DatabaseDropped,
    errors.IdleInTransactionSessionTimeout,
    errors.TooManyConnections,
)
"""With the errors of class 08: the session has ended, or there is none yet."""

AGAIN: Final = (errors.DeadlockDetected, errors.SerializationFailure)
"""Nothing happened, because another transaction was in the way; the statement may be repeated at once."""

HOPELESS: Final = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "could not translate host name",
    "failed to resolve host",
    "invalid port number",
    "is not permitted to log in",
    "does not support SSL",
    "certificate verify failed",
    "sslmode value",
)
"""Parts of messages after which a retry is useless: libpq gives no code for them."""

POOL: Final = (
    "is behind a pool of connections that gives each transaction another session of the server, and locks, settings "
    "and prepared statements are a session's: use the server's own address, or a pool with pool_mode=session"
)

_SENTENCES: Final[tuple[tuple[type[Exception], type[JournalError], str, str], ...]] = (
    (errors.DiskFull, StoreDown, "full", "has no room left on its disk"),
    (errors.IoError, StoreDown, "io", "had an I/O error ({detail})"),
    (errors.DataCorrupted, Corrupt, "", "is damaged ({detail}): restore a backup"),
    (errors.IndexCorrupted, Corrupt, "", "is damaged ({detail}): restore a backup"),
    (errors.ReadOnlySqlTransaction, StoreDown, "other", "is read-only: a standby, or configured so"),
    (errors.InsufficientPrivilege, StoreDown, "other", "may not be used by this role ({detail})"),
    (errors.LockNotAvailable, StoreDown, "locked", "was locked by another session for too long"),
    (errors.InvalidSqlStatementName, StoreDown, "other", POOL),
    (errors.DuplicatePreparedStatement, StoreDown, "other", POOL),
    (errors.UndefinedTable, StoreDown, "other", "does not find its tables: they are gone, or it " + POOL),
    (errors.QueryCanceled, StoreDown, "locked", "took too long ({detail})"),
)


def is_lost(error: BaseException, connection: psycopg.Connection | None) -> bool:
    """Return whether the connection is lost, and with it the outcome of the last statement."""
    if connection is None or connection.closed or connection.broken:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    code = getattr(error, "sqlstate", None) or ""
    return isinstance(error, LOST) or code.startswith("08")


def is_hopeless(error: BaseException) -> bool:
    """Return whether a refused connection will always be refused again."""
    text = str(error)
    return any(sentence in text for sentence in HOPELESS)


def explain(error: BaseException, address: JournalAddress) -> JournalError:
    """Return the error to raise for an error of psycopg."""
    if isinstance(error, JournalError):
        return error
    for of, kind, label, sentence in _SENTENCES:
        if isinstance(error, of):
            said = f"journal {address} {sentence.format(detail=detail(error))}"
            return StoreDown(said, label) if kind is StoreDown else kind(said)
    if isinstance(error, psycopg.DataError | ValueError):
        return JournalError(f"journal {address} cannot hold this: {detail(error)}")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return unreachable(error, address)
    return StoreDown(f"journal {address} failed ({type(error).__name__}: {detail(error)})")


def unreachable(error: BaseException, address: JournalAddress) -> StoreDown:
    """Return the error for a server that does not answer."""
    return StoreDown(f"journal {address} cannot be reached: {detail(error)}", "io")


def detail(error: BaseException) -> str:
    """Return the message of the server or its client on one line."""
    diagnosis = getattr(error, "diag", None)
    said = getattr(diagnosis, "message_primary", None) or str(error)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return "; ".join(lines)[:500] or type(error).__name__


T = TypeVar("T")
Db: TypeAlias = psycopg.Connection[Any]

_OUTAGE: Final = RetryPolicy(UNLIMITED, base=0.01, max_delay=0.5, deadline=0.0, jitter=0.0)
"""Pauses between connection attempts, except before the first: mostly the server is still there."""
_CONFLICT: Final = RetryPolicy(attempts=10, base=0.0, deadline=0.0, jitter=0.0)
"""Attempts at one statement that conflicted with other transactions."""

CLIENT: Final = {
    "connect_timeout": "10",
    "application_name": "orchestrator",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "4",
    "tcp_user_timeout": "15000",  # milliseconds: a host that is gone sends no answer, not even a refusal
}
"""Defaults for settings that the address does not have."""

_abandoned: list[object] = []
"""Connections of a parent, kept by a forked child: closing them would reach the parent's server session."""


@dataclass(slots=True)
class _Outage:
    """The failed attempts at one piece of work."""

    end: float
    """Monotonic seconds: no connection attempt starts later."""
    losses: int = 0
    is_lost: bool = False
    """Whether the last error was a lost connection."""
    error: Exception | None = None
    """The last error."""


class PostgresSession:
    """One connection, for one thread at a time. `patience` is in seconds; each new connection is passed to `greet`."""

    def __init__(
        self,
        address: JournalAddress,
        *,
        tables: str,
        patience: float,
        create: bool = False,
        only_reads: bool = False,
        greet: Callable[[Db], None] = lambda _: None,
    ) -> None:
        self.address = address
        self.tables = tables
        self.stopping = threading.Event()
        """If set, no caller waits for a server any more."""
        self.hurried_until = 0.0
        """No caller waits for a server before this time (monotonic seconds)."""
        self._patience = patience
        self._create = create
        self._only_reads = only_reads
        self._greet = greet
        self._db: Db | None = None
        self._found = False
        """Whether a connection ever existed: then a fault of the address may be temporary."""
        self._parameters = client_parameters(address)

    @property
    def lost(self) -> bool:
        """Whether there is no connection now: the next call opens and greets one."""
        return self._db is None

    def run(self, work: Callable[[Db], T], patience: float | None = None) -> T:
        """Run some work, again on a new connection if this one is lost. Raises JournalError, and errors of the work."""
        outage = _Outage(time.monotonic() + (self._patience if patience is None else patience))
        try:
            return _OUTAGE.call_sync(
                self._attempt,
                work,
                may_retry=functools.partial(self._may_retry, outage),
                sleep=functools.partial(self._pause, outage),
            )
        except psycopg.Error as error:
            how = unreachable if outage.is_lost else explain
            raise how(error, self.address) from error
        finally:
            outage.error = None  # else frame and traceback would form a cycle

    def _attempt(self, work: Callable[[Db], T]) -> T:
        return _CONFLICT.call_sync(
            lambda: work(self._connected()), may_retry=lambda error: isinstance(error, AGAIN)
        )

    def _may_retry(self, outage: _Outage, error: Exception) -> bool:
        """Drop a lost connection, and return whether to try another one."""
        outage.error = error
        outage.is_lost = isinstance(error, psycopg.Error) and is_lost(error, self._db)
        if isinstance(error, errors.ReadOnlySqlTransaction) or outage.is_lost:
            self._drop()  # read-only after a failover: the next connection leads to the new primary
        if not outage.is_lost or (is_hopeless(error) and not self._found):
            return False
        outage.losses += 1
        now = time.monotonic()
        # Even in a hurry, work that lost its connection may try once.
        return now < outage.end and (outage.losses == 1 or now >= self.hurried_until)

    def _pause(self, outage: _Outage, seconds: float) -> None:
        """Wait, except before the first attempt to connect again. Raises the last error if the handle is closed."""
        if self.stopping.wait(seconds if outage.losses > 1 else 0.0) and outage.error is not None:
            raise outage.error

    def close(self, last: Callable[[Db], None] = lambda _: None) -> None:
        """Run `last` if there is a connection, then release it."""
        if self._db is not None:
            with contextlib.suppress(psycopg.Error):
                last(self._db)
        self._drop()

    def abandon(self) -> None:
        """Drop the connection without touching it: it belongs to the parent."""
        _abandoned.append(self._db)
        self._db = None

    def _connected(self) -> Db:
        if self._db is None:
            # Every row is written by a single statement, so only these are ever in flight.
            db = psycopg.connect(**self._parameters, autocommit=True, prepare_threshold=2)
            try:
                if self._only_reads:
                    db.execute(b"SET default_transaction_read_only = on")
                schema.prepare(
                    db, self.tables, str(self.address), create=self._create, only_reads=self._only_reads
                )
                self._greet(db)
            except BaseException:
                db.close()
                raise
            self._db, self._found = db, True
        return self._db

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                db.close()


def client_parameters(address: JournalAddress) -> dict[str, Any]:
    """Return the settings of a connection. Raises StoreDown."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(address.secret)
    except psycopg.Error:
        # Without libpq's message: it repeats parts of the text, and one of them may be the password.
        raise StoreDown(f"{address} is not an address that PostgreSQL's client understands") from None
    environment = "PGAPPNAME" in os.environ
    defaults = {
        name: value for name, value in CLIENT.items() if name != "application_name" or not environment
    }
    return {**defaults, **given}


def process(db: Db) -> int:
    """Return the number of the server process that answers."""
    row = db.execute(b"SELECT pg_backend_pid()").fetchone()
    return int(row[0]) if row else 0


def pooled(db: Db) -> bool:
    """Return whether it differs from the number reported at connect time; then a pool is between."""
    return process(db) != db.info.backend_pid
