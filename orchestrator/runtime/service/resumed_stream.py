"""The stream of a resumed run: its task resumes the run, and its events are read as a follower of the run reads them.

The first event is the first one after the last record that the journal had when the stream started. The stream does
not read the records of earlier processes again into events: their reader had them. Of an ended run it has the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from orchestrator.errors import RunError
from orchestrator.kernel.journal import RunHead
from orchestrator.kernel.record import Follower
from orchestrator.runtime.runs.runs import Runs
from orchestrator.runtime.service.stream import RunStream

R = TypeVar("R")


def resumed_stream(
    run_id: str, runs: Runs, refuse: Callable[[RunHead], None], resume: Callable[[], Awaitable[R]]
) -> RunStream[Any, R]:
    """Return the stream of a run that `resume` resumes when the first event is requested.

    `refuse` raises for a run of another agent, whose events are not read then.
    """

    async def work(receive: Follower) -> R:
        head = await runs.journal.head(run_id)
        refuse(head)
        events = _NewEvents(run_id, runs, receive, head.seq - (head.status == "ended"))
        following = asyncio.create_task(events.follow())
        try:
            await asyncio.sleep(0)  # the follower waits for the run before the model is asked
            result = await resume()
            await following
        except RunError:  # the run has parked, for example: its last events are in the journal
            await _stopped(following)
            await events.rest()
            raise
        finally:
            await _stopped(following)
        return result

    return RunStream(run_id, work)


class _NewEvents:
    """Passes the events of a run after a record to the reader of its stream."""

    def __init__(self, run_id: str, runs: Runs, receive: Follower, seq: int) -> None:
        self._run_id, self._runs, self._receive = run_id, runs, receive
        self._after: int | str = seq

    async def follow(self) -> None:
        """Pass the events on until the run has ended."""
        async for event in self._runs.events(self._run_id, after=self._after, follow=True):
            self._receive(event)
            self._after = event.id or self._after

    async def rest(self) -> None:
        """Pass on the events that the journal has."""
        async for event in self._runs.events(self._run_id, after=self._after):
            self._receive(event)


async def _stopped(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.wait((task,))
