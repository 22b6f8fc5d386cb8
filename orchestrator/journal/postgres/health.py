"""Verify a whole journal on a server: every run's chain, every blob, every inbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from orchestrator.errors import JournalError, RunUnknown
from orchestrator.journal.codec import verified_blob
from orchestrator.journal.head_change import disagreement
from orchestrator.journal.postgres import read, schema
from orchestrator.journal.run_query import RunQuery
from orchestrator.kernel.journal import RunHead

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
        some, before = read.page(db, RunQuery(), before)
        more = before is not None
        heads += some
        for head in some:
            try:
                found = read.load(db, head.run_id, 0)
                records += len(found)
                read.inbox(db, head.run_id, 0)
                # An active run may have moved since the page was read.
                if len(found) == head.seq + 1 and (wrong := disagreement(head, found)):
                    problems.append(wrong)
            except RunUnknown:  # removed meanwhile
                continue
            except JournalError as error:
                problems.append(str(error))
    problems += _blobs(db)
    return PostgresHealth(
        version=schema.VERSION,
        server=".".join(map(str, divmod(db.info.server_version, 10000))),
        settings=schema.settings(db),
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
