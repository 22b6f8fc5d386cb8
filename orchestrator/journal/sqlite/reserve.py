"""The reserve of a journal: room on its disk that only commands of operators may use when the disk is full.

`journal.db-reserve` is a file of SIZE allocated bytes without content. A process that has the journal open to write for
some seconds creates it, if the disk has room for several of them. It holds no record: it is never read, it is not
synced, and a journal without it, or with a shorter one, is complete.

- *A command of an operator* (`operate`, `runs cancel`, `runs prune`, `runs backup`) shortens it until GRANT bytes are
  free, and again before each further step. It takes a part and not the whole, because other programs on the disk may
  use what it releases before the command does.
- *The process that met the full disk* refuses everything until ROOM bytes are free, then opens the file again
  (`SqliteWriter`). While the reserve is short it starts nothing new, so that the room is left for requests: it creates
  no run, and resumes a run only to cancel it. Runs that are live continue.
- *Refilling.* When the disk has room again, the process fills the reserve, and starts runs again.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

import apsw

from orchestrator.errors import StoreDown
from orchestrator.journal.sqlite.place import beside

SIZE: Final = 8 << 20
"""Bytes of a reserve: the growth of the file at a checkpoint of a full log (4 MB), and several commands."""
GRANT: Final = 1 << 20
"""Bytes that are free when a command of an operator starts: it writes some tens of pages."""
ROOM: Final = 256 << 10
"""Free bytes with which a journal is opened again after a full disk."""
_SPARE: Final = 3
"""The reserve is created and filled only if the disk keeps room for this many more."""
EVERY: Final = 2.5
"""Seconds between two looks at the disk. The first look is after that time, so short commands create no reserve."""


class Reserve:
    """The reserve beside a journal. `size` is in bytes; 0 creates none. An `operator` uses it and does not fill it."""

    def __init__(self, path: Path, size: int = SIZE, *, operator: bool = False) -> None:
        self.operator = operator
        self._path = path
        self._file = beside(path, "-reserve")
        self._size = 0 if operator else size
        self._due = time.monotonic() + EVERY
        self.short = self._missing() not in (None, 0)
        """Whether the journal starts nothing new."""

    # ---- for the process that writes ----

    def keep(self) -> None:
        """Create or fill the reserve if that is due and the disk has room, and note whether it is short."""
        if not self._size or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY
        missing = self._missing()
        with contextlib.suppress(OSError):
            if self.free() >= self._needed():
                if missing != 0:
                    _allocate(self._file, self._size)
                self.short = False
            elif missing:
                self.short = True

    def note_full(self) -> None:
        """Start nothing new from now on, until the disk has room: it was full."""
        self._due = 0.0
        self.short = self._missing() is not None

    def refuse_new_run(self) -> None:
        """Raise StoreDown if the journal starts nothing new, and the disk has no room for the reserve yet."""
        if self.short and (free := self.free()) < (needed := self._needed()):
            raise StoreDown(
                f"the disk of journal {self._path} is full: no run is started until {needed:,} bytes are free "
                f"({free:,} are); free space there, for example with `orchestrator runs prune --vacuum`",
                "full",
            )

    def has_room(self) -> bool:
        """Return whether a journal that met a full disk can be opened again."""
        return self.free() >= ROOM

    def fits(self, db: apsw.Connection) -> bool:
        """Return whether the disk has room for a checkpoint of the log, and for a commit after it."""
        return self.free() >= self.growth(db) + ROOM

    def growth(self, db: apsw.Connection) -> int:
        """Return the bytes by which a checkpoint of the whole log makes the file longer."""
        pages, page = int(str(db.pragma("page_count"))), int(str(db.pragma("page_size")))
        return max(0, pages * page - self._path.stat().st_size)

    def free(self) -> int:
        """Return the bytes that this process can write to the disk."""
        disk = os.statvfs(self._path.parent)
        return disk.f_frsize * (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail)

    # ---- for commands of operators ----

    def grant(self, room: int = GRANT) -> int:
        """Return the free bytes; for an operator, after shortening the reserve until `room` are free, if it can."""
        free = self.free()
        if self.operator and free < room and (length := _length(self._file)):
            descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(descriptor, max(0, length - (room - free)))
                os.fsync(descriptor)  # some file systems can use the blocks only after that
            finally:
                os.close(descriptor)
            free = self.free()
        return free

    def left(self) -> int | None:
        """Return the bytes of the reserve; None if there is none."""
        return _length(self._file)

    def _missing(self) -> int | None:
        """Return the missing bytes of the reserve; None if there is none."""
        length = _length(self._file) if self._size else None
        return None if length is None else max(0, self._size - length)

    def _needed(self) -> int:
        """Return the free bytes with which runs start again."""
        missing = self._missing()
        return (self._size if missing is None else missing) + _SPARE * self._size


def _length(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None


def _allocate(file: Path, size: int) -> None:
    """Make a file so long, with allocated blocks. Raises OSError; then its length is unchanged."""
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        length = os.fstat(descriptor).st_size
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:  # zeros would take no room where files are compressed
                os.pwrite(descriptor, os.urandom(size - length), length)
        except OSError:
            os.ftruncate(descriptor, length)
            raise
    finally:
        os.close(descriptor)
