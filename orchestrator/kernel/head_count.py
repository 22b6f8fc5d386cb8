"""Count the runs of a journal that have not ended, for metrics. No store, no metrics library.

A journal that can be counted has a method `head_counts()`. It is synchronous, because a scrape has no event loop,
and reads the heads of the runs alone, on a separate connection: it needs neither an open journal nor its threads.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from typing import NamedTuple, Protocol

RUNNING = "running"
ORPHANED = "orphaned"
PARKED = "parked"
"""States of a journal's run that has not ended: running (a living owner holds it), orphaned (it has no living owner
and waits for `runs resume`), or parked (it waits for a person or an event)."""


class HeadCount(NamedTuple):
    """The runs of a journal that have these values in common."""

    machine: str
    agent: str
    """Empty for runs without an agent."""
    status: str
    """RUNNING, ORPHANED or PARKED."""
    reason: str
    """Reason of the parking; empty for other runs."""
    runs: int
    oldest: float
    """Epoch seconds of the last record of the run that has been without a new one for the longest time."""


class HeadCounts(NamedTuple):
    """The runs of a journal that have not ended, at one moment."""

    journal: str
    """Identity of the store, the same in every process that reads it; empty if it has none yet."""
    counts: tuple[HeadCount, ...] = ()


class CountableJournal(Protocol):
    """The part of a journal that metrics use."""

    @property
    def backend(self) -> str:
        """`memory`, `sqlite` or `postgres`."""
        ...

    def head_counts(self) -> HeadCounts:
        """Count the runs that have not ended. It may block for some seconds. Raises any error of the store."""
        ...


class HeadRow(NamedTuple):
    """Runs as a store groups them."""

    machine: str
    agent: str
    status: str
    """`open` or `parked`."""
    reason: str
    is_owned: bool
    """Whether a living owner holds them."""
    runs: int
    oldest: float


def merged_counts(rows: Iterable[HeadRow]) -> tuple[HeadCount, ...]:
    """Return the counts of some groups, one for each combination of values."""
    found: dict[tuple[str, str, str, str], tuple[int, float]] = {}
    for row in rows:
        status = PARKED if row.status == PARKED else RUNNING if row.is_owned else ORPHANED
        key = (row.machine, row.agent, status, row.reason if status == PARKED else "")
        runs, oldest = found.get(key, (0, row.oldest))
        found[key] = (runs + row.runs, min(oldest, row.oldest))
    return tuple(HeadCount(*key, *found[key]) for key in sorted(found))


def process_identity() -> str:
    """Return the identity of what exists in this process alone: a new one in each process, also after a fork."""
    pid = os.getpid()
    if pid not in _identities:
        _identities.clear()
        _identities[pid] = secrets.token_hex(4)
    return _identities[pid]


_identities: dict[int, str] = {}
