"""Gauges of journals at a scrape: the runs that they hold, also those of dead processes, and the size of their files.

Every process that serves a journal reports the same runs under the same labels. So the labels depend on nothing but
the content of the journal: its own identity, and the names in it, of which the first ones in alphabetical order are
kept. A rule takes the maximum for each journal and never adds processes up.

A scrape waits for a store at most for the time that the store allows itself. A slow read is not repeated before twenty
times its duration has passed, so a store that hangs neither blocks each scrape nor gets more load.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

from orchestrator.kernel.journal import PARKED, CountableJournal, HeadCount, HeadCounts
from orchestrator.telemetry.catalogue import NOT_PARKED, PARKINGS
from orchestrator.telemetry.labels import CAPS, NO_AGENT, OTHER, UNKNOWN, is_label

_BESIDE = ("", "-wal", "-shm")
_BLOBS = "-blobs"


def file_bytes(path: Path) -> int:
    """Return the bytes of an SQLite journal with the files beside it; 0 for missing files.

    It never opens the journal, so a store that hangs does not block a scrape.
    """
    total = sum(_size(f"{path}{end}") for end in _BESIDE)
    try:
        with os.scandir(f"{path}{_BLOBS}") as entries:
            return total + sum(_size(entry.path) for entry in entries)
    except OSError:
        return total


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


Values: TypeAlias = dict[tuple[str, ...], float]
"""Label values -> value."""

HEAD_NAMES: Final = (
    "journal_runs",
    "journal_oldest_update_timestamp_seconds",
    "journal_info",
    "journal_read_failures_total",
)
"""Metrics of `HeadGauges`."""
_SLOW: Final = 0.1
"""Seconds from which on a read is slow."""
_SHARE: Final = 20
"""Seconds without a read, for each second that a slow read took."""


class JournalReader:
    """The last read of one journal. It does not keep the journal alive."""

    def __init__(self, journal: CountableJournal, now: Callable[[], float] = time.monotonic) -> None:
        self._journal = weakref.ref(journal)
        self._now = now
        self._next = -1.0
        self._last: HeadCounts | None = None
        self.backend = journal.backend
        self.path = str(getattr(journal, "address", ""))
        self.identity = ""
        """Identity of the store as far as it was ever read."""
        self.failures = 0

    def read(self) -> HeadCounts | None:
        """Return the runs of the journal; None if it cannot be read, or does not exist any more."""
        journal, began = self._journal(), self._now()
        if journal is None:
            return None
        if began < self._next:
            return self._last
        try:
            self._last = journal.head_counts()
            self.identity = self._last.journal or self.identity
        except Exception:  # noqa: BLE001 - a store may raise anything, and must not fail the scrape
            self._last = None
            self.failures += 1
        took = self._now() - began
        self._next = self._now() + _SHARE * took if took >= _SLOW else -1.0
        return self._last

    @property
    def is_gone(self) -> bool:
        """Whether the journal does not exist any more."""
        return self._journal() is None


class HeadGauges:
    """The gauges of the journals that one registry's Metrics serve, one reader for each store."""

    def __init__(self) -> None:
        self._readers: dict[tuple[str, str, int], JournalReader] = {}
        self._failures = 0
        """Of journals that do not exist any more: a counter never decreases."""

    def add(self, journal: CountableJournal) -> None:
        """Count the runs of a journal at each scrape, while it exists; several journals of one store count once."""
        reader = JournalReader(journal)
        # A journal in memory has no place that another one could share.
        key = (reader.backend, reader.path, 0 if reader.path else id(journal))
        known = self._readers.get(key)
        if known is None or known.is_gone:
            self._readers[key] = reader
            self._failures += 0 if known is None else known.failures

    def collect(self) -> dict[str, Values]:
        """Return the values of each metric."""
        runs: Values = {}
        oldest: Values = {}
        info: Values = {}
        seen: set[str] = set()
        for key, reader in list(self._readers.items()):
            counts = reader.read()
            if reader.is_gone:
                gone = self._readers.pop(key, None)
                self._failures += 0 if gone is None else gone.failures
                continue
            stores = sorted({one.identity for one in list(self._readers.values()) if one.identity})
            if not reader.identity:
                journal = UNKNOWN
            else:
                journal = reader.identity if reader.identity in stores[: CAPS["journal"]] else OTHER
            if reader.path:
                info[journal, reader.backend, reader.path] = 1
            if counts is None or (reader.path and journal in seen and journal != OTHER):
                continue  # two addresses of one store
            seen.add(journal)
            for labels, one in labelled(journal, counts.counts):
                runs[labels] = runs.get(labels, 0) + one.runs
                oldest[labels] = min(one.oldest, oldest.get(labels, one.oldest))
        failures = self._failures + sum(reader.failures for reader in list(self._readers.values()))
        return dict(zip(HEAD_NAMES, (runs, oldest, info, {(): float(failures)}), strict=True))


def labelled(journal: str, counts: Iterable[HeadCount]) -> list[tuple[tuple[str, ...], HeadCount]]:
    """Return each count with its label values: journal, machine, agent, status, reason."""
    found = list(counts)
    machines = _kept((one.machine for one in found), CAPS["machine"])
    agents = _kept((one.agent for one in found), CAPS["agent"])
    return [
        (
            (
                journal,
                one.machine if one.machine in machines else OTHER,
                (one.agent if one.agent in agents else OTHER) if one.agent else NO_AGENT,
                one.status,
                _reason(one),
            ),
            one,
        )
        for one in found
    ]


def _kept(names: Iterable[str], most: int) -> frozenset[str]:
    return frozenset(sorted({name for name in names if is_label(name)})[:most])


def _reason(one: HeadCount) -> str:
    if one.status != PARKED:
        return NOT_PARKED
    return one.reason if one.reason in PARKINGS else OTHER
