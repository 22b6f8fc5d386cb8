"""Reads a journal periodically and returns its figures. Writes nothing into it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from orchestrator.cli.shipped import SHIPPED
from orchestrator.errors import Corrupt, RunError
from orchestrator.journal.address import Address
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.head_count import ORPHANED, PARKED, RUNNING
from orchestrator.kernel.journal import ENGINE, RunHead
from orchestrator.kernel.outcome import REASONS
from orchestrator.telemetry.exposition.stored import JournalSnapshot, StoredRunStatus
from orchestrator.telemetry.labels import CAPS, NO_AGENT, OTHER, UNKNOWN, is_label

MOST_READ = 500
"""Most ended runs whose records are read in one cycle; the others follow in the next cycles."""
_SHARE = 20
"""Seconds until a run is read again, for each second that reading it took: this limits the load."""

_ONLY: Mapping[str, str] = {
    reason: outcomes[0]
    for reason in set().union(*REASONS.values())
    if len(outcomes := [outcome.value for outcome, reasons in REASONS.items() if reason in reasons]) == 1
}
"""Reason -> its outcome, for reasons with only one outcome: these runs are not read."""

End = tuple[str, str]
_Ended: TypeAlias = tuple[str, str, str, str]
"""(machine, agent, outcome, reason)"""


@dataclass(slots=True)
class _Seen:
    """A run as of the last read of its records. `seq` is the number of the last record."""

    seq: int
    run_status: StoredRunStatus | None = None
    end: End | None = None
    """(outcome, reason)"""
    again: float = 0.0
    """Do not read it again before this time (of the monotonic clock)."""
    counted: bool = False


@dataclass(slots=True)
class JournalWatch:
    """The figures of one journal between two reads."""

    address: Address
    now: Callable[[], float] = time.time
    _began: float = field(init=False)
    _journal: StoredJournal | None = None
    _identity: tuple[int, int] | None = None
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _machines: set[str] = field(default_factory=set)
    _agents: set[str] = field(default_factory=set)
    _completed: Counter[_Ended] = field(default_factory=Counter)
    _budget: int = 0

    def __post_init__(self) -> None:
        self._began = self.now()

    async def look(self) -> JournalSnapshot:
        """Read the journal. Raises JournalError or OSError; the next read opens it again."""
        began, self._budget = time.perf_counter(), MOST_READ
        try:
            journal = await self._opened()
            picture = await self._looked(journal)
            size = await journal.size()
        except (RunError, OSError):
            await self.close()
            raise
        seconds = time.perf_counter() - began
        return JournalSnapshot(self.now(), seconds, size, *picture)

    async def close(self) -> None:
        """Close the file."""
        journal, self._journal = self._journal, None
        if journal is not None:
            await journal.close()

    async def _opened(self) -> StoredJournal:
        identity = _identity(self.address)
        if (
            self._journal is None or identity != self._identity
        ):  # the path has another file now: a restored backup
            await self.close()
            self._journal, self._identity = journal_at(self.address, create=False), identity
            await self._journal.open()
        return self._journal

    async def _looked(
        self, journal: StoredJournal
    ) -> tuple[tuple[StoredRunStatus, ...], Counter[_Ended], Counter[_Ended], int]:
        run_status: list[StoredRunStatus] = []
        ended: Counter[_Ended] = Counter()
        seen: dict[str, _Seen] = {}
        unreadable = 0
        async for head in _heads(journal):
            if head is None:
                unreadable += 1
            elif head.graph != ENGINE:
                one = seen[head.run_id] = await self._read(journal, head)
                if one.run_status is not None:
                    run_status.append(one.run_status)
                elif one.end is not None:
                    self._count(head, one, ended)
                else:
                    unreadable += 1
        self._seen = seen
        return tuple(run_status), ended, self._completed.copy(), unreadable

    def _count(self, head: RunHead, one: _Seen, ended: Counter[_Ended]) -> None:
        assert one.end is not None  # noqa: S101 - for the type checker
        key = (self._machine(head.graph), self._agent(head.agent), *one.end)
        ended[key] += 1
        if not one.counted and head.updated_at >= self._began and one.end[0] != UNKNOWN:
            one.counted = True
            self._completed[key] += 1

    async def _read(self, journal: StoredJournal, head: RunHead) -> _Seen:
        """Return the state of a run, from earlier reads as far as they are valid."""
        before = self._seen.get(head.run_id)
        if head.status == "ended":
            if before is not None and before.seq == head.seq and before.end not in {None, (UNKNOWN, UNKNOWN)}:
                return before
            return _Seen(head.seq, end=await self._end_of(journal, head))
        if before is not None and before.run_status is not None:
            if before.seq == head.seq:
                before.run_status = self._status_of(
                    head, before.run_status.state, before.run_status.entered_at
                )
                return before
            if time.monotonic() < before.again:
                return before
        return await self._read_status(journal, head)

    async def _read_status(self, journal: StoredJournal, head: RunHead) -> _Seen:
        began = time.monotonic()
        try:
            run = StoredRun.of(head.run_id, await journal.load(head.run_id))
        except RunError:
            return _Seen(head.seq)
        entered = run.step.get("at")
        entered_at = float(entered) if isinstance(entered, int | float) else head.created_at
        again = time.monotonic() + _SHARE * (time.monotonic() - began)
        return _Seen(head.seq, self._status_of(head, run.state, entered_at), again=again)

    def _status_of(self, head: RunHead, state: str, entered_at: float) -> StoredRunStatus:
        status = PARKED if head.status == "parked" else ORPHANED if head.owner is None else RUNNING
        if not state:
            state = SHIPPED[head.graph].initial.value if head.graph in SHIPPED else UNKNOWN
        return StoredRunStatus(
            machine=self._machine(head.graph),
            status=status,
            state=state if is_label(state) else OTHER,
            entered_at=entered_at,
            started_at=head.created_at,
            agent=self._agent(head.agent),
        )

    async def _end_of(self, journal: StoredJournal, head: RunHead) -> End | None:
        if (only := _ONLY.get(head.reason)) is not None:
            return only, head.reason
        if self._budget <= 0:
            return UNKNOWN, UNKNOWN
        self._budget -= 1
        try:
            body = (await journal.load(head.run_id, head.seq))[-1].body
        except RunError:
            return None
        outcome, reason = str(body.get("outcome", "")), str(body.get("reason", ""))
        known = {str(one): reasons for one, reasons in REASONS.items()}
        if outcome not in known:
            return OTHER, OTHER
        return outcome, reason if reason in known[outcome] else OTHER

    def _machine(self, name: str) -> str:
        return _label(name, self._machines, CAPS["machine"])

    def _agent(self, name: str) -> str:
        return _label(name, self._agents, CAPS["agent"]) if name else NO_AGENT


def _label(name: str, known: set[str], most: int) -> str:
    """Return a name as a label value: one of the first `most` names, or `_other`."""
    if name not in known:
        if len(known) >= most or not is_label(name):
            return OTHER
        known.add(name)
    return name


async def _heads(journal: StoredJournal) -> AsyncIterator[RunHead | None]:
    """Yield every run, and None for a run that cannot be read."""
    try:
        async for head in journal.runs():
            yield head
    except Corrupt:
        yield None


def _identity(address: Address) -> tuple[int, int] | None:
    """Return the identity of a file, which differs if the file is replaced; that of a server is constant."""
    if not isinstance(address, Path):
        return None
    status = address.stat()
    return status.st_dev, status.st_ino
