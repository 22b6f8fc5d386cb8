"""Map errors of SQLite and the system to our errors, each with one clear sentence.

The process that holds the write lock is found by /proc/locks, on Linux only. The journal is not opened for that:
SQLite's locks are POSIX locks, and a process that closes any descriptor of the file releases all of its locks.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from orchestrator.errors import Corrupt, JournalError, StoreDown

_LOCKS = Path("/proc/locks")
_WRITE_BYTE = 120
"""Offset of SQLite's WAL_WRITE_LOCK in the shared memory beside the file. The next bytes are for recovery,
checkpoints and readers, and for a short time a process can need one of them alone, too."""


class LockHolder(NamedTuple):
    """A process that holds the write lock."""

    pid: int
    stopped: bool
    """Whether a signal stopped it."""

    @property
    def hint(self) -> str:
        """The state of the process, and the action to take."""
        if self.stopped:
            return (
                f"it is stopped in the middle of a write, and nothing else can release its lock: continue it "
                f"(`kill -CONT {self.pid}`) or end it (`kill -KILL {self.pid}`)"
            )
        return f"it is busy or hangs: wait, or end it (`kill -KILL {self.pid}`)"


def lock_holder(path: Path) -> LockHolder | None:
    """Return the process that holds the write lock of a file, except this one; None if it is not known."""
    with contextlib.suppress(OSError):
        memory = path.with_name(f"{path.name}-shm").stat()
        file = f"{os.major(memory.st_dev):02x}:{os.minor(memory.st_dev):02x}:{memory.st_ino}"
        found = sorted(_exclusive(_LOCKS.read_text(), file))
        for _, pid in found:
            if pid > 0 and pid != os.getpid():  # 0: in another namespace
                return LockHolder(pid, _stopped(pid))
    return None


def _exclusive(locks: str, file: str) -> Iterator[tuple[int, int]]:
    """Yield byte and process of each exclusive lock of a file, from the text of /proc/locks (proc(5))."""
    for line in locks.splitlines():
        match line.split():
            case [_, "POSIX", _, "WRITE", pid, at, first, _] if at == file and int(first) >= _WRITE_BYTE:
                yield int(first), int(pid)


def _stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    return False


TRANSIENT = (apsw.BusyError, apsw.LockedError)
"""Another connection was in the way: nothing happened, and the store is in good state."""

FAULTS = (
    apsw.IOError,
    apsw.FullError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.NoMemError,
    apsw.ProtocolError,
    apsw.PermissionsError,
    OSError,
)
"""After one of these errors this connection cannot be trusted."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


_SENTENCES: tuple[tuple[type[BaseException], type[JournalError], str], ...] = (
    (apsw.BusyError, StoreDown, "was locked by {holder} for more than {busy:g} s: {advice}"),
    (apsw.LockedError, StoreDown, "was locked by {holder} for more than {busy:g} s: {advice}"),
    (apsw.NotADBError, Corrupt, "is not a SQLite database, or its first page is damaged"),
    (apsw.CorruptError, Corrupt, "is damaged: `doctor` it, or restore a backup"),
    (apsw.ReadOnlyError, StoreDown, "is read-only"),
    (apsw.CantOpenError, StoreDown, "cannot be opened for writing"),
    (apsw.PermissionsError, StoreDown, "cannot be opened for writing"),
    (apsw.IOError, StoreDown, "had an I/O error ({detail}): open the {noun} again"),
    (OSError, StoreDown, "had an I/O error ({detail}): open the {noun} again"),
    (
        apsw.SQLError,
        StoreDown,
        "failed ({detail}): if another version has upgraded it meanwhile, open it again",
    ),
    (BaseException, StoreDown, "failed ({detail})"),
)
"""The first matching sentence describes the error."""


def explain(error: BaseException, path: Path, busy: float, noun: str = "journal") -> JournalError:
    """Return the error to raise for an error of apsw or the system; `noun` is the user's word for the file."""
    if isinstance(error, JournalError):
        return error
    if is_full(error):
        return StoreDown(
            f"the disk of {noun} {path} is full: free space there; processes that have it open then continue",
            "full",
        )
    kind, sentence = next((kind, text) for of, kind, text in _SENTENCES if isinstance(error, of))
    known = {
        "busy": busy,
        "detail": _detail(error),
        "noun": noun,
        **(_holder(path) if _is_locked(error) else {}),
    }
    said = f"{noun} {path} {sentence.format(**known)}"
    return StoreDown(said, _kind(error)) if kind is StoreDown else kind(said)


def _is_locked(error: BaseException) -> bool:
    return isinstance(error, TRANSIENT)


def _holder(path: Path) -> dict[str, str]:
    """Return the holder of a file's lock, with advice for the user."""
    found = lock_holder(path)
    if found is None:
        return {"holder": "another process", "advice": "it is busy, or frozen"}
    return {"holder": f"process {found.pid}", "advice": found.hint}


def is_full(error: BaseException) -> bool:
    """Return whether the disk was full: SQLite reports missing room for its shared memory only in words."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    no_room = apsw.SQLITE_FULL, apsw.SQLITE_IOERR_SHMSIZE
    return isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) in no_room


def _kind(error: BaseException) -> str:
    if _is_locked(error):
        return "locked"
    return "io" if isinstance(error, apsw.IOError | OSError) else "other"


def _detail(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, apsw.Error):
        extended = getattr(error, "extendedresult", 0)
        return str(apsw.mapping_extended_result_codes.get(extended, error))
    return f"{type(error).__name__}: {error}"
