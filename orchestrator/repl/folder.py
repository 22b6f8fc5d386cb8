"""Create, lock and remove the folder of a worker, and remove folders of programs that have ended.

A program that is killed cannot remove its folder. So the program that creates a folder holds a lock on it; the kernel
releases the lock when the program ends in any way. The first worker of a program removes all unlocked folders. A
process number in the name would not work: it has no meaning if containers share a folder for temporary files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path

from orchestrator.repl.isolation import FIRST_USER, USERS

PREFIX = "orchestrator-repl-"
YOUNG = 60.0
"""Seconds in which an unlocked folder is kept, because it may be new."""
_SWEPT: set[str] = set()
"""Places that this program has already swept."""


class ScratchFolder:
    """A new folder. Raises OSError if none can be created."""

    def __init__(self) -> None:
        self.path = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX))
        self._descriptor: int | None = None
        # On a file system without locks, no later program removes the folder.
        with contextlib.suppress(OSError):
            self._descriptor = _descriptor(self.path)

    def remove(self) -> None:
        """Remove the folder and its content; a second call has no effect."""
        removed(self.path)
        held, self._descriptor = self._descriptor, None
        if held is not None:
            os.close(held)


def sweep() -> None:
    """Remove folders of programs that have ended; once for each place with such folders."""
    place = tempfile.gettempdir()
    if place in _SWEPT:
        return
    _SWEPT.add(place)
    with contextlib.suppress(OSError), os.scandir(place) as found:
        for entry in found:
            if entry.name.startswith(PREFIX):
                _sweep(entry.path)


def _sweep(path: str) -> None:
    with contextlib.suppress(OSError):
        if not _is_old_and_ours(os.lstat(path)):
            return
        held = _descriptor(path)
        try:
            removed(path)
        finally:
            os.close(held)


def _is_old_and_ours(found: os.stat_result) -> bool:
    user = os.geteuid()
    workers = range(FIRST_USER, FIRST_USER + USERS) if user == 0 else ()
    ours = found.st_uid == user or found.st_uid in workers
    return stat.S_ISDIR(found.st_mode) and ours and time.time() - found.st_mtime > YOUNG


def _descriptor(path: str) -> int:
    """Open and lock a folder. Raises OSError if another process holds the lock, or it is not a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def removed(path: str) -> None:
    """Remove a folder of any depth: up to Python 3.12 rmtree recurses for each level."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:
        with contextlib.suppress(OSError):
            _flatten(path)
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


def _flatten(path: str) -> None:
    """Move every folder of a tree to its top. Raises OSError."""
    below = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    while below:
        for entry in list(os.scandir(below.pop())):
            if entry.is_dir(follow_symlinks=False):
                below.append(f"{path}/{secrets.token_hex(16)}")
                Path(entry.path).rename(below[-1])
