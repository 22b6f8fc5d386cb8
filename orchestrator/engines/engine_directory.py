"""An engine as its own run in the journal: graph `engine`, owned as long as the engine lives.

Therefore engines use the mechanisms of runs. Requests are posted to the inbox of the engine's run. Its records show
each request with actor, reason and result (`runs events`). A dead engine shows by the owner that it lost, until the
next engine that starts on the journal closes its records. An engine that was only taken for dead, because it was
frozen or cut off from the server for too long, finds its records closed and continues under a new run.

    created     {…, engine: {name, host, pid, slots, queue, grace, recover, before?: id,
                 agents: {name: {owner, graph, …, earlier?: {graph, fingerprint}, input?: schema of its input}}}}
    control     {id, kind, by, why, at, number, <object of the command>, refused?: sentence}
    status      {id, at, …}                     the answer to a `status` request
    started     {id, by, at, number, agent, run_id, refused?: sentence}    the answer to a `start` request
    ended       {outcome: "completed", reason: "none", at, report}
                {outcome: "lost", reason: "process_died", at, by}            written by the engine `by`

Other processes read these records: which engines are alive, what they run, and which versions of an agent they have.
While two versions of an agent are live, a run continues on a process with the version of its graph. Only when no live
engine has it, another one may migrate the run, or park it as `other_graph` until a migration is registered.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.errors import ConfigError, Corrupt, Fenced, Held, JournalError, RunUnknown
from orchestrator.journal.difference import heads
from orchestrator.kernel.journal import (
    ENGINE,
    PARKED,
    RECORD_SCHEMA,
    Draft,
    Journal,
    Lease,
    Posted,
    RunHead,
    claimed,
    let_go,
    owner_name,
    write_records,
)
from orchestrator.llm.port import Clock

if TYPE_CHECKING:  # a look at engines needs no machine
    from orchestrator.runtime.service.hosting import Hosting
    from orchestrator.runtime.service.recovery import OpenRun

STATUS = "status"
"""Kind of the request for an engine's status, and of the record that answers it."""
START = "start"
"""Kind of the request to start a run. Its body has the arguments of `LocalEngine.deposit`."""
STARTED = "started"
"""Kind of the record that answers it, without the input."""

POLL = 0.15
"""Seconds between two reads of posted messages."""

NOTIFY_SECONDS = 5.0
"""Seconds to journal a drain command; after that it is carried out even if it is not journalled."""

_OURS = 20
"""The engine checks once per this many reads whether it still owns its run."""

_log = logging.getLogger("orchestrator")


KINDS: Mapping[str, str | None] = {
    "stop_admitting": None,
    "start_admitting": None,
    "drain": "grace",
    "cancel_all": "graph",
    "pause_all": "graph",
    "resume_all": "graph",
    "disable_tool": "tool",
    "enable_tool": "tool",
    "block_model": "model",
    "unblock_model": "model",
    "slots": "slots",
}
"""Every operator command -> the field of its record that names its object."""


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
                    by = f"{name} ({self.run_id})"
                    lease = await claimed(self._journal, head.run_id, self._owner)
                    try:
                        if (await self._journal.head(head.run_id)).status != "ended":
                            body = {
                                "outcome": "lost",
                                "reason": "process_died",
                                "at": self._clock.time(),
                                "by": by,
                            }
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
                position, news = await self._journal.news(since)
                if since < 0 or self.run_id in news:  # the first read has no known start
                    with contextlib.suppress(RunUnknown):
                        for posted in await self._journal.inbox(self.run_id, self._read):
                            # A failed command is logged and counts as read: it must not stop the next ones.
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
                since, notify = position, ""
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


_KEYS = {"graph": "machine", "slots": "limit", "grace": "duration_s"}
"""Object of a command -> its log key; tools and models keep their names."""


class EngineLog:
    """Write the log lines of one engine: its start, its end and each operator command.

    Each is one line of the standard library's logger `orchestrator`. After `configure_logging` it is a JSON line in the
    schema of all other lines. The journal stores the same events permanently (`orchestrator runs events ENGINE`).

    `name` is the engine's name, `registration` its run in the journal.
    """

    def __init__(self, name: str, registration: Registration) -> None:
        self._name = name
        self._registration = registration

    @property
    def _own(self) -> dict[str, str]:
        return {"engine": self._name, "run_id": self._registration.run_id}

    def started(self, slots: int, found: int) -> None:
        """Log that the engine admits runs; `found` is how many runs had not ended when it started."""
        _log.info("engine.started", extra={**self._own, "limit": slots, "runs": found})

    def ordered(self, kind: str, by: str, why: str, about: Any = None, *, refused: str = "") -> None:
        """Log a command after it was journalled and before it is carried out, or the reason why it was refused."""
        member = KINDS.get(kind)
        of = {} if member is None or about is None else {_KEYS.get(member, member): about}
        outcome = {"outcome": "refused" if refused else "ok", "reason": refused or why}
        order = {"operation": kind, "by": by or "unknown", **outcome, **of}
        _log.info("engine.order", extra={**self._own, **order})

    def ended(self, left: int) -> None:
        """Log that the engine has stopped, and how many runs it left in the journal."""
        _log.info("engine.ended", extra={**self._own, "runs": left})


def _log_failure(noting: asyncio.Future[None]) -> None:
    """Retrieve the error of a task that is not awaited: an unavailable store is no reason to keep running."""
    if not noting.cancelled():
        noting.exception()


def _new_id() -> str:
    return f"{ENGINE}-{secrets.token_hex(8)}"


def _worded(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


ANSWERS_WITHIN = 2.0
"""Seconds to wait for an answer: ten times the time that a live, unblocked engine needs."""

_POLL = 0.03
ALL = "all"
"""Name that stands for every live engine."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine that has not stopped according to its records."""

    run_id: str
    name: str
    owner: str | None
    """Process that holds its run; None if the process died or lost its journal."""
    about: Mapping[str, Any]
    """Its start parameters: host, pid, slots, queue, grace, agents."""
    began: float
    last: int
    """Number of its last record."""
    expired_owner: str | None = None
    """Process that still exists although its lease has expired: it is stopped or hangs."""

    @property
    def alive(self) -> bool:
        """Whether a process holds its run."""
        return self.owner is not None

    @property
    def left(self) -> str:
        """How its runs continue after its process has died, as the end of a sentence."""
        return (
            "are resumed by another worker"
            if self.about.get("placed")
            else "wait for `orchestrator runs resume`"
        )

    def takes(self, head: RunHead) -> bool:
        """Return whether the engine resumes this orphaned run when a posted message allows it to continue."""
        return head.reason != "poison" and self.fits(head, head.fingerprint)

    def fits(self, head: RunHead, fingerprint: str) -> bool:
        """Return whether the engine lives, resumes runs, and has the agent of a run with this version of its graph."""
        if not self.alive or self.about.get("recover") != "resume":
            return False
        agents: Mapping[str, Mapping[str, Any]] = self.about.get("agents") or {}
        have = [
            (graph.get("graph"), one.get("agent", ""), graph.get("fingerprint"))
            for one in agents.values()
            for graph in (one, one.get("earlier") or {})
        ]
        return (head.graph, head.agent, fingerprint) in have


async def engines(journal: Journal) -> list[EngineInfo]:
    """Return the engines that have not stopped, oldest first. Engines with damaged records are left out."""
    begun, _ = await heads(journal, graph=ENGINE, status="open")  # other commands report damage
    found = []
    for head in begun:
        about = (await journal.load(head.run_id))[0].body.get(ENGINE) or {}
        name = str(about.get("name", ""))
        found.append(
            EngineInfo(head.run_id, name, head.owner, about, head.created_at, head.seq, head.expired_owner)
        )
    return found


async def waits_for_agent(journal: Journal, head: RunHead, living: Iterable[EngineInfo]) -> bool:
    """Return whether a parked run has an answer that no live engine reads: none has its agent in its version.

    A run of the command line waits for a command, and is not meant. Raises the errors of the journal.
    """
    if head.status != PARKED or head.owner is not None or not head.waiting:
        return False
    if any(one.fits(head, head.fingerprint) for one in living) or not await journal.inbox(head.run_id):
        return False
    from orchestrator.journal.stored_run import StoredRun  # a look at engines needs no machine

    stored = StoredRun.of(head.run_id, await journal.load(head.run_id))
    return not stored.created.get("launch") and bool(await stored.unread(journal))


def meant(found: list[EngineInfo], name: str | None) -> list[EngineInfo]:
    """Return the engines that a command is for: by name, by run id, all, or the only live one.

    Raises ConfigError if the choice is ambiguous, the name is unknown, or no engine lives.
    """
    living = [one for one in found if one.alive]
    if not living:
        left = {one.left for one in found}
        dead = (
            f"; {len(found)} died without stopping, their runs {' or '.join(sorted(left))}" if found else ""
        )
        raise ConfigError(f"no engine runs on this journal{dead}")
    if name == ALL or (name is None and len(living) == 1):
        return living
    known = ", ".join(f"{one.name} ({one.run_id})" for one in living)
    if name is None:
        raise ConfigError(
            f"{len(living)} engines run on this journal; choose with --engine, or `all`: {known}"
        )
    chosen = [one for one in living if name in (one.name, one.run_id)]
    if not chosen:
        raise ConfigError(f"no engine {name!r} runs on this journal; running engines: {known}")
    return chosen


async def ask(
    journal: Journal, engine: EngineInfo, kind: str, body: Mapping[str, Any], by: str
) -> Mapping[str, Any] | None:
    """Post a request to an engine and return the record that answers it; None if no answer arrives in time.

    An unanswered request stays posted: an engine that was only blocked carries it out later.
    """
    request = Posted(secrets.token_hex(8), kind, dict(body), by, time.time())
    await journal.post(engine.run_id, request)
    until, since = time.monotonic() + ANSWERS_WITHIN, engine.last + 1
    while time.monotonic() < until:
        news = (await journal.head(engine.run_id)).seq >= since
        for record in await journal.load(engine.run_id, since) if news else ():  # verifies all
            since = record.seq + 1
            if record.kind in {"control", STATUS, STARTED} and record.body.get("id") == request.id:
                return record.body
        await asyncio.sleep(_POLL)
    return None


_REREAD: Final = 1.0
"""Seconds for which the engines of a journal are not read again."""


class LiveVersions:
    """Answers whether a live engine of a journal resumes runs with a version of a graph."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._read_at = float("-inf")
        self._found: list[EngineInfo] = []

    async def has(self, head: RunHead, fingerprint: str, *, but: str = "") -> bool:
        """Return whether a live engine, other than the engine `but`, has this agent with this version of its graph."""
        if self._clock.monotonic() - self._read_at >= _REREAD:
            self._found = await engines(self._journal)
            self._read_at = self._clock.monotonic()
        return any(one.run_id != but and one.fits(head, fingerprint) for one in self._found)

    async def fits(self, host: Hosting, head: RunHead) -> bool:
        """Return whether an agent may continue a run of its name: it has the graph, or it is to migrate the run."""
        if host.fingerprint == head.fingerprint:
            return True
        run: OpenRun = await host.described(head)
        if (
            run.fingerprint == host.fingerprint
        ):  # a row of an older format keeps the version before a migration
            return True
        return run.migrates and not await self.has(head, run.fingerprint)
