"""The files of a project, as they are now. Everything blocks; no link is followed, nothing special is opened."""

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
"""A project with more is known by these alone, in order of their paths."""


class ListingProgress:
    """How far a listing is: told by the thread that makes it, read by whoever waits for it."""

    def __init__(self) -> None:
        self.at: tuple[str, float] = ("", time.monotonic())
        """A file or folder of the project (empty: the project), and since when it is looked at."""
        self.given_up = False
        """Set by whoever waits no longer."""

    def turns_to(self, path: str) -> None:
        """Say what is looked at now. Raises TimeoutError once nobody waits any more."""
        if self.given_up:
            raise TimeoutError
        self.at = (path, time.monotonic())


def files(root: Path, caps: PlanCaps, progress: ListingProgress) -> tuple[Fingerprint, ...]:
    """Return what a plan could touch: no hidden folder, build output, denied name, link, or file above the cap."""
    found: list[Fingerprint] = []
    for path, size in _paths(root, caps, progress):
        if len(found) >= MOST_FILES:
            break
        if not caps.file_bytes or size <= caps.file_bytes:
            found.append(fingerprint_at(root, path))
    return tuple(sorted(found, key=lambda one: one.path))


def fingerprint_at(root: Path, path: str) -> Fingerprint:
    """Return the fingerprint of what is at a path, whatever it is. Raises Faulted where it cannot be read."""
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
    """Let a folder be that went away or was swapped meanwhile; raise the rest, so that no file is missed unsaid."""
    if error.errno not in NO_FOLDER | {errno.ENOENT, errno.EACCES}:
        raise error
