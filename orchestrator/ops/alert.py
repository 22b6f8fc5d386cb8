"""Every alert, in the order of the rule file: about runs, about their parts, about the processes."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.ops.rule import JOURNAL, JOURNALS, Alert, AlertSeverity, age_of

_QUESTIONS = (
    "orchestrator_journal_oldest_update_timestamp_seconds\n"
    '  {status="parked", reason=~"approval|unknown_effect|undo_failed|input|questions"}'
)
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


_ANSWERED = (
    "sum without (instance, outcome, reason)"
    ' ({0}(orchestrator_runs_completed_total{{outcome=~"completed|partial"}}[30m]))'
)
_TOKENS_PER_RUN = "machine_agent_version:orchestrator_llm_tokens_per_runs:ratio_rate1h"

RUN_ALERTS = (
    *(_burn(objective, burn) for objective in OBJECTIVES for burn in BURNS),
    Alert(
        name="RunStuck",
        severity=AlertSeverity.CRITICAL,
        expr=(
            f"({age_of('orchestrator_oldest_run_state_entered_timestamp_seconds')})\n"
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
            f"({age_of('orchestrator_oldest_run_state_entered_timestamp_seconds')} > <run_age_s>)\n"
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
            f"({age_of('orchestrator_oldest_run_started_timestamp_seconds')})\n"
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
            f"(({age_of('orchestrator_last_transition_timestamp_seconds')})\n"
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
            # The smallest age: one wrong clock among its processes must not make a question older.
            f"min by (journal, machine, agent, reason) ({age_of(_QUESTIONS)})\n> <approval_age_s>"
        ),
        wait="5m",
        summary="A run of {{ $labels.machine }} (agent {{ $labels.agent }}) waits for an answer.",
        description=(
            # The index of a journal does not know whether an answer was posted.
            "The oldest question ({{ $labels.reason }}) was asked {{ $value | humanizeDuration }} ago. Nobody has"
            f" answered it, or no live engine has read the answer. Journal: {JOURNAL}"
        ),
    ),
    Alert(
        name="RunsWaitingForAgent",
        severity=AlertSeverity.WARNING,
        expr="max by (job, machine, agent) (orchestrator_journal_runs_waiting_for_agent) > 0",
        wait="15m",
        keep="5m",
        summary="Answered runs of {{ $labels.machine }} (agent {{ $labels.agent }}) wait for their agent.",
        description=(
            "{{ $value | humanize }} runs have the answer of a person, and no live engine has agent"
            " {{ $labels.agent }} with their version of {{ $labels.machine }}."
        ),
    ),
    Alert(
        name="AgentNotSucceeding",
        severity=AlertSeverity.WARNING,
        # By the journal, and not by a rate: it holds for an agent that runs once a night, and for one in `_other`.
        expr=(
            f"(max by (job, agent) ({age_of('orchestrator_agent_last_success_timestamp_seconds')})\n"
            "  > on (job, agent) max by (job, agent) (orchestrator_agent_success_within_seconds))\n"
            "or (max by (job, agent) (orchestrator_agent_attempts_since_success)\n"
            "  >= on (job, agent) max by (job, agent) (orchestrator_agent_attempts_limit))"
        ),
        wait="5m",
        summary="Agent {{ $labels.agent }} does not succeed any more.",
        description=(
            "No run of agent {{ $labels.agent }} has completed with an answer within the time, or within the number of"
            " runs, that `orchestrator metrics serve` was told."
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
            "{{ $value | humanize }} runs of {{ $labels.machine }} are open, and their process is dead or has lost its"
            f" lease. They make no progress until they are resumed. Journal: {JOURNAL}"
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
        name="NoAnswerRatioHigh",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance, outcome, reason)"
            ' (rate(orchestrator_runs_completed_total{reason=~"empty_answer|truncated|filtered|refused"}[30m]))\n'
            f"  / {_ANSWERED.format('rate')}) > <no_answers>\n"
            f"and {_ANSWERED.format('increase')} >= <least_runs>"
        ),
        wait="10m",
        summary="Runs of {{ $labels.machine }} (agent {{ $labels.agent }}) end without an answer.",
        description=(
            "{{ $value | humanizePercentage }} of the runs of {{ $labels.machine }} that completed have an answer that"
            " is empty, cut, filtered or a refusal."
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
    Alert(
        name="TokenRateHigh",
        severity=AlertSeverity.WARNING,
        expr="machine_agent:orchestrator_llm_tokens:rate15m > <token_ceiling>",
        wait="10m",
        summary="{{ $labels.machine }} (agent {{ $labels.agent }}) uses very many tokens.",
        description=(
            "{{ $labels.machine }} uses {{ $value | humanize }} tokens per second. This limit needs no earlier days to"
            " compare with: also a new agent has it."
        ),
    ),
    Alert(
        name="ReleaseUsesMoreTokens",
        severity=AlertSeverity.WARNING,
        # A version that was not there three hours ago, and the thriftiest of those that were there before.
        expr=(
            f"(({_TOKENS_PER_RUN} unless count_over_time({_TOKENS_PER_RUN}[3h] offset 3h))\n"
            "  / on (job, machine, agent) group_left ()"
            f" min by (job, machine, agent) (avg_over_time({_TOKENS_PER_RUN}[1d] offset 3h))) > <release_rise>\n"
            "and 3600 * machine_agent_version:orchestrator_runs_answered:rate1h >= <least_runs>"
        ),
        wait="15m",
        keep="6h",
        summary=(
            "Version {{ $labels.version }} of agent {{ $labels.agent }} ({{ $labels.machine }}) uses more tokens for a"
            " run than the one before."
        ),
        description=(
            "A completed run of version {{ $labels.version }} uses {{ $value | humanize }} times as many tokens as a"
            " run of the version before it."
        ),
    ),
    Alert(
        name="CostCeilingExceeded",
        severity=AlertSeverity.CRITICAL,
        expr=(
            "3600 * sum without (machine) (machine_agent_currency:orchestrator_llm_cost:rate15m)\n"
            "> on (job, agent) group_left () max by (job, agent) (orchestrator_cost_ceiling_per_hour)"
        ),
        wait="5m",
        keep="5m",
        summary="Agent {{ $labels.agent }} costs more than its ceiling.",
        description=(
            "Agent {{ $labels.agent }} costs {{ $value | humanize }} {{ $labels.currency }} an hour. Its ceiling is"
            " set in the program: Metrics(cost_ceilings=…)."
        ),
    ),
    Alert(
        name="LLMRequestsUnpriced",
        severity=AlertSeverity.WARNING,
        expr="sum without (instance) (increase(orchestrator_llm_requests_unpriced_total[1h])) > 0",
        wait="5m",
        keep="1h",
        summary="Requests of agent {{ $labels.agent }} to {{ $labels.model }} have no price.",
        description=(
            "{{ $value | humanize }} answers of {{ $labels.model }} within an hour have no known cost. They are in no"
            " figure of cost, and limits of cost do not count them."
        ),
    ),
)


# The errors of a journal have an alert of their own.
_FAILED = (
    "sum without (instance, from_state, event, reason)"
    ' (rate(orchestrator_transition_failures_total{reason!~"refused|cancelled|journal_error"}[5m]))'
)
_DONE = "sum without (instance, from_state, event, to_state) (rate(orchestrator_transitions_total[5m]))"
_UNDECLARED = 'orchestrator_transition_failures_total{reason=~"undeclared_edge|unknown_event"}'
_REGISTERED = 'tool!="_unregistered"'  # names that a model invents have an alert of their own

WORK_ALERTS = (
    Alert(
        name="TransitionFailureRatioHigh",
        severity=AlertSeverity.WARNING,
        expr=(
            f"({_FAILED}\n  / ({_FAILED}\n    + {_DONE})) > <failed_events>\n"
            f"and ({_FAILED} + {_DONE}) > <least_rate>"
        ),
        wait="5m",
        summary="Many events of {{ $labels.machine }} (agent {{ $labels.agent }}) fail.",
        description=(
            "{{ $value | humanizePercentage }} of the events of {{ $labels.machine }} were not committed, or a hook"
            " raised."
        ),
    ),
    Alert(
        name="UndeclaredTransition",
        severity=AlertSeverity.WARNING,
        # Such a series appears with its first event, and increase() does not see a first value: hence the second arm.
        expr=(f"increase({_UNDECLARED}[15m]) > 0\nor ({_UNDECLARED} > 0\n  unless {_UNDECLARED} offset 15m)"),
        keep="15m",
        summary="{{ $labels.machine }} (agent {{ $labels.agent }}) got an event that its table does not allow.",
        description=(
            "Event {{ $labels.event }} in {{ $labels.from_state }} of {{ $labels.machine }}: {{ $labels.reason }}."
            " Code and table do not match."
        ),
    ),
    Alert(
        name="GuardErrors",
        severity=AlertSeverity.WARNING,
        expr='sum without (instance) (increase(orchestrator_guard_evaluations_total{result="error"}[10m])) > 0',
        keep="10m",
        summary="Guard {{ $labels.guard }} of {{ $labels.machine }} (agent {{ $labels.agent }}) raised.",
        description=(
            "Guard {{ $labels.guard }} raised an exception. The event counts as refused, and the run fails."
        ),
    ),
    Alert(
        name="RetryStorm",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance, reason) (rate(orchestrator_retries_total[5m]))\n"
            "  / sum without (instance) (rate(orchestrator_attempts_total[5m]))) > <retries>\n"
            "and sum without (instance) (rate(orchestrator_attempts_total[5m])) > <least_rate>"
        ),
        wait="5m",
        keep="5m",
        summary="Many {{ $labels.operation }} calls of {{ $labels.machine }} (agent {{ $labels.agent }}) are retries.",
        description="{{ $value | humanizePercentage }} of the {{ $labels.operation }} attempts are retries.",
    ),
    Alert(
        name="RetriesExhausted",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance) (rate(orchestrator_retries_exhausted_total[10m]))\n"
            "  / sum without (instance) (rate(orchestrator_attempts_total[10m]))) > <given_up>\n"
            "and sum without (instance) (rate(orchestrator_attempts_total[10m])) > <least_rate>"
        ),
        wait="5m",
        summary=(
            "{{ $labels.operation }} calls of {{ $labels.machine }} (agent {{ $labels.agent }}) fail after all"
            " retries."
        ),
        description=(
            "{{ $value | humanizePercentage }} of the {{ $labels.operation }} attempts were the last of their call,"
            " and failed."
        ),
    ),
    Alert(
        name="ToolErrorRatioHigh",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance, outcome)"
            f' (rate(orchestrator_tool_calls_total{{outcome=~"error|timeout", {_REGISTERED}}}[10m]))\n'
            "  / sum without (instance, outcome)"
            f' (rate(orchestrator_tool_calls_total{{outcome!="cancelled", {_REGISTERED}}}[10m]))) > <tool_errors>\n'
            "and sum without (instance, outcome) (increase(orchestrator_tool_calls_total[10m])) >= <least_calls>"
        ),
        wait="5m",
        summary="Tool {{ $labels.tool }} of agent {{ $labels.agent }} fails.",
        description="{{ $value | humanizePercentage }} of the calls of {{ $labels.tool }} failed or timed out.",
    ),
    Alert(
        name="UnregisteredToolCalls",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance, outcome, tool)"
            ' (rate(orchestrator_tool_calls_total{tool="_unregistered"}[15m]))\n'
            "  / sum without (instance, outcome, tool) (rate(orchestrator_tool_calls_total[15m])))"
            " > <invented_tools>\n"
            "and sum without (instance, outcome, tool) (rate(orchestrator_tool_calls_total[15m])) > <least_rate>"
        ),
        wait="15m",
        summary="The model of agent {{ $labels.agent }} calls tools that do not exist.",
        description="{{ $value | humanizePercentage }} of the tool calls name a tool that the agent does not have.",
    ),
    Alert(
        name="LLMErrorRatioHigh",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance, outcome)"
            ' (rate(orchestrator_llm_requests_total{outcome!~"ok|cancelled"}[10m]))\n'
            "  / sum without (instance, outcome)"
            ' (rate(orchestrator_llm_requests_total{outcome!="cancelled"}[10m]))) > <llm_errors>\n'
            "and sum without (instance, outcome) (increase(orchestrator_llm_requests_total[10m])) >= <least_calls>"
        ),
        wait="5m",
        keep="5m",
        summary="Requests of agent {{ $labels.agent }} to {{ $labels.model }} fail.",
        description=(
            "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} ({{ $labels.provider }}) failed."
        ),
    ),
    Alert(
        name="LLMLatencyHigh",
        severity=AlertSeverity.WARNING,
        # The share above the bound of a bucket is known; a quantile between two bounds is a guess.
        expr=(
            "(1 - sum without (instance)"
            ' (rate(orchestrator_llm_request_duration_seconds_bucket{le="<llm_slow_after>"}[10m]))\n'
            "  / ignoring (le) group_left ()"
            " sum without (instance) (rate(orchestrator_llm_request_duration_seconds_count[10m])))"
            " > <llm_slow>\n"
            "and ignoring (le) sum without (instance)"
            " (increase(orchestrator_llm_request_duration_seconds_count[10m])) >= <least_calls>"
        ),
        wait="10m",
        summary="{{ $labels.model }} answers agent {{ $labels.agent }} slowly.",
        description=(
            "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} take longer than"
            " {{ $labels.le }} s."
        ),
    ),
)


_TARGET = "orchestrator_target_info"

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
            # By process: one bad disk among a hundred does not show in the sum.
            "histogram_quantile(0.99,"
            ' rate(orchestrator_journal_write_duration_seconds_bucket{operation="append"}[10m]))'
            " > <journal_append>\n"
            'and rate(orchestrator_journal_write_duration_seconds_count{operation="append"}[10m]) > <least_rate>'
        ),
        wait="10m",
        summary="Writes of {{ $labels.instance }} to the {{ $labels.backend }} journal are slow.",
        description=(
            "1 % of the writes take {{ $value | humanizeDuration }} or longer. Every step of a run waits for such a"
            f" write. Journal: {JOURNALS}"
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
        name="AbandonedWork",
        severity=AlertSeverity.WARNING,
        expr="orchestrator_abandoned_work > <abandoned>",
        wait="10m",
        summary="{{ $labels.kind }} {{ $labels.name }} of agent {{ $labels.agent }} does not end when it is cancelled.",
        description=(
            "{{ $value | humanize }} calls on {{ $labels.instance }} ignored their cancellation and still run. Each"
            " keeps a thread or a task, its memory and its connections."
        ),
    ),
    Alert(
        name="ClockSkew",
        severity=AlertSeverity.WARNING,
        # Of the scrape, and not time(): a minute between two scrapes is no skew.
        expr=(
            "abs(orchestrator_process_time_seconds - timestamp(orchestrator_process_time_seconds)) > <clock_skew>"
        ),
        wait="5m",
        summary="The clock of {{ $labels.instance }} is wrong.",
        description=(
            "The clocks of {{ $labels.instance }} and of Prometheus differ by {{ $value | humanizeDuration }}. The"
            " times in its log and its journal are as wrong. Alerts about ages use the clock of the process."
        ),
    ),
    Alert(
        name="DuplicateInstance",
        severity=AlertSeverity.WARNING,
        # Both were there ten minutes ago and are there now: processes that follow each other never are.
        expr=(
            f"count without (identity) (last_over_time({_TARGET}[10m])"
            f" and last_over_time({_TARGET}[10m] offset 10m)) > 1"
        ),
        wait="2m",
        keep="15m",
        summary="Several processes have the label instance={{ $labels.instance }}.",
        description=(
            "{{ $value | humanize }} processes of {{ $labels.job }} answer in turns under the label instance="
            "{{ $labels.instance }}. Their counters are mixed: rates are too high and restarts are counted that were"
            " none."
        ),
    ),
    Alert(
        name="AgentsFolded",
        severity=AlertSeverity.WARNING,
        # Of a while: a process that has just started may have none of them yet.
        expr=(
            "sum without (machine, agent, origin)"
            ' (max_over_time(orchestrator_runs_started_total{agent="_other"}[15m])) > 0'
        ),
        wait="5m",
        summary="{{ $labels.instance }} has more agents than series of their own.",
        description=(
            "{{ $value | humanize }} runs on {{ $labels.instance }} are of agents that share the label _other: alerts"
            " do not name them. Raise the number: Metrics(agents=100), and `orchestrator metrics serve --agents 100`."
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


ALERTS: tuple[Alert, ...] = (*RUN_ALERTS, *WORK_ALERTS, *PROCESS_ALERTS)

GROUPS: dict[str, tuple[Alert, ...]] = {
    "orchestrator-runs": RUN_ALERTS,
    "orchestrator-work": WORK_ALERTS,
    "orchestrator-processes": PROCESS_ALERTS,
}
"""Name of the group in the rule file -> its alerts."""

NAMES = tuple(dict.fromkeys(alert.full_name for alert in ALERTS))
"""Each name once: there are as many runbooks."""
