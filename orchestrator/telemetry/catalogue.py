"""Every metric as a row of one table: instruments, documentation and dashboard checks are made from it.

Names and labels are a contract with alerts and dashboards: rows are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.errors import ERROR_KINDS
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.kernel.record import (
    FAILURES,
    OPERATIONS,
    Attempt,
    BudgetChecked,
    EventFailed,
    GuardEvaluated,
    JournalWrite,
    LLMCall,
    RunCompleted,
    RunStarted,
    ToolCall,
    Transition,
)

PREFIX = "orchestrator_"


class Kind(StrEnum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row. `name` is without PREFIX."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    fed_by: tuple[type, ...]
    """The facts it is made from; none where code counts directly."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without +Inf."""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label -> its closed values, for labels that no graph, tool list or model name defines."""
    zero: bool = True
    """The series of every combination of declared values exist, at 0, from the declaration on."""


_RUN = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_STATE = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOOL = (0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LLM = (0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84)
_JOURNAL = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)

_OUTCOMES = tuple(Outcome)
BUDGETS = tuple(sorted(REASONS[Outcome.BUDGET_EXCEEDED]))
BUDGET_OF = {"iterations": "max_iterations", "elapsed": "time", "tool_cap": "tool_calls"}
"""Guard -> the budget it watches, where the two have different names."""
NO_BUDGETS = frozenset(("no_progress", "repeated_success", "restarts", "wrap_up"))
"""Guards that may end a run without a budget being used up."""
RETRY_REASONS = ("rate_limited", "timeout", "server_error", "connection", "schema_invalid", "other")
BACKENDS = ("memory", "sqlite", "postgres")
_DIRECTIONS = ("input", "output")


def _counter(
    name: str, labels: str, text: str, *fed_by: type, zero: bool = True, **values: Iterable[str]
) -> Metric:
    found = {label: tuple(str(value) for value in closed) for label, closed in values.items()}
    return Metric(
        name=name,
        kind=Kind.COUNTER,
        labels=tuple(labels.split()),
        help=text,
        fed_by=fed_by,
        values=found,
        zero=zero,
    )


def _gauge(name: str, labels: str, text: str, *fed_by: type) -> Metric:
    # a timestamp that starts at 0 would read as "half a century ago" and page somebody
    return Metric(
        name=name, kind=Kind.GAUGE, labels=tuple(labels.split()), help=text, fed_by=fed_by, zero=False
    )


def _histogram(
    name: str, labels: str, buckets: tuple[float, ...], text: str, *fed_by: type, **values: Iterable[str]
) -> Metric:
    found = {label: tuple(str(value) for value in closed) for label, closed in values.items()}
    return Metric(
        name=name,
        kind=Kind.HISTOGRAM,
        labels=tuple(labels.split()),
        help=text,
        fed_by=fed_by,
        buckets=buckets,
        values=found,
    )


CATALOGUE: tuple[Metric, ...] = (
    # ---- runs ----
    _counter(
        "runs_started_total",
        "machine origin",
        "Runs that entered their graph.",
        RunStarted,
        origin=("new", "resumed"),
    ),
    _counter(
        "runs_completed_total",
        "machine outcome reason",
        "Runs that reached a terminal state; the outcome determines which reasons are possible.",
        RunCompleted,
        zero=False,  # not every combination: only those of kernel.outcome.REASONS
        outcome=_OUTCOMES,
        reason=sorted(set().union(*REASONS.values())),
    ),
    _histogram(
        "run_duration_seconds",
        "machine outcome",
        _RUN,
        "Time from the start of a run to its end.",
        RunCompleted,
        outcome=_OUTCOMES,
    ),
    _histogram("run_iterations", "machine", (1, 2, 3, 5, 8, 13, 21, 34, 55), "Loops per run.", RunCompleted),
    _histogram(
        "iteration_duration_seconds",
        "machine",
        _RUN,
        "Time of one loop: from entering its first state until that is entered again or the run ends well.",
        Transition,
    ),
    _counter("restarts_total", "machine", "Times a loop was started over, counted at run end.", RunCompleted),
    _counter(
        "compactions_total",
        "machine outcome",
        "Times older messages were replaced by a summary.",
        Attempt,
        outcome=("ok", "error"),
    ),
    # ---- states and transitions ----
    _gauge(
        "last_transition_timestamp_seconds",
        "machine",
        "Unix time of the last committed transition.",
        Transition,
    ),
    _counter(
        "transitions_total",
        "machine from_state event to_state",
        "Committed transitions.",
        Transition,
        zero=False,  # not every combination: only the edges of the graph
    ),
    _counter(
        "transition_failures_total",
        "machine from_state event reason",
        "Events that did not commit, and hooks that raised.",
        EventFailed,
        zero=False,  # the likely ones exist at 0, undeclared edges appear when they happen
        reason=FAILURES,
    ),
    _histogram(
        "state_duration_seconds",
        "machine state",
        _STATE,
        "Time in a state, observed on leaving it.",
        Transition,
    ),
    _counter("state_entries_total", "machine state", "Times a state was entered.", Transition, RunStarted),
    _counter(
        "guard_evaluations_total",
        "machine guard result",
        "Guards asked.",
        GuardEvaluated,
        BudgetChecked,
        result=("allow", "deny", "error"),
    ),
    # ---- retries and budgets ----
    _counter(
        "attempts_total",
        "machine operation",
        "Tries of operations that may be tried again, first tries included.",
        LLMCall,
        ToolCall,
        Attempt,
        operation=OPERATIONS,
    ),
    _counter(
        "retries_total",
        "machine operation reason",
        "Further tries, by what went wrong before them.",
        Attempt,
        operation=OPERATIONS,
        reason=RETRY_REASONS,
    ),
    _counter(
        "retries_exhausted_total",
        "machine operation",
        "Operations given up after their last try.",
        Attempt,
        operation=OPERATIONS,
    ),
    _histogram(
        "budget_consumed_ratio",
        "machine budget",
        (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1, 1.25),
        "Share of a limit that a run had used when it ended.",
        RunCompleted,
        budget=BUDGETS,
    ),
    _counter(
        "budget_exceeded_total",
        "machine budget",
        "Checks that found a budget used up.",
        BudgetChecked,
        EventFailed,
        budget=BUDGETS,
    ),
    # ---- models and tools ----
    _counter(
        "llm_requests_total",
        "provider model outcome",
        "Requests to a model, each try counted.",
        LLMCall,
        outcome=("ok", "cancelled", *sorted(ERROR_KINDS)),
    ),
    _histogram(
        "llm_request_duration_seconds",
        "provider model",
        _LLM,
        "Time of one request to a model.",
        LLMCall,
    ),
    _counter(
        "llm_tokens_total",
        "machine provider model direction",
        "Billable tokens.",
        LLMCall,
        direction=_DIRECTIONS,
    ),
    _counter(
        "llm_cached_input_tokens_total",
        "provider model",
        "Input tokens read from the provider's cache; a part of llm_tokens_total.",
        LLMCall,
    ),
    _counter(
        "llm_reasoning_output_tokens_total",
        "provider model",
        "Output tokens of hidden reasoning; a part of llm_tokens_total.",
        LLMCall,
    ),
    _counter(
        "state_tokens_total",
        "machine state direction",
        "Tokens by the state that spent them.",
        LLMCall,
        direction=_DIRECTIONS,
    ),
    _counter(
        "tool_calls_total",
        "tool outcome",
        "Tool calls; `_unregistered` is a name that the model made up.",
        ToolCall,
        outcome=("ok", "error", "timeout", "denied", "invalid_args", "cancelled"),
    ),
    _histogram("tool_call_duration_seconds", "tool", _TOOL, "Time of one tool call.", ToolCall),
    # ---- journal ----
    _histogram(
        "journal_write_duration_seconds",
        "backend operation",
        _JOURNAL,
        "Time until records were durable.",
        JournalWrite,
        operation=("append", "snapshot"),
    ),
    _counter(
        "journal_write_failures_total",
        "backend reason",
        "Records that could not be made durable.",
        JournalWrite,
        reason=("io", "locked", "full", "corrupt", "other"),
    ),
    _gauge(
        "journal_last_success_timestamp_seconds",
        "backend",
        "Unix time of the last durable record.",
        JournalWrite,
    ),
    # ---- telemetry itself ----
    _counter(
        "telemetry_errors_total",
        "component",
        "Exceptions inside telemetry; none of them failed a run.",
        component=("metrics", "logs", "tracing", "collector"),
    ),
    _counter(
        "label_overflow_total",
        "metric label",
        "Label values folded into `_other` to keep the number of series bounded.",
        zero=False,  # pairs, not every combination: labels.FOLDED
    ),
)

ROWS: Mapping[str, Metric] = {metric.name: metric for metric in CATALOGUE}
"""The same rows by name."""
