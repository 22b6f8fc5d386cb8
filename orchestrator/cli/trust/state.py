"""Small files of this user that no project can bring along: the key of run signatures, consents, pins of tools.

They are in `orchestrator/` in XDG_STATE_HOME, by default ~/.local/state. If nothing can be written there (a container
with a read-only home directory, or without one), they are in a folder of this user among the temporary files and last
as long as these. A file is trusted only if it and its folder belong to this user and have no permissions for others:
files of a checkout are readable for all.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_LARGEST = 1 << 20
"""Bytes of a file that is read."""


def read_state(name: str) -> Iterator[bytes]:
    """Yield the content of each file of that name, the best place first."""
    for folder in folders():
        if (data := _read(folder, name)) is not None:
            yield data


def read_all_state(prefix: str) -> Iterator[tuple[Path, bytes]]:
    """Yield each file whose name has that prefix, with its content."""
    for folder in folders():
        try:
            names = sorted(file.name for file in folder.iterdir() if file.name.startswith(prefix))
        except OSError:
            continue
        for name in names:
            if (data := _read(folder, name)) is not None:
                yield folder / name, data


def write_state(name: str, data: bytes, *, replace: bool = True) -> bytes | None:
    """Write a file completely or not at all, in the best place; return its content after that.

    Without `replace` an existing file remains. Returns None if no place can be written.
    """
    for folder in folders():
        if (written := _write(folder, name, data, replace=replace)) is not None:
            return written
    return None


def remove_state(name: str) -> bool:
    """Remove the files of that name; return whether there was one. Raises OSError if one cannot be removed."""
    removed = False
    for folder in folders():
        if _read(folder, name) is not None:
            (folder / name).unlink(missing_ok=True)
            removed = True
    return removed


def folders() -> Iterator[Path]:
    """Yield the folders in which state may be, the best one first."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        with suppress(OSError, RuntimeError):  # the home directory cannot be read, or is unknown
            if Path.home().is_dir():  # it is not created here
                state = Path.home() / ".local" / "state"
    if state.is_absolute():
        yield state / "orchestrator"
    temporary = Path(os.environ.get("TMPDIR", ""))
    place = temporary if temporary.is_absolute() else Path("/tmp")  # noqa: S108 - a folder of our own, see _is_ours
    yield place / f"orchestrator-{os.geteuid()}"


def _read(folder: Path, name: str) -> bytes | None:
    """Return the content of a file; None for a file that another user could have written."""
    with suppress(OSError):
        if not _is_ours(folder.lstat(), stat.S_ISDIR, 0o022):
            return None
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if _is_ours(os.fstat(descriptor), stat.S_ISREG, 0o077):
                return file.read(_LARGEST)
    return None


def _is_ours(status: os.stat_result, kind: Callable[[int], bool], closed: int) -> bool:
    """Return whether it is of that kind, belongs to this user, and has no permissions for others."""
    return kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & closed


def _write(folder: Path, name: str, data: bytes, *, replace: bool) -> bytes | None:
    if not replace and (found := _read(folder, name)) is not None:
        return found
    draft = folder / f".{secrets.token_hex(8)}.tmp"
    with suppress(OSError):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            if replace:
                draft.replace(folder / name)
            else:
                with suppress(FileExistsError):
                    os.link(draft, folder / name)
        finally:
            draft.unlink(missing_ok=True)
    return _read(folder, name)
