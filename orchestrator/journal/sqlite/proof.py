"""Verify that a journal holds all acknowledged commits, at each opening and before anything is used or written.

The answer has three sources: the mark beside the file (`mark`), the use of the journal as the file itself records it
(table `mark`), and the log's own frames (`log`). `high_water` explains what each of them proves, and why a crash or a
power loss never looks like damage.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import apsw

from orchestrator.errors import Corrupt
from orchestrator.journal.sqlite import mark, schema
from orchestrator.journal.sqlite.mark import REMOVED, HighWater
from orchestrator.journal.sqlite.row import COLUMNS, decoding, proved
from orchestrator.journal.sqlite.schema import SHIFT, checksum

REMEDY = schema.JOURNAL.remedy
_ATTEMPTS = 3
"""Another process may open the journal between two checks: only a repeated fault is damage."""


class JournalUsage(NamedTuple):
    """The row of the table `mark`."""

    identity: bytes
    in_use: bool


class IntegrityCheck:
    """The check of one opening. Construct it before the file is opened, because that creates a missing log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        log = path.with_name(f"{path.name}-wal")
        if not log.exists() and _unreadable(path) and _in_use_by_file(path):
            raise Corrupt(f"journal {path} was not closed, and its log {log.name} is missing; {REMEDY}")

    def __call__(self, db: apsw.Connection) -> None:
        """Raise Corrupt if the journal holds less than was acknowledged, or if that cannot be known."""
        problem = None
        for _ in range(_ATTEMPTS):
            problem = self._problem(db)
            if problem is None:
                return
        raise Corrupt(f"journal {self._path} {problem}; {REMEDY}")

    def _problem(self, db: apsw.Connection) -> str | None:
        found = mark.read(self._path)  # read before the transaction starts, so that it cannot be ahead of it
        with schema.transaction(db) as cursor:  # one snapshot: another process may upgrade the file meanwhile
            schema.show_as_present(db, schema.JOURNAL)
            return problem(cursor, self._path, found)


def connect(
    path: Path,
    *,
    busy: float,
    query_only: bool = False,
    upgrade: Callable[[apsw.Connection], None] | None = None,
) -> apsw.Connection:
    """Open a connection to a journal that holds all acknowledged commits. Raises StoreDown, Corrupt or TooNew."""
    check = IntegrityCheck(path)
    return schema.connect(path, busy=busy, query_only=query_only, prove=check, upgrade=upgrade)


def close(db: apsw.Connection) -> None:
    """Close a connection. The last one lets SQLite remove the log, except for a journal that is in use."""
    in_use = True
    with suppress(apsw.Error, Corrupt):
        found = usage(db.cursor())
        in_use = found is not None and found.in_use
    with suppress(apsw.Error):
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(in_use))
        db.close(force=True)


def problem(cursor: apsw.Cursor, path: Path, found: mark.Mark | None) -> str | None:
    """Return the fault, by a mark that was read before this transaction started; None without a fault."""
    used = usage(cursor)
    if used is None:
        return None
    name = mark.mark_of(path).name
    if found is None or found.identity != used.identity:
        state = "is missing" if not mark.mark_of(path).exists() else "is of another journal, or damaged"
        return f"was not closed, and {name}, which records its last commit, {state}" if used.in_use else None
    for slot in found.slots:
        lost = None if slot is None else _lost(cursor, slot.high_water)
        if lost:
            return (
                f"lacks data that {name} records as acknowledged: {lost}. Its log {path.name}-wal is damaged, cut or "
                f"missing, or an older copy took its place"
            )
    return None


def usage(cursor: apsw.Cursor) -> JournalUsage | None:
    """Return the use of a journal; None if it was not written since marks exist. Raises Corrupt."""
    if not cursor.execute("SELECT 1 FROM sqlite_schema WHERE name='mark'").fetchone():
        return None
    row = cursor.execute("SELECT identity, in_use, sum FROM mark").fetchone()
    if row is None:
        return None
    with decoding("the journal's row of table mark"):
        found, total = JournalUsage(bytes(row[0]), bool(row[1])), row[2]
    if total != _sum_of(found):
        raise Corrupt(f"the journal's row of table mark is damaged; {REMEDY}")
    return found


def write_usage(cursor: apsw.Cursor, found: JournalUsage) -> None:
    """Write the use of a journal."""
    row = (found.identity, int(found.in_use), _sum_of(found))
    cursor.execute("INSERT OR REPLACE INTO mark VALUES (1,?,?,?)", row)


def _sum_of(found: JournalUsage) -> int:
    return checksum(found.identity.hex(), found.in_use)


def _lost(cursor: apsw.Cursor, high_water: HighWater) -> str | None:
    """Return the missing part of the acknowledged data as text."""
    number, epoch, seq, requests, head = high_water
    if not number:
        return None
    raw = cursor.execute(f"SELECT {COLUMNS} FROM run WHERE id=?", (number,)).fetchone()  # noqa: S608
    if raw is None:
        last = cursor.execute("SELECT seq FROM sqlite_sequence WHERE name='run'").get or 0
        return None if int(last) >= number else f"run number {number} is missing"
    try:
        row = proved(raw)
    except Corrupt:  # reported by every read of this run, and not a fault of the log
        return None
    if seq == REMOVED:
        return f"run {row.run_id!r}, which was removed, exists"
    if row.epoch < epoch or row.seq < seq or row.requests < requests:
        return (
            f"run {row.run_id!r} has {row.seq + 1} records, {row.requests} requests and {row.epoch} claims, "
            f"and had {seq + 1}, {requests} and {epoch}"
        )
    there = cursor.execute("SELECT hash FROM record WHERE key=?", (number << SHIFT | seq,)).get
    return None if there == head else f"record {seq} of run {row.run_id!r} differs"


def _unreadable(path: Path) -> bool:
    """Return whether a mark exists that cannot be read completely."""
    found = mark.read(path)
    return found is not None and None in found.slots


def _in_use_by_file(path: Path) -> bool:
    """Return whether the main file alone records that the journal is in use, without creating a log beside it."""
    with suppress(apsw.Error, Corrupt):
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        db = apsw.Connection(f"{path.as_uri()}?mode=ro&immutable=1", flags=flags)
        try:
            found = usage(db.cursor())
            return found is not None and found.in_use
        finally:
            db.close()
    return False
