"""Rows of the catalogue without facts: read at a scrape or from a journal, or pushed by batch jobs."""

from __future__ import annotations

from functools import partial

from orchestrator.kernel.head_count import ORPHANED, PARKED, RUNNING
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.telemetry.metric import Metric, MetricKind, MetricSource, counter, gauge

PARKINGS = (
    "approval",
    "unknown_effect",
    "undo_failed",
    "input",
    "questions",
    "paused",
    "waiting",
    "interrupted",
    "shutdown",
    "poison",
    "deps_required",
    "other_graph",
    "invalid_table",
)
"""Reasons of parked runs, a closed label set; anything else is `_other`."""

PHASES = ("starting", "running", "draining", "stopped")
"""States of a process, or of one engine in it."""

NOT_PARKED = "none"
"""Label value of the reason of a journal's run that is not parked."""

LEVELS = ("debug", "info", "warning", "error", "critical")

_gauge = partial(gauge, made=MetricSource.SCRAPED)


def _info(name: str, labels: str, text: str) -> Metric:
    return Metric(
        name=name,
        kind=MetricKind.INFO,
        labels=tuple(labels.split()),
        help=text,
        zero=False,
        made=MetricSource.SCRAPED,
    )


SCRAPED: tuple[Metric, ...] = (
    # ---- runs of this process ----
    _gauge("runs_active", "machine agent state", "Active runs, by their state.", zero=True),
    _gauge(
        "oldest_run_state_entered_timestamp_seconds",
        "machine agent state",
        "Unix time at which the run that has been in a state for the longest time entered it; absent without a run.",
    ),
    _gauge(
        "oldest_run_started_timestamp_seconds",
        "machine agent",
        "Unix time at which the oldest active run started, without its waiting; absent without a run.",
    ),
    # ---- engines of this process ----
    _gauge("runs_queued", "machine agent", "Runs that wait in a queue.", zero=True),
    _gauge("run_slots", "machine", "Maximum concurrent runs; absent without an engine."),
    _gauge(
        "runtime_state", "state", "1 for the present state of the process, 0 for the others.", state=PHASES
    ),
    # ---- what was declared ----
    _gauge(
        "state_timeout_seconds",
        "machine agent state",
        "Maximum time in a state before its event fires; absent without a limit.",
    ),
    _gauge("run_timeout_seconds", "machine agent", "Maximum time of a run; absent without a limit."),
    _info("build_info", "version python", "Versions of the running software; always 1."),
    _info(
        "machine_info",
        "machine version definition",
        "Definition of a machine in this process, by the first digits of its fingerprint; always 1.",
    ),
    _gauge(
        "run_objective_seconds",
        "machine agent",
        "Time within which runs of an agent should end; absent without an objective.",
    ),
    # ---- journals: every process that serves one reports the same runs, so use `max by (journal, …)` before `sum` ----
    _gauge(
        "journal_runs",
        "journal machine agent status reason",
        "Runs in a journal that have not ended, as its index of runs has them; orphaned: without a living owner.",
        status=(RUNNING, ORPHANED, PARKED),
        reason=(NOT_PARKED, *PARKINGS),
    ),
    _gauge(
        "journal_oldest_update_timestamp_seconds",
        "journal machine agent status reason",
        "Unix time of the last record of the run that has had no new one for the longest time; absent without a run.",
        status=(RUNNING, ORPHANED, PARKED),
        reason=(NOT_PARKED, *PARKINGS),
    ),
    _info(
        "journal_info",
        "journal backend path",
        "Engine and path (or address, without its password) of a journal that is open here; always 1.",
    ),
    counter(
        "journal_read_failures_total",
        "",
        "Failed reads of a journal for metrics; figures that could not be read are absent.",
        made=MetricSource.SCRAPED,
    ),
    # ---- stores and telemetry itself ----
    _gauge(
        "event_loop_age_seconds",
        "",
        "Seconds since a watched event loop last moved, the longest of the process; absent without a watchdog.",
    ),
    _gauge("journal_bytes", "backend", "Size of the files of the journals that are open here."),
    counter(
        "log_records_total", "level", "Lines written to the log.", made=MetricSource.SCRAPED, level=LEVELS
    ),
    counter(
        "log_records_dropped_total",
        "",
        "Lines that a bounded writer dropped because its queue was full.",
        made=MetricSource.SCRAPED,
    ),
    _gauge("collector_duration_seconds", "", "Time that it took to compute the live gauges.", zero=True),
)

_stored = partial(gauge, made=MetricSource.STORED)

STORED: tuple[Metric, ...] = (
    _stored(
        "journal_ended_runs",
        "machine agent outcome reason",
        "Runs in a journal that have ended; pruning lowers it.",
        outcome=tuple(Outcome),
        reason=sorted(set().union(*REASONS.values())),
    ),
    _stored("journal_unreadable_runs", "", "Runs of a journal that could not be read."),
    _stored("journal_last_read_timestamp_seconds", "", "Unix time of the last read of a journal."),
    _stored("journal_read_duration_seconds", "", "Duration of the last read of a journal."),
)
"""Metrics of `orchestrator metrics serve` in addition to those of live processes."""

PUSHED: tuple[Metric, ...] = (
    gauge(
        "batch_last_success_timestamp_seconds",
        "batch",
        "Unix time of the last success of a batch job.",
        made=MetricSource.PUSHED,
    ),
    gauge(
        "batch_last_duration_seconds",
        "batch",
        "Duration of the last run of a batch job, after any result.",
        made=MetricSource.PUSHED,
    ),
)
"""Metrics of a batch job; `batch` is its name."""
