"""An engine as its own run in the journal: graph `engine`, owned as long as the engine lives.

Therefore engines use the mechanisms of runs. Requests are posted to the inbox of the engine's run. Its records show
each request with actor, reason and result (`runs events`). A dead engine shows by the owner that it lost, until the
next engine that starts on the journal closes its records. An engine that was only taken for dead, because it was
frozen or cut off from the server for too long, finds its records closed and continues under a new run.

    created     {…, engine: {name, host, pid, slots, queue, grace, recover, before?: id,
                 agents: {name: {owner, graph, …}}}}
    control     {id, kind, by, why, at, number, <object of the command>, refused?: sentence}
    status      {id, at, …}                     the answer to a `status` request
    ended       {outcome: "completed", reason: "none", at, report}
                {outcome: "lost", reason: "process_died", at, by}            written by the engine `by`
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
from orchestrator.journal.difference import heads
from orchestrator.kernel.journal import (
    ENGINE,
    RECORD_SCHEMA,
    Draft,
    Journal,
    Lease,
    Posted,
    let_go,
    owner_name,
    write_records,
)
from orchestrator.llm.port import Clock

STATUS = "status"
"""Kind of the request for an engine's status, and of the record that answers it."""

POLL = 0.15
"""Seconds between two reads of posted messages."""

NOTIFY_SECONDS = 5.0
"""Seconds to journal a drain command; after that it is carried out even if it is not journalled."""

_OURS = 20
"""The engine checks once per this many reads whether it still owns its run."""

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
        """Create the engine's run and own it."""
        self._about = about
        where = {"host": socket.gethostname(), "pid": os.getpid()}
        self._owner = owner_name()
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
            # The creation may still succeed and must not look like a live engine.
            await asyncio.wait((creating,))
            if not creating.cancelled() and creating.exception() is None:
                self._lease = creating.result()
                await self.end({})
            raise
        if self._over:  # the engine stopped meanwhile
            await self.end({})

    async def close_lost(self, name: str) -> None:
        """End the records of engines whose process died; `name` is the name of this engine. Raises StoreDown."""
        found, _ = await heads(self._journal, graph=ENGINE, status="open")  # other commands report damage
        for head in found:
            if head.owner is None:
                with contextlib.suppress(Held, RunUnknown, Fenced, Corrupt):  # another engine did it first
                    await self._close(head.run_id, f"{name} ({self.run_id})")

    async def _close(self, run_id: str, by: str) -> None:
        lease = await self._journal.claim(run_id, self._owner)
        try:
            if (await self._journal.head(run_id)).status != "ended":
                body = {"outcome": "lost", "reason": "process_died", "at": self._clock.time(), "by": by}
                await write_records(self._journal, lease, Draft("ended", body))
        finally:
            await let_go(self._journal, lease)

    async def note(self, kind: str, body: Mapping[str, Any]) -> None:
        """Write a record durably. Raises the errors of the journal."""
        async with self._writing:
            if self._lease is None:
                raise JournalError(f"engine run {self.run_id!r} is not held here")
            await write_records(self._journal, self._lease, Draft(kind, {"at": self._clock.time(), **body}))

    async def notify(self, kind: str, body: Mapping[str, Any]) -> None:
        """Write a record durably, but wait at most NOTIFY_SECONDS: an unavailable store must not delay a stop."""
        noting = asyncio.ensure_future(self.note(kind, body))
        noting.add_done_callback(_log_failure)
        await asyncio.wait((noting,), timeout=NOTIFY_SECONDS)

    async def end(self, report: Mapping[str, Any]) -> None:
        """Record that the engine has stopped, and release its run.

        The run is released even if the record cannot be written: otherwise the engine would seem to live as long as
        its process.
        """
        self._over = True
        try:
            await self.note("ended", {"outcome": "completed", "reason": "none", "report": report})
        finally:
            lease, self._lease = self._lease, None
            if lease is not None:
                await let_go(self._journal, lease)

    async def listen(self, take: Callable[[Posted], Awaitable[None]]) -> None:
        """Pass each posted message to `take` until cancelled. Only for journals that processes share.

        An error other than JournalError is logged once, and listening continues: the next command may be the one that
        stops some damage.
        """
        since, notify = -1, ""
        for turn in itertools.count(1):
            try:
                if turn % _OURS == 0:
                    await self._renew()
                since, notify = await self._look(since, take), ""
            except JournalError:  # asked again later; the runs report the failure meanwhile
                pass
            except Exception as error:  # noqa: BLE001 - a defect of the store; logged
                notify, before = _worded(error), notify
                if notify != before:
                    _log.error("engine run %s cannot read its operator commands: %s", self.run_id, notify)
            await asyncio.sleep(POLL)

    async def _renew(self) -> None:
        """Continue under a new run if others took the engine for dead: otherwise it could not be reached any more."""
        if self._over or (self._lease is not None and await self._is_ours(self._lease)):
            return
        if self._lease is not None:
            self._about = {**self._about, "before": self.run_id}
        self._lease, self._read, self.run_id = None, 0, _new_id()
        await self.begin(self._about)
        before = self._about["before"]
        _log.warning("engine run %s was taken for dead; the engine continues as %s", before, self.run_id)

    async def _is_ours(self, lease: Lease) -> bool:
        try:
            return (await self._journal.head(lease.run_id)).epoch == lease.epoch
        except RunUnknown:
            return False

    async def _look(self, since: int, take: Callable[[Posted], Awaitable[None]]) -> int:
        position, news = await self._journal.news(since)
        if since < 0 or self.run_id in news:  # the first read has no known start
            with contextlib.suppress(RunUnknown):
                for posted in await self._journal.inbox(self.run_id, self._read):
                    await self._handed(posted, take)
        return position

    async def _handed(self, posted: Posted, take: Callable[[Posted], Awaitable[None]]) -> None:
        """Pass on one command. A failed one is logged and counts as read: it must not block the commands after it."""
        try:
            await take(posted)
        except JournalError:
            raise
        except Exception as error:  # noqa: BLE001 - concerns this command only; logged
            _log.error(
                "engine run %s could not carry out %r of %s (request %s) and skips it: %s",
                self.run_id,
                posted.kind,
                posted.by or "unknown",
                posted.id,
                _worded(error),
            )
        self._read = posted.number


def _log_failure(noting: asyncio.Future[None]) -> None:
    """Retrieve the error of a task that is not awaited: an unavailable store is no reason to keep running."""
    if not noting.cancelled():
        noting.exception()


def _new_id() -> str:
    return f"{ENGINE}-{secrets.token_hex(8)}"


def _worded(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
