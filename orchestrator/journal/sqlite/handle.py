"""An open journal: two connections, the writer, the lock that proves the process lives, and their release."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

import apsw

from orchestrator.errors import JournalError
from orchestrator.journal.sqlite import high_water, place, schema
from orchestrator.journal.sqlite.error_mapping import TRANSIENT, explain
from orchestrator.journal.sqlite.high_water import HighWaterMark
from orchestrator.journal.sqlite.owner import TTL, SqlitePresence
from orchestrator.journal.sqlite.place import EVERY, GRANT, Reserve, beside
from orchestrator.journal.sqlite.read import NoWriter, connect_to_read
from orchestrator.journal.sqlite.row import Blobs
from orchestrator.journal.sqlite.schema import transaction
from orchestrator.journal.sqlite.upgrade import upgrade_file
from orchestrator.journal.sqlite.writer import CHECKPOINT_PAGES, SqliteWriter

OPERATOR_PAGES = 100
"""Length of the log that triggers a checkpoint in a command of an operator: a short log needs little room."""

_abandoned: list[object] = []
"""Connections of a parent, kept by a forked child: closing them would touch locks that the child does not have."""


class SqliteHandle:
    """All open resources. The constructor opens them, or raises and changes nothing."""

    def __init__(
        self,
        path: Path,
        *,
        queue: int,
        busy: float,
        ttl: float = TTL,
        reserve: int = 0,
        only_reads: bool = False,
        operator: bool = False,
    ) -> None:
        # SQLite's log is beside the target of a link, and so are the other files.
        with contextlib.suppress(OSError, RuntimeError):  # a loop of links is refused at the open
            path = path.resolve()
        self.path = path
        self.busy = busy
        self.pid = os.getpid()
        self.presence = SqlitePresence(beside(path, "-owners"), ttl)
        self.blobs = Blobs(beside(path, "-blobs"), self.presence.begin)
        self.reserve = Reserve(path, 0 if only_reads else reserve, operator=operator)
        self.writer: SqliteWriter
        if only_reads:
            self.reader = connect_to_read(path, busy=busy)
            self.writer = NoWriter(path, self.explain)
            return
        place.refuse_orphaned_log(path)
        made = place.prepare(path, schema.JOURNAL.image)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(place.undo, made)
            self.reserve.grant()
            db = high_water.connect_proved(
                path, busy=busy, upgrade=functools.partial(upgrade_file, path=path, busy=busy)
            )
            on_failure.callback(high_water.close_connection, db)
            self.reader = high_water.connect_proved(path, busy=busy, query_only=True)
            on_failure.callback(high_water.close_connection, self.reader)
            try:
                HighWaterMark.identify(db)
                # Copy the log into the file. On a full disk the log keeps its length: its room is for further commits.
                if not self.reserve.operator or self.reserve.free() >= self.reserve.growth(db) + GRANT:
                    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                elif self.reserve.grant(self.reserve.growth(db) + GRANT) and self.reserve.fits(db):
                    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                with transaction(db, "IMMEDIATE") as cursor:
                    self.presence.sweep()
                    self.blobs.sweep(cursor, self.presence.holds_lock)
            except TRANSIENT:
                pass  # other processes are active: they do this, or the next one that opens the journal
            except apsw.Error as error:
                raise self.explain(error) from error
            self.writer = SqliteWriter(
                db,
                limit=queue,
                explain=self._explained,
                name=self.path.name,
                mark=HighWaterMark(self.path, self.presence, self.reserve.fits),
                heartbeat=self._beat,
                again=self._again,
                fits=self.reserve.fits,
                checkpoint_pages=OPERATOR_PAGES if self.reserve.operator else CHECKPOINT_PAGES,
            )
            on_failure.pop_all()

    def size(self) -> int:
        """Return the bytes of the file, of its log and of the blobs beside it."""
        files = [self.path, beside(self.path, "-wal")]
        blobs = beside(self.path, "-blobs")
        if blobs.is_dir():
            files += blobs.iterdir()
        total = 0
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                total += file.stat().st_size
        return total

    def explain(self, error: BaseException) -> JournalError:
        """Return one of our errors for an error."""
        return explain(error, self.path, self.busy)

    def _explained(self, error: BaseException) -> JournalError:
        """Return one of our errors for an error of the writer, and start nothing new after a full disk."""
        explained = self.explain(error)
        if getattr(explained, "kind", "") == "full":
            self.reserve.note_full()
        return explained

    def _beat(self) -> float | None:
        """Renew the heartbeat, keep the reserve, and return the seconds until the next heartbeat.

        In the writer's thread.
        """
        due = self.presence.renew()
        if due is not None or self.reserve.short:
            self.reserve.keep()
        return EVERY if due is None and self.reserve.short else due

    def _again(self) -> apsw.Connection | None:
        """Open another connection after a full disk; None while the disk has no room."""
        return high_water.connect_proved(self.path, busy=self.busy) if self.reserve.has_room() else None

    def sweep(self) -> None:
        """Remove the files of blobs that no run names any more. In the writer's thread.

        It runs before a batch and not in it: a rollback would restore a row that the batch removed, but not the file.
        """
        with transaction(self.writer.db, "IMMEDIATE") as cursor:
            self.blobs.sweep(cursor, self.presence.holds_lock)

    def truncate(self) -> None:
        """Empty the log, unless it has readers."""
        # Not through the reader, which may only query.
        db = high_water.connect_proved(self.path, busy=self.busy)
        try:
            with contextlib.suppress(*TRANSIENT):
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            high_water.close_connection(db)

    def close(self) -> None:
        """Write the queued jobs, then release everything.

        A second call has no effect. In a forked child the resources belong to the parent.
        """
        if self.pid != os.getpid():
            self.abandon()
            return
        poisoned = self.writer.poisoned
        self.writer.stop()
        if poisoned:
            with contextlib.suppress(apsw.Error):
                self.reader.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                self.reader.close(force=True)
        else:
            high_water.close_connection(self.reader)
        self.presence.end()

    def abandon(self) -> None:
        """Drop everything without touching it."""
        _abandoned.append(self)
