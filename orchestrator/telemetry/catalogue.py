"""Define every metric as a row of one table, the source of instruments, documentation and dashboard checks.

Names and labels are a contract with alerts and dashboards: rows are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from orchestrator.errors import ERROR_KINDS
from orchestrator.kernel.fact import (
    ABANDONED_KINDS,
    BRANCHES,
    FAILURES,
    OPERATIONS,
    RECOVERIES,
    REJECTIONS,
    ROLLBACKS,
    AdmissionRejected,
    AnswerLost,
    BranchEnded,
    BudgetChecked,
    EventFailed,
    GuardEvaluated,
    HandedOver,
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
from orchestrator.kernel.journal import ORPHANED, PARKED, RUNNING
from orchestrator.kernel.outcome import REASONS, Outcome

PREFIX = "orchestrator_"


class MetricKind(StrEnum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class MetricSource(StrEnum):
    """The source of a metric's values."""

    OBSERVED = "observed"
    """An instrument, updated by facts."""
    SCRAPED = "scraped"
    """The collector, from the state at a scrape."""
    STORED = "stored"
    """`orchestrator metrics serve`, from a journal; no process with agents has it."""
    PUSHED = "pushed"
    """A batch job, which pushes it at its end; no scrape has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row. `name` is without PREFIX."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str
    fed_by: tuple[type, ...] = ()
    """The facts that update it; empty if code counts directly."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without +Inf."""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label -> its closed values, for labels that no graph, tool list or model name defines."""
    zero: bool = True
    """Whether the series of every combination of declared values exist, at 0, from the declaration on."""
    made: MetricSource = MetricSource.OBSERVED


def counter(
    name: str,
    labels: str,
    text: str,
    *fed_by: type,
    zero: bool = True,
    made: MetricSource = MetricSource.OBSERVED,
    **values: Iterable[str],
) -> Metric:
    """Return the row of a counter; `labels` are separated by blanks, `values` closes some of them."""
    return Metric(
        name=name,
        kind=MetricKind.COUNTER,
        labels=tuple(labels.split()),
        help=text,
        fed_by=fed_by,
        values=closed_sets(values),
        zero=zero,
        made=made,
    )


def gauge(
    name: str,
    labels: str,
    text: str,
    *fed_by: type,
    zero: bool = False,
    made: MetricSource = MetricSource.OBSERVED,
    **values: Iterable[str],
) -> Metric:
    """Return the row of a gauge. It is absent until it has a value.

    A timestamp that started at 0 would read as "half a century ago" and fire an alert.
    """
    return Metric(
        name=name,
        kind=MetricKind.GAUGE,
        labels=tuple(labels.split()),
        help=text,
        fed_by=fed_by,
        values=closed_sets(values),
        zero=zero,
        made=made,
    )


def histogram(
    name: str, labels: str, buckets: tuple[float, ...], text: str, *fed_by: type, **values: Iterable[str]
) -> Metric:
    """Return the row of a histogram."""
    return Metric(
        name=name,
        kind=MetricKind.HISTOGRAM,
        labels=tuple(labels.split()),
        help=text,
        fed_by=fed_by,
        buckets=buckets,
        values=closed_sets(values),
    )


def closed_sets(values: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Return label -> values as plain text."""
    return {label: tuple(str(value) for value in closed) for label, closed in values.items()}


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
    _gauge(
        "abandoned_work",
        "machine agent kind name",
        "Tools, models and other host code that ignored a cancellation, was abandoned, and still runs.",
        kind=ABANDONED_KINDS,
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
    _gauge(
        "process_time_seconds",
        "",
        "Unix time of the process at the scrape: ages of its timestamps are differences from this clock.",
        zero=True,
    ),
    _info(
        "target_info",
        "identity",
        "Identity of what was scraped: of a process, or of the folder that several workers share; always 1.",
    ),
    _info("build_info", "version python", "Versions of the running software; always 1."),
    _info(
        "machine_info",
        "machine version definition",
        "Definition of a machine in this process, by the first digits of its fingerprint; always 1.",
    ),
    _info(
        "agent_info",
        "agent version definition",
        "Version of an agent in this process, `_several` if it has more than one, and the first digits of the "
        "fingerprint of its graph; always 1, one row for each agent.",
    ),
    _info(
        "llm_currency_info",
        "machine agent currency",
        "Currency of an agent's price table; always 1, absent without prices. Costs in two currencies cannot be added.",
    ),
    _gauge(
        "cost_ceiling_per_hour",
        "agent",
        "Cost of an hour that the host accepts, in the currency of the price table; absent without a ceiling.",
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
    _stored(
        "journal_runs_waiting_for_agent",
        "machine agent",
        "Parked runs with an answer that no live engine reads: none has their agent, or its version of the graph.",
    ),
    _stored(
        "agent_last_success_timestamp_seconds",
        "agent",
        "Unix time of the end of an agent's last run that completed with an answer; without one, of the start of its "
        "first run. Agents are not capped.",
    ),
    _stored(
        "agent_attempts_since_success",
        "agent",
        "Runs of an agent that have ended since then, without those that people stopped.",
    ),
    _stored(
        "agent_success_within_seconds",
        "agent",
        "Time within which an agent should succeed; absent if it is not set.",
    ),
    _stored(
        "agent_attempts_limit",
        "agent",
        "Number of runs without a success from which on an alert fires; absent if it is not set.",
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

_RUN = (1, 5, 30, 60, 300, 600, 1800, 3600)
_STATE = (0.01, 0.1, 1, 5, 30, 120, 600)
_TOOL = (0.01, 0.1, 0.5, 2.5, 10, 60)
_LLM = (0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84)
_WAIT = (0.1, 1, 10, 60, 300)
_OVERHEAD = (0.00005, 0.0001, 0.0005, 0.001, 0.0025, 0.01)
_FIRST_TOKEN = (0.08, 0.32, 1.28, 2.56, 10.24)
_LAG = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_JOURNAL = (0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1, 0.5, 2.5)

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
NO_BUDGETS = frozenset(("no_progress", "repeated_handoff", "repeated_success", "restarts"))
"""Guards that may end a run although no budget is used up."""
RETRY_REASONS = (
    "rate_limited",
    "timeout",
    "server_error",
    "connection",
    "schema_invalid",
    "truncated",
    "guardrail",
    "other",
)
RETRIED: Mapping[str, tuple[str, ...]] = {
    "llm": ("rate_limited", "timeout", "server_error", "connection", "other"),
    "completion": ("schema_invalid", "truncated", "guardrail", "other"),
}
"""Operation -> reasons of its retries: series of these pairs exist from the start."""
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
        "branches_total",
        "agent state outcome",
        "Branches of a state, by outcome.",
        BranchEnded,
        outcome=BRANCHES,
        zero=False,
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
        "machine agent",
        _RUN,
        "Time from the start of a run to its end.",
        RunCompleted,
    ),
    histogram("run_iterations", "machine agent", (1, 2, 5, 13, 34), "Loops per run.", RunCompleted),
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
        (0.5, 0.75, 0.9, 1),
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
        zero=False,  # not every combination: only RETRIED
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
        (0.5, 0.75, 0.9, 1),
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
        "llm_cost_micros_total",
        "machine agent provider model",
        "Cost of requests in millionths of the currency of the price table, with the least cost of interrupted ones.",
        LLMCall,
        AnswerLost,
        zero=False,  # of agents with prices
    ),
    counter(
        "handoffs_total",
        "agent to",
        "Handoffs of a conversation from one agent of a team to another.",
        HandedOver,
        zero=False,  # of the pairs that agents declare
    ),
    counter(
        "llm_requests_unpriced_total",
        "agent provider model",
        "Answers whose cost is unknown although the agent has prices; they are not in llm_cost_micros_total.",
        LLMCall,
        zero=False,  # of agents with prices
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
        "Time until records were durable. A journal in memory makes none durable: its writes are not counted.",
        JournalWrite,
        operation=("append",),
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


_HEAD = ("name", "type", "labels", "buckets", "meaning", "made from")


def table() -> str:
    """Return the catalogue as Markdown, one row for each metric, in its order."""
    rows = [_HEAD, ("---",) * len(_HEAD), *map(_row, CATALOGUE)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"


def _row(row: Metric) -> tuple[str, ...]:
    labels = ", ".join(
        f"{label}{{{', '.join(row.values[label])}}}" if label in row.values else label for label in row.labels
    )
    facts = ", ".join(kind.__name__ for kind in row.fed_by)
    made = {
        MetricSource.OBSERVED: facts or "watchdog, telemetry",
        MetricSource.SCRAPED: "scrape",
        MetricSource.STORED: "metrics serve",
        MetricSource.PUSHED: "batch push",
    }
    buckets = " ".join(f"{bound:g}" for bound in row.buckets)
    return f"`{PREFIX}{row.name}`", row.kind.value, labels, buckets, row.help, made[row.made]
