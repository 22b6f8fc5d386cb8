"""Count the runs that have not ended, in the thread of the caller, on a separate connection."""

# ruff: noqa: S608  the only text that is put into statements is our own

from __future__ import annotations

import zlib
from typing import Any, Final

import psycopg
from psycopg import errors, sql

from orchestrator.journal.address import JournalAddress
from orchestrator.journal.postgres.error_mapping import unreachable
from orchestrator.journal.postgres.presence import LIVING
from orchestrator.journal.postgres.session import client_parameters
from orchestrator.kernel.head_count import HeadCounts, HeadRow, merged_counts
from orchestrator.kernel.journal import ENGINE

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
        with psycopg.connect(**_parameters(address), autocommit=True) as db:
            return _counted(db, tables)
    except psycopg.Error as error:
        raise unreachable(error, address) from error


def _counted(db: psycopg.Connection[Any], tables: str) -> HeadCounts:
    db.execute(f"SET statement_timeout = '{_PATIENCE}s'".encode())
    db.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(tables)))
    cluster = db.execute(_CLUSTER).fetchone() or ()
    identity = f"{zlib.crc32(repr((*cluster, tables)).encode()):08x}"
    try:
        found = db.execute(_COUNTS).fetchall()
    except errors.UndefinedTable:  # nothing has run yet
        found = []
    return HeadCounts(identity, merged_counts(map(HeadRow._make, found)))


def _parameters(address: JournalAddress) -> dict[str, Any]:
    return {**client_parameters(address), "connect_timeout": str(_PATIENCE)}
