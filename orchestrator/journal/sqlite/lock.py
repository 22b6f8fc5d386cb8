"""Find the process that holds the write lock of a SQLite file, by /proc/locks. Linux only.

The file is not opened for that: SQLite's locks are POSIX locks, and a process that closes any descriptor of the file
releases all of its locks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
