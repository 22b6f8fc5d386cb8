"""Time as a port, so that tests control it; the timer of a driven run; and the running event loop."""

from __future__ import annotations

import asyncio
import math
import time as system_time
from collections.abc import Callable
from typing import Any, Protocol

from orchestrator.errors import ConfigError

CALL_SHARE = 0.9
"""Share of the time that a state has left which one call may take."""

GRACE = 5.0
"""Default seconds that cancelled host code gets to end before it is abandoned."""


class Cancellable(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the callback."""
        ...


class Clock(Protocol):
    """Time as a port, so that tests control it."""

    def time(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never decrease."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Cancellable:
        """Call `callback` once after `seconds`."""
        ...


class SystemClock:
    """The clocks of this host and the timers of the running event loop."""

    time = staticmethod(system_time.time)
    monotonic = staticmethod(system_time.perf_counter)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Cancellable:
        """Call `callback` once after `seconds` on the running loop."""
        return asyncio.get_running_loop().call_later(seconds, callback)


WHOLE = 1.5 * 2.0**52
"""Adding and subtracting this number rounds a float to a whole number, much faster than round().

Correct for numbers below 2**51: in microseconds these are seventy years.

Code that runs once a turn, or for each line of a log, repeats the expression of `micros` with the comment "`micros`,
inline": a call adds some 30 ns to the 40 ns of the expression, and the calls of a turn are counted and limited.
"""


def micros(seconds: float) -> float:
    """Return seconds with six decimals: the result of `round(seconds, 6)` at a tenth of its cost.

    Example:
        >>> micros(1.23456789)
        1.234568
    """
    return (seconds * 1e6 + WHOLE - WHOLE) / 1e6


class Alarm:
    """One timer for all limits of a run. Moving it later costs an assignment, not a timer.

    A run enters states far more often than a limit passes, so the loop's timer stays as it is and checks, when it
    fires, whether the limit was moved.
    """

    __slots__ = ("_argument", "_callback", "_clock", "_timer", "due", "rings_at")

    def __init__(self, clock: Clock, callback: Callable[[Any], None], argument: Any) -> None:
        self._clock = clock
        self._callback = callback
        self._argument = argument
        self.due: float | None = None
        """When to call back (monotonic seconds). It may be set to a later time than `rings_at` without `set`."""
        self._timer: Cancellable | None = None
        self.rings_at = math.inf
        """When the timer checks `due`; infinite without a timer."""

    def set(self, due: float | None) -> None:
        """Call back at `due` (monotonic seconds), or never for None; replaces the earlier setting."""
        self.due = due
        if due is not None and due < self.rings_at:
            self._arm(due)

    def cancel(self) -> None:
        """Cancel the callback."""
        self.due, self.rings_at = None, math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.rings_at = due
        self._timer = self._clock.call_later(max(0.0, due - self._clock.monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer, self.rings_at = None, math.inf
        if self.due is None:
            return
        if self._clock.monotonic() < self.due:
            self._arm(self.due)
        else:
            self.due = None
            self._callback(self._argument)


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raises ConfigError if there is none, for example under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "no event loop of asyncio is running here: under trio call `await trio.to_thread.run_sync(agent.run_sync, "
            "prompt)`, in code without a loop `agent.run_sync(prompt)`"
        ) from None
