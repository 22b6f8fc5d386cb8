"""Requests of other processes to the runs that are live here, read from their journal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from orchestrator.errors import Corrupt, RunUnknown, StoreDown
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.kernel.mailbox import Kind, Signal
from orchestrator.kernel.run import Run
from orchestrator.runtime.service.answer import DECISIONS, answer_of
from orchestrator.runtime.service.live_runs import RunRegistry

POLL = 0.1
"""Seconds between two reads. A read costs some 150 µs, mostly for thread switches, whatever the number of runs."""

_EVERY = 10
"""Number of reads between two checks of a waiting run's lease."""

MESSAGES = ("stop", "steer", "inform", "answer")
"""Kinds of requests that a run's hooks read in order."""

_KINDS: dict[str, Kind] = {
    "cancel": "cancel",
    "pause": "pause",
    "resume": "resume",
    **dict.fromkeys(DECISIONS, "decision"),
    **dict.fromkeys(MESSAGES, "message"),
}


class Inbox:
    """Listens while runs are live here and their journal is shared with other processes.

    Threads with an event loop each may run one agent at the same time. Each loop has its own listener, which delivers
    to the runs of its loop only: a mailbox belongs to the loop of its run.
    """

    def __init__(self, live: RunRegistry, journal: Journal) -> None:
        self._live = live
        self._journal = journal
        self._listeners: dict[asyncio.AbstractEventLoop, _Listener] = {}

    def listen(self, run_id: str) -> None:
        """Deliver requests of other processes to a live run of this event loop, until `leave`."""
        if not self._journal.shared:
            return
        loop = asyncio.get_running_loop()
        if loop not in self._listeners:
            self._listeners[loop] = _Listener(self._live, self._journal, self.deliver)
        self._listeners[loop].begin(run_id)

    async def leave(self, run_id: str) -> None:
        """Stop to deliver to a run of this event loop."""
        if not self._listeners:  # also under trio, which has no such loop
            return
        loop = asyncio.get_running_loop()
        listener = self._listeners.get(loop)
        if listener is not None and listener.leave(run_id):
            del self._listeners[loop]
            await listener.end()

    async def deliver(self, run_id: str) -> bool:
        """Deliver new requests to a live run; return False if that is not possible yet."""
        run = self._live.find(run_id)
        if run is None:
            return True
        if run.lease is None:  # it is starting or ending
            return False
        with contextlib.suppress(RunUnknown):
            for posted in await self._journal.inbox(run_id, run.control.inbox):
                # Two reads may overlap: skip requests that the other one has delivered.
                signal = signal_of(posted) if posted.number > run.control.inbox else None
                run.acknowledge(posted.number)
                if signal is not None:
                    run.mailbox.post(signal)
        return True


class _Listener:
    """Reads the requests for the live runs of one event loop.

    `news` names a run only once, so a run stays listed here until its inbox was read successfully. An error of one
    run affects neither the other runs nor the listening. The writers report an unavailable store.
    """

    def __init__(
        self, live: RunRegistry, journal: Journal, deliver: Callable[[str], Awaitable[bool]]
    ) -> None:
        self._live = live
        self._journal = journal
        self._deliver = deliver
        self._runs: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._since = -1
        self._owed: dict[str, None] = {}
        self._looks = 0
        self._round: list[str] = []
        self._delivered: set[str] = set()

    def begin(self, run_id: str) -> None:
        """Deliver to a run, too."""
        self._runs[run_id] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(), name="orchestrator inbox")

    def leave(self, run_id: str) -> bool:
        """Stop to deliver to a run; return whether it was the last one."""
        self._runs.pop(run_id, None)
        return not self._runs

    async def end(self) -> None:
        """Stop to read."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _listen(self) -> None:
        """Read until cancelled."""
        self._since = -1
        while True:
            try:
                delivered, self._delivered = self._delivered, set()
                await self._look(delivered)
            except StoreDown:
                self._since = -1
            except Exception as error:  # noqa: BLE001 - logged; the listener must continue
                self._since = -1
                self._warn("requests of other processes", error, delivered)
            await asyncio.sleep(POLL)

    async def _look(self, delivered: set[str]) -> None:
        position, news = await self._journal.news(self._since)
        # The first read, and a read after an error, have no known start.
        wanted = self._runs if self._since < 0 else [run_id for run_id in news if run_id in self._runs]
        self._owed |= dict.fromkeys(wanted)
        self._since = position
        for run_id in tuple(self._owed):
            try:
                if await self._deliver(run_id):
                    del self._owed[run_id]
            except StoreDown:
                raise
            except Exception as error:  # noqa: BLE001 - concerns this run only; retried with the next read
                self._warn(f"requests to run {run_id!r}", error, delivered)
        self._looks += 1
        if not self._looks % _EVERY:
            await self._fence_one()

    def _warn(self, what: str, error: Exception, delivered: set[str]) -> None:
        """Log an error once for as long as it lasts."""
        text = f"{what} could not be read and are retried: {type(error).__name__}: {error}"
        self._delivered.add(text)
        if text not in delivered:
            logging.getLogger("orchestrator").error("%s", text)

    async def _fence_one(self) -> None:
        """Detect whether another owner has claimed a waiting run; one run at a time, because there may be thousands."""
        if not self._round:
            self._round = [run_id for run_id in self._runs if self._waits(run_id) is not None]
        run = self._waits(self._round.pop()) if self._round else None
        if run is None:
            return
        try:
            epoch = (await self._journal.head(run.run_id)).epoch
        except RunUnknown:
            epoch = None
        except Corrupt:
            return  # its readers report it
        if run.control.services is not None and run.lease is not None and epoch != run.lease.epoch:
            run.control.services.fence(run)

    def _waits(self, run_id: str) -> Run[Any, Any] | None:
        run = self._live.find(run_id)
        return run if run is not None and run.parked and run.lease is not None else None


def signal_of(posted: Posted) -> Signal | None:
    """Return a request of another process as a signal for the run's driver; None for an unknown kind."""
    why = str(posted.body.get("why") or "")
    payload = answer_of(posted) if posted.kind in DECISIONS else {}
    if posted.kind in MESSAGES:
        payload = {**posted.body, "says": posted.kind}
    kind = _KINDS.get(posted.kind)
    if kind is None:
        return None
    return Signal(kind=kind, id=posted.id, by=posted.by, why=why, payload=payload, number=posted.number)
