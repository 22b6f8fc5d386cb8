"""Choose and create the place of a journal file: a local, writable folder, and its reserve. No file is opened here.

SQLite's locks belong to the process: closing any other descriptor of the file would release them. So the file is
created before SQLite opens it, and afterwards only `stat` looks at it.

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
import errno
import glob
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from orchestrator.errors import Corrupt, StoreDown
from orchestrator.journal.sqlite.error_mapping import is_full

NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs"),
        *("nfs4", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "vboxsf", "vmhgfs"),
        *("fuse.ceph", "fuse.curlftpfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys"),
        *("fuse.gvfsd-fuse", "fuse.juicefs", "fuse.mfs", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs"),
        *("fuse.sshfs", "fuse.vmhgfs-fuse"),
    )
)
"""File systems whose locks and shared memory do not reach other hosts; write-ahead logs break on them."""

MOUNTS = Path("/proc/self/mountinfo")
_PARTS = f"-{'[0-9a-f]' * 16}.new"
"""End of the names of unfinished files, as a pattern."""
_ABANDONED = 3600
"""Seconds after which an unfinished file belongs to no living process: creating one takes milliseconds."""
_NO_LINKS = frozenset((errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK))
"""Errors of a file system without hard links (FAT)."""
_OCTAL = re.compile(r"\\([0-7]{3})")


def prepare(path: Path, content: Callable[[], bytes], noun: str = "journal") -> list[Path]:
    """Create the missing parts durably: the folders (0700), and the file (0600) with its content.

    The file gets its name when its content is complete, so that a process that opens it at the same time finds all of
    it, and none has to remove it again. A file that exists is not changed. Returns the created folders, innermost
    last. Raises StoreDown.
    """
    made: list[Path] = []
    try:
        for folder in reversed([parent for parent in path.parents if not parent.exists()]):
            folder.mkdir(mode=0o700, exist_ok=True)
            made.append(folder)
            sync_folder(folder.parent)
        refuse_network(path.parent, noun)
        if not path.exists():
            _create(path, content())
            sync_folder(path.parent)
    except BaseException as error:
        undo(made)
        if isinstance(error, OSError):
            kind = "full" if is_full(error) else "io"
            raise StoreDown(f"{noun} {path} cannot be created: {error.strerror or error}", kind) from error
        raise
    return made


def _create(path: Path, content: bytes) -> None:
    for left in path.parent.glob(glob.escape(path.name) + _PARTS):  # by a process that was killed here
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < time.time() - _ABANDONED:
                left.unlink()
    part = path.with_name(f"{path.name}-{secrets.token_hex(8)}.new")
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):  # another process was first
            try:
                os.link(part, path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # Empty, as SQLite itself creates a file: the first process that opens it creates its tables.
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    finally:
        part.unlink(missing_ok=True)


def refuse_orphaned_log(path: Path, noun: str = "journal") -> None:
    """Raise Corrupt if a log is beside a missing or empty file: SQLite would remove the log."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        log = path.with_name(f"{path.name}-wal")
        if log.stat().st_size and not (path.exists() and path.stat().st_size):
            raise Corrupt(
                f"{noun} {path} is missing or empty, and its log {log.name} is not: put the file back, or restore a "
                f"backup; to start anew, remove {log.name} and {path.name}-mark"
            )


def beside(path: Path, suffix: str) -> Path:
    """Return the path of a file that belongs to a journal file."""
    return path.with_name(path.name + suffix)


def undo(made: list[Path]) -> None:
    """Remove the folders that `prepare` created, if they are still empty."""
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            folder.rmdir()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_network(folder: Path, noun: str = "journal") -> None:
    """Raise StoreDown if the folder is on a network file system.

    Only Linux reports that; other systems refuse nothing.
    """
    kind = file_system(folder)
    if kind in NETWORK:
        raise StoreDown(f"{noun} folder {folder} is on {kind}, a network file system: choose a local disk")


def file_system(folder: Path) -> str:
    """Return the type of the file system of a folder, or "" if the system does not report it."""
    try:
        return mounted_at(folder.resolve(), os.fsdecode(MOUNTS.read_bytes()))
    except OSError:
        return ""


def mounted_at(folder: Path, mountinfo: str) -> str:
    """Return the type of the file system of an absolute folder, from the text of mountinfo (proc(5)).

    A line has the mount point in field 5, with blanks and backslashes in octal, and after a lone dash the type.
    """
    best, kind = -1, ""
    for line in mountinfo.split("\n"):
        before, dash, after = line.partition(" - ")
        if not dash:
            continue
        point = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), before.split(" ")[4]))
        if (
            folder.is_relative_to(point) and len(point.parts) >= best
        ):  # of two mounts on one point the later one is visible
            best, kind = len(point.parts), after.split(" ")[0]
    return kind


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
                    # Make a file so long, with allocated blocks. Raises OSError; then its length is unchanged.
                    descriptor = os.open(self._file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                    try:
                        length = os.fstat(descriptor).st_size
                        try:
                            if hasattr(os, "posix_fallocate"):
                                os.posix_fallocate(descriptor, 0, self._size)
                            else:  # zeros would take no room where files are compressed
                                os.pwrite(descriptor, os.urandom(self._size - length), length)
                        except OSError:
                            os.ftruncate(descriptor, length)
                            raise
                    finally:
                        os.close(descriptor)
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
