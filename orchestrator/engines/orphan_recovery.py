"""Recovery of orphaned runs of the engine's graphs, at its start and as long as it lives.

A run that can continue unattended (`OpenRun.unattended`) is resumed in a slot like any other run. This includes a run
that stopped inside an irreversible call, because only an active run can ask its question. A run that was parked for
an answer stays parked: it can be read and answered in the journal and costs nothing here, not even a task. It is
resumed when a posted message allows it to continue, or when its question expires. Therefore thousands of runs may
wait for people.

Orphaned runs are found in two ways. `news` names the runs that something was posted for, within a quarter of a
second. A scan reads all runs that have not ended and finds those whose owner has died or whose question has expired.
Scans get at most a twentieth of the time: the longer a scan takes, the later the next one starts. The first engine
that claims a run owns it until that engine dies.

A run of another version of the graph is left to a live engine that has this version. If there is none, the run is
migrated here, or parked as `other_graph` until an engine with its graph or with a migration starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from orchestrator.engines.agent import AgentRegistry
from orchestrator.engines.dispatcher import Scheduler
from orchestrator.engines.engine_directory import LiveVersions
from orchestrator.engines.run_queue import Handle, RunQueue
from orchestrator.errors import (
    ConfigError,
    Corrupt,
    Fenced,
    Held,
    JournalError,
    NotAdmitting,
    RunUnknown,
    StoreDown,
    Suspended,
)
from orchestrator.journal.difference import heads
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.llm_loop.agent_tool import open_root
from orchestrator.runtime.service.hosting import Hosting
from orchestrator.runtime.service.recovery import OpenRun

Recover: TypeAlias = Literal["list", "resume"]
"""Handling of runs that have not ended and have no owner: only list them, or resume them."""

POLL = 0.25
"""Seconds between two reads of posted messages."""
AGAIN = 15.0
"""Seconds after which an unowned run without new records is submitted to the dispatcher again."""
LOOK = 1.0
"""Seconds after which a run is checked again that a live engine of another version may continue."""
_SHARE = 20
"""After a scan of one second, the next one starts this many seconds later at the earliest."""


class _Waiting(NamedTuple):
    """A run that waits for a person, or for an engine of another version."""

    seq: int
    """Number of its last record when this was found."""
    expires_at: float = 0.0
    """When its question expires (epoch seconds); 0 for never."""
    again: float = 0.0
    """When to check it again in any case (monotonic seconds); 0 for never."""

    def is_over(self, clock: Clock) -> bool:
        """Return whether it may continue without a new record."""
        return 0 < self.expires_at <= clock.time() or 0 < self.again <= clock.monotonic()


class OrphanRecovery:
    """Resume orphaned runs for an engine. `every` is the seconds between two scans; while `closed`, it resumes none.

    With a `scheduler` it resumes none itself: it submits each run to the scheduler, and again every AGAIN seconds
    while the run has no new record. So a run is not lost when a dispatcher loses it.
    """

    def __init__(
        self,
        agents: AgentRegistry,
        line: RunQueue,
        every: float,
        closed: Callable[[str, Mapping[str, str]], bool],
        scheduler: Scheduler | None = None,
    ) -> None:
        self._agents = agents
        self._line = line
        self._every = _checked(every)
        self._closed = closed
        self._scheduler = scheduler
        self._placed: dict[str, tuple[int, float]] = {}
        """Runs submitted to the scheduler -> number of their last record at that time, and that time (monotonic)."""
        self._journal = agents.journal
        self._versions = LiveVersions(agents.journal, agents.clock)
        self._since = -1
        self._waiting: dict[str, _Waiting] = {}
        """Runs that cannot continue here yet."""
        self._failed: set[str] = set()
        """Runs that could not be resumed here. They are retried only after something is posted for them."""
        self._stopped = False

    @property
    def places(self) -> bool:
        """Whether orphaned runs go to a scheduler instead of being resumed here."""
        return self._scheduler is not None

    async def found(self) -> list[OpenRun]:
        """Return the runs that have not ended, and start to track posted messages from now on.

        Raises StoreDown, and ConfigError if an open run belongs to another agent of the name of one here.
        """
        for host in self._agents.hosts:
            await host.refuse_same_name()
        self._since, _ = await self._journal.news(-1)
        return await self._agents.open_runs()

    async def begin(self, found: list[OpenRun]) -> dict[str, Handle]:
        """Resume those of the found runs that can continue unattended, oldest first. Raises StoreDown."""
        taken: dict[str, Handle] = {}
        for run in found:
            with contextlib.suppress(RunUnknown, Corrupt):
                handle = await self._look(await self._journal.head(run.run_id), run)
                if handle is not None:
                    taken[run.run_id] = handle
        return taken

    async def keep(self) -> None:
        """Resume orphaned runs until cancelled, or until `stop` if a library swallows the cancellation."""
        clock = self._agents.clock
        due = clock.monotonic() + self._every
        while not self._stopped:
            await asyncio.sleep(POLL)
            if self._closed("", {}):
                continue
            try:
                lost = self._since < 0
                # Check the runs that something was posted for.
                position, news = await self._journal.news(self._since)
                if self._since < 0:  # missed messages are unknown
                    self._waiting.clear()
                    self._failed.clear()
                for run_id in news:
                    self._waiting.pop(run_id, None)
                    self._failed.discard(run_id)
                    with contextlib.suppress(RunUnknown, Corrupt):
                        await self._look(await self._journal.head(run_id))
                self._since = position
                if (began := clock.monotonic()) >= due or lost:
                    # Check all runs that have not ended.
                    found = [head for status in ("open", "parked") for head in await self._of(status)]
                    for head in found:
                        await self._look(head)
                    known = {head.run_id for head in found}
                    self._waiting = {
                        run_id: mark for run_id, mark in self._waiting.items() if run_id in known
                    }
                    self._failed &= known
                    self._placed = {run_id: mark for run_id, mark in self._placed.items() if run_id in known}
                    ended = clock.monotonic()
                    due = ended + max(self._every, _SHARE * (ended - began))
            except JournalError:  # its writers report it, and `doctor` reports damage
                self._since = -1

    def stop(self) -> None:
        """Stop resuming runs."""
        self._stopped = True

    # ---- private ----

    async def _of(self, status: str) -> list[RunHead]:
        found, _ = await heads(self._journal, status=status)  # `doctor` reports damage
        return found

    async def _look(self, head: RunHead, run: OpenRun | None = None) -> Handle | None:
        """Check one run. An error of this run does not keep other runs from being resumed. Raises StoreDown."""
        try:
            return await self._consider(head, run)
        except StoreDown:
            raise
        except (RunUnknown, Corrupt):  # it is gone, or `doctor` reports it
            return None
        except Exception as error:  # noqa: BLE001 - concerns this run only; logged
            self._leave(head.run_id, error)
            return None

    async def _consider(self, head: RunHead, run: OpenRun | None) -> Handle | None:
        """Resume a run if it can continue unattended. `run` is its description if it is known already."""
        name = self._agents.resumer(head)
        if name is None or head.status == "ended" or not self._free(head, name):
            return None
        if head.parent_run_id is not None and await open_root(self._journal, head) not in (None, head.run_id):
            return None  # it is resumed by its parent run
        host = self._agents.hosting(name, head)
        if run is None or run.seq != head.seq:
            run = await host.described(head)
        if not await self._is_for(host, head, run):
            return None
        if run.foreign and run.fingerprint == host.fingerprint:  # its table may become valid here
            self._waiting[head.run_id] = _Waiting(head.seq, again=self._agents.clock.monotonic() + LOOK)
        elif not run.unattended:
            self._waiting[head.run_id] = _Waiting(head.seq, expires_at=run.expires_at)
        elif self._free(head, name) and not self._stopped:
            if self._scheduler is None:
                self._waiting.pop(head.run_id, None)
                work = functools.partial(self._go_on, head, name)
                job = self._agents.stored_job(head, name, work)
                job.end.add_done_callback(functools.partial(self._over, head.run_id))
                self._line.enter(job, bounded=False)  # the bound applies to new runs only
                return Handle(job)
            now = self._agents.clock.monotonic()
            seq, told = self._placed.get(head.run_id, (-1, 0.0))
            if seq != head.seq or now - told >= AGAIN:
                await self._scheduler.submit(head.run_id, head.seq, tenant=run.tenant)
                self._placed[head.run_id] = head.seq, now
        return None

    async def _is_for(self, host: Hosting, head: RunHead, run: OpenRun) -> bool:
        """Return whether this engine and no other one is to continue a run.

        A run of another version of the graph is migrated here only while no live engine has that version. Without such
        an engine and without a migration the run is parked.
        """
        if not (run.migrates or run.foreign):
            return True
        if run.fingerprint != host.fingerprint and await self._versions.has(head, run.fingerprint):
            self._waiting[head.run_id] = _Waiting(head.seq, again=self._agents.clock.monotonic() + LOOK)
            return False
        if run.foreign and run.fingerprint != host.fingerprint and head.status == "open":
            with contextlib.suppress(Held, Fenced):  # another process has it now
                await host.park_for_graph(head)
            return False
        return True

    def _free(self, head: RunHead, agent: str) -> bool:
        """Return whether a run has no owner and may have changed since it was last checked."""
        run_id = head.run_id
        if self._closed(self._agents[agent].hosting.agent, head.tags):
            return False
        if head.owner is not None:
            self._waiting.pop(run_id, None)
            return False
        if run_id in self._failed or self._line.find(run_id) is not None:
            return False
        if self._agents.hosting(agent, head).live(run_id) is not None:
            return False
        waiting = self._waiting.get(run_id)
        return waiting is None or waiting.seq != head.seq or waiting.is_over(self._agents.clock)

    async def _go_on(self, head: RunHead, agent: str) -> Any:
        """Resume a run, unless it was moved while it was queued and now waits for a person."""
        now = await self._journal.head(head.run_id)
        if now.seq != head.seq and now.owner is None and now.status != "ended":
            described = await self._agents.hosting(agent, now).described(now)
            if not described.unattended:
                raise Suspended(head.run_id, now.reason or "interrupted")
        return await self._agents[agent].resume(head.run_id, by=f"engine {self._line.name}")

    def _over(self, run_id: str, end: asyncio.Future[object]) -> None:
        outcome = end.result()
        if isinstance(outcome, Exception) and not isinstance(
            outcome, JournalError | Suspended | NotAdmitting
        ):
            self._leave(run_id, outcome)

    def _leave(self, run_id: str, error: Exception) -> None:
        """Log a run that could not be resumed, because its handle may never be awaited."""
        self._failed.add(run_id)
        logging.getLogger("orchestrator").error(
            "run %r could not be resumed and is left until a message is posted for it: %s: %s",
            run_id,
            type(error).__name__,
            error,
        )


def checked_mode(recover: Recover) -> Recover:
    """Return the recovery mode. Raises ConfigError for an unknown mode."""
    if recover not in get_args(Recover):
        raise ConfigError(f"recover is {recover!r}; it must be one of {', '.join(get_args(Recover))}")
    return recover


def _checked(every: Any) -> float:
    if not isinstance(every, int | float) or isinstance(every, bool) or not 0 < every < float("inf"):
        raise ConfigError(f"rescan is {every!r}; it must be a number of seconds, more than 0")
    return float(every)
