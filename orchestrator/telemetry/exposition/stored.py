"""Metrics from a journal, for runs whose processes do not exist, or are too short-lived to be scraped.

The metrics of a journal itself are those that each process with that journal serves, by the same code (`HeadGauges`),
and `scraped.STORED`: beside such processes they count nothing twice. For a journal whose processes are not scraped, the
metrics of live processes can be added, so that all alerts and dashboards apply. Beside a scraped process they would
count its runs again.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from orchestrator.kernel.journal import PARKED, CountableJournal
from orchestrator.telemetry.instrument import HEAD_NAMES, HeadGauges
from orchestrator.telemetry.metrics import family
from orchestrator.version import __version__


@dataclass(frozen=True, slots=True)
class StoredRunStatus:
    """A run that has not ended. Times are epoch seconds."""

    machine: str
    status: str
    """RUNNING, ORPHANED or PARKED."""
    state: str
    entered_at: float
    started_at: float
    agent: str = field(kw_only=True)
    """Label value of its agent."""


@dataclass(frozen=True, slots=True)
class JournalSnapshot:
    """A journal at one moment."""

    read_at: float
    seconds: float
    """Seconds that the read took."""
    bytes: int
    statuses: tuple[StoredRunStatus, ...] = ()
    ended: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """(machine, agent, outcome, reason) -> ended runs in the journal."""
    completed: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """The same for runs that ended since the start of the collector; never decreases."""
    unreadable: int = 0


class JournalCollector(Collector):
    """Serves the runs that a journal holds, and the last snapshot of it; nothing of that before the first one.

    Args:
        journal: The journal whose runs are counted at each scrape.
        limits: Dwell limits, (machine, state) -> seconds.
        alone: Whether no process serves metrics of the same runs: then those of live processes are served, too.
    """

    def __init__(
        self,
        journal: CountableJournal,
        limits: Mapping[tuple[str, str], float] | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self._journal = journal  # the gauges do not keep it alive
        self._heads = HeadGauges()
        self._heads.add(journal)
        self._limits = dict(limits or {})
        self._alone = alone
        self._lock = threading.Lock()
        self._picture: JournalSnapshot | None = None
        self._failures = 0

    def show(self, picture: JournalSnapshot) -> None:
        """Replace the last snapshot by a newer one."""
        with self._lock:
            self._picture = picture

    def failed(self) -> None:
        """Count a failed read; the last snapshot stays, and its age shows the failure."""
        with self._lock:
            self._failures += 1

    def describe(self) -> Iterator[Metric]:
        """Yield all names, so that a registry can refuse duplicates."""
        yield from self._of_snapshot(JournalSnapshot(0.0, 0.0, 0))
        for name in HEAD_NAMES:
            yield family(name, {})
        yield from self._constant(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        with self._lock:
            picture, failures = self._picture, self._failures
        found = self._heads.collect()
        found["journal_read_failures_total"][()] += failures
        for name, values in found.items():
            yield family(name, values)
        yield from self._constant(() if picture is None else picture.statuses)
        if picture is not None:
            yield from self._of_snapshot(picture)

    def _of_snapshot(self, picture: JournalSnapshot) -> Iterator[Metric]:
        yield family("journal_ended_runs", picture.ended)
        yield family("journal_bytes", {(self._journal.backend,): picture.bytes})
        yield family("journal_unreadable_runs", {(): picture.unreadable})
        yield family("journal_last_read_timestamp_seconds", {(): picture.read_at})
        yield family("journal_read_duration_seconds", {(): picture.seconds})
        if self._alone:
            moving = [run for run in picture.statuses if run.status != PARKED]
            yield family("runs_active", Counter((run.machine, run.agent, run.state) for run in moving))
            yield family(
                "oldest_run_state_entered_timestamp_seconds",
                _oldest(((run.machine, run.agent, run.state), run.entered_at) for run in moving),
            )
            yield family(
                "oldest_run_started_timestamp_seconds",
                _oldest(((run.machine, run.agent), run.started_at) for run in moving),
            )
            yield family("runs_completed_total", picture.completed)

    def _constant(self, statuses: Iterable[StoredRunStatus]) -> Iterator[Metric]:
        yield family("build_info", {(__version__, platform.python_version()): 1})
        if not self._alone:
            return
        agents = {(run.machine, run.agent) for run in statuses}
        limits = {
            (machine, agent, state): seconds
            for (machine, state), seconds in self._limits.items()
            for name, agent in agents
            if name == machine
        }
        yield family("state_timeout_seconds", limits)


def registry_of(collector: JournalCollector) -> CollectorRegistry:
    """Return a registry with the metrics of a journal and those of this process."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _oldest(times: Iterable[tuple[tuple[str, ...], float]]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for key, at in times:
        found[key] = min(at, found.get(key, at))
    return found
