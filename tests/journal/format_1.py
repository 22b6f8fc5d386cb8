"""A journal as version 1 wrote it, each record a row with a hash of its own: rewritten, or copied to PostgreSQL."""

# ruff: noqa: S608  only our own text

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw
import orjson
import psycopg

from orchestrator.journal.codec import chained
from orchestrator.journal.sqlite.high_water import mark_of
from orchestrator.journal.sqlite.schema import LAST, SHIFT, checksum
from orchestrator.kernel.journal import NO_HASH

DROPPED = (
    "agent",
    "agent_version",
    "tags",
    "outcome",
    "waiting",
    "state",
    "state_since",
    "tokens",
    "cost",
    "child_tokens",
    "child_cost",
    "currency",
)
"""Columns of `run` that version 1 does not have."""
SUMS = ("state_sum", "usage_sum", "child_sum")
FIXED = "run_id, graph, fingerprint, created_at, parent_run_id, conversation_id"


def records(run_id: str, rows: Iterable[tuple[int, str, bytes]]) -> Iterator[tuple[int, str, bytes, str]]:
    """Yield (epoch, kind, body, hash) of each record from (epoch, kinds, body) of each append."""
    before, seq = NO_HASH, 0
    for epoch, kinds, body in rows:
        parts = kinds.split(",")
        bodies = [body] if len(parts) == 1 else [orjson.dumps(one) for one in orjson.loads(body)]
        for kind, one in zip(parts, bodies, strict=True):
            before = chained(before, run_id, seq, epoch, kind, one)
            yield epoch, kind, one, before
            seq += 1


def rewrite(path: Path) -> None:
    """Rewrite a SQLite journal that nobody has open. The mark of its last commits is removed with its hashes."""
    db = apsw.Connection(str(path))
    db.execute("BEGIN IMMEDIATE")
    query = f"SELECT id, epoch, progress, status, reason, updated_at, {FIXED} FROM run"
    for row in db.execute(query).fetchall():
        _rewrite_run(db, row)
    db.execute("DELETE FROM mark")
    for column in (*DROPPED, *SUMS):
        db.execute(f"ALTER TABLE run DROP COLUMN {column}")
    db.execute("DROP TABLE run_tag")
    db.execute("ALTER TABLE run RENAME COLUMN last_hash TO head")
    db.execute("ALTER TABLE run RENAME COLUMN identity_sum TO fixed_sum")
    db.pragma("user_version", 1)
    db.execute("COMMIT")
    db.close()
    mark_of(path).unlink(missing_ok=True)


def _rewrite_run(db: apsw.Connection, row: tuple[Any, ...]) -> None:
    number, epoch, *rest = row[:6]
    fixed = row[6:]
    span = (number << SHIFT, number << SHIFT | LAST)
    query = "SELECT epoch, kind, body FROM record WHERE key BETWEEN ? AND ? ORDER BY key"
    rows: list[Any] = db.execute(query, span).fetchall()
    found = list(records(fixed[0], rows))
    db.execute("DELETE FROM record WHERE key BETWEEN ? AND ?", span)
    for seq, (writer, kind, body, digest) in enumerate(found):
        values = (number << SHIFT | seq, writer, kind, body, bytes.fromhex(digest))
        db.execute("INSERT INTO record VALUES (?,?,?,?,?)", values)
    head = found[-1][3]
    total = checksum(fixed[0], epoch, len(found) - 1, head, *rest)
    sums = (bytes.fromhex(head), total, checksum(*fixed), number)
    db.execute("UPDATE run SET last_hash=?, sum=?, identity_sum=? WHERE id=?", sums)


def rewrite_tables(dsn: str) -> None:
    """Rewrite a PostgreSQL journal that nobody has open."""
    with psycopg.connect(dsn, options="-c search_path=orchestrator") as db:
        for number, run_id in db.execute("SELECT id, run_id FROM run").fetchall():
            rows = db.execute("SELECT epoch, kind, body FROM record WHERE run = %s ORDER BY seq", (number,))
            found = list(records(run_id, rows.fetchall()))
            db.execute("DELETE FROM record WHERE run = %s", (number,))
            for seq, (epoch, kind, body, digest) in enumerate(found):
                values = (number, seq, epoch, kind, body, bytes.fromhex(digest))
                db.execute("INSERT INTO record VALUES (%s, %s, %s, %s, %s, %s)", values)
            db.execute("UPDATE run SET last_hash = %s WHERE id = %s", (bytes.fromhex(found[-1][3]), number))
        for column in DROPPED:
            db.execute(f"ALTER TABLE run DROP COLUMN {column}".encode())
        db.execute("DROP TABLE run_tag")
        db.execute("ALTER TABLE run RENAME COLUMN last_hash TO head")
        db.execute("UPDATE meta SET version = 1")


def copy_to_tables(path: Path, dsn: str) -> None:
    """Copy the runs and records of a SQLite journal of version 1 to a new PostgreSQL journal of version 1."""
    from orchestrator.journal.postgres import session  # the tests of the core run without this store

    source = apsw.Connection(
        f"{path.as_uri()}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    with psycopg.connect(dsn, options="-c search_path=orchestrator") as db:
        db.execute("CREATE SCHEMA orchestrator")
        db.execute(session.TABLES.encode())
        columns = f"id, {FIXED}, epoch, seq, head, progress, status, reason, updated_at, requests"
        for row in source.execute(f"SELECT {columns} FROM run"):
            places = ", ".join(["%s"] * len(row))
            db.execute(f"INSERT INTO run({columns}) OVERRIDING SYSTEM VALUE VALUES ({places})".encode(), row)
        for key, *record in source.execute("SELECT key, epoch, kind, body, hash FROM record"):
            values = (key >> SHIFT, key & LAST, *record)
            db.execute("INSERT INTO record VALUES (%s, %s, %s, %s, %s, %s)", values)
    source.close()
