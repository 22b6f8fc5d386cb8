"""Live gauges in prometheus_client's multiprocess mode, whose page reads files and no collector.

A thread in each process writes the figures of its collector into gauges of the library, each with the mode by which
processes are combined. A process without a thread, right after a fork, starts one. `mark_process_dead` in the server's
hook removes the figures of a dead worker.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from typing import Any, Literal

import prometheus_client
from prometheus_client import CollectorRegistry

from orchestrator.telemetry.collector import LiveCollector
from orchestrator.telemetry.metric import PREFIX, Metric, MetricKind
from orchestrator.telemetry.scraped import SCRAPED

PERIOD = 1.0
"""Seconds between two writes."""

_SUMS = {"runs_active", "runs_queued", "run_slots"}
_ABSENT = {"livemin": math.inf, "livesum": 0.0, "livemax": 0.0}
"""Value of a series that a process has no more: a series cannot be removed from a file."""


def mode_of(row: Metric) -> Literal["livesum", "livemin", "livemax"]:
    """Return how the values of several processes become one."""
    if row.name in _SUMS:
        return "livesum"
    return "livemin" if "oldest_" in row.name else "livemax"


class SharedGauges:
    """Writes the figures of a collector into files until the process ends."""

    def __init__(self, collector: LiveCollector, registry: CollectorRegistry) -> None:
        self._collector = collector
        self.writing = threading.Lock()
        self._made: dict[str, Any] = {row.name: _instrument(row, registry) for row in SCRAPED}
        self._seen: dict[tuple[str, tuple[str, ...]], float] = {}
        _all.append(self)
        self.start()

    def start(self) -> None:
        """Start the thread of this process."""
        self.writing = threading.Lock()
        threading.Thread(target=self._run, name="orchestrator shared gauges", daemon=True).start()

    def forked(self) -> None:
        """Start anew in a forked child, which has no thread and files of its own."""
        self._seen.clear()
        self.start()

    def write(self) -> None:
        """Write the present figures."""
        with self.writing:
            left = set(self._seen)
            for family in self._collector.collect():
                for sample in family.samples:
                    left.discard(self._set(sample.name.removeprefix(PREFIX), sample.labels, sample.value))
            for name, labels in left:
                row = _ROWS[name]
                if row.kind is not MetricKind.COUNTER:
                    self._put(name, labels, _ABSENT[mode_of(row)])

    def _set(self, name: str, labels: dict[str, str], value: float) -> tuple[str, tuple[str, ...]]:
        key = (name, tuple(labels[label] for label in _ROWS[name].labels))
        if _ROWS[name].kind is MetricKind.COUNTER:
            self._child(*key).inc(value - self._seen.get(key, 0.0))
            self._seen[key] = value
        else:
            self._put(*key, value)
        return key

    def _put(self, name: str, labels: tuple[str, ...], value: float) -> None:
        self._seen[name, labels] = value
        self._child(name, labels).set(value)

    def _child(self, name: str, labels: tuple[str, ...]) -> Any:
        made = self._made[name]
        return made.labels(*labels) if labels else made

    def _run(self) -> None:
        pause, writing = threading.Event(), self.writing
        while writing is self.writing:  # else a fork or a restart replaced this thread
            with contextlib.suppress(Exception):  # a figure that cannot be read is counted by the collector
                self.write()
            pause.wait(PERIOD)


_ROWS = {row.name: row for row in SCRAPED}
_all: list[SharedGauges] = []


def _instrument(row: Metric, registry: CollectorRegistry) -> Any:
    name = PREFIX + row.name
    if row.kind is MetricKind.COUNTER:
        return prometheus_client.Counter(name, row.help, row.labels, registry=registry)
    return prometheus_client.Gauge(
        name, row.help, row.labels, registry=registry, multiprocess_mode=mode_of(row)
    )


def _hold() -> None:
    """Let no thread write while a process forks: the child would inherit a lock that nobody releases."""
    for each in _all:
        each.writing.acquire()


def _release() -> None:
    for each in _all:
        each.writing.release()


def _restart() -> None:
    for each in _all:
        each.forked()


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_restart)
