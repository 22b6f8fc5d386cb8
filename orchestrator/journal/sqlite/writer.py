"""The one thread that writes: it takes all queued jobs, commits them together, then reports each outcome.

One sync makes a whole batch durable (group commit), which makes synchronous=FULL cheap. A refused job (Fenced, Held,
RunExists, RunUnknown) has changed nothing, so its batch continues. An error that makes the connection doubtful
poisons the writer permanently: `down` has the reason, and nothing is retried, least of all a sync, which may report
success for pages that the kernel has already dropped.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import apsw

from orchestrator.errors import Corrupt, JournalError, RunError
from orchestrator.journal.sqlite.error_mapping import FAULTS, TRANSIENT
from orchestrator.journal.sqlite.high_water import HighWaterMark
from orchestrator.journal.sqlite.mark import HighWater
from orchestrator.journal.sqlite.proof import close
from orchestrator.journal.writer_thread import Outcome, WriterJob, WriterThread
from orchestrator.kernel.journal import Lease

CHECKPOINT_PAGES = 1000
"""Length of the write-ahead log that triggers a checkpoint. We run it, because SQLite would swallow errors."""

_log = logging.getLogger("orchestrator")

RecordRow: TypeAlias = tuple[int, int, str, bytes, bytes]
"""A row of the table `record`: key, epoch, kinds, body, hash."""
_INSERTS = {
    size: f"INSERT INTO record VALUES {','.join(('(?,?,?,?,?)',) * size)}"  # noqa: S608  only our own text
    for size in (64, 16, 4, 1)
}
"""Number of rows -> the statement that inserts them: few texts, so that each is compiled once."""
_AGAIN = 1.0
"""Seconds between two attempts to release runs that are owed."""


class Transaction:
    """The tools of a job: a cursor, the new rows of records, and the position of each lease within this batch."""

    __slots__ = ("_moved", "_rows", "cursor", "high_water")

    def __init__(self, cursor: apsw.Cursor) -> None:
        self.cursor = cursor
        self.high_water: HighWater | None = None
        """The position of a run after the last job changed it."""
        self._moved: dict[int, tuple[Lease, int, str]] = {}
        self._rows: list[RecordRow] = []

    def insert(self, row: RecordRow) -> None:
        """Insert the records of an append: at the end of the batch, together with those of other appends.

        Each statement competes with a busy event loop for the interpreter's lock.
        """
        self._rows.append(row)

    def flush(self) -> None:
        """Insert the rows that wait."""
        rows, self._rows = self._rows, []
        while rows:
            count = next(size for size in _INSERTS if size <= len(rows))
            self.cursor.execute(_INSERTS[count], [value for row in rows[:count] for value in row])
            del rows[:count]

    def position(self, lease: Lease) -> tuple[int, str]:
        """Return seq and head of a lease, with the earlier appends of this batch."""
        moved = self._moved.get(id(lease))
        return (lease.seq, lease.head) if moved is None else moved[1:]

    def move(self, lease: Lease, seq: int, head: str) -> None:
        """Advance a lease once the batch is committed."""
        self._moved[id(lease)] = lease, seq, head

    def landed(self) -> None:
        """Advance the leases after the commit."""
        for lease, seq, head in self._moved.values():
            lease.seq, lease.head = seq, head


class SqliteWriter(WriterThread[Transaction]):
    """Owns the writing connection from its start on. `poison` may be called from any thread."""

    def __init__(
        self,
        db: apsw.Connection,
        *,
        limit: int,
        explain: Callable[[BaseException], JournalError],
        name: str,
        noun: str = "journal",
        mark: HighWaterMark | None = None,
        heartbeat: Callable[[], float | None] = lambda: None,
        again: Callable[[], apsw.Connection | None] | None = None,
        fits: Callable[[apsw.Connection], bool] = lambda _: True,
        checkpoint_pages: int = CHECKPOINT_PAGES,
    ) -> None:
        super().__init__(limit=limit, name=name, noun=noun)
        self._mark = mark
        self._again = again
        """Opens another connection after a full disk; None while the disk has no room."""
        self._fits = fits
        """Whether the disk has room for a checkpoint."""
        self._checkpoint_pages = checkpoint_pages
        self._heartbeat = heartbeat
        """Renews the lease if that is due; returns the seconds until it is due again."""
        self.poisoned = False
        """The connection is doubtful: it is not synced again, not even when it is closed."""
        self.db = db
        """The connection; for the thread alone."""
        self._explain = explain
        self._due = 0.0
        """Earliest time to release runs that are owed, or to open the file again (monotonic)."""
        self._pages = 0
        """Pages in the write-ahead log, as SQLite reported after the last commit."""
        db.set_wal_hook(self._note_pages)
        self.start()

    def poison(self, why: BaseException) -> JournalError:
        """Refuse everything and return the reason: until there is room if the disk is full, else from now on."""
        if self.down is None:
            reason = self._explain(why)
            self.suspended = self._again is not None and getattr(reason, "kind", "") == "full"
            self.poisoned = not self.suspended
            self.down = reason
            self._bell.put(self.suspended)
        return self.down

    def _commit(self, jobs: Sequence[WriterJob[Transaction, Any]]) -> None:
        try:
            outcomes = self._transact(jobs)
        except TRANSIENT as error:
            self._due = time.monotonic() + _AGAIN
            self._put_off(jobs, self._explain(error))
        except FAULTS as error:
            self._due = time.monotonic() + _AGAIN
            reason = self.poison(error)
            fail = self._put_off if self.suspended else self._fail
            fail(jobs, reason)
        except Exception as error:  # noqa: BLE001  a job that fails must not fail the others
            self._one_by_one(jobs, error)
        else:
            self._deliver(outcomes)
            self._checkpoint()

    def _idle(self) -> float | None:
        due = self._heartbeat()
        if not (self._owed or self.suspended):
            return due
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _AGAIN
            if self.suspended:
                self._continue()
            if self.down is None:
                self._give_back()
        return _AGAIN if due is None else min(due, _AGAIN)

    def _continue(self) -> None:
        """Open the file again after a full disk, if the disk has room. What is wrong with it poisons the writer."""
        try:
            db = None if self._again is None else self._again()
        except (*TRANSIENT, *FAULTS, JournalError) as error:
            if getattr(self._explain(error), "kind", "") not in ("full", "locked"):
                self.down = None
                self.poison(error)
            return
        if db is None:
            return
        former, self.db, self._pages = self.db, db, 0
        _close_unsynced(former)
        db.set_wal_hook(self._note_pages)
        reason, self.down = self.down, None
        self.suspended = False
        _log.warning("the %s continues: its disk has room again. Before: %s", self._noun, reason)

    def _give_back(self) -> None:
        owed, self._owed = self._owed, []
        self._commit(owed)

    def _transact(self, jobs: Sequence[WriterJob[Transaction, Any]]) -> list[Outcome]:
        if self._mark is not None:
            self._mark.begin(self.db)
        for job in jobs:
            if job.first is not None:
                job.first()
        transaction = Transaction(self.db.cursor())
        transaction.cursor.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [_attempt(job, transaction) for job in jobs]
            transaction.flush()
            transaction.cursor.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(apsw.Error):
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
            raise
        if self._mark is not None and transaction.high_water is not None:
            self._mark.advance(transaction.high_water)
        transaction.landed()
        self.commits += 1
        return outcomes

    def _note_pages(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        try:
            if self._mark is not None:
                self._mark.settle(self.db)
            if self._pages >= self._checkpoint_pages and self._fits(self.db):
                self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except TRANSIENT:
            pass  # another process does it
        except FAULTS as error:
            self.poison(error)

    def _close(self) -> None:
        if self.poisoned:
            _close_unsynced(self.db)
            return
        self.db.set_wal_hook(None)
        if self._mark is not None:
            with contextlib.suppress(
                apsw.Error, OSError, Corrupt
            ):  # the next process that opens it closes it too
                self._mark.end(self.db)
        close(self.db)


def _close_unsynced(db: apsw.Connection) -> None:
    """Close a doubtful connection: the last one to close would checkpoint, and so sync once more."""
    with contextlib.suppress(apsw.Error):
        db.set_wal_hook(None)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.close(force=True)


def _attempt(job: WriterJob[Transaction, Any], transaction: Transaction) -> Outcome:
    try:
        return job, job.work(transaction), None
    except RunError as refused:
        return job, None, refused
