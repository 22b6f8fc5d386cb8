"""The high-water mark of a journal, and the proof at each opening that it holds all acknowledged commits.

The file of the mark:

- The header has 512 bytes: magic, identity, checksum. It is written once, and synced.
- A slot is two copies of 512 bytes, which are written in turn.
- A copy has the token of the slot's process, the number of its writes, and the position of a run.

The proof has three sources: the mark beside the file, the use of the journal as the file itself records it (table
`mark`), and the log's own frames (`log`). What each of them proves, and why a crash or a power loss never looks like
damage, is said below.

SQLite recovers a write-ahead log up to its first wrong frame, and reads an earlier state without an error. So the
writer notes every commit in `journal.db-mark` before it acknowledges the commit, and a journal is used only if it
holds everything that the mark names.

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
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import apsw

from orchestrator.errors import Corrupt
from orchestrator.journal.sqlite import log, place, schema
from orchestrator.journal.sqlite.error_mapping import TRANSIENT
from orchestrator.journal.sqlite.owner import SqlitePresence
from orchestrator.journal.sqlite.schema import SHIFT, checksum, decoding, numbered_row, transaction

SECTOR = 512
SLOT = 2 * SECTOR
_MAGIC = b"FSMmark1"
_HEADER = struct.Struct("<8s16sI")
_COPY = struct.Struct("<8sQqqqq32s")
_SUM = struct.Struct("<I")
COPY = _COPY.size + _SUM.size

REMOVED = -1
"""In place of a record's number: the run was removed."""


class HighWater(NamedTuple):
    """The position of a run after a commit."""

    run: int = 0
    """Number of its row, 0 for none."""
    epoch: int = 0
    seq: int = 0
    """Number of the last record, or REMOVED."""
    requests: int = 0
    head: bytes = bytes(32)
    """Hash of the last record."""


class SlotCopy(NamedTuple):
    """The content of a slot."""

    token: str
    """Token of the process that has the slot, "" for none."""
    number: int
    """Number of the write: the higher one of the two copies is newer."""
    high_water: HighWater


class Mark(NamedTuple):
    """The content of a mark. `slots` has None if neither copy can be read."""

    identity: bytes
    slots: tuple[SlotCopy | None, ...]


def mark_of(path: Path) -> Path:
    """Return the path of the mark of a journal file."""
    return path.with_name(f"{path.name}-mark")


def read(path: Path) -> Mark | None:
    """Return the mark beside a journal file; None if it is missing or unreadable. Raises OSError."""
    try:
        content = mark_of(path).read_bytes()
    except FileNotFoundError:
        return None
    header = content[: _HEADER.size]
    if len(header) < _HEADER.size:
        return None
    magic, identity, total = _HEADER.unpack(header)
    if magic != _MAGIC or total != zlib.crc32(header[: -_SUM.size]):
        return None
    return Mark(identity, tuple(_slots(content)))


def _slots(content: bytes) -> Iterator[SlotCopy | None]:
    for start in range(SECTOR, len(content) - SLOT + 1, SLOT):
        copies = [_copy(content, start + at) for at in (0, SECTOR)]
        yield max((copy for copy in copies if copy is not None), key=lambda copy: copy.number, default=None)


def _copy(content: bytes, start: int) -> SlotCopy | None:
    packed = content[start : start + _COPY.size]
    if _SUM.unpack_from(content, start + _COPY.size)[0] != zlib.crc32(packed):
        return None
    token, number, *rest = _COPY.unpack(packed)
    return SlotCopy(token.hex() if any(token) else "", number, HighWater(*rest))


def packed_header(identity: bytes) -> bytes:
    """Return the first sector of a mark."""
    header = _HEADER.pack(_MAGIC, identity, 0)[: -_SUM.size]
    return (header + _SUM.pack(zlib.crc32(header))).ljust(SECTOR, b"\0")


def packed_copy(token: bytes, number: int, high_water: HighWater) -> bytes:
    """Return the COPY bytes of one copy; `token` has 8 bytes."""
    packed = _COPY.pack(token, number, *high_water)
    return packed + _SUM.pack(zlib.crc32(packed))


def packed_slot(token: bytes, number: int, high_water: HighWater) -> bytes:
    """Return a whole slot with two equal copies."""
    return packed_copy(token, number, high_water).ljust(SECTOR, b"\0") * 2


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
        found = read(self._path)  # read before the transaction starts, so that it cannot be ahead of it
        with schema.transaction(db) as cursor:  # one snapshot: another process may upgrade the file meanwhile
            schema.show_as_present(db, schema.JOURNAL)
            return problem(cursor, self._path, found)


def connect_proved(
    path: Path,
    *,
    busy: float,
    query_only: bool = False,
    upgrade: Callable[[apsw.Connection], None] | None = None,
) -> apsw.Connection:
    """Open a connection to a journal that holds all acknowledged commits. Raises StoreDown, Corrupt or TooNew."""
    check = IntegrityCheck(path)
    return schema.connect(path, busy=busy, query_only=query_only, prove=check, upgrade=upgrade)


def close_connection(db: apsw.Connection) -> None:
    """Close a connection. The last one lets SQLite remove the log, except for a journal that is in use."""
    in_use = True
    with suppress(apsw.Error, Corrupt):
        found = usage(db.cursor())
        in_use = found is not None and found.in_use
    with suppress(apsw.Error):
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(in_use))
        db.close(force=True)


def problem(cursor: apsw.Cursor, path: Path, found: Mark | None) -> str | None:
    """Return the fault, by a mark that was read before this transaction started; None without a fault."""
    used = usage(cursor)
    if used is None:
        return None
    name = mark_of(path).name
    if found is None or found.identity != used.identity:
        state = "is missing" if not mark_of(path).exists() else "is of another journal, or damaged"
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
    try:
        row = numbered_row(cursor, number)
    except Corrupt:  # reported by every read of this run, and not a fault of the log
        return None
    if row is None:
        last = cursor.execute("SELECT seq FROM sqlite_sequence WHERE name='run'").get or 0
        return None if int(last) >= number else f"run number {number} is missing"
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
    found = read(path)
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


_SLOTS = 4
"""Slots of a new file; it grows if more processes write at the same time."""
_FREE = packed_slot(bytes(8), 0, HighWater())


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
            found, used = read(self._path), usage(cursor)
            if wrong := problem(cursor, self._path, found):
                raise Corrupt(f"journal {self._path} {wrong}; {REMEDY}")
            used = used or _new_usage()
            if found is None or found.identity != used.identity:
                # Create a mark, durable with its name, for a journal that is not in use. Raises OSError.
                file = mark_of(self._path)
                file.unlink(missing_ok=True)
                descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "wb") as content:
                    content.write(packed_header(used.identity) + _FREE * _SLOTS)
                    content.flush()
                    os.fsync(descriptor)
                place.sync_folder(file.parent)
                made = (SlotCopy("", 0, HighWater()),) * _SLOTS
                found = Mark(used.identity, made)
            mapping = self._taken(found)
            log.sync(self._path.with_name(f"{self._path.name}-wal"))
            if not used.in_use:
                write_usage(cursor, used._replace(in_use=True))
            cursor.execute("COMMIT")
        self._map = mapping
        self._frame = int(db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0])
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
            self._map[start : start + COPY] = packed_copy(self._token, self._number, high_water)

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
        found = read(self._path)
        slots = () if found is None else found.slots
        tokens = {slot.token for slot in slots if slot is not None} - {self._token.hex()}
        return any(map(self._presence.holds_lock, tokens))

    def _taken(self, found: Mark) -> mmap.mmap:
        """Take a slot of no living process and keep its content. Needs the write lock. Raises OSError."""
        free = (
            at
            for at, slot in enumerate(found.slots)
            if not (slot is not None and self._presence.holds_lock(slot.token))
        )
        at = next(free, len(found.slots))
        slot = found.slots[at] if at < len(found.slots) else None
        self._start = SECTOR + at * SLOT
        self._number = 0 if slot is None else slot.number
        content = packed_slot(self._token, self._number, HighWater() if slot is None else slot.high_water)
        descriptor = os.open(mark_of(self._path), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, content, self._start)
            return mmap.mmap(descriptor, self._start + SLOT)
        finally:
            os.close(descriptor)


def _new_usage() -> JournalUsage:
    return JournalUsage(secrets.token_bytes(16), in_use=False)
