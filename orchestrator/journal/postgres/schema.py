"""The tables, and the requirements that a server must meet before anything is written to it.

The tables have their own schema, so that a database can be shared. Rows have no checksums, in contrast to SQLite's:
the server has checksums for its pages (`initdb --data-checksums`), and the hash chain verifies the records. Every
uniqueness rule is a constraint, so that processes need no other agreement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

import orjson
import psycopg
from psycopg import sql

from orchestrator.errors import StoreDown, TooNew
from orchestrator.journal.codec import HEAD_KINDS, NOTHING, head_of
from orchestrator.journal.postgres.presence import LIVING

VERSION: Final = 2
"""Version of the tables, in `meta`."""
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
