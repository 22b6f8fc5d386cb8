"""A process that drives one run of the loop over SQLite until it ends, is killed, or waits for a person.

As a script it is a nursery, as `tests.crash.worker` is: it imports everything once, then forks a child for each line of
its input. An order says what the child does with the run in `folder`, and where it dies:

    do       run, or resume
    times    how many such children there are, all at once
    kill     "", "before" or "after" the `at`-th write to the journal, "outside": at the `at`-th boundary of an effect,
             "frozen": it stops there until it is told to go on, "frozen before" and "frozen after": it stops at that
             write, "later": after `at` seconds
    ttl      of the process' lease, in seconds
    person   "leave": when the run parks, the child leaves it; "die": it kills itself then; "wait": it waits in place

`python -m tests.crash.loop_worker ORDER` lives once, without a nursery.

The child's last line in its world is what it counted and, where it came so far, how the run ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from orchestrator.errors import JournalError, RunUnknown, Suspended
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import Fact, RunParked
from orchestrator.runtime.llm_loop.result import Result
from tests.crash.mortal import RUN, Fate, child, crashing
from tests.crash.outside import Outside, Tap, agent
from tests.crash.place import journal_of
from tests.crash.worker import forked, started

WAITING = ("approval", "unknown_effect", "undo_failed")


class Child:
    """One life of the run."""

    def __init__(
        self,
        folder: Path,
        *,
        do: str,
        kill: str = "",
        at: float = 0,
        person: str = "leave",
        ttl: float = 10.0,
    ) -> None:
        self._do = do
        self._person = person
        fatal = signal.SIGSTOP if kill == "frozen" else signal.SIGKILL
        self._fate = Fate(int(at) if kill in {"outside", "frozen"} else 0, fatal)
        self._outside = Outside(folder / "outside", point=self._fate.point)
        self._inner = journal_of(folder, ttl)
        self._journal = crashing(self._inner, kill, int(at))
        self._task: asyncio.Task[Result] | None = None
        if kill == "later":
            signal.setitimer(signal.ITIMER_REAL, at)  # nobody handles the signal, so it ends the process

    def observe(self, fact: Fact) -> None:
        if isinstance(fact, RunParked) and fact.reason in WAITING and self._task is not None:
            if self._person == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._person == "leave":
                self._task.cancel()

    async def live(self) -> None:
        one = agent(self._outside, Tap(self._journal, self._outside), observers=(self._outside, self))
        going = one.run(f"go {RUN}", run_id=RUN) if self._do == "run" else one.resume(RUN)
        self._task = asyncio.create_task(going)
        await asyncio.wait((self._task,))
        self._outside.say("counted", RUN, writes=len(self._journal.writes), points=self._fate.passed)
        self._tell(self._task)
        await self._inner.close()
        self._outside.close()

    def _tell(self, task: asyncio.Task[Result]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, JournalError | Suspended | RunUnknown):
            self._outside.say("refused", RUN, why=str(error))
            return
        result = task.result()
        messages = [message.to_openai() for message in result.messages]
        ended = {"outcome": str(result.outcome), "reason": result.reason, "messages": messages}
        self._outside.say("result", RUN, **ended, events=[one.event for one in result.transitions])


def warmed() -> None:
    """Do once, in memory, what would take each child a while the first time."""

    async def inside() -> None:
        outside = Outside()
        one = agent(outside, MemoryJournal())
        running = asyncio.create_task(one.run("go warm", run_id="warm"))
        while not outside.history.of("parked", "warm"):  # noqa: ASYNC110  until it asks
            await asyncio.sleep(0)
        one.approve("warm", by="ann")
        await running
        await one.resume("warm")  # is told, and reads the context for that

    asyncio.run(inside())


def nursery() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        times = order.pop("times", 1)
        print(forked(lambda order=order, times=times: several(order, times)), flush=True)  # type: ignore[misc]  # noqa: T201


async def live(folder: Path, **order: Any) -> None:
    await Child(folder, **order).live()


def several(order: dict[str, Any], times: int) -> None:
    """Be the child, or the parent of so many of them; die as one of them did."""
    if times == 1:
        child(order, live)
        return
    children = [started(lambda: child({**order}, live)) for _ in range(times)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in children]
    assert not any(statuses), statuses


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(json.loads(sys.argv[1]), live)
    else:
        warmed()
        nursery()
