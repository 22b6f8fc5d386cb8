"""Metrics of what cannot be scraped: of runs, from a journal, and of a batch job, stored for a scrape.

Runs may have processes that do not exist, or are too short-lived. The metrics of a journal itself are those that each
process with that journal serves, by the same code (`HeadGauges`), and `scraped.STORED`: beside such processes they
count nothing twice. For a journal whose processes are not scraped, the metrics of live processes can be added, so that
all alerts and dashboards apply. Beside a scraped process they would count its runs again.

A batch job that ends before a scrape cannot serve its metrics. The time of its last success and the duration of its
last run outlive it: in a file that node_exporter's textfile collector reads, in a Pushgateway, or both. The series have
the label `batch`, because node_exporter refuses two files with one series. Only these two are sent, never the counters
of runs: pushed data stays for ever, and has no `up` that would show its end. `forget` removes a retired job from the
gateway.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, GCCollector, ProcessCollector, core
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import PARKED, CountableJournal
from orchestrator.telemetry.catalogue import PREFIX, PUSHED, Metric
from orchestrator.telemetry.instrument import CAPS, HEAD_NAMES, HeadGauges, Values
from orchestrator.telemetry.metrics import family, process_identity

# ---- a batch job ----

_WENT_WELL, _TOOK = PUSHED
SUCCESS, DURATION = PREFIX + _WENT_WELL.name, PREFIX + _TOOK.name

_TIMEOUT = 10.0


class Batch:
    """One job, measured in a `with` block. An exception in the block is a failure, and so is setting `failed`.

    A failed job keeps the time of its last success. An error of the file or gateway is logged and never fails the
    job; it is in `problems`.

    Args:
        name: Value of the label `batch`.
        textfile: File to write; its name must end in .prom.
        gateway: Address of a Pushgateway.

    Raises:
        ConfigError: The name or a destination is invalid.

    Example:
        with Batch("nightly-report", textfile="/var/lib/node_exporter/nightly-report.prom") as batch:
            result = agent.run_sync(prompt)
            batch.failed = result.outcome != "completed"
    """

    def __init__(
        self,
        name: str,
        *,
        textfile: str | Path | None = None,
        gateway: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
    ) -> None:
        if not name.strip():
            raise ConfigError("a batch job needs a name, which distinguishes its series")
        if textfile is not None and Path(textfile).suffix != ".prom":
            raise ConfigError(f"{str(textfile)!r} must end in .prom, or node_exporter does not read it")
        if gateway is not None and not urlsplit(gateway if "://" in gateway else f"http://{gateway}").netloc:
            raise ConfigError(
                f"{gateway!r} is not the address of a Pushgateway; write for example http://127.0.0.1:9091"
            )
        self.name = name
        self.failed = False
        self.problems: list[str] = []
        """Errors of file and gateway, one sentence each."""
        self._textfile = None if textfile is None else Path(textfile)
        self._gateway = gateway
        self._clock = clock
        self._now = now
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = self._clock() - self._began
        success = None if self.failed or kind is not None else self._now()
        if self._textfile is not None:
            self._push(lambda file: write(file, self.name, seconds, success), self._textfile)
        if self._gateway is not None:
            self._push(lambda gateway: push(gateway, self.name, seconds, success), self._gateway)

    def _push(self, push_to: Callable[[Any], None], target: object) -> None:
        try:
            push_to(target)
        except Exception as error:  # noqa: BLE001 - the job is complete even if its figures are lost
            why = getattr(error, "strerror", None) or getattr(error, "reason", None) or type(error).__name__
            self._complain(f"batch {self.name}: {target} did not receive the figures: {why}")

    def _complain(self, problem: str) -> None:
        self.problems.append(problem)
        logging.getLogger("orchestrator").error("%s", problem)


def write(textfile: str | Path, name: str, seconds: float, success: float | None) -> None:
    """Write the figures of a job to a file atomically: a reader finds the old file or the new one.

    `success` is the time of the success (epoch seconds), None after a failure: then the time in the file stays. The
    file is readable for all users, because node_exporter is another user. Raises OSError.
    """
    file = Path(textfile)
    kept = success if success is not None else _last_success(file, name)
    prometheus_client.write_to_textfile(str(file), _figures(name, seconds, kept))
    file.chmod(0o644)


def push(gateway: str, name: str, seconds: float, success: float | None) -> None:
    """Push the figures of a job to a Pushgateway, in the group of the job's name. Raises OSError.

    A success replaces the group; a failure replaces only the duration, so the last success stays.
    """
    send = prometheus_client.pushadd_to_gateway if success is None else prometheus_client.push_to_gateway
    send(gateway, job=name, registry=_figures(name, seconds, success), timeout=_TIMEOUT)


def forget(gateway: str, name: str) -> None:
    """Remove the group of a retired job. Raises OSError."""
    prometheus_client.delete_from_gateway(gateway, job=name, timeout=_TIMEOUT)


def _figures(name: str, seconds: float, success: float | None) -> CollectorRegistry:
    registry = CollectorRegistry()
    _gauge(_TOOK, registry).labels(name).set(seconds)
    if success is not None:  # never 0: "half a century ago" would fire an alert
        _gauge(_WENT_WELL, registry).labels(name).set(success)
    return registry


def _gauge(row: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(PREFIX + row.name, row.help, row.labels, registry=registry)


def _last_success(file: Path, name: str) -> float | None:
    """Return the time in the file; None if there is no file, or it has another form."""
    with suppress(OSError, ValueError):
        for family in text_string_to_metric_families(file.read_text(encoding="utf-8")):
            for sample in family.samples:
                if sample.name == SUCCESS and sample.labels.get("batch") == name:
                    return float(sample.value)
    return None


# ---- a journal ----


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


class AgentSuccess(NamedTuple):
    """How long ago an agent succeeded."""

    last: float
    """Time of the end of its last success; without one, of the start of its first run (epoch seconds)."""
    attempts: int
    """Runs that have ended without a success since then."""


class ExpectedSuccess(NamedTuple):
    """What the host expects of an agent; None: nothing."""

    seconds: float | None = None
    """Maximum time without a success."""
    attempts: int | None = None
    """Number of runs without a success from which on an alert fires."""


EVERY_AGENT = "*"
"""Stands for each agent of which nothing else is expected."""


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
    successes: Mapping[str, AgentSuccess] = field(default_factory=dict)
    """Agent -> its last success."""
    waiting_for_agent: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(machine, agent) -> parked runs with an answer that no live engine reads."""


class JournalCollector(Collector):
    """Serves the runs that a journal holds, and the last snapshot of it; nothing of that before the first one.

    Args:
        journal: The journal whose runs are counted at each scrape.
        limits: Dwell limits, (machine, state) -> seconds.
        alone: Whether no process serves metrics of the same runs: then those of live processes are served, too.
        expected: Agent -> what is expected of it; EVERY_AGENT for the others.
        agents: Maximum agents in the label `agent` of the journal's gauges.
    """

    def __init__(
        self,
        journal: CountableJournal,
        limits: Mapping[tuple[str, str], float] | None = None,
        *,
        alone: bool = False,
        expected: Mapping[str, ExpectedSuccess] | None = None,
        agents: int = CAPS["agent"],
    ) -> None:
        self._expected = dict(expected or {})
        self._began = time.time()
        self._journal = journal  # the gauges do not keep it alive
        self._heads = HeadGauges(lambda: agents)
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

    def describe(self) -> Iterator[core.Metric]:
        """Yield all names, so that a registry can refuse duplicates."""
        yield from self._of_snapshot(JournalSnapshot(0.0, 0.0, 0))
        for name in HEAD_NAMES:
            yield family(name, {})
        yield from self._constant(())

    def collect(self) -> Iterator[core.Metric]:
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

    def _of_snapshot(self, picture: JournalSnapshot) -> Iterator[core.Metric]:
        yield family("journal_ended_runs", picture.ended)
        yield family("journal_bytes", {(self._journal.backend,): picture.bytes})
        yield family("journal_unreadable_runs", {(): picture.unreadable})
        yield family("journal_last_read_timestamp_seconds", {(): picture.read_at})
        yield family("journal_read_duration_seconds", {(): picture.seconds})
        named = self._expected.keys() - {EVERY_AGENT}
        known = dict.fromkeys(named, AgentSuccess(self._began, 0)) | dict(picture.successes)
        last = {(agent,): one.last for agent, one in sorted(known.items())}
        yield family("agent_last_success_timestamp_seconds", last)
        attempts = {(agent,): one.attempts for agent, one in sorted(known.items())}
        yield family("agent_attempts_since_success", attempts)
        waiting = dict.fromkeys(((run.machine, run.agent) for run in picture.statuses), 0)
        yield family("journal_runs_waiting_for_agent", waiting | picture.waiting_for_agent)
        usual = self._expected.get(EVERY_AGENT, ExpectedSuccess())
        within: Values = {}
        most: Values = {}
        for agent in sorted(known):
            own = self._expected.get(agent, usual)
            if (seconds := usual.seconds if own.seconds is None else own.seconds) is not None:
                within[agent,] = seconds
            if (limit := usual.attempts if own.attempts is None else own.attempts) is not None:
                most[agent,] = limit
        yield family("agent_success_within_seconds", within)
        yield family("agent_attempts_limit", most)
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

    def _constant(self, statuses: Iterable[StoredRunStatus]) -> Iterator[core.Metric]:
        for name, values in process_identity().items():
            yield family(name, values)
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
