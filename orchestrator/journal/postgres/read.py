"""Read from the server. Related data is read at one moment, and in one round trip.

The statements of a pipeline are one transaction, which is a snapshot (`greet`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import orjson
import psycopg
from psycopg import errors, sql

from orchestrator.errors import Corrupt, JournalError, RunUnknown
from orchestrator.journal.address import JournalAddress
from orchestrator.journal.codec import disagreement, excerpts_of, records_of, verified_blob
from orchestrator.journal.postgres import session
from orchestrator.journal.postgres.presence import LIVING, LOCKED
from orchestrator.journal.postgres.session import client_parameters, unreachable
from orchestrator.journal.run_query import COUNTS, NAMES, ORDERS, RunQuery, agents_of_rows, counted
from orchestrator.kernel.journal import (
    ENGINE,
    EXCERPT,
    EXCERPT_BYTES,
    AgentStatistics,
    Draft,
    HeadCounts,
    HeadRow,
    Posted,
    Record,
    RunCounts,
    RunHead,
    merged_counts,
)

# ruff: noqa: S608  the only text that is put into statements is our own


Db: TypeAlias = psycopg.Connection[Any]

Position: TypeAlias = tuple[float, int]
"""Value of the order and number of the last run of a page."""

# The living holders are found once, not for each run: that query reads every lock of the server.
_HEAD: Final = f"""WITH living AS MATERIALIZED (
        SELECT h.token, extract(epoch FROM h.seen)::float8 AS seen FROM holder h WHERE {LIVING})
    SELECT run_id, graph, fingerprint, status, seq, epoch,
    CASE WHEN living.token IS NOT NULL THEN owner END, created_at, updated_at, reason,
    parent_run_id, conversation_id, epoch - progress, living.seen,
    CASE WHEN living.token IS NULL THEN (SELECT owner FROM holder h WHERE h.token = run.holder AND {LOCKED}) END,
    agent, agent_version, tags, state, state_since,
    outcome, waiting, tokens + child_tokens, coalesce(cost + coalesce(child_cost, 0), child_cost), currency,
    id,
    encode(last_hash, 'hex')"""
_FROM: Final = "FROM ({}) AS run LEFT JOIN living ON living.token = run.holder"
_OF_RUN: Final = f"{_HEAD} {_FROM.format('SELECT * FROM run WHERE run_id = %s')}".encode()
_LATEST: Final = "SELECT * FROM run WHERE conversation_id = %s ORDER BY id DESC LIMIT 1"
_NEWEST: Final = f"{_HEAD} {_FROM.format(_LATEST)}".encode()
_RECORDS: Final = b"""SELECT seq, epoch, kind, body, encode(hash, 'hex') FROM record
    WHERE run = (SELECT id FROM run WHERE run_id = %s) ORDER BY seq"""
# Some conditions and most orders have no index (`session.UPGRADES`). A listing is planned for its values: most runs may
# have one tag, and few another.
_SCANNED: Final = b"""SELECT set_config('enable_seqscan', 'on', true),
    set_config('plan_cache_mode', 'force_custom_plan', true)"""
_EXCERPTS: Final = f"""SELECT run.run_id, r.kind, r.body FROM run CROSS JOIN LATERAL (
    SELECT a.seq, a.kind, a.body FROM (SELECT seq, kind, body FROM record WHERE run = run.id ORDER BY seq LIMIT 1) a
    UNION SELECT z.seq, z.kind, z.body FROM (
        SELECT seq, kind, body FROM record WHERE run = run.id ORDER BY seq DESC LIMIT {EXCERPT}) z) r
    WHERE run.run_id = ANY(%s) AND length(r.body) <= {EXCERPT_BYTES} ORDER BY run.id, r.seq""".encode()
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
    *(
        "parent_run_id",
        "conversation_id",
        "stuck_claims",
        "lease_renewed_at",
        "expired_owner",
        "agent",
        "agent_version",
        "tags",
    ),
    *("state", "state_since", "outcome", "waiting", "tokens", "cost_micros", "currency"),
)
_NUMBER: Final = len(_FIELDS)
_LAST_HASH: Final = _NUMBER + 1


def greet(db: Db) -> None:
    """Prepare a new connection: what is read in one transaction is of one moment."""
    db.execute(b"SET default_transaction_isolation = 'repeatable read'")


def head(db: Db, run_id: str) -> RunHead:
    """Return the head of a run. Raises RunUnknown."""
    return _head(_known(db, run_id))


def load(db: Db, run_id: str, since: int) -> Sequence[Record]:
    """Return the records from `since` on, with the whole chain verified. Raises RunUnknown, Corrupt or TooNew."""
    with db.pipeline():
        of_run = db.execute(_OF_RUN, (run_id,), prepare=True)
        stored = db.execute(_RECORDS, (run_id,), prepare=True, binary=True)
    row = _found(run_id, of_run.fetchone())
    return records_of(run_id, stored, _head(row), row[_LAST_HASH], since)


def newest(db: Db, conversation_id: str) -> RunHead | None:
    """Return the newest run of a conversation, or None."""
    row = db.execute(_NEWEST, (conversation_id,)).fetchone()
    return None if row is None else _head(row)


def page(db: Db, query: RunQuery, before: Position | None) -> tuple[list[RunHead], Position | None]:
    """Return a page of a listing, and the position before the next page; None after the last.

    `before` is the position after the page before. Raises RunUnknown for an unknown run in `after`.
    """
    if query.after is not None:
        _known(db, query.after)
    where, values = query.where("%s", before)
    # The rows are sorted by number and order alone, and read after that.
    part = f"LIMIT {query.page} OFFSET {query.skipped(before)}"
    chosen = f"SELECT run.id FROM run WHERE {where} ORDER BY {query.ordered} {part}"
    selected = f"SELECT * FROM run WHERE id IN ({chosen})"
    text = f"{_HEAD}, {ORDERS[query.order_by]} {_FROM.format(selected)} ORDER BY {query.ordered}"
    rows = _scanned(db, text, values)
    position = (rows[-1][-1], rows[-1][_NUMBER]) if len(rows) == query.page else None
    return [_head(row) for row in rows], position


def excerpts(db: Db, run_ids: Sequence[str]) -> dict[str, list[Draft]]:
    """Return the records of the first append and of the last EXCERPT appends of several runs, unverified."""
    return excerpts_of(db.execute(_EXCERPTS, ([*run_ids],), prepare=True, binary=True))


def count(db: Db, query: RunQuery) -> RunCounts:
    """Return the counts of the runs that meet the conditions."""
    where, values = query.where_counted("%s")
    return counted(_scanned(db, f"SELECT {COUNTS} FROM run WHERE {where}", values)[0])


def names(db: Db) -> list[tuple[str, str]]:
    """Return each pair of a machine and an agent."""
    return sorted((str(graph), str(agent)) for graph, agent in _scanned(db, NAMES, ()))


def agents(db: Db, query: RunQuery, by_version: bool) -> list[AgentStatistics]:  # noqa: FBT001
    """Return the statistics of agents."""
    rows, costs = _scanned_each(
        db, query.agents("%s", by_version=by_version), query.costs("%s", by_version=by_version)
    )
    return agents_of_rows(rows, costs)


def version(db: Db) -> str:
    """Return the transactions that this moment sees: another text when one has begun or ended."""
    row = db.execute(b"SELECT pg_current_snapshot()::text", prepare=True).fetchone()
    return "" if row is None else str(row[0])


def _scanned(db: Db, text: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    return _scanned_each(db, (text, values))[0]


def _scanned_each(db: Db, *queries: tuple[str, Sequence[object]]) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each query, read at one moment."""
    with db.pipeline():
        db.execute(_SCANNED, prepare=True)
        found = [db.execute(text.encode(), values) for text, values in queries]
    return [one.fetchall() for one in found]


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
    return _found(run_id, db.execute(_OF_RUN, (run_id,), prepare=True).fetchone())


def _found(run_id: str, row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if row is None:
        raise RunUnknown(run_id)
    return row


def _head(row: tuple[Any, ...]) -> RunHead:
    known = dict(zip(_FIELDS, row, strict=False))
    return RunHead(**{**known, "tags": orjson.loads(known["tags"])})


def _posted(run_id: str, row: tuple[Any, ...]) -> Posted:
    _, number, name, kind, body, by, at = row
    try:
        return Posted(name, kind, orjson.loads(body), by, at, number)
    except ValueError as error:
        raise Corrupt(f"run {run_id!r}: request {number} is damaged: {error}") from error


# ruff: noqa: S608  the only text that is put into statements is our own


_PATIENCE: Final = 2
"""Seconds for the connection, and for the answer: a scrape must not wait for a lost server."""
_COUNTS: Final = f"""WITH living AS MATERIALIZED (SELECT h.token FROM holder h WHERE {LIVING})
    SELECT graph, agent, status, reason, living.token IS NOT NULL, count(*), min(updated_at)
    FROM run LEFT JOIN living ON living.token = run.holder
    WHERE status <> 'ended' AND graph <> '{ENGINE}' GROUP BY 1, 2, 3, 4, 5""".encode()
_CLUSTER: Final = b"""SELECT system_identifier::text, (SELECT oid FROM pg_database WHERE datname = current_database())
    FROM pg_control_system()"""


def head_counts(address: JournalAddress, tables: str) -> HeadCounts:
    """Count the runs in a schema of a database; one without tables has none. Raises StoreDown.

    The identity is that of the server's data, the database and the schema: it is the same under every name of the
    server, and on its standbys.
    """
    try:
        with psycopg.connect(
            **{**client_parameters(address), "connect_timeout": str(_PATIENCE)}, autocommit=True
        ) as db:
            db.execute(f"SET statement_timeout = '{_PATIENCE}s'".encode())
            db.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(tables)))
            cluster = db.execute(_CLUSTER).fetchone() or ()
            identity = f"{zlib.crc32(repr((*cluster, tables)).encode()):08x}"
            try:
                found = db.execute(_COUNTS).fetchall()
            except errors.UndefinedTable:  # nothing has run yet
                found = []
            return HeadCounts(identity, merged_counts(map(HeadRow._make, found)))
    except psycopg.Error as error:
        raise unreachable(error, address) from error


_BLOBS: Final = b"""SELECT encode(u.digest, 'hex'), b.content FROM
    (SELECT DISTINCT digest FROM blob_use UNION SELECT digest FROM blob) u LEFT JOIN blob b ON b.digest = u.digest"""
_SIZE: Final = b"""SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresHealth:
    """The result of a check. `problems` is empty if everything read equals what was written."""

    version: int
    server: str
    settings: dict[str, str]
    runs: int
    records: int
    open: tuple[RunHead, ...]
    """Runs that are open or parked."""
    size: int
    """Bytes of the tables with their indexes."""
    problems: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def examine(db: psycopg.Connection[Any]) -> PostgresHealth:
    """Read everything; an active run is verified in the state it has when it is read."""
    heads: list[RunHead] = []
    problems: list[str] = []
    records = 0
    before, more = None, True
    while more:
        some, before = page(db, RunQuery(), before)
        more = before is not None
        heads += some
        for head in some:
            try:
                found = list(load(db, head.run_id, 0))
                records += len(found)
                inbox(db, head.run_id, 0)
                # An active run may have moved since the page was read.
                if len(found) == head.seq + 1 and (wrong := disagreement(head, found)):
                    problems.append(wrong)
            except RunUnknown:  # removed meanwhile
                continue
            except JournalError as error:
                problems.append(str(error))
    problems += _blobs(db)
    return PostgresHealth(
        version=session.VERSION,
        server=".".join(map(str, divmod(db.info.server_version, 10000))),
        settings=session.settings(db),
        runs=len(heads),
        records=records,
        open=tuple(head for head in heads if head.status != "ended"),
        size=size(db),
        problems=tuple(problems),
    )


def size(db: psycopg.Connection[Any]) -> int:
    """Return the bytes of the tables with their indexes."""
    row = db.execute(_SIZE).fetchone()
    return int(row[0]) if row else 0


def _blobs(db: psycopg.Connection[Any]) -> list[str]:
    problems: list[str] = []
    with db.transaction(), db.cursor("blobs", binary=True) as cursor:
        cursor.itersize = 20
        for digest, content in cursor.execute(_BLOBS):
            try:
                verified_blob(digest, content)
            except JournalError as error:
                problems.append(str(error))
    return problems
