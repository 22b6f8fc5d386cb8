"""A worker: one process of those that carry the runs of a shared journal, as a dispatcher places them.

    journal = PostgresJournal(dsn, name="worker-1")
    agent = Orchestrator(llm=my_llm, tools=[search], journal=journal)
    async with Worker(agent, DbosDispatcher(dsn), slots=16) as worker:
        await worker.run_until_signal()

It is a local engine whose runs come from the dispatcher, with all that operators may ask of one. Every `rescan`
seconds it sweeps the journal for runs that nobody carries and that go on by themselves, and tells the dispatcher of
them: those left by `deposit`, those whose worker died, those that somebody answered. A run that has to wait for a
person is left in the journal and takes no slot. One worker at a time, the first by name of those that live, gives the
slices of dead ones back to the dispatcher.

All workers of a database carry the same graphs: a slice goes to any of them, and one that has no agent for it says so
and leaves it to the next sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from orchestrator.engines.agent import EngineAgent
from orchestrator.engines.agent_registry import AgentRegistry
from orchestrator.engines.dispatcher import Dispatcher
from orchestrator.engines.drain import DrainReport
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.registration import ENGINE
from orchestrator.errors import (
    ConfigError,
    Corrupt,
    Held,
    JournalError,
    NotAdmitting,
    RunExists,
    RunUnknown,
    Suspended,
    TooNew,
)
from orchestrator.journal.heads import heads
from orchestrator.kernel.journal import RunHead
from orchestrator.llm.retry import UNLIMITED, RetryPolicy
from orchestrator.telemetry.engine import Load

BEAT = 1.0
"""Seconds between two looks for workers that died."""
TWIN = 12.0
"""Seconds that a worker waits for the one before it, of its name, to be known as dead."""
_HANDING_ON = 10.0
"""Seconds that a worker which ends gives its drives to tell others of the runs that it leaves."""
_OUTAGE = RetryPolicy(UNLIMITED, base=0.2, max_delay=5.0, deadline=0.0, jitter=0.0)
"""How a run is tried again whose store is down, until the worker drains."""

_log = logging.getLogger("orchestrator")


class WorkerInfo(Protocol):
    """A worker, as the journal sees it."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def alive(self) -> bool:
        """Its process lives and has the database."""
        ...


class Worker:
    """Carries what `dispatcher` places here, at most `slots` runs at once, with agents of one graph each.

    The agents share one PostgresJournal, whose `name` is this worker's: unique among those that live, refused where it
    is not. As long as it works their runs park (`parks`), those too that are begun beside it. `grace`, `rescan` and
    `signals` are as for LocalEngine. Raises ConfigError.
    """

    def __init__(
        self,
        agent: EngineAgent | Mapping[str, EngineAgent],
        dispatcher: Dispatcher,
        *,
        slots: int = 16,
        grace: float = 30.0,
        rescan: float = 5.0,
        signals: Iterable[signal.Signals] = (),
    ) -> None:
        self._agents = AgentRegistry(agent)
        journal: Any = self._agents.journal
        self._journal = journal
        if not hasattr(journal, "holders"):
            raise ConfigError(
                "a worker needs a journal that many machines share: PostgresJournal(dsn, name=…)"
            )
        _refuse_twice(self._agents)
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
            signals=signals,
            scheduler=dispatcher,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._driving: set[asyncio.Task[Any]] = set()
        self._over = False
        """Also for a reaper whose cancellation got lost in a library: `asyncio.wait_for` may lose one before 3.12."""
        self._parked: dict[str, bool] = {}
        self._known: dict[str, str] = {}
        """Engines of the journal -> names of those that are workers, "" for others."""

    # ---- living ----

    async def __aenter__(self) -> Self:
        await self._refuse_twin()
        self._parked = {name: self._agents[name].parks for name in self._agents}
        for name in self._agents:
            self._agents[name].parks = True
        try:
            await self._begin()
        except BaseException:
            self._back_as_they_were()
            await self._dispatcher.stop()
            raise
        return self

    async def _begin(self) -> None:
        """The dispatcher first: it makes its tables. What it has before the engine admits runs waits in `_drive`."""
        await self._dispatcher.start(self._drive, self.name, self._slots)
        await self._engine.start()
        for work, what in ((self._reap(), "reaper"), (self._cease(), "end")):
            self._tasks.append(asyncio.create_task(work, name=f"worker {self.name} {what}"))

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
            if self._driving:  # they hand on what they leave, which takes the dispatcher
                await asyncio.wait(self._driving, timeout=_HANDING_ON)
            self._back_as_they_were()
            await self._dispatcher.stop()

    def _back_as_they_were(self) -> None:
        for name, parked in self._parked.items():
            self._agents[name].parks = parked

    async def run_until_signal(self, grace: float | None = None) -> DrainReport:
        """Work until SIGTERM, SIGINT or an operator's drain; see LocalEngine."""
        return await self._engine.run_until_signal(grace)

    def status(self) -> dict[str, Any]:
        """Return slots, orders that stand and live runs, as plain data."""
        return self._engine.status()

    def load(self) -> Load:
        """Return how busy the worker is, for a scrape."""
        return self._engine.load()

    # ---- inside ----

    async def _refuse_twin(self) -> None:
        """Raise ConfigError where another worker of this name lives: they would be one to the dispatcher."""
        if not self.name:
            raise ConfigError("a worker has a name of its own: PostgresJournal(dsn, name=…)")
        await self._journal.open()
        until = self._agents.clock.monotonic() + TWIN
        while sum(peer.alive and peer.name == self.name for peer in await self._peers()) > 1:
            if self._agents.clock.monotonic() >= until:
                raise ConfigError(f"a worker named {self.name!r} lives already; give each its own name")
            await asyncio.sleep(BEAT / 4)

    async def _peers(self) -> list[WorkerInfo]:
        found: list[WorkerInfo] = await self._journal.holders()
        return found

    async def _drive(self, run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        """Carry a run as far as it goes now. What cannot be helped here is told, and left in the journal."""
        if (task := asyncio.current_task()) is not None:
            self._driving.add(task)
            task.add_done_callback(self._driving.discard)
        try:
            await _OUTAGE.call(self._driven, run_id, may_retry=self._may_retry, clock=self._agents.clock)
        except Exception as error:  # noqa: BLE001 - the dispatcher is not to judge a run by it
            if not _passes(error):  # else the worker drains, and the next sweep finds the run
                kind = type(error).__name__
                _log.error("run %r (slice %d) could not be driven: %s: %s", run_id, slice, kind, error)

    def _may_retry(self, error: Exception) -> bool:
        return _passes(error) and self._engine.load().phase not in {"draining", "stopped"}

    async def _driven(self, run_id: str) -> None:
        """Carry a run. Raises JournalError, NotAdmitting, and what is wrong with the run."""
        try:
            await self._gone_on(await self._journal.head(run_id))
        except (Held, RunExists, RunUnknown):
            pass  # somebody has it, or it is gone: twice told
        except Suspended as left:
            if left.reason in {"shutdown", "interrupted"}:
                await self._hand_on(run_id)

    async def _gone_on(self, head: RunHead) -> None:
        """Go on with a run that nobody has, unless it is for a person.

        Raises JournalError for one that is held in our name and not under way: it lost its journal and is given back
        as soon as that can be reached.
        """
        if head.status == "ended" or head.reason in {"poison", "paused"}:
            return
        name = self._agents.taker(head.graph)
        if head.owner is not None:
            here = None if name is None else self._agents[name].hosting
            if here is not None and head.owner == here.owner and here.live(head.run_id) is None:
                raise JournalError(f"run {head.run_id!r} lost its journal")
            return
        if name is None:
            raise ConfigError(f"no agent of this worker has graph {head.graph!r}, or several have")
        await (await self._engine.resume(head.run_id, agent=name, by=f"worker {self.name}"))

    async def _hand_on(self, run_id: str) -> None:
        """Let another worker go on with a run that this one has left. A sweep does it where this fails."""
        with contextlib.suppress(JournalError):
            head = await self._journal.head(run_id)
            name = self._agents.taker(head.graph)
            if head.status != "ended" and head.owner is None and name is not None:
                run = await self._agents[name].hosting.described(head)
                await self._dispatcher.submit(run_id, head.seq, tenant=run.tenant)

    async def _cease(self) -> None:
        """Let others have what is in the queue as soon as this worker begins to drain."""
        await self._engine.leaving()
        try:
            await self._dispatcher.cease()
        except Exception as error:  # noqa: BLE001 - it ends all the same
            _log.error("worker %s could not leave the queue: %s: %s", self.name, type(error).__name__, error)

    async def _reap(self) -> None:
        """Give what dead workers had to others, as long as this one lives."""
        failed = ""
        while not self._over:
            await asyncio.sleep(BEAT)
            try:
                if await self._leads():
                    # As late as can be: one that has begun since would count as dead, and its slices be given away.
                    living = frozenset(peer.name for peer in await self._peers() if peer.alive)
                    if lost := await self._dispatcher.reap(living):
                        _log.warning("worker %s gave %d slices of dead workers to others", self.name, lost)
                failed = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may be better
                if failed != (failed := type(error).__name__):
                    _log.warning("worker %s cannot look for dead workers: %s: %s", self.name, failed, error)

    async def _leads(self) -> bool:
        """Tell whether this is the first by name of the workers that live. Others that hold runs do not count."""
        begun, _ = await heads(self._journal, graph=ENGINE, status="open")
        known = {head.run_id: self._known.get(head.run_id) for head in begun if head.owner is not None}
        for run_id, name in known.items():
            if name is None:
                about = (await self._journal.load(run_id))[0].body.get(ENGINE) or {}
                known[run_id] = str(about.get("name", "")) if about.get("placed") else ""
        self._known = {run_id: name or "" for run_id, name in known.items()}
        return min(filter(None, self._known.values()), default="") == self.name


def _passes(error: Exception) -> bool:
    """Return whether the next try to carry a run may succeed.

    The store is down, the run lost its journal and the journal has what counts, or the engine admits no run yet: the
    worker keeps the slice, because a slice that it returned would come back at once and be lost to all workers.
    """
    return isinstance(error, JournalError | NotAdmitting) and not isinstance(error, Corrupt | TooNew)


def _refuse_twice(agents: AgentRegistry) -> None:
    """Raise ConfigError where two agents have one graph."""
    graphs = [host.graph for host in agents.hosts]
    if len(set(graphs)) < len(graphs):
        raise ConfigError(
            f"the agents of a worker have a graph each, and two have {max(graphs, key=graphs.count)!r}: "
            "nobody could tell whose a run is"
        )
