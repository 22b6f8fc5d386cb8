"""Records in memory: for tests, and when no journal is given. Lost with the process, and says so by its name."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from orchestrator.errors import JournalError, RunExists
from orchestrator.kernel.record import Draft


class MemoryJournal:
    """Keeps the last `records` records of each run, and the last `runs` ended runs. Every append is done at once."""

    backend = "memory"

    def __init__(self, *, records: int = 10_000, runs: int = 1_000) -> None:
        self._records: dict[str, deque[Draft]] = {}
        self._ended: deque[str] = deque()
        self._most_records = records
        self._most_runs = runs

    def create(self, run_id: str, body: dict[str, Any]) -> None:
        """Begin a run. Raises RunExists when the id is known."""
        if run_id in self._records:
            raise RunExists(run_id)
        self._records[run_id] = deque((Draft("created", body),), self._most_records)

    def append(self, run_id: str, drafts: Sequence[Draft]) -> None:
        """Add records. Raises JournalError for a run that was never created."""
        records = self._records.get(run_id)
        if records is None:
            raise JournalError(f"run {run_id!r} was not created in this journal")
        records.extend(drafts)
        if drafts[-1].kind == "ended":
            self._retire(run_id)

    def load(self, run_id: str) -> tuple[Draft, ...]:
        """Return the records of a run that are still kept, oldest first."""
        return tuple(self._records.get(run_id, ()))

    def runs(self) -> tuple[str, ...]:
        """Return the ids of all runs that are still kept."""
        return tuple(self._records)

    def _retire(self, run_id: str) -> None:
        self._ended.append(run_id)
        if len(self._ended) > self._most_runs:
            del self._records[self._ended.popleft()]
