"""An event loop whose time is its own: it never waits, it moves on to whatever is due next. And a clock upon it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

EPOCH = 1_700_000_000.0


class Stuck(AssertionError):
    """Every task waits for something that nobody will bring."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs tasks in an order that follows from the program alone. No thread and no socket may be used in it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        selector.select = self._pass_over

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._now

    def _pass_over(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing will ever happen again")
        self._now += max(0.0, timeout)
        return []


class VirtualClock:
    """A `ports.Clock` on a virtual loop; `skew` (seconds) is by how much the wall clock is wrong."""

    def __init__(self) -> None:
        self.skew = 0.0
        self._boot = asyncio.get_running_loop().time()

    def time(self) -> float:
        return EPOCH + asyncio.get_running_loop().time() + self.skew

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() - self._boot

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, callback)
