"""Where an engine lives: the process and the event loop that started it, and no other."""

from __future__ import annotations

import asyncio
import os
from typing import TypeAlias

from orchestrator.errors import ConfigError

LoopAffinity: TypeAlias = tuple[int, asyncio.AbstractEventLoop]
"""A process, by its number, and an event loop in it."""


def this_place() -> LoopAffinity:
    """Return where this code runs."""
    return os.getpid(), asyncio.get_running_loop()


def refuse_foreign(engine: str, home: LoopAffinity | None, *, started: bool = True) -> None:
    """Raise ConfigError away from the home of an engine; with `started`, also where it has none yet."""
    if home is None and started:
        raise ConfigError(f"engine {engine!r} is not started; use `async with` or `await engine.start()`")
    if home is not None and home != this_place():
        raise ConfigError(
            f"engine {engine!r} belongs to the process and event loop that started it: make another one "
            "after a fork, and reach it from other threads by asyncio.run_coroutine_threadsafe"
        )
