"""A connection that recovers: work that lost its connection is repeated until `patience` is over.

A lost connection is not a fault of the store: the work is repeated on another connection. Nothing here poisons the
store: the server is responsible for its disk, and it shuts down if a sync fails.

The work must be safe to repeat: reads are, and each kind of write can look up whether it landed (`writer`). A restart
of the server costs its callers only its duration.

The tables, and the requirements that a server must meet before anything is written to it, are here too. The tables
have their own schema, so that a database can be shared. Rows have no checksums, in contrast to SQLite's: the server
has checksums for its pages (`initdb --data-checksums`), and the hash chain verifies the records. Every uniqueness rule
is a constraint, so that processes need no other agreement.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeAlias, TypeVar

import orjson
import psycopg
from psycopg import errors, sql

from orchestrator.errors import Corrupt, JournalError, StoreDown, TooNew
from orchestrator.journal.address import JournalAddress
from orchestrator.journal.codec import HEAD_KINDS, NOTHING, head_of
from orchestrator.journal.postgres.presence import LIVING
from orchestrator.llm.retry import UNLIMITED, RetryPolicy

# ---- the tables and the requirements ----

VERSION: Final = 4
"""Version of the tables, in `meta`."""
_HEADS_SINCE: Final = 2
"""The first version with the heads of runs."""
OLDEST_SERVER: Final = 140000

TABLES: Final = """
CREATE TABLE meta(
    one boolean PRIMARY KEY DEFAULT true CHECK (one), version integer NOT NULL, news bigint NOT NULL);
CREATE TABLE holder(
    token bigint PRIMARY KEY, name text NOT NULL, seen timestamptz NOT NULL,
    ttl double precision NOT NULL, grace double precision NOT NULL);
CREATE TABLE run(
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run_id text COLLATE "C" NOT NULL UNIQUE,
    graph text NOT NULL, fingerprint text NOT NULL, created_at double precision NOT NULL,
    parent_run_id text, conversation_id text,
    epoch bigint NOT NULL, seq bigint NOT NULL, head bytea NOT NULL, progress bigint NOT NULL,
    status text NOT NULL, reason text NOT NULL, updated_at double precision NOT NULL,
    requests bigint NOT NULL DEFAULT 0, owner text, holder bigint) WITH (fillfactor = 70);
CREATE INDEX run_of_status ON run(status, id) WHERE status <> 'ended';
CREATE INDEX run_of_conversation ON run(conversation_id, id) WHERE conversation_id IS NOT NULL;
CREATE INDEX run_of_parent ON run(parent_run_id, id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX run_of_holder ON run(holder) WHERE holder IS NOT NULL;
CREATE TABLE record(
    run bigint NOT NULL, seq bigint NOT NULL, epoch bigint NOT NULL, kind text NOT NULL, body bytea NOT NULL,
    hash bytea NOT NULL, PRIMARY KEY(run, seq));
CREATE TABLE request(
    run bigint NOT NULL, number bigint NOT NULL, id text NOT NULL, kind text NOT NULL, body bytea NOT NULL,
    by text NOT NULL, at double precision NOT NULL, PRIMARY KEY(run, number), UNIQUE(run, id));
CREATE TABLE news(run bigint PRIMARY KEY, position bigint NOT NULL);
CREATE INDEX news_at ON news(position);
CREATE TABLE blob(digest bytea PRIMARY KEY, content bytea NOT NULL);
CREATE TABLE blob_use(run bigint NOT NULL, digest bytea NOT NULL, PRIMARY KEY(run, digest));
CREATE INDEX blob_used ON blob_use(digest);
INSERT INTO meta(version, news) VALUES (1, 0);
"""
"""The tables of version 1."""

UPGRADES: Final[Mapping[int, str]] = {
    # Old statements name the column, so that a process of an earlier version cannot write any more.
    2: """ALTER TABLE run RENAME COLUMN head TO last_hash;
ALTER TABLE run
    ADD COLUMN agent text NOT NULL DEFAULT '', ADD COLUMN agent_version text NOT NULL DEFAULT '',
    ADD COLUMN tags text NOT NULL DEFAULT '{}',
    ADD COLUMN outcome text NOT NULL DEFAULT '', ADD COLUMN waiting text NOT NULL DEFAULT '',
    ADD COLUMN state text NOT NULL DEFAULT '', ADD COLUMN state_since double precision,
    ADD COLUMN tokens bigint, ADD COLUMN cost bigint,
    ADD COLUMN child_tokens bigint NOT NULL DEFAULT 0, ADD COLUMN child_cost bigint;
CREATE TABLE run_tag(name text NOT NULL, value text NOT NULL, run bigint NOT NULL, PRIMARY KEY(name, value, run));
CREATE INDEX tag_of_run ON run_tag(run)""",
    # No append changes the agent, and only one that parks or continues a run changes what it waits for, which changes
    # its status too. An index of a column that each append changes (the time of the last record, state, tokens, cost)
    # would make each append write to every index of the run: listings in those orders read all rows, and sort few.
    # A partial index of the ended runs would do the same to open ones: the server does not look at its condition there.
    3: """CREATE INDEX run_of_agent ON run(agent, id) WHERE agent <> '';
CREATE INDEX run_that_waits ON run(id) WHERE waiting <> ''""",
    4: "ALTER TABLE run ADD COLUMN currency text NOT NULL DEFAULT ''",
}
"""Version -> the statements that make its tables from those of the version before. New tables are made by them too, so
that upgraded ones are the same."""

DURABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
}
"""Setting -> values with which an acknowledged commit survives a crash of the server process or the host."""

SESSION: Final[Mapping[str, str]] = {
    "lock_timeout": "10s",
    # a frozen process must not keep a row that another one takes over
    "idle_in_transaction_session_timeout": "10s",
    "statement_timeout": "0",
    "client_encoding": "UTF8",
    "jit": "off",  # compiling takes a thousand times as long as any statement of ours
    "plan_cache_mode": "force_generic_plan",  # planning an append again takes longer than its execution
    # every statement of ours has an index, also before the tables were first analysed
    "enable_seqscan": "off",
}

_LOCK: Final = 0x46534D6F
"""`FSMo`: advisory lock of the process that creates or upgrades the tables."""
_OF_HEADS: Final = "SELECT run, kind, body FROM record WHERE kind = ANY(%s) ORDER BY run, seq"
_FILL: Final = """UPDATE run SET state = %s, state_since = %s, tokens = %s, cost = %s,
    child_tokens = %s, child_cost = %s,
    outcome = CASE WHEN run.status = w.status THEN w.outcome ELSE '' END,
    waiting = CASE WHEN run.status = w.status THEN w.waiting ELSE '' END
    FROM (VALUES (%s::text, %s::text, %s::bigint, %s::text)) AS w(outcome, waiting, id, status) WHERE run.id = w.id"""
_LIVING: Final = f"SELECT h.name, h.token FROM holder h WHERE {LIVING}"  # noqa: S608  only our own text


def prepare(
    connection: psycopg.Connection[Any], schema: str, where: str, *, create: bool, only_reads: bool = False
) -> None:
    """Refuse a server that may lose acknowledged data, set the session, create missing tables, upgrade old ones.

    Raises StoreDown or TooNew, and psycopg's errors.
    """
    server = connection.info.server_version
    if server < OLDEST_SERVER:
        raise StoreDown(f"journal {where} is on PostgreSQL {server // 10000}; 14 or later is needed")
    _refuse_lossy(connection, where)
    pairs = {**SESSION, "search_path": schema}
    calls = ", ".join("set_config(%s, %s, false)" for _ in pairs)
    named = sql.Identifier(schema).as_string(connection)
    values = [
        part for name, value in pairs.items() for part in (name, named if name == "search_path" else value)
    ]
    connection.execute(f"SELECT {calls}".encode(), values)
    found = version(connection, schema)
    if found is None and create:
        found = _make(connection, schema)
    if found is None:
        raise StoreDown(f"there is no journal in {where}: run something first, or name another database")
    if found > VERSION:
        raise TooNew(
            f"journal {where} has version {found}; this version of fsm-orchestrator reads up to {VERSION}"
        )
    if found < VERSION and only_reads:
        raise StoreDown(
            f"journal {where} has version {found}, and is upgraded to version {VERSION} when it is opened to write; it "
            f"was opened read-only"
        )
    if found < VERSION:
        _upgrade(connection, schema, where)


def settings(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Return the server's settings for durability and checksums."""
    names = (*DURABLE, "data_checksums")
    query = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    row = connection.execute(query.encode()).fetchone()
    return dict(zip(names, row or (), strict=True))


def version(connection: psycopg.Connection[Any], schema: str) -> int | None:
    """Return the version of the tables; None if there are none."""
    # Not to_regclass: after a wait for another process that creates the tables, it would still report none.
    there = connection.execute(
        b"SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        b" WHERE n.nspname = %s AND c.relname = 'meta'",
        (schema,),
    ).fetchone()
    if there is None:
        return None
    table = sql.Identifier(schema, "meta")
    row = connection.execute(sql.SQL("SELECT version FROM {}").format(table)).fetchone()
    return None if row is None else int(row[0])


def _refuse_lossy(connection: psycopg.Connection[Any], where: str) -> None:
    found = settings(connection)
    wrong = [f"{name}={found[name]}" for name, good in DURABLE.items() if found[name] not in good]
    if wrong:
        raise StoreDown(
            f"journal {where} is on a server that may lose acknowledged data: {', '.join(wrong)}; set it to on"
        )


def _make(connection: psycopg.Connection[Any], schema: str) -> int:
    """Create the tables in one transaction; a second process waits and then finds them."""
    with connection.transaction():
        connection.execute(b"SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        found = version(connection, schema)
        if found is not None:
            return found
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        _execute(connection, TABLES)
        _make_present(connection, 1)
    return VERSION


def _upgrade(connection: psycopg.Connection[Any], schema: str, where: str) -> None:
    """Upgrade the tables in one transaction; a second process waits and then finds them upgraded."""
    with connection.transaction():
        connection.execute(b"SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        found = version(connection, schema)
        if found is not None and found < VERSION:
            _refuse_in_use(connection, where, found)
            _make_present(connection, found)
            if found < _HEADS_SINCE:
                _fill_heads(connection)


def _refuse_in_use(connection: psycopg.Connection[Any], where: str, found: int) -> None:
    """Raise StoreDown if a living process of an earlier version holds runs. Until the commit no other one can begin."""
    connection.execute(b"LOCK TABLE holder, run IN ACCESS EXCLUSIVE MODE")
    rows = connection.execute(_LIVING.encode()).fetchall()
    if rows:
        named = ", ".join(sorted({str(name or token) for name, token in rows}))
        raise StoreDown(
            f"journal {where} has version {found} and is used by {len(rows)} process(es) of an earlier version of "
            f"fsm-orchestrator ({named}): end them, then open the journal again to upgrade it to version {VERSION}"
        )


def _make_present(connection: psycopg.Connection[Any], found: int) -> None:
    for number in range(found + 1, VERSION + 1):
        _execute(connection, UPGRADES[number])
    connection.execute(b"UPDATE meta SET version = %s", (VERSION,))


def _fill_heads(connection: psycopg.Connection[Any]) -> None:
    """Derive the head of each run from its records, which stay as they are."""
    with connection.cursor("records", binary=True) as cursor:
        cursor.itersize = 500
        records = cursor.execute(_OF_HEADS, ([*HEAD_KINDS],))
        for number, group in groupby(records, lambda row: int(row[0])):
            with contextlib.suppress(ValueError, TypeError):
                found = head_of([(str(kind), orjson.loads(body)) for _, kind, body in group])
                status, state, usage, children, _ = found
                values = (*(state or ("", None)), *(usage or (None, None)), *(children or NOTHING))
                connection.execute(_FILL, (*values, status.outcome, status.waiting, number, status.status))


def _execute(connection: psycopg.Connection[Any], statements: str) -> None:
    for statement in statements.split(";"):
        if statement.strip():
            connection.execute(statement.encode())


# ---- the connection ----

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
                prepare(db, self.tables, str(self.address), create=self._create, only_reads=self._only_reads)
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
