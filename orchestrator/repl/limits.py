"""Limits of one REPL."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from orchestrator.errors import ConfigError

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
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            kind = (
                (int, float) if isinstance(type(self).__dataclass_fields__[name].default, float) else (int,)
            )
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value!r}; it must be a number above 0")
        if self.memory_bytes < LEAST_MEMORY:
            raise ConfigError(f"memory_bytes is {self.memory_bytes:,}; at least {LEAST_MEMORY:,}")
