"""Is the process alive, is it ready: questions for whoever restarts it and whoever sends it work."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[], bool]
"""Whether one thing that readiness needs is there. Called from a thread; one that raises says no."""

Heartbeat: TypeAlias = Callable[[], float | None]
"""Seconds since the event loop last moved; None while nobody watches it. Must not block."""

STALE = 5.0
"""Seconds after which a heartbeat is a dead one."""

_PATIENCE = 2.0
"""Seconds to wait for checks that somebody else is running."""

_ROOM = 100 * 1024 * 1024


class Health:
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
