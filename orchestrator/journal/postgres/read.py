"""Read from the server. Related data is read at one moment: in one statement, or in one snapshot transaction."""

# ruff: noqa: S608  the only text that is put into statements is our own

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import orjson
import psycopg

from orchestrator.errors import Corrupt, RunUnknown
from orchestrator.journal.codec import Row, records_of, verified_blob
from orchestrator.journal.postgres.presence import LIVING
from orchestrator.kernel.journal import Posted, Record, RunHead

Db: TypeAlias = psycopg.Connection[Any]

PAGE: Final = 200
"""Runs read at once by a listing."""

# The living holders are found once, not for each run: that query reads every lock of the server.
_HEAD: Final = f"""WITH living AS MATERIALIZED (SELECT h.token FROM holder h WHERE {LIVING})
    SELECT run_id, graph, fingerprint, status, seq, epoch,
    CASE WHEN holder IN (SELECT token FROM living) THEN owner END, created_at, updated_at, reason,
    parent_run_id, conversation_id, epoch - progress, id, encode(last_hash, 'hex') FROM run """
_OF_RUN: Final = f"{_HEAD} WHERE run_id = %s".encode()
_NEWEST: Final = f"{_HEAD} WHERE conversation_id = %s ORDER BY id DESC LIMIT 1".encode()
_RECORDS: Final = (
    b"SELECT seq, epoch, kind, body, encode(hash, 'hex') FROM record WHERE run = %s ORDER BY seq"
)
_INBOX: Final = b"""SELECT run.requests, q.number, q.id, q.kind, q.body, q.by, q.at
    FROM run LEFT JOIN request q ON q.run = run.id AND q.number > %s WHERE run.run_id = %s ORDER BY q.number"""
_NEWS: Final = b"""SELECT news, CASE WHEN %s BETWEEN 0 AND news - 1 THEN ARRAY(
    SELECT run.run_id FROM news n JOIN run ON run.id = n.run WHERE n.position > %s ORDER BY n.position) END FROM meta"""
_BLOB: Final = b"SELECT content FROM blob WHERE digest = %b"
_FIELDS: Final = (
    *(
        "run_id",
        "graph",
        "fingerprint",
        "status",
        "seq",
        "epoch",
        "owner",
        "created_at",
        "updated_at",
        "reason",
    ),
    *("parent_run_id", "conversation_id", "stuck_claims"),
)
_COLUMNS: Final = frozenset(("status", "graph", "conversation_id", "parent_run_id"))


def head(db: Db, run_id: str) -> RunHead:
    """Return the head of a run. Raises RunUnknown."""
    return _head(_known(db, run_id))


def load(db: Db, run_id: str, since: int) -> list[Record]:
    """Return the records from `since` on, with the whole chain verified. Raises RunUnknown, Corrupt or TooNew."""
    with db.transaction():
        db.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = _known(db, run_id)
        stored = db.execute(_RECORDS, (row[13],), prepare=True, binary=True).fetchall()
    return records_of(run_id, map(Row._make, stored), _head(row), row[14], since)


def newest(db: Db, conversation_id: str) -> RunHead | None:
    """Return the newest run of a conversation, or None."""
    row = db.execute(_NEWEST, (conversation_id,)).fetchone()
    return None if row is None else _head(row)


def page(db: Db, number: int, among: Mapping[str, str]) -> tuple[list[RunHead], int | None]:
    """Return the next runs after row `number`, and the number for the next page; None after the last."""
    names = sorted(_COLUMNS & among.keys())
    conditions = "".join(f" AND {name} = %s" for name in names)
    query = f"{_HEAD} WHERE id > %s{conditions} ORDER BY id LIMIT {PAGE}"
    rows = db.execute(query.encode(), (number, *(among[name] for name in names))).fetchall()
    return [_head(row) for row in rows], rows[-1][13] if len(rows) == PAGE else None


def inbox(db: Db, run_id: str, since: int) -> list[Posted]:
    """Return the requests posted after number `since`. Raises RunUnknown or Corrupt."""
    rows = db.execute(_INBOX, (since, run_id), prepare=True, binary=True).fetchall()
    if not rows:
        raise RunUnknown(run_id)
    found = [_posted(run_id, row) for row in rows if row[1] is not None]
    posted = rows[0][0]
    if [request.number for request in found] != list(range(since + 1, posted + 1)):
        raise Corrupt(f"run {run_id!r}: {posted} requests were posted, and some are missing")
    return found


def news(db: Db, since: int) -> tuple[int, list[str]]:
    """Return the runs with requests after position `since`, by their last ones, and the current position."""
    row = db.execute(_NEWS, (since, since), prepare=True).fetchone()
    if row is None:
        raise Corrupt("the row of table meta is missing")
    return row[0], row[1] or []


def blob(db: Db, digest: str) -> bytes:
    """Return a blob. Raises Corrupt."""
    try:
        name = bytes.fromhex(digest)
    except ValueError:  # a malformed digest is simply not here
        return verified_blob(digest, None)
    row = db.execute(_BLOB, (name,), binary=True).fetchone()
    return verified_blob(digest, None if row is None else row[0])


def _known(db: Db, run_id: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = db.execute(_OF_RUN, (run_id,), prepare=True).fetchone()
    if row is None:
        raise RunUnknown(run_id)
    return row


def _head(row: tuple[Any, ...]) -> RunHead:
    return RunHead(**dict(zip(_FIELDS, row, strict=False)))


def _posted(run_id: str, row: tuple[Any, ...]) -> Posted:
    _, number, name, kind, body, by, at = row
    try:
        return Posted(name, kind, orjson.loads(body), by, at, number)
    except ValueError as error:
        raise Corrupt(f"run {run_id!r}: request {number} is damaged: {error}") from error
