"""Taking up what others left: runs of the engine's graphs that nobody has, at its start and as long as it lives.

A run that goes on by itself (`OpenRun.unattended`) is resumed, in a slot as any other; one that was left in the middle
of an irreversible call is among them, for only a run that goes on can put its question. What was parked for an answer
stays parked: it can be read and answered in the journal, and costs nothing here, not even a task. It is taken up once
something is posted for it that lets it go on, or its question expires. So thousands of runs may wait for people.

Two things tell of such runs. `news` names those that something was posted for, a quarter of a second later at most.
A scan looks at all that have not ended: for those whose owner died since, and for questions that expired. Where it
takes long, the next one waits longer: scans get a twentieth of the time at most. Whoever claims a run first has it;
for another engine it is held until that one dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

from orchestrator.engines.agent_registry import AgentRegistry
from orchestrator.engines.dispatcher import Scheduler
from orchestrator.engines.handle import Handle
from orchestrator.engines.run_queue import RunQueue
from orchestrator.errors import (
    ConfigError,
    Corrupt,
    JournalError,
    NotAdmitting,
    RunUnknown,
    StoreDown,
    Suspended,
)
from orchestrator.journal.heads import heads
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.llm_loop.agent_tool import open_root
from orchestrator.runtime.service.recovery import OpenRun

Recover: TypeAlias = Literal["list", "resume"]
"""What is done with runs that have not ended and that nobody has: they are only listed, or taken up."""

POLL = 0.25
"""Seconds between two looks at what was posted."""
AGAIN = 15.0
"""Seconds after which a dispatcher is told once more of a run that nobody carries and that stands where it stood."""
_SHARE = 20
"""A scan that took a second is not repeated for so many."""


class OrphanRecovery:
    """Takes stored runs up for an engine. `every` is the seconds between two scans; while `closed`, it takes none.

    With a `scheduler` it resumes none of them: it names each to the scheduler, and again every AGAIN seconds while the
    run stays where it is. So a run is not lost when a dispatcher loses it.
    """

    def __init__(
        self,
        agents: AgentRegistry,
        line: RunQueue,
        every: float,
        closed: Callable[[], bool],
        scheduler: Scheduler | None = None,
    ) -> None:
        self._agents = agents
        self._line = line
        self._every = _checked(every)
        self._closed = closed
        self._scheduler = scheduler
        self._placed: dict[str, tuple[int, float]] = {}
        """Runs that the scheduler was told of -> number of their last record then, when that was (monotonic)."""
        self._journal = agents.journal
        self._since = -1
        self._stays: dict[str, tuple[int, float]] = {}
        """Runs that are for a person -> number of the last record when that was found out, when a question expires."""
        self._failed: set[str] = set()
        """Runs that could not go on here: not tried again before something is posted for them."""
        self._stopped = False

    @property
    def places(self) -> bool:
        """Whether the runs that are found go to a scheduler, and none is resumed here."""
        return self._scheduler is not None

    async def found(self) -> list[OpenRun]:
        """Return the runs that have not ended, and remember from when on to listen. Raises StoreDown."""
        self._since, _ = await self._journal.news(-1)
        return await self._agents.open_runs()

    async def begin(self, found: list[OpenRun]) -> dict[str, Handle]:
        """Take up those of the runs found that go on by themselves, oldest first. Raises StoreDown."""
        taken: dict[str, Handle] = {}
        for run in found:
            with contextlib.suppress(RunUnknown, Corrupt):
                handle = await self._look(await self._journal.head(run.run_id), run)
                if handle is not None:
                    taken[run.run_id] = handle
        return taken

    async def keep(self) -> None:
        """Go on taking up what others leave, until cancelled, or until `stop` where a library swallows that."""
        clock = self._agents.clock
        due = clock.monotonic() + self._every
        while not self._stopped:
            await asyncio.sleep(POLL)
            if self._closed():
                continue
            try:
                lost = self._since < 0
                await self._hear()
                if (began := clock.monotonic()) >= due or lost:
                    await self._scan()
                    ended = clock.monotonic()
                    due = ended + max(self._every, _SHARE * (ended - began))
            except JournalError:  # who writes to it tells of it, and `doctor` of what is damaged
                self._since = -1

    def stop(self) -> None:
        """Take up no more."""
        self._stopped = True

    # ---- inside ----

    async def _hear(self) -> None:
        """Look at the runs that something was posted for."""
        position, news = await self._journal.news(self._since)
        if self._since < 0:  # nobody knows what was missed
            self._stays.clear()
            self._failed.clear()
        for run_id in news:
            self._stays.pop(run_id, None)
            self._failed.discard(run_id)
            with contextlib.suppress(RunUnknown, Corrupt):
                await self._look(await self._journal.head(run_id))
        self._since = position

    async def _scan(self) -> None:
        """Look at all runs that have not ended."""
        found = [head for status in ("open", "parked") for head in await self._of(status)]
        for head in found:
            await self._look(head)
        known = {head.run_id for head in found}
        self._stays = {run_id: mark for run_id, mark in self._stays.items() if run_id in known}
        self._failed &= known
        self._placed = {run_id: mark for run_id, mark in self._placed.items() if run_id in known}

    async def _of(self, status: str) -> list[RunHead]:
        found, _ = await heads(self._journal, status=status)  # `doctor` looks for damage
        return found

    async def _look(self, head: RunHead, run: OpenRun | None = None) -> Handle | None:
        """Consider one run. What goes wrong with it keeps no other from going on. Raises StoreDown."""
        try:
            return await self._consider(head, run)
        except StoreDown:
            raise
        except (RunUnknown, Corrupt):  # it is gone, or `doctor` names it
            return None
        except Exception as error:  # noqa: BLE001 - of this run; told
            self._leave(head.run_id, error)
            return None

    async def _consider(self, head: RunHead, run: OpenRun | None) -> Handle | None:
        """Take a run up where it goes on by itself. `run` is what is known of it already."""
        name = self._agents.taker(head.graph)
        if name is None or head.status == "ended" or not self._free(head, name):
            return None
        if head.parent_run_id is not None and await open_root(self._journal, head) not in (None, head.run_id):
            return None  # it goes on with the run above it
        host = self._agents[name].hosting
        if run is None or run.seq != head.seq:
            run = await host.described(head)
        if not run.unattended:
            self._stays[head.run_id] = (head.seq, run.expires_at)
        elif self._free(head, name) and not self._stopped:
            if self._scheduler is None:
                return self._take(head, name)
            await self._place(self._scheduler, head, run.tenant)
        return None

    def _free(self, head: RunHead, agent: str) -> bool:
        """Tell whether nobody has a run, and something may be different about it since it was looked at."""
        run_id = head.run_id
        if head.owner is not None:
            self._stays.pop(run_id, None)
            return False
        if run_id in self._failed or self._line.find(run_id) is not None:
            return False
        if self._agents[agent].hosting.live(run_id) is not None:
            return False
        seq, expires_at = self._stays.get(run_id, (-1, 0.0))
        return seq != head.seq or 0 < expires_at <= self._agents.clock.time()

    async def _place(self, scheduler: Scheduler, head: RunHead, tenant: str) -> None:
        now = self._agents.clock.monotonic()
        seq, told = self._placed.get(head.run_id, (-1, 0.0))
        if seq != head.seq or now - told >= AGAIN:
            await scheduler.submit(head.run_id, head.seq, tenant=tenant)
            self._placed[head.run_id] = head.seq, now

    def _take(self, head: RunHead, agent: str) -> Handle:
        self._stays.pop(head.run_id, None)
        work = functools.partial(self._go_on, head, agent)
        job = self._agents.stored_job(head, agent, work)
        job.end.add_done_callback(functools.partial(self._over, head.run_id))
        self._line.enter(job, bounded=False)  # the bound is for what is new
        return Handle(job)

    async def _go_on(self, head: RunHead, agent: str) -> Any:
        """Resume a run, unless somebody has moved it while it stood in line and it is for a person by now."""
        runner = self._agents[agent]
        now = await self._journal.head(head.run_id)
        if now.seq != head.seq and now.owner is None and now.status != "ended":
            described = await runner.hosting.described(now)
            if not described.unattended:
                raise Suspended(head.run_id, now.reason or "interrupted")
        return await runner.resume(head.run_id, by=f"engine {self._line.name}")

    def _over(self, run_id: str, end: asyncio.Future[object]) -> None:
        outcome = end.result()
        if isinstance(outcome, Exception) and not isinstance(
            outcome, JournalError | Suspended | NotAdmitting
        ):
            self._leave(run_id, outcome)

    def _leave(self, run_id: str, error: Exception) -> None:
        """Tell of a run that could not go on, for nobody may await it."""
        self._failed.add(run_id)
        logging.getLogger("orchestrator").error(
            "run %r could not be taken up, and is left until something is posted for it: %s: %s",
            run_id,
            type(error).__name__,
            error,
        )


def checked_mode(recover: Recover) -> Recover:
    """Return what is to be done with stored runs. Raises ConfigError for what is no such thing."""
    if recover not in get_args(Recover):
        raise ConfigError(f"recover is {recover!r}; it must be one of {', '.join(get_args(Recover))}")
    return recover


def _checked(every: Any) -> float:
    if not isinstance(every, int | float) or isinstance(every, bool) or not 0 < every < float("inf"):
        raise ConfigError(f"rescan is {every!r}; it must be a number of seconds, more than 0")
    return float(every)
