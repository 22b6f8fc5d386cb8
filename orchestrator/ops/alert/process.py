"""Alerts about the processes: capacity, journal, event loop, telemetry itself."""

from __future__ import annotations

from orchestrator.ops.rule import JOURNALS, Alert, AlertSeverity

PROCESS_ALERTS = (
    Alert(
        name="QueueSaturated",
        severity=AlertSeverity.WARNING,
        # By process: the machines of one engine share its slots.
        expr=(
            "(sum without (machine, agent, state) (orchestrator_runs_active)\n"
            "  >= max without (machine) (orchestrator_run_slots))\n"
            "and sum without (machine, agent) (orchestrator_runs_queued) > 0"
        ),
        wait="15m",
        summary="All slots of {{ $labels.instance }} are in use and runs wait in the queue.",
        description="{{ $value | humanize }} runs on {{ $labels.instance }} use every slot while other runs wait.",
    ),
    Alert(
        name="QueueWaitHigh",
        severity=AlertSeverity.WARNING,
        expr=(
            "histogram_quantile(0.95,"
            " sum without (instance) (rate(orchestrator_run_queue_wait_seconds_bucket[10m])))"
            " > <queue_wait_s>"
        ),
        wait="10m",
        summary="Runs of {{ $labels.machine }} (agent {{ $labels.agent }}) wait long for a slot.",
        description=(
            "5 % of the runs of {{ $labels.machine }} wait {{ $value | humanizeDuration }} or longer for their start."
        ),
    ),
    Alert(
        name="JournalWritesFailing",
        severity=AlertSeverity.CRITICAL,
        expr="sum without (reason) (increase(orchestrator_journal_write_failures_total[5m])) > 0",
        wait="1m",
        keep="10m",
        summary="The {{ $labels.backend }} journal of {{ $labels.instance }} cannot be written.",
        description=(
            "Records could not be written on {{ $labels.instance }}. The affected runs end as failed; the result of"
            f" their last step may be unknown after a restart. Journal: {JOURNALS}"
        ),
    ),
    Alert(
        name="JournalSlow",
        severity=AlertSeverity.WARNING,
        expr=(
            "histogram_quantile(0.99, sum without (instance)"
            ' (rate(orchestrator_journal_write_duration_seconds_bucket{operation="append"}[10m])))'
            " > <journal_append>\n"
            "and sum without (instance)"
            ' (rate(orchestrator_journal_write_duration_seconds_count{operation="append"}[10m])) > <least_rate>'
        ),
        wait="10m",
        summary="Writes to the {{ $labels.backend }} journal are slow.",
        description=(
            "1 % of the writes take {{ $value | humanizeDuration }} or longer. Every step of a run waits for such a"
            " write."
        ),
    ),
    Alert(
        name="JournalGrowing",
        severity=AlertSeverity.WARNING,
        # Over a period, not at an instant: a missed scrape must not restart the half hour.
        expr=(
            "last_over_time(orchestrator_journal_bytes[15m]) > <journal_size>\n"
            "and predict_linear(orchestrator_journal_bytes[6h], <journal_horizon_s>)\n"
            "  > <journal_growth> * last_over_time(orchestrator_journal_bytes[15m])"
        ),
        wait="30m",
        summary="The {{ $labels.backend }} journal of {{ $labels.instance }} grows fast.",
        description=(
            "The size of the journal is {{ $value | humanize1024 }}B, and it will grow by another half within a day."
        ),
    ),
    Alert(
        name="EventLoopBlocked",
        severity=AlertSeverity.CRITICAL,
        # Served by the thread of the exposition. Pages inside the server of the host die with the loop: TargetDown.
        expr="orchestrator_event_loop_age_seconds > <loop_blocked_s>",
        wait="1m",
        keep="2m",
        summary="The event loop of {{ $labels.instance }} does not move.",
        description=(
            "Nothing has run on the event loop of {{ $labels.instance }} for {{ $value | humanizeDuration }}: no run,"
            " no time limit, no request to its server."
        ),
    ),
    Alert(
        name="EventLoopLagHigh",
        severity=AlertSeverity.WARNING,
        # One block of seconds is one late wake-up among thousands: the share does not show it, the watchdog does.
        expr=(
            "histogram_quantile(0.99, rate(orchestrator_event_loop_lag_seconds_bucket[5m])) > <loop_lag>\n"
            "or increase(orchestrator_event_loop_blocked_total[30m]) > <blocks>"
        ),
        wait="5m",
        keep="10m",
        summary="The event loop of {{ $labels.instance }} is slow.",
        description=(
            "All runs of {{ $labels.instance }} share the event loop. 1 % of its wake-ups are late, or the watchdog"
            " logged its stacks several times within half an hour (loop.blocked in the log)."
        ),
    ),
    Alert(
        name="TransitionOverheadHigh",
        severity=AlertSeverity.INFO,
        expr=(
            "histogram_quantile(0.99,"
            " sum without (instance, agent) (rate(orchestrator_transition_overhead_seconds_bucket[10m])))"
            " > <overhead>"
        ),
        wait="15m",
        summary="Transitions of {{ $labels.machine }} are slower than expected.",
        description=(
            "1 % of the transitions of {{ $labels.machine }} take {{ $value | humanizeDuration }} or longer, without"
            " the time of their hooks."
        ),
    ),
    Alert(
        name="TelemetryDegraded",
        severity=AlertSeverity.WARNING,
        expr=(
            "sum without (component) (increase(orchestrator_telemetry_errors_total[10m])) > 0\n"
            "or increase(orchestrator_log_records_dropped_total[10m]) > 0\n"
            "or sum without (metric, label) (increase(orchestrator_label_overflow_total[10m])) > 0\n"
            "or increase(orchestrator_journal_read_failures_total[10m]) > 0"
        ),
        keep="10m",
        summary="Telemetry of {{ $labels.instance }} is incomplete.",
        description=(
            "An observer of {{ $labels.instance }} raised, log lines were dropped, label values were replaced by"
            " _other, or its journal could not be read. Alerts and dashboards may be wrong."
        ),
    ),
    Alert(
        name="TargetDown",
        severity=AlertSeverity.CRITICAL,
        expr='up{job=~"orchestrator.*"} == 0',
        wait="2m",
        summary="{{ $labels.instance }} does not answer.",
        description=(
            "Prometheus cannot scrape {{ $labels.instance }} of {{ $labels.job }}: the process has ended or hangs."
        ),
    ),
    Alert(
        name="MetricsAbsent",
        severity=AlertSeverity.CRITICAL,
        expr="absent(orchestrator_build_info)",
        wait="5m",
        summary="Prometheus has no metrics of any orchestrator process.",
        description="Either all processes have ended, or discovery finds no target.",
    ),
    Alert(
        name="Watchdog",
        severity=AlertSeverity.NONE,
        expr="vector(1)",
        summary="The alert path works.",
        description="This alert always fires. If its receiver does not get it, no other alert arrives.",
    ),
)
