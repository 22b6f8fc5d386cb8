"""Isolation of the worker: the requested locks, the locks that hold, and the accesses that they stop.

The table in this folder's README.md states the effect of each lock, and the attacks that no lock stops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

from orchestrator.errors import ConfigError

# ---- limits ----


MB = 1024 * 1024
LEAST_MEMORY = 64 * MB
"""Python itself does not start with less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplLimits:
    """Limits of one REPL. All of them always apply. Raises ConfigError for a number that cannot work.

    Example:
        >>> ReplLimits(seconds=30, memory_bytes=256 * MB).files
        1000
    """

    seconds: float = 300.0
    """Wall time of a block, without its waits for answers; an Rlm passes its `code_seconds` for each block instead."""
    cpu_seconds: float = 120.0
    """CPU time of a block."""
    session_cpu_seconds: int = 3_600
    """CPU time of a worker. The kernel enforces it even if the program hangs."""
    memory_bytes: int = 512 * MB
    """Address space of the worker."""
    disk_bytes: int = 64 * MB
    """Bytes of its folder, and of each file in it."""
    files: int = 1_000
    """Files of its folder."""
    open_files: int = 64
    output_chars: int = 100_000
    """Characters of a block's output that are kept; the rest is counted."""
    value_chars: int = 4_000_000
    """Characters of an answer."""
    batch: int = 1_000
    """Prompts of one llm_query_batched."""
    query_chars: int = 8_000_000
    """Characters of the prompts of one call."""
    start_seconds: float = 60.0
    """Time for a worker to start and to receive the context."""

    def __post_init__(self) -> None:
        for name in (item.name for item in fields(self)):
            value = getattr(self, name)
            kind = (
                (int, float) if isinstance(type(self).__dataclass_fields__[name].default, float) else (int,)
            )
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value!r}; it must be a number above 0")
        if self.memory_bytes < LEAST_MEMORY:
            raise ConfigError(f"memory_bytes is {self.memory_bytes:,}; at least {LEAST_MEMORY:,}")


# ---- locks ----


LOCKS: Mapping[str, str] = {
    "other_user": "not root any more",
    "user_namespace": "no rights outside",
    "pid_namespace": "sees no other process",
    "network_namespace": "a network without interfaces",
    "ipc_namespace": "no shared memory of others",
    "mount_namespace": "mounts of its own",
    "file_tree": "a root with Python and its folder",
    "dies_with_program": "ends with the program",
    "limits": "memory, CPU, file sizes",
    "no_new_privileges": "no set-uid program helps",
    "no_capabilities": "no capability",
    "landlock": "opens files of Python and its folder only",
    "no_processes": "no further process by limit",
    "seccomp": "system calls of a computing Python only",
}
"""The locks, in the order in which they are closed."""

IMPORTS = (
    "base64",
    "bisect",
    "collections",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "html",
    "io",
    "itertools",
    "json",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "textwrap",
    "time",
    "typing",
    "unicodedata",
    "uuid",
    "zlib",
    "zoneinfo",
)
"""Modules that code may import by default."""

FIRST_USER = 61_184
USERS = 4_336
"""Numbers that systems reserve for users without a name (systemd's dynamic range)."""


class Level(IntEnum):
    """The level of isolation by the kernel."""

    LIMITS = 0
    """Memory, CPU, wall time and output are bounded. Malicious code can still reach files and network."""
    PARTIAL = 1
    """Some of files, network, processes and other programs are out of reach."""
    FULL = 2
    """All of them are out of reach."""


@dataclass(frozen=True, slots=True)
class SandboxLock:
    """One lock: whether it holds, and the worker's description, or the error if it does not hold."""

    name: str
    holds: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The locks of one worker."""

    locks: tuple[SandboxLock, ...]

    def has(self, name: str) -> bool:
        """Return whether a lock holds."""
        return any(lock.name == name and lock.holds for lock in self.locks)

    @property
    def stops(self) -> Mapping[str, bool]:
        """Return which of files, network, (new) processes and (other) programs the code cannot reach."""
        files = self.has("file_tree") or self.has("landlock")
        return {
            "files": files,
            "network": self.has("network_namespace") or self.has("seccomp"),
            "processes": self.has("seccomp") or self.has("no_processes"),
            "programs": files and (self.has("pid_namespace") or self.has("seccomp")),
        }

    @property
    def level(self) -> Level:
        """Return the level in force."""
        stopped = self.stops.values()
        return Level.FULL if all(stopped) else Level.PARTIAL if any(stopped) else Level.LIMITS

    def to_dict(self) -> dict[str, Any]:
        """Return the isolation as plain data."""
        return {
            "level": self.level.name.lower(),
            "stops": dict(self.stops),
            "locks": {lock.name: {"holds": lock.holds, "detail": lock.detail} for lock in self.locks},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The required isolation. Raises ConfigError for an unknown lock.

    Example:
        Sandbox(least=Level.FULL)          # refuse to run code below that level
    """

    least: Level = Level.LIMITS
    """No code runs below that level: the start of the worker raises ReplError."""
    locks: frozenset[str] = field(default=frozenset(LOCKS))
    """The locks to try; a host may have reasons to omit some, and tests check the effect of each one."""
    imports: tuple[str, ...] = IMPORTS
    """Modules that code may import. This only serves good messages; code can still reach the others."""

    def __post_init__(self) -> None:
        unknown = sorted(self.locks - LOCKS.keys())
        if unknown:
            raise ConfigError(f"no such lock: {', '.join(unknown)}; known: {', '.join(LOCKS)}")
        if not isinstance(self.least, Level):
            raise ConfigError(f"least is {self.least!r}; give Level.LIMITS, Level.PARTIAL or Level.FULL")
