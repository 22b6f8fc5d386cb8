"""Server-sent events: one watcher of the journal for all open tabs.

The journal sends no notification, so its version is read every POLL seconds while a tab is open: one number for any
number of runs. A change is one event without data, and the page then asks for the part that it shows. A `tick` every
TICK seconds makes a page look for owners that died, which no commit reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from orchestrator.errors import JournalError
from orchestrator.kernel.journal import RunCounts
from orchestrator.runtime.runs.runs import Runs

POLL: Final = 0.5
TICK: Final = 10.0
_COUNTS_LAST: Final = 1.0
"""Fewest seconds between two counts of all runs, however often the journal changes."""


@dataclass(slots=True)
class Feed:
    """Watches the journal while a tab is open.

    Args:
        runs: The runs of the journal.
    """

    runs: Runs
    seen: str = ""
    """The last version that was read."""
    listeners: int = 0
    _task: asyncio.Task[None] | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _counted: tuple[str, float, RunCounts] = ("", 0.0, RunCounts())

    async def counts(self) -> RunCounts:
        """Return the counts of all runs, from the last version of the journal or at most a second old.

        Raises JournalError.
        """
        self.seen = await self.runs.version()
        version, at, counts = self._counted
        if not at or (version != self.seen and time.monotonic() - at >= _COUNTS_LAST):
            counts = await self.runs.count()
            self._counted = (self.seen, time.monotonic(), counts)
        return counts

    async def events(self, since: str) -> AsyncIterator[bytes]:
        """Yield the events for one tab, from the version that it shows on."""
        self.listeners += 1
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._watch(), name="console feed")
            yield b"retry: 2000\nevent: open\ndata:\n\n"
            shown = since
            while True:
                if shown != self.seen:
                    shown = self.seen
                    yield b"event: change\ndata:\n\n"
                if not await self._changes(shown):
                    yield b"event: tick\ndata:\n\n"
        finally:
            self.listeners -= 1
            if not self.listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _changes(self, shown: str) -> bool:
        """Wait for another version; return False after TICK seconds without one."""
        async with self._changed:
            try:
                async with asyncio.timeout(TICK):
                    await self._changed.wait_for(lambda: self.seen != shown)
            except TimeoutError:
                return False
            return True

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(JournalError):  # the page that is asked for next reports it
                version = await self.runs.version()
                async with self._changed:
                    self.seen = version
                    self._changed.notify_all()
            await asyncio.sleep(POLL)
