"""Slots: how many runs go on at once, and who gets the next one.

A run that waits for somebody gives its slot back and lines up for one when it can go on. Where both new runs and
such returning ones stand in line they take turns, one each, first come first served among their own kind: neither
can keep the other waiting for longer than one run's stay per place in line.

For one event loop; nothing here is thread-safe. Everything but the waiting itself happens in one step, so no slot
is lost and no wake-up missed: a waiter that is cancelled after it was given a slot hands it on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from orchestrator.errors import ConfigError


class Slots:
    """`limit` slots. `begin` starts the next new run, in the slot that it is given, or says that there is none."""

    def __init__(self, limit: int, begin: Callable[[], bool]) -> None:
        check_slots(limit)
        self._limit = limit
        self._begin = begin
        self._returning: deque[asyncio.Future[None]] = deque()
        self._frozen = False
        self._new_next = True
        self.taken = 0
        """Slots in use; more than `limit` only until enough runs have ended after `limit` was lowered."""

    @property
    def limit(self) -> int:
        """How many runs may go on at once."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        check_slots(limit)
        self._limit = limit
        self.fill()

    def fill(self) -> None:
        """Hand out what is free; to be called when there is something new to begin."""
        while self.taken < self._limit and self._hand_out():
            pass

    def give(self) -> None:
        """Give a slot back."""
        self.taken -= 1
        self.fill()

    async def back(self) -> None:
        """Return with a slot."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._frozen:  # else nobody is woken: it waits to be cancelled
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
        """Let nobody line up any more; those who stand in line still get their turn."""
        self._frozen = True

    def _hand_out(self) -> bool:
        """Give one slot to whose turn it is, or to the other kind. Returns False when nobody wants one."""
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
    """Raise ConfigError for what is no number of slots."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigError(f"slots is {limit!r}; it must be a whole number, 1 or more")
