"""What is read beside the requests: the watcher of the journal for all open tabs, and the runs of a machine.

The journal sends no notification, so its version is read every POLL seconds while a tab is open: one number for any
number of runs. A change is one event without data, and the page then asks for the part that it shows. A `tick` every
TICK seconds makes a page look for owners that died, which no commit reports.

A statistic needs the records of every run in the window, and to read them may take longer than a page may take. So a
task reads them, the newest run first. Pages show the runs that it has read, and their number. The history of a run is
kept with the number of its last record: a run with new records is read again, so no kept history is out of date.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Unpack

from orchestrator.errors import JournalError
from orchestrator.kernel.journal import RunCounts, RunHead
from orchestrator.runtime.runs.listing import MachineHistory, RunFilter, read_run_history
from orchestrator.runtime.runs.runs import Runs

POLL: Final = 0.5
TICK: Final = 10.0
_COUNTS_LAST: Final = 1.0
"""Fewest seconds between two counts of the same runs, however often the journal changes."""
_COUNTS_KEPT: Final = 16


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
    _counted: dict[str, tuple[str, float, RunCounts]] = field(default_factory=dict)
    """Conditions -> version of the journal, time (monotonic seconds) and counts, of the last _COUNTS_KEPT questions."""

    async def counts(self, last: float = _COUNTS_LAST, **conditions: Unpack[RunFilter]) -> RunCounts:
        """Return the counts of the runs that meet the conditions, from this version of the journal.

        They are older if they were read in the `last` seconds. Raises JournalError.
        """
        self.seen = now = await self.runs.version()
        key = repr(sorted(conditions.items()))
        kept = self._counted.pop(key, None)
        if kept is None or (kept[0] != now and time.monotonic() - kept[1] >= last):
            kept = (now, time.monotonic(), await self.runs.count(**conditions))
        while len(self._counted) >= _COUNTS_KEPT:
            del self._counted[next(iter(self._counted))]
        self._counted[key] = kept
        return kept[2]

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


MOST: Final = 2_000
"""Most runs of a window: the newest ones."""
PATIENCE: Final = 0.12
"""Seconds for which a page waits for the task."""
_CHUNK: Final = 250
_LASTS: Final = 5.0
"""Seconds for which the list of the runs is not read again, and longer while the journal does not change."""


@dataclass(frozen=True, slots=True)
class MachineWindow:
    """The runs of a machine that started in a window."""

    history: MachineHistory
    """Of the runs that were read so far."""
    heads: Sequence[RunHead]
    """The runs of the window, the newest first, at most MOST."""
    more: bool
    """Whether the window has more runs than MOST."""
    is_listed: bool
    """Whether its runs are known; before, it seems to have none."""

    @property
    def read(self) -> int:
        """The number of runs whose records were read."""
        return self.history.runs + self.history.unreadable

    @property
    def is_read(self) -> bool:
        """Whether the records of each of these runs were read."""
        return self.is_listed and self.read >= len(self.heads)

    @property
    def outcomes(self) -> Mapping[str, int]:
        """The outcomes of its ended runs."""
        return Counter(head.outcome for head in self.heads if head.status == "ended")


@dataclass(slots=True)
class MachineReader:
    """Reads the runs of one machine or agent.

    Args:
        runs: The runs of the journal.
        name: Name of the machine or agent.
        conditions: The conditions that its runs meet.
    """

    runs: Runs
    name: str
    conditions: RunFilter
    most: int = MOST
    _heads: list[RunHead] | None = None
    """The newest of these runs; None before they were listed."""
    _more: bool = False
    _since: float | None = None
    _listed: float | None = None
    _version: str = ""
    """Version of the journal before the list was read."""
    _kept: dict[str, tuple[int, MachineHistory]] = field(default_factory=dict)
    """Run -> number of its last record, and its history."""
    _merged: dict[tuple[float | None, int], MachineHistory] = field(default_factory=dict)
    """When the runs were listed and how many of them are in the last history -> that history."""
    _task: asyncio.Task[None] | None = None

    async def window(self, since: float | None, patience: float = PATIENCE) -> MachineWindow:
        """Return the runs that started since a time (epoch seconds; None for all), as far as they were read.

        Raises StoreDown.
        """
        if self._task is None and not await self._is_listed(since):
            self._task = asyncio.create_task(self._read(since), name=f"console {self.name}")
            self._task.add_done_callback(retrieve)
        if (task := self._task) is not None:
            await asyncio.wait((task,), timeout=patience)
            if task.done():
                self._task = None
                task.result()
        known = self._heads or []
        heads = [head for head in known if since is None or head.created_at >= since]
        more = self._more and len(heads) == len(known)
        return MachineWindow(self._history(heads), heads, more, is_listed=self._heads is not None)

    def _history(self, heads: list[RunHead]) -> MachineHistory:
        """Return the history of the newest runs, the last one if nothing was read since."""
        key = (self._listed, len(heads))
        if self._task is None and key in self._merged:
            return self._merged[key]
        history = MachineHistory(self.name)
        for head in heads:
            if (kept := self._kept.get(head.run_id)) is not None:
                history.merge(kept[1])
        if self._task is None:
            self._merged = {key: history}
        return history

    async def _is_listed(self, since: float | None) -> bool:
        if self._listed is None or not (self._since is None or (since is not None and since >= self._since)):
            return False
        return time.monotonic() - self._listed < _LASTS or await self.runs.version() == self._version

    async def _read(self, since: float | None) -> None:
        version = await self.runs.version()
        found: list[RunHead] = []
        after, more = None, True
        while more and len(found) <= self.most:
            page = await self.runs.page(limit=_CHUNK, after=after, **self.conditions)
            inside = [head for head in page.runs if since is None or head.created_at >= since]
            found += inside
            more = page.more and len(inside) == len(page.runs)
            after = page.runs[-1].run_id if page.runs else None
        self._heads, self._more = found[: self.most], len(found) > self.most
        self._since = since
        known = {head.run_id for head in self._heads}
        self._kept = {run_id: kept for run_id, kept in self._kept.items() if run_id in known}
        for head in self._heads:
            kept = self._kept.get(head.run_id)
            if kept is None or kept[0] != head.seq:
                self._kept[head.run_id] = (head.seq, await read_run_history(self.runs.journal, head))
                await asyncio.sleep(0)  # a journal in memory never waits
        self._version, self._listed = version, time.monotonic()


def retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a task, which asyncio logs otherwise; the next page reads again and reports it."""
    if not task.cancelled():
        task.exception()
