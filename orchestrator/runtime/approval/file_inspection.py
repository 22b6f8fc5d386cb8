"""Inspection of one path of a project: its content, and whether a plan may touch it. All functions block.

Each folder of the path is opened from its parent without following links, as in a write. The result may be outdated
later: the write inspects the same path again in the same way.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.files.path_safety import serves
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.path import folded
from orchestrator.machines.approval.plan import Fingerprint

_BOM = b"\xef\xbb\xbf"
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FileContent:
    """A text file. `text` is None if the file does not exist."""

    fingerprint: Fingerprint
    text: str | None = None


def look(root: Path, path: str, most_bytes: int = 0) -> FileContent:
    """Return the file at a path. Raises ApprovalError for forbidden and unreadable files."""
    try:
        with _folder(root, path) as folder:
            return FileContent(Fingerprint(path=path)) if folder is None else _file(folder, path, most_bytes)
    except OSError as error:
        raise ApprovalError(fault_of(error, path)) from None


def fingerprint(path: str, content: bytes | None) -> Fingerprint:
    """Return the fingerprint of a file's content; None means no file."""
    if content is None:
        return Fingerprint(path=path)
    digest = hashlib.sha256(content).hexdigest()
    return Fingerprint(path=path, sha256=digest, size=len(content), encoding=encoding_of(content))


def encoding_of(content: bytes) -> str:
    """Return `utf-8`, `utf-8-sig` or `binary`."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return "binary"
    if b"\0" in content:
        return "binary"
    return "utf-8-sig" if content.startswith(_BOM) else "utf-8"


def encoded(text: str, encoding: str | None) -> bytes:
    """Return a text as bytes in the encoding of its file."""
    return text.encode("utf-8-sig" if encoding == "utf-8-sig" else "utf-8")


def fault_of(error: OSError, path: str) -> Fault:
    """Return the fault of an operating system error."""
    code, why = _CODES.get(error.errno or 0, ("FS-010", "cannot be read or written"))
    return Fault(code, f"{path!r} {why}", f"{type(error).__name__} {error.errno}", path=path)


_CODES = {
    errno.ENOENT: ("FS-001", "does not exist"),
    errno.EEXIST: ("FS-002", "exists already"),
    errno.EACCES: ("FS-003", "may not be read or written by this user"),
    errno.EPERM: ("FS-003", "may not be read or written by this user"),
    errno.EROFS: ("FS-004", "is on a read-only file system"),
    errno.EBUSY: ("FS-005", "is in use"),
    errno.EAGAIN: ("FS-005", "is locked"),
    errno.ETXTBSY: ("FS-005", "is a running program"),
    errno.EISDIR: ("FS-009", "is a folder"),
    errno.ENOTDIR: ("SEC-011", "is in a path that is no longer a folder"),
    errno.ELOOP: ("SEC-011", "goes through a link that was not there before"),
    errno.ENAMETOOLONG: ("FS-011", "is too long a name"),
    errno.ETIMEDOUT: ("FS-012", "is on a file system that does not answer"),
    errno.ENOSPC: ("RES-001", "has no room on the disk"),
    errno.EDQUOT: ("RES-001", "has no room on the disk"),
    errno.ENOMEM: ("RES-003", "needs more memory than is available"),
    errno.EMFILE: ("RES-003", "needs more open files than the limit allows"),
    errno.ENFILE: ("RES-003", "needs more open files than the limit allows"),
}


@contextmanager
def _folder(root: Path, path: str) -> Iterator[int | None]:
    """Open the folder of a path; None if it does not exist. Raises ApprovalError."""
    fd: int | None = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, name = PurePosixPath(path).parts
        if serves(name) is not None:
            raise ApprovalError(
                Fault("SEC-005", f"{path!r} has a name that is reserved for our temporary files", path=path)
            )
        for part in folders:
            if fd is None:
                break
            deeper = _deeper(fd, part, path)
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _deeper(fd: int, name: str, path: str) -> int | None:
    status = _status(fd, name, path)
    if status is None:
        return None
    if stat.S_ISREG(status.st_mode):
        raise ApprovalError(Fault("FS-009", f"{path!r}: {name!r} is a file, not a folder", path=path))
    _refuse_special(status, name, path)
    return os.open(name, _FOLDER, dir_fd=fd)


def _status(fd: int, name: str, path: str) -> os.stat_result | None:
    """Return the status of a name in its folder. Raises ApprovalError SEC-009 if it exists in another spelling."""
    for entry in os.listdir(fd):
        if entry != name and folded(entry) == folded(name):
            said = f"{path!r}: {entry!r} exists, which is the same name on some file systems"
            raise ApprovalError(Fault("SEC-009", said, path=path))
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refuse_special(status: os.stat_result, name: str, path: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise ApprovalError(Fault("SEC-003", f"{path!r}: {name!r} is a symlink", path=path))
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise ApprovalError(Fault("SEC-007", f"{path!r}: {name!r} is a device, pipe or socket", path=path))


def _file(folder: int, path: str, most_bytes: int) -> FileContent:
    name = PurePosixPath(path).name
    status = _status(folder, name, path)
    if status is None:
        return FileContent(Fingerprint(path=path))
    _refuse_special(status, name, path)
    if stat.S_ISDIR(status.st_mode):
        raise ApprovalError(Fault("FS-009", f"{path!r} is a folder", path=path))
    fd = os.open(name, _FLAGS, dir_fd=folder)
    try:
        opened = os.fstat(fd)
        if (opened.st_ino, opened.st_dev) != (status.st_ino, status.st_dev):
            raise ApprovalError(Fault("SEC-011", f"{path!r} was replaced during its inspection", path=path))
        if opened.st_nlink > 1:
            said = f"{path!r} has {opened.st_nlink} names (hard links); a plan may change only files with one"
            raise ApprovalError(Fault("SEC-008", said, path=path))
        if opened.st_mode & (
            stat.S_ISUID | stat.S_ISGID
        ):  # a diff does not show whose rights the new content would have
            said = f"{path!r} runs with the rights of its owner or group (set-id bits); no plan may change it"
            raise ApprovalError(Fault("SEC-013", said, path=path))
        return _read(fd, path, opened.st_size, most_bytes)
    finally:
        os.close(fd)


def _read(fd: int, path: str, size: int, most_bytes: int) -> FileContent:
    if most_bytes and size > most_bytes:
        said = f"{path!r} has {size} bytes, at most {most_bytes} are allowed"
        raise ApprovalError(Fault("FS-008", said, path=path))
    with open(fd, "rb", closefd=False) as file:
        content = file.read()
    found = fingerprint(path, content)
    if found.encoding == "binary":
        raise ApprovalError(Fault("FS-007", f"{path!r} is binary: not UTF-8 text", path=path))
    return FileContent(found, content.decode("utf-8-sig" if found.encoding == "utf-8-sig" else "utf-8"))
