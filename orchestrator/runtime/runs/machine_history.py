"""The states, edges and guards of many runs of one machine. Pure, but for the reader of the journal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.errors import Corrupt, RunUnknown
from orchestrator.kernel.journal import Journal, Record, RunHead
from orchestrator.runtime.runs.listing import read_page
from orchestrator.runtime.runs.verdicts import guard_histories
from orchestrator.telemetry.history import History

LAST_RUNS = 100
"""Runs whose records are read."""


@dataclass(slots=True)
class VisitTimes:
    """The visits of one state, over many runs."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    """Visits that an error ended."""

    @property
    def total(self) -> float:
        """Seconds of all visits together."""
        return sum(self.seconds)

    def percentile(self, share: float) -> float:
        """Return the seconds that this share of the visits, 0 to 1, did not exceed; 0 without a visit."""
        ordered = sorted(self.seconds)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


@dataclass(slots=True)
class MachineHistory:
    """The last runs of one machine."""

    machine: str
    runs: int = 0
    unreadable: int = 0
    since: float | None = None
    """Start of the oldest of them (epoch seconds)."""
    until: float | None = None
    """Last change of the newest of them."""
    history: History = field(default_factory=lambda: History(limit=0))
    times: dict[str, VisitTimes] = field(default_factory=dict)
    evaluated: Counter[str] = field(default_factory=Counter)
    """Guard -> its evaluations."""
    refused: Counter[str] = field(default_factory=Counter)
    """Guard -> evaluations in which it refused."""

    def merge(self, other: MachineHistory) -> None:
        """Add the runs of another history."""
        self.runs += other.runs
        self.unreadable += other.unreadable
        self.since = _either(min, self.since, other.since)
        self.until = _either(max, self.until, other.until)
        self.history.add(other.history)
        for state, times in other.times.items():
            own = self.times.setdefault(state, VisitTimes())
            own.seconds += times.seconds
            own.failed += times.failed
        self.evaluated.update(other.evaluated)
        self.refused.update(other.refused)

    def add(self, records: Sequence[Record]) -> None:
        """Add the records of one run."""
        self.runs += 1
        entered, seq = 0.0, 0
        for record in records:
            if record.kind == "transition":
                seq += 1
                entered = self._move(record, entered, seq)
        for guard in guard_histories(records):
            self.evaluated[guard.name] += guard.evaluated
            self.refused[guard.name] += guard.refused

    def _move(self, record: Record, entered: float, seq: int) -> float:
        body = record.body
        source, dest = str(body["source"]), str(body["dest"])
        internal = bool(body.get("internal", source == dest))
        now = float(body.get("t", entered))
        dwell = max(now - entered, 0.0)
        edge = (source, str(body["event"]), dest)
        self.history.count(edge, dwell, is_first=seq == 1, internal=internal)
        visits = self.times.setdefault(source, VisitTimes())
        visits.failed += bool(body.get("error"))
        if internal:
            return entered
        visits.seconds.append(dwell)
        return now


def _either(choose: Callable[[float, float], float], one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else choose(one, other)


async def read_run_history(journal: Journal, head: RunHead) -> MachineHistory:
    """Read the history of one run. A run that cannot be read is counted. Raises StoreDown."""
    found = MachineHistory(head.graph)
    try:
        found.add(await journal.load(head.run_id))
    except (Corrupt, RunUnknown):
        found.unreadable = 1
        return found
    found.since, found.until = head.created_at, head.updated_at
    return found


async def read_machine(journal: Journal, machine: str, limit: int = LAST_RUNS) -> MachineHistory:
    """Read the last runs of a machine. A run that cannot be read is counted. Raises ConfigError, StoreDown."""
    found = MachineHistory(machine)
    page = await read_page(journal, "newest", limit, machine=machine)
    for head in page.runs:
        found.merge(await read_run_history(journal, head))
    return found
