"""Who is alive on this machine, told by an OS lock and never by a clock.

Each open journal that owns runs holds an exclusive lock on a file of its own beside the journal. The kernel
frees it when the process dies, however it dies; so a run whose holder's file is free, or gone, may be claimed
at once, and a frozen process is still alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import weakref
from pathlib import Path

_held: weakref.WeakSet[Presence] = weakref.WeakSet()


class Presence:
    """The lock of one open journal. `token` (16 hex digits) names it in its runs' rows and in its slot of the mark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self.token = ""

    def begin(self) -> str:
        """Take the lock if that was not done yet; return the token."""
        while self._descriptor is None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            token = secrets.token_hex(8)
            file = self._folder / token
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            if _locked(descriptor, fcntl.LOCK_EX) and file.exists():
                self._descriptor, self.token = descriptor, token
                _held.add(self)
            else:  # somebody swept it away between the two calls
                os.close(descriptor)
        return self.token

    def end(self) -> None:
        """Let go of the lock: whatever this journal owned may be claimed."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                (self._folder / self.token).unlink(missing_ok=True)
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor only. In a forked child: the lock is the parent's, and stays so."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def alive(self, token: str | None) -> bool:
        """Whether the holder of a token lives."""
        return self.holds_lock(token)

    def holds_lock(self, token: str | None) -> bool:
        """Tell whether the process of a token has not ended. One that is frozen has not."""
        if not token or token == self.token:
            return bool(token)
        try:
            descriptor = os.open(self._folder / token, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two who ask at once do not take each other for the holder.
            return not _locked(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def sweep(self) -> None:
        """Remove the files of the dead. Under the write lock of the journal, so that nobody asks meanwhile."""
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


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go_in_child() -> None:
    """A child that kept the descriptor would keep its parent alive in everybody's eyes."""
    for presence in tuple(_held):
        presence.abandon()


os.register_at_fork(after_in_child=_let_go_in_child)
