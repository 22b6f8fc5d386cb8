"""Define every metric as a row of one table, the source of instruments, documentation and dashboard checks.

Names and labels are a contract with alerts and dashboards: rows are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import ERROR_KINDS
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.kernel.record import (
    ABANDONED_KINDS,
    FAILURES,
    OPERATIONS,
    RECOVERIES,
    REJECTIONS,
    ROLLBACKS,
    AdmissionRejected,
    BudgetChecked,
    EventFailed,
    GuardEvaluated,
    JournalWrite,
    LLMCall,
    OperationAttempt,
    RolledBack,
    RunAdmitted,
    RunCompleted,
    RunParked,
    RunRecovered,
    RunStarted,
    TableRejected,
    ToolExecution,
    Transition,
    WorkAbandoned,
)
from orchestrator.telemetry.metric import PREFIX, Metric, MetricKind, MetricSource, counter, gauge, histogram
from orchestrator.telemetry.scraped import PARKINGS, PUSHED, SCRAPED, STORED

__all__ = [
    "BACKENDS",
    "BUDGETS",
    "BUDGET_OF",
    "CATALOGUE",
    "NO_BUDGETS",
    "PREFIX",
    "RETRY_REASONS",
    "ROWS",
    "Metric",
    "MetricKind",
    "MetricSource",
]

_RUN = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_STATE = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOOL = (0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LLM = (0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84)
_WAIT = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600)
_OVERHEAD = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01)
_FIRST_TOKEN = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24)
_LAG = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_JOURNAL = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)

_OUTCOMES = tuple(Outcome)
BUDGETS = tuple(sorted(REASONS[Outcome.BUDGET_EXCEEDED]))
BUDGET_OF = {
    "iterations": "max_iterations",
    "refinements": "max_iterations",
    "elapsed": "time",
    "tool_cap": "tool_calls",
    "affordable": "tokens",
    "host_budget": "tokens",
}
"""Guard -> its budget, if the two have different names."""
NO_BUDGETS = frozenset(("no_progress", "repeated_success", "restarts"))
"""Guards that may end a run although no budget is used up."""
RETRY_REASONS = (
    "rate_limited",
    "timeout",
    "server_error",
    "connection",
    "schema_invalid",
    "truncated",
    "other",
)
BACKENDS = ("memory", "sqlite", "postgres")
_DIRECTIONS = ("input", "output")
INVALID = ("invalid_args", "duplicate_keys", "unstable_args")
"""Outcomes of calls with refused arguments: no tool ran."""


_OBSERVED: tuple[Metric, ...] = (
    # ---- runs ----
    counter(
        "runs_started_total",
        "machine agent origin",
        "Runs that entered their graph.",
        RunStarted,
        origin=("new", "resumed"),
    ),
    counter(
        "runs_completed_total",
        "machine agent outcome reason",
        "Runs that reached a terminal state; the outcome determines which reasons are possible.",
        RunCompleted,
        zero=False,  # not every combination: only those of kernel.outcome.REASONS
        outcome=_OUTCOMES,
        reason=sorted(set().union(*REASONS.values())),
    ),
    counter(
        "runs_suspended_total",
        "machine agent reason",
        "Runs that a process released before their end: they wait for a person or an event, or to be resumed.",
        RunParked,
        reason=PARKINGS,
    ),
    counter(
        "runs_rejected_total",
        "machine agent reason",
        "Runs that an engine did not accept, or that could not begin: without the journal, or with an invalid table.",
        AdmissionRejected,
        reason=REJECTIONS,
    ),
    counter(
        "tables_rejected_total",
        "machine agent",
        "Changes of a live machine that left an invalid table, which stops its runs until it is valid again.",
        TableRejected,
    ),
    histogram(
        "run_queue_wait_seconds",
        "machine agent",
        _WAIT,
        "Time from submitting a run to an engine, or queueing it for workers, until its start.",
        RunAdmitted,
    ),
    counter(
        "recoveries_total",
        "machine agent outcome",
        "Runs that their last owner had left open, by the outcome of their recovery.",
        RunRecovered,
        outcome=RECOVERIES,
    ),
    counter(
        "rollbacks_total",
        "machine agent outcome",
        "Rollbacks of effects, by result.",
        RolledBack,
        outcome=ROLLBACKS,
    ),
    counter(
        "work_abandoned_total",
        "machine agent kind",
        "Tools, models and other host code that ignored a cancellation and was abandoned.",
        WorkAbandoned,
        kind=ABANDONED_KINDS,
    ),
    histogram(
        "run_duration_seconds",
        "machine agent outcome",
        _RUN,
        "Time from the start of a run to its end.",
        RunCompleted,
        outcome=_OUTCOMES,
    ),
    histogram(
        "run_iterations", "machine agent", (1, 2, 3, 5, 8, 13, 21, 34, 55), "Loops per run.", RunCompleted
    ),
    histogram(
        "iteration_duration_seconds",
        "machine agent",
        _RUN,
        "Time of one loop: from entering its first state until that state is entered again or the run completes.",
        Transition,
    ),
    histogram(
        "context_used_ratio",
        "machine agent",
        (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1),
        "Share of the model's context that a request and its answer filled.",
        LLMCall,
    ),
    counter(
        "runs_slow_total",
        "machine agent",
        "Runs with an answer that took longer than the objective of their agent; absent without an objective.",
        RunCompleted,
        zero=False,
    ),
    counter("restarts_total", "machine agent", "Restarts of a loop, counted at run end.", RunCompleted),
    counter(
        "compactions_total",
        "machine agent outcome",
        "Replacements of older messages by a summary.",
        OperationAttempt,
        outcome=("ok", "error"),
    ),
    # ---- states and transitions ----
    gauge(
        "last_transition_timestamp_seconds",
        "machine agent",
        "Unix time of the last committed transition.",
        Transition,
    ),
    counter(
        "transitions_total",
        "machine agent from_state event to_state",
        "Committed transitions.",
        Transition,
        zero=False,  # not every combination: only the edges of the graph
    ),
    counter(
        "transition_failures_total",
        "machine agent from_state event reason",
        "Events that did not commit, and hooks that raised.",
        EventFailed,
        zero=False,  # the likely ones exist at 0, undeclared edges appear when they happen
        reason=FAILURES,
    ),
    histogram(
        "state_duration_seconds",
        "machine agent state",
        _STATE,
        "Time in a state, observed on leaving it.",
        Transition,
    ),
    histogram(
        "transition_overhead_seconds",
        "machine agent",
        _OVERHEAD,
        "Time that the kernel itself took for a transition, without hooks and journal.",
        Transition,
    ),
    counter("state_entries_total", "machine agent state", "Entries of a state.", Transition, RunStarted),
    counter(
        "guard_evaluations_total",
        "machine agent guard result",
        "Guards asked.",
        GuardEvaluated,
        BudgetChecked,
        result=("allow", "deny", "error"),
    ),
    # ---- retries and budgets ----
    counter(
        "attempts_total",
        "machine agent operation",
        "Tries of operations that may be retried, including first tries.",
        LLMCall,
        ToolExecution,
        OperationAttempt,
        operation=OPERATIONS,
    ),
    counter(
        "retries_total",
        "machine agent operation reason",
        "Retries, by the failure before them.",
        OperationAttempt,
        operation=OPERATIONS,
        reason=RETRY_REASONS,
    ),
    counter(
        "retries_exhausted_total",
        "machine agent operation",
        "Operations that failed after their last try.",
        OperationAttempt,
        operation=OPERATIONS,
    ),
    histogram(
        "budget_consumed_ratio",
        "machine agent budget",
        (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1, 1.25),
        "Share of a limit that a run had used when it ended.",
        RunCompleted,
        budget=BUDGETS,
    ),
    counter(
        "budget_exceeded_total",
        "machine agent budget",
        "Checks that found a budget used up.",
        BudgetChecked,
        EventFailed,
        budget=BUDGETS,
    ),
    # ---- models and tools ----
    counter(
        "llm_requests_total",
        "agent provider model outcome",
        "Requests to a model, counting each try.",
        LLMCall,
        outcome=("ok", "cancelled", *sorted(ERROR_KINDS)),
    ),
    histogram(
        "llm_request_duration_seconds",
        "agent provider model",
        _LLM,
        "Time of one request to a model.",
        LLMCall,
    ),
    histogram(
        "llm_rate_limit_wait_seconds",
        "agent provider model",
        _WAIT,
        "Time that one request waited for the process's own rate limiter.",
        LLMCall,
    ),
    histogram(
        "llm_time_to_first_token_seconds",
        "agent provider model",
        _FIRST_TOKEN,
        "Time until the first token of a streamed answer.",
        LLMCall,
    ),
    counter(
        "llm_unknown_finish_reasons_total",
        "agent provider model",
        "Answers with a finish reason that no known vendor gives; the journal has the word.",
        LLMCall,
    ),
    counter(
        "llm_tokens_total",
        "machine agent provider model direction",
        "Billable tokens.",
        LLMCall,
        direction=_DIRECTIONS,
    ),
    counter(
        "llm_cached_input_tokens_total",
        "agent provider model",
        "Input tokens read from the provider's cache; a part of llm_tokens_total.",
        LLMCall,
    ),
    counter(
        "llm_reasoning_output_tokens_total",
        "agent provider model",
        "Output tokens of hidden reasoning; a part of llm_tokens_total.",
        LLMCall,
    ),
    counter(
        "llm_unreported_usage_total",
        "agent provider model",
        "Answers without usage from their server; they are not in llm_tokens_total, and limits count estimates.",
        LLMCall,
    ),
    counter(
        "state_tokens_total",
        "machine agent state direction",
        "Tokens by the state that spent them.",
        LLMCall,
        direction=_DIRECTIONS,
    ),
    counter(
        "stage_tokens_total",
        "machine agent state",
        "Tokens that the stage of a state reported, including those of its child runs (which count there, too).",
        Transition,
    ),
    counter(
        "tool_calls_total",
        "agent tool outcome",
        "Tool calls; `_unregistered` is a name that the model invented.",
        ToolExecution,
        outcome=("ok", "result_unreadable", "error", "timeout", "retry", "denied", *INVALID, "cancelled"),
    ),
    histogram("tool_call_duration_seconds", "agent tool", _TOOL, "Time of one tool call.", ToolExecution),
    # ---- journal ----
    histogram(
        "journal_write_duration_seconds",
        "backend operation",
        _JOURNAL,
        "Time until records were durable.",
        JournalWrite,
        operation=("append", "snapshot"),
    ),
    counter(
        "journal_write_failures_total",
        "backend reason",
        "Records that could not be made durable.",
        JournalWrite,
        reason=("io", "locked", "full", "corrupt", "other"),
    ),
    gauge(
        "journal_last_success_timestamp_seconds",
        "backend",
        "Unix time of the last durable record.",
        JournalWrite,
    ),
    # ---- the process ----
    histogram(
        "event_loop_lag_seconds",
        "",
        _LAG,
        "Delay of the watchdog's task beyond its scheduled wake-up.",
    ),
    counter(
        "event_loop_blocked_total",
        "",
        "Times the event loop was blocked for so long that the watchdog dumped all stacks.",
    ),
    # ---- people ----
    counter(
        "notifications_total",
        "channel outcome",
        "Attempts to notify a person of a question; `withdrawn`: it was answered before an attempt.",
        channel=("webhook", "command", "function", "other"),
        outcome=("delivered", "failed", "withdrawn"),
    ),
    # ---- telemetry itself ----
    counter(
        "telemetry_errors_total",
        "component",
        "Exceptions inside telemetry; none of them failed a run.",
        component=("metrics", "logs", "tracing", "collector", "observer"),
    ),
    counter(
        "label_overflow_total",
        "metric label",
        "Label values folded into `_other` to keep the number of series bounded.",
        zero=False,  # pairs, not every combination: labels.FOLDED
    ),
)

CATALOGUE: tuple[Metric, ...] = (*_OBSERVED, *SCRAPED, *STORED, *PUSHED)

ROWS: Mapping[str, Metric] = {metric.name: metric for metric in CATALOGUE}
"""The same rows by name."""
