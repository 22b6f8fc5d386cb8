"""Liveness and readiness of the process, for supervisors and load balancers."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

Check: TypeAlias = Callable[[], bool]
"""Returns whether one requirement of readiness is met. Called from a thread; an exception counts as no."""

Heartbeat: TypeAlias = Callable[[], float | None]
"""Returns the seconds since the event loop last moved; None if it is not watched. Must not block."""

STALE = 5.0
"""Age in seconds from which a heartbeat counts as lost."""

_PATIENCE = 2.0
"""Seconds to wait for checks of another request, and for a store to answer."""

_ROOM = 100 * 1024 * 1024


class HealthStore(Protocol):
    """The part of a store that a check calls; every journal has it."""

    async def news(self, since: int) -> tuple[int, list[str]]:
        """Return the position of the store. Raises the error of a store that cannot be used."""
        ...


class HealthCheck:
    """Answers liveness and readiness."""

    def __init__(self, heartbeat: Heartbeat | None = None, ready: Mapping[str, Check] | None = None) -> None:
        self._heartbeat = heartbeat
        self._checks = dict(ready or {})
        self._asking = threading.Lock()

    def alive(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the event loop moves, with details."""
        age = None if self._heartbeat is None else self._heartbeat()
        if age is None:
            return True, {"alive": True}
        alive = age < STALE
        return alive, {"alive": alive, "event_loop_age_seconds": round(age, 3)}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return whether every check succeeds, with each result.

        Only one caller runs the checks at a time: a check that hangs must not take a thread for each probe.
        """
        if not self._asking.acquire(timeout=_PATIENCE):
            return False, {"ready": False, "why": "earlier checks have not finished"}
        try:
            said = {name: _yes(check) for name, check in self._checks.items()}
        finally:
            self._asking.release()
        ready = all(said.values())
        return ready, {"ready": ready, "checks": said}


def _yes(check: Check) -> bool:
    try:
        return bool(check())
    except Exception:  # noqa: BLE001 - any error means not ready
        return False


def writable(path: str | Path, room: int = _ROOM) -> Check:
    """Return a check that a file, or its nearest existing folder, is writable and its disk has `room` bytes.

    Example:
        serve_metrics(ready={"disk": writable("runs.db")})
    """
    file = Path(path).absolute()

    def check() -> bool:
        place = next(one for one in (file, *file.parents) if one.exists())
        return os.access(place, os.W_OK) and shutil.disk_usage(place).free >= room

    return check


def answers(
    store: HealthStore, loop: asyncio.AbstractEventLoop | None = None, patience: float = _PATIENCE
) -> Check:
    """Return a check that a journal answers a read within `patience` seconds, on the loop that uses it.

    `loop` None means the running loop; without one it raises RuntimeError. The check fails while that loop is
    blocked, and must not be called in its thread: pages inside a server on the same loop (`asgi_app`) call checks
    from others. One read proves neither room to write, as `writable` does, nor that a file is intact: SQLite answers
    from memory if it can, and `orchestrator doctor` verifies the rest.

    Example:
        serve_metrics(ready={"journal": answers(journal)})
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
