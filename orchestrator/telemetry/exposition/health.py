"""Is the process alive, is it ready: questions for whoever restarts it and whoever sends it work."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

Check: TypeAlias = Callable[[], bool]
"""Whether one thing that readiness needs is there. Called from a thread; one that raises says no."""

Heartbeat: TypeAlias = Callable[[], float | None]
"""Seconds since the event loop last moved; None while nobody watches it. Must not block."""

STALE = 5.0
"""Seconds after which a heartbeat is a dead one."""

_PATIENCE = 2.0
"""Seconds to wait for checks that somebody else is running, and for a store to answer."""

_ROOM = 100 * 1024 * 1024


class HealthStore(Protocol):
    """What a store is asked; every journal is one."""

    async def news(self, since: int) -> tuple[int, list[str]]:
        """Return where the store stands. Raises what the store raises where it does not."""
        ...


class HealthCheck:
    """Answers both questions."""

    def __init__(self, heartbeat: Heartbeat | None = None, ready: Mapping[str, Check] | None = None) -> None:
        self._heartbeat = heartbeat
        self._checks = dict(ready or {})
        self._asking = threading.Lock()

    def alive(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the event loop moves, and what is known of it."""
        age = None if self._heartbeat is None else self._heartbeat()
        if age is None:
            return True, {"alive": True}
        alive = age < STALE
        return alive, {"alive": alive, "event_loop_age_seconds": round(age, 3)}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return whether every check says yes, and what each said.

        One caller asks at a time: a check that hangs must not take a thread for each probe that comes by.
        """
        if not self._asking.acquire(timeout=_PATIENCE):
            return False, {"ready": False, "why": "the checks before this one have not come back"}
        try:
            said = {name: _yes(check) for name, check in self._checks.items()}
        finally:
            self._asking.release()
        ready = all(said.values())
        return ready, {"ready": ready, "checks": said}


def _yes(check: Check) -> bool:
    try:
        return bool(check())
    except Exception:  # noqa: BLE001 - whatever it is, it is no yes
        return False


def writable(path: str | Path, room: int = _ROOM) -> Check:
    """Return a check that a file, or the nearest folder above it, can be written to and its disk has `room` bytes."""
    file = Path(path).absolute()

    def check() -> bool:
        place = next(one for one in (file, *file.parents) if one.exists())
        return os.access(place, os.W_OK) and shutil.disk_usage(place).free >= room

    return check


def answers(
    store: HealthStore, loop: asyncio.AbstractEventLoop | None = None, patience: float = _PATIENCE
) -> Check:
    """Return a check that a journal itself answers a read, on the loop that uses it, within `patience` seconds.

    `loop` None: the one that runs now; RuntimeError where none does. The check says no while that loop is blocked, and
    must not be called on its thread: pages inside a server on the same loop (`asgi_app`) call checks from others. One
    read proves neither room to write, as `writable` does, nor that a file is whole: what SQLite has in memory it reads
    there, and `orchestrator doctor` proves the rest.
    """
    home = loop or asyncio.get_running_loop()

    def check() -> bool:
        asking = store.news(-1)
        try:
            asked = asyncio.run_coroutine_threadsafe(asking, home)
        except RuntimeError:  # the loop is closed
            asking.close()
            return False
        try:
            asked.result(patience)
        finally:
            asked.cancel()
        return True

    return check
