"""The one thread that writes: it takes whatever waits, commits it together, then tells each who asked (`writing`).

One sync makes all of a batch durable (group commit), which is what makes synchronous=FULL cheap. A job that is
refused (Fenced, Held, RunExists, RunUnknown) has changed nothing, so its batch goes on. Anything that makes the
connection doubtful poisons the writer for good: `down` says why, nothing is tried again, least of all a sync,
which may report success for pages that the kernel has dropped already.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from orchestrator.errors import Corrupt, JournalError, RunError
from orchestrator.journal.sqlite.error_mapping import FAULTS, TRANSIENT
from orchestrator.journal.sqlite.high_water import HighWaterMark
from orchestrator.journal.sqlite.mark import HighWater
from orchestrator.journal.sqlite.proof import close
from orchestrator.journal.writer_thread import DeferredWork, Outcome, WriterJob, WriterThread
from orchestrator.kernel.journal import Lease

CHECKPOINT_PAGES = 1000
"""Length of the write-ahead log from which it is copied back. By us and not by SQLite, which would swallow errors."""

_AGAIN = 1.0
"""Seconds between two attempts to give back runs that are owed."""


class Transaction:
    """What a job works with: a cursor, and where each lease stands within this batch."""

    __slots__ = ("_moved", "cursor", "high_water")

    def __init__(self, cursor: apsw.Cursor) -> None:
        self.cursor = cursor
        self.high_water: HighWater | None = None
        """Where a run that the last job changed stands after it."""
        self._moved: dict[int, tuple[Lease, int, str]] = {}

    def position(self, lease: Lease) -> tuple[int, str]:
        """Return seq and head of a lease, earlier appends of this batch included."""
        moved = self._moved.get(id(lease))
        return (lease.seq, lease.head) if moved is None else moved[1:]

    def move(self, lease: Lease, seq: int, head: str) -> None:
        """Move a lease on, once this is committed."""
        self._moved[id(lease)] = lease, seq, head

    def landed(self) -> None:
        """It is committed."""
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
    ) -> None:
        super().__init__(limit=limit, name=name, noun=noun)
        self._mark = mark
        self._heartbeat = heartbeat
        """Renews the lease if that is due; returns in how many seconds it is due again."""
        self.poisoned = False
        """The connection is doubtful: it is not synced again, not even when it is closed."""
        self._db = db
        self._explain = explain
        self._due = 0.0
        """When runs that are owed may be given back, at the earliest (monotonic)."""
        self._pages = 0
        """In the write-ahead log, as SQLite told after the last commit."""
        db.set_wal_hook(self._note_pages)
        self.start()

    def poison(self, why: BaseException) -> JournalError:
        """Refuse everything from now on; from any thread. Return the reason."""
        if self.down is None:
            self.down = self._explain(why)
            self.poisoned = True
            self._end()
        return self.down

    def _commit(self, jobs: Sequence[WriterJob[Transaction, Any]]) -> None:
        try:
            outcomes = self._transact(jobs)
        except TRANSIENT as error:
            self._due = time.monotonic() + _AGAIN
            for job in jobs:
                if isinstance(job.work, DeferredWork):
                    self._owe(job)
                else:
                    self._fail((job,), self._explain(error))
        except FAULTS as error:
            self._fail(jobs, self.poison(error))
        except Exception as error:  # noqa: BLE001  a job that cannot be carried out must not take others with it
            self._one_by_one(jobs, error)
        else:
            self._deliver(outcomes)
            self._checkpoint()

    def _idle(self) -> float | None:
        due = self._heartbeat()
        if not self._owed:
            return due
        if time.monotonic() >= self._due:
            self._give_back()
        return _AGAIN if due is None else min(due, _AGAIN)

    def _give_back(self) -> None:
        owed, self._owed = self._owed, []
        self._commit(owed)

    def _transact(self, jobs: Sequence[WriterJob[Transaction, Any]]) -> list[Outcome]:
        if self._mark is not None:
            self._mark.begin(self._db)
        for job in jobs:
            if job.first is not None:
                job.first()
        transaction = Transaction(self._db.cursor())
        transaction.cursor.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [_attempt(job, transaction) for job in jobs]
            transaction.cursor.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(apsw.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
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
                self._mark.settle(self._db)
            if self._pages >= CHECKPOINT_PAGES:
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except TRANSIENT:
            pass  # another process does it
        except FAULTS as error:
            self.poison(error)

    def _close(self) -> None:
        with contextlib.suppress(apsw.Error):
            self._db.set_wal_hook(None)
            if self.poisoned:  # the last connection to close would checkpoint, that is: sync once more
                self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                self._db.close(force=True)
                return
        if self._mark is not None:
            with contextlib.suppress(
                apsw.Error, OSError, Corrupt
            ):  # the next one to open it closes it as well
                self._mark.end(self._db)
        close(self._db)


def _attempt(job: WriterJob[Transaction, Any], transaction: Transaction) -> Outcome:
    try:
        return job, job.work(transaction), None
    except RunError as refused:
        return job, None, refused
