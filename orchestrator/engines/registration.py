"""An engine as a run of its own in the journal: graph `engine`, held as long as it lives.

So the means that runs have serve for engines: requests are posted to its inbox, what was asked, by whom and why, and
what came of it stands in its records (`runs events`), and a dead one shows by the owner that it lost, until the next
engine that starts on the journal closes its records. One that was only taken for dead, because it was frozen or cut
off from the server for too long, finds its records closed and goes on under a new run.

    created   {…, engine: {name, host, pid, slots, queue, grace, recover, before?: id,
               agents: {name: {owner, graph, …}}}}
    control   {id, kind, by, why, at, number, <what it is about>, refused?: sentence}
    status    {id, at, …}           the answer to a `status` request
    ended     {outcome: "completed", reason: "none", at, report}
              {outcome: "lost", reason: "process_died", at, by}      written by the engine `by`
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from orchestrator.errors import Corrupt, Fenced, Held, JournalError, RunUnknown
from orchestrator.journal.heads import heads
from orchestrator.kernel.journal import RECORD_SCHEMA, Draft, Journal, Lease, Posted, let_go
from orchestrator.llm.port import Clock

ENGINE = "engine"
"""Graph of the runs that stand for engines."""

STATUS = "status"
"""Kind of the request that asks how an engine is, and of the record that answers it."""

POLL = 0.15
"""Seconds between two looks at what other processes posted."""

TOLD = 5.0
"""Seconds in which the order to drain is to be in the journal; after that it is carried out, wherever that stands."""

_OURS = 20
"""Looks at what was posted for each one at whether the engine still counts as one that lives."""

_log = logging.getLogger("orchestrator")


class Registration:
    """The records of one engine."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self.run_id = _new_id()
        self._journal = journal
        self._clock = clock
        self._lease: Lease | None = None
        self._owner = ""
        self._writing = asyncio.Lock()
        self._read = 0
        self._about: Mapping[str, Any] = {}
        self._over = False

    async def begin(self, about: Mapping[str, Any]) -> None:
        """Create the run and hold it."""
        self._about = about
        where = {"host": socket.gethostname(), "pid": os.getpid()}
        self._owner = f"{where['host']}:{where['pid']}:{secrets.token_hex(4)}"
        body = {
            "schema": RECORD_SCHEMA,
            "graph": ENGINE,
            "fingerprint": "",
            "at": self._clock.time(),
            "parent_run_id": None,
            "conversation_id": None,
            ENGINE: {**about, **where},
        }
        creating = asyncio.ensure_future(self._journal.create(self.run_id, self._owner, body))
        try:
            self._lease = await asyncio.shield(creating)
        except asyncio.CancelledError:
            # What comes about all the same must not look like an engine that lives.
            await asyncio.wait((creating,))
            if not creating.cancelled() and creating.exception() is None:
                self._lease = creating.result()
                await self.end({})
            raise
        if self._over:  # it stopped meanwhile
            await self.end({})

    async def close_lost(self, name: str) -> None:
        """End the records of engines whose process died; `name` is what this one is called. Raises StoreDown."""
        found, _ = await heads(self._journal, graph=ENGINE, status="open")  # other commands look for damage
        for head in found:
            if head.owner is None:
                with contextlib.suppress(Held, RunUnknown, Fenced, Corrupt):  # another one was quicker
                    await self._close(head.run_id, f"{name} ({self.run_id})")

    async def _close(self, run_id: str, by: str) -> None:
        lease = await self._journal.claim(run_id, self._owner)
        try:
            if (await self._journal.head(run_id)).status != "ended":
                body = {"outcome": "lost", "reason": "process_died", "at": self._clock.time(), "by": by}
                waiting = self._journal.append(lease, [Draft("ended", body)])
                if waiting is not None:
                    await waiting
        finally:
            await let_go(self._journal, lease)

    async def note(self, kind: str, body: Mapping[str, Any]) -> None:
        """Make a record durable. Raises what the journal raises."""
        async with self._writing:
            if self._lease is None:
                raise JournalError(f"engine run {self.run_id!r} is not held here")
            draft = Draft(kind, {"at": self._clock.time(), **body})
            waiting = self._journal.append(self._lease, [draft])
            if waiting is not None:
                await waiting

    async def told(self, kind: str, body: Mapping[str, Any]) -> None:
        """Make a record durable where that takes no longer than TOLD seconds: it is no reason to put off a stop."""
        noting = asyncio.ensure_future(self.note(kind, body))
        noting.add_done_callback(_heard)
        await asyncio.wait((noting,), timeout=TOLD)

    async def end(self, report: Mapping[str, Any]) -> None:
        """Say that the engine has stopped, and let go of the run.

        It is let go of where that cannot be said, too, or the engine would seem to live for as long as its process.
        """
        self._over = True
        try:
            await self.note("ended", {"outcome": "completed", "reason": "none", "report": report})
        finally:
            lease, self._lease = self._lease, None
            if lease is not None:
                await let_go(self._journal, lease)

    async def listen(self, take: Callable[[Posted], Awaitable[None]]) -> None:
        """Hand on what is posted to the engine, until cancelled. Only for journals that other processes share.

        An error that is no JournalError is told once, and the listening goes on: the next order may be the one that
        stops a damage.
        """
        since, told = -1, ""
        for turn in itertools.count(1):
            try:
                if turn % _OURS == 0:
                    await self._renew()
                since, told = await self._look(since, take), ""
            except JournalError:  # it may come back, and asks again then; the runs tell of it meanwhile
                pass
            except Exception as error:  # noqa: BLE001 - a defect of the store; told
                told, before = _worded(error), told
                if told != before:
                    _log.error("engine run %s cannot read what is ordered: %s", self.run_id, told)
            await asyncio.sleep(POLL)

    async def _renew(self) -> None:
        """Go on under a new run where others took the engine for dead: else nobody could reach it any more."""
        if self._over or (self._lease is not None and await self._is_ours(self._lease)):
            return
        if self._lease is not None:
            self._about = {**self._about, "before": self.run_id}
        self._lease, self._read, self.run_id = None, 0, _new_id()
        await self.begin(self._about)
        before = self._about["before"]
        _log.warning("engine run %s was taken for dead; the engine goes on as %s", before, self.run_id)

    async def _is_ours(self, lease: Lease) -> bool:
        try:
            return (await self._journal.head(lease.run_id)).epoch == lease.epoch
        except RunUnknown:
            return False

    async def _look(self, since: int, take: Callable[[Posted], Awaitable[None]]) -> int:
        position, news = await self._journal.news(since)
        if since < 0 or self.run_id in news:  # at first nobody knows what came before
            with contextlib.suppress(RunUnknown):
                for posted in await self._journal.inbox(self.run_id, self._read):
                    await self._handed(posted, take)
        return position

    async def _handed(self, posted: Posted, take: Callable[[Posted], Awaitable[None]]) -> None:
        """Hand on one order. One that fails is told of and counts as read: it must not hold up those behind it."""
        try:
            await take(posted)
        except JournalError:
            raise
        except Exception as error:  # noqa: BLE001 - of this order; told
            _log.error(
                "engine run %s could not carry out %r of %s (request %s), and leaves it: %s",
                self.run_id,
                posted.kind,
                posted.by or "somebody",
                posted.id,
                _worded(error),
            )
        self._read = posted.number


def _heard(noting: asyncio.Future[None]) -> None:
    """Take the error of what nobody waits for: a store that is down is no reason to go on."""
    if not noting.cancelled():
        noting.exception()


def _new_id() -> str:
    return f"{ENGINE}-{secrets.token_hex(8)}"


def _worded(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
