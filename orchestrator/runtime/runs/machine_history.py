"""The states, edges and guards of many runs of one machine. Pure, but for the reader of the journal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.errors import Corrupt, RunUnknown
from orchestrator.kernel.journal import Journal, Record
from orchestrator.kernel.record import Transition
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
        fact = Transition(
            graph=self.machine,
            run_id="",
            seq=seq,
            event=str(body["event"]),
            source=source,
            dest=dest,
            dwell=dwell,
            at=0.0,
            iteration=0,
            internal=internal,
        )
        self.history.observe(fact)
        visits = self.times.setdefault(source, VisitTimes())
        visits.failed += bool(body.get("error"))
        if internal:
            return entered
        visits.seconds.append(dwell)
        return now


async def read_machine(journal: Journal, machine: str, limit: int = LAST_RUNS) -> MachineHistory:
    """Read the last runs of a machine. A run that cannot be read is counted. Raises ConfigError, StoreDown."""
    found = MachineHistory(machine)
    page = await read_page(journal, "newest", limit, machine=machine)
    for head in page.runs:
        try:
            found.add(await journal.load(head.run_id))
        except (Corrupt, RunUnknown):
            found.unreadable += 1
            continue
        found.since = head.created_at if found.since is None else min(found.since, head.created_at)
        found.until = head.updated_at if found.until is None else max(found.until, head.updated_at)
    return found
