"""Open paths below a folder so that no symlink or swapped folder can redirect them. Every call blocks.

A path is relative to its root, and each folder of it is opened from the one before, without following symlinks: a
link inside the root is refused like one that leads out, and so is a folder that was swapped for a link between check
and use. The root itself is opened as given.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from orchestrator.errors import RunError

AnyPath: TypeAlias = str | Path

ODD = frozenset(("directory", "symlink", "special", "unreachable"))
"""Values in place of a digest if the path has no regular file. `unreachable`: a parent is not a folder."""

_TEMPORARY = re.compile(r"\.(.*)\.[0-9a-f]{16}\.tmp", re.DOTALL)
_LONGEST = 255 - len("..0123456789abcdef.tmp")
NO_FOLDER = frozenset((errno.ENOTDIR, errno.ELOOP))
_NOT_REMOVED = NO_FOLDER | {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}


class FileRefused(RunError):
    """A path, or the object at it, is not acceptable; nothing was touched. `path` is the path as given."""

    def __init__(self, path: AnyPath, why: str) -> None:
        super().__init__(f"{str(path)!r} {why}")
        self.path = str(path)


def inside(path: str) -> str:
    """Return a relative path in its canonical spelling. Raises FileRefused if it leads out or is not a path."""
    pure = PurePosixPath(path)
    if not pure.parts:
        raise FileRefused(path, "names no file")
    if pure.is_absolute() or ".." in pure.parts:
        raise FileRefused(path, "leads out of the folder: a relative path without '..' is needed")
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in path):
        raise FileRefused(path, "is not a text that can name a file")
    return str(pure)


@contextmanager
def opened(directory: PurePosixPath, root: Path) -> Iterator[int]:
    """Open a folder below `root` and yield its file descriptor."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    fd = os.open(root, flags)
    try:
        for part in directory.parts:
            deeper = os.open(part, flags | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        os.close(fd)


@contextmanager
def parent(path: AnyPath, root: Path | None) -> Iterator[tuple[int, str]]:
    """Open the parent folder of a path; yield its file descriptor and the name in it."""
    relative, top = (str(path), root) if root is not None else (Path(path).name, Path(path).parent)
    pure = PurePosixPath(inside(relative))
    with opened(pure.parent, top) as folder:
        yield folder, pure.name


def make_folder(path: str, *, root: Path) -> bool:
    """Create a folder durably. Returns False if the name already exists."""
    with parent(path, root) as (folder, name):
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            return False
        sync(folder)
    return True


def remove_folder(path: str, *, root: Path) -> bool:
    """Remove an empty folder durably. Returns False if it is not empty, gone, or not a folder any more."""
    try:
        with parent(path, root) as (folder, name):
            os.rmdir(name, dir_fd=folder)
            sync(folder)
    except OSError as error:
        if error.errno not in _NOT_REMOVED:
            raise
        return False
    return True


def odd(status: os.stat_result) -> str | None:
    """Return None for a regular file, else its kind (ODD)."""
    kinds = {stat.S_IFREG: None, stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    return kinds.get(stat.S_IFMT(status.st_mode), "special")


def regular(path: AnyPath, status: os.stat_result) -> None:
    """Raise FileRefused for anything but a regular file."""
    kind = odd(status)
    if kind is not None:
        raise FileRefused(path, f"is not a regular file: {kind}")


def temporary_for(name: str) -> str:
    """Return a new name, in the same folder, for the prepared content of the file `name`."""
    return f".{shortened(name)}.{secrets.token_hex(8)}.tmp"


def serves(name: str) -> str | None:
    """Return the (shortened) name of the file that a temporary name belongs to; None for other names."""
    found = _TEMPORARY.fullmatch(name)
    return None if found is None else found[1]


def shortened(name: str) -> str:
    """Return a prefix of a name that leaves room for the rest of a temporary name."""
    return os.fsencode(name)[:_LONGEST].decode(errors="ignore")


def sync(fd: int) -> None:
    """Make a file, or the names in a folder, durable."""
    if sys.platform == "darwin":
        import fcntl

        # A plain fsync stops at the drive's cache there. Some volumes support no better and return ENOTSUP.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
        else:
            return
    os.fsync(fd)
