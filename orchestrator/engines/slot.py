"""Slots: how many runs work at once, and which run gets the next slot.

A run that waits for a person returns its slot and queues for a new one when it can continue. If both new and
returning runs are queued, they take turns, one each, and first come first served among their own kind. So neither
kind delays the other by more than the duration of one run per place in the queue.

Not thread-safe: for one event loop. Everything except the waiting happens in one step, so no slot is lost and no
wake-up is missed. A waiter that is cancelled after it was given a slot passes the slot on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from orchestrator.errors import ConfigError


class Slots:
    """Distribute `limit` slots.

    `begin` starts the next new run in the given slot, or returns False if there is none.
    """

    def __init__(self, limit: int, begin: Callable[[], bool]) -> None:
        check_slots(limit)
        self._limit = limit
        self._begin = begin
        self._returning: deque[asyncio.Future[None]] = deque()
        self._frozen = False
        self._new_next = True
        self.taken = 0
        """Slots in use. Exceeds `limit` only after `limit` was lowered, until enough runs have ended."""

    @property
    def limit(self) -> int:
        """Maximum number of runs that work at once."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        check_slots(limit)
        self._limit = limit
        self.fill()

    def fill(self) -> None:
        """Assign free slots. Call this when a new run can start."""
        while self.taken < self._limit and self._hand_out():
            pass

    def give(self) -> None:
        """Return a slot."""
        self.taken -= 1
        self.fill()

    async def back(self) -> None:
        """Wait for a slot and return with it."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._frozen:  # otherwise nothing wakes it: it waits for its cancellation
            self._returning.append(waiter)
            self.fill()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give()  # woken and cancelled at once
            elif waiter in self._returning:
                self._returning.remove(waiter)
            raise

    def freeze(self) -> None:
        """Admit no further waiters; those already queued still get a slot."""
        self._frozen = True

    def _hand_out(self) -> bool:
        """Assign one slot to the kind whose turn it is, or to the other kind. Returns False if no run wants one."""
        self.taken += 1
        first, second = (self._new, self._wake) if self._new_next else (self._wake, self._new)
        if first() or second():
            return True
        self.taken -= 1
        return False

    def _new(self) -> bool:
        if not self._begin():
            return False
        self._new_next = False
        return True

    def _wake(self) -> bool:
        while self._returning:
            waiter = self._returning.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._new_next = True
                return True
        return False


def check_slots(limit: object) -> None:
    """Raise ConfigError for an invalid number of slots."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigError(f"slots is {limit!r}; it must be a whole number, 1 or more")
