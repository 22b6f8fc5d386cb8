"""Map errors of PostgreSQL and its client to our errors, each with one clear sentence.

A lost connection is not a fault of the store: the work is repeated on another connection. Nothing here poisons the
store: the server is responsible for its disk, and it shuts down if a sync fails.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors

from orchestrator.errors import Corrupt, JournalError, StoreDown
from orchestrator.journal.address import JournalAddress

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
