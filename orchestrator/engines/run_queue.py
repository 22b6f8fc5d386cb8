"""The runs of one engine: a bounded queue of runs to start, and the active runs, in slots or waiting."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Iterator

from orchestrator.engines.handle import EngineJob, Phase
from orchestrator.engines.slot import Slots
from orchestrator.errors import ConfigError, Overloaded, RunExists, Suspended
from orchestrator.kernel.record import AdmissionRejected, RunAdmitted


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

    def of_graph(self, graph: str | None) -> Iterator[EngineJob]:
        """Yield the active runs of one graph, or of all graphs."""
        return (job for job in tuple(self.live.values()) if graph in (None, job.hosting.graph))

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
