"""Metrics from a journal, for runs whose processes are too short-lived to be scraped.

The names are those of live processes, so that alerts and dashboards apply; `scraped.STORED` has the additional ones.
Serve a journal under its own job, and not beside a process that serves the same runs: both would count them.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from orchestrator.telemetry.catalogue import PREFIX, ROWS
from orchestrator.telemetry.scraped import PARKED
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
    reason: str = ""
    """Reason of the parking."""
    written_at: float = 0.0
    """Time of its last record: for a parked run, the start of its wait."""
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
    """Serves the last snapshot of a journal; nothing of it before the first one.

    `limits` are the dwell limits: (machine, state) -> seconds.
    """

    def __init__(
        self, limits: Mapping[tuple[str, str], float] | None = None, backend: str = "sqlite"
    ) -> None:
        self._limits = dict(limits or {})
        self._backend = backend
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
        yield from _families(JournalSnapshot(0.0, 0.0, 0), self._backend)
        yield _failures(0)
        yield from self._constant(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        with self._lock:
            picture, failures = self._picture, self._failures
        yield _failures(failures)
        yield from self._constant(() if picture is None else picture.statuses)
        if picture is not None:
            yield from _families(picture, self._backend)

    def _constant(self, statuses: Iterable[StoredRunStatus]) -> Iterator[Metric]:
        text = "Maximum time in a state before its event fires."
        agents = {(run.machine, run.agent) for run in statuses}
        limits = {
            (machine, agent, state): seconds
            for (machine, state), seconds in self._limits.items()
            for name, agent in agents
            if name == machine
        }
        yield _gauge("state_timeout_seconds", "machine agent state", text, limits)
        info = InfoMetricFamily(f"{PREFIX}build", "Versions of the running software; always 1.")
        info.add_metric((), {"version": __version__, "python": platform.python_version()})
        yield info


def registry_of(collector: JournalCollector) -> CollectorRegistry:
    """Return a registry with the metrics of a journal and those of this process."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _failures(count: int) -> Metric:
    row = ROWS["journal_read_failures_total"]
    found = CounterMetricFamily(PREFIX + row.name, row.help)
    found.add_metric((), count)
    return found


def _families(picture: JournalSnapshot, backend: str) -> Iterator[Metric]:
    statuses = picture.statuses
    parked = [run for run in statuses if run.status == PARKED]
    moving = [run for run in statuses if run.status != PARKED]
    yield _gauge(
        "runs_active",
        "machine agent state",
        "Runs that have not ended and are not parked.",
        Counter((run.machine, run.agent, run.state) for run in moving),
    )
    yield _gauge(
        "oldest_run_state_entered_timestamp_seconds",
        "machine agent state",
        "Unix time at which the run that has been in its state for the longest time entered it.",
        _oldest(((run.machine, run.agent, run.state), run.entered_at) for run in moving),
    )
    yield _gauge(
        "oldest_run_started_timestamp_seconds",
        "machine agent",
        "Unix time at which the oldest run that is not parked started.",
        _oldest(((run.machine, run.agent), run.started_at) for run in moving),
    )
    yield _gauge(
        "runs_parked",
        "machine agent reason",
        "Runs that wait for a person or an event.",
        Counter((run.machine, run.agent, run.reason) for run in parked),
    )
    yield _gauge(
        "oldest_parked_timestamp_seconds",
        "machine agent reason",
        "Unix time at which the run that has been parked for the longest time was parked.",
        _oldest(((run.machine, run.agent, run.reason), run.written_at) for run in parked),
    )
    yield _completed(picture.completed)
    yield from _of_the_journal(picture, backend)


def _of_the_journal(picture: JournalSnapshot, backend: str) -> Iterator[Metric]:
    yield _row("journal_runs", Counter((run.machine, run.agent, run.status) for run in picture.statuses))
    yield _row("journal_ended_runs", picture.ended)
    yield _row("journal_bytes", {(backend,): picture.bytes})
    yield _row("journal_unreadable_runs", {(): picture.unreadable})
    yield _row("journal_last_read_timestamp_seconds", {(): picture.read_at})
    yield _row("journal_read_duration_seconds", {(): picture.seconds})


def _completed(counts: Counter[tuple[str, str, str, str]]) -> Metric:
    text = "Runs that reached a terminal state since the start of this collector."
    found = CounterMetricFamily(
        f"{PREFIX}runs_completed_total", text, labels=("machine", "agent", "outcome", "reason")
    )
    for labels, count in sorted(counts.items()):
        found.add_metric(labels, count)
    return found


def _row(name: str, values: Mapping[Any, float]) -> Metric:
    return _gauge(name, " ".join(ROWS[name].labels), ROWS[name].help, values)


def _gauge(name: str, labels: str, text: str, values: Mapping[Any, float]) -> Metric:
    found = GaugeMetricFamily(PREFIX + name, text, labels=labels.split())
    for key, value in sorted(values.items()):
        found.add_metric(key, value)
    return found


def _oldest(times: Iterable[tuple[tuple[str, ...], float]]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for key, at in times:
        found[key] = min(at, found.get(key, at))
    return found
