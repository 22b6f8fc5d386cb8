"""The runs of one engine: a bounded queue of runs to start, and the active runs, in slots or waiting.

Slots limit how many runs work at once. A run that waits for a person returns its slot and queues for a new one when it
can continue. If both new and returning runs are queued, they take turns, one each, and first come first served among
their own kind. So neither kind delays the other by more than the duration of one run per place in the queue.

Slots are not thread-safe: for one event loop. Everything except the waiting happens in one step, so no slot is lost and
no wake-up is missed. A waiter that is cancelled after it was given a slot passes the slot on.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, cast

from orchestrator.errors import ConfigError, Overloaded, RunExists, Suspended
from orchestrator.kernel.fact import AdmissionRejected, RunAdmitted
from orchestrator.runtime.llm_loop.result import OutputT_co, ResultT_co
from orchestrator.runtime.service.hosting import Hosting


class Phase(StrEnum):
    """Where a run is in its engine."""

    QUEUED = "queued"
    """Not started. It is not in the journal, unless it is a resumed run."""
    RUNNING = "running"
    WAITING = "waiting"
    """Waits for a person and holds no slot."""
    READY = "ready"
    """Can continue and waits for a slot."""
    OVER = "over"
    """Ended, or does not continue in this engine."""


@dataclass(slots=True, eq=False)
class EngineJob:
    """One run of an engine. `work` starts or resumes it."""

    run_id: str
    agent: str
    hosting: Hosting
    work: Callable[[], Coroutine[Any, Any, object]]
    """Returns the result of its agent: a Result, a PipelineResult, an RlmResult or a host's own type."""
    context: Context
    """Context variables for the code inside the run: a copy of the submitter's."""
    end: asyncio.Future[object]
    """The result, or the error as a value, so that an unread error causes no warning."""
    conversation_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    stored: bool = False
    """The journal had the run before it was submitted."""
    phase: Phase = Phase.QUEUED
    reason: str = ""
    """Why the run waits."""
    entered: float = 0.0
    """When it was queued, by the monotonic clock of its agent."""
    before: float = 0.0
    """Seconds that the run had waited in the journal before it was queued; exact only if clocks agree."""
    seated: bool = False
    task: asyncio.Task[object] | None = field(default=None, repr=False)
    cut: bool = False
    """The engine cancelled its task and records the outcome itself."""

    def settle(self, outcome: object) -> None:
        """Set the outcome. Only the first call has an effect."""
        self.phase = Phase.OVER
        if not self.end.done():
            self.end.set_result(outcome)


class Handle(Generic[OutputT_co, ResultT_co]):
    """A run that an engine admitted. Await the handle for the value that `run` of its agent returns.

    `Handle[Report]` gives a `Result[Report]`. An agent with another class of results, such as a Pipeline, has it as
    the second parameter.

    Cancelling the caller that awaits the handle does not affect the run.

    Raises:
        Suspended: The run was left in the journal before its end and can be resumed.
        NotAdmitting: The engine was drained before the run started.
        CancelRequested: The run was cancelled before it started.
        Exception: Any error that `run` of the agent raises.

    Example:
        handle = await engine.submit("Summarise the open incidents.")
        result = await handle
    """

    __slots__ = ("_job",)

    def __init__(self, job: EngineJob) -> None:
        self._job = job

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._job.run_id

    @property
    def phase(self) -> Phase:
        """Current phase of the run."""
        return self._job.phase

    def done(self) -> bool:
        """Return whether awaiting the handle returns or raises at once."""
        return self._job.end.done()

    def __await__(self) -> Generator[Any, None, ResultT_co]:
        return self._wait().__await__()

    async def _wait(self) -> ResultT_co:
        outcome = await asyncio.shield(self._job.end)
        if isinstance(outcome, BaseException):
            raise outcome
        return cast("ResultT_co", outcome)

    def __repr__(self) -> str:
        return f"Handle({self._job.run_id!r}, {self._job.phase.value})"


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


class RunQueue:
    """Start runs in the order of arrival as slots become free.

    `may_begin` holds back single runs, and others pass them. A run that waits in this process keeps only its task,
    some kilobytes.
    """

    def __init__(self, name: str, slots: int, queue: int, may_begin: Callable[[EngineJob], bool]) -> None:
        _check_queue(queue)
        self.name = name
        self._most = queue
        self._may_begin = may_begin
        self.queued: deque[EngineJob] = deque()
        self._known: dict[str, EngineJob] = {}
        self.live: dict[str, EngineJob] = {}
        """Started runs that are not over, by run id."""
        self.slots = Slots(slots, self._begin)
        self.frozen = False
        self.changed = asyncio.Event()
        """Set whenever the phase of a run has changed."""

    def enter(self, job: EngineJob, *, bounded: bool = True) -> None:
        """Admit a run; it starts at once if a slot is free. Raises RunExists, or Overloaded for a full queue."""
        if self.find(job.run_id) is not None:
            raise RunExists(job.run_id)
        self._known[job.run_id] = job
        job.entered = job.hosting.clock.monotonic()
        self.queued.append(job)
        self.slots.fill()
        if bounded and job.phase is Phase.QUEUED and len(self.queued) > self._most:
            self.queued.remove(job)
            del self._known[job.run_id]
            host = job.hosting
            at = host.clock.time()
            host.publish(AdmissionRejected(host.graph, job.run_id, "queue_full", at, host.agent))
            raise Overloaded(self.name, self._most, self.slots.limit)

    def find(self, run_id: str) -> EngineJob | None:
        """Return a queued or active run."""
        return self._known.get(run_id)

    def active(self) -> list[EngineJob]:
        """Return the runs that work, or would work if they had a slot."""
        return [job for job in self.live.values() if job.phase is not Phase.WAITING]

    def let_go(self, which: Callable[[EngineJob], bool]) -> list[EngineJob]:
        """Remove runs from the queue and return them."""
        gone = [job for job in self.queued if which(job)]
        for job in gone:
            self.queued.remove(job)
            del self._known[job.run_id]
        return gone

    def freeze(self) -> None:
        """Keep waiting runs waiting from now on, even if they could continue."""
        self.frozen = True
        self.slots.freeze()

    def count(self) -> dict[str, int]:
        """Return the number of runs in each phase."""
        phases = [job.phase for job in self.live.values()]
        found = {phase.value: phases.count(phase) for phase in (Phase.RUNNING, Phase.READY, Phase.WAITING)}
        return found | {Phase.QUEUED.value: len(self.queued)}

    # ---- called by the runs (kernel.suspension.ConcurrencyLimiter) ----

    def leave(self, run_id: str, reason: str) -> None:
        """Release the slot of a run that waits for a person. Child runs have no slot."""
        job = self.live.get(run_id)
        if job is not None:
            job.phase, job.reason = Phase.WAITING, reason
            self._unseat(job)

    async def back(self, run_id: str) -> None:
        """Return when the run has a slot again."""
        job = self.live.get(run_id)
        if job is None:
            return
        if not self.frozen:
            job.phase = Phase.READY
        self.changed.set()
        await self.slots.back()
        job.seated, job.phase, job.reason = True, Phase.RUNNING, ""

    # ---- private ----

    def _begin(self) -> bool:
        """Start the first run that may start, in the slot that the caller has taken."""
        job = next((job for job in self.queued if self._may_begin(job)), None)
        if job is None:
            return False
        self.queued.remove(job)
        self.live[job.run_id] = job
        job.seated, job.phase = True, Phase.RUNNING
        host, clock = job.hosting, job.hosting.clock
        waited = job.before + clock.monotonic() - job.entered
        host.publish(RunAdmitted(host.graph, job.run_id, waited, clock.time(), host.agent))
        loop = asyncio.get_running_loop()
        job.task = loop.create_task(job.work(), name=f"run {job.run_id}", context=job.context)
        job.task.add_done_callback(functools.partial(self._finished, job))
        return True

    def _finished(self, job: EngineJob, task: asyncio.Task[object]) -> None:
        del self.live[job.run_id], self._known[job.run_id]
        if not task.cancelled():
            job.settle(task.exception() or task.result())
        elif not job.cut:
            job.settle(Suspended(job.run_id, "interrupted"))
        self._unseat(job)

    def _unseat(self, job: EngineJob) -> None:
        seated, job.seated = job.seated, False
        if seated:
            self.slots.give()
        else:
            self.slots.fill()  # a run that was held back may start now
        self.changed.set()


def _check_queue(queue: object) -> None:
    if not isinstance(queue, int) or isinstance(queue, bool) or queue < 0:
        raise ConfigError(f"queue is {queue!r}; it must be a whole number, 0 or more")
