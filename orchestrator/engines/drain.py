"""Emptying an engine: what can end in time ends, the rest is left in the journal for whoever resumes it.

1. What has not begun does not begin: refused, or left where the journal has it.
2. Runs that are under way get `grace` seconds to reach their end; those that wait for somebody are not waited for.
3. The others are asked to pause before their next step, with `shutdown` as the reason, and get SETTLE seconds.
4. What is still in the middle of something then is interrupted: recovery treats it like a crash, by the effects of
   its tools. Those that wait are left as they are. A tool that ignores its cancellation is abandoned
   after the run's `cancel_seconds` (kernel/abandonment.py).
   A server of the journal that is away is not: whoever stops us would not wait for it either.

Somebody in a hurry may shorten 2, or 2 and 3, while they go on.
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
"""Seconds that runs get to reach the end of their step.

A supervisor has to wait for grace + SETTLE + the greatest `cancel_seconds` of its runs, and some more.
"""

HURRY = 10.0
"""Seconds, from then on, in which nobody waits for a server of the journal that is away."""

SHUTDOWN = "shutdown"
_INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What became of the runs of an engine, by run id."""

    ended: tuple[str, ...] = ()
    """Reached their end within the grace period."""
    parked: tuple[str, ...] = ()
    """Left in the journal between two steps, or where they waited for somebody."""
    interrupted: tuple[str, ...] = ()
    """Left in the journal in the middle of a step."""
    refused: tuple[str, ...] = ()
    """Had not begun; the journal knows nothing of them."""


class Drain:
    """Empties a line of runs."""

    def __init__(self, name: str, line: RunQueue, clock: Clock, why: str) -> None:
        self._name = name
        self._line = line
        self._clock = clock
        self._why = why
        self._found: dict[str, list[str]] = {"ended": [], "parked": [], "interrupted": [], "refused": []}
        self._ends: float | None = None
        self._at_once = False

    def shorten(self, seconds: float) -> None:
        """Let the grace period end in so many seconds at most; the time to settle stays."""
        ends = self._clock.monotonic() + seconds
        if not self._line.frozen and (self._ends is None or ends < self._ends):
            self._ends = ends
            self._line.changed.set()

    def hurry(self) -> None:
        """Interrupt at once what has not ended."""
        self._at_once = True
        self._line.changed.set()

    async def carried_out(self) -> DrainReport:
        """Empty the line, and return what became of its runs."""
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
            await self._tell(job)
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
        """Return once no run goes on any more, or time is up."""
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
                self._cut(job)  # it has not come so far as to be in the journal

    def _cut(self, job: EngineJob) -> None:
        job.cut = True
        if job.task is not None:
            job.task.cancel()

    async def _tell(self, job: EngineJob) -> None:
        """Say what became of a run that was cut off, as the journal has it."""
        if job.end.done():  # it came to its end all the same
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
    """Let a journal with a server wait for it no more. Others have nobody to wait for."""
    hurry = getattr(journal, "hurry", None)
    if hurry is not None:
        hurry(HURRY)
