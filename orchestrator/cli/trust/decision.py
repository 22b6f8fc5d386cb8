"""The permissions of the user for one command (`--trust`) or for the processes of one environment (ORCHESTRATOR_TRUST).

ORCHESTRATOR_TRUST is a list of absolute paths, separated as in PATH. The path of a file allows that file with any
content; the path of a folder allows every configuration file and every journal in it and below it. `all` allows
everything, also the runs of a database. The safest useful value is the path of the one file that the image brings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from orchestrator.errors import ConfigError

VARIABLE = "ORCHESTRATOR_TRUST"
EVERYTHING = "all"

_ALLOWED: ContextVar[bool] = ContextVar("orchestrator_trust", default=False)


@contextmanager
def command_trust(*, allowed: bool) -> Iterator[None]:
    """Allow everything inside the block if the command has `--trust`."""
    token = _ALLOWED.set(allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def is_everything_allowed() -> bool:
    """Return whether the command or the environment allows everything. Raises ConfigError for a wrong variable."""
    return EVERYTHING in _entries() or _ALLOWED.get()


def is_allowed(file: Path, *, folder: Path | None = None) -> bool:
    """Return whether the command or the environment allows a file.

    `folder` is the working directory, if the names in the file depend on it. Raises ConfigError for a wrong variable.
    """
    return is_everything_allowed() or any(
        _covers(Path(entry), file) and (folder is None or _covers(_folder_of(Path(entry)), folder))
        for entry in _entries()
    )


def location(file: Path) -> Path:
    """Return the absolute path of a file: the links of its folder are resolved, that of the file itself is not."""
    return Path(os.path.realpath(file.parent)) / file.name


def _entries() -> list[str]:
    entries = [entry for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    for entry in entries:
        if entry != EVERYTHING and not Path(entry).is_absolute():
            raise ConfigError(
                f"{VARIABLE} has {entry!r}; possible: absolute paths of files or folders, separated by "
                f"{os.pathsep!r}, or {EVERYTHING!r}"
            )
    return entries


def _covers(entry: Path, file: Path) -> bool:
    place = location(file)
    return place == location(entry) or place.is_relative_to(os.path.realpath(entry))


def _folder_of(entry: Path) -> Path:
    return entry if entry.is_dir() else entry.parent
