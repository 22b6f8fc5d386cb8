"""The high-water mark of a journal: the last acknowledged commit of each process, in a file beside the journal.

SQLite recovers a write-ahead log up to its first wrong frame, and reads an earlier state without an error. So the
writer notes every commit in `journal.db-mark` before it acknowledges the commit, and a journal is used only if it
holds everything that the mark names (`proof`).

- *A note* has the position of one run of the commit: epoch, number and hash of the last record (the hash covers all
  records before it), number of requests; or that the run was removed. Recovery keeps the first commits of a log, so a
  journal that holds the noted commit holds all earlier ones. No counter in the database is needed, which would add a
  page to each commit. A note stays true for every later state of the journal, so notes are never deleted.
- *Each process has a slot*, assigned under the write lock of the journal. Commits of different processes need no
  common order: the journal must agree with every slot. The slot of a dead process is reused; the first commit of its
  new owner is later than all of the dead one.
- *A slot has two copies* in different sectors, written in turn through a memory mapping: no system call, and no
  release of the interpreter's lock. A kill in the middle of a write leaves the other copy, which names the commit
  before; the interrupted one was not acknowledged. The mapping can end the process with SIGBUS where the mapping of
  SQLite's `-shm` file can: the file is cut, or a copy-on-write file system is full.
- *The mark is not synced.* The commit is synced before it is noted. So after a power loss the mark may be behind or
  unreadable, but never ahead.
- *A missing file is noticed.* The table `mark` in the main file shows whether the journal is in use. The main file, the
  mark and the name of the log are durable before the first acknowledgement. The last process that closes the journal
  resets the flag; until then no closing connection removes the log. If a reader keeps an old state of the main file,
  the flag reaches that file later: the writer tries again after each commit.
- *Identity.* Table and mark share a random number, which is new for each journal; a backup gets one when it is first
  opened. The mark of another journal proves nothing. If the journal is not in use, it is replaced, else refused.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import apsw

from orchestrator.errors import Corrupt
from orchestrator.journal.sqlite import log, mark, place
from orchestrator.journal.sqlite.error_mapping import TRANSIENT
from orchestrator.journal.sqlite.mark import COPY, SECTOR, SLOT, HighWater
from orchestrator.journal.sqlite.owner import SqlitePresence
from orchestrator.journal.sqlite.proof import REMEDY, JournalUsage, problem, usage, write_usage
from orchestrator.journal.sqlite.schema import transaction

_SLOTS = 4
"""Slots of a new file; it grows if more processes write at the same time."""
_FREE = mark.packed_slot(bytes(8), 0, HighWater())


class HighWaterMark:
    """The slot of one open journal. Everything here belongs to the thread that writes."""

    def __init__(
        self, path: Path, presence: SqlitePresence, fits: Callable[[apsw.Connection], bool] = lambda _: True
    ) -> None:
        self._path = path
        self._presence = presence
        self._fits = fits
        """Whether the disk has room for a checkpoint."""
        self._map: mmap.mmap | None = None
        self._token = b""
        self._start = 0
        """Offset of the slot."""
        self._number = 0
        self._frame = 0
        """Frames of the log that must be in the main file, so that it records that the journal is in use."""
        self._settled = False

    @staticmethod
    def identify(db: apsw.Connection) -> None:
        """Give a journal the identity of its marks, if it has none. Raises SQLite's errors."""
        if usage(db.cursor()) is None:
            with transaction(db, "IMMEDIATE") as cursor:
                if usage(cursor) is None:
                    write_usage(cursor, _new_usage())
                    cursor.execute("COMMIT")

    def begin(self, db: apsw.Connection) -> None:
        """Record that the journal is in use, and take a slot, before the first transaction.

        Raises Corrupt, OSError, and SQLite's errors.
        """
        if self._map is not None:
            return
        self._token = bytes.fromhex(self._presence.begin())
        with transaction(db, "IMMEDIATE") as cursor:
            found, used = mark.read(self._path), usage(cursor)
            if wrong := problem(cursor, self._path, found):
                raise Corrupt(f"journal {self._path} {wrong}; {REMEDY}")
            used = used or _new_usage()
            if found is None or found.identity != used.identity:
                found = mark.Mark(used.identity, self._made(used.identity))
            mapping = self._taken(found)
            log.sync(self._path.with_name(f"{self._path.name}-wal"))
            if not used.in_use:
                write_usage(cursor, used._replace(in_use=True))
            cursor.execute("COMMIT")
        self._map = mapping
        self._frame = _frames(db)
        self.settle(db)

    def settle(self, db: apsw.Connection) -> None:
        """Copy the record of the use into the main file, unless it is there, or a reader or a full disk prevents it."""
        if self._settled or self._map is None or not self._fits(db):
            return
        with contextlib.suppress(*TRANSIENT):
            frames, copied = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._settled = copied >= self._frame or frames < self._frame

    def advance(self, high_water: HighWater) -> None:
        """Note a commit, before it is acknowledged."""
        if self._map is not None:
            self._number += 1
            start = self._start + SECTOR * (self._number & 1)
            self._map[start : start + COPY] = mark.packed_copy(self._token, self._number, high_water)

    def end(self, db: apsw.Connection) -> None:
        """Record that the journal is closed, unless another process has it open to write. Raises SQLite's errors."""
        used = usage(db.cursor())
        if used is not None and used.in_use and not self._others():
            with transaction(db, "IMMEDIATE") as cursor:
                if not self._others():
                    write_usage(cursor, used._replace(in_use=False))
                    cursor.execute("COMMIT")
        if self._map is not None:
            self._map.close()
            self._map = None

    def _others(self) -> bool:
        """Return whether another living process has a slot."""
        found = mark.read(self._path)
        slots = () if found is None else found.slots
        tokens = {slot.token for slot in slots if slot is not None} - {self._token.hex()}
        return any(map(self._presence.holds_lock, tokens))

    def _made(self, identity: bytes) -> tuple[mark.SlotCopy, ...]:
        """Create a mark, durable with its name, for a journal that is not in use. Raises OSError."""
        file = mark.mark_of(self._path)
        file.unlink(missing_ok=True)
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as content:
            content.write(mark.packed_header(identity) + _FREE * _SLOTS)
            content.flush()
            os.fsync(descriptor)
        place.sync_folder(file.parent)
        return (mark.SlotCopy("", 0, HighWater()),) * _SLOTS

    def _taken(self, found: mark.Mark) -> mmap.mmap:
        """Take a slot of no living process and keep its content. Needs the write lock. Raises OSError."""
        free = (at for at, slot in enumerate(found.slots) if not self._is_reserved(slot))
        at = next(free, len(found.slots))
        slot = found.slots[at] if at < len(found.slots) else None
        self._start = SECTOR + at * SLOT
        self._number = 0 if slot is None else slot.number
        content = mark.packed_slot(
            self._token, self._number, HighWater() if slot is None else slot.high_water
        )
        descriptor = os.open(mark.mark_of(self._path), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, content, self._start)
            return mmap.mmap(descriptor, self._start + SLOT)
        finally:
            os.close(descriptor)

    def _is_reserved(self, slot: mark.SlotCopy | None) -> bool:
        return slot is not None and self._presence.holds_lock(slot.token)


def _new_usage() -> JournalUsage:
    return JournalUsage(secrets.token_bytes(16), in_use=False)


def _frames(db: apsw.Connection) -> int:
    return int(db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0])
