"""Alerts about runs: they fail, hang, wait, or are interrupted."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.ops.rule import JOURNAL, Alert, AlertSeverity

_NOT_UNDONE = 'orchestrator_rollbacks_total{outcome="failed"}'


class Burn(NamedTuple):
    """One pair of windows. A burn of 1 uses up the error budget of 30 days in 30 days."""

    severity: AlertSeverity
    long: str
    short: str
    factor: float
    wait: str


BURNS = (
    Burn(AlertSeverity.CRITICAL, "1h", "5m", 14.4, "2m"),  # 2 % of the budget in an hour
    Burn(AlertSeverity.CRITICAL, "6h", "30m", 6, "15m"),  # 5 % in six hours
    Burn(AlertSeverity.WARNING, "1d", "2h", 3, "1h"),  # 10 % in a day
    Burn(AlertSeverity.WARNING, "3d", "6h", 1, "3h"),  # 10 % in three days
)


class Objective(NamedTuple):
    """An alert about the share of bad runs: what the share is, and what it is compared with."""

    name: str
    ratio: str
    """The recorded share, without its window."""
    budget: str
    """Member of Thresholds: the share that may be bad."""
    least: str
    """Number of runs within a window, as a template."""
    summary: str
    bad: str


_ENDED = (
    "sum without (instance, outcome, reason)"
    ' (increase(orchestrator_runs_completed_total{outcome!~"cancelled|rejected"}[%s]))'
)
_REFUSED = "sum without (instance, reason) (increase(orchestrator_runs_rejected_total[%s]))"

OBJECTIVES = (
    Objective(
        "RunErrorBudgetBurn",
        "machine_agent:orchestrator_runs_failed_per_runs:ratio_rate",
        "<error_budget>",
        f"({_ENDED} + ({_REFUSED} or 0 * {_ENDED}))",
        "Runs of {{ $labels.machine }} (agent {{ $labels.agent }}) fail faster than the objective allows.",
        "failed, made no progress or were refused",
    ),
    Objective(
        "RunLatencyBudgetBurn",
        "machine_agent:orchestrator_runs_slow_per_runs:ratio_rate",
        "<slow_budget>",
        _ENDED,
        "Runs of {{ $labels.machine }} (agent {{ $labels.agent }}) are slower than the objective allows.",
        "took longer than the objective of their agent",
    ),
)


def _burn(objective: Objective, burn: Burn) -> Alert:
    limit = f"({burn.factor:g} * {objective.budget})"
    times = "" if burn.factor == 1 else f"{burn.factor:g} times "
    ratio = objective.ratio
    return Alert(
        name=objective.name,
        severity=burn.severity,
        expr=(
            f"({ratio}{burn.long} > {limit}\n"
            f"  and {ratio}{burn.short} > {limit})\n"
            f"and {objective.least.replace('%s', burn.long)} >= <least_runs>"
        ),
        wait=burn.wait,
        summary=objective.summary,
        description=(
            f"{{{{ $value | humanizePercentage }}}} of the runs of {{{{ $labels.machine }}}} {objective.bad} within"
            f" {burn.long}: more than {times}the share that the objective allows."
        ),
        labels={"long": burn.long, "short": burn.short},
    )


RUN_ALERTS = (
    *(_burn(objective, burn) for objective in OBJECTIVES for burn in BURNS),
    Alert(
        name="RunStuck",
        severity=AlertSeverity.CRITICAL,
        expr=(
            "(time() - orchestrator_oldest_run_state_entered_timestamp_seconds)\n"
            "> on (job, instance, machine, agent, state) (<stuck_factor> * orchestrator_state_timeout_seconds)"
        ),
        wait="1m",
        keep="5m",
        summary="A run of {{ $labels.machine }} (agent {{ $labels.agent }}) is stuck in {{ $labels.state }}.",
        description=(
            "The oldest run in {{ $labels.state }} on {{ $labels.instance }} has been there for"
            " {{ $value | humanizeDuration }}. The time limit of the state should have ended it earlier."
        ),
    ),
    Alert(
        name="RunAgingWithoutTimeout",
        severity=AlertSeverity.WARNING,
        expr=(
            "(time() - orchestrator_oldest_run_state_entered_timestamp_seconds > <run_age_s>)\n"
            "unless on (job, instance, machine, agent, state) orchestrator_state_timeout_seconds"
        ),
        wait="5m",
        summary=(
            "A run of {{ $labels.machine }} (agent {{ $labels.agent }}) stays long in {{ $labels.state }},"
            " which has no time limit."
        ),
        description=(
            "The oldest run in {{ $labels.state }} on {{ $labels.instance }} has been there for"
            " {{ $value | humanizeDuration }}. The state has no time limit that would end it."
        ),
    ),
    Alert(
        name="RunOverdue",
        severity=AlertSeverity.WARNING,
        expr=(
            "(time() - orchestrator_oldest_run_started_timestamp_seconds)\n"
            "> on (job, instance, machine, agent) (<overdue_factor> * orchestrator_run_timeout_seconds)"
        ),
        wait="2m",
        summary="A run of {{ $labels.machine }} (agent {{ $labels.agent }}) is active after its deadline.",
        description=(
            "The oldest run on {{ $labels.instance }} started {{ $value | humanizeDuration }} ago. Its deadline has"
            " passed and did not end it."
        ),
    ),
    Alert(
        name="EngineStalled",
        severity=AlertSeverity.CRITICAL,
        expr=(
            "((time() - orchestrator_last_transition_timestamp_seconds)\n"
            "  > on (job, instance, machine, agent)"
            " (<stalled_factor> * max without (state) (orchestrator_state_timeout_seconds)))\n"
            "and on (job, instance, machine, agent) sum without (state) (orchestrator_runs_active) > 0"
        ),
        wait="2m",
        summary=(
            "{{ $labels.machine }} (agent {{ $labels.agent }}) on {{ $labels.instance }} has runs and makes no"
            " transitions."
        ),
        description=(
            "Runs are active on {{ $labels.instance }}, and their last transition was"
            " {{ $value | humanizeDuration }} ago."
        ),
    ),
    Alert(
        name="ApprovalWaiting",
        severity=AlertSeverity.WARNING,
        expr=(
            # Of the journal, which each of its processes reports: a run waits on when its process is dead.
            "time() - min by (journal, machine, agent, reason) (orchestrator_journal_oldest_update_timestamp_seconds\n"
            '  {status="parked", reason=~"approval|unknown_effect|undo_failed|input|questions"})\n'
            "> <approval_age_s>"
        ),
        wait="5m",
        summary="A run of {{ $labels.machine }} (agent {{ $labels.agent }}) waits for a person.",
        description=(
            "The oldest question ({{ $labels.reason }}) has been open for {{ $value | humanizeDuration }}."
            f" The run does not continue until a person answers. Journal: {JOURNAL}"
        ),
    ),
    Alert(
        name="RecoveryLoop",
        severity=AlertSeverity.WARNING,
        # Not increase(recoveries): a process recovers before its first scrape, and one deployment recovers everything.
        expr=(
            "(sum without (outcome) (orchestrator_recoveries_total) > 0\n"
            "  and on (job, instance) changes(process_start_time_seconds[1h]) >= <restarts>)\n"
            'or max by (journal, machine, agent) (orchestrator_journal_runs{status="parked", reason="poison"}) > 0'
        ),
        wait="1m",
        keep="10m",
        summary="Runs of {{ $labels.machine }} (agent {{ $labels.agent }}) are resumed again and again.",
        description=(
            "Either the process has started several times within an hour and resumed runs each time, or runs were"
            " parked because several resumes made no progress ({{ $value | humanize }} now)."
        ),
    ),
    Alert(
        name="RunsOrphaned",
        severity=AlertSeverity.WARNING,
        # The maximum and not the sum: each process with the journal reports the same runs.
        expr='max by (journal, machine, agent) (orchestrator_journal_runs{status="orphaned"}) > 0',
        wait="15m",
        keep="5m",
        summary="Runs of {{ $labels.machine }} (agent {{ $labels.agent }}) have no living owner.",
        description=(
            "{{ $value | humanize }} runs of {{ $labels.machine }} are open, and their process is dead. They make no"
            f" progress until they are resumed. Journal: {JOURNAL}"
        ),
    ),
    Alert(
        name="RollbackFailed",
        severity=AlertSeverity.CRITICAL,
        # A rollback after a crash may fail before the process is scraped: increase() does not see a first value.
        expr=(
            f"sum without (instance) (increase({_NOT_UNDONE}[15m]) > 0\n"
            f"  or ({_NOT_UNDONE} > 0\n    unless {_NOT_UNDONE} offset 15m))"
        ),
        keep="15m",
        summary="A rollback of {{ $labels.machine }} (agent {{ $labels.agent }}) failed.",
        description=(
            "Effects of a run of {{ $labels.machine }} could not be undone. Files are as the run left them, or partly"
            " restored."
        ),
    ),
    Alert(
        name="BudgetExceededHigh",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance, outcome, reason)"
            ' (rate(orchestrator_runs_completed_total{outcome="budget_exceeded"}[30m]))\n'
            "  / sum without (instance, outcome, reason)"
            ' (rate(orchestrator_runs_completed_total{outcome!~"cancelled|rejected"}[30m]))) > <cut_off>\n'
            "and sum without (instance, outcome, reason)"
            " (increase(orchestrator_runs_completed_total[30m])) >= <least_runs>"
        ),
        wait="10m",
        summary="Limits cut off runs of {{ $labels.machine }} (agent {{ $labels.agent }}).",
        description=(
            "{{ $value | humanizePercentage }} of the runs of {{ $labels.machine }} ended at a limit, without an"
            " answer."
        ),
    ),
    Alert(
        name="BudgetHeadroomLow",
        severity=AlertSeverity.INFO,
        expr=(
            "(1 - sum without (instance, le)"
            ' (rate(orchestrator_budget_consumed_ratio_bucket{le="0.9"}[1h]))\n'
            "  / sum without (instance) (rate(orchestrator_budget_consumed_ratio_count[1h]))) > <near_limit>\n"
            "and sum without (instance) (increase(orchestrator_budget_consumed_ratio_count[1h])) >= <least_runs>"
        ),
        wait="30m",
        summary="Runs of {{ $labels.machine }} (agent {{ $labels.agent }}) come near their {{ $labels.budget }} limit.",
        description=(
            "{{ $value | humanizePercentage }} of the runs of {{ $labels.machine }} used more than 90 % of"
            " {{ $labels.budget }}."
        ),
    ),
    Alert(
        name="TokenBurnAnomaly",
        severity=AlertSeverity.WARNING,
        expr=(
            "machine_agent:orchestrator_llm_tokens:rate15m > <least_tokens>\n"
            "and machine_agent:orchestrator_llm_tokens:rate15m\n"
            # Of a week, and not the mean of a day: the start of office hours is no anomaly, not on a Monday either.
            "  > <token_rise> * quantile_over_time(0.95,"
            " machine_agent:orchestrator_llm_tokens:rate15m[7d:15m] offset 1h)"
        ),
        wait="15m",
        summary="{{ $labels.machine }} (agent {{ $labels.agent }}) uses far more tokens than in its busiest hours.",
        description=(
            "{{ $labels.machine }} uses {{ $value | humanize }} tokens per second, several times as many as in"
            " the busiest twentieth of the last week."
        ),
    ),
)
