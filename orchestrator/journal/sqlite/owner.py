"""Decide which owners on this host live: by an OS lock, and by a heartbeat that expires.

Each open journal that owns runs has its own file beside the journal, with an exclusive lock and a heartbeat.

- *The lock* shows a process that ended. The operating system releases it however the process ends, so its runs can be
  claimed at once.
- *The heartbeat* shows a process that is frozen and keeps its lock. The writer thread renews it in the file every
  `ttl / BEATS` seconds; nothing is synced, and the database is not written. After `ttl` seconds without one the lease
  has expired: other processes can claim the runs, and the next append of the frozen process raises Fenced.
- *The clock* is CLOCK_MONOTONIC, which all processes of a host share. It does not jump, and it stops while the host
  is suspended, so no lease expires during suspension. A heartbeat from the future is of another time namespace: such
  a lease does not expire. A reboot restarts the clock and frees the locks.
- *An owner of an earlier version* writes no heartbeat. Its lease does not expire while it has its lock.

A heartbeat decides only when a run can be claimed. The epoch in each append decides who may write, so a wrong
suspicion costs a repeated step and never a record.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import secrets
import struct
import time
import weakref
import zlib
from pathlib import Path
from typing import Final, NamedTuple

TTL: Final = 10.0
"""Seconds without a heartbeat after which a lease expires."""
LEAST_TTL: Final = 1.0
BEATS: Final = 4
"""Heartbeats in that time."""
_HEARTBEAT: Final = struct.Struct("<qdd")
"""Process id, ttl, and the time of the heartbeat (monotonic); a CRC-32 follows."""
_SUM: Final = struct.Struct("<I")

_open: weakref.WeakSet[SqlitePresence] = weakref.WeakSet()


class HolderState(NamedTuple):
    """The state of the holder of a lease."""

    expires_in: float
    """Seconds until the lease expires; 0 if it has expired or the process ended; infinite if it does not expire."""
    silence: float = 0.0
    """Seconds since the last heartbeat."""
    overdue: bool = False
    """Whether heartbeats are missing."""
    pid: int = 0
    """Process id, 0 if it is not known."""

    @property
    def renewed_at(self) -> float | None:
        """Time of the last heartbeat of a living holder (epoch seconds); None if it is not known."""
        return time.time() - self.silence if self.alive and self.pid else None

    @property
    def alive(self) -> bool:
        """Whether the lease is valid."""
        return self.expires_in > 0

    @property
    def warning(self) -> str:
        """A sentence about an owner that has missed heartbeats; empty for any other."""
        if not self.overdue:
            return ""
        return (
            f"its process {self.pid} has sent no heartbeat for {self.silence:.0f} s: it is stopped or hangs. "
            f"Its lease expires in {math.ceil(self.expires_in)} s; after that, another process can resume the run"
        )


_ENDED: Final = HolderState(0.0)
_VALID: Final = HolderState(math.inf)


class SqlitePresence:
    """The lock and heartbeat of one open journal.

    `token` (16 hex digits) names it in its runs' rows and in its slot of the mark. `ttl` is in seconds.
    """

    def __init__(self, folder: Path, ttl: float = TTL) -> None:
        self._folder = folder
        self._ttl = ttl
        self._descriptor: int | None = None
        self._due = 0.0
        """Time of the next heartbeat (monotonic)."""
        self.token = ""

    def begin(self) -> str:
        """Take the lock if it is not taken yet; return the token."""
        while self._descriptor is None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            token = secrets.token_hex(8)
            file = self._folder / token
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            if _locked(descriptor, fcntl.LOCK_EX) and file.exists():
                self._descriptor, self.token = descriptor, token
                _open.add(self)
                self.renew()
            else:  # another process swept it between the two calls
                os.close(descriptor)
        return self.token

    def end(self) -> None:
        """Release the lock: all runs of this journal may be claimed."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                (self._folder / self.token).unlink(missing_ok=True)
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor only. In a forked child: the lock stays with the parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def renew(self) -> float | None:
        """Write a heartbeat if one is due; return the seconds until the next one. None before `begin`.

        It runs in the writer thread. If a heartbeat cannot be written, the only effect is that the lease may expire.
        """
        if self._descriptor is None:
            return None
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._ttl / BEATS
            packed = _HEARTBEAT.pack(os.getpid(), self._ttl, now)
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, packed + _SUM.pack(zlib.crc32(packed)), 0)
        return max(0.0, self._due - now)

    def state(self, token: str | None) -> HolderState:
        """Return the state of the holder of a token."""
        if not token:
            return _ENDED
        if token == self.token:
            return HolderState(math.inf, pid=os.getpid())
        try:
            descriptor = os.open(self._folder / token, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return _ENDED
        try:
            # Shared, so that two concurrent checks do not take each other for the holder.
            if _locked(descriptor, fcntl.LOCK_SH):
                return _ENDED
            return _state(os.pread(descriptor, _HEARTBEAT.size + _SUM.size, 0))
        finally:
            os.close(descriptor)

    def alive(self, token: str | None) -> bool:
        """Return whether the holder of a token has a valid lease."""
        return self.state(token).alive

    def holds_lock(self, token: str | None) -> bool:
        """Return whether the process of a token has not ended. A frozen process has not."""
        if not token or token == self.token:
            return bool(token)
        try:
            descriptor = os.open(self._folder / token, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two concurrent checks do not take each other for the holder.
            return not _locked(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def living(self) -> list[int]:
        """Return the process id of each other living holder, 0 if it is not known."""
        if not self._folder.is_dir():
            return []
        tokens = [file.name for file in self._folder.iterdir() if file.name != self.token]
        return [self.state(token).pid for token in tokens if self.holds_lock(token)]

    def sweep(self) -> None:
        """Remove the files of dead processes. Under the write lock of the journal, so that no check runs meanwhile."""
        if not self._folder.is_dir():
            return
        for file in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if file.name != self.token and _locked(descriptor, fcntl.LOCK_EX):
                        file.unlink()
                finally:
                    os.close(descriptor)


def _state(heartbeat: bytes) -> HolderState:
    """Return the state of a living process from its heartbeat. An unreadable heartbeat proves nothing."""
    packed = heartbeat[: _HEARTBEAT.size]
    if len(heartbeat) != _HEARTBEAT.size + _SUM.size or heartbeat[len(packed) :] != _SUM.pack(
        zlib.crc32(packed)
    ):
        return _VALID
    pid, ttl, at = _HEARTBEAT.unpack(packed)
    silence = time.monotonic() - at
    if silence < 0:
        return HolderState(math.inf, pid=pid)
    return HolderState(max(0.0, ttl - silence), silence, silence > 2 * ttl / BEATS, pid)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go_in_child() -> None:
    """Close the descriptors: in a forked child they would make its dead parent look alive."""
    for presence in tuple(_open):
        presence.abandon()


os.register_at_fork(after_in_child=_let_go_in_child)
