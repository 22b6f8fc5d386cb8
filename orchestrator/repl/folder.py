"""The folder of a worker: made, held as long as its program lives, taken away; and those whose programs are gone.

A program that is killed takes no folder away. So whoever makes one holds a lock on it, which the kernel opens when that
program ends, however it ends; and the first worker that a program starts takes away what nobody holds. The number of a
process in the name would not do: where containers share a folder for temporary files, it says nothing.
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
"""Seconds in which a folder is left alone that nobody holds: it may have been made just now."""
_SWEPT: set[str] = set()
"""Where this program has looked for folders of the dead."""


class ScratchFolder:
    """A new folder. Raises OSError where none can be made."""

    def __init__(self) -> None:
        self.path = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX))
        self._held: int | None = None
        # A file system without locks: then nobody takes away what is left there.
        with contextlib.suppress(OSError):
            self._held = _held(self.path)

    def remove(self) -> None:
        """Take it away, with all that is in it; twice does nothing."""
        removed(self.path)
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


def sweep() -> None:
    """Take away folders of programs that are gone; once for each place where such folders are."""
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
        held = _held(path)
        try:
            removed(path)
        finally:
            os.close(held)


def _is_old_and_ours(found: os.stat_result) -> bool:
    user = os.geteuid()
    workers = range(FIRST_USER, FIRST_USER + USERS) if user == 0 else ()
    ours = found.st_uid == user or found.st_uid in workers
    return stat.S_ISDIR(found.st_mode) and ours and time.time() - found.st_mtime > YOUNG


def _held(path: str) -> int:
    """Open a folder and hold it. Raises OSError where somebody else does, or it is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def removed(path: str) -> None:
    """Take a folder away, however deep the code made it: rmtree calls itself for each level, up to Python 3.12."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:
        with contextlib.suppress(OSError):
            _flatten(path)
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


def _flatten(path: str) -> None:
    """Bring every folder of a tree up to its top. Raises OSError."""
    below = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    while below:
        for entry in list(os.scandir(below.pop())):
            if entry.is_dir(follow_symlinks=False):
                below.append(f"{path}/{secrets.token_hex(16)}")
                Path(entry.path).rename(below[-1])
