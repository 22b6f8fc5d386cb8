"""Choose and create the place of a journal file: a local, writable folder. This module never opens the file itself.

SQLite's locks belong to the process: closing any other descriptor of the file would release them. So the file is
created before SQLite opens it, and afterwards only `stat` looks at it.
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
            _link(part, path)
    finally:
        part.unlink(missing_ok=True)


def _link(part: Path, path: Path) -> None:
    try:
        os.link(part, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Empty, as SQLite itself creates a file: the first process that opens it creates its tables.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


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
