"""The current files of a project. All functions block; no link is followed, no special file is opened."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from orchestrator.files import atomic as stored
from orchestrator.files.path_safety import NO_FOLDER, ODD
from orchestrator.machines.approval.caps import PlanCaps
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.path import folded, path_faults
from orchestrator.machines.approval.plan import Fingerprint
from orchestrator.runtime.approval.file_inspection import fault_of, fingerprint

MOST_FILES = 2_000
"""Maximum number of listed files, in order of their paths."""


class ListingProgress:
    """Progress of a listing, written by its thread and read by the waiting task."""

    def __init__(self) -> None:
        self.at: tuple[str, float] = ("", time.monotonic())
        """The file or folder in progress (empty: the project), and the time of its start."""
        self.given_up = False
        """Set when no task waits any more."""

    def turns_to(self, path: str) -> None:
        """Set the file in progress. Raises TimeoutError if no task waits any more."""
        if self.given_up:
            raise TimeoutError
        self.at = (path, time.monotonic())


def files(root: Path, caps: PlanCaps, progress: ListingProgress) -> tuple[Fingerprint, ...]:
    """Return the files that a plan could touch: not hidden, build output, denied, links, or above the size cap."""
    found: list[Fingerprint] = []
    for path, size in _paths(root, caps, progress):
        if len(found) >= MOST_FILES:
            break
        if not caps.file_bytes or size <= caps.file_bytes:
            found.append(fingerprint_at(root, path))
    return tuple(sorted(found, key=lambda one: one.path))


def fingerprint_at(root: Path, path: str) -> Fingerprint:
    """Return the fingerprint of any file at a path. Raises ApprovalError if it cannot be read."""
    try:
        snapshot = stored.read_file(path, root=root)
    except OSError as error:
        raise ApprovalError(fault_of(error, path)) from None
    if snapshot.digest in ODD:
        return Fingerprint(path=path, encoding=snapshot.digest)
    return fingerprint(path, None if snapshot.digest is None else snapshot.content)


def _paths(root: Path, caps: PlanCaps, progress: ListingProgress) -> Iterator[tuple[str, int]]:
    refused = [folded(rule) for rule in (*caps.build_output, *caps.denied)]
    for folder, folders, names, fd in os.fwalk(root, follow_symlinks=False, onerror=_raise):
        folders[:] = sorted(one for one in folders if not _left_out(one, refused))
        below = Path(folder).relative_to(root).as_posix()
        for name in sorted(names):
            path = name if below == "." else f"{below}/{name}"
            progress.turns_to(path)
            status = _status(name, fd)
            if status is not None and stat.S_ISREG(status.st_mode) and not any(path_faults(path, caps)):
                yield path, status.st_size
        progress.turns_to("")


def _left_out(folder: str, refused: list[str]) -> bool:
    return folder.startswith(".") or any(fnmatchcase(folded(folder), rule) for rule in refused)


def _status(name: str, fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _raise(error: OSError) -> None:
    """Ignore a folder that was removed or replaced meanwhile.

    Other errors are raised, so that no file is silently missed.
    """
    if error.errno not in NO_FOLDER | {errno.ENOENT, errno.EACCES}:
        raise error
