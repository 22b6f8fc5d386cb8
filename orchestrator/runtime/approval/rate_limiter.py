"""Rate limits per minute: a caller above the rate waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from orchestrator.llm.port import Clock

MINUTE = 60.0


class OperationRateLimiter:
    """Rate limits by name; a rate of 0 is unlimited."""

    def __init__(self, rates: Mapping[str, int], clock: Clock) -> None:
        self._rates = rates
        self._clock = clock
        self._taken: dict[str, deque[float]] = {name: deque() for name in rates}

    async def turn(self, name: str, count: int = 1) -> None:
        """Return when `count` more operations are allowed and counted. More than the rate wait in between."""
        rate, taken = self._rates[name], self._taken[name]
        if not rate:
            return
        for _ in range(count):
            while (wait := self._wait(taken, rate)) > 0:
                await self._clock.sleep(wait)
            taken.append(self._clock.monotonic())

    def _wait(self, taken: deque[float], rate: int) -> float:
        now = self._clock.monotonic()
        while taken and taken[0] <= now - MINUTE:
            taken.popleft()
        return 0.0 if len(taken) < rate else taken[0] + MINUTE - now
