"""The process and event loop that an engine belongs to."""

from __future__ import annotations

import asyncio
import os
from typing import TypeAlias

from orchestrator.errors import ConfigError

LoopAffinity: TypeAlias = tuple[int, asyncio.AbstractEventLoop]
"""A process id, and an event loop in that process."""


def current_affinity() -> LoopAffinity:
    """Return the current process and event loop."""
    return os.getpid(), asyncio.get_running_loop()


def refuse_foreign(engine: str, affinity: LoopAffinity | None, *, started: bool = True) -> None:
    """Raise ConfigError outside the engine's process and loop; with `started`, also before its start."""
    if affinity is None and started:
        raise ConfigError(f"engine {engine!r} is not started; use `async with` or `await engine.start()`")
    if affinity is not None and affinity != current_affinity():
        raise ConfigError(
            f"engine {engine!r} belongs to the process and event loop that started it: make another one "
            "after a fork, and reach it from other threads by asyncio.run_coroutine_threadsafe"
        )
