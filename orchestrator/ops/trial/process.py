"""Cases of the alerts about capacity, journal, event loop and telemetry."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.ops.trial.case import (
    AGENT,
    JOURNAL_TEXT,
    LOOP,
    NOWHERE,
    Case,
    firing,
    firing_there,
    journal_info,
    series,
    spread,
)

_SQLITE = {"backend": "sqlite"}
_APPEND = {"backend": "sqlite", "operation": "append"}


def load(active: str, queued: str) -> list[tuple[str, str]]:
    """Return the runs of two machines on the four slots of one engine, and the queued ones."""
    return [
        series("orchestrator_runs_active", active, state="await_llm", **LOOP),
        series("orchestrator_runs_active", "1x60", state="process_tools", machine="pipeline", **AGENT),
        series("orchestrator_runs_queued", queued, **LOOP),
        series("orchestrator_run_slots", "4x60", machine="llm_loop"),
        series("orchestrator_run_slots", "4x60", machine="pipeline"),
    ]


def journal(values: str, reason: str = "io") -> tuple[str, str]:
    """Return failed writes."""
    return series("orchestrator_journal_write_failures_total", values, reason=reason, **_SQLITE)


def series_of(name: str, values: str, **labels: str) -> tuple[str, str]:
    """Return a counter of telemetry about itself."""
    return series(f"orchestrator_{name}", values, **labels)


def appends(less: str, edge: str, count: str = "0+100x60") -> list[tuple[str, str]]:
    """Return `count` appends, `less` of them within `edge` seconds, all of them within half a second."""
    name = "journal_write_duration_seconds"
    return [
        *spread(name, less, edge, "0.5", count, **_APPEND),
        series(f"orchestrator_{name}_count", count, **_APPEND),
    ]


PROCESS_CASES = (
    Case(
        "QueueSaturated",
        "four of four slots taken, three runs wait",
        load("3x60", "3x60"),
        "30m",
        [firing_there("4")],
    ),
    Case("QueueSaturated", "full, and no run waits", load("3x60", "0x60"), "30m"),
    Case("QueueSaturated", "two of four slots", load("1x60", "1x60"), "30m"),
    Case("QueueSaturated", "ten minutes", load("1x20 3x40", "3x60"), "30m"),
    Case(
        "QueueWaitHigh",
        "one in ten waits for more than a minute",
        spread("run_queue_wait_seconds", "0+90x60", "60.0", "300.0", **LOOP),
        "40m",
        [firing("2m 59s", **LOOP)],
    ),
    Case(
        "QueueWaitHigh",
        "nearly all start at once",
        spread("run_queue_wait_seconds", "0+99x60", "1.0", "300.0", **LOOP),
        "40m",
    ),
    Case(
        "JournalWritesFailing",
        "one write failed",
        [
            journal("0x5 1x20"),
            journal_info(),
            series("orchestrator_journal_info", "1x20", journal="5a6b7c8d", backend="postgres", path="db"),
        ],
        "8m",
        [replace(firing_there(**_SQLITE), journal=JOURNAL_TEXT)],
    ),
    Case("JournalWritesFailing", "none did", [journal("0x30"), journal("7x30", "locked")], "8m"),
    Case(
        "JournalSlow",
        "two in a hundred take longer than a tenth of a second",
        appends("0+98x60", "0.1"),
        "40m",
        [firing("300ms", **_SQLITE, operation="append")],
    ),
    Case(
        "JournalSlow",
        "all are quick",
        appends("0+100x60", "0.005"),
        "40m",
    ),
    Case(
        "JournalSlow",
        "one slow write every five minutes",
        appends("0x60", "0.1", "0x4 1x4 2x4 3x4 4x4 5x4 6x4 7x4 8x4 9x4"),
        "40m",
    ),
    Case(
        "JournalSlow",
        "a snapshot may take its time",
        spread(
            "journal_write_duration_seconds", "0+50x60", "0.1", "0.5", backend="sqlite", operation="snapshot"
        ),
        "40m",
    ),
    Case(
        "JournalGrowing",
        "two gigabytes, another one every hour",
        [series("orchestrator_journal_bytes", "2e9+1e8x96", **_SQLITE)],
        "7h",
        [firing_there("9.686Gi", **_SQLITE)],
        "5m",
    ),
    Case(
        "JournalGrowing",
        "large and steady",
        [series("orchestrator_journal_bytes", "2e9+5e4x96", **_SQLITE)],
        "7h",
        step="5m",
    ),
    Case(
        "JournalGrowing",
        "it grows, and is still small",
        [series("orchestrator_journal_bytes", "1e6+5e5x96", **_SQLITE)],
        "7h",
        step="5m",
    ),
    Case(
        "EventLoopLagHigh",
        "five in a hundred wake-ups come more than half a second late",
        spread("event_loop_lag_seconds", "0+95x60", "0.5", "1.0"),
        "20m",
        [firing_there()],
    ),
    Case(
        "EventLoopBlocked",
        "it has not moved for minutes",
        [series_of("event_loop_age_seconds", "0.1x5 60+60x20")],
        "8m",
        [firing_there("3m 0s")],
    ),
    Case("EventLoopBlocked", "it moves", [series_of("event_loop_age_seconds", "0.1x30")], "8m"),
    Case(
        "EventLoopBlocked",
        "one stall of five seconds",
        [series_of("event_loop_age_seconds", "0.1x5 5.1 0.1x20")],
        "7m",
    ),
    Case(
        "EventLoopBlocked",
        "held by keep_firing_for while one scrape misses it",
        [series_of("event_loop_age_seconds", "0.1x5 60+60x5 0.1x20")],
        "12m",
        [firing_there("6m 0s")],
    ),
    Case(
        "EventLoopLagHigh",
        "three blocks within half an hour among thousands of quick wake-ups",
        [
            *spread("event_loop_lag_seconds", "0+600x5 3000+600x44", "0.025", "+Inf", "0+600x5 3001+600x44"),
            series_of("event_loop_blocked_total", "0x5 1x5 2x5 3x34"),
        ],
        "26m",
        [firing_there()],
    ),
    Case(
        "EventLoopLagHigh",
        "one stall of five seconds",
        [
            *spread("event_loop_lag_seconds", "0+600x5 3000+600x24", "0.025", "+Inf", "0+600x5 3001+600x24"),
            series_of("event_loop_blocked_total", "0x5 1x24"),
        ],
        "12m",
    ),
    Case(
        "EventLoopLagHigh",
        "a block of an hour ago",
        [
            *spread("event_loop_lag_seconds", "0+600x60", "0.025", "1.0", "0+600x60"),
            series_of("event_loop_blocked_total", "3x60"),
        ],
        "20m",
    ),
    Case(
        "EventLoopLagHigh",
        "all come in time",
        spread("event_loop_lag_seconds", "0+100x60", "0.025", "1.0"),
        "20m",
    ),
    Case(
        "TransitionOverheadHigh",
        "five in a hundred take more than 2.5 ms",
        spread("transition_overhead_seconds", "0+95x60", "0.0025", "0.01", **LOOP),
        "40m",
        [firing("8.5ms", machine="llm_loop")],
    ),
    Case(
        "TransitionOverheadHigh",
        "all are quick",
        spread("transition_overhead_seconds", "0+100x60", "5e-05", "0.01", **LOOP),
        "40m",
    ),
    Case(
        "TelemetryDegraded",
        "an observer raised",
        [series_of("telemetry_errors_total", "0x5 1x20", component="logs")],
        "8m",
        [firing_there()],
    ),
    Case(
        "TelemetryDegraded",
        "log lines were lost",
        [series_of("log_records_dropped_total", "0x5 40x20")],
        "8m",
        [firing_there()],
    ),
    Case(
        "TelemetryDegraded",
        "a model invented more names than fit",
        [series_of("label_overflow_total", "0x5 1x20", metric="tool_calls_total", label="tool")],
        "8m",
        [firing_there()],
    ),
    Case(
        "TelemetryDegraded",
        "a journal that is watched cannot be read",
        [series_of("journal_read_failures_total", "0x5 1x20")],
        "8m",
        [firing_there()],
    ),
    Case(
        "TelemetryDegraded",
        "all is told",
        [
            series_of("journal_read_failures_total", "2x30"),
            series_of("telemetry_errors_total", "2x30", component="logs"),
            series_of("log_records_dropped_total", "0x30"),
            series_of("label_overflow_total", "3x30", metric="tool_calls_total", label="tool"),
        ],
        "20m",
    ),
    Case("TargetDown", "no answer for five minutes", [series("up", "0x10")], "5m", [firing_there()]),
    Case("TargetDown", "one missed scrape", [series("up", "1 1 1 1 0 1 1 1 1")], "5m"),
    Case("TargetDown", "a target of another job", [series("up", "0x10", job="node")], "5m"),
    Case("MetricsAbsent", "nothing at all", [], "10m", [NOWHERE]),
    Case(
        "MetricsAbsent",
        "one process is enough",
        [series("orchestrator_build_info", "1x20", version="1", python="3.11")],
        "10m",
    ),
    Case("Watchdog", "always", [], "1m", [NOWHERE]),
)
