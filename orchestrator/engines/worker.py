"""A worker: one of several processes that execute the runs of a shared journal, assigned by a dispatcher.

    journal = PostgresJournal(dsn, name="worker-1")
    agent = Agent(my_llm, tools=[search], journal=journal)
    async with Worker(agent, DbosDispatcher(dsn), slots=16) as worker:
        await worker.run_until_signal()

A worker is a local engine whose runs come from the dispatcher; it accepts the same operator commands. Every `rescan`
seconds it sweeps the journal for unowned runs that can continue unattended and submits them to the dispatcher:
deposited runs, runs whose worker died, and runs that were answered. A run that has to wait for a person is left in
the journal and takes no slot. One worker at a time, the first by name of those that live, returns the slices of dead
workers to the dispatcher.

Any worker may get a slice. A worker that drains, or without the agent of the run, or with another version of its graph,
returns the slice to the dispatcher as long as another live engine has that agent and version; otherwise the run waits
in the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from orchestrator.argument_names import checks_names
from orchestrator.engines.agent import AgentRegistry, EngineAgent, refuse_bound
from orchestrator.engines.dispatcher import Dispatcher
from orchestrator.engines.engine_directory import LiveVersions
from orchestrator.engines.local_engine import DrainReport, LocalEngine
from orchestrator.errors import (
    ConfigError,
    Corrupt,
    GraphError,
    Held,
    JournalError,
    NotAdmitting,
    OtherAgent,
    OtherGraph,
    RunExists,
    RunUnknown,
    Suspended,
    TooNew,
)
from orchestrator.journal.difference import heads
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import ENGINE
from orchestrator.llm.retry import UNLIMITED, RetryPolicy
from orchestrator.runtime.service.ownership import OtherDefinition
from orchestrator.telemetry.instrument import Load

BEAT = 1.0
"""Seconds between two searches for dead workers."""
TWIN = 12.0
"""Seconds that a worker waits until its predecessor of the same name is known to be dead."""
RETURN = 0.5
"""Seconds until a slice that another worker has to take is submitted again."""
_HANDING_ON = 10.0
"""Seconds that a stopping worker gives its drives to submit the runs that it leaves."""
_OUTAGE = RetryPolicy(UNLIMITED, base=0.2, max_delay=5.0, deadline=0.0, jitter=0.0)
"""How a run is retried whose store is down, until the worker drains."""

_log = logging.getLogger("orchestrator")


class WorkerInfo(Protocol):
    """A worker as the journal sees it."""

    @property
    def name(self) -> str:
        """Name of the worker."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its process lives and is connected to the database."""
        ...


@checks_names
class Worker:
    """Execute the runs that `dispatcher` assigns to this process, at most `slots` at once.

    While the worker is active, all runs of its agents park (`parks`), including runs that are started outside the
    worker.

    Args:
        agent: The agents, each with a name or version of its own. They share one PostgresJournal, whose `name` names
            this worker and must be unique among the living workers.
        dispatcher: Assigns runs to workers.
        slots: Maximum number of concurrent runs.
        grace, rescan: As for LocalEngine.

    Raises:
        ConfigError: The journal is not shared between machines, or two agents have the same name.
    """

    def __init__(
        self,
        agent: EngineAgent | Mapping[str, EngineAgent],
        dispatcher: Dispatcher,
        *,
        slots: int = 16,
        grace: float = 30.0,
        rescan: float = 5.0,
    ) -> None:
        self._agents = AgentRegistry(agent)
        for name in self._agents:
            refuse_bound(self._agents[name])
            self._agents.checked(name, (None,) * 4, {})  # a deposited run comes without deps
        journal: Any = self._agents.journal
        self._journal = journal
        if not hasattr(journal, "holders"):
            raise ConfigError(
                "a worker needs a journal that many machines share: PostgresJournal(dsn, name=…)"
            )
        self.name = str(self._journal.name)
        self._dispatcher = dispatcher
        self._slots = slots
        self._engine = LocalEngine(
            agent,
            slots=slots,
            grace=grace,
            name=self.name,
            recover="resume",
            rescan=rescan,
            scheduler=dispatcher,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._versions = LiveVersions(journal, self._agents.clock)
        self._driving: set[asyncio.Task[Any]] = set()
        self._over = False
        """Also for a reaper whose cancellation a library lost: `asyncio.wait_for` may lose one before Python 3.12."""
        self._parked: dict[str, bool] = {}
        self._known: dict[str, str] = {}
        """Engines of the journal -> their name if they are workers, else ""."""

    # ---- lifecycle ----

    async def __aenter__(self) -> Self:
        # Another worker of this name must not live: the dispatcher could not tell them apart.
        if not self.name:
            raise ConfigError("a worker needs a unique name: PostgresJournal(dsn, name=…)")
        await self._journal.open()
        until = self._agents.clock.monotonic() + TWIN
        while sum(peer.alive and peer.name == self.name for peer in await self._peers()) > 1:
            if self._agents.clock.monotonic() >= until:
                raise ConfigError(f"a worker named {self.name!r} runs already; give each worker its own name")
            await asyncio.sleep(BEAT / 4)
        self._parked = {name: self._agents[name].parks for name in self._agents}
        for name in self._agents:
            self._agents[name].parks = True
        try:
            # The dispatcher starts first, because it creates its tables.
            await self._dispatcher.start(self._drive, self.name, self._slots)
            await self._engine.start()
            for work, what in ((self._reap(), "reaper"), (self._cease(), "end")):
                self._tasks.append(asyncio.create_task(work, name=f"worker {self.name} {what}"))
        except BaseException:
            self._back_as_they_were()
            await self._dispatcher.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._engine.__aexit__(kind, error, trace)
        finally:
            reaping, ceasing = self._tasks
            self._over = True
            reaping.cancel()
            await asyncio.gather(reaping, ceasing, return_exceptions=True)
            if self._driving:  # they submit the runs that they leave, with the dispatcher
                await asyncio.wait(self._driving, timeout=_HANDING_ON)
            self._back_as_they_were()
            await self._dispatcher.stop()

    def _back_as_they_were(self) -> None:
        for name, parked in self._parked.items():
            self._agents[name].parks = parked

    async def run_until_signal(
        self, grace: float | None = None, *, ready: Callable[[], object] | None = None
    ) -> DrainReport:
        """Work until SIGTERM, SIGINT or an operator's drain; see LocalEngine."""
        return await self._engine.run_until_signal(grace, ready=ready)

    def status(self) -> dict[str, Any]:
        """Return slots, active operator commands and live runs as plain data."""
        return self._engine.status()

    def load(self) -> Load:
        """Return the load of the worker for a scrape."""
        return self._engine.load()

    # ---- private ----

    async def _peers(self) -> list[WorkerInfo]:
        found: list[WorkerInfo] = await self._journal.holders()
        return found

    async def _drive(self, run_id: str, slice: int) -> None:  # noqa: A002 - the protocol's name
        """Execute a run as far as possible.

        An error that a retry cannot fix is logged, and the run stays in the journal.
        """
        if (task := asyncio.current_task()) is not None:
            self._driving.add(task)
            task.add_done_callback(self._driving.discard)
        try:
            await _OUTAGE.call(self._driven, run_id, may_retry=self._may_retry, clock=self._agents.clock)
        except Exception as error:  # noqa: BLE001 - the dispatcher must not judge a run by it
            if _passes(error):  # the worker drains
                self._return(run_id, slice)
            else:
                kind = type(error).__name__
                _log.error("run %r (slice %d) could not be driven: %s: %s", run_id, slice, kind, error)

    def _may_retry(self, error: Exception) -> bool:
        return _passes(error) and self._engine.load().phase not in {"draining", "stopped"}

    async def _driven(self, run_id: str) -> None:
        """Execute a run. Raises JournalError, NotAdmitting, and the errors of the run."""
        try:
            head = await self._journal.head(run_id)
            if head.status == "ended" or head.reason in {"poison", "paused"}:
                return
            name = self._agents.resumer(head)
            if head.owner is not None:
                here = None if name is None else self._agents.hosting(name, head)
                if here is not None and head.owner == here.owner and here.live(head.run_id) is None:
                    raise JournalError(f"run {head.run_id!r} lost its journal")
                return
            if name is None or not await self._versions.fits(self._agents.hosting(name, head), head):
                self._return(head.run_id, head.seq)
                return
            try:
                await (await self._engine.resume(head.run_id, agent=name, by=f"worker {self.name}"))
            except OtherDefinition:
                pass  # a sweep of the worker that has this agent submits the run
            except (OtherAgent, OtherGraph, GraphError):
                # Transferred, migrated, or its table is invalid here.
                self._return(head.run_id, head.seq)
        except (Held, RunExists, RunUnknown):
            pass  # another process owns it, or it is gone: submitted twice
        except Suspended as left:
            if left.reason in {"shutdown", "interrupted"}:
                # Submit the run that this worker has left, so that another worker resumes it; else a sweep does it.
                with contextlib.suppress(JournalError):
                    head = await self._journal.head(run_id)
                    name = self._agents.resumer(head)
                    if head.status != "ended" and head.owner is None and name is not None:
                        run = await self._agents.hosting(name, head).described(head)
                        await self._dispatcher.submit(run_id, head.seq, tenant=run.tenant)

    def _return(self, run_id: str, slice: int) -> None:  # noqa: A002 - the protocol's name
        """Submit a slice again that this worker cannot execute, after the dispatcher has noted its end here."""
        if self._over:  # a sweep of another worker finds the run
            return
        task = asyncio.create_task(self._returned(run_id, slice), name=f"return of {run_id}")
        self._driving.add(task)
        task.add_done_callback(self._driving.discard)

    async def _returned(self, run_id: str, slice: int) -> None:  # noqa: A002 - the protocol's name
        with contextlib.suppress(JournalError, RunUnknown):  # otherwise a sweep finds the run
            await asyncio.sleep(RETURN)
            now = await self._journal.head(run_id)
            idle = (now.seq, now.owner) == (slice, None) and now.status != "ended"
            if idle and await self._versions.has(now, now.fingerprint, but=self._engine.run_id):
                stored = StoredRun.of(now.run_id, await self._journal.load(now.run_id))
                await self._dispatcher.submit(now.run_id, now.seq, tenant=stored.tenant)

    async def _cease(self) -> None:
        """Stop taking from the queue as soon as this worker starts to drain, so that other workers take its slices."""
        await self._engine.leaving()
        try:
            await self._dispatcher.cease()
        except Exception as error:  # noqa: BLE001 - the worker ends anyway
            _log.error("worker %s could not leave the queue: %s: %s", self.name, type(error).__name__, error)

    async def _reap(self) -> None:
        """Return the slices of dead workers to the queue, as long as this worker lives."""
        failed = ""
        while not self._over:
            await asyncio.sleep(BEAT)
            try:
                if await self._leads():
                    # Read as late as possible: a worker that started meanwhile would count as dead and lose its slices.
                    living = frozenset(peer.name for peer in await self._peers() if peer.alive)
                    if lost := await self._dispatcher.reap(living):
                        _log.warning(
                            "worker %s returned %d slices of dead workers to the queue", self.name, lost
                        )
                failed = ""
            except Exception as error:  # noqa: BLE001 - for any error: the next attempt may succeed
                if failed != (failed := type(error).__name__):
                    _log.warning("worker %s cannot look for dead workers: %s: %s", self.name, failed, error)

    async def _leads(self) -> bool:
        """Return whether this is the first living worker by name. Engines that are not workers do not count."""
        begun, _ = await heads(self._journal, graph=ENGINE, status="open")
        known = {head.run_id: self._known.get(head.run_id) for head in begun if head.owner is not None}
        for run_id, name in known.items():
            if name is None:
                about = (await self._journal.load(run_id))[0].body.get(ENGINE) or {}
                known[run_id] = str(about.get("name", "")) if about.get("placed") else ""
        self._known = {run_id: name or "" for run_id, name in known.items()}
        return min(filter(None, self._known.values()), default="") == self.name


def _passes(error: Exception) -> bool:
    """Return whether the next attempt to execute a run may succeed.

    That is the case if the store is down, if the run lost its journal, which has everything that counts, or if the
    engine admits no runs yet. The worker then keeps the slice, because a returned slice would come back at once and
    could be lost to all workers.
    """
    return isinstance(error, JournalError | NotAdmitting) and not isinstance(error, Corrupt | TooNew)
