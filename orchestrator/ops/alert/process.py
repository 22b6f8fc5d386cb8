"""Alerts about the processes: capacity, journal, event loop, telemetry itself."""

from __future__ import annotations

from orchestrator.ops.rule import Alert, AlertSeverity

PROCESS_ALERTS = (
    Alert(
        name="QueueSaturated",
        severity=AlertSeverity.WARNING,
        # By process: the machines of one engine share its slots.
        expr=(
            "(sum without (machine, state) (orchestrator_runs_active)\n"
            "  >= max without (machine) (orchestrator_run_slots))\n"
            "and sum without (machine) (orchestrator_runs_queued) > 0"
        ),
        wait="15m",
        summary="All slots of {{ $labels.instance }} are taken and runs queue up.",
        description="{{ $value | humanize }} runs on {{ $labels.instance }} hold every slot while others wait.",
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
        summary="Runs of {{ $labels.machine }} wait long for a slot.",
        description=(
            "One run in twenty of {{ $labels.machine }} waits {{ $value | humanizeDuration }} or longer to start."
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
            "Records could not be made durable on {{ $labels.instance }}: runs end as failed, and what they did"
            " last may not be known after a restart."
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
            "One write in a hundred takes {{ $value | humanizeDuration }} or longer; every step of a run waits for"
            " such writes."
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
            "The journal holds {{ $value | humanize1024 }}B and will hold half as much again within a day."
        ),
    ),
    Alert(
        name="EventLoopLagHigh",
        severity=AlertSeverity.WARNING,
        # One block of minutes is one late wake-up among thousands: the share does not show it, the watchdog does.
        expr=(
            "histogram_quantile(0.99, rate(orchestrator_event_loop_lag_seconds_bucket[5m])) > <loop_lag>\n"
            "or increase(orchestrator_event_loop_blocked_total[10m]) > 0"
        ),
        wait="5m",
        keep="10m",
        summary="The event loop of {{ $labels.instance }} is blocked.",
        description=(
            "Something blocks the loop that all runs of {{ $labels.instance }} share: one wake-up in a hundred comes"
            " late, or the loop stood still until the watchdog told where (loop.blocked in the log)."
        ),
    ),
    Alert(
        name="TransitionOverheadHigh",
        severity=AlertSeverity.INFO,
        expr=(
            "histogram_quantile(0.99,"
            " sum without (instance) (rate(orchestrator_transition_overhead_seconds_bucket[10m])))"
            " > <overhead>"
        ),
        wait="15m",
        summary="Transitions of {{ $labels.machine }} cost more than they should.",
        description=(
            "One transition in a hundred of {{ $labels.machine }} takes {{ $value | humanizeDuration }} or longer"
            " without the time of its hooks."
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
        summary="{{ $labels.instance }} tells less than happens.",
        description=(
            "Telemetry of {{ $labels.instance }} raised, lost log lines, folded label values, or could not read its"
            " journal: what is seen of it is not complete."
        ),
    ),
    Alert(
        name="TargetDown",
        severity=AlertSeverity.CRITICAL,
        expr='up{job=~"orchestrator.*"} == 0',
        wait="2m",
        summary="{{ $labels.instance }} does not answer.",
        description=(
            "Prometheus cannot scrape {{ $labels.instance }} of {{ $labels.job }}: the process is gone or hangs."
        ),
    ),
    Alert(
        name="MetricsAbsent",
        severity=AlertSeverity.CRITICAL,
        expr="absent(orchestrator_build_info)",
        wait="5m",
        summary="No orchestrator is seen at all.",
        description="No process anywhere exposes orchestrator metrics: all are gone, or discovery finds none.",
    ),
    Alert(
        name="Watchdog",
        severity=AlertSeverity.NONE,
        expr="vector(1)",
        summary="The alert path works.",
        description="This alert always fires. When its receiver hears nothing, alerts do not arrive.",
    ),
)
