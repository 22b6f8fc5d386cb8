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
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from orchestrator.engines.agent import Agent
from orchestrator.engines.crew import Crew
from orchestrator.engines.dispatcher import Dispatcher
from orchestrator.engines.drain import Drained
from orchestrator.engines.local import LocalEngine
from orchestrator.errors import (
    ConfigError,
    Held,
    JournalError,
    NotAdmitting,
    RunExists,
    RunUnknown,
    StoreDown,
    Suspended,
)
from orchestrator.kernel.journal import RunHead
from orchestrator.telemetry.engine import Load

BEAT = 1.0
"""Seconds between two looks for workers that died."""
TWIN = 12.0
"""Seconds that a worker waits for the one before it, of its name, to be known as dead."""
_BACKOFF = 0.2, 5.0
"""First and longest wait, in seconds, for a store that is down."""

_log = logging.getLogger("orchestrator")


class Peer(Protocol):
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
    is not. `grace`, `rescan` and `signals` are as for LocalEngine. Raises ConfigError.
    """

    def __init__(
        self,
        agent: Agent | Mapping[str, Agent],
        dispatcher: Dispatcher,
        *,
        slots: int = 16,
        grace: float = 30.0,
        rescan: float = 5.0,
        signals: Iterable[signal.Signals] = (),
    ) -> None:
        self._crew = Crew(agent)
        journal: Any = self._crew.journal
        self._journal = journal
        if not hasattr(journal, "holders"):
            raise ConfigError(
                "a worker needs a journal that many machines share: PostgresJournal(dsn, name=…)"
            )
        self.name = str(self._journal.name)
        self._dispatcher = dispatcher
        self._slots = slots
        for name in self._crew:
            self._crew[name].parks = True
        self._engine = LocalEngine(
            agent,
            slots=slots,
            grace=grace,
            name=self.name,
            recover="resume",
            rescan=rescan,
            signals=signals,
            placer=dispatcher,
        )
        self._beat: asyncio.Task[None] | None = None

    # ---- living ----

    async def __aenter__(self) -> Self:
        await self._refuse_twin()
        await self._dispatcher.start(self._drive, self.name, self._slots)
        try:
            await self._engine.start()
        except BaseException:
            await self._dispatcher.stop()
            raise
        self._beat = asyncio.create_task(self._reap(), name=f"worker {self.name} reaper")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._engine.__aexit__(kind, error, trace)
        finally:
            if self._beat is not None:
                self._beat.cancel()
                await asyncio.gather(self._beat, return_exceptions=True)
            await self._dispatcher.stop()

    async def run_until_signal(self, grace: float | None = None) -> Drained:
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
        until = self._crew.clock.monotonic() + TWIN
        while sum(peer.alive and peer.name == self.name for peer in await self._peers()) > 1:
            if self._crew.clock.monotonic() >= until:
                raise ConfigError(f"a worker named {self.name!r} lives already; give each its own name")
            await asyncio.sleep(BEAT / 4)

    async def _peers(self) -> list[Peer]:
        found: list[Peer] = await self._journal.holders()
        return found

    async def _drive(self, run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        """Carry a run as far as it goes now. What cannot be helped here is told, and left in the journal."""
        wait = _BACKOFF[0]
        while True:
            try:
                if await self._driven(run_id):
                    return
            except StoreDown:
                await asyncio.sleep(wait)
                wait = min(2 * wait, _BACKOFF[1])
            except Exception as error:  # noqa: BLE001 - the dispatcher is not to judge a run by it
                kind = type(error).__name__
                _log.error("run %r (slice %d) could not be driven: %s: %s", run_id, slice, kind, error)
                return

    async def _driven(self, run_id: str) -> bool:
        """Carry a run; False where that is to be tried again. Raises StoreDown, and what is wrong with the run."""
        try:
            await self._gone_on(await self._journal.head(run_id))
        except (Held, RunExists, RunUnknown):
            pass  # somebody has it, or it is gone: twice told
        except (Suspended, NotAdmitting) as left:
            if not isinstance(left, Suspended) or left.reason in {"shutdown", "interrupted"}:
                await self._hand_on(run_id)
        except StoreDown:
            raise
        except JournalError:
            return False  # it lost its journal on the way: what counts is what the journal has
        return True

    async def _gone_on(self, head: RunHead) -> None:
        """Go on with a run that nobody has, unless it is for a person."""
        if head.status == "ended" or head.owner is not None or head.reason in {"poison", "paused"}:
            return
        name = self._crew.taker(head.graph)
        if name is None:
            raise ConfigError(f"no agent of this worker has graph {head.graph!r}, or several have")
        await (await self._engine.resume(head.run_id, agent=name, by=f"worker {self.name}"))

    async def _hand_on(self, run_id: str) -> None:
        """Let another worker go on with a run that this one has left. A sweep does it where this fails."""
        with contextlib.suppress(JournalError):
            head = await self._journal.head(run_id)
            if head.status != "ended" and head.owner is None:
                await self._dispatcher.submit(run_id, head.seq)

    async def _reap(self) -> None:
        """Give what dead workers had to others, as long as this one lives."""
        down = False
        while True:
            await asyncio.sleep(BEAT)
            try:
                living = frozenset(peer.name for peer in await self._peers() if peer.alive)
                if living and min(living) == self.name and (lost := await self._dispatcher.reap(living)):
                    _log.warning("worker %s gave %d slices of dead workers to others", self.name, lost)
                down = False
            except StoreDown as error:
                if not down:
                    _log.warning("worker %s cannot look for dead workers: %s", self.name, error)
                down = True
