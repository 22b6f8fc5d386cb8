"""Evicted runs: runs that wait for a person and are only in their journal, while their caller still waits here.

A run that waits in place keeps its task, its context, its deps and its lease. After `Runtime.evict_after` seconds the
run is evicted: all of that is released, and the journal has the run as parked. Its caller keeps a future, which follows
the journal. Whichever process ends the run, the caller gets the result. If nobody else resumes the run when it can
continue, it is resumed in the task of its caller.

A run stays in memory if it could not be resumed as it was: a child run and a run with active child runs (their root
resumes the whole tree), and a run with live deps that its agent has no factory for.

An answer of this process wakes the caller at once. For other processes, one task for each event loop watches all
evicted runs of an agent. `news` names the runs that something was posted for, and a heap has the times at which
questions expire. A run that another process has resumed is read again every `LOOK` seconds. A scan finds those that
moved without a posted request, for example after a `resume` in another process. It gets at most a twentieth of the
time, and none while the journal does not change.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from orchestrator.errors import Corrupt, JournalError, Suspended
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.fact import Follower, RecordsWritten
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.run import Run
from orchestrator.runtime.service.inbox import POLL

LOOK = 1.0
"""Seconds between two reads of a run that another owner has."""
SCAN = 5.0
"""Least seconds between two scans."""
_SHARE = 20
"""After a scan of one second, the next one starts this many seconds later at the earliest."""


class RunEvicted(Suspended):
    """The run was evicted; its caller follows the journal."""

    def __init__(self, run: Run[Any, Any], seq: int) -> None:
        super().__init__(run.run_id, "evicted")
        self.seq = seq
        """Number of its last record."""
        self.state = run.cursor.state
        self.paused = run.cursor.parked_for == "paused"
        self.conversation_id: str | None = getattr(run.ctx, "conversation_id", None)


class EvictedRun:
    """One evicted run, while its caller waits for it in the task that creates this; use it as a context manager.

    As a follower it passes each record on once, whichever process wrote it.
    """

    __slots__ = (
        "_changed",
        "_news",
        "_runs",
        "alarm_at",
        "conversation_id",
        "expires_at",
        "follower",
        "has_owner",
        "paused",
        "run_id",
        "seq",
        "state",
        "task",
    )

    def __init__(self, runs: EvictedRuns, left: RunEvicted, follower: Follower | None) -> None:
        self._runs = runs
        self._changed: asyncio.Future[None] | None = None
        self._news = False
        self.run_id, self.seq, self.state = left.run_id, left.seq, left.state
        self.paused, self.conversation_id = left.paused, left.conversation_id
        self.follower = follower
        self.expires_at = 0.0
        """When its question expires (epoch seconds); 0 means never."""
        self.alarm_at = 0.0
        """When it is woken for that."""
        self.has_owner = False
        """Whether it is read again after LOOK seconds, because another owner has it."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self.task = task

    def __enter__(self) -> Self:
        self._runs.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runs.remove(self)

    def __call__(self, item: Any) -> None:
        """Receive an item of the run or of a child run, and pass it on unless the caller has it."""
        if isinstance(item, RecordsWritten) and item.run_id == self.run_id:
            if item.records[-1].seq <= self.seq:
                return
            item = item._replace(records=[one for one in item.records if one.seq > self.seq])
            self.seq = item.records[-1].seq
        if self.follower is not None:
            self.follower(item)

    async def catch_up(self, journal: Journal, seq: int) -> None:
        """Pass on the records up to number `seq` that were not written here."""
        if self.follower is not None and seq > self.seq:
            self(RecordsWritten(self.run_id, await journal.load(self.run_id, self.seq + 1)))

    @property
    def is_quiet(self) -> bool:
        """Whether its caller waits for `changed` and reads nothing."""
        return self._changed is not None and not self._changed.done()

    def wake(self) -> None:
        """Let the caller read the run again: it may have moved. In another event loop do nothing: it has a watcher."""
        if self.task.get_loop() is not asyncio.get_running_loop():
            return
        if self.is_quiet and self._changed is not None:
            self._changed.set_result(None)
        else:
            self._news = True

    def changed(self) -> asyncio.Future[None]:
        """Return a future that is done when the run may have moved since the last call.

        That is at the latest when its question expires.
        """
        self._runs.watch(self)
        self._changed = asyncio.get_running_loop().create_future()
        if self._news:
            self._changed.set_result(None)
        self._news = False
        return self._changed


class EvictedRuns:
    """The evicted runs of one agent whose callers wait in this process."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._watchers: dict[asyncio.AbstractEventLoop, _Watcher] = {}

    def __iter__(self) -> Iterator[EvictedRun]:
        return (run for watcher in self._watchers.values() for run in watcher.runs.values())

    def find(self, run_id: str) -> EvictedRun | None:
        """Return a run that was evicted and whose caller still waits, also while it is driven again."""
        for watcher in self._watchers.values():
            if (run := watcher.runs.get(run_id)) is not None:
                return run
        return None

    def add(self, run: EvictedRun) -> None:
        """Watch a run of this event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._watchers:
            self._watchers[loop] = _Watcher(self._journal, self._clock)
        self._watchers[loop].runs[run.run_id] = run

    def remove(self, run: EvictedRun) -> None:
        """Stop to watch a run."""
        loop = asyncio.get_running_loop()
        if self._watchers[loop].remove(run):
            del self._watchers[loop]

    def watch(self, run: EvictedRun) -> None:
        """Wake a run when its question expires, and from time to time if it has another owner."""
        self._watchers[asyncio.get_running_loop()].watch(run)


class _Watcher:
    """Wakes the evicted runs of one event loop."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self.runs: dict[str, EvictedRun] = {}
        self._owned: set[str] = set()
        """Runs that have another owner."""
        self._expiries: list[tuple[float, str]] = []
        self._since = -1
        self._looked = self._scanned = 0.0
        self._version = ""
        self._failed = ""
        self._task = asyncio.create_task(self._watch(), name="orchestrator evicted runs")

    def remove(self, run: EvictedRun) -> bool:
        """Stop to watch a run; return whether it was the last one."""
        del self.runs[run.run_id]
        self._owned.discard(run.run_id)
        if not self.runs:
            self._task.cancel()
        return not self.runs

    def watch(self, run: EvictedRun) -> None:
        """Wake a run when its question expires, and from time to time if it has another owner."""
        if run.expires_at and run.expires_at != run.alarm_at:
            heapq.heappush(self._expiries, (run.expires_at, run.run_id))
            run.alarm_at = run.expires_at
        if run.has_owner:
            self._owned.add(run.run_id)
        else:
            self._owned.discard(run.run_id)

    async def _watch(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._read_news()
                self._wake(self._expired())
                now = asyncio.get_running_loop().time()
                if now - self._looked >= LOOK:
                    self._looked = now
                    self._wake(tuple(self._owned))
                if now >= self._scanned:
                    await self._scan()
                    ended = asyncio.get_running_loop().time()
                    self._scanned = ended + max(SCAN, _SHARE * (ended - now))
                self._failed = ""
            except Exception as error:
                self._since, failed = -1, f"{type(error).__name__}: {error}"
                if failed != self._failed and not isinstance(error, JournalError):  # its writers report it
                    logging.getLogger("orchestrator").exception("evicted runs could not be read")
                self._failed = failed
            await asyncio.sleep(POLL)

    async def _read_news(self) -> None:
        """Wake the runs that something was posted for; all of them if the start of the news is unknown."""
        lost = self._since < 0
        self._since, news = await self._journal.news(self._since)
        self._wake(tuple(self.runs) if lost else news)

    def _expired(self) -> list[str]:
        now, found = self._clock.time(), list[str]()
        while self._expiries and self._expiries[0][0] <= now:
            at, run_id = heapq.heappop(self._expiries)
            if run_id in self.runs and self.runs[run_id].alarm_at == at:
                self.runs[run_id].alarm_at = 0.0
                found.append(run_id)
        return found

    async def _scan(self) -> None:
        """Wake the runs that are not parked any more."""
        version = await self._journal.version()
        if version == self._version:
            return
        moved = set(self.runs)
        try:
            async for head in self._journal.runs(status="parked"):
                moved.discard(head.run_id)
        except Corrupt:  # of other runs; `doctor` reports it
            return
        self._version = version
        self._wake(moved)

    def _wake(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            if (run := self.runs.get(run_id)) is not None:
                run.wake()
