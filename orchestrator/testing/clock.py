"""A clock that tests control."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

_SETTLING_TURNS = 50
_MONOTONIC_START = 1_000.0


@dataclass(slots=True, order=True)
class _Timer:
    due: float
    number: int
    callback: Callable[[], None] | None = field(compare=False)

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """A `kernel.clock.Clock` that stands still until a test moves it. Times are seconds.

    Args:
        start: Seconds since the epoch at the start.
        auto: Each sleep moves the clock at once, for code whose waits are not under test.

    Example:
        clock = FakeClock()
        await clock.advance(5)          # runs, in order, every timer that is due by then
    """

    def __init__(self, start: float = 1_700_000_000.0, *, auto: bool = False) -> None:
        self.slept: list[float] = []
        """Every requested sleep, in order."""
        self._start = start
        self._elapsed = 0.0
        self._auto = auto
        self._timers: list[_Timer] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        """Return the seconds since the epoch: `start` plus the elapsed time."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Return 1,000 seconds plus the elapsed time: not from 0, or a time would look like a duration."""
        return _MONOTONIC_START + self._elapsed

    @property
    def pending(self) -> int:
        """Number of timers that have neither rung nor been cancelled."""
        return sum(timer.callback is not None for timer in self._timers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has moved this far; with `auto`, move it."""
        self.slept.append(seconds)
        if self._auto or seconds <= 0:
            self._move_to(self._elapsed + max(0.0, seconds))
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        """Call `callback` once when the clock has moved this far."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        timer = _Timer(self._elapsed + max(0.0, seconds), next(self._numbers), callback)
        heapq.heappush(self._timers, timer)
        return timer

    async def advance(self, seconds: float) -> None:
        """Move the clock, and stop at each due timer until the tasks that it woke have settled.

        A task has settled when it waits for something other than a thread. Raises ValueError for negative seconds.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        end = self._elapsed + seconds
        await _settle()
        while self._timers and self._timers[0].due <= end:
            self._move_to(self._timers[0].due)
            await _settle()
        self._move_to(end)

    def _move_to(self, end: float) -> None:
        while self._timers and self._timers[0].due <= end:
            timer = heapq.heappop(self._timers)
            self._elapsed = max(self._elapsed, timer.due)
            if timer.callback is not None:
                timer.callback()
        self._elapsed = max(self._elapsed, end)


async def _settle() -> None:
    """Run other tasks until they certainly wait; asyncio has no public way to check that."""
    for _ in range(_SETTLING_TURNS):
        await asyncio.sleep(0)
