"""Write files completely or not at all. Bytes only, no journal. Every call blocks, so call it in a thread.

    temporary file in the same folder → write → owner, mode → fsync → read back → rename → fsync of the folder
    temporary folder in the same folder → rename into it → unlink → fsync of the folder

- Below `root` no symlink is followed (`path_safety`); without `root`, the folder of the path is opened as given.
- A symlink, folder or device in place of a file is refused and never written through: a rename would replace the
  link, and a write through it would reach an unchecked place.
- An error before the rename leaves the file unchanged. After an error of the folder's fsync the new content is in
  place, but may not be durable.
- A rename creates a new inode. The mode is kept. Owner and group are kept if the system allows it, each separately;
  otherwise set-id bits are removed, and the group gets no more permissions than all others, because it would be
  another group. Other hard links keep the old content; extended attributes and times are not kept.
- POSIX only: Windows has neither `dir_fd` nor an fsync of folders. There the first call raises.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

from orchestrator.errors import Corrupt
from orchestrator.files import path_safety
from orchestrator.files.path_safety import AnyPath, FileRefused

Hook: TypeAlias = Callable[[str], None]
"""Receives the name of each finished step, so that a test can end the process exactly there."""


Owner: TypeAlias = tuple[int, int]
"""User and group of a file, by number."""


class FileSnapshot(NamedTuple):
    """The state of a path: SHA-256 (None if free, or one of ODD), content, mode bits and owner of a regular file."""

    digest: str | None
    content: bytes = b""
    mode: int | None = None
    owner: Owner | None = None


def silent(_: str) -> None:
    """Ignore a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWrite:
    """A write or a delete, prepared beside its target. Call either `commit` or `discard`."""

    path: AnyPath
    root: Path | None
    temporary: str
    """For a write the verified content; for a delete an empty folder that the file is moved to."""
    digest: str
    """Empty for a delete."""

    def commit(self, hook: Hook = silent) -> None:
        """Rename the file. Raises FileNotFoundError if `sweep` was faster; then nothing has changed."""
        try:
            with path_safety.parent(self.path, self.root) as (folder, name):
                aim = (self.temporary, name) if self.digest else (name, f"{self.temporary}/{name}")
                os.replace(*aim, src_dir_fd=folder, dst_dir_fd=folder)
                hook("renamed")
                _clear(folder, self.temporary, hook)  # before the sync: a power loss must not restore it
                path_safety.sync(folder)
                hook("folder synced")
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove the prepared file or folder, if it exists."""
        with suppress(OSError), path_safety.parent(self.path, self.root) as (folder, _):
            _clear(folder, self.temporary)


def atomic_write(
    path: AnyPath, content: bytes, *, mode: int | None = None, root: Path | None = None, hook: Hook = silent
) -> str:
    """Write a file and return its SHA-256. `mode` None keeps the mode of an existing file, else the umask decides."""
    staged = stage(path, content, mode=mode, root=root, hook=hook)
    staged.commit(hook)
    return staged.digest


def atomic_delete(path: AnyPath, *, root: Path | None = None, hook: Hook = silent) -> None:
    """Remove a regular file. Raises FileNotFoundError, or FileRefused for anything else."""
    stage_delete(path, root=root).commit(hook)


def stage(
    path: AnyPath,
    content: bytes,
    *,
    mode: int | None = None,
    owner: Owner | None = None,
    root: Path | None = None,
    hook: Hook = silent,
) -> StagedWrite:
    """Prepare a write up to the rename. After an error nothing is left.

    With `mode` or `owner` None, those of an existing file are kept, else the system sets them.
    """
    digest = hashlib.sha256(content).hexdigest()
    with path_safety.parent(path, root) as (folder, name):
        if path_safety.serves(name) is not None:
            raise FileRefused(path, "is named like one of our temporary files")
        mode, owner = _kept(path, folder, name, mode, owner)
        # Private until it has its mode, because the replaced file may be private.
        first = 0o666 if mode is None else 0o600
        temporary = path_safety.temporary_for(name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        fd = os.open(temporary, flags, first, dir_fd=folder)
        try:
            try:
                hook("temporary made")
                _write(fd, content, mode, owner)
                hook("written")
                path_safety.sync(fd)
                hook("synced")
                if _digest(fd) != digest:
                    raise Corrupt(f"{str(path)!r}: the content read back differs from the written content")
                hook("verified")
            finally:
                os.close(fd)  # some file systems report a full disk only here
        except BaseException:
            _clear(folder, temporary)
            raise
    return StagedWrite(path=path, root=root, temporary=temporary, digest=digest)


def stage_delete(path: AnyPath, *, root: Path | None = None) -> StagedWrite:
    """Prepare a delete up to the rename, which moves the file into a folder that is created here.

    An unlink could not be stopped after another owner has taken over. This rename can: `sweep` removes its target.
    """
    with path_safety.parent(path, root) as (folder, name):
        path_safety.regular(path, os.stat(name, dir_fd=folder, follow_symlinks=False))
        temporary = path_safety.temporary_for(name)
        os.mkdir(temporary, 0o700, dir_fd=folder)
    return StagedWrite(path=path, root=root, temporary=temporary, digest="")


def read_digest(path: AnyPath, *, root: Path | None = None) -> str | None:
    """Return the SHA-256 (hex) of a file, None without a file, or one of ODD. Raises OSError."""
    with _reading(path, root) as found:
        return _digest(found) if isinstance(found, int) else found


def read_file(path: AnyPath, *, root: Path | None = None) -> FileSnapshot:
    """Return the state of a path, all of it from one open file. Raises OSError."""
    with _reading(path, root) as found:
        if not isinstance(found, int):
            return FileSnapshot(found)
        with open(found, "rb", closefd=False) as file:
            content = file.read()
        there, digest = os.fstat(found), hashlib.sha256(content).hexdigest()
        return FileSnapshot(digest, content, stat.S_IMODE(there.st_mode), _owner(there))


def sweep(directory: AnyPath, *, name: str | None = None, root: Path | None = None) -> list[str]:
    """Remove our leftovers from a folder, or only those of the file `name`; return their names, sorted.

    Only the owner of the folder may call it: a write in flight loses its temporary file, and its rename then fails.
    """
    removed = []
    path, top = (directory, root) if root is not None else (".", Path(directory))
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        path_safety.opened(PurePosixPath(path), top) as folder,
    ):
        for entry in sorted(os.listdir(folder)):  # noqa: PTH208  pathlib lists no file descriptor
            target = path_safety.serves(entry)
            if (
                target is not None
                and (name is None or target == path_safety.shortened(name))
                and _clear(folder, entry)
            ):
                removed.append(entry)
        if removed:
            path_safety.sync(folder)
    return removed


@contextmanager
def _reading(path: AnyPath, root: Path | None) -> Iterator[int | str | None]:
    try:
        with path_safety.parent(path, root) as (folder, name):
            found = _open(folder, name)
    except FileNotFoundError:
        found = None
    except OSError as error:
        if error.errno not in path_safety.NO_FOLDER:
            raise
        found = "unreachable"
    try:
        yield found
    finally:
        if isinstance(found, int):
            os.close(found)


def _open(folder: int, name: str) -> int | str:
    kind = path_safety.odd(os.stat(name, dir_fd=folder, follow_symlinks=False))
    if kind is not None:  # checked first: opening a device can have an effect
        return kind
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    kind = path_safety.odd(os.fstat(fd))
    if kind is not None:
        os.close(fd)
    return fd if kind is None else kind


def _clear(folder: int, temporary: str, hook: Hook = silent) -> bool:
    """Remove one of our temporary files or folders. Returns False if it is gone or not ours."""
    try:
        kind = path_safety.odd(os.stat(temporary, dir_fd=folder, follow_symlinks=False))
        if kind is None:
            os.unlink(temporary, dir_fd=folder)
        elif kind == "directory":
            inner = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            try:
                held = os.listdir(inner)  # noqa: PTH208  pathlib lists no file descriptor
                if [path_safety.shortened(name) for name in held] == [path_safety.serves(temporary)]:
                    os.unlink(held[0], dir_fd=inner)
                    hook("unlinked")
            finally:
                os.close(inner)
            os.rmdir(temporary, dir_fd=folder)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return False
    return kind in {None, "directory"}


def _write(fd: int, content: bytes, mode: int | None, owner: Owner | None) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
    if owner is not None and mode is not None:
        mode = _given(fd, owner, mode)
    if mode is not None:
        os.fchmod(fd, mode)


def _kept(
    path: AnyPath, folder: int, name: str, mode: int | None, owner: Owner | None
) -> tuple[int | None, Owner | None]:
    """Return mode and owner for a file that is written to a name. Raises FileRefused if no regular file is there."""
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return mode, owner
    path_safety.regular(path, there)
    return stat.S_IMODE(there.st_mode) if mode is None else mode, owner or _owner(there)


def _owner(status: os.stat_result) -> Owner:
    return status.st_uid, status.st_gid


def _given(fd: int, owner: Owner, mode: int) -> int:
    """Set owner and group of a file as far as the system allows, and return the mode that it may have then."""
    user, group = owner
    try:
        os.fchown(fd, user, group)
    except OSError:
        mode &= 0o777  # never pass on the set-id bits of another user's file
        try:
            os.fchown(fd, -1, group)
        except OSError:
            mode &= 0o707 | (mode & 0o007) << 3
    return mode


def _digest(fd: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
