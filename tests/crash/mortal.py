"""What every process has that is to die: its fate, its world outside, a journal that kills it; and who forks it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from orchestrator.journal.crashing import WRITES, CrashingJournal, kill
from orchestrator.kernel.journal import Journal
from tests.crash.worker import forked

RUN = "r"
Live = Callable[..., Coroutine[Any, Any, None]]
"""`live(folder, **order)`: drive the run in `folder` until it ends, or we do."""


class Fate:
    """Counts the boundaries of effects; at one of them the process gets a signal."""

    def __init__(self, at: int, fatal: signal.Signals = signal.SIGKILL) -> None:
        self._at = at
        self._signal = fatal
        self.passed = 0

    async def point(self, name: str) -> None:
        self.passed += 1
        if self.passed == self._at:
            os.kill(os.getpid(), self._signal)
        await asyncio.sleep(0)


class World:
    """What happened outside, a line each; None as its folder: nobody writes it down."""

    def __init__(self, folder: Path | None, fate: Fate) -> None:
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        self._file = None if folder is None else os.open(folder / "world", flags, 0o600)
        self.fate = fate

    def say(self, what: str, **more: Any) -> None:
        if self._file is not None:
            os.write(self._file, (json.dumps({"what": what, **more}) + "\n").encode())


class FreezingJournal(CrashingJournal):
    """Stops the process at a write, and continues when the process does."""

    def _die(self) -> None:  # type: ignore[override]
        os.kill(os.getpid(), signal.SIGSTOP)


def crashing(inner: Journal, when: str, at: int) -> CrashingJournal:
    """Return the journal that kills or stops us, or only counts."""
    if when.startswith("frozen "):
        freezes = "before" if when == "frozen before" else "after"
        return FreezingJournal(inner, at=at, when=freezes, on=WRITES)  # type: ignore[arg-type]
    if when == "before":
        return CrashingJournal(inner, at=at, when="before", on=WRITES, crash=kill)
    return CrashingJournal(inner, at=at if when == "after" else 0, when="after", on=WRITES, crash=kill)


def child(order: dict[str, Any], live: Live) -> None:
    """Live as an order says; what is complained about goes to the file `errors` of its folder."""
    folder = Path(order.pop("folder"))
    errors = os.open(folder / "errors", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.dup2(errors, 2)
    asyncio.run(live(folder, **order))


def nursery(live: Live) -> None:
    """Fork a child for each order of our input, and say how it ended."""
    for line in sys.stdin:
        order = json.loads(line)
        print(forked(lambda order=order: child(order, live)), flush=True)  # type: ignore[misc]  # noqa: T201
