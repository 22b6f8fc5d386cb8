"""A time limit around work of the host. The clock measures, so that tests control the time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from orchestrator.kernel.abandonment import here
from orchestrator.kernel.clock import Cancellable, Clock

T = TypeVar("T")


class TimeLimitPassed(Exception):
    """Our time limit has passed. Distinguishes it from a TimeoutError of the host's code."""

    def __init__(self, seconds: float, *, abandoned: bool) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.abandoned = abandoned
        """Whether the host's code did not end after its cancellation, and may still run."""


class TimeLimit:
    """Lets work start its own time limit again, because it makes progress. Works only while it runs."""

    def __init__(self) -> None:
        self._arm: Callable[[], Cancellable] | None = None
        self._timer: Cancellable | None = None
        self._outside = 0

    def start(self, arm: Callable[[], Cancellable]) -> None:
        """Start the time of the work; `arm` starts a timer for its end."""
        self._arm, self._timer = arm, arm()

    def restart(self) -> None:
        """Give the work its whole time again, from now on. To be called in its event loop."""
        if self._arm is not None and not self._outside:
            self._cancel()
            self._timer = self._arm()

    def end(self) -> None:
        """Stop the time: the work has ended."""
        self._arm = None
        self._cancel()

    async def outside(self, part: Awaitable[T]) -> T:
        """Await a part of the work whose time does not count; then the work has its whole time again."""
        self._outside += 1
        self._cancel()
        try:
            return await part
        finally:
            self._outside -= 1
            self.restart()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def limited(
    work: Callable[[], Awaitable[T]], seconds: float, clock: Clock, restarts: TimeLimit | None = None
) -> T:
    """Return the result of `work` within `seconds`; otherwise cancel it and raise TimeLimitPassed.

    In an AbandonableTask a host call that does not end within the grace period is abandoned. `restarts` starts the
    seconds again.
    """
    own = restarts or TimeLimit()
    limit, task = asyncio.timeout(None), asyncio.current_task()
    earlier = task.cancelling() if task else 0
    owner = here()
    left = 0 if owner is None else owner.left
    late: Cancellable | None = None

    def expire() -> None:
        nonlocal late
        if owner is not None and owner.left > left:
            return  # it was abandoned already
        limit.reschedule(0.0)
        late = None if owner is None else owner.abandon_late()

    try:
        async with limit:
            own.start(lambda: clock.call_later(seconds, expire))
            try:
                return await work()
            finally:
                own.end()
                if late is not None:
                    late.cancel()
    except (Exception, asyncio.CancelledError) as error:
        # Before Python 3.11.4 asyncio.timeout takes its own cancellation for that of a caller if there was one earlier.
        ours = not isinstance(error, asyncio.CancelledError) or (task and task.cancelling() <= earlier)
        if limit.expired() and ours:
            raise TimeLimitPassed(seconds, abandoned=owner is not None and owner.left > left) from error
        raise
