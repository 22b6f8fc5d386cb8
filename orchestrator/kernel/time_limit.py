"""A time limit around work of the host. The clock measures, so that tests control the time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import CoroutineType, GeneratorType
from typing import Any, TypeVar

from orchestrator.kernel.abandonment import awaited, continued, here
from orchestrator.kernel.clock import Cancellable, Clock

T = TypeVar("T")


class TimeLimitPassed(Exception):
    """Our time limit has passed. Distinguishes it from a TimeoutError of the host's code."""

    def __init__(self, seconds: float, *, abandoned: bool, is_total: bool = False) -> None:
        super().__init__(f"no answer within {seconds:g} s{' in all' if is_total else ''}")
        self.abandoned = abandoned
        """Whether the host's code did not end after its cancellation, and may still run."""


class TimeLimit:
    """Lets work start its own time limit again, because it makes progress. Works only while it runs."""

    def __init__(self) -> None:
        self._clock: Clock | None = None
        self._expire: Callable[[float], None] = _ignore
        self._seconds: float | None = None
        self._total: float | None = None
        self._left: float | None = None
        """Seconds of the total time that were left at `_since`."""
        self._since = 0.0
        self._timers: list[Cancellable | None] = [None, None]
        self._outside = 0

    def start(
        self,
        seconds: float | None,
        total: float | None,
        clock: Clock,
        expire: Callable[[float], None],
        *,
        since: float,
    ) -> None:
        """Start the time of work that has begun at `since`: `seconds` without a restart, and `total` in any case.

        `expire` is called with the one that has passed.
        """
        self._clock, self._expire, self._seconds, self._total = clock, expire, seconds, total
        spent = clock.monotonic() - since
        self._left = None if total is None else total - spent
        self._continue(spent)

    def restart(self) -> None:
        """Give the work its whole time again, from now on, but not its total time. Call it in its event loop."""
        self._restart(0.0)

    def _restart(self, spent: float) -> None:
        if self._clock is not None and self._seconds is not None and not self._outside:
            self._cancel(0)
            left = max(0.0, self._seconds - spent)
            self._timers[0] = self._clock.call_later(left, partial(self._expire, self._seconds))

    def end(self) -> None:
        """Stop the time: the work has ended."""
        self._clock = None
        self._cancel(0)
        self._cancel(1)

    async def outside(self, part: Awaitable[T]) -> T:
        """Await a part of the work whose time does not count; then the work has its whole time again.

        The total time continues where it stopped.
        """
        self._outside += 1
        if self._outside == 1 and self._clock is not None:
            self._cancel(0)
            self._cancel(1)
            if self._left is not None:
                self._left -= self._clock.monotonic() - self._since
        try:
            return await part
        finally:
            self._outside -= 1
            self._continue()

    def _continue(self, spent: float = 0.0) -> None:
        if self._clock is None or self._outside:
            return
        self._restart(spent)
        if self._left is not None and self._total is not None:
            self._since = self._clock.monotonic()
            self._timers[1] = self._clock.call_later(max(0.0, self._left), partial(self._expire, self._total))

    def _cancel(self, which: int) -> None:
        timer, self._timers[which] = self._timers[which], None
        if timer is not None:
            timer.cancel()


async def limited(
    work: Callable[[], Awaitable[T]],
    seconds: float | None,
    clock: Clock,
    restarts: TimeLimit | None = None,
    *,
    total: float | None = None,
) -> T:
    """Return the result of `work` within `seconds`; otherwise cancel it and raise TimeLimitPassed.

    In an AbandonableTask a host call that does not end within the grace period is abandoned. `restarts` starts the
    seconds again, but not those of `total`. None is no limit.
    """
    task, since = asyncio.current_task(), clock.monotonic()
    earlier = task.cancelling() if task else 0
    awaitable = work()
    started = type(awaitable) in {CoroutineType, GeneratorType}  # a generator of `types.coroutine`
    coroutine: Any = awaitable if started else awaited(awaitable)
    try:
        waits = coroutine.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    # Only work that waits needs timers, and a scope that can cancel it.
    own, limit = restarts or TimeLimit(), asyncio.timeout(None)
    owner = here()
    left = 0 if owner is None else owner.left
    late: Cancellable | None = None
    passed = 0.0

    def expire(allowed: float) -> None:
        nonlocal late, passed
        if passed or (owner is not None and owner.left > left):
            return  # it was abandoned already
        passed = allowed
        limit.reschedule(0.0)
        late = None if owner is None else owner.abandon_late()

    try:
        async with limit:
            own.start(seconds, total, clock, expire, since=since)
            try:
                return await continued(coroutine, waits)
            finally:
                own.end()
                if late is not None:
                    late.cancel()
    except (Exception, asyncio.CancelledError) as error:
        # Before Python 3.11.4 asyncio.timeout takes its own cancellation for that of a caller if there was one earlier.
        ours = not isinstance(error, asyncio.CancelledError) or (task and task.cancelling() <= earlier)
        if limit.expired() and ours:
            abandoned = owner is not None and owner.left > left
            raise TimeLimitPassed(passed, abandoned=abandoned, is_total=passed == total) from error
        raise


def _ignore(_: float) -> None:
    pass
