"""Draining an engine: runs that can end in time end, the others are left in the journal and can be resumed.

1. Queued runs do not start. They are rejected, or stay in the journal if it has them.
2. Active runs get `grace` seconds to end. The drain does not wait for runs that wait for a person.
3. The remaining runs are asked to pause before their next step, with the reason `shutdown`, and get SETTLE seconds.
4. Runs that are still inside a step are interrupted. Recovery treats them like runs after a crash, by the effects of
their tools. Runs that wait are left as they are. A tool that ignores its cancellation is abandoned after the run's
`cancel_seconds` (kernel/abandonment.py). An unavailable journal server is not waited for: a supervisor would not wait
for it either.

A later drain may shorten step 2, or steps 2 and 3, while they last.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from orchestrator.engines.handle import EngineJob
from orchestrator.engines.run_queue import RunQueue
from orchestrator.errors import JournalError, NotAdmitting, RunUnknown, Suspended
from orchestrator.kernel.journal import Journal
from orchestrator.llm.port import Clock

SETTLE = 5.0
"""Seconds that runs get to finish their step.

A supervisor has to wait for grace + SETTLE + the greatest `cancel_seconds` of its runs, with some reserve.
"""

HURRY = 10.0
"""Seconds after a forced drain in which calls do not wait for an unavailable journal server."""

SHUTDOWN = "shutdown"
_INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The outcome of each run when an engine was drained, by run id."""

    ended: tuple[str, ...] = ()
    """Ended within the grace period."""
    parked: tuple[str, ...] = ()
    """Left in the journal between two steps, or where they waited for a person."""
    interrupted: tuple[str, ...] = ()
    """Left in the journal inside a step."""
    refused: tuple[str, ...] = ()
    """Never started; they are not in the journal."""


class Drain:
    """Drain a queue of runs."""

    def __init__(self, name: str, line: RunQueue, clock: Clock, why: str) -> None:
        self._name = name
        self._line = line
        self._clock = clock
        self._why = why
        self._found: dict[str, list[str]] = {"ended": [], "parked": [], "interrupted": [], "refused": []}
        self._ends: float | None = None
        self._at_once = False

    def shorten(self, seconds: float) -> None:
        """End the grace period in at most this many seconds; SETTLE does not change."""
        ends = self._clock.monotonic() + seconds
        if not self._line.frozen and (self._ends is None or ends < self._ends):
            self._ends = ends
            self._line.changed.set()

    def hurry(self) -> None:
        """Interrupt all remaining runs at once."""
        self._at_once = True
        self._line.changed.set()

    async def run(self) -> DrainReport:
        """Drain the queue and return the outcome of its runs."""
        line = self._line
        self._turn_away()
        begun = list(line.live.values())
        await self._until_idle()
        line.freeze()
        self._pause()
        self._ends = self._clock.monotonic() + SETTLE
        await self._until_idle()
        left = list(line.live.values())
        for job in left:
            _hurry(job.hosting.journal)
            self._cut(job)
        if tasks := [job.task for job in left if job.task is not None]:
            await asyncio.wait(tasks)
        for job in left:
            await self._signal(job)
        self._found["ended"] += [job.run_id for job in begun if job not in left]
        return DrainReport(**{name: tuple(found) for name, found in self._found.items()})

    def _turn_away(self) -> None:
        for job in self._line.let_go(lambda _: True):
            if job.stored:
                self._found["parked"].append(job.run_id)
                job.settle(Suspended(job.run_id, SHUTDOWN))
            else:
                self._found["refused"].append(job.run_id)
                job.settle(NotAdmitting(self._name, self._why, "submit it to another engine"))

    async def _until_idle(self) -> None:
        """Return when no run is active any more, or when the time is up."""
        line, clock = self._line, self._clock
        while line.active() and not self._at_once:
            left = None if self._ends is None else self._ends - clock.monotonic()
            if left is not None and left <= 0:
                return
            line.changed.clear()
            alarm = None if left is None else clock.call_later(left, line.changed.set)
            try:
                await line.changed.wait()
            finally:
                if alarm is not None:
                    alarm.cancel()

    def _pause(self) -> None:
        for job in self._line.active():
            if not job.hosting.ask(job.run_id, "pause", by=SHUTDOWN, why=self._why):
                self._cut(job)  # it has not reached the journal yet

    def _cut(self, job: EngineJob) -> None:
        job.cut = True
        if job.task is not None:
            job.task.cancel()

    async def _signal(self, job: EngineJob) -> None:
        """Record the outcome of an interrupted run from its state in the journal."""
        if job.end.done():  # it ended nevertheless
            self._found["ended"].append(job.run_id)
            return
        try:
            head = await job.hosting.journal.head(job.run_id)
        except RunUnknown:
            self._found["refused"].append(job.run_id)
            job.settle(NotAdmitting(self._name, self._why, "submit it to another engine"))
            return
        except JournalError:
            reason = _INTERRUPTED
        else:
            reason = head.reason or _INTERRUPTED
        self._found["interrupted" if reason == _INTERRUPTED else "parked"].append(job.run_id)
        job.settle(Suspended(job.run_id, reason))


def _hurry(journal: Journal) -> None:
    """Make a journal with a server stop waiting for that server. Other journals have no server."""
    hurry = getattr(journal, "hurry", None)
    if hurry is not None:
        hurry(HURRY)
